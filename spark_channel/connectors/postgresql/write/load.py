"""COPY into staging or table; unanswered COMMIT settled."""

import secrets
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from spark_channel.connectors.base.contract import TaskWriter, native_data
from spark_channel.connectors.base.feed import (
    CLOSE_ALL,
    CLOSES,
    DELETES,
    OPENS,
    OPERATION,
    TRUNCATES,
    WRITES,
)
from spark_channel.connectors.postgresql.catalog import table_sql
from spark_channel.connectors.postgresql.copy_format import CopyRows, PacedCopy, copy_rows
from spark_channel.connectors.postgresql.dialect import DIALECT, PostgresPlan, written_columns
from spark_channel.connectors.postgresql.failures import is_gone, is_refused_data, sqlstate_of
from spark_channel.connectors.postgresql.options import PostgresOptions, PostgresWriteOptions
from spark_channel.connectors.postgresql.session import (
    PgSession,
    PgWriteSession,
    literal_sql,
)
from spark_channel.connectors.postgresql.types import encode
from spark_channel.connectors.postgresql.write.publish import (
    CHUNKS,
    HELD,
    PostgresMerge,
    bring_staged,
    create_stage,
    drop_stage,
    keys_sql,
    stage_columns,
)
from spark_channel.connectors.sql.pacing import adding_seconds
from spark_channel.connectors.sql.write.encode import BadValueError
from spark_channel.connectors.sql.write.postgresql_claims import END_WHEN_SILENT
from spark_channel.connectors.sql.write.task_writer import (
    LOCKED_SECONDS,
    DirectTaskWriter,
    OnePassTask,
    SqlTaskWriter,
    StagedTaskWriter,
)
from spark_channel.errors import BatchRefusedError, ChannelError, SupersededError, TargetError
from spark_channel.lazy import compute as pc
from spark_channel.plain_text import log_of
from spark_channel.retry import Retry

if TYPE_CHECKING:
    from spark_channel.connectors.postgresql.write.writer import PostgresWriter

__all__ = [
    "TASK_SECONDS",
    "LimitedTaskWriter",
    "OnePassWriter",
    "PostgresDirectWriter",
    "PostgresHeldWriter",
    "PostgresStagedWriter",
    "commit",
    "open_task",
    "transaction_number",
]


# COMMIT of a staged chunk, and the outcome of one without an answer: the server knows its
# transaction number.


class _StillRunningError(Exception):
    """The server has not noticed yet that its client is gone."""


def transaction_number(session: PgSession) -> int:
    """The number of the open transaction; asking gives it one."""
    return int(session.value("SELECT pg_current_xact_id()::text"))


def commit(
    session: PgSession, options: PostgresOptions, number: int, failure: type[ChannelError]
) -> None:
    """End the transaction `number` of `session`. When the answer does not come, ask another session for it.

    The server's own record of the transaction counts. `session` is closed when its answer did not come.

    Raises:
        failure: it was not committed, and nothing of it was stored.
    """
    try:
        session.rows("COMMIT")
    except failure as error:
        if not is_gone(error):
            raise
        session.close()
        if not _settled(options, number, failure):
            raise


def _settled(options: PostgresOptions, number: int, failure: type[ChannelError]) -> bool:
    def settled() -> bool:
        with reach(options, failure=failure, purpose="settle") as session:
            # After a crash, a number that was never written down lies ahead of those given since, until it is given
            # again: findings/postgresql-transaction-number-again.sh
            status = session.value(
                f"SELECT CASE WHEN '{int(number)}'::xid8 < pg_current_xact_id() "
                f"THEN pg_xact_status('{int(number)}'::xid8) ELSE 'aborted' END"
            )
            if status == "in progress":
                raise _StillRunningError(f"transaction {number} is still running")
            return bool(status == "committed")

    return Retry(
        max(options.retry_timeout, 1.0), longest=2.0, what="asking for a commit's outcome"
    ).call(settled, lambda error: isinstance(error, _StillRunningError))


def reach(options: PostgresOptions, *, failure: type[ChannelError], purpose: str) -> PgWriteSession:
    """A new session, tried for `retryTimeout` with growing pauses while the server cannot be reached."""
    return Retry(options.retry_timeout, what=f"reaching {options.address.shown}").call(
        lambda: PgWriteSession.lent(options, failure=failure, purpose=purpose),
        lambda error: isinstance(error, failure) and is_gone(error),
    )


