"""SQLite: read by rowid ranges, written atomically, exact in both directions."""

from typing import TYPE_CHECKING

from spark_channel import lazy
from spark_channel.connectors.base.connector import CURSOR, ONCE, Connector

if TYPE_CHECKING:
    from spark_channel.connectors.sqlite.database import SqliteDatabase
    from spark_channel.connectors.sqlite.reader import SqliteReader
else:
    __getattr__, __dir__ = lazy.exports(
        __name__, {"reader": ["SqliteReader"], "database": ["SqliteDatabase"]}
    )

__all__ = ["CONNECTOR", "SqliteDatabase", "SqliteReader"]

CONNECTOR = Connector(
    "sqlite",
    "spark_channel.connectors.sqlite:SqliteReader",
    "spark_channel.connectors.sql:SqlWriter",
    database="spark_channel.connectors.sqlite:SqliteDatabase",
    schemes=("sqlite",),
    suffixes=(".db", ".sqlite", ".sqlite3"),
    about="SQLite databases",
    dialect="sqlite",
    datax=("sqlite3", "sqlite"),
    secrets=("url",),
    feed=(CURSOR,),
    maturity="stable",
    tested="SQLite 3.40",
    delivery=ONCE,
)
