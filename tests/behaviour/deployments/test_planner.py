"""What the short processes on the driver's host import: for one small job Spark starts several of them.

Each step is made as Spark's planner makes it, in its own process, and held by what it has imported: the
clock of a shared machine would say less.
"""

import sqlite3
import subprocess
import sys
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark import cloudpickle
from pyspark.sql.types import LongType, StringType, StructType

import pyspark_channel
from tests.spark.planner import ROOT, plan_in_a_process

TASKS_ONLY = (
    "spark_channel.carrier.carrier",
    "spark_channel.channel.memory",
    "spark_channel.cli",
    "spark_channel.limits.coordinator",
    "spark_channel.observe",
    "spark_channel.observers",
    "spark_channel.pipeline.read",
    "spark_channel.pipeline.transfer",
    "spark_channel.pipeline.write",
    "spark_channel.service.display",
    "spark_channel.service.client",
    "spark_channel.service.leases",
    "spark_channel.service.reporter",
    "spark_channel.service.server",
    "spark_channel.transfers.task",
    "spark_channel.tunnel.job",
    "pyarrow.acero",
    "pyarrow.flight",
    "rich",
    "typer",
)
"""Threads round a channel, the service and what tasks say to it, what people are shown."""

FUNCTIONS = "pyarrow.compute"
"""35 ms for Arrow's functions, which values need: a schema of CSV or JSON files is found by looking at theirs."""

SQL = ("adbc_driver_manager", "sqlglot", "stamina", "pymysql", "duckdb", "psycopg")
"""What files and made-up rows never need; a condition (`where`) is parsed by sqlglot."""

OTHER_FORMATS = tuple(
    f"spark_channel.connectors.files.formats.{name}" for name in ("arrow", "csv", "json", "orc")
)

PANDAS = ("pandas", "pyarrow._dataset")
"""pyarrow brings pandas, where it is installed, with the first Python value that it makes an Arrow value of."""


def imported(step: str, options: Mapping[str, str]) -> frozenset[str]:
    return plan_in_a_process(step, options).modules


@pytest.fixture
def parquet(tmp_path: Path) -> str:
    folder = tmp_path / "in"
    folder.mkdir()
    pq.write_table(pa.table({"id": [1, 2, 3], "name": ["a", "b", "c"]}), folder / "x.parquet")
    return str(folder)


@pytest.fixture
def csv(tmp_path: Path) -> str:
    path = tmp_path / "x.csv"
    path.write_text("id,name\n1,a\n2,b\n", "utf-8")
    return str(path)


@pytest.mark.parametrize("step", ["schema", "read", "stream"])
def test_reading_files(step: str, parquet: str) -> None:
    options = {"reader": "parquet", "path": parquet}
    found = imported(step, {**options, "tunnelType": "stream"} if step == "stream" else options)
    assert "spark_channel.connectors.files.formats.parquet" in found
    assert not found & {FUNCTIONS, *TASKS_ONLY, *SQL, *PANDAS, *OTHER_FORMATS}


def test_a_condition_is_parsed_where_there_is_one(csv: str) -> None:
    assert not imported("schema", {"path": csv}) & {*TASKS_ONLY, *SQL, *PANDAS}
    assert "sqlglot" in imported("schema", {"path": csv, "where": "id > 1"})


@pytest.mark.parametrize("step", ["write", "stream write"])
def test_writing_files(step: str, tmp_path: Path) -> None:
    found = imported(step, {"writer": "parquet", "path": str(tmp_path / "out")})
    assert "spark_channel.connectors.files.writer" in found
    assert not found & {FUNCTIONS, *TASKS_ONLY, *SQL, *PANDAS, *OTHER_FORMATS}


def test_rows_made_up() -> None:
    options = {"reader": "generator", "rows": "10", "schema": "id BIGINT, name STRING"}
    assert not imported("schema", options) & {*TASKS_ONLY, *PANDAS}
    assert not imported("read", options) & {*TASKS_ONLY}


