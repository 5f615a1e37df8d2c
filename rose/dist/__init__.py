"""Parallel groups."""