# One attempt of one task: rows go by COPY into a staging table, or straight into the table.


_log = log_of(__name__)

_DIRECT_SECONDS = 0.1
_CHUNK_SECONDS = 1.0
"""Each chunk is a transaction, whose number the receipt holds: fewer of them."""
_ROWS = "spark_channel_rows"
_KEYS = "spark_channel_keys"
_OPERATIONS = (*DELETES, *WRITES, *TRUNCATES, *OPENS, *CLOSES, *CLOSE_ALL)
_NO_TABLE = "42P01"
_MOST_HELD = 64 << 20
_MOST_IN_RECEIPT = 256 << 10
_MOST_ENCODED = 1 << 20
"""The driver has them in memory, and sends them by one statement. COPY writes a bit as 5 bytes, and repeats a value of
a dictionary.
"""
_MOVE_SECONDS = 2.0
_LEAST_PIECE, _LEAST_PIECES = 50, 16
"""In how many pieces at least, if they are not smaller: between two the transaction is idle, which servers may end."""
TASK_SECONDS = 2.5
"""How long a task should last under a limit: its rows are held, and added at its end."""


class _PostgresTaskWriter(SqlTaskWriter[PgWriteSession]):
    """Shared by both commit modes: rows are encoded and sent by COPY."""

    _writer: "PostgresWriter"
    _options: PostgresWriteOptions
    _plan: PostgresPlan

    def _chunks(self, rows: pa.Table) -> Iterator[pa.Table]:
        for start in range(0, rows.num_rows, self._options.batch_size):
            yield rows.slice(start, self._options.batch_size)

    def _paced(self) -> PacedCopy:
        session = self._open
        if session.pace is None:
            session.pace = PacedCopy(session, self._writer.row_cost, self._clock)
        return session.pace

    def _copy(
        self, session: PgWriteSession, schema: str, table: str, rows: pa.RecordBatch | pa.Table
    ) -> None:
        """At once; where there is time, spread over it."""
        if self.spread:
            paced = self._paced()
            paced.begin(rows.num_rows, self.spread)
            paced.copy(session, schema, table, rows, self._rows_of)
        else:
            session.copy(schema, table, self._rows_of(rows))

    def _rows_of(self, rows: pa.RecordBatch | pa.Table) -> CopyRows:
        if not self._plan.native:
            return copy_rows(self._encode(rows))
        return CopyRows(
            self._plan.target.names,
            rows.num_rows,
            [native_data(each) for each in rows.to_batches()],
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

    def _new_session(self) -> PgWriteSession:
        session = self._writer.kept.take() or reach(
            self._options, failure=TargetError, purpose=f"write {self._plan.job}"
        )
        session.counts_in(self._plan)
        return session

    def _end(self) -> None:
        session, self._session = self._session, None
        super()._end()
        if session is not None:
            self._writer.kept.give(session)

    def _done_or_raise(self, session: PgWriteSession, error: TargetError) -> None:
        try:
            super()._done_or_raise(session, error)
        except TargetError as failed:
            if is_gone(failed):
                self._check_claim()
                raise TargetError(
                    f"task {self._task}: the connection was lost, and nothing of this attempt was stored. {failed}"
                ) from failed
            if is_refused_data(failed):
                raise TargetError(f"task {self._task}: a row is refused. {failed}") from failed
            raise

    def _check_claim(self) -> None:
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


class PostgresStagedWriter(_PostgresTaskWriter, StagedTaskWriter[PgWriteSession]):
    """`commit=job`: the outcome of a COMMIT without an answer is asked for by the number of its transaction."""

    seconds = _CHUNK_SECONDS

    def __init__(
        self, writer: "PostgresWriter", plan: PostgresPlan, task: int, attempt: int
    ) -> None:
        self._chunks_staged: dict[str, int] = {}
        super().__init__(writer, plan, task, attempt)

    def _prepare(self) -> None:
        self._staging = self._name_of_staging()
        self._stage_sql = table_sql(self._plan.place.staging, self._staging)
        self._session = self._new_session()
        self._make_ready()

    def _name_of_staging(self) -> str:
        return self._plan.staging

    def _make_ready(self) -> None:
        self._check_there()

    def finish(self) -> dict[str, Any]:
        return {CHUNKS: dict(self._chunks_staged)}

    def _lasting(self, work: Callable[[bool], object]) -> None:
        try:
            super()._lasting(work)
        except TargetError as error:
            if is_refused_data(error):
                raise TargetError(f"task {self._task}: a row is refused. {error}") from error
            if sqlstate_of(error) == _NO_TABLE:
                self._check_there()
            raise

    def _connect(self) -> None:
        super()._connect()
        self._check_there()
        _log.warning(
            "task %d lost its connection to the target, and continues with another", self._task
        )

    def _stage(self, rows: pa.RecordBatch | pa.Table, before: int) -> None:
        session = self._open
        session.rows(DIALECT.begin)
        try:
            self._copy(session, self._plan.place.staging, self._staging, rows)
            number = transaction_number(session)
        except BaseException:
            session.undo()
            raise
        commit(session, self._options, number, TargetError)
        self._chunks_staged[str(number)] = rows.num_rows
        self._lost = not session.is_open

    def _is_staged(self, before: int, after: int) -> bool:
        return False  # `commit` has asked

    def _forget(self) -> None:
        pass  # the publish removes rows that no receipt names

    def _check_there(self) -> None:
        """The claim is this run's, and the staging is there, with all that this attempt has put in."""
        with self._open.closed_on_failure():
            claims = self._claims(self._open)
            claims.show_life(self._plan.claim, claims.peek(self._plan.claim))
            if (
                self._open.value(f"SELECT to_regclass({literal_sql(self._stage_sql)})::text")
                is None
            ):
                raise TargetError(
                    f"the staging table {self._stage_sql} no longer exists: the job was aborted or has ended"
                )
            if self._chunks_staged:
                listed = ", ".join(f"'{int(number) % (1 << 32)}'" for number in self._chunks_staged)
                query = f"SELECT count(*) FROM {self._stage_sql} WHERE xmin::text IN ({listed})"  # noqa: S608 - a quoted name, and numbers
                if self._open.value(query) != sum(self._chunks_staged.values()):
                    raise TargetError(
                        f"task {self._task}: the server crashed, and with it went the rows staged in "
                        f"{self._stage_sql}, an unlogged table: the task has to begin again"
                    )


class PostgresHeldWriter(PostgresStagedWriter):
    """`commit=job`, by one task: a few rows travel in its receipt, and the transaction that publishes stages them.

    More rows than these are staged by the task, as those of several tasks are.
    """

    def __init__(
        self, writer: "PostgresWriter", plan: PostgresPlan, task: int, attempt: int
    ) -> None:
        self._held: list[pa.Table] | None = []
        self._held_bytes = 0
        self._encoded: list[CopyRows] = []
        super().__init__(writer, plan, task, attempt)

    def _prepare(self) -> None:
        self._staging = self._name_of_staging()
        self._stage_sql = table_sql(self._plan.place.staging, self._staging)

    def store(self, rows: pa.Table, before: int) -> None:
        if self._held is None:
            super().store(rows, before)
            return
        self._held.append(rows)
        self._held_bytes += rows.nbytes
        is_few = self._held_bytes <= _MOST_IN_RECEIPT
        if is_few:
            self._encoded += [self._rows_of(chunk) for chunk in self._chunks(rows)]
            size = sum(piece.nbytes for each in self._encoded for piece in each.pieces)
            is_few = size <= _MOST_ENCODED
        if not is_few:
            held, self._held, self._encoded = self._held, None, []
            before -= sum(each.num_rows for each in held[:-1])
            for each in held:
                super().store(each, before)
                before += each.num_rows

    def _connect(self) -> None:
        if self._session is None and not self._chunks_staged:
            self._session = self._new_session()
            self._check_there()
        else:
            super()._connect()

    def finish(self) -> dict[str, Any]:
        if self._held is None:
            return super().finish()
        rows = [(each.names, each.count, b"".join(each.pieces)) for each in self._encoded]
        return {HELD: rows}


class LimitedTaskWriter(PostgresStagedWriter):
    """`commit=task` under a limit, which may make a task last for hours, and be paused: no transaction lasts as long.

    Rows are held here, up to `capacityBytes` of them; those of a larger task go into a staging table of the attempt's
    own, as with `commit=job`. In the end one short transaction adds them to the table, fences and notes the task.
    """

    def __init__(
        self, writer: "PostgresWriter", plan: PostgresPlan, task: int, attempt: int
    ) -> None:
        self._made = False
        self._held: list[pa.Table] = []
        self._held_bytes = 0
        super().__init__(writer, plan, task, attempt)
        self._begun = self._clock.now()

    def _name_of_staging(self) -> str:
        return f"{self._plan.stage}{secrets.token_hex(8)}"

    def _make_ready(self) -> None:
        schema = literal_sql(self._plan.place.staging)
        with self._open.closed_on_failure():
            if not self._open.value(f"SELECT has_schema_privilege({schema}, 'CREATE')"):
                raise _NoStagingError
            claims = self._claims(self._open)
            self._done = claims.task(self._plan.claim, self._task)
            if self._done is None:
                claims.show_life(self._plan.claim, claims.peek(self._plan.claim))

    def _check_there(self) -> None:
        if self._made:
            super()._check_there()

    def _forget(self) -> None:
        session = self._session
        if self._made and session is not None and session.is_open:
            session.undo()
            self._writer.drop_stage(session, self._plan.place, self._staging)

    def store(self, rows: pa.Table, before: int) -> None:
        if self._done is not None:
            return
        if self._made:
            super().store(rows, before)
            return
        self._held.append(rows)
        self._held_bytes += rows.nbytes
        if self._held_bytes > min(self._options.capacity_bytes, _MOST_HELD):
            held, self._held = self._held, []
            self.spread = _MOVE_SECONDS / len(held)
            for each in held:
                super().store(each, before)

    def _stage(self, rows: pa.RecordBatch | pa.Table, before: int) -> None:
        if not self._made:
            create_stage(self._open, self._plan.target, self._plan.place.staging, self._staging)
            self._made = True
            # A run that takes over later finds the table and drops it; of one that did before, this says so.
            self._claims(self._open).peek(self._plan.claim)
        super()._stage(rows, before)

    def finish(self) -> dict[str, Any]:
        if self._done is None:
            try:
                self._writer.retry(f"committing task {self._task}").call(
                    self._move, lambda error: isinstance(error, _NotMovedError)
                )
            except _NotMovedError as error:
                self._check_claim()
                raise TargetError(
                    f"task {self._task}: the connection was lost, and nothing of this attempt was stored. {error}"
                ) from error.__cause__
        if self._made and self._done is not None:
            self._writer.run(
                TargetError,
                f"write {self._plan.job}",
                lambda session: self._writer.drop_stage(session, self._plan.place, self._staging),
            )
        return {}

    def _move(self) -> None:
        """All of the task in one transaction, or nothing of it."""
        try:
            # A connection that ends in a pause is not a failure: also with `retryTimeout` 0, the task makes a new one.
            self._lost = self._lost or self._session is None or not self._session.answers()
            self._ensure_session()
            session = self._open
            # Before the first piece: its rows are locked.
            session.begin("ISOLATION LEVEL READ COMMITTED", END_WHEN_SILENT)
            self._bring(session)
            added = self._add_task(session)
            if added and (self._made or not self._is_plain):
                # After the fence, from where the server ends a silent session: a drop holds a lock.
                drop_stage(session, self._plan.place.staging, self._staging)
        except TargetError as error:
            self._lost = True
            if is_gone(error):
                raise _NotMovedError(str(error)) from error.__cause__
            if self._session is None:
                raise
            self._done_or_raise(self._session, error)
            return
        if added:
            self._commit(session)

    def _bring(self, session: PgWriteSession) -> None:
        target = self._plan.target
        if not self._made and self._is_plain:
            self._copy_held(session, target.schema, target.name)
            return
        if not self._made:
            create_stage(session, target, self._plan.place.staging, self._staging)
            self._copy_held(session, self._plan.place.staging, self._staging)
        bring_staged(
            session, self._plan, self._stage_sql, self._options, self._tally.rows, overwrite=False
        )

    def _copy_held(self, session: PgWriteSession, schema: str, table: str) -> None:
        """In pieces, over a part of the time in which they came."""
        paced, took = self._paced(), max(self.arrived_seconds, self._clock.now() - self._begun)
        count = sum(rows.num_rows for rows in self._held)
        room = self._options.capacity_rows / max(1, count)
        spread = adding_seconds(took, room, overlapped=self.overlapped)
        paced.begin(count, spread, short_rows=max(_LEAST_PIECE, count // _LEAST_PIECES))
        for rows in self._held:
            paced.copy(session, schema, table, rows, self._rows_of)

    @property
    def _is_plain(self) -> bool:
        cast = any(column.cast for column in written_columns(self._plan.target))
        return self._options.write_mode == "insert" and not cast


class _NotMovedError(TargetError):
    """The connection was lost before COMMIT: nothing of the transaction was stored."""


class _NoStagingError(Exception):
    """This role may not create a table in the target's schema."""


class PostgresDirectWriter(_PostgresTaskWriter, DirectTaskWriter[PgWriteSession]):
    """`commit=task`: rows go by COPY into the table, or through a table of their transaction."""

    seconds = _DIRECT_SECONDS

    def _prepare(self) -> None:
        cast = any(column.cast for column in written_columns(self._plan.target))
        self._through_rows = self._options.write_mode != "insert" or cast
        self._session = self._new_session()
        with self._session.closed_on_failure():
            self._begun()

    def _begin(self, session: PgWriteSession) -> None:
        super()._begin(session)
        if self._done is not None:
            return
        if self._through_rows:
            columns = ", ".join(stage_columns(self._plan.target))
            session.rows(f"CREATE TEMPORARY TABLE {_ROWS} ({columns}) ON COMMIT DROP")
        if self._options.write_mode in ("upsert", "skipExisting"):
            keys = keys_sql(self._plan.target)
            session.rows(
                f"CREATE TEMPORARY TABLE {_KEYS} ON COMMIT DROP AS SELECT {keys} FROM {_ROWS}"  # noqa: S608 - names are quoted
            )
            session.rows(f"ALTER TABLE pg_temp.{_KEYS} ADD PRIMARY KEY ({keys})")

    def _insert(
        self, session: PgWriteSession, rows: pa.RecordBatch | pa.Table, before: int
    ) -> None:
        self._bring_rows(session, rows)
        if self.tolerant:
            session.rows("SET CONSTRAINTS ALL IMMEDIATE")

    def _bring_rows(self, session: PgWriteSession, rows: pa.RecordBatch | pa.Table) -> None:
        target = self._plan.target
        if not self._through_rows:
            self._copy(session, target.schema, target.name, rows)
            return
        self._copy(session, "pg_temp", _ROWS, rows)
        mode, count = self._options.write_mode, rows.num_rows
        PostgresMerge(session, target, f"pg_temp.{_ROWS}", mode, count=count).bring()
        if self._options.write_mode in ("upsert", "skipExisting"):
            keys = keys_sql(target)
            session.rows(f"INSERT INTO pg_temp.{_KEYS} SELECT {keys} FROM pg_temp.{_ROWS}")  # noqa: S608 - names are quoted
        session.rows(f"TRUNCATE pg_temp.{_ROWS}")

    def _complete(self, session: PgWriteSession) -> None:
        pass  # each batch is in the table


_END_LATE = """
SELECT set_config(name, '{most}', true) FROM pg_catalog.pg_settings
WHERE name = 'idle_in_transaction_session_timeout' AND setting::bigint NOT BETWEEN 1 AND {most}
"""


class OnePassWriter(OnePassTask[PgWriteSession], PostgresDirectWriter):
    """See `OnePassTask`."""

    _has_rows = False

    def _insert(
        self, session: PgWriteSession, rows: pa.RecordBatch | pa.Table, before: int
    ) -> None:
        if not self._has_rows:  # before them it may wait for its source, and locks none
            session.rows(_END_LATE.format(most=LOCKED_SECONDS * 1_000))
            self._has_rows = True
        super()._insert(session, rows, before)


def open_task(writer: "PostgresWriter", plan: PostgresPlan, task: int, attempt: int) -> TaskWriter:
    """The writer of an attempt, as the plan's commit mode and the job's limit ask."""
    if plan.one_pass:
        return OnePassWriter(writer, plan, task, attempt)
    if plan.commit == "job":
        staged = PostgresHeldWriter if plan.alone else PostgresStagedWriter
        return staged(writer, plan, task, attempt)
    if writer.outlasts(plan):
        try:
            return LimitedTaskWriter(writer, plan, task, attempt)
        except _NoStagingError:
            _log.warning(
                "this role may not create a staging table in schema %s (GRANT CREATE): the transaction "
                "of task %d is open for as long as the limit makes the task last, also in a pause",
                plan.place.staging,
                task,
            )
    return PostgresDirectWriter(writer, plan, task, attempt)
