"""Lost connections, kills and restarts: rows are counted by key afterwards; none lost, none twice, none staged."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from spark_channel.connectors import Receipt, WriteContext, WritePlan, load_reader, load_writer
from spark_channel.connectors.mysql.session import (
    LostConnectionError,
    MysqlSession,
    MysqlWriteSession,
)
from spark_channel.connectors.sql import SqlWriter
from spark_channel.errors import ChannelError, SourceError, TargetError
from spark_channel.options import CommitMode
from tests.connectors.mysql.shop import Shop
from tests.connectors.sql.one_database import run_task
from tests.servers.mariadb import MariadbServer
from tests.servers.ports import free_port

pytestmark = pytest.mark.real_server("MariaDB", "mysql")

ROWS = pa.table({"id": range(20_000), "name": [str(number) for number in range(20_000)]})
PROCESSES = multiprocessing.get_context("forkserver")
SECONDS = 120.0


@pytest.fixture
def keyed(shop: Shop) -> Shop:
    shop.sql(
        "CREATE TABLE t (id BIGINT PRIMARY KEY, name VARCHAR(50)); INSERT INTO t VALUES (-1, 'old')"
    )
    return shop


def counted(shop: Shop) -> tuple[str, ...]:
    return shop.rows("SELECT COUNT(*), COUNT(DISTINCT id), MIN(id), MAX(id) FROM t")[0]


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _commit_and_die(
    writer: SqlWriter[Any], plan: WritePlan, receipts: list[Receipt], at: str
) -> None:
    """The driver's process, killed at one statement of its publish."""
    real, affected = MysqlSession.rows, MysqlWriteSession.affected

    def rows(self: MysqlSession, sql: str, parameters: object = ()) -> object:
        if at == "before COMMIT" and sql == "COMMIT":
            _die()
        answer = real(self, sql, parameters)  # type: ignore[arg-type] # as it was called
        if at == "after COMMIT" and sql == "COMMIT":
            _die()
        return answer

    def inserted(self: MysqlWriteSession, sql: str) -> tuple[int, int]:
        answer = affected(self, sql)
        if at == "after INSERT" and "SELECT `id`" in sql:
            _die()
        return answer

    MysqlSession.rows = rows  # type: ignore[method-assign,assignment]
    MysqlWriteSession.affected = inserted  # type: ignore[method-assign,assignment]
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


@pytest.mark.parametrize("at", ["after INSERT", "before COMMIT", "after COMMIT"])
def test_a_driver_killed_while_it_publishes(keyed: Shop, at: str) -> None:
    writer = keyed.writer()
    plan = writer.prepare(keyed.context(overwrite=True, commit="job", txn=("app", 1)), ROWS.schema)
    receipts = [run_task(writer, plan, 0, ROWS)]
    _killed(_commit_and_die, writer, plan, receipts, at)
    again = keyed.writer()
    replan = again.prepare(keyed.context(overwrite=True, commit="job", txn=("app", 1)), ROWS.schema)
    assert (replan.published_at is not None) == (at == "after COMMIT")
    again.commit(replan, [run_task(again, replan, 0, ROWS)])
    assert counted(keyed) == ("20000", "20000", "0", "19999")
    if at == "after COMMIT":  # the rerun had nothing to write; the next job removes what is staged
        keyed.writer().prepare(keyed.context(commit="job"), ROWS.schema)
    assert keyed.staged() == []
    writer.abort(plan, None)
    again.abort(replan, None)
    assert counted(keyed) == ("20000", "20000", "0", "19999")


def test_a_worker_killed_after_its_task_committed(keyed: Shop) -> None:
    writer = keyed.writer()
    plan = writer.prepare(keyed.context(commit="task"), ROWS.schema)
    _killed(_close_and_die, writer, plan)
    receipt = run_task(writer, plan, 0, ROWS, attempt=2)
    assert receipt.attempt == 1
    writer.commit(plan, [receipt])
    assert counted(keyed) == ("20001", "20001", "-1", "19999")
    assert keyed.staged() == []


