"""Any database with an ADBC driver, by the driver's name."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from spark_channel import lazy
from spark_channel.connectors.base.connector import ONCE, AlsoReaches, Connector

if TYPE_CHECKING:
    from spark_channel.connectors.adbc.database import AdbcDatabase
    from spark_channel.connectors.adbc.reader import AdbcReader
else:
    __getattr__, __dir__ = lazy.exports(
        __name__, {"reader": ["AdbcReader"], "database": ["AdbcDatabase"]}
    )

__all__ = ["CONNECTOR", "AdbcDatabase", "AdbcReader"]


def _other_driver(options: Mapping[str, Any]) -> bool:
    """Whether ADBC's driver, a name or a path, is none of those that the tests run."""
    name = str(options.get("driver", "")).lower().rpartition("/")[2]
    return not any(tested in name for tested in ("postgresql", "sqlite", "duckdb"))


CONNECTOR = Connector(
    "adbc",
    "spark_channel.connectors.adbc:AdbcReader",
    "spark_channel.connectors.sql:SqlWriter",
    database="spark_channel.connectors.adbc:AdbcDatabase",
    about="any database with an ADBC driver",
    secrets=("driver", "password", "uri", "driverOptions"),
    maturity="stable",
    tested="ADBC's drivers of PostgreSQL 15 and SQLite 3; reads also DuckDB's",
    delivery=ONCE,
    also=(AlsoReaches("other ADBC drivers", "experimental", "none of them was run"),),
    untested=_other_driver,
)
