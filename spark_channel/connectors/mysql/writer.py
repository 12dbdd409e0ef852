"""MysqlWriter, and LOAD DATA into staging or table."""

import hashlib
import logging
import os
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any, ClassVar, TypeVar

import pyarrow as pa

from spark_channel.connectors.base.contract import Receipt, TaskWriter, WriteContext
from spark_channel.connectors.base.health import Health, RowCost, seconds_per_row, way_seconds
from spark_channel.connectors.mysql.dialect import (
    MysqlTable,
    MysqlWriteDialect,
    hold_one_zone,
    hold_transactional,
    name_places,
    staged_columns,
)
from spark_channel.connectors.mysql.options import MysqlWriteOptions, address_of
from spark_channel.connectors.mysql.publish import (
    COMMITTING_WORDS,
    check_table,
    claims_of,
    create_stage,
    create_table,
    drop_if_empty,
    drop_tables,
    duplicate_words,
    end_sessions,
    hold,
    hold_affected,
    insert_staged,
    new_stage,
    stage_names,
    table_in,
    take_over,
)
from spark_channel.connectors.mysql.session import (
    NO_TABLE,
    TABLE_EXISTS,
    LostConnectionError,
    MysqlWriteSession,
    code_of,
    is_conflict,
    passes,
    quoted,
    was_rolled_back,
)
from spark_channel.connectors.mysql.types import assignments, insert_values, load_lines
from spark_channel.connectors.sql.catalog import TargetTable, WriteColumn
from spark_channel.connectors.sql.claims import ClaimDialect, Ledger
from spark_channel.connectors.sql.dialect import WriteDialect
from spark_channel.connectors.sql.encode import BadValueError
from spark_channel.connectors.sql.session import TRANSACTION_WORDS, split_script
from spark_channel.connectors.sql.task_writer import SqlTask
from spark_channel.connectors.sql.writer import SqlPlan, SqlWriter, WriteTarget
from spark_channel.errors import BatchRefusedError, ChannelError, OptionError, TargetError
from spark_channel.options import CommitMode, WriteOptions
from spark_channel.retry import Retry

__all__ = [
    "Loader",
    "MysqlWriter",
    "RefusedRowsError",
    "is_of_rows",
    "open_task",
]


# Loads rows into one table of a session: by LOAD DATA LOCAL, or by INSERT if the server forbids it.


_MOST_PACKET = 4 << 20


class RefusedRowsError(Exception):
    """The server took rows only with warnings."""


class Loader:
    """Loads batches into `table`. What the server would change or leave out is an error, and nothing of that
    batch is in the table when the caller rolls its statement back. Unless `exact`, the server may cut or round
    fractions of a second, and pad or strip fixed lengths, as it does for other clients. `words`: how the INSERT begins
    and ends, for rows whose keys may be in the table.
    """

    def __init__(
        self,
        session: MysqlWriteSession,
        table: str,
        columns: Sequence[WriteColumn],
        local: bool | None,
        *,
        exact: bool = True,
        words: tuple[str, str] | None = None,
        cost: RowCost | None,
    ) -> None:
        """With `cost`, which is what rows cost the server, it measures the way there and back."""
        self._exact = exact
        self._words = words
        self._session = session
        if words is not None:
            session.list_warnings()
        if not exact:
            session.rows("SET SESSION sql_notes = 0")  # what is cut off a fraction is a note
        self._table, self._label = table, table.replace("`", "")
        self._columns = columns
        self._instants = any(_is_instant(column.kind) for column in columns)
        self._local = (session.local_infile if local is None else local) and words is None
        self._cost = cost
        self._way = 0.0 if cost is None else way_seconds(lambda: session.rows("SELECT 1"))
        if not self._local:
            self._packet = min(_MOST_PACKET, session.most_packet // 2)

    def load(self, batch: pa.RecordBatch) -> None:
        """All rows of `batch`.

        Raises:
            BadValueError: a value that cannot be stored exactly, found here.
            RefusedRowsError: a value that the server would change.
            BatchRefusedError: a row that it left out.
        """
        if batch.num_rows == 0:
            return
        if self._local:
            self._load(load_lines(batch, self._columns, exact=self._exact), batch.num_rows)
        else:
            names = ", ".join(quoted(column.target) for column in self._columns)
            for text, rows in insert_values(batch, self._columns, self._packet, exact=self._exact):
                verb, more = self._words or ("INSERT", "")
                self._run(f"{verb} INTO {self._table} ({names}) VALUES {text}{more}", rows)

    def _load(self, lines: bytes, rows: int) -> None:
        names, sets = assignments(self._columns, quoted)
        with _as_file(lines) as path, self._session.may_send(path):
            self._run(
                f"LOAD DATA LOCAL INFILE {self._session.literal(path)} INTO TABLE {self._table} "
                "CHARACTER SET utf8mb4 FIELDS TERMINATED BY ',' OPTIONALLY ENCLOSED BY '\"' ESCAPED BY '' "
                f"LINES TERMINATED BY '\\n' ({names}){sets}",
                rows,
                ways=2,
            )

    def _run(self, sql: str, rows: int, *, ways: int = 1) -> None:
        """`ways`: how often the statement goes to the server and back."""
        with self._session.in_utc() if self._instants else nullcontext():
            begun = time.monotonic()
            affected, warnings = self._session.affected(sql)
            if self._cost is not None:
                self._cost.add(seconds_per_row(rows, time.monotonic() - begun, ways * self._way))
        if warnings and not self._session.lenient:
            if self._words is None:
                texts = [text for _, _, text in self._session.warnings()]
                raise RefusedRowsError("; ".join(texts[:3]) or f"{warnings} warnings")
            if others := self._session.warnings_but_keys():
                raise RefusedRowsError("; ".join(others))
        hold_affected(self._label, rows, affected, self._words or ("INSERT", ""))


def _is_instant(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind)) and kind.tz is not None


