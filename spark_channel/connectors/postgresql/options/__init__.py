"""Options of the PostgreSQL connector, and the addresses that urls name."""

from spark_channel.connectors.postgresql.options.address import (
    Address,
    SslMode,
    conninfo,
    parse_url,
)
from spark_channel.connectors.postgresql.options.options import (
    PostgresOptions,
    PostgresReadOptions,
    PostgresWriteOptions,
)

__all__ = [
    "Address",
    "PostgresOptions",
    "PostgresReadOptions",
    "PostgresWriteOptions",
    "SslMode",
    "conninfo",
    "parse_url",
]
