"""`commit=task` under a limit: no transaction lasts as long as its task, and the task is all or nothing as ever."""

import itertools
import logging
import time
from typing import Any

import pyarrow as pa
import pytest

from spark_channel.connectors import TaskWriter, WritePlan
from spark_channel.connectors.postgresql.copy.paced import PacedCopy
from spark_channel.connectors.postgresql.session import PgWriteSession
from spark_channel.connectors.postgresql.write.loader import PostgresHeldLoader
from spark_channel.connectors.postgresql.write.staged_rows import bring_staged
from spark_channel.connectors.sql import SqlWriter
from spark_channel.connectors.sql.write.attempt import TaskAttempt
from spark_channel.errors import SupersededError, TargetError
from spark_channel.testing import VirtualClock
from spark_channel.transfers.limits import JobLimits
from spark_channel.transfers.plan import finer_splits
from tests.connectors.postgresql.pg import Pg

OPEN = """SELECT count(*) FROM pg_stat_activity
WHERE application_name LIKE 'spark-channel write%' AND xact_start IS NOT NULL"""
CLOCK = "spark_channel.connectors.postgresql.write.loader.SYSTEM_CLOCK"
_attempts = itertools.count(1)


def _rows(begin: int, end: int, text: str = "new") -> pa.RecordBatch:
    return pa.record_batch(
        {"id": pa.array(range(begin, end), pa.int64()), "v": [text] * (end - begin)}
    )


def _begun(pg: Pg, **options: Any) -> tuple[SqlWriter[Any], WritePlan]:
    pg.psql("CREATE TABLE t (id bigint PRIMARY KEY, v text CHECK (v <> 'bad'))")
    more = {"capacityBytes": "1", "retryTimeout": "5", **options}  # nothing is held in memory
    writer = pg.writer("t", rowsPerSecond="1M", **more)
    return writer, writer.prepare(pg.context(commit="task"), _rows(0, 1).schema)


def _staged(writer: SqlWriter[Any], plan: WritePlan, *batches: pa.RecordBatch) -> TaskWriter:
    """An attempt of task 0 that has staged these."""
    task = writer.open(plan, 0, next(_attempts))
    for batch in batches:
        task.write(batch)
        task.flush()
    return task


def test_rows_come_at_the_end_and_no_transaction_is_open_before(pg: Pg) -> None:
    writer, plan = _begun(pg)
    task = _staged(writer, plan, _rows(0, 10), _rows(10, 20))
    assert pg.psql(OPEN) == "0"
    assert pg.psql("SELECT count(*) FROM t") == "0"
    assert len(pg.staged()) == 1
    writer.commit(plan, [task.close()])
    assert pg.psql("SELECT count(*), sum(id) FROM t") == "20|190"
    assert pg.staged() == []


@pytest.mark.parametrize("mode", ["insert", "upsert"])
def test_the_rows_of_a_small_task_wait_in_memory(pg: Pg, mode: str) -> None:
    writer, plan = _begun(pg, capacityBytes="1MiB", writeMode=mode)
    task = _staged(writer, plan, _rows(0, 4_000), _rows(4_000, 5_000))
    assert pg.staged() == []
    assert pg.psql(OPEN) == "0"
    pg.kill_sessions("spark-channel write%")
    writer.commit(plan, [task.close()])
    assert pg.psql("SELECT count(*), count(DISTINCT id) FROM t") == "5000|5000"
    assert pg.staged() == []


def test_the_rows_of_a_task_that_grows_are_staged_with_those_in_memory(pg: Pg) -> None:
    writer, plan = _begun(pg, capacityBytes="1KiB")
    task = _staged(writer, plan, *(_rows(20 * number, 20 * number + 20) for number in range(10)))
    assert len(pg.staged()) == 1
    writer.commit(plan, [task.close()])
    assert pg.psql("SELECT count(*), sum(id) FROM t") == "200|19900"


