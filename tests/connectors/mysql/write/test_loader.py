"""Writes under a limit: pieces of a publish, and tasks whose transaction is short."""

import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pymysql
import pytest

from spark_channel.clock import SYSTEM_CLOCK
from spark_channel.connectors import WriteContext
from spark_channel.connectors.mysql.session import MysqlWriteSession
from spark_channel.connectors.mysql.write.load_data import RowSender
from spark_channel.connectors.mysql.write.table_locks import in_turn
from spark_channel.connectors.sql.pacing import WritePacer
from spark_channel.errors import BatchRefusedError, ChannelError, TargetError
from spark_channel.options import CommitMode
from tests.connectors.mysql.shop import Shop, transactions

ROWS = pa.table({"id": pa.array(range(20_000), pa.int64()), "v": ["some text"] * 20_000})


def _inserts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The statements that add staged rows."""
    seen: list[str] = []
    run = MysqlWriteSession.affected

    def counted(session: MysqlWriteSession, sql: str) -> tuple[int, int]:
        if "SELECT `id`, `v` FROM" in sql and sql.startswith("INSERT"):
            seen.append(sql)
        return run(session, sql)

    monkeypatch.setattr(MysqlWriteSession, "affected", counted)
    return seen


def _written(shop: Shop, commit: CommitMode, *, overwrite: bool = False, **options: Any) -> None:
    writer = shop.writer("t", **options)
    plan = writer.prepare(WriteContext("limited", commit=commit, overwrite=overwrite), ROWS.schema)
    try:
        receipts = []
        for number in range(2):
            task = writer.open(plan, number, number)
            try:
                for batch in ROWS.slice(10_000 * number, 10_000).to_batches():
                    task.write(batch)
                    task.flush()
                    assert transactions(shop) == []
                receipts.append(task.close())
            except BaseException:
                task.rollback()
                raise
        writer.commit(plan, receipts)
    except BaseException:
        writer.abort(plan, None)
        raise


@pytest.mark.parametrize("commit", ["job", "task"])
def test_staged_rows_are_added_once_and_in_pieces(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, commit: CommitMode
) -> None:
    """With commit=task, those of a task that is too large to be held in memory."""
    shop.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, v TEXT)")
    inserts = _inserts(monkeypatch)
    _written(shop, commit, rowsPerSecond="1M", capacityBytes="1")
    assert shop.rows("SELECT COUNT(*), SUM(id) FROM t") == [("20000", str(sum(range(20_000))))]
    assert len(inserts) >= 6


def test_the_rows_of_a_small_task_wait_in_memory_and_go_into_the_table_itself(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A temporary table would cost the server a second write of each row."""
    shop.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, v TEXT)")
    inserts, staged = _inserts(monkeypatch), list[object]()
    monkeypatch.setattr(
        "spark_channel.connectors.mysql.write.loader.create_stage",
        lambda *given, **named: staged.append(given),
    )
    _written(shop, "task", rowsPerSecond="1M")
    assert shop.rows("SELECT COUNT(*), SUM(id) FROM t") == [("20000", str(sum(range(20_000))))]
    assert not staged
    assert not inserts


def test_a_task_that_grows_stages_the_rows_that_waited_in_memory(shop: Shop) -> None:
    shop.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, v TEXT)")
    writer = shop.writer("t", rowsPerSecond="1M", capacityBytes="1KiB")
    plan = writer.prepare(WriteContext("limited", commit="task"), ROWS.schema)
    task = writer.open(plan, 0, 0)
    for begin in range(0, 200, 20):
        if begin == 20:  # rows that wait in memory need no connection
            shop.sql(f"KILL USER {shop.server.user}@'127.0.0.1'")
        task.write(ROWS.slice(begin, 20).combine_chunks().to_batches()[0])
        task.flush()
    writer.commit(plan, [task.close()])
    assert shop.rows("SELECT COUNT(*), SUM(id) FROM t") == [("200", "19900")]


