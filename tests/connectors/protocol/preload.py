"""What drivers need, imported once in the process that they are forked from."""

import importlib

for _name in (
    "adbc_driver_postgresql.dbapi",
    "duckdb",
    "firebird.driver",
    "psycopg",
    "pymysql",
    "spark_channel.connectors.files",
    "spark_channel.connectors.sql.adbc",
    "spark_channel.connectors.sql.duckdb",
    "spark_channel.connectors.sql.mysql",
    "spark_channel.connectors.sql.postgresql",
    "spark_channel.connectors.sql.sqlite",
    "tests.connectors.protocol.runs",
):
    importlib.import_module(_name)

from tests.connectors.firebird import install  # noqa: E402

install()
