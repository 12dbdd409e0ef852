"""Few rows that one task brings: they are staged by the transaction that publishes them, and nothing else changes."""

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pytest
from adbc_driver_manager.dbapi import Cursor

import spark_channel
from spark_channel.connectors import WriteContext, WritePlan, Writer, load_writer
from spark_channel.connectors.base.contract import Receipt
from spark_channel.connectors.base.session_pool import keeping_sessions
from spark_channel.connectors.postgresql.catalog import find_table
from spark_channel.connectors.postgresql.options import PostgresReadOptions
from spark_channel.connectors.postgresql.read.copy_session import PgCopySession
from spark_channel.connectors.postgresql.session import (
    PgPlanSession,
    PgReadSession,
    PgSession,
    PgWriteSession,
)
from spark_channel.connectors.postgresql.write import loader
from spark_channel.connectors.postgresql.write.staged_rows import CHUNKS, HELD
from spark_channel.connectors.sql import SqlWriter
from spark_channel.errors import CommitError, SourceError, SupersededError
from tests.servers.postgres import PostgresServer

_TABLES = 12
_STAGED = "SELECT count(*) FROM pg_tables WHERE tablename LIKE 'spark\\_channel\\_st%' AND schemaname = 'few_dw'"


@pytest.fixture
def few(postgres_server: PostgresServer) -> Iterator[PostgresServer]:
    """A source schema of small tables, and a target schema."""
    gone = "DROP SCHEMA IF EXISTS few CASCADE; DROP SCHEMA IF EXISTS few_dw CASCADE;"
    tables = "".join(
        f"CREATE TABLE few.t{n} (id int PRIMARY KEY, note text);"
        f"INSERT INTO few.t{n} SELECT n, 'row ' || n FROM generate_series(1, 20) n;"
        for n in range(_TABLES)
    )
    postgres_server.psql(f"{gone} CREATE SCHEMA few; CREATE SCHEMA few_dw; {tables} ANALYZE")
    yield postgres_server
    postgres_server.psql(gone)


def _file(server: PostgresServer) -> dict[str, Any]:
    return {
        "source": server.login,
        "target": {**server.login, "currentSchema": "few_dw"},
        "defaults": {"object": "{table}"},
        "streams": {"few.*": {}},
    }


def _writer(server: PostgresServer) -> Writer:
    return load_writer(
        {"writer": "postgresql", **server.login, "currentSchema": "few_dw", "dbtable": "one"}
    )[0]


def _staged(
    writer: Writer, job: str, position: int, numbers: list[int]
) -> tuple[WritePlan, Receipt]:
    rows = pa.record_batch({"id": pa.array(numbers, pa.int32())})
    context = WriteContext(job, "job", overwrite=True, stream=("one", position), alone=True)
    plan = writer.prepare(context, rows.schema)
    task = writer.open(plan, 0, 0)
    task.write(rows)
    return plan, task.close()


def test_a_run_that_was_overtaken_adds_nothing_of_the_rows_in_its_receipt(
    few: PostgresServer,
) -> None:
    writer = _writer(few)
    first, old = _staged(writer, "first", 1, [1, 2])
    later, new = _staged(writer, "later", 2, [3])
    assert HELD in old.details
    with pytest.raises(SupersededError):
        writer.commit(first, [old])
    writer.commit(later, [new])
    writer.commit(first, [old])
    writer.commit(later, [new])  # as after a COMMIT without an answer
    assert few.psql("SELECT id FROM few_dw.one") == "3"
    assert few.psql(_STAGED) == "0"


def test_a_row_that_the_server_refuses_is_named_as_if_the_task_had_staged_it(
    few: PostgresServer,
) -> None:
    few.psql("CREATE TYPE few.mood AS ENUM ('ok'); CREATE TABLE few_dw.one (mood few.mood)")
    rows = pa.record_batch({"mood": pa.array(["ok", "odd"])})
    writer = _writer(few)
    plan = writer.prepare(WriteContext("job", "job", alone=True), rows.schema)
    task = writer.open(plan, 0, 0)
    task.write(rows)
    receipt = task.close()
    with pytest.raises(
        CommitError, match=r'a row is refused.*"odd"\. CONTEXT.*line 2, column mood'
    ):
        writer.commit(plan, [receipt])
    writer.abort(plan, [receipt])
    assert few.psql(f"SELECT count(*) FROM few_dw.one UNION ALL {_STAGED}") == "0\n0"


