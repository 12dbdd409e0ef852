"""Rows counted by key after each fault: none lost, none doubled, no staging left."""

import multiprocessing
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_channel.connectors import Receipt, WritePlan
from spark_channel.connectors.postgresql.session import PgSession, PgWriteSession
from spark_channel.connectors.postgresql.write import committed_chunk
from spark_channel.connectors.sql import SqlWriter
from spark_channel.errors import ChannelError, CommitError, SourceError, TargetError
from spark_channel.options import CommitMode
from tests.connectors.postgresql.pg import Pg, own_schema
from tests.connectors.sql.one_database import run_task
from tests.servers.postgres import PostgresServer
from tests.small_disk import small_disk

pytestmark = pytest.mark.real_server("PostgreSQL", "postgresql")

BOTH = pytest.mark.parametrize("commit", ["job", "task"])
SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])


def _batch(start: int, count: int) -> pa.RecordBatch:
    ids = range(start, start + count)
    return pa.record_batch(
        [pa.array(ids, pa.int64()), pa.array([f"row {n}" for n in ids])], schema=SCHEMA
    )


def _table(pg: Pg) -> None:
    pg.psql("CREATE TABLE t (id bigint, v text)")


def _expect(pg: Pg, *keys: range) -> None:
    """The table holds each key once, and nothing is left behind."""
    wanted = sum(len(each) for each in keys)
    found = pg.psql("SELECT count(*), count(DISTINCT id) FROM t")
    assert found == f"{wanted}|{wanted}"
    for each in keys:
        inside = pg.psql(f"SELECT count(*) FROM t WHERE id >= {each.start} AND id < {each.stop}")
        assert inside == str(len(each))
    assert pg.staged() == []
    assert pg.server.connections() == 0


def _ended(target: Callable[..., None], *arguments: Any) -> int:
    process = multiprocessing.get_context("forkserver").Process(target=target, args=arguments)
    process.start()
    process.join(60)
    assert process.exitcode is not None
    return process.exitcode


def _write_and_die(writer: SqlWriter[Any], plan: WritePlan, attempt: int, *, closed: bool) -> None:
    writing = writer.open(plan, 0, attempt)
    writing.write(_batch(0, 100))
    writing.flush()
    writing.write(_batch(100, 100))
    if closed:
        writing.close()
    os._exit(9)


def _die_mid_write(writer: SqlWriter[Any], plan: WritePlan) -> None:
    _write_and_die(writer, plan, 50, closed=False)


def _die_after_close(writer: SqlWriter[Any], plan: WritePlan) -> None:
    _write_and_die(writer, plan, 51, closed=True)


@BOTH
@pytest.mark.parametrize("die", [_die_mid_write, _die_after_close])
def test_a_killed_worker_is_replaced(pg: Pg, commit: CommitMode, die: Callable[..., None]) -> None:
    _table(pg)
    writer = pg.writer("t")
    plan = writer.prepare(pg.context(commit=commit), SCHEMA)
    assert _ended(die, writer, plan) == 9
    receipt = run_task(
        writer, plan, 0, pa.Table.from_batches([_batch(0, 100), _batch(100, 100)]), attempt=2
    )
    assert receipt.rows == 200
    writer.commit(plan, [receipt])
    _expect(pg, range(200))


@BOTH
def test_a_task_that_fails_twice(pg: Pg, commit: CommitMode) -> None:
    _table(pg)
    writer = pg.writer("t")
    plan = writer.prepare(pg.context(commit=commit), SCHEMA)
    for attempt in range(2):
        failing = writer.open(plan, 0, attempt)
        failing.write(_batch(0, 50))
        failing.flush()
        failing.rollback()
    writer.commit(plan, [run_task(writer, plan, 0, _batch(0, 100), attempt=3)])
    _expect(pg, range(100))


