"""The base of every SQL writer, by itself, on a database whose tables are made in transactions."""

import threading
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import psycopg
import pyarrow as pa
import pytest

from spark_channel.connectors import TaskWriter
from spark_channel.connectors.base.contract import bisect_refused
from spark_channel.connectors.postgresql.options import PostgresWriteOptions
from spark_channel.connectors.postgresql.write.dialect import DIALECT
from spark_channel.connectors.sql import (
    ClaimDialect,
    Column,
    SqlWriter,
    Table,
    TableDatabase,
    Verdict,
    WriteDialect,
    WriteSession,
    WriteTarget,
)
from spark_channel.connectors.sql.statements import marked
from spark_channel.connectors.sql.write.plan import SqlPlan
from spark_channel.connectors.sql.write.postgresql_claims import claim_dialect
from spark_channel.connectors.sql.write.table_loading import StageTable
from spark_channel.errors import ChannelError, TargetError
from spark_channel.options import CommitMode
from spark_channel.testing import writer_conformance
from tests.connectors.postgresql.pg import Pg


class PlainDialect(WriteDialect):
    product, sql = "PostgreSQL", "postgres"
    new_types: ClassVar = {pa.int64(): "bigint", pa.string(): "text"}

    def find_table(self, session: Any, text: str) -> Table | None:
        found = DIALECT.find_table(session, text)
        if found is None:
            return None
        columns = tuple(Column(each.name, each.declared, each.not_null) for each in found.columns)
        return Table(found.schema, found.name, columns, unique=found.unique, primary=found.primary)

    def table_names(self, session: Any) -> list[str]:
        return list(DIALECT.table_names(session))

    def describe(self, session: Any, query: str) -> tuple[Column, ...]:
        raise NotImplementedError

    def arrow_type(self, column: Column) -> pa.DataType:
        return {"bigint": pa.int64(), "text": pa.string()}[column.declared]


class Session(WriteSession):
    failures = (psycopg.Error,)

    def __init__(self, options: PostgresWriteOptions) -> None:
        self.place = options.address.shown
        self._connection = psycopg.connect(options.conninfo(), autocommit=True)
        self.execute(f'SET search_path = "{options.current_schema}"')

    def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        sql = marked(sql, lambda _number: "%s") if parameters else sql
        with self.explained(), self._connection.cursor() as cursor:
            cursor.execute(sql, parameters or None)
            return cursor.fetchall() if cursor.description else []

    def load(self, table: str, batch: pa.RecordBatch) -> int:
        names = batch.schema.names
        rows = list(zip(*(each.to_pylist() for each in batch.columns), strict=True))
        marks = ", ".join(["%s"] * len(names))
        with self.explained(), self._connection.cursor() as cursor:
            cursor.executemany(f"INSERT INTO {table} ({', '.join(names)}) VALUES ({marks})", rows)
            return int(cursor.rowcount)

    def begin(self) -> None:
        self.execute("BEGIN")

    def commit(self) -> None:
        self.execute("COMMIT")

    def undo(self) -> None:
        try:
            self.execute("ROLLBACK")
        except TargetError:
            pass  # the connection is lost

    def explain(self, error: BaseException) -> ChannelError:
        return TargetError(str(error))


class PlainDatabase(TableDatabase[Session]):
    """What the documentation asks for, and nothing faster."""

    Options = PostgresWriteOptions
    options: PostgresWriteOptions
    dialect = PlainDialect()
    shown = "PostgreSQL"

    def connect(self, failure: type[TargetError], purpose: str, *, patient: bool) -> Session:
        return Session(self.options)

    def new_place(self, session: Session) -> tuple[str, str]:
        return session.value("SELECT current_schema()"), self.options.dbtable

    def staging_names(self, session: Session, place: WriteTarget, beginning: str) -> list[str]:
        query = "SELECT tablename FROM pg_tables WHERE schemaname = ? AND starts_with(tablename, ?)"
        return [str(name) for (name,) in session.rows(query, (place.staging, beginning))]

    def claim_dialect(self, session: Session, place: WriteTarget) -> ClaimDialect:
        return claim_dialect(session.rows, place.schema, ledger=place.ledger)

    def verdict(self, error: BaseException) -> Verdict:
        verdict, cause = Verdict.OTHER, error.__cause__
        if isinstance(cause, psycopg.OperationalError):
            verdict |= Verdict.LOST
        if isinstance(cause, psycopg.errors.IntegrityError):
            verdict |= Verdict.CONFLICT
        if isinstance(cause, psycopg.errors.IntegrityError | psycopg.errors.DataError):
            verdict |= Verdict.REFUSED_ROW
        return verdict


@pytest.fixture
def plain(pg: Pg) -> Callable[..., PlainDatabase]:
    return lambda **options: PlainDatabase(
        pg.writer("t", retryTimeout=5, **options).database.options
    )


@pytest.mark.parametrize(
    ("commit", "more"),
    [
        pytest.param("job", {}, marks=pytest.mark.soak),
        ("task", {"writeMode": "upsert", "keyColumns": "id"}),
    ],
)
def test_the_base_alone_keeps_the_contract(
    pg: Pg, plain: Callable[..., PlainDatabase], commit: CommitMode, more: dict[str, Any]
) -> None:
    pg.psql("CREATE TABLE t (id bigint PRIMARY KEY, name text)" if more else "SELECT 1")

    def read_back() -> pa.Table | None:
        return pg.read("t") if pg.psql("SELECT to_regclass('t') IS NOT NULL") == "t" else None

    writer_conformance(
        lambda: SqlWriter(plain(**more)), read_back=read_back, commits=[commit], leftovers=pg.staged
    )
    assert pg.server.connections() == 0


