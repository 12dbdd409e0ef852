"""Declarative pipelines, run by Spark's own command line."""

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pyarrow.parquet as pq
import pytest

pytest.importorskip("grpc", reason="Declarative pipelines are Spark Connect, which asks for grpcio")
pytest.importorskip("grpc_status", reason="Spark Connect asks for grpcio-status")
yaml = pytest.importorskip("yaml", reason="spark-pipelines asks for PyYAML")

CLI = Path(sys.executable).parent / "spark-pipelines"
pytestmark = [
    pytest.mark.spark,
    pytest.mark.newest,
    pytest.mark.skipif(not CLI.exists(), reason="spark-pipelines came with Spark 4.1"),
]

DEFINITIONS = """
from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

import spark_channel

spark = SparkSession.active()
spark_channel.register(spark)  # the session lets no setting be set

SHOP = {"url": "sqlite:%(shop)s"}


@dp.materialized_view
def orders() -> DataFrame:
    return spark.read.format("channel").options(**SHOP, dbtable="orders", rowsPerSecond="10k").load()


@dp.table
def events() -> DataFrame:
    options = {**SHOP, "dbtable": "events", "cursorColumn": "id", "lateSeconds": "0"}
    return spark.readStream.format("channel").options(**options).load()


dp.create_sink("copied", format="channel", options={"url": "sqlite:%(copy)s", "dbtable": "events"})


@dp.append_flow(target="copied")
def copy() -> DataFrame:
    return spark.readStream.table("events")
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A pipeline that reads a database of two tables, of 100 rows each, and copies one of them."""
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection, connection:
        for table in ("orders", "events"):
            connection.execute(f"CREATE TABLE {table} (id INTEGER PRIMARY KEY, name TEXT)")
            connection.executemany(
                f"INSERT INTO {table} VALUES (?, ?)", [(n, f"{table} {n}") for n in range(100)]
            )
    spec = {
        "name": "shop",
        "storage": f"file://{tmp_path}/storage",
        "libraries": [{"glob": {"include": "transformations/**"}}],
    }
    (tmp_path / "spark-pipeline.yml").write_text(yaml.safe_dump(spec))
    (tmp_path / "transformations").mkdir()
    paths = {"shop": tmp_path / "shop.db", "copy": tmp_path / "copy.db"}
    (tmp_path / "transformations" / "shop.py").write_text(DEFINITIONS % paths)
    return tmp_path


@pytest.mark.soak
def test_a_view_a_streaming_table_and_a_sink_of_spark_s_command_line(project: Path) -> None:
    done = subprocess.run(
        [str(CLI), "run", "--conf", "spark.ui.enabled=false"],
        cwd=project,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert "Run is COMPLETED" in done.stdout + done.stderr, (done.stdout + done.stderr)[-4000:]
    warehouse = project / "spark-warehouse"
    for folder in ("orders", "events"):
        found = pq.read_table(warehouse / folder).column("id").to_pylist()
        assert sorted(found) == list(range(100)), folder
    with closing(sqlite3.connect(project / "copy.db")) as connection:
        assert connection.execute("SELECT count(*), count(DISTINCT id) FROM events").fetchall() == [
            (100, 100)
        ]