def test_a_connection_that_ends_while_rows_wait_in_memory_is_made_again(shop: Shop) -> None:
    shop.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, v TEXT)")
    writer = shop.writer("t", rowsPerSecond="1M")
    plan = writer.prepare(WriteContext("limited", commit="task"), ROWS.schema)
    task = writer.open(plan, 0, 0)
    task.write(ROWS.combine_chunks().to_batches()[0])
    task.flush()
    shop.sql(f"KILL USER {shop.server.user}@'127.0.0.1'")
    writer.commit(plan, [task.close()])
    assert shop.rows("SELECT COUNT(*) FROM t") == [("20000",)]


def test_rows_that_wait_in_memory_are_added_again_after_a_deadlock(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, v TEXT)")
    run, ran = RowSender._run, list[int]()

    def deadlocked(loader: RowSender, sql: str, rows: int, **more: Any) -> None:
        run(loader, sql, rows, **more)
        ran.append(rows)
        if len(ran) == 3:
            raise TargetError("a deadlock") from pymysql.err.OperationalError(1213, "Deadlock")

    monkeypatch.setattr(RowSender, "_run", deadlocked)
    _written(shop, "task", rowsPerSecond="1M")
    assert sum(ran) > 20_000
    assert shop.rows("SELECT COUNT(*), SUM(id) FROM t") == [("20000", str(sum(range(20_000))))]


@pytest.mark.parametrize("held", ["1", "1MiB"])
def test_the_server_ends_a_process_that_stands_still_between_two_pieces(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, held: str
) -> None:
    """The rows before are locked, and with `wait_timeout` as servers have it stay so for 8 hours."""
    shop.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, v TEXT)")
    run, seen = MysqlWriteSession.affected, set[str]()

    def asked(session: MysqlWriteSession, sql: str) -> tuple[int, int]:
        answer = run(session, sql)
        if f"INTO {'TABLE ' if held != '1' else ''}`{shop.database}`.`t`" in sql:
            seen.add(str(session.value("SELECT @@wait_timeout")))
        return answer

    monkeypatch.setattr(MysqlWriteSession, "affected", asked)
    _written(shop, "task", rowsPerSecond="1M", capacityBytes=held)
    assert seen == {"30"}


@pytest.mark.parametrize("local", ["true", "false"])
@pytest.mark.parametrize("commit", ["job", "task"])
def test_limited_rows_are_sent_in_pieces_too(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, commit: CommitMode, local: str
) -> None:
    """10 000 rows in one LOAD DATA kept a core of the server busy for 30 ms and more."""
    shop.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, v TEXT)")
    sent: list[int] = []
    run = RowSender._run

    def counted(loader: RowSender, sql: str, rows: int, **more: Any) -> None:
        sent.append(rows)
        run(loader, sql, rows, **more)

    monkeypatch.setattr(RowSender, "_run", counted)
    _written(shop, commit, rowsPerSecond="1M", localInfile=local)
    assert shop.rows("SELECT COUNT(*), SUM(id) FROM t") == [("20000", str(sum(range(20_000))))]
    assert sum(sent) == 20_000
    assert sent[0] <= 256
    assert max(sent) <= 4_096