def test_more_rows_than_a_receipt_takes_are_staged_by_the_task(
    few: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader, "_RECEIPT_BYTES", 100)
    writer = _writer(few)
    plan, receipt = _staged(writer, "long", 1, list(range(1_000)))
    assert sum(receipt.details[CHUNKS].values()) == 1_000
    writer.commit(plan, [receipt])
    assert few.psql("SELECT count(*), sum(id) FROM few_dw.one") == "1000|499500"


@pytest.mark.parametrize(("count", "is_ended"), [(100, False), (10_000, True)])
def test_a_publish_that_stands_still_while_it_sends_many_rows_is_ended_by_the_server(
    few: PostgresServer, monkeypatch: pytest.MonkeyPatch, count: int, is_ended: bool
) -> None:
    """It has the claim's lock, for which other runs wait."""
    writer = _writer(few)
    plan, receipt = _staged(writer, "job", 1, list(range(count)))
    assert HELD in receipt.details
    sent: list[Any] = []
    _counted(monkeypatch, PgWriteSession, "affected", sent)
    writer.commit(plan, [receipt])
    assert any("SET LOCAL statement_timeout = 30000" in sql for (sql,) in sent) == is_ended
    assert few.psql("SELECT count(*) FROM few_dw.one") == str(count)


@pytest.mark.parametrize("kind", [pa.bool_(), pa.dictionary(pa.int8(), pa.string())])
def test_a_receipt_takes_few_bytes_of_copy_however_small_the_rows_are_here(
    few: PostgresServer, monkeypatch: pytest.MonkeyPatch, kind: pa.DataType
) -> None:
    monkeypatch.setattr(loader, "_ENCODED_BYTES", 20_000)
    value: object = True if pa.types.is_boolean(kind) else "x" * 100
    rows = pa.record_batch({"v": pa.array([value] * 5_000, kind)})
    writer = _writer(few)
    plan = writer.prepare(WriteContext("job", "job", alone=True), rows.schema)
    task = writer.open(plan, 0, 0)
    task.write(rows)
    receipt = task.close()
    assert sum(receipt.details[CHUNKS].values()) == 5_000
    writer.commit(plan, [receipt])
    assert few.psql("SELECT count(v) FROM few_dw.one") == "5000"


