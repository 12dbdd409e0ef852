"""Tables of Apache Iceberg, by the `pyiceberg` library: no JVM and no jar."""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from spark_channel import lazy
from spark_channel.connectors.base.connector import ONCE_BY_JOB, S3, AlsoReaches, Connector

if TYPE_CHECKING:
    from spark_channel.connectors.iceberg.reader import IcebergReader
    from spark_channel.connectors.iceberg.writer import IcebergWriter
else:
    __getattr__, __dir__ = lazy.exports(
        __name__, {"reader": ["IcebergReader"], "writer": ["IcebergWriter"]}
    )

__all__ = ["CONNECTOR", "IcebergReader", "IcebergWriter"]


def _other_catalog(options: Mapping[str, Any]) -> bool:
    """Whether Iceberg's catalog is none of those that the tests run, as far as the options say it."""
    try:
        properties = dict(json.loads(options.get("catalogproperties") or "{}"))
    except (TypeError, ValueError):
        return False
    by_address = "rest" if str(properties.get("uri", "")).startswith("http") else "sql"
    return "py-catalog-impl" in properties or properties.get("type", by_address) not in (
        "sql",
        "rest",
    )


CONNECTOR = Connector(
    "iceberg",
    "spark_channel.connectors.iceberg:IcebergReader",
    "spark_channel.connectors.iceberg:IcebergWriter",
    about="Apache Iceberg tables",
    needs=("pyiceberg",),
    datax=("iceberg",),
    secrets=("catalogProperties",),
    feed=("new snapshots",),
    maturity="stable",
    tested="pyiceberg 0.12, and Iceberg 1.12 in Spark 4.1, a SQL catalog, tables on a disk",
    delivery=ONCE_BY_JOB,
    also=(
        AlsoReaches("Iceberg tables on S3", "stable", S3),
        AlsoReaches("Iceberg tables on GCS, Azure", "preview", "emulators of the stores"),
        AlsoReaches(
            "Iceberg tables in a REST catalog",
            "stable",
            "Iceberg's REST catalog 1.11, Project Nessie 0.99",
        ),
    ),
    untested=_other_catalog,
)
