"""Rotary position embedding: contract and backends."""
