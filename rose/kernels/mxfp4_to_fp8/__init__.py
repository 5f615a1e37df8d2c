"""MXFP4 weights as FP8, written where they belong."""
