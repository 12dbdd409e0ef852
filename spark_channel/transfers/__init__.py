"""Transfers between two connectors: planned, claimed, judged and published, whatever engine moves the rows."""