def test_a_newer_attempt_ends_an_older_one_that_hangs(
    keyed: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The older one's session, left open by a lost host, holds the keys of its rows."""
    monkeypatch.setattr("spark_channel.connectors.mysql.write.table_locks._OLDER_SECONDS", 0)
    writer = keyed.writer()
    plan = writer.prepare(keyed.context(commit="task"), ROWS.schema)
    older = writer.open(plan, 0, 1)
    older.write(ROWS.to_batches()[0])
    older.flush()
    receipt = run_task(writer, plan, 0, ROWS, attempt=2)
    assert (receipt.attempt, receipt.rows) == (2, 20_000)
    older.write(ROWS.to_batches()[0])
    with pytest.raises(TargetError, match="were lost with the connection"):
        older.flush()
    older.rollback()
    writer.commit(plan, [receipt])
    assert counted(keyed) == ("20001", "20001", "-1", "19999")
    assert keyed.staged() == []


def test_an_older_attempt_that_was_overtaken_finds_its_rows_committed(
    keyed: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_channel.connectors.mysql.write.table_locks._OLDER_SECONDS", 0)
    writer = keyed.writer()
    plan = writer.prepare(keyed.context(commit="task"), ROWS.schema)
    older = writer.open(plan, 0, 1)
    older.write(ROWS.to_batches()[0])
    older.flush()
    run_task(writer, plan, 0, ROWS, attempt=2)
    receipt = older.close()
    assert (receipt.attempt, receipt.rows) == (2, 20_000)
    writer.commit(plan, [receipt])
    assert counted(keyed) == ("20001", "20001", "-1", "19999")


def _kill_connections(shop: Shop) -> int:
    """How many there were to kill."""
    killed = 0
    for (number,) in shop.rows(
        f"SELECT id FROM information_schema.processlist WHERE user = '{shop.server.user}'"
    ):
        try:
            shop.sql(f"KILL {number}")
            killed += 1
        except RuntimeError:
            pass  # it has ended by itself
    return killed


def test_staging_survives_each_lost_connection(keyed: Shop) -> None:
    writer = keyed.writer(batchSize="5000")
    plan = writer.prepare(keyed.context(commit="job"), ROWS.schema)
    task = writer.open(plan, 0, 0)
    for start in range(0, 20_000, 4000):
        for batch in ROWS.slice(start, 4000).to_batches():
            task.write(batch)
        _kill_connections(keyed)
    receipt = task.close()
    _kill_connections(keyed)
    writer.commit(plan, [receipt])
    assert counted(keyed) == ("20001", "20001", "-1", "19999")
    assert keyed.staged() == []


@pytest.mark.parametrize("sent", [False, True], ids=["never sent", "sent, not answered"])
@pytest.mark.parametrize("commit", ["job", "task"])
def test_a_commit_without_an_answer(
    keyed: Shop, monkeypatch: pytest.MonkeyPatch, commit: str, sent: bool
) -> None:
    """Each COMMIT but the settled one loses its connection once, before or after the server has done it."""
    writer = keyed.writer()
    plan = writer.prepare(keyed.context(commit=commit), ROWS.schema)  # type: ignore[arg-type] # one of the two texts
    real, lost = MysqlSession.rows, [0]

    def rows(self: MysqlSession, sql: str, parameters: object = ()) -> object:
        if sql == "COMMIT" and lost[0] < 2:
            lost[0] += 1
            if sent:
                real(self, sql)
            self.abandon()
            raise LostConnectionError("the wire was cut")
        return real(self, sql, parameters)  # type: ignore[arg-type] # as it was called

    monkeypatch.setattr(MysqlSession, "rows", rows)
    receipt = None
    for attempt in range(4):  # as Spark tries a task four times
        try:
            receipt = run_task(writer, plan, 0, ROWS, attempt=attempt)
            break
        except TargetError:
            continue
    assert receipt is not None
    writer.commit(plan, [receipt])
    assert lost[0] == 2
    assert counted(keyed) == ("20001", "20001", "-1", "19999")
    assert keyed.staged() == []


@pytest.fixture
def own_server(server_class: type[MariadbServer]) -> Iterator[MariadbServer]:
    # What is committed survives a kill.
    server = server_class.create(innodb_flush_log_at_trx_commit="2")
    yield server
    server.close()


def test_a_server_restarted_in_mid_job(own_server: MariadbServer) -> None:
    """Staged chunks go on; a task whose rows were lost with its connection fails, and is tried again."""
    shop = Shop(own_server, "shop")
    for commit in ("job", "task"):
        shop.sql("CREATE OR REPLACE TABLE t (id BIGINT PRIMARY KEY, name VARCHAR(50))")
        writer = shop.writer(batchSize="5000")
        plan = writer.prepare(shop.context(commit=commit), ROWS.schema)
        done = run_task(writer, plan, 0, ROWS.slice(0, 5000))
        task = writer.open(plan, 1, 1)
        task.write(ROWS.slice(5000, 5000).to_batches()[0])
        own_server.stop(crash=True)
        restart = threading.Timer(1.0, own_server.start)
        restart.start()
        rest = ROWS.slice(10_000).to_batches()[0]
        if commit == "job":
            task.write(rest)
        else:
            with pytest.raises(TargetError, match="rows were lost with the connection"):
                task.write(rest)
            task.rollback()
            task = writer.open(plan, 1, 2)  # which waits for the server
            task.write(ROWS.slice(5000).to_batches()[0])
        receipts = [done, task.close()]
        restart.join()
        own_server.stop()
        restart = threading.Timer(1.0, own_server.start)
        restart.start()
        writer.commit(plan, receipts)
        restart.join()
        assert counted(shop) == ("20000", "20000", "0", "19999")
        assert shop.staged() == []


@pytest.mark.parametrize("commit", ["job", "task"])
def test_every_connection_is_lost_once_in_a_job(
    keyed: Shop, monkeypatch: pytest.MonkeyPatch, commit: CommitMode
) -> None:
    """Statements of a whole job in turn lose their connection; tasks are tried again as Spark does, and the job is run
    again with its pair, as a user does: with `commit=task` as the job that it was, as a transfer does.
    """
    real, rows, lost = MysqlSession.rows, ROWS.slice(0, 200), 0
    for at in range(2 if commit == "job" else 4, 62, 6):
        count = 0

        def run(self: MysqlSession, sql: str, parameters: object = (), at: int = at) -> object:
            nonlocal count, lost
            count += 1
            if count == at:
                lost += _kill_connections(keyed)
            return real(self, sql, parameters)  # type: ignore[arg-type] # as it was called

        with monkeypatch.context() as patch:
            patch.setattr(MysqlSession, "rows", run)
            _run_as_spark_does(keyed, at, commit, rows)
        assert counted(keyed) == ("201", "201", "-1", "199"), at
        assert keyed.staged() == []
        keyed.sql("DELETE FROM t WHERE id >= 0")
    assert lost >= 5


def _run_as_spark_does(shop: Shop, at: int, commit: CommitMode, rows: pa.Table) -> None:
    for _ in range(3):
        writer = shop.writer(batchSize="50")
        plan = None
        try:
            job = f"job-at-{at}" if commit == "task" else None
            plan = writer.prepare(
                shop.context(job=job, commit=commit, txn=("app", at)), rows.schema
            )
            if plan.published_at is not None:
                return
            parts = [rows.slice(0, 100), rows.slice(100)]
            writer.commit(plan, [_attempts(writer, plan, n, part) for n, part in enumerate(parts)])
            return
        except ChannelError:
            if plan is not None:
                writer.abort(plan, None)
    raise AssertionError(f"three runs failed at {at}")


def _attempts(writer: SqlWriter[Any], plan: WritePlan, task: int, rows: pa.Table) -> Receipt:
    for attempt in range(3):
        try:
            return run_task(writer, plan, task, rows, attempt=task * 10 + attempt)
        except ChannelError:
            continue
    return run_task(writer, plan, task, rows, attempt=task * 10 + 9)


def test_a_read_that_loses_its_connection_says_so(keyed: Shop) -> None:
    keyed.sql("INSERT INTO t SELECT seq, REPEAT('x', 50) FROM seq_1_to_200000")
    reader = keyed.reader(fetchsize="1000")
    reader.schema()
    (split,) = reader.split(1)
    batches = reader.read(split)
    next(batches)
    _kill_connections(keyed)
    with pytest.raises(SourceError, match=r"127\.0\.0\.1"):
        list(batches)
    assert keyed.server.connections() == 0


def test_a_server_that_is_not_there_when_a_job_begins_is_an_error_at_once() -> None:
    """As behind a mistyped port; `retryTimeout` is for a job that runs."""
    options = {
        "url": f"mysql://127.0.0.1:{free_port()}/shop",
        "dbtable": "t",
        "user": "tester",
        "retryTimeout": "3600",
    }
    reader, _ = load_reader(options)
    with pytest.raises(SourceError, match=r"127\.0\.0\.1"):
        reader.schema()
    writer, _ = load_writer(options)
    with pytest.raises(TargetError, match=r"127\.0\.0\.1"):
        writer.prepare(WriteContext("j"), ROWS.schema)
