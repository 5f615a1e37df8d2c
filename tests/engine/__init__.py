"""Tests of `rose.engine`."""
