"""Schemas in the shape of well-known examples, each of which a run copies with all of its definition."""
