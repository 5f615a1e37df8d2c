"""Choosing each token's experts: contract and backends."""