def test_a_refused_batch_leaves_no_savepoint(pg: Pg, plain: Callable[..., PlainDatabase]) -> None:
    pg.psql("CREATE TABLE t (id bigint PRIMARY KEY CHECK (id < 9))")
    writer = SqlWriter(plain(maxDirtyRows=9))
    rows = [pa.record_batch({"id": pa.array([number], pa.int64())}) for number in (1, 10, 11, 2)]
    plan = writer.prepare(pg.context(commit="task"), rows[0].schema)
    task: Any = writer.open(plan, 0, 0)
    task.tolerant = True
    task.write(rows[0])
    for batch in rows[1:3]:
        with pytest.raises(TargetError, match="violates check constraint"):
            task.write(batch)
    task.write(rows[3])
    with pytest.raises(TargetError, match="savepoint"):
        task._connection.open.execute("RELEASE SAVEPOINT spark_channel_batch")
    task._connection.open.undo()
    task.rollback()
    writer.abort(plan, None)


def test_a_slower_attempt_adds_no_rows_to_those_that_are_published(
    pg: Pg, plain: Callable[..., PlainDatabase], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the count of the staged rows and the statement that takes them, in a database that sees them then."""
    batch = pa.record_batch({"id": pa.array([1, 2], pa.int64())})
    slower: list[TaskWriter] = []
    errors: list[TargetError] = []

    def add() -> None:
        try:
            slower[0].write(batch)
            slower[0].flush()
        except TargetError as error:
            errors.append(error)

    thread = threading.Thread(target=add, daemon=True)

    bring = StageTable.bring

    def met(self: StageTable[Session], session: Session, plan: SqlPlan, count: int) -> None:
        thread.start()
        thread.join(0.3)
        bring(self, session, plan, count)

    monkeypatch.setattr(StageTable, "bring", met)
    writer = SqlWriter(plain())
    plan = writer.prepare(pg.context(commit="job"), batch.schema)
    task = writer.open(plan, 0, 0)
    task.write(batch)
    receipt = task.close()
    slower.append(writer.open(plan, 0, 1))
    writer.commit(plan, [receipt])
    thread.join(10)
    slower[0].rollback()
    assert pg.psql("SELECT count(*) FROM t") == "2"
    assert len(errors) == 1
    assert pg.staged() == []


def test_a_batch_that_the_database_skips_rows_of_is_taken_back_whole(
    pg: Pg, plain: Callable[..., PlainDatabase]
) -> None:
    """Also by a writer that knows the refusals of its database alone."""

    class Own(PlainDatabase):
        def verdict(self, error: BaseException) -> Verdict:
            is_of_row = isinstance(error.__cause__, psycopg.errors.DataError)
            return Verdict.REFUSED_ROW if is_of_row else Verdict.OTHER

    pg.psql(
        "CREATE TABLE t (id bigint); CREATE FUNCTION skip() RETURNS trigger LANGUAGE plpgsql AS "
        "$$BEGIN IF new.id = 2 THEN RETURN NULL; END IF; RETURN new; END$$; "
        "CREATE TRIGGER skip BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION skip()"
    )
    writer = SqlWriter(Own(plain(maxDirtyRows=9).options))
    batch = pa.record_batch({"id": pa.array([1, 2, 3], pa.int64())})
    plan = writer.prepare(pg.context(commit="task"), batch.schema)
    task = writer.open(plan, 0, 0)
    task.tolerant = True
    refused: list[int] = []
    bisect_refused(batch, task.write, lambda row, _why: refused.extend(row["id"].to_pylist()))
    writer.commit(plan, [task.close()])
    assert pg.psql("SELECT id FROM t ORDER BY id") == "1\n3"
    assert refused == [2]


@pytest.mark.parametrize("when", ["before COMMIT", "after COMMIT"])
def test_a_chunk_whose_connection_is_lost_is_staged_once(
    pg: Pg, plain: Callable[..., PlainDatabase], when: str
) -> None:
    """The chunk that was not committed is staged again; of one that was, the rows are counted."""
    losses: list[str] = []

    class Loses(Session):
        def commit(self) -> None:
            is_first = self.is_staging and not losses
            if is_first:
                losses.append(when)
            if is_first and when == "before COMMIT":
                pg.kill_sessions("")
            super().commit()
            if is_first:
                with self.explained():
                    raise psycopg.OperationalError("the answer did not come")

        is_staging = False

        def load(self, table: str, batch: pa.RecordBatch) -> int:
            self.is_staging = True
            return super().load(table, batch)

    class Lost(PlainDatabase):
        def connect(self, failure: type[TargetError], purpose: str, *, patient: bool) -> Session:
            return Loses(self.options)

    writer = SqlWriter(Lost(plain().options))
    batch = pa.record_batch({"id": pa.array([1, 2], pa.int64())})
    plan = writer.prepare(pg.context(commit="job"), batch.schema)
    task = writer.open(plan, 0, 0)
    for _ in range(2):
        task.write(batch)
        task.flush()
    writer.commit(plan, [task.close()])
    assert losses == [when]
    assert pg.psql("SELECT count(*), sum(id) FROM t") == "4|6"
    assert pg.staged() == []
