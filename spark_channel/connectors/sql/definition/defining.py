"""Which systems' tables have a definition that others take."""

__all__ = ["DEFINING"]

DEFINING = ("postgresql", "mysql", "sqlite", "duckdb")
"""The connectors whose new tables get the definition of their source."""
