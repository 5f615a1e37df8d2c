"""The clamped SwiGLU activation of gpt-oss: contract and backends."""