@pytest.fixture
def database(tmp_path: Path) -> dict[str, str]:
    with closing(sqlite3.connect(tmp_path / "x.db")) as connection, connection:
        connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, name TEXT)")
        connection.executemany("INSERT INTO t VALUES (?, ?)", [(1, "a"), (2, "b")])
    return {"path": str(tmp_path / "x.db"), "dbtable": "t"}


@pytest.mark.parametrize("step", ["schema", "read", "stream", "write", "stream write"])
def test_a_database(step: str, database: dict[str, str]) -> None:
    stream = {"cursorColumn": "id", "tunnelType": "stream", "startingOffsets": "earliest"}
    found = imported(step, {**database, **stream} if step == "stream" else database)
    assert "sqlite3" in found
    assert not found & {
        FUNCTIONS,
        *TASKS_ONLY,
        "adbc_driver_manager",
        "stamina",
        "pymysql",
        "duckdb",
    }
    assert "sqlglot" not in found, "30 to 60 ms, for a table that is named plainly"


def modules_after(code: str, given: str) -> frozenset[str]:
    """What `code` imports in a new process beyond what `given` has."""
    program = f"import sys\nexec({given!r})\nbefore = set(sys.modules)\nexec({code!r})\n"
    program += "print(*set(sys.modules) - before)"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return frozenset(done.stdout.split())


HEAVY = {"numpy", "pyarrow", "pydantic", "sqlglot"}


def test_the_process_that_looks_for_data_sources_imports_the_class_alone() -> None:
    """It took 0.4 s of the first job of each application."""
    found = modules_after(
        "import pyspark_channel; assert pyspark_channel.DefaultSource.name() == 'channel'",
        "import pyspark.sql.worker.lookup_data_sources",
    )
    assert "spark_channel.spark.source" in found
    assert not found & {*HEAVY, "spark_channel.options", "spark_channel.spark.driver"}


def test_the_session_is_ready_to_register_before_the_service_is_loaded() -> None:
    """The service is imported while Spark looks for data sources, on another core."""
    found = modules_after(
        "import spark_channel; spark_channel.register", "import pyspark.sql.datasource"
    )
    assert "spark_channel.spark.session" in found
    assert not found & {*HEAVY, "spark_channel.options", "spark_channel.service.server"}


def test_a_task_without_a_limit_loads_none() -> None:
    found = modules_after(
        "import spark_channel.spark.read, spark_channel.transfers.task, spark_channel.pipeline.read\n"
        "import spark_channel.service.client, spark_channel.service.reporter",
        "import pyspark.worker, pyarrow, pyspark.sql.worker.plan_data_source_read",
    )
    assert not found & {
        "spark_channel.limits.coordinator",
        "spark_channel.observe",
        "spark_channel.observers",
        "spark_channel.progress.job",
        "spark_channel.service.jobs",
        "spark_channel.service.limits",
        "spark_channel.spark.driver",
        "sqlglot",
    }


def test_the_tasks_of_a_pair_that_was_published_load_nothing_and_take_nothing(
    database: dict[str, str],
) -> None:
    """Spark feeds a task until it answers."""
    rows = StructType().add("id", LongType()).add("name", StringType())
    options = {**database, "dbtable": "published", "txnAppId": "nightly", "txnVersion": "7"}
    first = pyspark_channel.ChannelDataSource(options).writer(rows, False)
    assert isinstance(first, pyspark_channel.ChannelWriter)
    first.commit([])
    again = pyspark_channel.ChannelDataSource(options).writer(rows, False)
    sent = cloudpickle.dumps(again)  # type: ignore[no-untyped-call] # untyped
    code = (
        "import pickle\n"
        "def fed():\n    raise AssertionError('a batch was pulled')\n    yield\n"
        f"assert pickle.dumps(pickle.loads({sent!r}).write(fed()))"
    )
    found = modules_after(code, "import pyspark.worker")
    assert "spark_channel.spark.already_published" in found
    assert not found & {*HEAVY, "spark_channel.options", "spark_channel.spark.write"}


def test_importing_the_package_imports_nothing_else() -> None:
    code = "import sys, spark_channel; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert not {"pyarrow", "pydantic", "pyspark", "dataclasses"} & set(done.stdout.split())