@contextmanager
def _as_file(data: bytes) -> Iterator[str]:
    """A path under which this process reads `data`: in memory where the system can, else a temporary file."""
    if hasattr(os, "memfd_create"):
        handle = os.memfd_create("spark-channel")
        try:
            with os.fdopen(os.dup(handle), "wb") as file:
                file.write(data)
            yield f"/proc/self/fd/{handle}"
        finally:
            os.close(handle)
        return
    with tempfile.NamedTemporaryFile(prefix="spark-channel-") as file:
        file.write(data)
        file.flush()
        yield file.name


# One attempt of one task: `commit=job` puts its rows into a staging table, `commit=task` into the
# table itself.


_log = logging.getLogger(__name__)
_T = TypeVar("_T")
_MOST_LOSSES = 5
_MOST_KEPT = 32 << 20
"""Bytes of rows that an attempt keeps, to load them again when the server rolls it back to end a deadlock."""
_OLDER_EPOCHS = 3
_TEMPORARY = "spark_channel_rows"
_NO_RIGHT = (1044, 1142)
_DATA_ERRORS = frozenset(
    {
        1048,
        1062,
        1136,
        1264,
        1265,
        1292,
        1364,
        1366,
        1406,
        1411,
        1452,
        1526,
        1644,
        1690,
        3140,
        3819,
        4025,
        4161,
    }
)
"""What the server says of rows, rather than of itself: NULL, duplicate, range, length, foreign key, check."""


class _MysqlTask(SqlTask):
    """Shared by both commit modes: the messages of refusals."""

    _options: MysqlWriteOptions

    @property
    def _exact(self) -> bool:
        return self._options.convert == "strict"

    def store(self, rows: pa.Table, before: int) -> None:
        for batch in rows.combine_chunks().to_batches():
            try:
                self._store(batch, before)
            except BadValueError as error:
                raise self._refused(error, before) from None
            except RefusedRowsError as error:
                raise BatchRefusedError(
                    f"rows {before + 1} to {before + batch.num_rows} of task {self._task} cannot be stored in table "
                    f"{self._plan.target.label!r} as they are: {error}"
                ) from None
            before += batch.num_rows

    def _store(self, batch: pa.RecordBatch, before: int) -> None:
        """Put `batch` into staging; `before` rows of the attempt are there."""
        raise NotImplementedError

    def _open(self) -> MysqlWriteSession:
        return MysqlWriteSession(
            self._options, TargetError, local_infile=self._options.local_infile is not False
        )


