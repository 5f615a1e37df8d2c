"""Which blocks of the KV cache hold what: plain Python, no tensors."""
