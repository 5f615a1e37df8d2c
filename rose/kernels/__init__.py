"""One folder per operation: contract, reference, fast backends."""
