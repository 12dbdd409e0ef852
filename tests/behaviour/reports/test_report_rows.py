"""The rows of a report, held against what the target has, after every kind of end."""

import logging
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from spark_channel.cli.job_results import JobOutcome
from spark_channel.connectors import Receipt
from spark_channel.connectors.files.writer import FilesTaskWriter
from spark_channel.connectors.sql.write.attempt import TaskAttempt
from spark_channel.errors import ChannelError
from spark_channel.local import LocalEngine
from spark_channel.planning import Endpoint, TransferSpec
from spark_channel.progress import TransferReport
from spark_channel.transfers.dispatch import carry_out

ROWS = 100


@pytest.fixture
def engine() -> Iterator[LocalEngine]:
    with LocalEngine() as made:
        yield made


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    path = tmp_path / "shop.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, v TEXT)")
        connection.executemany("INSERT INTO t VALUES (?, 'x')", [(n,) for n in range(ROWS)])
    return path


def target_of(kind: str, folder: Path, **options: str) -> Endpoint:
    place = {"sqlite": {"dbtable": "copy"}, "parquet": {}}[kind]
    path = folder / ("copy.db" if kind == "sqlite" else "copy")
    return Endpoint(kind, {"path": str(path), **place, **options})


def rows_there(kind: str, folder: Path) -> int:
    if kind == "parquet":
        return sum(pq.read_metadata(each).num_rows for each in (folder / "copy").glob("*.parquet"))
    with closing(sqlite3.connect(folder / "copy.db")) as connection:
        try:
            return int(connection.execute("SELECT count(*) FROM copy").fetchone()[0])
        except sqlite3.OperationalError:
            return 0


def report_of(engine: LocalEngine, shop: Path, target: Endpoint, **more: Any) -> TransferReport:
    """The report of a transfer by five tasks, one after another, which fails."""
    source = Endpoint("sqlite", {"path": str(shop), "dbtable": "t"})
    with pytest.raises(ChannelError):
        carry_out(engine, TransferSpec(source, target, channels=1, job_id="ends", **more))
    found = engine.report("ends")
    assert found is not None
    assert found.phase == "failed"
    return found


@pytest.mark.parametrize("how", ["cancel", "failure", "lost answer"])
@pytest.mark.parametrize("commit", ["task", "job"])
@pytest.mark.parametrize("kind", ["sqlite", "parquet"])
def test_a_report_has_the_rows_that_the_target_has(
    engine: LocalEngine,
    shop: Path,
    tmp_path: Path,
    kind: str,
    commit: str,
    how: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After two tasks: also of one that committed, and whose answer did not arrive."""
    task: Any = TaskAttempt if kind == "sqlite" else FilesTaskWriter
    close = task.close
    closed: list[Receipt] = []

    def closes(self: Any) -> Receipt:
        if len(closed) == 2 and how == "failure":
            raise ChannelError("the third task fails")
        receipt: Receipt = close(self)
        closed.append(receipt)
        if len(closed) == 2 and how == "cancel":
            engine.cancel()
        if len(closed) == 3 and how == "lost answer":
            raise ChannelError("it has committed")
        return receipt

    monkeypatch.setattr(task, "close", closes)
    # So few rows are one file, and one task, otherwise.
    monkeypatch.setattr("spark_channel.transfers.plan.is_one_file", lambda *_: False)
    report = report_of(engine, shop, target_of(kind, tmp_path, commit=commit))
    assert report.rows == rows_there(kind, tmp_path)
    assert (report.rows > 0) == (commit == "task")
    assert report.rows < ROWS


@pytest.mark.parametrize("commit", ["task", "job"])
def test_a_failed_post_sql_has_read_its_rows(
    engine: LocalEngine, shop: Path, tmp_path: Path, commit: str
) -> None:
    target = target_of("sqlite", tmp_path, commit=commit, postSql="INSERT INTO nowhere VALUES (1)")
    report = report_of(engine, shop, target)
    assert report.rows == rows_there("sqlite", tmp_path) == (ROWS if commit == "task" else 0)
    outcome = JobOutcome(
        file="file", name="job", started_at=datetime.now(UTC), seconds=1.0, reports=(report,)
    )
    assert (outcome.rows_read, outcome.rows_written) == (ROWS, report.rows)


@pytest.mark.parametrize("limit", [None, 1000])
def test_a_source_without_rows_is_a_job_like_any(
    engine: LocalEngine,
    shop: Path,
    tmp_path: Path,
    limit: int | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    source = Endpoint("sqlite", {"path": str(shop), "dbtable": "t", "where": "id < 0"})
    for kind in ("sqlite", "parquet"):
        spec = TransferSpec(
            source, target_of(kind, tmp_path), rows_per_second=limit, job_id="empty"
        )
        report = carry_out(engine, spec)
        assert (report.phase, report.rows, report.tasks) == ("done", 0, 0)
        assert engine.report("empty") is not None
    assert [each for each in caplog.records if each.levelno >= logging.WARNING] == []
