"""`transfer(writer=[...])`: one read, several targets, each claimed, limited and reported by itself."""

import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from spark_channel import run, transfer
from spark_channel.errors import ChannelError, DirtyRowsError, OptionError, TargetError
from spark_channel.progress import TransferReport
from spark_channel.transform import DropRows

pytestmark = [pytest.mark.spark, pytest.mark.newest]

Options = dict[str, Any]
ROWS = 20_000


@pytest.fixture
def source(tmp_path: Path) -> Options:
    folder = tmp_path / "in"
    folder.mkdir()
    table = pa.table(
        {"id": pa.array(range(ROWS), pa.int64()), "name": [f"n{n % 100:02}" for n in range(ROWS)]}
    )
    pq.write_table(table, folder / "0.parquet", row_group_size=5_000)
    return {"name": "parquet", "path": str(folder)}


def files(folder: Path) -> Options:
    return {"name": "parquet", "path": str(folder)}


def database(path: Path, check: str = "1 = 1") -> Options:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"CREATE TABLE t (id INTEGER PRIMARY KEY CHECK ({check}), name TEXT)")
    return {"name": "sqlite", "path": str(path), "dbtable": "t", "commit": "job"}


def ids(folder: Path) -> list[int]:
    found = [path for path in folder.rglob("*.parquet") if not path.name.startswith((".", "_"))]
    found = [
        path
        for path in found
        if not any(part.startswith(("_", ".")) for part in path.relative_to(folder).parts)
    ]
    return sorted(n for path in found for n in pq.read_table(path).column("id").to_pylist())


def count(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        found: int = connection.execute("SELECT count(*) FROM t").fetchone()[0]
        return found


def test_every_target_has_every_row_once(
    spark: SparkSession, tmp_path: Path, source: Options
) -> None:
    one, two, three = tmp_path / "one", tmp_path / "two.db", tmp_path / "three"
    report = transfer(spark, source, [files(one), database(two), files(three)], channels=2)
    assert ids(one) == ids(three) == list(range(ROWS))
    assert count(two) == ROWS
    assert (report.phase, report.rows, len(report.targets)) == ("done", ROWS, 3)
    assert [each.rows for each in report.targets] == [ROWS] * 3
    assert len({each.job for each in report.targets}) == 3
    assert [each.target.split()[0] for each in report.targets] == ["parquet", "sqlite", "parquet"]
    assert TransferReport.from_json(report.to_json()) == report
    assert str(two) in str(report)
    for each in report.targets:
        assert str(each).splitlines()[0] in str(report)


def test_a_target_that_is_published_is_not_written_again(
    spark: SparkSession, tmp_path: Path, source: Options
) -> None:
    """Each target has its own claim: the next run writes the targets that failed, and leaves the rest alone."""
    one, two = files(tmp_path / "one"), database(tmp_path / "two.db", "id <> 77")
    pair = {"txnAppId": "copy", "txnVersion": 1}
    first = transfer(spark, source, [{**one, **pair}, {**two, **pair, "onFailure": "leave"}])
    assert [each.phase for each in first.targets] == ["done", "failed"]
    assert (len(ids(tmp_path / "one")), count(tmp_path / "two.db")) == (ROWS, 0)
    with closing(sqlite3.connect(tmp_path / "two.db")) as connection, connection:
        connection.execute("DROP TABLE t")
        connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, name TEXT)")
    again = transfer(spark, source, [{**one, **pair}, {**two, **pair}])
    assert [each.rows for each in again.targets] == [0, ROWS]
    assert (len(ids(tmp_path / "one")), count(tmp_path / "two.db")) == (ROWS, ROWS)
    transfer(spark, source, [{**one, **pair}, {**two, **pair}])
    assert (len(ids(tmp_path / "one")), count(tmp_path / "two.db")) == (ROWS, ROWS)


def test_a_target_that_fails_fails_all_and_nothing_is_published(
    spark: SparkSession, tmp_path: Path, source: Options
) -> None:
    bad = {**database(tmp_path / "bad.db", "id <> 7777"), "commit": "task"}
    with pytest.raises(ChannelError, match="CHECK constraint failed"):
        transfer(spark, source, [files(tmp_path / "one"), bad])
    assert ids(tmp_path / "one") == []


def test_a_target_that_fails_when_it_is_published_names_those_before_it(
    spark: SparkSession, tmp_path: Path, source: Options
) -> None:
    bad = database(tmp_path / "bad.db", "id <> 7777")
    with pytest.raises(ChannelError, match="CHECK constraint failed") as caught:
        transfer(spark, source, [files(tmp_path / "one"), bad])
    assert any(
        f"published before it: parquet {tmp_path}" in note for note in caught.value.__notes__
    )
    assert (len(ids(tmp_path / "one")), count(tmp_path / "bad.db")) == (ROWS, 0)


