"""A whole mixture of FP8 experts: contract and backends."""
