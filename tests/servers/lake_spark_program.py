"""The program of `lake_spark`: it runs on an environment of its own, without this project.

    python lake_spark_program.py JARS FOLDER

Each line of the input is a JSON object: `sql` has statements, `query` is saved as Parquet in `to`. Each answer is a
line with the prefix `ANSWER`, and has the text of an error, or null.
"""

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

ANSWER = "answer:"


def session(jars: Path, folder: Path) -> SparkSession:
    settings = {
        "spark.jars": ",".join(map(str, jars.glob("*.jar"))),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension,"
        "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.type": "jdbc",
        "spark.sql.catalog.lake.uri": f"jdbc:sqlite:{folder}/catalog.db",
        "spark.sql.catalog.lake.jdbc.schema-version": "V1",
        "spark.sql.catalog.lake.warehouse": f"file://{folder}/warehouse",
        "spark.sql.catalog.lake.cache-enabled": "false",
        "spark.sql.warehouse.dir": f"{folder}/spark",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.databricks.delta.snapshotPartitions": "1",
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
        "spark.databricks.delta.retentionDurationCheck.enabled": "false",
        "spark.ui.enabled": "false",
        "spark.driver.extraJavaOptions": f"-Dderby.system.home={folder} -XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }
    builder = SparkSession.builder.master("local[2]").appName("lakes")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def carry_out(spark: SparkSession, wanted: dict[str, Any]) -> None:
    for statement in wanted.get("sql", ()):
        spark.sql(statement).collect()
    if "default" in wanted:
        add_column_with_default(spark, **wanted["default"])
    if "query" in wanted:
        # Delta's own files keep Spark's default, INT96.
        times = "spark.sql.parquet.outputTimestampType"
        spark.conf.set(times, "TIMESTAMP_MICROS")
        spark.sql(wanted["query"]).coalesce(1).write.mode("overwrite").parquet(wanted["to"])
        spark.conf.unset(times)


def add_column_with_default(spark: SparkSession, table: str, column: str, value: int) -> None:
    """By Iceberg's own interface: its SQL has no defaults."""
    jvm: Any = spark._jvm
    found = jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(spark._jsparkSession, table)
    literal = jvm.org.apache.iceberg.expressions.Literal.of(value)
    kind = jvm.org.apache.iceberg.types.Types.IntegerType.get()
    found.updateSchema().addColumn(column, kind, literal).commit()


def main() -> None:
    spark = session(Path(sys.argv[1]), Path(sys.argv[2]))
    for line in sys.stdin:
        error = None
        try:
            carry_out(spark, json.loads(line))
        except Exception as caught:
            error = str(caught)
        print(f"{ANSWER}{json.dumps(error)}", flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