def test_a_target_that_cannot_be_prepared_is_left_behind_or_fails_all(
    spark: SparkSession, tmp_path: Path, source: Options
) -> None:
    with closing(sqlite3.connect(tmp_path / "bad.db")) as connection, connection:
        connection.execute("CREATE TABLE t (other INTEGER NOT NULL)")
    bad = {"name": "sqlite", "path": str(tmp_path / "bad.db"), "dbtable": "t"}
    with pytest.raises(ChannelError):
        transfer(spark, source, [files(tmp_path / "one"), bad])
    assert ids(tmp_path / "one") == []
    report = transfer(spark, source, [files(tmp_path / "one"), {**bad, "onFailure": "leave"}])
    assert [each.phase for each in report.targets] == ["done", "failed"]
    assert report.targets[1].error
    assert len(ids(tmp_path / "one")) == ROWS


def test_rows_are_refused_and_counted_by_target(
    spark: SparkSession, tmp_path: Path, source: Options
) -> None:
    one, two = database(tmp_path / "one.db", "id % 1000 <> 7"), database(tmp_path / "two.db")
    one["commit"] = "task"
    report = transfer(spark, source, [{**one, "maxDirtyRows": 50}, two])
    assert [(each.rows, each.rows_dirty) for each in report.targets] == [(ROWS - 20, 20), (ROWS, 0)]
    assert (report.rows, report.rows_dirty) == (ROWS - 20, 20)
    with pytest.raises(DirtyRowsError):
        transfer(
            spark, source, [{**one, "maxDirtyRows": 5}, files(tmp_path / "files")], mode="append"
        )
    assert ids(tmp_path / "files") == []


def test_steps_run_before_all_targets(spark: SparkSession, tmp_path: Path, source: Options) -> None:
    steps = [DropRows("id", ">=", "100")]
    report = transfer(
        spark, source, [files(tmp_path / "a"), files(tmp_path / "b")], transformers=steps
    )
    assert ids(tmp_path / "a") == ids(tmp_path / "b") == list(range(100))
    assert report.rows_dropped == {"transformers[0] DropRows": ROWS - 100}, (
        "once, and not once for each target"
    )
    frame = report.trace()
    assert frame["dropped"].sum() == ROWS - 100
    assert (frame["first_row"] > 0).all()
    assert (frame["write"] >= 0).all()


def test_a_limit_of_one_target_is_its_own_and_the_whole_jobs_is_the_lowest(
    spark: SparkSession, tmp_path: Path, source: Options
) -> None:
    began = time.monotonic()
    report = transfer(
        spark,
        source,
        [
            {**files(tmp_path / "a"), "rowsPerSecond": 100_000},
            {**files(tmp_path / "b"), "rowsPerSecond": 8_000},
        ],
        rows_per_second="50k",
        channels=2,
    )
    assert time.monotonic() - began > 2.0
    assert [each.rows_per_second_limit for each in report.targets] == [50_000, 8_000]
    assert report.targets[1].rows_per_second <= 8_000 * 1.1
    assert ids(tmp_path / "a") == ids(tmp_path / "b") == list(range(ROWS))


@pytest.mark.parametrize(
    ("writer", "message"),
    [
        ([], "'writer' is an empty list"),
        ([{"name": "discard"}, "x"], r"'writer\[1\]' got str"),
        ([{"name": "discard"}, {"name": "discard"}], r"'writer\[1\]' is the same target"),
        (
            [{"name": "discard"}, {"format": "parquet", "path": "x"}],
            r"'writer\[1\]' has format 'parquet'",
        ),
        (
            [{"name": "discard"}, {"name": "parquet", "path": "x", "channels": 3}],
            r"of writer\[1\] is the whole job's",
        ),
        (
            [{"name": "discard"}, {"name": "parquet", "path": "x", "onSlow": "spill"}],
            "'onSlow' got 'spill'; it takes one of 'block'",
        ),
    ],
)
def test_a_list_that_makes_no_sense_is_told(
    spark: SparkSession, source: Options, writer: Any, message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        transfer(spark, source, writer)


def test_a_list_of_one_is_one(spark: SparkSession, tmp_path: Path, source: Options) -> None:
    report = transfer(spark, source, [files(tmp_path / "a")])
    assert (report.rows, report.targets) == (ROWS, ())


def test_a_datax_job_with_several_writers(spark: SparkSession, tmp_path: Path) -> None:
    text = {
        "path": str(tmp_path / "t"),
        "fileName": "x",
        "writeMode": "truncate",
        "fieldDelimiter": ",",
    }
    job = {
        "job": {
            "setting": {"speed": {"channel": 2}},
            "content": [
                {
                    "reader": {
                        "name": "streamreader",
                        "parameter": {
                            "column": [{"type": "long", "value": 5}],
                            "sliceRecordCount": 10,
                        },
                    },
                    "writer": [
                        {"name": "streamwriter", "parameter": {"print": False}},
                        {"name": "txtfilewriter", "parameter": text, "onFailure": "leave"},
                    ],
                }
            ],
        }
    }
    report = run(spark, job)
    assert [each.rows for each in report.targets] == [20, 20]
    lines = [
        line for path in (tmp_path / "t").glob("x__*") for line in path.read_text().splitlines()
    ]
    assert lines == ["5"] * 20
    assert issubclass(TargetError, ChannelError)
