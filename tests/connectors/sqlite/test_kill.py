"""SIGKILL in the middle of what changes the database: nothing half written, and the rerun arrives once."""

import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_channel.connectors import Receipt, WritePlan
from spark_channel.connectors.sql import SqlWriter
from spark_channel.options import CommitMode
from tests.connectors.sql.one_database import run_task
from tests.connectors.sqlite.conftest import Db

pytestmark = pytest.mark.real_server("SQLite", "sqlite")

ROWS = pa.table({"id": range(20_000), "name": [str(number) for number in range(20_000)]})
PROCESSES = multiprocessing.get_context("forkserver")
SECONDS = 60.0


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _commit_and_die(
    writer: SqlWriter[Any], plan: WritePlan, receipts: list[Receipt], at: str
) -> None:
    """The driver's process, killed at one statement of its publish."""
    from spark_channel.connectors.sqlite.session import SqliteSession

    real = SqliteSession.rows

    def rows(self: SqliteSession, sql: str, parameters: object = ()) -> object:
        if at == "before COMMIT" and sql == "COMMIT":
            _die()
        answer = real(self, sql, parameters)  # type: ignore[arg-type] # as it was called
        if (at == "after COMMIT" and sql == "COMMIT") or (
            at == "after DELETE" and sql.startswith('DELETE FROM "main"."t"')
        ):
            _die()
        return answer

    SqliteSession.rows = rows  # type: ignore[method-assign,assignment]
    writer.commit(plan, receipts)


def _close_and_die(writer: SqlWriter[Any], plan: WritePlan) -> None:
    """A worker that is killed after its rows are committed, before Spark hears of it."""
    run_task(writer, plan, 0, ROWS, attempt=1)
    _die()


def _killed(target: object, *arguments: object) -> None:
    process = PROCESSES.Process(target=target, args=arguments)  # type: ignore[arg-type] # as it was called
    process.start()
    process.join(SECONDS)
    assert process.exitcode == -signal.SIGKILL


@pytest.mark.parametrize("at", ["after DELETE", "before COMMIT", "after COMMIT"])
@pytest.mark.parametrize("journal", ["DELETE", "WAL"])
def test_a_driver_killed_while_it_publishes(db: Db, at: str, journal: str) -> None:
    db.sql("CREATE TABLE t (id INTEGER PRIMARY KEY, name TEXT)")
    db.sql(f"PRAGMA journal_mode = {journal}")
    db.sql("INSERT INTO t VALUES (-1, 'old')")
    writer = db.writer()
    plan = writer.prepare(db.context(overwrite=True, txn=("app", 1)), ROWS.schema)
    receipts = [run_task(writer, plan, 0, ROWS)]
    _killed(_commit_and_die, writer, plan, receipts, at)
    found = db.sql("SELECT count(*), min(id) FROM t")
    assert found == ([(20_000, 0)] if at == "after COMMIT" else [(1, -1)])
    again = db.writer()
    replan = again.prepare(db.context(overwrite=True, txn=("app", 1)), ROWS.schema)
    assert (replan.published_at is not None) == (at == "after COMMIT")
    again.commit(replan, [run_task(again, replan, 0, ROWS)])
    assert db.sql("SELECT count(*), count(DISTINCT id), min(id) FROM t") == [(20_000, 20_000, 0)]
    writer.abort(plan, None)
    assert db.staged() == []


def test_a_worker_killed_after_its_task_committed(db: Db) -> None:
    db.sql("CREATE TABLE t (id INTEGER PRIMARY KEY, name TEXT)")
    writer = db.writer()
    mode: CommitMode = "task"
    plan = writer.prepare(db.context(commit=mode), ROWS.schema)
    _killed(_close_and_die, writer, plan)
    receipt = run_task(writer, plan, 0, ROWS, attempt=2)
    assert receipt.attempt == 1
    writer.commit(plan, [receipt])
    assert db.sql("SELECT count(*) FROM t") == [(20_000,)]
    assert db.staged() == []


def _run_in_process(
    writer: SqlWriter[Any], plan: WritePlan, task: int, first: int, done: str
) -> None:
    rows = pa.table({"id": range(first, first + 2000), "name": ["x"] * 2000})
    run_task(writer, plan, task, rows, attempt=task)
    Path(done).touch()


def test_tasks_of_several_processes_take_turns(db: Db, tmp_path: Path) -> None:
    db.sql("CREATE TABLE t (id INTEGER PRIMARY KEY, name TEXT)")
    writer = db.writer()
    plan = writer.prepare(db.context(commit="task"), ROWS.schema)
    processes = [
        PROCESSES.Process(
            target=_run_in_process,
            args=(writer, plan, task, task * 2000, str(tmp_path / f"{task}.done")),
        )
        for task in range(4)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(SECONDS)
        assert process.exitcode == 0
    assert len(list(tmp_path.glob("*.done"))) == 4
    writer.abort(plan, None)
    assert db.sql("SELECT count(*), count(DISTINCT id) FROM t") == [(8000, 8000)]
