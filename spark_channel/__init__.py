"""Move data between systems with Spark without hurting either end."""

__version__ = "0.1.0"
