"""Proof that two tables hold the same rows, and repair of those that do not."""
