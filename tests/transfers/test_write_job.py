"""The driver's half of a write, step by step on SQLite: claim, publish, and what an error of any step leaves."""

import pickle
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_channel.connectors import Receipt, WriteContext, Writer, load_writer
from spark_channel.errors import ChannelError, CommitError, DirtyRowsError, SchemaError
from spark_channel.pipeline import TaskDirtyRows, TaskOutcome
from spark_channel.transfers.write_job import WriteJob

SCHEMA = pa.schema([("id", pa.int64())])


def target(folder: Path, name: str, **options: str) -> Writer:
    with closing(sqlite3.connect(folder / "x.db")) as connection, connection:
        connection.execute(f"CREATE TABLE IF NOT EXISTS {name} (id INTEGER PRIMARY KEY)")
    settings = {"writer": "sqlite", "path": str(folder / "x.db"), "dbtable": name, **options}
    return load_writer(settings)[0]


def rows(folder: Path, sql: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(folder / "x.db")) as connection:
        return connection.execute(sql).fetchall()


def remains(folder: Path) -> list[str]:
    """What a write that did not end leaves: staged files, and claims that are open."""
    claims = [row for row in rows(folder, "SELECT * FROM spark_channel_claims") if row[2] == "job"]
    folders = [entry.name for entry in folder.iterdir() if entry.name.startswith(".x.db")]
    return [*folders, *(str(row[3]) for row in claims if row[7] == "open")]


def prepared(writers: Sequence[Writer], *, txn: tuple[str, int] | None = None) -> WriteJob:
    job = WriteJob("job", writers, "sqlite x.db")
    job.prepare(
        (WriteContext(f"job-{number}", commit="job", txn=txn) for number in range(len(writers))),
        SCHEMA,
    )
    return job


def staged(job: WriteJob, *ids: int) -> list[TaskOutcome]:
    """Task n stages the n-th number, at the target of its part if there are several."""
    outcomes = []
    for task, number in enumerate(ids):
        part = task if len(job.writers) > 1 else 0
        writer = job.writers[part].open(job.plans[part], task, 0)
        writer.write(pa.record_batch({"id": pa.array([number], pa.int64())}))
        outcomes.append(TaskOutcome(task, writer.close()))
    return outcomes


def test_what_another_process_publishes_with_a_copy_is_there_once(tmp_path: Path) -> None:
    job = prepared([target(tmp_path, "a")])
    outcomes = staged(job, 1, 2)
    assert rows(tmp_path, "SELECT * FROM a") == [], "nothing is seen before `publish`"
    copy: WriteJob = pickle.loads(pickle.dumps(job))
    copy.receive(outcomes)
    copy.judge()
    assert sum(receipt.rows for receipt in copy.publish()) == 2
    job.receive(outcomes)
    job.publish()
    assert rows(tmp_path, "SELECT id FROM a ORDER BY id") == [(1,), (2,)]


def test_a_pair_that_is_published_is_known_at_the_claim(tmp_path: Path) -> None:
    for ids, expected in ((1, False), (2, True)):
        job = prepared([target(tmp_path, "a")], txn=("nightly", 7))
        assert job.is_published is expected
        if not expected:
            job.receive(staged(job, ids))
            job.publish()
    assert rows(tmp_path, "SELECT id FROM a") == [(1,)]


def test_a_part_that_is_refused_leaves_no_claim_of_the_one_before_it(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "x.db")) as connection, connection:
        connection.execute("CREATE TABLE b (other TEXT NOT NULL)")
    first = prepared([target(tmp_path, "a")])
    assert remains(tmp_path) == [".x.db.spark-channel", "job-0"], (
        "what the refused job would have left, too"
    )
    first.abort(None)
    with pytest.raises(SchemaError, match="column 'id' is not in table 'b'"):
        prepared([target(tmp_path, "a"), target(tmp_path, "b")])
    assert remains(tmp_path) == []


def test_refused_rows_are_published_also_where_they_end_the_job(tmp_path: Path) -> None:
    folder = tmp_path / "refused"
    job = prepared([target(tmp_path, "a", maxDirtyRows="1", dirtyRowsPath=str(folder))])
    store = job.dirty_store
    assert store is not None
    kept = store.writer.open(store.plan, 0, 0)
    kept.write(
        pa.record_batch(
            [
                pa.array(["job"]),
                pa.array([0], pa.int32()),
                pa.array(["a"]),
                pa.array(["too long"]),
                pa.array(["{}"]),
                pa.array([0], pa.timestamp("us", "UTC")),
            ],
            schema=store.plan.schema,
        )
    )
    job.receive([TaskOutcome(0, None, TaskDirtyRows(2, receipt=kept.close()))])
    with pytest.raises(DirtyRowsError, match="2 rows were refused, and maxDirtyRows is 1"):
        job.judge()
    job.fail(job.receipts)
    assert pq.read_table(folder)["reason"].to_pylist() == ["too long"]
    assert rows(tmp_path, "SELECT * FROM a") == []
    assert remains(tmp_path) == []


def test_a_later_part_that_does_not_publish_names_those_before_it(tmp_path: Path) -> None:
    job = prepared([target(tmp_path, "a"), target(tmp_path, "b")])
    job.receive(staged(job, 1, 2))
    with closing(sqlite3.connect(tmp_path / "x.db")) as connection, connection:
        connection.execute("INSERT INTO b VALUES (2)")
    with pytest.raises(CommitError, match="The 1 targets before it are published"):
        job.publish()
    assert job.targets_published == 1
    assert job.fail(job.receipts) == 0
    assert rows(tmp_path, "SELECT id FROM a") == [(1,)]
    assert rows(tmp_path, "SELECT id FROM b") == [(2,)], "the row that was there before"
    assert remains(tmp_path) == []


class _Broken:
    """A writer whose staging cannot be removed."""

    def __init__(self, writer: Writer) -> None:
        self.writer = writer
        self.options = writer.options

    def abort(self, *_: object) -> Sequence[Receipt]:
        raise ChannelError("the server is gone")


def test_staging_that_cannot_be_removed_does_not_hide_the_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job = prepared([target(tmp_path, "a")])
    staged(job, 1)
    broken = WriteJob("job", [_Broken(job.writers[0])], "sqlite x.db", plans=job.plans)  # type: ignore[list-item]
    assert broken.fail(None) == 0
    assert "the staging of job job-0 was not removed" in caplog.text
    assert remains(tmp_path) == [".x.db.spark-channel", "job-0"]
    job.abort(None)
    assert remains(tmp_path) == []
