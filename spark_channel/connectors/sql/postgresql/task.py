"""One attempt of one task: rows go by COPY into the job's staging, or straight into the table."""

import logging
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import stamina

from spark_channel.clock import SYSTEM_CLOCK
from spark_channel.connectors.contracts import Receipt, Tally, TaskWriter
from spark_channel.connectors.native import native_data
from spark_channel.connectors.sql.change_feed import OPERATION
from spark_channel.connectors.sql.gather import Gathered
from spark_channel.connectors.sql.life import BEAT_SECONDS
from spark_channel.connectors.sql.postgresql.copy_rows import CopyRows, copy_rows
from spark_channel.connectors.sql.postgresql.encode import BadValueError, encode
from spark_channel.connectors.sql.postgresql.failures import is_gone, is_refused_data, sqlstate_of
from spark_channel.connectors.sql.postgresql.ledger import PUBLISHED, Entry, Ledger
from spark_channel.connectors.sql.postgresql.merge import keys_sql, merge_statements
from spark_channel.connectors.sql.postgresql.options import PostgresWriteOptions
from spark_channel.connectors.sql.postgresql.outcome import commit, transaction_number
from spark_channel.connectors.sql.postgresql.publish import CHUNKS, refuse_bad_keys
from spark_channel.connectors.sql.postgresql.session import Session, literal
from spark_channel.connectors.sql.postgresql.staging import (
    DELETES,
    hold_job,
    show_life,
    stage_columns,
    table_sql,
)
from spark_channel.connectors.sql.postgresql.target import PostgresPlan
from spark_channel.connectors.sql.postgresql.write_session import WriteSession, reach
from spark_channel.errors import BatchRefusedError, TargetError

__all__ = ["DirectTaskWriter", "StagedTaskWriter"]

_log = logging.getLogger(__name__)

_DIRECT_SECONDS = 0.1
_CHUNK_SECONDS = 1.0
"""Each chunk is a transaction, whose number the receipt holds: fewer of them."""
_ROWS = "spark_channel_rows"
_KEYS = "spark_channel_keys"
_DELETING = frozenset({"d", "delete"})
_OPERATIONS = (*sorted(_DELETING), "i", "insert", "u", "update", "c", "create", "r", "read", "upsert")
_UNIQUE = "23505"


class _PostgresTaskWriter(TaskWriter):
    """What both kinds share: batches are gathered, encoded, and handed on."""

    gather_seconds: float

    def __init__(self, options: PostgresWriteOptions, plan: PostgresPlan, task: int, attempt: int) -> None:
        self._options = options
        self._plan = plan
        self._task = task
        self._attempt = attempt
        self._gathered = Gathered(options.batch_size, self.gather_seconds)
        self._tally = Tally(task, attempt)
        self._session: WriteSession | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        self._tally.hold_open()
        if batch.num_rows == 0:
            return
        if self.tolerant:
            self._hand_on(self._rows_of(batch))
        elif self._gathered.add(batch):
            self.flush()
        self._tally.add(batch)

    def flush(self) -> None:
        self._tally.hold_open()
        if not (batches := self._gathered.take()):
            return
        table = pa.Table.from_batches(batches)
        for start in range(0, table.num_rows, self._options.batch_size):
            self._hand_on(self._rows_of(table.slice(start, self._options.batch_size)))

    def rollback(self) -> None:
        self._tally.ended = True
        self._gathered.take()
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def _hand_on(self, rows: CopyRows) -> None:
        raise NotImplementedError

    def _rows_of(self, rows: pa.RecordBatch | pa.Table) -> CopyRows:
        if not self._plan.native:
            return copy_rows(self._encode(rows))
        names = [column.target for column in self._plan.target.columns]
        return CopyRows(names, rows.num_rows, [native_data(each) for each in rows.to_batches()])

    def _encode(self, rows: pa.RecordBatch | pa.Table) -> pa.RecordBatch:
        try:
            encoded = encode(rows, self._plan.target.columns)
            if self._options.write_mode == "apply":
                encoded = encoded.append_column(DELETES, self._deletes(rows))
        except BadValueError as error:
            kind = BatchRefusedError if self.tolerant else TargetError
            raise kind(
                f"column {error.column.name!r} of task {self._task}: {error.value!r} cannot be stored in "
                f"table {self._plan.target.label}: {error.why}"
            ) from None
        return encoded

    def _deletes(self, rows: pa.RecordBatch | pa.Table) -> pa.Array:
        said: Any = pc.utf8_lower(pc.cast(rows.column(OPERATION), pa.string()))
        if isinstance(said, pa.ChunkedArray):
            said = said.combine_chunks()
        known = pc.is_in(said, pa.array(_OPERATIONS))
        if not pc.all(known).as_py():
            strange = said.filter(pc.invert(known))[0].as_py()
            kind = BatchRefusedError if self.tolerant else TargetError
            raise kind(f"column {OPERATION!r} holds {strange!r}; it takes one of: {', '.join(_OPERATIONS)}")
        return pc.is_in(said, pa.array(sorted(_DELETING)))

    def _reach(self) -> WriteSession:
        session = reach(self._options, failure=TargetError, purpose=f"write {self._plan.job}")
        try:
            hold_job(session, self._plan.job)
        except BaseException:
            session.close()
            raise
        return session

    def _end(self, receipt: Receipt) -> Receipt:
        self.rollback()
        return receipt


