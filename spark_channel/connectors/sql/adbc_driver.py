"""ADBC's connections, without Arrow's datasets: a method that is not called here takes these.

Importing them takes more CPU than a copy of ten rows does otherwise in PostgreSQL's driver, and 60 MB.
"""

from spark_channel.lazy import postponed

with postponed("pyarrow.dataset"):
    from adbc_driver_manager import dbapi

__all__ = ["dbapi"]