@BOTH
@pytest.mark.parametrize("keyed", [True, False])
def test_two_attempts_of_one_partition_at_once(pg: Pg, commit: CommitMode, keyed: bool) -> None:
    pg.psql(f"CREATE TABLE t (id bigint {'PRIMARY KEY' if keyed else ''}, v text)")
    writer = pg.writer("t", batchSize=10)
    plan = writer.prepare(pg.context(commit=commit), SCHEMA)
    receipts: dict[int, Receipt] = {}
    start = threading.Barrier(2)

    def attempt(number: int) -> None:
        writing = writer.open(plan, 0, number)
        start.wait(30)
        for part in range(10):
            writing.write(_batch(part * 10, 10))
        receipts[number] = writing.close()

    threads = [threading.Thread(target=attempt, args=(number,)) for number in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert {receipt.rows for receipt in receipts.values()} == {100}
    writer.commit(plan, [receipts[2]])
    _expect(pg, range(100))


def test_staging_survives_the_loss_of_every_connection(
    pg: Pg, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An administrator ends all sessions between each two chunks."""
    _table(pg)
    writer = pg.writer("t", batchSize=100)
    plan = writer.prepare(pg.context(commit="job"), SCHEMA)
    writing = writer.open(plan, 0, 1)
    for part in range(6):
        assert pg.kill_sessions() == 1
        writing.write(_batch(part * 100, 100))
    with monkeypatch.context() as patch:
        cut = _Cut(pg, patch, after=True)
        writing.write(_batch(600, 100))
        writing.write(_batch(700, 100))
    assert cut.cuts == 1
    receipt = writing.close()
    writer.commit(plan, [receipt])
    _expect(pg, range(800))


def test_a_direct_write_that_loses_its_connection_is_told_and_written_again(pg: Pg) -> None:
    _table(pg)
    writer = pg.writer("t", batchSize=100)
    plan = writer.prepare(pg.context(commit="task"), SCHEMA)
    writing = writer.open(plan, 0, 1)
    writing.write(_batch(0, 100))
    pg.kill_sessions()
    with pytest.raises(TargetError, match="connection was lost"):
        writing.write(_batch(100, 100))
    writing.rollback()
    writer.commit(plan, [run_task(writer, plan, 0, _batch(0, 200), attempt=2)])
    _expect(pg, range(200))


def test_a_read_that_loses_its_connection_is_told_and_read_again(pg: Pg) -> None:
    pg.psql(
        "CREATE TABLE big AS SELECT g AS id, repeat('x', 1000) AS v FROM generate_series(1, 60000) g"
    )
    reader = pg.reader("big")
    reader.schema()
    (split,) = reader.split(1)
    batches = reader.read(split)
    first = next(batches).num_rows
    pg.kill_sessions()
    with pytest.raises(SourceError, match=r"terminating connection|closed the connection"):
        for _ in batches:
            pass
    assert first < sum(batch.num_rows for batch in reader.read(split)) == 60_000
    assert pg.server.connections() == 0


class _Cut:
    """Ends all sessions just before, or just after, the n-th COMMIT reaches the server."""

    def __init__(
        self, pg: Pg, monkeypatch: pytest.MonkeyPatch, *, after: bool, only: int = 0
    ) -> None:
        self.cuts = 0
        self._seen = 0
        real = PgSession.rows

        def rows(session: PgSession, sql: str) -> list[tuple[Any, ...]]:
            if sql != "COMMIT" or self._seen != only:
                self._seen += sql == "COMMIT"
                return real(session, sql)
            self._seen += 1
            self.cuts += 1
            if after:
                real(session, sql)
            pg.kill_sessions()
            return real(session, "SELECT 'the answer to COMMIT'")

        monkeypatch.setattr(PgSession, "rows", rows)


@pytest.mark.parametrize("after", [True, False])
@BOTH
def test_a_commit_of_rows_without_an_answer_is_settled(
    pg: Pg, monkeypatch: pytest.MonkeyPatch, commit: CommitMode, after: bool
) -> None:
    _table(pg)
    writer = pg.writer("t")
    plan = writer.prepare(pg.context(commit=commit), SCHEMA)
    with monkeypatch.context() as patch:
        cut = _Cut(pg, patch, after=after)
        if commit == "task" and not after:
            with pytest.raises(TargetError, match="nothing of this attempt was stored"):
                run_task(writer, plan, 0, _batch(0, 100), attempt=1)
            receipt = run_task(writer, plan, 0, _batch(0, 100), attempt=2)
        else:
            receipt = run_task(writer, plan, 0, _batch(0, 100), attempt=1)
    assert cut.cuts == 1
    writer.commit(plan, [receipt])
    _expect(pg, range(100))


@pytest.mark.parametrize("after", [True, False])
@pytest.mark.parametrize("there", [True, False])
@BOTH
def test_a_publish_without_an_answer_is_settled(
    pg: Pg, monkeypatch: pytest.MonkeyPatch, commit: CommitMode, there: bool, after: bool
) -> None:
    if there:
        _table(pg)
    writer = pg.writer("t")
    plan = writer.prepare(pg.context(commit=commit), SCHEMA)
    receipts = [run_task(writer, plan, number, _batch(number * 100, 100)) for number in range(3)]
    with monkeypatch.context() as patch:
        cut = _Cut(pg, patch, after=after)
        writer.commit(plan, receipts)
    assert cut.cuts == 1
    _expect(pg, range(300))


def test_a_transaction_that_still_runs_is_waited_for(
    pg: Pg, monkeypatch: pytest.MonkeyPatch
) -> None:
    _table(pg)
    options = pg.writer("t").options
    running = PgWriteSession(options, failure=TargetError, purpose="test")
    running.execute("BEGIN")
    running.execute("INSERT INTO t VALUES (1, 'late')")
    number = committed_chunk.transaction_number(running)
    timer = threading.Timer(0.5, lambda: running.rows("COMMIT"))
    lost = PgWriteSession(options, failure=TargetError, purpose="lost")
    pg.kill_sessions("spark-channel lost")
    timer.start()
    committed_chunk.commit(lost, options, number, TargetError)
    timer.join()
    running.close()
    _expect(pg, range(1, 2))


@BOTH
def test_every_connection_is_lost_once_in_a_job(
    pg: Pg, monkeypatch: pytest.MonkeyPatch, commit: CommitMode
) -> None:
    """Each statement of a whole job in turn loses its connection; the driver and the tasks try again as Spark does."""
    _table(pg)
    real = PgSession.rows
    lost = 0
    for at in range(2 if commit == "job" else 4, 62, 6):
        count = 0

        def rows(session: PgSession, sql: str, at: int = at) -> list[tuple[Any, ...]]:
            nonlocal count, lost
            count += 1
            if count == at:
                lost += pg.kill_sessions()
            return real(session, sql)

        with monkeypatch.context() as patch:
            patch.setattr(PgSession, "rows", rows)
            _run_as_spark_does(pg, at, commit)
    assert lost >= 5
    _expect(pg, range(10 * 200))


def _run_as_spark_does(pg: Pg, at: int, commit: CommitMode) -> None:
    """Up to 4 attempts a task; a failed job is run again with its pair, as a user does.

    With `commit=task` it continues as the job that it was, as a transfer does.
    """
    start, context_number = (at // 6) * 200, at
    job = f"{pg.schema}-{at}" if commit == "task" else None
    for _ in range(3):
        try:
            writer = pg.writer("t", batchSize=50)
            pair = (f"app-{pg.schema}", context_number)
            plan = writer.prepare(pg.context(job=job, commit=commit, txn=pair), SCHEMA)
            if plan.published_at is not None:
                return
            receipts = [_attempts(writer, plan, n, _batch(start + n * 100, 100)) for n in range(2)]
            writer.commit(plan, receipts)
            return
        except ChannelError:
            try:
                writer.abort(plan, None)
            except (ChannelError, UnboundLocalError):
                pass
    raise AssertionError(f"three runs failed at {at}")


def _attempts(
    writer: SqlWriter[Any], plan: WritePlan, number: int, batch: pa.RecordBatch
) -> Receipt:
    for attempt in range(3):
        try:
            return run_task(writer, plan, number, batch, attempt=number * 10 + attempt)
        except ChannelError:
            continue
    return run_task(writer, plan, number, batch, attempt=number * 10 + 9)


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    server = PostgresServer.create()
    yield server
    server.close()


def test_a_server_that_restarts_mid_job_is_waited_for(own_server: PostgresServer) -> None:
    """Staged chunks go on; a task that writes straight into the table fails, and is tried again."""
    for commit in ("job", "task"):
        with own_schema(own_server) as pg:
            _table(pg)
            writer = pg.writer("t", batchSize=100)
            plan = writer.prepare(pg.context(commit=commit), SCHEMA)
            done = run_task(writer, plan, 0, _batch(0, 100))
            writing = writer.open(plan, 1, 1)
            writing.write(_batch(100, 100))
            own_server.stop()
            restart = threading.Timer(1.0, own_server.start)
            restart.start()
            if commit == "job":
                writing.write(_batch(200, 100))
            else:
                with pytest.raises(TargetError, match="connection was lost"):
                    writing.write(_batch(200, 100))  # as many as batchSize: they are sent
                writing.rollback()
                writing = writer.open(plan, 1, 2)  # which waits for the server
                writing.write(_batch(100, 200))
            restart.join()
            receipts = [done, writing.close()]
            own_server.restart()
            writer.commit(plan, receipts)
            _expect(pg, range(300))


def test_an_attempt_that_cannot_reach_its_staging_ends_without_another_wait(
    own_server: PostgresServer,
) -> None:
    """The end of the job removes what it staged under a limit."""
    with own_schema(own_server) as pg:
        _table(pg)
        writer = pg.writer("t", rowsPerSecond="1M", capacityBytes="1", retryTimeout="4")
        plan = writer.prepare(pg.context(commit="task"), SCHEMA)
        writing = writer.open(plan, 0, 1)
        writing.write(_batch(0, 100))
        writing.flush()
        own_server.stop()
        writing.write(_batch(100, 100))
        with pytest.raises(TargetError, match="no server answers"):
            writing.flush()
        begun = time.monotonic()
        writing.rollback()
        assert time.monotonic() - begun < 3
        own_server.start()
        assert len(pg.staged()) == 1
        writer.abort(plan, None)
        _expect(pg, range(0))


@pytest.mark.parametrize("there", [True, False])
def test_a_server_that_crashes_loses_no_row_unseen(own_server: PostgresServer, there: bool) -> None:
    """Unlogged staging is empty after a crash: the job says so, and is run again."""
    with own_schema(own_server) as pg:
        if there:
            _table(pg)
        writer = pg.writer("t")
        plan = writer.prepare(pg.context(commit="job"), SCHEMA)
        receipts = [run_task(writer, plan, 0, _batch(0, 100))]
        own_server.restart(how="immediate")
        if there:
            with pytest.raises(CommitError, match="100 rows that tasks staged are gone"):
                writer.commit(plan, receipts)
            writer.abort(plan, None)
            plan = writer.prepare(pg.context(commit="job"), SCHEMA)
            receipts = [run_task(writer, plan, 0, _batch(0, 100))]
        writer.commit(plan, receipts)
        _expect(pg, range(100))


def test_a_task_notices_that_its_staging_was_emptied_by_a_crash(own_server: PostgresServer) -> None:
    with own_schema(own_server) as pg:
        _table(pg)
        writer = pg.writer("t", batchSize=100)
        plan = writer.prepare(pg.context(commit="job"), SCHEMA)
        writing = writer.open(plan, 0, 1)
        writing.write(_batch(0, 100))
        own_server.restart(how="immediate")
        with pytest.raises(TargetError, match="server crashed"):
            writing.write(_batch(100, 100))
        writing.rollback()
        writer.commit(plan, [run_task(writer, plan, 0, _batch(0, 200), attempt=2)])
        _expect(pg, range(200))


def _commit_and_die(
    writer: SqlWriter[Any], plan: WritePlan, receipts: list[Receipt], when: str
) -> None:
    real = PgSession.rows

    def rows(session: PgSession, sql: str) -> list[tuple[Any, ...]]:
        if when == "during" and sql.startswith("UPDATE") and "spark_channel_claims" in sql:
            os._exit(9)
        found = real(session, sql)
        if when == "after" and sql == "COMMIT":
            os._exit(9)
        return found

    setattr(PgSession, "rows", rows)  # noqa: B010 - a method is replaced
    if when == "before":
        os._exit(9)
    writer.commit(plan, receipts)


@pytest.mark.parametrize("when", ["before", "during", "after"])
@BOTH
def test_a_killed_driver_is_run_again_with_its_pair(pg: Pg, commit: CommitMode, when: str) -> None:
    _table(pg)
    writer = pg.writer("t")
    context = pg.context(job="nightly", commit=commit, txn=("app", 1))
    plan = writer.prepare(context, SCHEMA)
    receipts = [run_task(writer, plan, number, _batch(number * 100, 100)) for number in range(2)]
    assert _ended(_commit_and_die, writer, plan, receipts, when) == 9
    if commit == "job":  # a new run has a new name
        context = pg.context(commit=commit, txn=("app", 1))
    again = writer.prepare(context, SCHEMA)
    assert (again.published_at is not None) == (when == "after")
    if again.published_at is None:
        receipts = [
            run_task(writer, again, number, _batch(number * 100, 100), attempt=9)
            for number in range(2)
        ]
        writer.commit(again, receipts)
    writer.abort(plan, None)  # in place of the orphan's day of waiting
    _expect(pg, range(200))


def test_a_receipt_counts_only_its_own_chunks(pg: Pg) -> None:
    """Another attempt with other rows, whose message never came, leaves none of them behind."""
    _table(pg)
    for created in (False, True):
        if created:
            pg.psql("DROP TABLE t")
        writer = pg.writer("t")
        plan = writer.prepare(pg.context(commit="job"), SCHEMA)
        run_task(writer, plan, 0, _batch(5000, 70), attempt=1)
        receipt = run_task(writer, plan, 0, _batch(0, 100), attempt=2)
        writer.commit(plan, [receipt])
        _expect(pg, range(100))


@pytest.fixture
def small() -> Iterator[Path]:
    """A file system of 8 MiB where the server's user may go: its directories are open to all."""
    folder = Path(tempfile.mkdtemp(prefix="spark-channel-disk-"))
    folder.chmod(0o755)
    try:
        with small_disk(folder / "small", 8, owner="postgres") as place:
            yield place
    finally:
        shutil.rmtree(folder)


def test_a_full_disk_is_told(pg: Pg, small: Path) -> None:
    space = f"small_{pg.schema}"
    pg.psql(f"CREATE TABLESPACE {space} LOCATION '{small}'")
    try:
        pg.psql(f"CREATE TABLE t (id bigint, v text) TABLESPACE {space}")
        big = pa.table({"id": pa.array(range(40_000), pa.int64()), "v": ["x" * 500] * 40_000})
        with pytest.raises(TargetError, match="disk of the server is full"):
            pg.write(big, commit="task")
        assert pg.psql("SELECT count(*) FROM t") == "0"
        with pytest.raises(
            CommitError, match=r"(?s)disk of the server is full.*Nothing of this job is in table"
        ):
            pg.write(big, commit="job")
        _expect(pg)
    finally:
        pg.psql("DROP TABLE IF EXISTS t")
        pg.psql(f"DROP TABLESPACE {space}")
