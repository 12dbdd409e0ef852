"""The dialect of a database: what its SQL and types are, for reading and for writing."""

from spark_channel.connectors.sql.dialect.dialect import Dialect
from spark_channel.connectors.sql.dialect.write_dialect import (
    WriteDialect,
    misfit,
    wrong_table_options,
)

__all__ = ["Dialect", "WriteDialect", "misfit", "wrong_table_options"]
