"""`spark_channel.transfer`: from source to target, without a DataFrame in between."""

import json
import os
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.conf import RuntimeConfig
from pyspark.sql.datasource import DataSourceRegistration

import spark_channel
from spark_channel import transfer
from spark_channel.errors import (
    ChannelError,
    DirtyRowsError,
    OptionError,
    SchemaError,
    SourceError,
    TargetError,
)
from spark_channel.planning.transfer import SaveMode
from spark_channel.transform import DropRows, Substr

pytestmark = pytest.mark.spark

ROOT = Path(__file__).resolve().parents[2]
Options = dict[str, Any]


@pytest.fixture
def source(tmp_path: Path) -> Options:
    """100 000 rows in eight row groups of two files."""
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(2):
        ids = range(number * 50_000, number * 50_000 + 50_000)
        table = pa.table({"id": pa.array(ids, pa.int64()), "name": [f"n{n % 100:02}" for n in ids]})
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=12_500)
    return {"name": "parquet", "path": str(folder)}


def test_a_relative_path_begins_where_the_session_was_started(
    spark: SparkSession, source: Options, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `format("channel")` and Spark's own sources have it: `os.chdir` in Python moves neither."""
    start = Path(str(getattr(spark, "_jvm").java.lang.System.getProperty("user.dir")))  # noqa: B009 - not in the stubs
    monkeypatch.chdir(tmp_path)
    transfer(spark, source, {"name": "parquet", "path": os.path.relpath(tmp_path / "out", start)})
    assert parquet(tmp_path / "out").num_rows == 100_000
    frames = {"format": "csv", "path": os.path.relpath(tmp_path / "out.csv", start)}
    transfer(spark, {"name": "parquet", "path": os.path.relpath(tmp_path / "out", start)}, frames)
    assert spark.read.csv(str(tmp_path / "out.csv")).count() == 100_000


def parquet(folder: Path) -> pa.Table:
    return pq.read_table(
        [path for path in folder.rglob("*.parquet") if not path.name.startswith((".", "_"))]
    )


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "t.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(
            "CREATE TABLE t (id INTEGER PRIMARY KEY CHECK (id % 1000 <> 7), name TEXT)"
        )
    return path


def rows(path: Path, query: str = "SELECT count(*), sum(id) FROM t") -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(query).fetchall()


