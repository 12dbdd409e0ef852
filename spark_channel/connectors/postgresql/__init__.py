"""PostgreSQL: read by COPY in splits of equal rows, written by COPY, published in one transaction."""

from typing import TYPE_CHECKING

from spark_channel import lazy
from spark_channel.connectors.base.connector import (
    CURSOR,
    LENIENT,
    LOCAL_TEXTS,
    ONCE,
    Connector,
    DataxCompatibility,
)

if TYPE_CHECKING:
    from spark_channel.connectors.postgresql.read.reader import PostgresReader
    from spark_channel.connectors.postgresql.write.database import PostgresDatabase
else:
    __getattr__, __dir__ = lazy.exports(
        __name__, {"read.reader": ["PostgresReader"], "write.database": ["PostgresDatabase"]}
    )

__all__ = ["CONNECTOR", "PostgresDatabase", "PostgresReader"]

CONNECTOR = Connector(
    "postgresql",
    "spark_channel.connectors.postgresql:PostgresReader",
    "spark_channel.connectors.sql:SqlWriter",
    database="spark_channel.connectors.postgresql:PostgresDatabase",
    schemes=("postgresql", "postgres"),
    about="PostgreSQL databases",
    needs=("adbc_driver_postgresql", "asyncpg", "psycopg", "numpy"),
    port=5432,
    dialect="postgres",
    datax=("postgresql",),
    secrets=("url", "password", "sslpassword"),
    feed=(CURSOR, "slot"),
    as_datax=DataxCompatibility(writer=LENIENT, texts=LOCAL_TEXTS, zone="sessionTimeZone"),
    maturity="stable",
    tested="PostgreSQL 15; the main tests also on 13 and 18",
    delivery=ONCE,
    together="spark_channel.connectors.postgresql.write.small_tables:joined",
)
