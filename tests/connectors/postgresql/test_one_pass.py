"""`commit=job` in one pass: one task's transaction takes the rows into the table, and publishes them."""

import gzip
import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import spark_channel
from spark_channel.connectors import WritePlan, load_reader
from spark_channel.connectors.postgresql.read.copy_session import PgCopySession
from spark_channel.connectors.postgresql.session import PgSession, PgWriteSession
from spark_channel.connectors.postgresql.write import database
from spark_channel.errors import ChannelError, CommitError, SupersededError, TargetError
from spark_channel.planning import Endpoint, Split, TransferSpec
from spark_channel.transfers.plan import is_one_pass, rehearse
from tests.connectors.postgresql.pg import Pg
from tests.connectors.postgresql.test_faults import _Cut, _ended
from tests.connectors.sql.one_database import run_task

pytestmark = pytest.mark.real_server("PostgreSQL", "postgresql")

_SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])
_COUNTED = "SELECT count(*), count(DISTINCT id) FROM t"
_IN_ONE = (
    "SELECT count(DISTINCT xmin::text) FROM (SELECT xmin FROM t UNION ALL "
    "SELECT xmin FROM spark_channel_claims WHERE kind <> 'table') both_tables"
)


def _rows(start: int, count: int) -> pa.RecordBatch:
    ids = range(start, start + count)
    return pa.record_batch({"id": pa.array(ids, pa.int64()), "v": [f"row {n}" for n in ids]})


def _table(pg: Pg, more: str = "") -> None:
    pg.psql(f"CREATE TABLE t (id bigint, v text{more})")


def _plan(pg: Pg, txn: tuple[str, int] | None = None, **options: Any) -> tuple[Any, WritePlan]:
    writer = pg.writer("t", **options)
    context = replace(pg.context(txn=txn), alone=True, one_pass=True)
    return writer, writer.prepare(context, _SCHEMA)


def test_rows_and_their_publication_are_one_transaction(pg: Pg) -> None:
    _table(pg)
    writer, plan = _plan(pg)
    assert plan.one_pass
    assert plan.commit == "job"
    assert pg.staged() == []
    task = writer.open(plan, 0, 0)
    for start in range(0, 1_000, 100):
        task.write(_rows(start, 100))
        task.flush()
    assert pg.psql(_COUNTED) == "0|0"
    receipt = task.close()
    assert pg.psql(_COUNTED) == "1000|1000"
    assert pg.psql(_IN_ONE) == "1"
    assert writer.commit(plan, [receipt]) is not False
    assert writer.abort(plan, [receipt]) == []
    assert pg.psql(_COUNTED) == "1000|1000"
    assert pg.server.connections() == 0


def test_a_few_megabytes_of_a_large_table_are_in_memory(
    pg: Pg, monkeypatch: pytest.MonkeyPatch
) -> None:
    pg.psql(
        "CREATE TABLE a AS SELECT g::bigint AS id, repeat('x', 1000) AS v FROM generate_series(1, 20000) g"
    )
    _table(pg)
    read, write = PgCopySession.copy, PgWriteSession.copy
    came, most = 0, 6 << 20
    is_ahead, sent = threading.Event(), list[int]()

    def counted(session: PgCopySession, sql: str, columns: int, size: int) -> Iterator[Any]:
        nonlocal came
        for piece, bounds in read(session, sql, columns, size):
            came += len(piece)
            if came - sum(sent) > most:
                is_ahead.set()
            yield piece, bounds

    def slow(session: PgWriteSession, schema: str, table: str, rows: Any, *more: Any) -> None:
        is_ahead.wait(0.0 if sent else 1.0)
        write(session, schema, table, rows, *more)
        sent.append(sum(len(piece) for piece in rows.pieces))

    monkeypatch.setattr(PgCopySession, "copy", counted)
    monkeypatch.setattr(PgWriteSession, "copy", slow)
    one, other = (pg.options(name="postgresql", dbtable=name) for name in ("a", "t"))
    report = spark_channel.transfer(None, one, other, channels=1)
    assert report.path.startswith("rows pass as the source's bytes")
    assert not is_ahead.is_set()
    assert max(sent) < 3 << 20
    assert pg.psql(_COUNTED) == "20000|20000"


