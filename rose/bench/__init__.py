"""Benchmarks: the engine stepped directly, any server over HTTP, and the reports made of both."""
