"""Writes under a limit: pieces of a publish, and tasks whose transaction is short."""

from typing import Any

import pyarrow as pa
import pytest

from spark_channel.connectors import WriteContext
from spark_channel.connectors.mysql.session import MysqlWriteSession
from spark_channel.errors import ChannelError
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
