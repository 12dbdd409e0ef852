"""What drivers need, imported once in the process that they are forked from."""

import atexit
import gc
import importlib
from importlib.util import find_spec

for _name in (
    "adbc_driver_postgresql.dbapi",
    "duckdb",
    "psycopg",
    "pymysql",
    "sqlglot.dialects.postgres",
    "spark_channel.api",
    "spark_channel.connectors.adbc.database",
    "spark_channel.connectors.adbc.loader",
    "spark_channel.connectors.adbc.reader",
    "spark_channel.connectors.duckdb.database",
    "spark_channel.connectors.duckdb.reader",
    "spark_channel.connectors.files.writer",
    "spark_channel.connectors.mysql.read.reader",
    "spark_channel.connectors.mysql.write.small_tables",
    "spark_channel.connectors.postgresql.read.copy_session",
    "spark_channel.connectors.postgresql.read.reader",
    "spark_channel.connectors.postgresql.write.small_tables",
    "spark_channel.connectors.sqlite.database",
    "spark_channel.connectors.sqlite.reader",
    "spark_channel.local",
    "spark_channel.replication.run",
    "spark_channel.transfers.small_tables",
    "tests.behaviour.exactly_once.runs",
):
    importlib.import_module(_name)
# Most of the cost of a short-lived driver is what these modules import on first use.
_LAKES = {
    "deltalake": ("deltalake", "spark_channel.connectors.delta.writer"),
    "pyiceberg": (
        "pyiceberg.catalog.sql",
        "pyiceberg.io.pyarrow",
        "sqlalchemy.dialects.sqlite",
        "spark_channel.connectors.iceberg.writer",
    ),
}
for _library, _names in _LAKES.items():
    if find_spec(_library) is not None:
        for _name in _names:
            importlib.import_module(_name)

if find_spec("firebird") is not None:
    from tests.behaviour.third_party import install

    importlib.import_module("firebird.driver")
    install()

# Otherwise each fork would go through all of it when it collects garbage, and so copy the memory that it shares.
gc.collect()
gc.freeze()
atexit.register(gc.unfreeze)  # libraries that look for leaks at the end find none