def test_the_rows_of_a_task_are_added_within_a_part_of_its_time(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With rests of three times the work, a server that worked for a quarter of the time made tasks late."""
    shop.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, v TEXT)")
    spreads: list[float | None] = []
    run = WritePacer.run

    def seen(
        pacer: WritePacer,
        work: Any,
        begin: int,
        end: int,
        *,
        spread: float | None = None,
        parts: Sequence[tuple[float, float]] = (),
    ) -> None:
        spreads.append(spread)
        run(pacer, work, begin, end, spread=spread, parts=parts)

    monkeypatch.setattr(WritePacer, "run", seen)
    _written(shop, "task", rowsPerSecond="1M")
    assert spreads
    assert None not in spreads


@pytest.mark.parametrize("held", ["1", "1MiB"])
def test_a_value_of_a_later_piece_is_refused_by_the_number_of_its_row(
    shop: Shop, held: str
) -> None:
    shop.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, v ENUM('a', 'b'))")
    writer = shop.writer("t", rowsPerSecond="1M", capacityBytes=held)
    rows = pa.table({"id": range(5_000), "v": [*["a"] * 4_000, "c", *["b"] * 999]})
    plan = writer.prepare(WriteContext("limited", commit="task"), rows.schema)
    task = writer.open(plan, 0, 0)
    try:
        (batch,) = rows.to_batches()
        task.write(batch)
        with pytest.raises(BatchRefusedError, match="row 4001 of task 0: 'c'"):
            task.close()
    finally:
        task.rollback()
        writer.abort(plan, None)


@pytest.mark.parametrize("commit", ["job", "task"])
def test_a_row_of_the_last_piece_that_is_refused_refuses_all(
    shop: Shop, commit: CommitMode
) -> None:
    """With commit=task, all of its task."""
    shop.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, v TEXT); INSERT INTO t VALUES (19999, 'old')")
    with pytest.raises(ChannelError, match="uplicate"):
        _written(shop, commit, rowsPerSecond="1M")
    assert shop.rows("SELECT COUNT(*) FROM t") == [("1" if commit == "job" else "10001",)]


@pytest.mark.parametrize(
    "more", [{}, {"rowsPerSecond": "1M", "overwrite": True}], ids=["unlimited", "overwrite"]
)
def test_what_nothing_limits_and_what_holds_locks_is_one_statement_a_stage(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, more: dict[str, Any]
) -> None:
    shop.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, v TEXT)")
    inserts = _inserts(monkeypatch)
    _written(shop, "job", **more)
    assert len(inserts) == 2


@pytest.mark.parametrize(("way", "most"), [(0.0, 1), (0.01, 2)])
def test_tasks_of_a_near_server_add_their_pieces_in_turns(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, way: float, most: int
) -> None:
    """Sessions that add rows to one index at once cost it more; far away, it would rest between turns."""
    shop.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, v TEXT)")
    module = "spark_channel.connectors.mysql.write.load_data"
    attempt = "spark_channel.connectors.sql.write.attempt"
    monkeypatch.setattr(f"{module}.way_seconds", lambda _ask: way)
    monkeypatch.setattr(f"{attempt}.adding_seconds", lambda *_given, **_named: 2.0)
    monkeypatch.setattr(f"{module}.turns_end", lambda _spread: SYSTEM_CLOCK.now() + 300.0)
    run, running, seen = MysqlWriteSession.affected, list[str](), list[int]()

    def counted(session: MysqlWriteSession, sql: str) -> tuple[int, int]:
        if not sql.startswith("LOAD DATA"):
            return run(session, sql)
        running.append(sql)
        try:
            seen.append(len(running))
            time.sleep(0.02)
            return run(session, sql)
        finally:
            running.remove(sql)

    monkeypatch.setattr(MysqlWriteSession, "affected", counted)
    writer = shop.writer("t", rowsPerSecond="1M")
    plan = writer.prepare(WriteContext("turns", commit="task"), ROWS.schema)
    together = threading.Barrier(2)

    def write(number: int) -> Any:
        task = writer.open(plan, number, number)
        for batch in ROWS.slice(10_000 * number, 10_000).to_batches():
            task.write(batch)
        together.wait()
        return task.close()

    with ThreadPoolExecutor() as pool:
        receipts = list(pool.map(write, range(2)))
    writer.commit(plan, receipts)
    assert shop.rows("SELECT COUNT(*) FROM t") == [("20000",)]
    assert max(seen) == most


def test_a_piece_whose_turn_does_not_come_runs_anyway() -> None:
    """The task that has the turn may wait for a lock of this one."""
    began = SYSTEM_CLOCK.now()
    ran: list[float] = []

    def other() -> float:
        return in_turn(lambda: ran.append(SYSTEM_CLOCK.now()), began + 0.1)

    with ThreadPoolExecutor() as pool:
        in_turn(lambda: pool.submit(other).result(), began + 5.0)
    assert 0.1 <= ran[0] - began < 4.0
