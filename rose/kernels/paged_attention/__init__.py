"""Attention over a paged KV cache: contract and backends."""