class StagedWriter(_MysqlTask):
    """`commit=job`: its own staging table, filled in chunks that are committed one by one.

    After a lost connection the rows of the table are counted: a chunk is there whole or not at all.
    """

    def __init__(self, writer: SqlWriter, plan: SqlPlan, task: int, attempt: int) -> None:
        super().__init__(writer, plan, task, attempt)
        self._table: str | None = None
        self._life = ""
        self._loader: Loader | None = None
        self._lasting(lambda _again: None)
        self._show_life()

    def finish(self) -> dict[str, Any]:
        # Only a look, which ends early what the publish would refuse.
        self._lasting(lambda _again: self._claims(self._session).fence(self._plan.claim))
        return {"table": self._table}

    def rollback(self) -> None:
        ended, self._tally.ended = self._tally.ended, True
        table, self._table = self._table, None
        if table is not None and not (ended and self._session is None):
            try:
                if self._session is None:
                    self._session = self._open()
                drop_tables(self._session, [self._sql(table)])
            except (ChannelError, LostConnectionError):
                pass  # the server is away: the job's end removes the table
        super().rollback()

    def _lasting(self, work: Callable[[bool], object]) -> None:
        """`work(False)`; when the connection is lost, `work(True)` on a new one."""
        again = False
        for left in reversed(range(_MOST_LOSSES)):
            try:
                if again or self._session is None:
                    self._connect()
                work(again)
                return
            except LostConnectionError as error:
                if not left:
                    raise TargetError(error.text) from error
                again = True

    def _connect(self) -> None:
        """A session whose end can be waited for, by the lock that it holds."""
        if self._session is not None:
            self._session.close()
        self._session = self._open()
        if self._life:
            hold(self._session, self._life)
        life = f"spark_channel:{secrets.token_hex(16)}"
        hold(self._session, life)
        self._life = life
        if self._loader is not None:  # the table is there
            self._loader = self._new_loader()

    def _new_loader(self) -> Loader:
        assert self._table is not None
        return Loader(
            self._session,
            self._sql(self._table),
            staged_columns(self._plan.target),
            self._options.local_infile,
            exact=self._exact,
            cost=self._writer.row_cost if self._is_limited else None,
        )

    def _sql(self, table: str) -> str:
        return table_in(self._plan.place.staging, table)

    def _store(self, batch: pa.RecordBatch, before: int) -> None:
        def put(again: bool) -> None:
            if again and self._is_stored(before + batch.num_rows, before):
                return
            if self._loader is None:
                self._create()
            assert self._loader is not None
            with self._writer.transaction(self._session):
                self._loader.load(batch)

        try:
            self._lasting(put)
        except TargetError as error:
            if code_of(error) == NO_TABLE:  # whoever took over dropped it
                self._lasting(lambda _again: self._claims(self._session).fence(self._plan.claim))
            raise

    def _create(self) -> None:
        if self._table is None:
            self._table = new_stage(self._plan, self._task, self._attempt)
        try:
            create_stage(
                self._session,
                self._sql(self._table),
                staged_columns(self._plan.target),
                temporary=False,
            )
        except TargetError as error:
            if code_of(error) != TABLE_EXISTS:  # there already: its CREATE was not answered
                raise
        # A run that takes over later finds the table and drops it; of one that did before, the attempt learns here.
        claims = self._claims(self._session)
        claims.show_life(self._plan.claim, claims.fence(self._plan.claim))
        self._loader = self._new_loader()

    def _is_stored(self, after: int, before: int) -> bool:
        """Whether the chunk whose load was not answered is in the table."""
        assert self._table is not None
        if self._loader is None:
            return False
        count = int(self._session.value(f"SELECT COUNT(*) FROM {self._sql(self._table)}"))  # noqa: S608
        if count not in (before, after):
            raise TargetError(
                f"staging table {self._table} holds {count} rows after a lost connection, neither {before} nor {after}"
            )
        return count == after