def test_the_first_of_a_session_neither_registers_a_format_nor_asks_spark_s_sql(
    spark: SparkSession, tmp_path: Path, source: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For the first format Spark starts a Python process, and for the first setting it loads its SQL: CPU seconds."""
    session = spark.newSession()
    asked: list[str] = []
    for kind, names in {
        DataSourceRegistration: ["register"],
        RuntimeConfig: ["get", "set"],
        SparkSession: ["sql", "range", "createDataFrame"],
    }.items():
        for name in names:
            monkeypatch.setattr(kind, name, lambda *_, name=name, **__: asked.append(name))
    report = transfer(session, source, {"name": "parquet", "path": str(tmp_path / "out")})
    assert (report.rows, asked) == (100_000, [])


@pytest.mark.parametrize(("channels", "per_task"), [(1, 1), (4, 2), (3, 64)])
def test_every_row_arrives_once(
    spark: SparkSession, tmp_path: Path, source: Options, channels: int, per_task: int
) -> None:
    target = tmp_path / "out"
    report = transfer(
        spark,
        source,
        {"name": "parquet", "path": str(target)},
        channels=channels,
        channels_per_task=per_task,
    )
    got = parquet(target).sort_by("id")
    assert got.column("id").to_pylist() == list(range(100_000))
    assert got.column("name")[123].as_py() == "n23"
    assert (report.kind, report.phase, report.rows, report.rows_dirty) == (
        "transfer",
        "done",
        100_000,
        0,
    )
    assert report.bytes > 800_000
    assert report.tasks == report.attempts >= min(channels, 2)
    assert set(report.waits_by_side) >= {"source", "target"}
    last = spark_channel.last_report()
    assert last is not None
    assert last.job == report.job


def test_append_and_overwrite(spark: SparkSession, tmp_path: Path, source: Options) -> None:
    target = {"name": "parquet", "path": str(tmp_path / "out")}
    steps: list[tuple[SaveMode, int]] = [
        ("errorIfExists", 100_000),
        ("append", 200_000),
        ("overwrite", 100_000),
    ]
    for mode, expected in steps:
        transfer(spark, source, target, mode=mode)
        assert (
            spark.read.format("channel").option("reader", "parquet").load(target["path"]).count()
            == expected
        )


@pytest.mark.newest
def test_a_target_that_is_there_is_refused_when_asked_for(
    spark: SparkSession, tmp_path: Path, database: Path
) -> None:
    for target in (
        {"name": "sqlite", "path": str(database), "dbtable": "t"},
        {"name": "csv", "path": str(ROOT / "tests" / "data")},
    ):
        with pytest.raises(TargetError, match="exists, and the mode is errorIfExists"):
            transfer(spark, {"name": "generator", "rows": 1}, target, mode="errorIfExists")
    with pytest.raises(OptionError, match="option 'mode' got 'replace'"):
        transfer(spark, {"name": "generator"}, {"name": "discard"}, mode="replace")  # type: ignore[arg-type] # wrong on purpose


@pytest.mark.newest
def test_names_come_from_the_url_and_the_suffix(spark: SparkSession, tmp_path: Path) -> None:
    flights = ROOT / "tests" / "data" / "flights.csv"
    target = {"url": f"jdbc:sqlite:{tmp_path}/f.db", "dbtable": "flights"}
    report = transfer(spark, {"path": str(flights), "nullValue": "NA"}, target)
    lines = len(flights.read_text().splitlines()) - 1
    assert rows(tmp_path / "f.db", "SELECT count(*) FROM flights") == [(lines,)]
    assert (report.rows, report.source) == (lines, f"csv {flights.relative_to(ROOT)}")


def test_transformers_run_on_the_way(spark: SparkSession, tmp_path: Path, source: Options) -> None:
    def doubled(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.set_column(0, "id", pc.multiply(batch["id"], 2))

    steps = [DropRows("id", ">=", "10"), Substr("name", 1, 2), doubled]
    report = transfer(
        spark, source, {"name": "parquet", "path": str(tmp_path / "out")}, transformers=steps
    )
    got = parquet(tmp_path / "out").sort_by("id").to_pylist()
    assert got == [{"id": 2 * n, "name": f"0{n}"} for n in range(10)]
    assert report.rows == 10


def test_an_empty_source_makes_an_empty_target(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "e.db"
    report = transfer(
        spark,
        {"name": "generator", "rows": 0},
        {"name": "sqlite", "path": str(path), "dbtable": "t"},
    )
    assert report.rows == 0
    assert rows(path, "SELECT count(*) FROM t") == [(0,)]


def test_the_limit_is_the_whole_jobs(spark: SparkSession) -> None:
    start = time.monotonic()
    report = transfer(
        spark,
        {"name": "generator", "rows": 200_000},
        {"name": "discard"},
        channels=4,
        channels_per_task=2,
        rows_per_second="100k",
    )
    seconds = time.monotonic() - start
    assert seconds >= 1.9
    assert report.rows_per_second_limit == 100_000
    assert sum(spent for why, spent in report.waits.items() if why.startswith("limit")) > 0.5


def test_dirty_rows_are_left_out_and_kept(
    spark: SparkSession, tmp_path: Path, source: Options, database: Path
) -> None:
    kept = tmp_path / "dirty"
    report = transfer(
        spark,
        source,
        {"name": "sqlite", "path": str(database), "dbtable": "t"},
        max_dirty_rows=100,
        dirty_rows_path=str(kept),
        job_id="orders",
        channels=3,
        channels_per_task=3,
    )
    assert (report.rows, report.rows_dirty, report.commit) == (99_900, 100, "task")
    assert rows(database) == [(99_900, sum(n for n in range(100_000) if n % 1000 != 7))]
    refused = report.dirty_rows(spark).collect()
    assert sorted(json.loads(row.row)["id"] for row in refused) == list(range(7, 100_000, 1000))
    assert all(
        "CHECK constraint failed" in row.reason and row.job.startswith("orders-") for row in refused
    )


@pytest.mark.newest
def test_too_many_dirty_rows_stop_it(
    spark: SparkSession, tmp_path: Path, source: Options, database: Path
) -> None:
    kept = tmp_path / "dirty"
    with pytest.raises(
        DirtyRowsError, match=r"refused, and maxDirtyRows is 30.*refused rows are in"
    ):
        transfer(
            spark,
            source,
            {"name": "sqlite", "path": str(database), "dbtable": "t"},
            max_dirty_rows=30,
            dirty_rows_path=str(kept),
            channels=4,
            channels_per_task=2,
        )
    assert spark.read.parquet(str(kept)).count() > 30
    report = spark_channel.last_report()
    assert report is not None
    assert (report.phase, report.rows) == ("failed", rows(database)[0][0])


def test_a_source_that_fails_is_named_and_the_target_stays(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = tmp_path / "t.db"
    target = {"name": "sqlite", "path": str(path), "dbtable": "t"}
    transfer(spark, {"name": "generator", "rows": 10}, target)
    with pytest.raises(
        SourceError, match=r"^row 70000 cannot be read: option 'failAtRow' asks for it$"
    ):
        transfer(
            spark, {"name": "generator", "rows": 100_000, "failAtRow": 70_000}, target, commit="job"
        )
    assert rows(path, "SELECT count(*) FROM t") == [(10,)]
    assert sorted(each.name for each in tmp_path.iterdir()) == ["t.db"]


@pytest.mark.newest
def test_a_pair_that_was_published_writes_nothing_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = tmp_path / "t.db"
    target = {
        "name": "sqlite",
        "path": str(path),
        "dbtable": "t",
        "txnAppId": "nightly",
        "txnVersion": 3,
    }
    for expected in (10, 0):
        assert transfer(spark, {"name": "generator", "rows": 10}, target).rows == expected
    assert rows(path, "SELECT count(*) FROM t") == [(10,)]


@pytest.mark.newest
@pytest.mark.parametrize(
    ("reader", "writer", "more", "error", "why"),
    [
        ({"name": "generatr"}, {"name": "discard"}, {}, OptionError, "did you mean 'generator'"),
        ({"name": "generator"}, {}, {}, OptionError, "nothing says what to write"),
        (
            {"name": "generator", "format": "csv"},
            {"name": "discard"},
            {},
            OptionError,
            "has more than one name",
        ),
        (
            {"name": "generator", "rwos": 1},
            {"name": "discard"},
            {},
            OptionError,
            "unknown option 'rwos'",
        ),
        (
            {"name": "generator"},
            {"name": "discard"},
            {"channels": 0},
            OptionError,
            "'channels' got '?0",
        ),
        (
            {"name": "generator"},
            {"name": "discard"},
            {"channels": -1},
            OptionError,
            "'channels' got '?-1",
        ),
        (
            {"name": "generator"},
            {"name": "discard"},
            {"channels": "two"},
            OptionError,
            "whole number",
        ),
        (
            {"name": "generator"},
            {"name": "discard"},
            {"rows_per_second": 2**63},
            OptionError,
            "rowsPerSecond",
        ),
        (
            {"name": "generator"},
            {"name": "discard"},
            {"max_dirty_rows": -1},
            OptionError,
            "maxDirtyRows",
        ),
        (
            {"name": "generator"},
            {"name": "discard"},
            {"max_dirty_fraction": 1.1},
            OptionError,
            "maxDirtyFr",
        ),
        (
            {"name": "generator", "rowsPerSecond": 5},
            {"name": "discard", "rowsPerSecond": 6},
            {},
            OptionError,
            "is given in two places",
        ),
        (
            {"name": "generator"},
            {"name": "discard"},
            {"transformers": [Substr("nme", 0, 1)]},
            SchemaError,
            r"transformers\[0\].*no column 'nme'; did you mean 'name'",
        ),
        (
            {"name": "generator"},
            {"name": "discard"},
            {"transformers": ["substr"]},
            OptionError,
            r"transformers\[0\] got 'substr'",
        ),
        ({"path": "/no/such.csv"}, {"name": "discard"}, {}, SourceError, "/no/such.csv"),
        (
            {"name": "generator"},
            {"name": "sqlite", "path": "/no/such/x.db", "dbtable": "t"},
            {},
            TargetError,
            "does not exist; make it",
        ),
        (
            {"name": "generator"},
            {"name": "sqlite", "path": "x.db", "dbtable": "t"},
            {"commit": "job", "max_dirty_rows": 1},
            OptionError,
            "need commit=task",
        ),
    ],
)
def test_bad_input_is_refused_before_a_row_moves(
    spark: SparkSession,
    reader: Options,
    writer: Options,
    more: Options,
    error: type[ChannelError],
    why: str,
) -> None:
    with pytest.raises(error, match=why):
        transfer(spark, reader, writer, **more)


@pytest.mark.soak  # tests/behaviour/faults/test_database_faults.py has the same deaths
def test_tasks_that_die_are_tried_again_and_count_once(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.transfer_faults", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    total = 300_000 * 299_999 // 2
    deaths = {
        "same": 0,
        "fails_twice": 2,
        "killed_while_it_writes": 1,
        "killed_after_its_receipt": 1,
    }
    for name, result in found.items():
        died = deaths[name.partition(" ")[2]]
        assert result == [300_000, 300_000, total, 300_000, died, ["t.db"]], name
    assert len(found) == 8


# ---- Spark's own formats


@pytest.fixture
def frame_source(spark: SparkSession, tmp_path: Path) -> Options:
    spark.range(1000).selectExpr("id", "concat('n', id) name").write.json(str(tmp_path / "in"))
    return {"format": "json", "path": str(tmp_path / "in"), "schema": "id BIGINT, name STRING"}


def test_a_spark_format_reads_into_our_target(
    spark: SparkSession, tmp_path: Path, frame_source: Options, database: Path
) -> None:
    target = {"name": "sqlite", "path": str(database), "dbtable": "t"}
    report = transfer(
        spark,
        frame_source,
        target,
        transformers=[DropRows("id", "=", "7")],
        rows_per_second="100k",
        commit="job",
    )
    assert report.rows == 999
    assert rows(database) == [(999, 499_500 - 7)]


def test_our_source_feeds_a_spark_format(
    spark: SparkSession, tmp_path: Path, source: Options
) -> None:
    target = {"format": "orc", "path": str(tmp_path / "out")}
    report = transfer(spark, source, target, rows_per_second="1M", mode="overwrite")
    assert report.rows == 100_000
    assert spark.read.orc(str(tmp_path / "out")).selectExpr("sum(id)").first() == (4_999_950_000,)


def test_two_spark_formats_are_throttled(
    spark: SparkSession, tmp_path: Path, frame_source: Options
) -> None:
    start = time.monotonic()
    report = transfer(
        spark,
        frame_source,
        {"format": "parquet", "path": str(tmp_path / "out")},
        rows_per_second=500,
    )
    assert time.monotonic() - start > 1.5
    assert (report.rows, spark.read.parquet(str(tmp_path / "out")).count()) == (1000, 1000)


def test_tables_of_sparks_catalog(spark: SparkSession, source: Options) -> None:
    spark.sql("DROP TABLE IF EXISTS copied")
    try:
        for count in (100_000, 200_000):
            transfer(spark, source, {"format": "hive", "dbtable": "copied"})
            assert spark.table("copied").count() == count
        query = {"format": "hive", "query": "SELECT id FROM copied WHERE id < 5"}
        assert transfer(spark, query, {"name": "discard"}).rows == 10
    finally:
        spark.sql("DROP TABLE copied")


def test_names_with_a_dot_pass_transformers_and_tables(spark: SparkSession) -> None:
    spark.sql("DROP TABLE IF EXISTS dotted")
    query = "SELECT 2 `a.b`, named_struct('b', 9) a, 'x' `c``d`"
    try:
        for step in ([], [DropRows("a.b", "=", "1")]):
            transfer(
                spark,
                {"format": "hive", "query": query},
                {"format": "hive", "dbtable": "dotted"},
                transformers=step,
            )
        assert spark.table("dotted").collect() == spark.sql(query).collect() * 2
    finally:
        spark.sql("DROP TABLE IF EXISTS dotted")


def test_a_dirty_row_on_the_way_to_a_spark_format_ends_it(
    spark: SparkSession, tmp_path: Path, frame_source: Options
) -> None:
    target = {"format": "parquet", "path": str(tmp_path / "out")}
    with pytest.raises(DirtyRowsError, match="maxDirtyRows is 0"):
        transfer(spark, frame_source, target, transformers=[Substr("name", 9, 1)])


def descriptions(spark: SparkSession) -> list[str]:
    """What Spark's UI calls its jobs."""
    jobs = spark.sparkContext._jsc.sc().statusStore().jobsList(None)
    found = [jobs.apply(number).description() for number in range(jobs.size())]
    return [each.get() for each in found if each.isDefined()]


def test_sparks_ui_names_the_jobs_of_a_transfer(
    spark: SparkSession, tmp_path: Path, frame_source: Options
) -> None:
    source = {"name": "generator", "rows": "100", "schema": "id BIGINT, name STRING"}
    report = transfer(spark, source, {"name": "discard"})
    assert f"channel: {report.source} -> {report.target}" in descriptions(spark)
    framed = transfer(spark, frame_source, {"format": "parquet", "path": str(tmp_path / "out")})
    assert f"channel: {framed.source} -> {framed.target}" in descriptions(spark)
    assert spark.sparkContext.getLocalProperty("spark.job.description") is None


def test_what_is_shown_of_a_job_of_sparks_formats_is_what_is_returned(
    spark: SparkSession, tmp_path: Path, frame_source: Options
) -> None:
    report = transfer(spark, frame_source, {"format": "parquet", "path": str(tmp_path / "out")})
    shown = spark_channel.last_report()
    assert shown is not None
    assert (shown.job, shown.rows, shown.seconds, shown.rows_per_second) == (
        report.job,
        1000,
        report.seconds,
        report.rows_per_second,
    )
    assert shown.rows_per_second > 0
