"""What drivers need, imported once in the process that they are forked from."""

import importlib
from importlib.util import find_spec

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
for _library, _name in (("deltalake", "delta"), ("pyiceberg", "iceberg")):
    if find_spec(_library) is not None:
        importlib.import_module(f"spark_channel.connectors.{_name}")
        importlib.import_module(_library)
if find_spec("pyiceberg") is not None and find_spec("sqlalchemy") is not None:
    for _name in ("pyiceberg.catalog.sql", "pyiceberg.io.pyarrow", "sqlalchemy.dialects.sqlite"):
        importlib.import_module(_name)

from tests.connectors.firebird import install  # noqa: E402

install()