class DirectWriter(_MysqlTask):
    """`commit=task`: the rows and the task's row in the claims, in one transaction that holds the claim at its end.

    `writeMode=insert` loads batches straight into the table. The other modes, and all under a limit, gather rows in a
    temporary table, and bring them in at the end; when refused rows are allowed, at once, since the target itself
    judges each batch. A task that has committed is not written again: its rows are taken and dropped.
    """

    def __init__(self, writer: SqlWriter, plan: SqlPlan, task: int, attempt: int) -> None:
        super().__init__(writer, plan, task, attempt)
        options = self._options
        limited = (
            options.is_limited
            or options.rows_per_second_per_task
            or options.bytes_per_second_per_task
        )
        # A limit may make the task last for hours, and be paused: no transaction lasts as long.
        self._gathers = bool(limited) and not options.tolerates_dirty_rows and plan.place.has_ledger
        insert, self._words = options.write_mode == "insert", None
        if insert and options.duplicates != "error" and not plan.place.has_ledger:
            # A role that may create no table may create no temporary one.
            self._words = duplicate_words(plan.target, options)
        straight = insert and (options.duplicates == "error" or self._words is not None)
        self._straight = straight and not self._gathers
        self._begun = self._committing = False
        self._loaded: list[pa.RecordBatch] | None = []
        self._loaded_bytes = 0
        self._session = self._open()
        try:
            self._loader = self._new_loader(self._session)
            self._show_life()
        except LostConnectionError as error:
            self.rollback()
            raise TargetError(error.text) from error
        except BaseException:
            self.rollback()
            raise

    def finish(self) -> dict[str, Any]:
        session = self._session
        try:
            self._begin(session)
            if self._done is None:
                self._through_deadlocks(session, lambda: self._commit(session))
        except LostConnectionError as error:
            session.close()
            self._done = self._after_loss(error)
        return {}

    def _new_loader(self, session: MysqlWriteSession) -> Loader:
        target, table = self._plan.target, self._plan.target.sql
        if not self._straight:
            table = self._temporary
            try:
                create_stage(session, table, staged_columns(target), temporary=True, key=target.key)
            except TargetError as error:
                options = self._options
                plain = options.write_mode == "insert" and options.duplicates == "error"
                if not plain or code_of(error) not in _NO_RIGHT:
                    raise
                _log.warning(
                    "this user may not create temporary tables (GRANT CREATE TEMPORARY TABLES): "
                    "the transaction of task %d is open for as long as the limit makes the task last, "
                    "also in a pause",
                    self._task,
                )
                self._straight, self._gathers, table = True, False, target.sql
        return Loader(
            session,
            table,
            staged_columns(target),
            self._options.local_infile,
            exact=self._exact,
            words=self._words,
            cost=self._writer.row_cost if self._is_limited else None,
        )

    @property
    def _temporary(self) -> str:
        return table_in(self._plan.place.staging, _TEMPORARY)

    def _begin(self, session: MysqlWriteSession) -> None:
        """Begin the transaction in which the table is written, unless the task has committed. Safe twice.

        No other attempt of the task has one then, of this run or one that it took over: its locks on keys would stop
        this one.
        """
        if self._begun:
            return
        claims, held = self._claims(session), self._plan.claim
        if held.epoch > 1:
            epochs = range(max(1, held.epoch - _OLDER_EPOCHS), held.epoch)
            end_sessions(session, [self._lock(epoch) for epoch in epochs])
        take_over(session, self._lock(held.epoch))
        claims.show_life(held, claims.fence(held))
        self._done = claims.task(held, self._task)
        if self._done is None:
            session.rows("START TRANSACTION")
        self._begun = True

    def _lock(self, epoch: int) -> str:
        """The name of the lock of the task's one transaction in a run."""
        key = self._plan.claim.identity.key[:16]
        return f"spark_channel:{key}_{epoch}_{self._task}"[:64]

    def _store(self, batch: pa.RecordBatch, before: int) -> None:
        session = self._session
        try:
            if self._straight:
                self._begin(session)
                if self._done is None:
                    self._through_deadlocks(session, lambda: self._loader.load(batch))
                    self._keep(batch)
            else:
                with self._writer.transaction(session):
                    self._loader.load(batch)
        except LostConnectionError as error:
            raise TargetError(
                f"{error.text}. The attempt's rows were lost with the connection"
            ) from error

    def _keep(self, batch: pa.RecordBatch) -> None:
        if self._loaded is not None:
            self._loaded.append(batch)
            self._loaded_bytes += batch.nbytes
            if self._loaded_bytes > _MOST_KEPT:
                self._loaded = None

    def _through_deadlocks(self, session: MysqlWriteSession, work: Callable[[], _T]) -> _T:
        """`work`, and when the server ends a deadlock by rolling the transaction back, its rows and `work` again."""
        again = False

        def attempt() -> _T:
            nonlocal again
            if again:
                session.rows("ROLLBACK")
                session.rows("START TRANSACTION")
                for batch in self._loaded or ():
                    self._loader.load(batch)
            again = True
            try:
                return work()
            except TargetError as error:
                if was_rolled_back(error) and self._loaded is None:
                    raise TargetError(
                        f"{error}. The task's rows are not kept to be sent again "
                        f"(more than {_MOST_KEPT >> 20} MiB, or judged one by one): Spark runs the task again"
                    ) from None
                raise

        retry = Retry(
            self._options.retry_timeout, first=0.05, longest=1.0, what=f"task {self._task}"
        )
        return retry.call(attempt, was_rolled_back)

    def judge(self, batch: pa.RecordBatch) -> None:
        session = self._session
        self._loaded = None  # what was judged is not kept
        try:
            self._begin(session)
            if self._done is not None:
                return
            session.rows("SAVEPOINT spark_channel_batch")
            try:
                self._loader.load(batch)
                if not self._straight:
                    self._bring_in(session, batch.num_rows)
                    session.rows(f"DELETE FROM {self._temporary}")  # noqa: S608 - a constant
            except (BadValueError, RefusedRowsError, TargetError) as error:
                if isinstance(error, TargetError) and not is_of_rows(error):
                    raise
                session.rows("ROLLBACK TO SAVEPOINT spark_channel_batch")
                if isinstance(error, BadValueError):
                    raise self._refused(error, self._tally.rows) from None
                raise BatchRefusedError(str(error)) from None
        except LostConnectionError as error:
            raise TargetError(
                f"{error.text}. The attempt's rows were lost with the connection"
            ) from error

    def _bring_in(self, session: MysqlWriteSession, rows: int) -> None:
        stages = [(self._temporary, rows)]
        insert_staged(
            session, self._plan.target, self._options, stages, indexed=True, paced=self._gathers
        )

    def _commit(self, session: MysqlWriteSession) -> None:
        if not self._straight and not self.tolerant:
            self._bring_in(session, self._tally.rows)
        session.end_when_silent()
        if self._add_task(session):
            self._committing = True
            session.rows("COMMIT")

    def _after_loss(self, lost: LostConnectionError) -> Receipt:
        """The outcome of a COMMIT without an answer; before COMMIT, whether another attempt has committed."""

        def ask(session: MysqlWriteSession) -> Receipt | None:
            claims = self._claims(session)
            claims.fence(self._plan.claim)
            return claims.task(self._plan.claim, self._task)

        if self._committing:
            done = self._writer.settle(self._plan, self._task)
        else:
            done = self._writer.run(TargetError, f"write {self._plan.job}", ask)
        if done is None:
            raise TargetError(
                f"{lost.text}. The attempt's rows were not committed: the claims have no row of the task"
            )
        return done


