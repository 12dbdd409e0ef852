"""Declarative pipelines, run by Spark's own command line."""

import os
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pyarrow.parquet as pq
import pytest

pytest.importorskip("grpc", reason="Declarative pipelines are Spark Connect, which asks for grpcio")
pytest.importorskip("grpc_status", reason="Spark Connect asks for grpcio-status")
yaml = pytest.importorskip("yaml", reason="spark-pipelines asks for PyYAML")

CLI = Path(sys.executable).parent / "spark-pipelines"
ENVIRONMENT = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_TESTING": "1"}
"""With SPARK_TESTING its Spark Connect server takes a free port."""
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
spark_channel.register(spark)  # is not needed, and does nothing here

SHOP = {"url": "sqlite:%(shop)s"}


@dp.materialized_view
def orders() -> DataFrame:
    return spark.read.format("channel").options(**SHOP, dbtable="orders", rowsPerSecond="10k").load()


@dp.table
def events() -> DataFrame:
    options = {**SHOP, "dbtable": "events", "cursorColumn": "id", "lateSeconds": "0"}
    return spark.readStream.format("channel").options(**options).load()


dp.create_sink("copied", format="channel", options={"url": "sqlite:%(copy)s", "dbtable": "events"})


def copy() -> DataFrame:
    return spark.readStream.table("events")


dp.append_flow(target="copied", name="copy")(copy)
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


def ended(project: Path, *arguments: str) -> tuple[int, str]:
    """The exit code of a run, which is what a scheduler goes by, and what it printed."""
    done = subprocess.run(
        [str(CLI), "run", "--conf", "spark.ui.enabled=false", *arguments],
        cwd=project,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def run(project: Path, *arguments: str) -> None:
    code, said = ended(project, *arguments)
    assert code == 0, said[-4000:]
    assert "Run is COMPLETED" in said


def counted(database: Path) -> list[tuple[int, int]]:
    with closing(sqlite3.connect(database)) as connection:
        sql = "SELECT count(*), count(DISTINCT id) FROM events"
        return [(int(rows), int(keys)) for rows, keys in connection.execute(sql)]


@pytest.mark.soak
@pytest.mark.parametrize("registers", [True, False])
def test_a_view_a_streaming_table_and_a_sink_of_spark_s_command_line(
    project: Path, registers: bool
) -> None:
    definitions = project / "transformations" / "shop.py"
    if not registers:
        definitions.write_text(definitions.read_text().replace("spark_channel.register", "bool"))
    run(project)
    warehouse = project / "spark-warehouse"
    for folder in ("orders", "events"):
        found = pq.read_table(warehouse / folder).column("id").to_pylist()
        assert sorted(found) == list(range(100)), folder
    assert counted(project / "copy.db") == [(100, 100)]


SINKS = """
for name, more in (
    ("over", {"firstBatch": "overwrite"}),
    ("upsert", {"writeMode": "upsert", "keyColumns": "id"}),
):
    target = {"url": "sqlite:%(folder)s/" + name + ".db", "dbtable": "events"}
    dp.create_sink(name, format="channel", options={**target, **more})
    dp.append_flow(target=name, name=name + "_flow")(copy)
"""


@pytest.mark.soak
def test_a_full_refresh_adds_no_row_twice(project: Path) -> None:
    definitions = project / "transformations" / "shop.py"
    definitions.write_text(definitions.read_text() + SINKS % {"folder": project})
    lasting = ["--conf", "spark.sql.catalogImplementation=hive"]
    for more in ([], [], ["--full-refresh-all"]):
        run(project, *lasting, *more)
        for name in ("over", "upsert"):
            assert counted(project / f"{name}.db") == [(100, 100)], (name, more)
    assert counted(project / "copy.db") == [(200, 100)], "a sink that only appends"
    for more in (["--full-refresh", "events"], []):  # the table alone, and then what reads it
        run(project, *lasting, *more)
    assert counted(project / "upsert.db") == [(100, 100)]
    assert counted(project / "over.db") == [(200, 100)], "the query has had its first batch"


@pytest.mark.soak
def test_a_throttle_in_a_query_function_names_the_option_to_use(project: Path) -> None:
    definitions = project / "transformations" / "shop.py"
    text = definitions.read_text()
    limited = "return spark_channel.throttle(spark.readStream.table('events'), '1k')"
    definitions.write_text(text.replace('return spark.readStream.table("events")', limited))
    code, said = ended(project, "--conf", "spark.ui.enabled=false")
    assert code == 1
    assert "give the read the option rowsPerSecond" in said
    assert not (project / "copy.db").exists()


@pytest.mark.soak
def test_a_flow_that_spark_tries_again_writes_its_rows_once(project: Path) -> None:
    """The target refuses the last row until the flow has failed."""
    with closing(sqlite3.connect(project / "copy.db")) as connection, connection:
        connection.executescript(
            """
            CREATE TABLE events (id INTEGER, name TEXT);
            CREATE TABLE gate (is_open INTEGER);
            CREATE TRIGGER guard BEFORE INSERT ON events
            WHEN NEW.id = 99 AND NOT EXISTS (SELECT 1 FROM gate)
            BEGIN SELECT RAISE(ABORT, 'the gate is shut'); END;
            """
        )
    command = [str(CLI), "run", "--conf", "spark.ui.enabled=false"]
    said = []
    with subprocess.Popen(
        command,
        cwd=project,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as running:
        ending = threading.Timer(400, running.kill)
        ending.start()
        try:
            for line in running.stdout or ():
                said.append(line)
                if "copy" in line and "FAILED" in line and "gate is open" not in said:
                    with closing(sqlite3.connect(project / "copy.db")) as connection, connection:
                        connection.execute("INSERT INTO gate VALUES (1)")
                    said.append("gate is open")
        finally:
            ending.cancel()
    assert running.returncode == 0, "".join(said)[-4000:]
    assert "gate is open" in said
    assert counted(project / "copy.db") == [(100, 100)]
