"""`commit=job` in one pass: one task's transaction takes the rows into the table, and publishes them."""

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

import spark_channel
from spark_channel.connectors import WritePlan
from spark_channel.connectors.mysql import MysqlDatabase
from spark_channel.connectors.mysql.session import MysqlSession, MysqlWriteSession
from spark_channel.connectors.sql import SqlWriter
from spark_channel.errors import ChannelError, CommitError, SupersededError, TargetError
from tests.connectors.mysql.shop import Shop, until_a_lock_waits
from tests.connectors.mysql.test_faults import PROCESSES, SECONDS
from tests.connectors.sql.one_database import run_task

pytestmark = pytest.mark.real_server("MariaDB", "mysql")

_COUNTED = "SELECT COUNT(*), COUNT(DISTINCT id) FROM t"
_SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])


def _rows(start: int, count: int) -> pa.Table:
    ids = range(start, start + count)
    return pa.table({"id": pa.array(ids, pa.int64()), "v": [f"row {n}" for n in ids]})


def _batch(start: int, count: int) -> pa.RecordBatch:
    return _rows(start, count).to_batches()[0]


def _table(shop: Shop, more: str = "") -> None:
    shop.sql(f"CREATE TABLE t (id BIGINT, v VARCHAR(50){more})")


def _plan(
    shop: Shop, txn: tuple[str, int] | None = None, **options: Any
) -> tuple[SqlWriter[Any], WritePlan]:
    writer = shop.writer(**options)
    context = replace(shop.context(txn=txn), alone=True, one_pass=True)
    return writer, writer.prepare(context, _SCHEMA)


def _counted(shop: Shop) -> tuple[str, ...]:
    return shop.rows(_COUNTED)[0]


@pytest.mark.parametrize("local_infile", [True, False])
def test_rows_are_seen_when_they_are_published(shop: Shop, local_infile: bool) -> None:
    _table(shop)
    writer, plan = _plan(shop, localInfile=local_infile)
    assert plan.one_pass
    assert plan.commit == "job"
    task = writer.open(plan, 0, 0)
    for start in range(0, 1_000, 100):
        task.write(_batch(start, 100))
        task.flush()
    assert _counted(shop) == ("0", "0")
    assert shop.staged() == []
    receipt = task.close()
    assert _counted(shop) == ("1000", "1000")
    assert shop.rows("SELECT state, row_count FROM spark_channel_claims WHERE kind <> 'table'") == [
        ("published", "1000")
    ]
    assert writer.commit(plan, [receipt]) is not False
    assert writer.abort(plan, [receipt]) == []
    assert _counted(shop) == ("1000", "1000")


def test_a_table_that_is_dropped_after_its_rows_were_published(shop: Shop) -> None:
    _table(shop)
    writer, plan = _plan(shop)
    receipt = run_task(writer, plan, 0, _rows(0, 100))
    shop.sql("DROP TABLE t")
    assert writer.commit(plan, [receipt]) is not False


def test_an_attempt_after_the_one_that_published_adds_nothing(shop: Shop) -> None:
    """Its driver did not hear of the first."""
    _table(shop)
    writer, plan = _plan(shop)
    first = run_task(writer, plan, 0, _rows(0, 100), attempt=0)
    again = run_task(writer, plan, 0, _rows(0, 100), attempt=1)
    assert (again.rows, again.nbytes) == (first.rows, first.nbytes)
    writer.commit(plan, [again])
    assert _counted(shop) == ("100", "100")