def is_of_rows(error: TargetError) -> bool:
    """Whether a row is the matter of it."""
    return isinstance(error, BatchRefusedError) or code_of(error) in _DATA_ERRORS


def open_task(writer: SqlWriter, plan: SqlPlan, task: int, attempt: int) -> TaskWriter:
    """The writer of an attempt, as the plan's commit mode asks."""
    try:
        return (DirectWriter if plan.commit == "task" else StagedWriter)(
            writer, plan, task, attempt
        )
    except LostConnectionError as error:
        raise TargetError(error.text) from error


# Writes a table of a MySQL server: atomically (`commit=job`), or task by task (`commit=task`).


_DENIED = frozenset({1044, 1142, 1143, 1227})
_ALTER_SECONDS = 30


class MysqlWriter(SqlWriter):
    """Rows are loaded where a warning is an error: by `commit=job` into staging tables without keys.

    `commit=job`: one transaction on the driver's host inserts all of them. `commit=task`: each task inserts its own.
    DDL commits by itself here, so tables are made outside these transactions, under a lock of the server (GET_LOCK)
    that is always taken before the claim.
    """

    Options: ClassVar[type[WriteOptions]] = MysqlWriteOptions
    options: MysqlWriteOptions
    dialect: WriteDialect = MysqlWriteDialect()

    def __init__(self, options: MysqlWriteOptions) -> None:
        super().__init__(options)
        address_of(options)

    def resource_mark(self) -> str | None:
        return address_of(self.options).host

    @property
    def shown(self) -> str:
        address = address_of(self.options)
        return f"{address.host}:{address.port}"

    def health(self) -> Health:
        from spark_channel.connectors.mysql.reader import MysqlHealth

        return MysqlHealth(self.options, TargetError, self.row_cost)

    def check(self, context: WriteContext) -> None:
        self._check_scripts(TRANSACTION_WORDS)

    def is_refusal(self, error: BaseException) -> bool:
        return isinstance(error, TargetError) and is_of_rows(error)

    def session(
        self, failure: type[TargetError], purpose: str, *, patient: bool
    ) -> MysqlWriteSession:
        return MysqlWriteSession(self.options, failure, patient=patient)

    def is_lost(self, error: BaseException) -> bool:
        return isinstance(error, LostConnectionError) or (
            isinstance(error, TargetError) and passes(error)
        )

    def run(
        self,
        failure: type[TargetError],
        purpose: str,
        work: Callable[[Any], _T],
        *,
        begins: bool = False,
    ) -> _T:
        try:
            return super().run(failure, purpose, work, begins=begins)
        except LostConnectionError as error:
            raise failure(error.text) from error

    def is_conflict(self, error: TargetError) -> bool:
        return is_conflict(error)

    def claim_dialect(self, session: Any, place: WriteTarget) -> ClaimDialect:
        return claims_of(session, place.ledger or Ledger(place.schema, place.schema))

    def is_denied(self, error: TargetError) -> bool:
        return code_of(error) in _DENIED

    def look(self, session: Any) -> WriteTarget:
        table = self.dialect.find_table(session, self.options.dbtable)
        if table is not None:
            return WriteTarget(table.schema, table.name, table.label, table)
        names = name_places(session, self.options.dbtable)
        if not names:
            raise OptionError(
                f"option 'url' names no database, and 'dbtable' got {self.options.dbtable!r}: in which one?",
                option="url",
            )
        database, name = names[-1]
        if (
            session.value("SELECT @@lower_case_table_names") == 1
        ):  # the name under which it will be found
            database, name = database.lower(), name.lower()
        return WriteTarget(database, name, f"{database}.{name}")

    def plan(
        self, session: Any, plan: SqlPlan, place: WriteTarget, context: WriteContext
    ) -> SqlPlan:
        if plan.commit == "job":
            self._check_scripts(COMMITTING_WORDS)
        if isinstance(place.table, MysqlTable) and not place.table.is_view:
            hold_transactional(session, place.table)
        return replace(plan, target=self.target(plan, place))

    def target(self, plan: SqlPlan, place: WriteTarget) -> TargetTable:
        """A table that is there stays also with `overwrite`: to drop it would commit."""
        made = super().target(replace(plan, overwrite=False), place)
        hold_one_zone(made)
        return made

    def alter(self, session: Any, statement: str) -> None:
        session.rows(f"SET SESSION lock_wait_timeout = {_ALTER_SECONDS}")
        try:
            session.rows(statement)
        finally:
            session.rows("SET SESSION lock_wait_timeout = DEFAULT")

    @contextmanager
    def altering(self, session: Any, place: WriteTarget) -> Iterator[None]:
        """DDL commits, so the lock of publishes is what keeps other writes out."""
        hold(session, _table_lock(place.label))
        session.rows(f"SET SESSION lock_wait_timeout = {_ALTER_SECONDS}")
        try:
            yield
        finally:
            session.rows("SET SESSION lock_wait_timeout = DEFAULT")

    def default_commit(self, place: WriteTarget, context: WriteContext) -> CommitMode:
        """Keys are told apart only within one transaction; refused rows only where the target judges them."""
        return (
            "task" if self.options.tolerates_dirty_rows else super().default_commit(place, context)
        )

    def make_staging(
        self, session: Any, plan: SqlPlan, place: WriteTarget, context: WriteContext
    ) -> SqlPlan:
        return plan  # each attempt makes its own table

    @contextmanager
    def preparing(self, session: Any, plan: SqlPlan) -> Iterator[None]:
        with self._alone(session, plan, create=True):
            if (
                self._pre_sql_commits
                and self.claims(session, plan.place).fence(plan.claim).state == "open"
            ):
                for statement in self.dialect.script(self.options.pre_sql, "preSql"):
                    session.rows(statement)
            yield

    def make_ready(
        self, session: Any, plan: SqlPlan, place: WriteTarget, context: WriteContext, *, first: bool
    ) -> SqlPlan:
        target = plan.target
        if first and not self._pre_sql_commits:
            self.script(session, self.options.pre_sql, "preSql")
        check_table(session, target)
        if first and plan.overwrite:
            session.rows(f"DELETE FROM {target.sql}")  # noqa: S608 - a quoted name
        return plan

    def open_task(self, plan: Any, task: int, attempt: int) -> TaskWriter:
        return open_task(self, plan, task, attempt)

    @contextmanager
    def publishing(self, session: Any, plan: SqlPlan) -> Iterator[None]:
        with self._alone(session, plan, create=plan.commit == "job"):
            yield

    def publish_staged(self, session: Any, plan: Any, receipts: Sequence[Receipt]) -> None:
        target = plan.target
        self.script(session, self.options.pre_sql, "preSql")
        check_table(session, target)
        if plan.overwrite:
            session.rows(f"DELETE FROM {target.sql}")  # noqa: S608 - a quoted name
        stages = self.staged_tables(
            session, receipts, lambda name: table_in(plan.place.staging, name)
        )
        paced = (
            self.options.is_limited and not plan.overwrite
        )  # which has locked the rows that it deleted
        insert_staged(session, target, self.options, list(stages), paced=paced)

    def stages(self, session: Any, place: WriteTarget, beginning: str) -> list[str]:
        return stage_names(session, place.staging, beginning)

    def drop_staging(self, session: Any, plan: SqlPlan) -> None:
        if names := self.stages(session, plan.place, plan.stage):
            self._drop(session, plan.place, names)

    def drop_stage(self, session: Any, place: WriteTarget, name: str) -> None:
        self._drop(session, place, [name])

    def _drop(self, session: MysqlWriteSession, place: WriteTarget, names: Sequence[str]) -> None:
        for table in drop_tables(session, [table_in(place.staging, name) for name in names]):
            _log.warning(
                "staging %s stays until a later job removes it: a transaction still uses it", table
            )

    @contextmanager
    def _alone(self, session: MysqlWriteSession, plan: SqlPlan, *, create: bool) -> Iterator[None]:
        """No other job prepares or publishes the table meanwhile. With `create` it is there, when that can be.

        The lock is the session's: DDL does not end it, and neither does what ends a transaction.
        """
        target = plan.target
        hold(session, _table_lock(target.label))
        session.end_when_silent()
        made = create and create_table(session, target)
        try:
            yield
        except TargetError:
            if made:
                drop_if_empty(session, target)
            raise

    def script(
        self, session: Any, texts: Sequence[str], option: str, *, written: bool = False
    ) -> None:
        """DDL in `postSql`, which only `commit=task` accepts, commits a transaction that is complete by then."""
        if not (written and _commits(texts, option)):
            super().script(session, texts, option, written=written)
            return
        for statement in self.dialect.script(texts, option):
            session.rows(statement)

    @property
    def _pre_sql_commits(self) -> bool:
        """It holds DDL, which would commit the transaction that makes the table ready before it is complete."""
        return _commits(self.options.pre_sql, "preSql")

    def _check_scripts(self, forbidden: frozenset[str]) -> None:
        split_script(self.options.pre_sql, "preSql", "mysql", forbidden)
        split_script(self.options.post_sql, "postSql", "mysql", forbidden)


def _commits(texts: Sequence[str], option: str) -> bool:
    try:
        split_script(texts, option, "mysql", COMMITTING_WORDS)
    except OptionError:
        return True
    return False


def _table_lock(label: str) -> str:
    """Publishes to one table take turns; the server's names of locks have at most 64 letters."""
    return "spark_channel:" + hashlib.sha256(label.encode()).hexdigest()[:32]
