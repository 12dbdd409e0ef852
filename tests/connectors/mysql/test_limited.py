"""Writes under a limit: pieces of a publish, and tasks whose transaction is short."""

from typing import Any

import pyarrow as pa
import pytest

from spark_channel.connectors import WriteContext
from spark_channel.connectors.mysql.session import MysqlWriteSession
from spark_channel.connectors.mysql.task_writer import Loader
from spark_channel.connectors.sql.pacing import WritePacer
from spark_channel.errors import BatchRefusedError, ChannelError
from spark_channel.options import CommitMode
from tests.connectors.mysql.conftest import Shop

ROWS = pa.table({"id": pa.array(range(20_000), pa.int64()), "v": ["some text"] * 20_000})
OPEN = "SELECT COUNT(*) FROM information_schema.innodb_trx"


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
                    assert shop.rows(OPEN) == [("0",)]
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
    shop.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, v TEXT)")
    inserts = _inserts(monkeypatch)
    _written(shop, commit, rowsPerSecond="1M")
    assert shop.rows("SELECT COUNT(*), SUM(id) FROM t") == [("20000", str(sum(range(20_000))))]
    assert len(inserts) >= 6


@pytest.mark.parametrize("local", ["true", "false"])
@pytest.mark.parametrize("commit", ["job", "task"])
def test_limited_rows_are_sent_in_pieces_too(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, commit: CommitMode, local: str
) -> None:
    """10 000 rows in one LOAD DATA kept a core of the server busy for 30 ms and more."""
    shop.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, v TEXT)")
    sent: list[int] = []
    run = Loader._run

    def counted(loader: Loader, sql: str, rows: int, **more: Any) -> None:
        sent.append(rows)
        run(loader, sql, rows, **more)

    monkeypatch.setattr(Loader, "_run", counted)
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
        pacer: WritePacer, work: Any, begin: int, end: int, *, spread: float | None = None
    ) -> None:
        spreads.append(spread)
        run(pacer, work, begin, end, spread=spread)

    monkeypatch.setattr(WritePacer, "run", seen)
    _written(shop, "task", rowsPerSecond="1M")
    assert spreads
    assert None not in spreads


def test_a_value_of_a_later_piece_is_refused_by_the_number_of_its_row(shop: Shop) -> None:
    shop.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, v ENUM('a', 'b'))")
    writer = shop.writer("t", rowsPerSecond="1M")
    rows = pa.table({"id": range(5_000), "v": [*["a"] * 4_000, "c", *["b"] * 999]})
    plan = writer.prepare(WriteContext("limited", commit="task"), rows.schema)
    task = writer.open(plan, 0, 0)
    try:
        (batch,) = rows.to_batches()
        task.write(batch)
        with pytest.raises(BatchRefusedError, match="row 4001 of task 0: 'c'"):
            task.flush()
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