def test_lost_connections_lose_and_double_nothing(pg: Pg) -> None:
    writer, plan = _begun(pg)
    task = _staged(writer, plan)
    pg.kill_sessions("spark-channel write%")
    for number in range(5):
        task.write(_rows(10 * number, 10 * number + 10))
        task.flush()
        pg.kill_sessions("spark-channel write%")
    writer.commit(plan, [task.close()])
    assert pg.psql("SELECT count(*), sum(id) FROM t") == "50|1225"
    assert pg.staged() == []


def test_a_connection_lost_while_rows_are_added_is_made_again(
    pg: Pg, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, plan = _begun(pg)
    bring, brought = bring_staged, list[int]()

    def lost_once(*given: Any, **named: Any) -> None:
        bring(*given, **named)
        if not brought:
            pg.kill_sessions("spark-channel write%")
        brought.append(1)

    monkeypatch.setattr("spark_channel.connectors.postgresql.write.loader.bring_staged", lost_once)
    task = _staged(writer, plan, _rows(0, 10))
    writer.commit(plan, [task.close()])
    assert len(brought) == 2
    assert pg.psql("SELECT count(*) FROM t") == "10"


def test_one_of_two_attempts_is_added(pg: Pg) -> None:
    writer, plan = _begun(pg)
    first, second = (_staged(writer, plan, _rows(0, 10)) for _ in range(2))
    receipts = [second.close(), first.close()]
    assert receipts[0].attempt == receipts[1].attempt
    assert pg.psql("SELECT count(*) FROM t") == "10"
    assert pg.staged() == []
    third = _staged(writer, plan, _rows(0, 10))
    assert pg.staged() == []  # its rows are dropped at once
    assert third.close().attempt == receipts[0].attempt


@pytest.mark.parametrize("mode", ["insert", "upsert"])
def test_a_refused_row_leaves_nothing(pg: Pg, mode: str) -> None:
    writer, plan = _begun(pg, writeMode=mode)
    task = _staged(writer, plan, _rows(0, 10), _rows(10, 20, "bad"))
    with pytest.raises(TargetError, match="a row is refused"):
        task.close()
    task.rollback()
    assert pg.psql("SELECT count(*) FROM t") == "0"
    assert pg.staged() == []


def test_an_upsert_sees_all_rows_of_its_task(pg: Pg) -> None:
    writer, plan = _begun(pg, writeMode="upsert")
    pg.psql("INSERT INTO t VALUES (1, 'old'), (99, 'old')")
    task = _staged(writer, plan, _rows(0, 2), _rows(2, 4))
    task.close()
    assert pg.psql("SELECT * FROM t ORDER BY id") == "0|new\n1|new\n2|new\n3|new\n99|old"
    other = writer.open(plan, 1, 1)
    for _ in range(2):
        other.write(_rows(5, 6))
        other.flush()
    with pytest.raises(TargetError, match="2 rows have the key"):
        other.close()
    other.rollback()


def test_a_run_that_was_overtaken_adds_nothing(pg: Pg) -> None:
    writer, _ = _begun(pg)
    txn = ("nightly", 1)
    plan = writer.prepare(pg.context(job="first", commit="task", txn=txn), _rows(0, 1).schema)
    task = _staged(writer, plan, _rows(0, 10))
    writer.prepare(pg.context(job="second", commit="task", txn=txn), _rows(0, 1).schema)
    with pytest.raises(SupersededError):
        task.close()
    task.rollback()
    assert pg.psql("SELECT count(*) FROM t") == "0"
    assert pg.staged() == []


def test_a_role_that_may_not_create_tables_keeps_one_transaction(
    pg: Pg, caplog: pytest.LogCaptureFixture
) -> None:
    role = f"r_{pg.schema}"
    pg.psql(
        f"CREATE TABLE t (id bigint, v text); "
        f"CREATE ROLE {role} LOGIN PASSWORD 'x'; GRANT USAGE, CREATE ON SCHEMA {pg.schema} TO {role}; "
        f"GRANT SELECT, INSERT ON t TO {role}"
    )
    try:
        writer = pg.writer("t", rowsPerSecond="1M", user=role, password="x")
        plan = writer.prepare(pg.context(commit="task"), _rows(0, 1).schema)
        pg.psql(f"REVOKE CREATE ON SCHEMA {pg.schema} FROM {role}")
        with caplog.at_level(logging.WARNING):
            task = _staged(writer, plan, _rows(0, 10))
        assert "GRANT CREATE" in caplog.text
        writer.commit(plan, [task.close()])
        assert pg.psql("SELECT count(*) FROM t") == "10"
    finally:
        pg.psql(f"DROP OWNED BY {role}; DROP ROLE {role}")


class _Naps(VirtualClock):
    def __init__(self) -> None:
        super().__init__()
        self.naps: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.naps.append(seconds)
        super().sleep(seconds)


@pytest.mark.parametrize(("spread", "naps"), [(0.5, 25), (0.0, 0)])
def test_slow_rows_are_sent_in_small_bits_over_the_time_they_have(
    pg: Pg, monkeypatch: pytest.MonkeyPatch, spread: float, naps: int
) -> None:
    """Some rows and a rest, so that the server's core rests: 250 at first, whose cost is not known, then 8 KiB."""
    pg.psql("CREATE TABLE t (id bigint, v text)")
    writer = pg.writer("t", rowsPerSecond="1M")
    plan = writer.prepare(pg.context(commit="job"), _rows(0, 1).schema)
    clock = _Naps()
    monkeypatch.setattr(CLOCK, clock)
    task = writer.open(plan, 0, 0)
    assert isinstance(task, TaskAttempt)
    task.spread = spread
    task.store(pa.Table.from_batches([_rows(0, 10_000)]), 0)
    assert len(clock.naps) == naps
    assert sum(clock.naps) <= spread
    task._tally.add(_rows(0, 10_000))
    writer.commit(plan, [task.close()])
    assert pg.psql("SELECT count(*), count(DISTINCT id) FROM t") == "10000|10000"


@pytest.mark.parametrize("overlapped", [True, False])
def test_the_last_rows_of_a_task_are_spread_only_where_the_next_task_is_read_meanwhile(
    pg: Pg, monkeypatch: pytest.MonkeyPatch, overlapped: bool
) -> None:
    pg.psql("CREATE TABLE t (id bigint, v text)")
    writer = pg.writer("t", rowsPerSecond="1M")
    plan = writer.prepare(pg.context(commit="job"), _rows(0, 1).schema)
    clock = _Naps()
    monkeypatch.setattr(CLOCK, clock)
    task = writer.open(plan, 0, 0)
    assert isinstance(task, TaskAttempt)
    task._clock = task._gathered._clock = clock
    task._sent_at = clock.now()
    task.write(_rows(0, 10))
    clock.sleep(1.0)
    task.overlapped = overlapped
    writer.commit(plan, [task.close()])
    assert (task.spread > 0) == overlapped
    assert pg.psql("SELECT count(*) FROM t") == "10"


@pytest.mark.parametrize("overlapped", [True, False])
def test_held_rows_are_added_at_the_speeds_at_which_they_came_where_that_takes_as_long(
    pg: Pg, monkeypatch: pytest.MonkeyPatch, overlapped: bool
) -> None:
    begin, seen = PacedCopy.begin, list[tuple[Any, ...]]()

    def look(paced: PacedCopy, rows: int, spread: float, *parts: Any, **more: Any) -> None:
        seen.append(parts)
        begin(paced, rows, spread, *parts, **more)

    monkeypatch.setattr(PacedCopy, "begin", look)
    writer, plan = _begun(pg, capacityBytes="1MiB")
    clock = _Naps()
    monkeypatch.setattr(CLOCK, clock)
    task = writer.open(plan, 0, 0)
    assert isinstance(task, TaskAttempt)
    task._clock, task.overlapped, task.arrived_parts = clock, overlapped, [(0.5, 0.9)]
    task.write(_rows(0, 100))
    clock.advance(2.0)
    task.close()
    assert seen == [([(0.5, 0.9)] if overlapped else (),)]


@pytest.mark.parametrize(
    ("overlapped", "capacity", "most"),
    [(False, "1M", 2.0), (True, "1M", 4.0), (True, "300", 3.0), (True, "9", 2.0)],
)
def test_held_rows_are_added_slowly_most_of_all_where_nobody_waits(
    pg: Pg, monkeypatch: pytest.MonkeyPatch, overlapped: bool, capacity: str, most: float
) -> None:
    """A channel that is full of the next task's rows has its reader wait, too."""
    writer, plan = _begun(pg, capacityBytes="1MiB", capacityRows=capacity)
    clock = _Naps()
    monkeypatch.setattr(CLOCK, clock)
    task = writer.open(plan, 0, 0)
    assert isinstance(task, TaskAttempt)
    task._clock, task.overlapped = clock, overlapped
    task.write(_rows(0, 10_000))
    clock.advance(100.0)
    task.close()
    assert most * 0.7 <= sum(clock.naps) <= most  # the rest is the last piece
    assert max(clock.naps) < 0.5  # idle_in_transaction_session_timeout may be short
    assert pg.psql("SELECT count(*) FROM t") == "10000"


def _held(pg: Pg, **options: Any) -> tuple[SqlWriter[Any], WritePlan, TaskWriter]:
    """An attempt whose rows wait in memory."""
    writer, plan = _begun(pg, capacityBytes="1MiB", **options)
    return writer, plan, writer.open(plan, 0, next(_attempts))


def _send(task: TaskWriter, *batches: pa.RecordBatch) -> None:
    for batch in batches:
        task.write(batch)
        task.flush()


@pytest.mark.parametrize("retry", ["5", "0"])
@pytest.mark.parametrize("when", ["between", "before the end"])
def test_a_connection_that_is_lost_beside_held_rows(pg: Pg, when: str, retry: str) -> None:
    """A limit's pause ends it, too: `retryTimeout` is about failures alone."""
    writer, plan, task = _held(pg, retryTimeout=retry)
    _send(task, _rows(0, 10))
    pg.kill_sessions("spark-channel write%")
    if when == "between":
        _send(task, _rows(10, 20))
    writer.commit(plan, [task.close()])
    assert pg.psql("SELECT count(*) FROM t") == ("20" if when == "between" else "10")


def test_rows_are_added_as_other_transactions_left_them_whatever_the_default_is(
    pg: Pg, monkeypatch: pytest.MonkeyPatch
) -> None:
    bring, seen = PostgresHeldLoader.bring, list[str]()

    def look(loader: PostgresHeldLoader, session: PgWriteSession, *given: Any) -> None:
        bring(loader, session, *given)
        seen.append(session.value("SHOW transaction_isolation"))

    monkeypatch.setattr(PostgresHeldLoader, "bring", look)
    set_own = "SET default_transaction_isolation = 'serializable'"
    _, _, task = _held(pg, sessionInitStatement=set_own)
    _send(task, _rows(0, 10))
    task.close()
    assert seen == ["read committed"]


@pytest.mark.parametrize("mode", ["insert", "upsert"])
def test_the_server_ends_a_task_that_is_silent_from_its_first_piece_on(
    pg: Pg, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """As one whose process was stopped between two pieces: until then its rows are locked."""
    bring, seen = PostgresHeldLoader.bring, list[str]()

    def look(loader: PostgresHeldLoader, session: PgWriteSession, *given: Any) -> None:
        seen.append(session.value("SHOW idle_in_transaction_session_timeout"))
        bring(loader, session, *given)

    monkeypatch.setattr(PostgresHeldLoader, "bring", look)
    _, _, task = _held(pg, writeMode=mode)
    _send(task, _rows(0, 10))
    task.close()
    assert seen == ["30s"]


def test_a_task_that_stands_still_between_two_pieces_frees_its_rows_and_adds_them_again(
    pg: Pg, monkeypatch: pytest.MonkeyPatch
) -> None:
    soon = "SET LOCAL idle_in_transaction_session_timeout = '200ms'"
    monkeypatch.setattr("spark_channel.connectors.postgresql.write.loader.END_WHEN_SILENT", soon)
    copy, held = PgWriteSession.copy, list[str]()

    def stand_still(session: PgWriteSession, *given: Any, **named: Any) -> None:
        copy(session, *given, **named)
        if not held:
            held.append(pg.psql(OPEN))
            deadline = time.monotonic() + 20
            while pg.psql(OPEN) != "0":
                assert time.monotonic() < deadline, "the transaction is open"

    monkeypatch.setattr(PgWriteSession, "copy", stand_still)
    writer, plan, task = _held(pg)
    _send(task, _rows(0, 2_000))
    writer.commit(plan, [task.close()])
    assert held == ["1"]
    assert pg.psql("SELECT count(*) FROM t") == "2000"


def test_another_attempt_that_has_added_the_same_rows(pg: Pg) -> None:
    writer, plan, first = _held(pg)
    second = writer.open(plan, 0, next(_attempts))
    _send(first, _rows(0, 10))
    receipt = first.close()
    _send(second, _rows(0, 10))  # its keys are there
    assert second.close().attempt == receipt.attempt
    writer.commit(plan, [receipt])
    assert pg.psql("SELECT count(*) FROM t") == "10"


def test_a_row_that_the_table_refuses_is_told(pg: Pg) -> None:
    _, _, task = _held(pg)
    _send(task, _rows(0, 10, "bad"), _rows(10, 20))
    with pytest.raises(TargetError, match="a row is refused"):
        task.close()
    task.rollback()
    assert pg.psql("SELECT count(*) FROM t") == "0"


PIDS = "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'spark-channel write%'"


def test_the_tasks_of_one_thread_share_a_connection(pg: Pg) -> None:
    writer, plan = _begun(pg, capacityBytes="1MiB")
    pids, receipts = [], []
    with writer.writing():
        for number in range(3):
            if number == 2:
                # Between two tasks: the next one connects again.
                pg.kill_sessions("spark-channel write%")
            task = writer.open(plan, number, next(_attempts))
            _send(task, _rows(10 * number, 10 * number + 10))
            pids.append(pg.psql(PIDS))
            receipts.append(task.close())
    assert pids[0] == pids[1] != pids[2]
    deadline = time.monotonic() + 20  # a server's process outlives its connection by a moment
    while pg.psql(PIDS):
        assert time.monotonic() < deadline, "the connection was kept"
    writer.commit(plan, receipts)
    assert pg.psql("SELECT count(*) FROM t") == "30"


def test_a_connection_with_an_open_transaction_is_not_kept(pg: Pg) -> None:
    writer, _, task = _held(pg)
    assert isinstance(task, TaskAttempt)
    with writer.writing():
        task._connection.open.execute("BEGIN")
        assert pg.psql(OPEN) == "1"
        task.rollback()
        assert pg.psql(PIDS) == ""


@pytest.mark.parametrize(
    ("options", "more", "splits"),
    [
        (
            {"rowsPerSecond": "1000"},
            {"commit": "task"},
            (8, 12),
        ),  # 10 000 rows at 500 rows/s for each of two channels, 2.5 s each
        ({"rowsPerSecond": "1000"}, {}, (10, 10)),
        ({"rowsPerSecond": "200"}, {"writeMode": "upsert", "keyColumns": "id"}, (10, 10)),
        (
            {"rowsPerSecond": "200"},
            {"writeMode": "upsert", "keyColumns": "id", "commit": "task"},
            (35, 45),
        ),
        ({"rowsPerSecond": "200"}, {"commit": "task"}, (35, 45)),
        ({}, {}, (10, 10)),
    ],
)
def test_a_limited_transfer_has_tasks_that_fit_a_transaction(
    pg: Pg, options: dict[str, str], more: dict[str, str], splits: tuple[int, int]
) -> None:
    pg.psql("CREATE TABLE s (id bigint PRIMARY KEY, v text); CREATE TABLE t (LIKE s)")
    pg.psql("INSERT INTO s SELECT i, 'x' FROM generate_series(1, 10000) i; ANALYZE s")
    reader = pg.reader("s")
    reader.fetch_size = JobLimits.from_options(pg.writer("t", **options).options).fetch_size(2)
    reader.schema()
    own = reader.split(10)
    finer = finer_splits(reader, pg.writer("t", **options, **more), own)
    found = len(own if finer is None else reader.split(finer))
    assert splits[0] <= found <= splits[1]