@pytest.mark.parametrize("keyed", [True, False])
def test_of_two_attempts_at_once_one_adds_its_rows(shop: Shop, keyed: bool) -> None:
    _table(shop, ", PRIMARY KEY (id)" if keyed else "")
    writer, plan = _plan(shop, batchSize=10)
    receipts, start = [], threading.Barrier(2)

    def attempt(number: int) -> None:
        writing = writer.open(plan, 0, number)
        start.wait(30)
        for part in range(10):
            writing.write(_batch(part * 10, 10))
        receipts.append(writing.close())

    threads = [threading.Thread(target=attempt, args=(number,)) for number in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [receipt.rows for receipt in receipts] == [100, 100]
    writer.commit(plan, receipts[:1])
    assert _counted(shop) == ("100", "100")


def test_a_newer_attempt_ends_an_older_one_that_hangs(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_channel.connectors.mysql.write.table_locks._OLDER_SECONDS", 0)
    _table(shop)
    writer, plan = _plan(shop)
    older = writer.open(plan, 0, 1)
    older.write(_batch(0, 100))
    older.flush()
    receipt = run_task(writer, plan, 0, _rows(0, 100), attempt=2)
    assert older.close().rows == receipt.rows == 100
    writer.commit(plan, [receipt])
    assert _counted(shop) == ("100", "100")


class _Cut:
    """Ends the session just before, or just after, its first COMMIT of rows."""

    def __init__(self, shop: Shop, monkeypatch: pytest.MonkeyPatch, *, after: bool) -> None:
        self.cuts = 0
        real, affected, loaded = MysqlWriteSession.rows, MysqlWriteSession.affected, []

        def rows(session: MysqlWriteSession, sql: str, parameters: Any = ()) -> Any:
            if sql != "COMMIT" or self.cuts or session not in loaded:
                return real(session, sql, parameters)
            self.cuts += 1
            if after:
                real(session, sql, parameters)
            shop.sql(f"KILL {session.id}")
            return real(session, "SELECT 'the answer to COMMIT'")

        def inserted(session: MysqlWriteSession, sql: str) -> tuple[int, int]:
            loaded.append(session)
            return affected(session, sql)

        monkeypatch.setattr(MysqlWriteSession, "rows", rows)
        monkeypatch.setattr(MysqlWriteSession, "affected", inserted)


@pytest.mark.parametrize("after", [True, False])
def test_a_commit_without_an_answer_is_settled(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    _table(shop)
    writer, plan = _plan(shop)
    with monkeypatch.context() as patch:
        cut = _Cut(shop, patch, after=after)
        if after:
            receipt = run_task(writer, plan, 0, _rows(0, 100), attempt=1)
        else:
            with pytest.raises(TargetError, match="rows were not committed"):
                run_task(writer, plan, 0, _rows(0, 100), attempt=1)
            receipt = run_task(writer, plan, 0, _rows(0, 100), attempt=2)
    assert cut.cuts == 1
    writer.commit(plan, [receipt])
    assert _counted(shop) == ("100", "100")


@pytest.mark.parametrize("is_ended", [True, False])
def test_a_run_that_is_overtaken_while_its_task_writes_adds_nothing(
    shop: Shop, is_ended: bool
) -> None:
    """By the claim, or because the task of the run that took over has ended its session."""
    _table(shop)
    writer, plan = _plan(shop, ("nightly", 1))
    task = writer.open(plan, 0, 0)
    task.write(_batch(0, 100))
    task.flush()
    later, taken = _plan(shop, ("nightly", 1))
    if is_ended:
        newer = later.open(taken, 0, 0)
        newer.write(_batch(500, 10))
        newer.flush()
    with pytest.raises(ChannelError) as told:
        task.close()
    assert isinstance(told.value, SupersededError), told.value
    task.rollback()
    assert _counted(shop) == ("0", "0")
    receipt = newer.close() if is_ended else run_task(later, taken, 0, _rows(500, 10))
    later.commit(taken, [receipt])
    assert shop.rows("SELECT MIN(id), COUNT(*) FROM t") == [("500", "10")]
    with pytest.raises(SupersededError):
        run_task(writer, plan, 0, _rows(0, 100), attempt=3)


def test_a_row_that_is_refused_leaves_no_row_and_no_claim(shop: Shop) -> None:
    _table(shop, ", CHECK (id < 150)")
    writer, plan = _plan(shop, ("nightly", 1))
    with pytest.raises(TargetError):
        run_task(writer, plan, 0, _rows(0, 200))
    assert writer.abort(plan, None) == []
    assert _counted(shop) == ("0", "0")
    writer, plan = _plan(shop, ("nightly", 1))
    writer.commit(plan, [run_task(writer, plan, 0, _rows(0, 100))])
    assert _counted(shop) == ("100", "100")


def test_a_deadlock_that_the_server_ends_is_written_again(shop: Shop) -> None:
    _table(shop, ", PRIMARY KEY (id)")
    writer, plan = _plan(shop)
    task = writer.open(plan, 0, 0)
    task.write(_batch(0, 10))
    task.flush()
    with shop.writer().database.connect(TargetError, "deadlock", patient=False) as session:
        session.execute("START TRANSACTION")
        # The server ends the transaction that has changed fewer rows: make that the task's.
        listed = ", ".join(f"({number}, 'other')" for number in (20, *range(1_000, 1_500)))
        session.execute(f"INSERT INTO t VALUES {listed}")

        def wait() -> None:
            session.execute("INSERT INTO t VALUES (5, 'other')")
            session.execute("ROLLBACK")

        waiting = threading.Thread(target=wait)
        waiting.start()
        task.write(_batch(10, 20))
        task.flush()
        waiting.join(SECONDS)
    writer.commit(plan, [task.close()])
    assert _counted(shop) == ("30", "30")


def test_a_receipt_whose_rows_were_not_published_is_refused(shop: Shop) -> None:
    _table(shop)
    writer, plan = _plan(shop)
    task: Any = writer.open(plan, 0, 0)
    task.write(_batch(0, 10))
    receipt = task._tally.receipt()
    task.rollback()
    with pytest.raises(CommitError, match="has not published its rows"):
        writer.commit(plan, [receipt])
    assert _counted(shop) == ("0", "0")


@pytest.mark.parametrize(
    "options",
    [
        {"maxDirectRows": 0},
        {"writeMode": "upsert", "keyColumns": "id"},
        {"duplicates": "replace"},
        {"preSql": "DELETE FROM t"},
        {"rowsPerSecond": 1_000},
        {"commit": "task"},
        {"maxDirtyRows": 1},
    ],
    ids=lambda options: next(iter(options)),
)
def test_other_writes_are_staged_or_by_task(shop: Shop, options: dict[str, Any]) -> None:
    assert shop.writer(**options).one_pass_rows is None


def test_a_new_table_and_one_that_is_emptied_are_staged(shop: Shop) -> None:
    def prepared(*, overwrite: bool = False) -> WritePlan:
        writer = shop.writer()
        context = replace(shop.context(overwrite=overwrite), alone=True, one_pass=True)
        plan = writer.prepare(context, _SCHEMA)
        writer.abort(plan, None)
        return plan

    assert not prepared().one_pass
    _table(shop)
    assert not prepared(overwrite=True).one_pass
    assert prepared().one_pass


def test_the_locks_of_a_silent_client_end(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its host may be lost, and the server waits for eight hours."""
    monkeypatch.setattr("spark_channel.connectors.mysql.write.loader.LOCKED_SECONDS", 2)
    _table(shop, ", PRIMARY KEY (id)")
    writer, plan = _plan(shop)
    task = writer.open(plan, 0, 0)
    task.write(_batch(0, 10))
    task.flush()
    try:
        shop.sql("SET innodb_lock_wait_timeout = 20; INSERT INTO t VALUES (5, 'other')")
        with pytest.raises(TargetError, match="rows were not committed"):
            task.close()
    finally:
        task.rollback()
    assert _counted(shop) == ("1", "1")


@pytest.mark.parametrize("is_triggered", [True, False])
def test_a_table_whose_values_the_server_computes_is_staged(shop: Shop, is_triggered: bool) -> None:
    """It says with a warning that it rounds them, and LOAD DATA has no more than warnings for refused rows."""
    g = "g DECIMAL(10, 2)" if is_triggered else "g DECIMAL(10, 2) AS (id / 3) STORED"
    _table(shop, f", {g}")
    if is_triggered:
        shop.sql("CREATE TRIGGER g BEFORE INSERT ON t FOR EACH ROW SET NEW.g = NEW.id / 3")
    writer, plan = _plan(shop)
    assert not plan.one_pass
    writer.commit(plan, [run_task(writer, plan, 0, _rows(1, 1))])
    assert shop.rows("SELECT id, g FROM t") == [("1", "0.33")]


def test_a_table_without_transactions_is_refused(shop: Shop) -> None:
    shop.sql("CREATE TABLE t (id BIGINT, v VARCHAR(50)) ENGINE=MyISAM")
    with pytest.raises(TargetError, match="has no transactions"):
        _plan(shop)


def test_rows_that_are_not_counted_are_estimated(shop: Shop) -> None:
    shop.write(_rows(0, 20_000), dbtable="s")
    shop.sql("ANALYZE TABLE s")
    (split,) = shop.reader("s").split(2)
    assert split.rows is not None
    assert 15_000 < split.rows < 25_000


def test_the_rows_of_an_engine_that_may_keep_them_elsewhere_are_not_known(shop: Shop) -> None:
    shop.sql("CREATE TABLE s (id BIGINT) ENGINE=MEMORY; INSERT INTO s VALUES (1)")
    (split,) = shop.reader("s").split(2)
    assert split.rows is None


def _copy_and_die(reader: dict[str, Any], writer: dict[str, Any], when: str) -> None:
    real, affected, loaded = MysqlSession.rows, MysqlWriteSession.affected, []

    def rows(session: MysqlSession, sql: str, parameters: Any = ()) -> Any:
        is_last = sql == "COMMIT" and session in loaded
        if is_last and when == "before COMMIT":
            os.kill(os.getpid(), signal.SIGKILL)
        answer = real(session, sql, parameters)
        if is_last and when == "after COMMIT":
            os.kill(os.getpid(), signal.SIGKILL)
        return answer

    def inserted(session: MysqlWriteSession, sql: str) -> tuple[int, int]:
        answer = affected(session, sql)
        loaded.append(session)
        if when == "amid the rows":
            os.kill(os.getpid(), signal.SIGKILL)
        return answer

    MysqlSession.rows = rows  # type: ignore[method-assign,assignment] # it is another process
    MysqlWriteSession.affected = inserted  # type: ignore[method-assign,assignment]
    spark_channel.transfer(None, reader, writer)


@pytest.mark.parametrize(
    ("when", "again"),
    [("amid the rows", 20_000), ("before COMMIT", 20_000), ("after COMMIT", 0)],
)
def test_a_job_that_is_killed_and_run_again_has_each_row_once(
    shop: Shop, when: str, again: int
) -> None:
    shop.write(_rows(0, 20_000), dbtable="s")
    shop.sql("ALTER TABLE s ADD PRIMARY KEY (id); ANALYZE TABLE s")
    _table(shop)
    txn = {"txnAppId": "nightly", "txnVersion": 1}
    ends = {**shop.login, "dbtable": "s"}, {**shop.login, "dbtable": "t", **txn}
    process = PROCESSES.Process(target=_copy_and_die, args=(*ends, when))
    process.start()
    process.join(SECONDS)
    assert process.exitcode == -signal.SIGKILL
    assert _counted(shop) == (("20000", "20000") if again == 0 else ("0", "0"))
    report = spark_channel.transfer(None, *ends)
    assert report.rows == again
    assert ("in one transaction" in report.path) is bool(again)
    assert _counted(shop) == ("20000", "20000")
    assert shop.staged() == []


@pytest.mark.parametrize(
    ("overwrite", "options"),
    [
        (True, {}),
        (True, {"commit": "task"}),
        (False, {"preSql": "DELETE FROM t"}),
        (False, {"preSql": "DELETE FROM t", "commit": "task"}),
        (False, {"preSql": "DELETE FROM t; ANALYZE TABLE t", "commit": "task"}),
    ],
    ids=["overwrite", "overwrite by task", "preSql", "preSql by task", "preSql with DDL"],
)
def test_what_empties_the_table_meanwhile_waits_for_all_rows(
    shop: Shop, overwrite: bool, options: dict[str, Any]
) -> None:
    """A DELETE waits for the first row that is there, and misses a row before it that comes meanwhile."""
    _table(shop, ", PRIMARY KEY (id)")
    writer, plan = _plan(shop)
    task = writer.open(plan, 0, 0)
    task.write(_batch(1_000, 100))
    task.flush()
    with ThreadPoolExecutor(1) as pool:
        emptied = pool.submit(shop.write, _rows(5_000, 10), overwrite=overwrite, **options)
        until_a_lock_waits(shop)
        task.write(_batch(0, 100))
        task.flush()
        assert not emptied.done()
        receipt = task.close()
        emptied.result(SECONDS)
    writer.commit(plan, [receipt])
    assert shop.rows("SELECT MIN(id), COUNT(*) FROM t") == [("5000", "10")]


@pytest.mark.parametrize("is_open", [True, False])
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("MODIFY n FLOAT", "was altered while its rows were written"),
        ("ENGINE=MyISAM", "has no transactions"),
    ],
    ids=["type", "engine"],
)
def test_a_table_that_is_altered_before_its_first_row_is_refused(
    shop: Shop, is_open: bool, change: str, said: str
) -> None:
    """The server would round values to a type that the plan did not see."""
    shop.sql("CREATE TABLE t (id BIGINT, n DOUBLE)")
    rows = pa.table({"id": pa.array([1], pa.int64()), "n": [16_777_217.0]})
    writer = shop.writer()
    context = replace(shop.context(), alone=True, one_pass=True)
    plan = writer.prepare(context, rows.schema)
    assert plan.one_pass
    task = writer.open(plan, 0, 0) if is_open else None
    shop.sql(f"ALTER TABLE t {change}")
    task = task or writer.open(plan, 0, 0)
    task.write(rows.to_batches()[0])
    with pytest.raises(TargetError, match=said):
        task.close()
    task.rollback()
    writer.abort(plan, None)
    assert shop.rows("SELECT COUNT(*) FROM t") == [("0",)]


def test_a_server_that_is_away_after_the_task_committed_is_no_rollback(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    _table(shop)
    writer, plan = _plan(shop, retryTimeout=0)
    receipt = run_task(writer, plan, 0, _rows(0, 100))

    def away(*_args: Any, **_more: Any) -> Any:
        raise CommitError("the server is away")

    monkeypatch.setattr(MysqlDatabase, "connect", away)
    with pytest.raises(CommitError, match=r"is away\. The task has committed .* are in table .*t'"):
        writer.commit(plan, [receipt])
    assert _counted(shop) == ("100", "100")
