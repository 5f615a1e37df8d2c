"""Root-mean-square normalization: contract and backends."""
