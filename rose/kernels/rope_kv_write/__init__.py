"""Rotary position embedding, and writing keys and values into a paged KV cache: contract and backends."""
