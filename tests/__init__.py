"""The tests of `rose`; folders mirror the package."""
