"""The weighted sum of each token's expert outputs: contract and backends."""