def test_an_attempt_after_the_one_that_published_adds_nothing(pg: Pg) -> None:
    """Its driver did not hear of the first."""
    _table(pg)
    writer, plan = _plan(pg)
    first = run_task(writer, plan, 0, _rows(0, 100), attempt=0)
    again = run_task(writer, plan, 0, _rows(0, 100), attempt=1)
    assert (again.rows, again.nbytes) == (first.rows, first.nbytes)
    writer.commit(plan, [again])
    assert pg.psql(_COUNTED) == "100|100"


@pytest.mark.parametrize("keyed", [True, False])
def test_of_two_attempts_at_once_one_adds_its_rows(pg: Pg, keyed: bool) -> None:
    _table(pg, ", PRIMARY KEY (id)" if keyed else "")
    writer, plan = _plan(pg, batchSize=10)
    receipts, start = [], threading.Barrier(2)

    def attempt(number: int) -> None:
        writing = writer.open(plan, 0, number)
        start.wait(30)
        for part in range(10):
            writing.write(_rows(part * 10, 10))
        receipts.append(writing.close())

    threads = [threading.Thread(target=attempt, args=(number,)) for number in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [receipt.rows for receipt in receipts] == [100, 100]
    writer.commit(plan, receipts[:1])
    assert pg.psql(_COUNTED) == "100|100"


@pytest.mark.parametrize("after", [True, False])
def test_a_commit_without_an_answer_is_settled(
    pg: Pg, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    _table(pg)
    writer, plan = _plan(pg)
    with monkeypatch.context() as patch:
        cut = _Cut(pg, patch, after=after)
        if after:
            receipt = run_task(writer, plan, 0, _rows(0, 100), attempt=1)
        else:
            with pytest.raises(TargetError, match="nothing of this attempt was stored"):
                run_task(writer, plan, 0, _rows(0, 100), attempt=1)
            receipt = run_task(writer, plan, 0, _rows(0, 100), attempt=2)
    assert cut.cuts == 1
    writer.commit(plan, [receipt])
    assert pg.psql(_COUNTED) == "100|100"


@pytest.mark.parametrize("is_ended", [True, False])
def test_a_run_that_is_overtaken_while_its_task_writes_adds_nothing(
    pg: Pg, monkeypatch: pytest.MonkeyPatch, is_ended: bool
) -> None:
    """A role that may not end the session of the run before leaves it to the claim."""
    if not is_ended:
        monkeypatch.setattr(database, "_end_sessions", lambda _run: None)
    _table(pg)
    writer, plan = _plan(pg, ("nightly", 1))
    task = writer.open(plan, 0, 0)
    task.write(_rows(0, 100))
    task.flush()
    later, taken = _plan(pg, ("nightly", 1))
    with pytest.raises(ChannelError) as told:
        task.close()
    assert isinstance(told.value, SupersededError), told.value
    task.rollback()
    assert pg.psql(_COUNTED) == "0|0"
    later.commit(taken, [run_task(later, taken, 0, _rows(500, 10))])
    assert pg.psql("SELECT min(id), count(*) FROM t") == "500|10"
    with pytest.raises(SupersededError):
        run_task(writer, plan, 0, _rows(0, 100), attempt=3)


def test_a_row_that_is_refused_leaves_no_row_and_no_claim(pg: Pg) -> None:
    _table(pg, ", CHECK (id < 150)")
    writer, plan = _plan(pg, ("nightly", 1))
    with pytest.raises(TargetError, match=r"violates check constraint"):
        run_task(writer, plan, 0, _rows(0, 200))
    assert writer.abort(plan, None) == []
    assert pg.psql(_COUNTED) == "0|0"
    writer, plan = _plan(pg, ("nightly", 1))
    writer.commit(plan, [run_task(writer, plan, 0, _rows(0, 100))])
    assert pg.psql(_COUNTED) == "100|100"


def test_a_receipt_whose_rows_were_not_published_is_refused(pg: Pg) -> None:
    _table(pg)
    writer, plan = _plan(pg)
    task = writer.open(plan, 0, 0)
    task.write(_rows(0, 10))
    receipt = task._tally.receipt()
    task.rollback()
    with pytest.raises(CommitError, match="has not published its rows"):
        writer.commit(plan, [receipt])
    assert pg.psql(_COUNTED) == "0|0"


@pytest.mark.parametrize(
    "options",
    [
        {"maxDirectRows": 0},
        {"writeMode": "upsert", "keyColumns": "id"},
        {"preSql": "DELETE FROM t"},
        {"postSql": "ANALYZE t"},
        {"rowsPerSecond": 1_000},
        {"rowsPerSecondPerTask": 1_000},
        {"commit": "task"},
        {"maxDirtyRows": 1},
    ],
    ids=lambda options: next(iter(options)),
)
def test_other_writes_are_staged_or_by_task(pg: Pg, options: dict[str, Any]) -> None:
    writer = pg.writer("t", **options)
    assert writer.one_pass_rows is None


def test_a_new_table_and_one_that_is_replaced_are_staged(pg: Pg) -> None:
    writer = pg.writer("t")
    for overwrite in (False, True):
        context = replace(pg.context(overwrite=overwrite), alone=True, one_pass=True)
        plan = writer.prepare(context, _SCHEMA)
        assert not plan.one_pass
        assert len(pg.staged()) == 1
        writer.abort(plan, None)
        if not overwrite:
            _table(pg)


@pytest.mark.parametrize(
    ("channels", "here", "rows", "one"),
    [
        (None, True, (10, 20), True),
        (1, True, (10, 20), True),
        (2, True, (10, 20), False),
        (None, False, (10, 20), False),  # Spark reads with many tasks
        (1, False, (10, 20), True),
        (None, False, (30,), True),
        (None, True, (10, None), False),
        (None, True, (10, 21), False),
    ],
)
def test_the_planner_takes_one_task_where_its_rows_are_few_enough(
    pg: Pg, channels: int | None, here: bool, rows: tuple[int | None, ...], one: bool
) -> None:
    end = Endpoint("postgresql")
    spec = TransferSpec(end, end, save_mode="append", channels=channels)
    writer = pg.writer("t", maxDirectRows=30)
    splits = [Split(rows=count) for count in rows]
    assert is_one_pass(spec, writer, splits, here=here) is one
    assert not is_one_pass(replace(spec, save_mode="overwrite"), writer, splits, here=here)


def test_a_file_whose_rows_were_not_counted_is_known_by_the_bytes_of_its_text(
    pg: Pg, tmp_path: Path
) -> None:
    end = Endpoint("postgresql")
    spec, writer = TransferSpec(end, end, save_mode="append"), pg.writer("t", maxDirectRows=30)
    assert is_one_pass(spec, writer, [Split(nbytes=1_500, is_text=True)], here=True)
    assert not is_one_pass(spec, writer, [Split(nbytes=1_600, is_text=True)], here=True)
    for name, opened, known in (("a.csv", Path.open, True), ("b.csv.gz", gzip.open, False)):
        with opened(tmp_path / name, "wb") as file:
            file.write(b"id\n" + b"1\n" * 100)
        reader, _ = load_reader({"path": str(tmp_path / name), "header": "true"})
        assert is_one_pass(spec, writer, reader.split(1), here=True) is known


def test_the_rows_of_foreign_partitions_are_not_known(pg: Pg) -> None:
    pg.psql("CREATE EXTENSION IF NOT EXISTS file_fdw")
    pg.psql(f"CREATE SERVER {pg.schema} FOREIGN DATA WRAPPER file_fdw")
    options = "OPTIONS (program 'seq 3', format 'csv')"
    pg.psql("CREATE TABLE s (id int) PARTITION BY RANGE (id)")
    part = "CREATE FOREIGN TABLE s1 PARTITION OF s FOR VALUES FROM (1) TO (9)"
    pg.psql(f"{part} SERVER {pg.schema} {options}")
    (split,) = pg.reader("s").split(2)
    assert split.rows is None


def test_the_rows_of_a_table_without_a_key_are_estimated(pg: Pg) -> None:
    pg.psql("CREATE TABLE s AS SELECT g AS id FROM generate_series(1, 20000) g; ANALYZE s")
    reader, writer = _ends(pg)
    pg.psql("CREATE TABLE t (id int)")
    assert [split.rows for split in pg.reader("s").split(2)] == [20_000]
    report = spark_channel.transfer(None, reader, writer)
    assert "in one transaction" in report.path
    assert pg.psql("SELECT count(*) FROM t") == "20000"


def test_several_tasks_read_for_a_table_that_is_not_there(pg: Pg) -> None:
    """Its staging becomes the table, so one pass would save nothing."""
    _source(pg)
    reader, writer = _ends(pg)
    source, target = Endpoint("postgresql", reader), Endpoint("postgresql", writer)
    spec = TransferSpec(source, target, save_mode="append")
    tasks = []
    for _ in range(2):
        with ExitStack() as held:
            (opened,) = rehearse(spec, 4, held, here=True)
        tasks.append(len(opened.plan.tasks))
        assert ("in one transaction" in opened.path) is (tasks[-1] == 1)
        pg.psql("CREATE TABLE IF NOT EXISTS t (id bigint, v text)")
    assert tasks[0] > 1
    assert tasks[1] == 1


def _source(pg: Pg) -> None:
    pg.psql(
        "CREATE TABLE s AS SELECT g::bigint AS id, 'row ' || g AS v FROM generate_series(1, 20000) g"
    )
    pg.psql("ALTER TABLE s ADD PRIMARY KEY (id)")
    pg.psql("ANALYZE s")


def _ends(pg: Pg) -> tuple[dict[str, Any], dict[str, Any]]:
    login = {**pg.server.login, "currentSchema": pg.schema}
    txn = {"txnAppId": "nightly", "txnVersion": 1}
    return {**login, "dbtable": "s"}, {**login, "dbtable": "t", **txn}


def _copy_and_die(reader: dict[str, Any], writer: dict[str, Any], when: str) -> None:
    real_rows, real_copy = PgSession.rows, PgWriteSession.copy
    copied: list[PgSession] = []

    def rows(session: PgSession, sql: str) -> list[tuple[Any, ...]]:
        is_last = sql == "COMMIT" and session in copied
        if is_last and when == "before COMMIT":
            os._exit(9)
        answer = real_rows(session, sql)
        if is_last:
            os._exit(9)
        return answer

    def copy(session: PgWriteSession, *arguments: Any) -> None:
        real_copy(session, *arguments)
        copied.append(session)
        if when == "amid the rows":
            os._exit(9)

    setattr(PgSession, "rows", rows)  # noqa: B010 - it is another process
    setattr(PgWriteSession, "copy", copy)  # noqa: B010
    spark_channel.transfer(None, reader, writer)


@pytest.mark.parametrize(
    ("when", "again"),
    [("amid the rows", 20_000), ("before COMMIT", 20_000), ("after COMMIT", 0)],
)
def test_a_job_that_is_killed_and_run_again_has_each_row_once(
    pg: Pg, when: str, again: int
) -> None:
    _source(pg)
    _table(pg)
    ends = _ends(pg)
    assert _ended(_copy_and_die, *ends, when) == 9
    assert pg.psql(_COUNTED) == ("20000|20000" if again == 0 else "0|0")
    report = spark_channel.transfer(None, *ends)
    assert report.rows == again
    assert ("in one transaction" in report.path) is bool(again)
    assert pg.psql(_COUNTED) == "20000|20000"
    assert pg.staged() == []


def test_a_table_that_is_altered_before_its_first_row_is_refused(pg: Pg) -> None:
    """The server would round values to a type that the plan did not see."""
    pg.psql("CREATE TABLE t (id bigint, n numeric(20, 6))")
    kind = pa.decimal128(20, 6)
    rows = pa.record_batch(
        {"id": pa.array([1], pa.int64()), "n": pa.array([Decimal("1.26")], kind)}
    )
    writer = pg.writer("t")
    context = replace(pg.context(), alone=True, one_pass=True)
    plan = writer.prepare(context, rows.schema)
    assert plan.one_pass
    task = writer.open(plan, 0, 0)
    pg.psql("ALTER TABLE t ALTER n TYPE numeric(20, 1)")
    task.write(rows)
    with pytest.raises(TargetError, match="was altered while its rows were written"):
        task.close()
    task.rollback()
    writer.abort(plan, None)
    assert pg.psql("SELECT count(*) FROM t") == "0"


def test_the_locks_of_a_silent_client_end(pg: Pg, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its host may be lost, and the server waits for it for hours."""
    monkeypatch.setattr("spark_channel.connectors.postgresql.write.loader.LOCKED_SECONDS", 1)
    _table(pg, ", PRIMARY KEY (id)")
    _, plan = _plan(pg)
    task = pg.writer("t").open(plan, 0, 0)
    task.write(_rows(0, 10))
    task.flush()
    pg.psql("SET lock_timeout = '20s'; INSERT INTO t VALUES (5, 'other')")
    with pytest.raises(TargetError, match="idle_in_transaction_session_timeout"):
        task.close()
    task.rollback()
    assert pg.psql(_COUNTED) == "1|1"
