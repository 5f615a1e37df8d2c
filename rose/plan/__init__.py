"""Arithmetic about a deployment: what a step must move and compute. No torch, no engine."""
