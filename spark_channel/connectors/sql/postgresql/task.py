"""One attempt of one task: rows go by COPY into the job's staging, or straight into the table."""

import logging
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from spark_channel.connectors.native import native_data
from spark_channel.connectors.sql.change_feed import DELETES, OPERATION, TRUNCATES, WRITES
from spark_channel.connectors.sql.encode import BadValueError
from spark_channel.connectors.sql.postgresql.copy_rows import CopyRows, copy_rows
from spark_channel.connectors.sql.postgresql.encode import encode
from spark_channel.connectors.sql.postgresql.failures import is_gone, is_refused_data, sqlstate_of
from spark_channel.connectors.sql.postgresql.merge import PostgresMerge, keys_sql
from spark_channel.connectors.sql.postgresql.options import PostgresWriteOptions
from spark_channel.connectors.sql.postgresql.outcome import commit, transaction_number
from spark_channel.connectors.sql.postgresql.publish import CHUNKS
from spark_channel.connectors.sql.postgresql.session import literal
from spark_channel.connectors.sql.postgresql.staging import stage_columns, table_sql
from spark_channel.connectors.sql.postgresql.target import DIALECT, PostgresPlan, written_columns
from spark_channel.connectors.sql.postgresql.write_session import PgWriteSession, reach
from spark_channel.connectors.sql.task import SqlTask
from spark_channel.connectors.sql.writer import SqlWriter
from spark_channel.errors import BatchRefusedError, SupersededError, TargetError
from spark_channel.retry import Retry

__all__ = ["DirectTaskWriter", "StagedTaskWriter"]

_log = logging.getLogger(__name__)

_DIRECT_SECONDS = 0.1
_CHUNK_SECONDS = 1.0
"""Each chunk is a transaction, whose number the receipt holds: fewer of them."""
_ROWS = "spark_channel_rows"
_KEYS = "spark_channel_keys"
_OPERATIONS = (*DELETES, *WRITES, *TRUNCATES)
_UNIQUE = "23505"
_NO_TABLE = "42P01"


class _PostgresTask(SqlTask):
    """Shared by both commit modes: batches are encoded and sent."""

    _options: PostgresWriteOptions
    _plan: PostgresPlan

    def store(self, rows: pa.Table, before: int) -> None:
        for start in range(0, rows.num_rows, self._options.batch_size):
            self._hand_on(self._rows_of(rows.slice(start, self._options.batch_size)))

    def _hand_on(self, rows: CopyRows) -> None:
        raise NotImplementedError

    def _rows_of(self, rows: pa.RecordBatch | pa.Table) -> CopyRows:
        if not self._plan.native:
            return copy_rows(self._encode(rows))
        return CopyRows(
            self._plan.target.names, rows.num_rows, [native_data(each) for each in rows.to_batches()]
        )

    def _encode(self, rows: pa.RecordBatch | pa.Table) -> pa.RecordBatch:
        try:
            encoded = encode(
                rows, written_columns(self._plan.target), exact=self._options.convert == "strict"
            )
            if self._options.write_mode == "apply":
                encoded = encoded.append_column(OPERATION, self._operations(rows))
        except BadValueError as error:
            raise self._refused(error) from None
        return encoded

    def _operations(self, rows: pa.RecordBatch | pa.Table) -> pa.Array:
        said: Any = pc.utf8_lower(pc.cast(rows.column(OPERATION), pa.string()))
        if isinstance(said, pa.ChunkedArray):
            said = said.combine_chunks()
        known = pc.is_in(said, pa.array(_OPERATIONS))
        if not pc.all(known).as_py():
            strange = said.filter(pc.invert(known))[0].as_py()
            raise BatchRefusedError(
                f"column {OPERATION!r} holds {strange!r}; it takes one of: {', '.join(_OPERATIONS)}"
            )
        return said

    def _reach(self) -> PgWriteSession:
        return reach(self._options, failure=TargetError, purpose=f"write {self._plan.job}")


class StagedTaskWriter(_PostgresTask):
    """`commit=job`: rows go into the staging table in chunks, a transaction each.

    A chunk is kept until it is committed. When the connection is lost, a new one asks what became of it, and it is
    staged again or not.
    """

    seconds = _CHUNK_SECONDS

    def __init__(self, writer: SqlWriter, plan: PostgresPlan, task: int, attempt: int) -> None:
        super().__init__(writer, plan, task, attempt)
        self._chunks: dict[str, int] = {}
        self._lost = False
        self._stage = table_sql(plan.place.staging, plan.staging)
        self._session = self._reach()
        self._hold_there()
        self._show_life()

    def finish(self) -> dict[str, Any]:
        return {CHUNKS: dict(self._chunks)}

    def _hand_on(self, rows: CopyRows) -> None:
        try:
            Retry(self._options.retry_timeout, what=f"staging task {self._task}").call(
                lambda: self._stage_again(rows),
                lambda error: isinstance(error, TargetError) and is_gone(error),
            )
        except TargetError as error:
            if is_refused_data(error):
                raise TargetError(f"task {self._task}: a row is refused. {error}") from error
            if sqlstate_of(error) == _NO_TABLE:
                self._hold_there()
            raise

    def _stage_again(self, rows: CopyRows) -> None:
        if self._lost or self._session is None or not self._session.is_open:
            self._reconnect()
            _log.warning("task %d lost its connection to the target, and continues with another", self._task)
        self._lost = True
        self._stage_chunk(rows)
        self._lost = False

    def _stage_chunk(self, rows: CopyRows) -> None:
        session = self._session
        session.rows(DIALECT.begin)
        try:
            session.copy(self._plan.place.staging, self._plan.staging, rows, spread=self.spread)
            number = transaction_number(session)
        except BaseException:
            session.roll_back()
            raise
        commit(session, self._options, number, TargetError)
        self._chunks[str(number)] = rows.count

    def _reconnect(self) -> None:
        if self._session is not None:
            self._session.close()
        self._session = self._reach()
        self._hold_there()

    def _hold_there(self) -> None:
        """The claim is this run's, and the staging is there, with all that this attempt has put in."""
        try:
            claims = self._claims(self._session)
            claims.show_life(self._plan.claim, claims.peek(self._plan.claim))
            if (
                self._session.value(f"SELECT to_regclass({literal(self._stage).sql('postgres')})::text")
                is None
            ):
                raise TargetError(
                    f"the staging table {self._stage} does not exist any more: the job was aborted or has ended"
                )
            if self._chunks:
                listed = ", ".join(f"'{int(number) % (1 << 32)}'" for number in self._chunks)
                query = f"SELECT count(*) FROM {self._stage} WHERE xmin::text IN ({listed})"  # noqa: S608
                if self._session.value(query) != sum(self._chunks.values()):
                    raise TargetError(
                        f"task {self._task}: the server crashed, and with it went the rows staged in {self._stage}, "
                        "an unlogged table: the task has to begin again"
                    )
        except BaseException:
            self._session.close()
            raise


