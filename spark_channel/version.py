"""The version of the package, which driver, executors, and client and server of Spark Connect share."""

__all__ = ["__version__"]

__version__ = "0.1.0"