def test_rows_that_an_attempt_without_a_receipt_staged_are_not_published(
    few: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = _writer(few)
    rows = pa.record_batch({"id": pa.array(range(1_000), pa.int32())})
    context = WriteContext("twice", "job", overwrite=True, stream=("one", 1), alone=True)
    plan = writer.prepare(context, rows.schema)
    monkeypatch.setattr(loader, "_RECEIPT_BYTES", 100)
    lost = writer.open(plan, 0, 0)
    lost.write(rows)
    lost.close()
    monkeypatch.undo()
    again = writer.open(plan, 0, 1)
    again.write(rows.slice(0, 7))
    writer.commit(plan, [again.close()])
    assert few.psql("SELECT count(*) FROM few_dw.one") == "7"


def test_small_tables_take_few_statements_and_one_that_fails_is_parked_alone(
    few: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    few.psql(
        "CREATE TABLE few_dw.t3 (id int CHECK (id < 10), note text); INSERT INTO few_dw.t3 VALUES (1, 'old')"
    )
    sent: list[Any] = []
    for session, names in {
        PgPlanSession: ["_run", "_script"],
        PgReadSession: ["_run", "_script"],
        PgWriteSession: ["affected", "copy"],
        PgCopySession: ["_script", "copy"],
    }.items():
        for name in names:
            _counted(monkeypatch, session, name, sent)
    file = _file(few)
    file["streams"] = {"few.*": {"target_options": {"truncate": "true"}}}
    report = spark_channel.replicate(None, file)
    assert [each.stream for each in report.parked] == ["few.t3"]
    assert report.rows == (_TABLES - 1) * 20
    assert few.psql("SELECT * FROM few_dw.t3") == "1|old"
    assert few.psql(_STAGED) == "0"
    # About 40, and those of new sessions.
    assert len(sent) / _TABLES < 55


def test_a_transaction_of_a_read_begins_with_its_settings_in_one_exchange(
    few: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = PostgresReadOptions.parse({**few.login, "dbtable": "few.t1"})[0]
    with PgReadSession(options, failure=SourceError, purpose="plan") as session:
        sent: list[Any] = []
        for name in ("execute", "executescript"):
            _counted(monkeypatch, Cursor, name, sent)
        assert session.value("SHOW application_name") == "spark-channel plan"
    (begin,), (asked,), (end,) = sent
    assert begin.startswith("BEGIN\n;\nSELECT SET_CONFIG(")
    assert (asked, end) == ("SHOW application_name", "COMMIT")


def test_a_claim_is_written_in_one_exchange_with_the_statement_behind_it(
    few: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[Any] = []
    _counted(monkeypatch, PgWriteSession, "affected", sent)
    writer = _writer(few)
    plan, receipt = _staged(writer, "job", 1, [1])
    writer.commit(plan, [receipt])
    texts = [sql for (sql,) in sent]
    (taken,) = [each for each in texts if each.startswith("INSERT") and "'stream'" in each]
    (done,) = [each for each in texts if each.startswith("UPDATE") and "batch = 1" in each]
    assert "; SELECT claim, " in taken
    assert "; DELETE FROM " in done


def _counted(monkeypatch: pytest.MonkeyPatch, session: type, name: str, sent: list[Any]) -> None:
    original = getattr(session, name)

    def counted(self: Any, *args: Any, **more: Any) -> Any:
        sent.append(args)
        return original(self, *args, **more)

    monkeypatch.setattr(session, name, counted)


def test_a_run_after_one_that_was_killed_before_it_published_copies_each_row_once(
    few: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[str] = []
    alone = {**_file(few), "streams": {"few.*": {"target_options": {"batchSize": "1000"}}}}

    def killed(_: SqlWriter[Any], plan: WritePlan, receipts: Any) -> None:
        left.append(plan.job)
        raise RuntimeError("killed")

    with monkeypatch.context() as broken:
        broken.setattr(SqlWriter, "commit", killed)
        broken.setattr(SqlWriter, "abort", lambda *_: None)
        report = spark_channel.replicate(None, alone)
    assert len(report.parked) == len(left) == _TABLES
    assert few.psql(_STAGED) == str(_TABLES)
    report = spark_channel.replicate(None, alone)
    assert report.parked == []
    assert few.psql("SELECT count(*), sum(id) FROM few_dw.t7") == "20|210"
    names: Mapping[str, int] = {each.stream: each.rows for each in report.tables}
    assert set(names.values()) == {20}


@pytest.mark.parametrize("kind", [PgPlanSession, PgReadSession, PgWriteSession])
def test_a_lookup_whose_statement_a_function_has_dropped_is_prepared_again(
    few: PostgresServer, kind: type[PgSession]
) -> None:
    few.psql(
        "CREATE FUNCTION few.forget() RETURNS int LANGUAGE plpgsql AS "
        "$$ BEGIN EXECUTE 'DEALLOCATE ALL'; RETURN 1; END $$"
    )
    options = PostgresReadOptions.parse({**few.login, "dbtable": "few.t1"})[0]
    with (
        keeping_sessions(),
        kind.lent(options, failure=SourceError, purpose="test") as session,
    ):
        for name in ("few.t1", "few.t2", "few.t3"):
            found = find_table(session, name)
            assert found is not None
            assert found.label == name
            session.rows("SELECT few.forget()")