class StagedTaskWriter(_PostgresTaskWriter):
    """`commit=job`: rows go into the staging table in chunks, a transaction each.

    A chunk is kept until it is committed. When the connection is lost, a new one asks what became of it, and it is
    staged again or not.
    """

    gather_seconds = _CHUNK_SECONDS

    def __init__(self, options: PostgresWriteOptions, plan: PostgresPlan, task: int, attempt: int) -> None:
        super().__init__(options, plan, task, attempt)
        self._chunks: dict[str, int] = {}
        self._shown = 0.0
        self._stage = table_sql(plan.target.schema, plan.stage)
        self._session = self._reach()
        self._hold_there()
        self._show_life()

    def close(self) -> Receipt:
        self.flush()
        self._show_life()
        details = {CHUNKS: dict(self._chunks)}
        return self._end(Receipt(self._task, self._attempt, self._tally.rows, self._tally.nbytes, details))

    def _hand_on(self, rows: CopyRows) -> None:
        try:
            for attempt in stamina.retry_context(
                on=lambda error: isinstance(error, TargetError) and is_gone(error),
                attempts=None,
                timeout=max(self._options.retry_seconds, 0.001),
                wait_initial=0.1,
                wait_max=5.0,
            ):
                with attempt:
                    if attempt.num > 1 or self._session is None or not self._session.is_open:
                        self._reconnect()
                        _log.warning(
                            "task %d lost its connection to the target, and goes on with another", self._task
                        )
                    self._stage_chunk(rows)
        except TargetError as error:
            if is_refused_data(error):
                raise TargetError(f"task {self._task}: a row is refused. {error}") from error
            raise

    def _stage_chunk(self, rows: CopyRows) -> None:
        session = self._session
        assert session is not None
        session.rows("BEGIN")
        try:
            session.copy(self._plan.target.schema, self._plan.stage, rows)
            number = transaction_number(session)
        except BaseException:
            session.roll_back()
            raise
        commit(session, self._options, number, TargetError)
        self._chunks[str(number)] = rows.count
        if SYSTEM_CLOCK.now() - self._shown > BEAT_SECONDS:
            self._show_life()

    def _show_life(self) -> None:
        """Locks go with a server that restarts, and the note stays."""
        assert self._session is not None
        self._shown = SYSTEM_CLOCK.now()
        try:
            show_life(self._session, self._plan.target.schema, self._plan.stage)
        except TargetError as error:
            _log.warning("task %d could not note that its job lives: %s", self._task, error)

    def _reconnect(self) -> None:
        if self._session is not None:
            self._session.close()
        self._session = self._reach()
        self._hold_there()

    def _hold_there(self) -> None:
        """The staging is there, with all that this attempt has put in."""
        assert self._session is not None
        try:
            if (
                self._session.value(f"SELECT to_regclass({literal(self._stage).sql('postgres')})::text")
                is None
            ):
                raise TargetError(
                    f"the staging table {self._stage} is gone: the job was aborted or has ended"
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


class DirectTaskWriter(_PostgresTaskWriter):
    """`commit=task`: rows and the task's ledger row in one transaction.

    A task that the ledger has is not written again: its rows are taken and dropped. When dirty rows are allowed, each
    batch is judged at once, under a savepoint.
    """

    gather_seconds = _DIRECT_SECONDS

    def __init__(self, options: PostgresWriteOptions, plan: PostgresPlan, task: int, attempt: int) -> None:
        super().__init__(options, plan, task, attempt)
        self._done: Entry | None = None
        self._through_rows = options.write_mode != "insert" or not plan.target.direct
        self._session = self._reach()
        try:
            self._begin()
        except BaseException:
            self._session.close()
            raise

    def close(self) -> Receipt:
        self.flush()
        session = self._session
        assert session is not None
        if self._done is None:
            try:
                self._commit(session)
            except TargetError as error:
                self._superseded_or_raise(session, error)
        if self._done is not None:
            dirty = max(0, self._tally.rows - self._done.rows) if self.tolerant else 0
            return self._end(
                Receipt(self._task, self._done.attempt, self._done.rows, self._done.nbytes, {}, dirty)
            )
        return self._end(Receipt(self._task, self._attempt, self._tally.rows, self._tally.nbytes))

    def _begin(self) -> None:
        session = self._session
        assert session is not None
        ledger = self._ledger(session)
        self._done = ledger.entry(self._plan, self._task)
        if self._done is not None:
            return
        if ledger.entry(self._plan, PUBLISHED) is not None:
            raise TargetError(
                f"job {self._plan.job!r} is published already, without task {self._task}: this attempt is too late, "
                "and its rows were not written"
            )
        session.rows("BEGIN")
        if self._through_rows:
            apply = self._options.write_mode == "apply"
            columns = ", ".join(stage_columns(self._plan.target, apply=apply))
            session.rows(f"CREATE TEMPORARY TABLE {_ROWS} ({columns}) ON COMMIT DROP")
        if self._options.write_mode in ("upsert", "skipExisting"):
            keys = keys_sql(self._plan.target)
            session.rows(
                f"CREATE TEMPORARY TABLE {_KEYS} ON COMMIT DROP AS SELECT {keys} FROM {_ROWS}"  # noqa: S608
            )
            session.rows(f"ALTER TABLE pg_temp.{_KEYS} ADD PRIMARY KEY ({keys})")

    def _hand_on(self, rows: CopyRows) -> None:
        session = self._session
        assert session is not None
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
            if self.tolerant and is_refused_data(error):
                session.rows("ROLLBACK TO SAVEPOINT batch")
                raise BatchRefusedError(str(error)) from error
            self._superseded_or_raise(session, error)

    def _insert(self, session: WriteSession, rows: CopyRows) -> None:
        target = self._plan.target
        if not self._through_rows:
            session.copy(target.schema, target.name, rows)
            return
        session.copy("pg_temp", _ROWS, rows)
        if target.key:
            refuse_bad_keys(session, target, f"pg_temp.{_ROWS}", self._options)
        if self._options.write_mode in ("upsert", "skipExisting"):
            keys = keys_sql(target)
            session.rows(f"INSERT INTO pg_temp.{_KEYS} SELECT {keys} FROM pg_temp.{_ROWS}")  # noqa: S608
        for statement in merge_statements(target, f"pg_temp.{_ROWS}", self._options):
            session.rows(statement)
        session.rows(f"TRUNCATE pg_temp.{_ROWS}")

    def _commit(self, session: WriteSession) -> None:
        ledger = self._ledger(session)
        if not ledger.add(
            self._plan, self._task, attempt=self._attempt, rows=self._tally.rows, nbytes=self._tally.nbytes
        ):
            session.roll_back()
            self._done = ledger.entry(self._plan, self._task)
            if self._done is None:
                raise TargetError(f"task {self._task}: the ledger's row of another attempt came and went")
            return
        commit(session, self._options, transaction_number(session), TargetError, stands=self._stands)

    def _stands(self, session: Session) -> bool:
        entry = self._ledger(session).entry(self._plan, self._task)
        return entry is not None and entry.attempt == self._attempt

    def _superseded_or_raise(self, session: WriteSession, error: TargetError) -> None:
        """Another attempt has committed these rows, so that their keys are there: this one is done with them."""
        session.roll_back()
        if sqlstate_of(error) == _UNIQUE:
            self._done = self._ledger(session).entry(self._plan, self._task)
            if self._done is not None:
                return
        if is_gone(error):
            raise TargetError(
                f"task {self._task}: the connection was lost, and nothing of this attempt stands. {error}"
            ) from error
        if is_refused_data(error):
            raise TargetError(f"task {self._task}: a row is refused. {error}") from error
        raise error

    def _ledger(self, session: Session) -> Ledger:
        return Ledger(session, self._plan.target.schema, self._plan.target.label)
