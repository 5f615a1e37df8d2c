"""A linear layer in FP8 with row scales: contract and backends."""