class DirectTaskWriter(_PostgresTask):
    """`commit=task`: rows and the task's row beside the claim in one transaction.

    A task that has committed is not written again: its rows are taken and dropped. When dirty rows are allowed, each
    batch is judged at once, under a savepoint.
    """

    seconds = _DIRECT_SECONDS

    def __init__(self, writer: SqlWriter, plan: PostgresPlan, task: int, attempt: int) -> None:
        super().__init__(writer, plan, task, attempt)
        cast = any(column.cast for column in written_columns(plan.target))
        self._through_rows = self._options.write_mode != "insert" or cast
        self._session = self._reach()
        try:
            self._begin()
        except BaseException:
            self._session.close()
            raise

    def judge(self, batch: pa.RecordBatch) -> None:
        self._hand_on(self._rows_of(batch))

    def finish(self) -> dict[str, Any]:
        session = self._session
        try:
            if self._done is None and self._add_task(session):
                self._commit(session)
        except TargetError as error:
            self._done_or_raise(session, error)
        return {}

    def _commit(self, session: PgWriteSession) -> None:
        try:
            session.rows("COMMIT")
        except TargetError as error:
            if not is_gone(error):
                raise
            self._settle(error)

    def _begin(self) -> None:
        session = self._session
        claims = self._claims(session)
        self._done = claims.task(self._plan.claim, self._task)
        if self._done is not None:
            return
        claims.peek(self._plan.claim)
        session.rows(DIALECT.begin)
        if self._through_rows:
            columns = ", ".join(stage_columns(self._plan.target))
            session.rows(f"CREATE TEMPORARY TABLE {_ROWS} ({columns}) ON COMMIT DROP")
        if self._options.write_mode in ("upsert", "skipExisting"):
            keys = keys_sql(self._plan.target)
            session.rows(
                f"CREATE TEMPORARY TABLE {_KEYS} ON COMMIT DROP AS SELECT {keys} FROM {_ROWS}"  # noqa: S608
            )
            session.rows(f"ALTER TABLE pg_temp.{_KEYS} ADD PRIMARY KEY ({keys})")

    def _hand_on(self, rows: CopyRows) -> None:
        session = self._session
        if self._done is not None:
            return
        try:
            if self.tolerant:
                session.rows("SAVEPOINT batch")
            self._insert(session, rows)
            if self.tolerant:
                session.rows("SET CONSTRAINTS ALL IMMEDIATE")
                session.rows("RELEASE SAVEPOINT batch")
        except TargetError as error:
            if self.tolerant and (isinstance(error, BatchRefusedError) or is_refused_data(error)):
                session.rows("ROLLBACK TO SAVEPOINT batch")
                raise BatchRefusedError(str(error)) from error
            self._done_or_raise(session, error)

    def _insert(self, session: PgWriteSession, rows: CopyRows) -> None:
        target = self._plan.target
        if not self._through_rows:
            session.copy(target.schema, target.name, rows, spread=self.spread)
            return
        session.copy("pg_temp", _ROWS, rows)
        PostgresMerge(session, target, f"pg_temp.{_ROWS}", self._options.write_mode).bring()
        if self._options.write_mode in ("upsert", "skipExisting"):
            keys = keys_sql(target)
            session.rows(f"INSERT INTO pg_temp.{_KEYS} SELECT {keys} FROM pg_temp.{_ROWS}")  # noqa: S608
        session.rows(f"TRUNCATE pg_temp.{_ROWS}")

    def _done_or_raise(self, session: PgWriteSession, error: TargetError) -> None:
        """Another attempt has committed these rows, so that their keys are there: this one is done with them."""
        session.roll_back()
        if sqlstate_of(error) == _UNIQUE:
            claims = self._claims(session)
            self._done = claims.task(self._plan.claim, self._task)
            if self._done is not None:
                return
            claims.peek(self._plan.claim)
        if is_gone(error):
            self._hold_claim()
            raise TargetError(
                f"task {self._task}: the connection was lost, and nothing of this attempt was stored. {error}"
            ) from error
        if is_refused_data(error):
            raise TargetError(f"task {self._task}: a row is refused. {error}") from error
        raise error

    def _hold_claim(self) -> None:
        """A run that takes over ends the sessions of the one before: say that, and not how."""
        try:
            self._writer.run(
                TargetError,
                f"look after {self._plan.job}",
                lambda session: self._claims(session).peek(self._plan.claim),
            )
        except SupersededError:
            raise
        except TargetError as error:
            _log.debug("task %d could not look at its claim: %s", self._task, error)
