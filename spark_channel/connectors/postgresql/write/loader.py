"""How a task's rows get into a PostgreSQL table, by COPY.

`commit=job` stages them in the run's table, a transaction for each chunk. `commit=task` copies them straight into the
table, or through a table of their transaction. Under a limit, which may make a task last for hours, and be paused, its
rows are held, up to `most_held` bytes; those of a larger task go into a staging table of the attempt.
"""

import secrets
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Literal, Protocol, final

import pyarrow as pa

from spark_channel.clock import SYSTEM_CLOCK, Clock
from spark_channel.connectors.base.contract import native_data
from spark_channel.connectors.base.feed import (
    CLOSE_ALL,
    CLOSES,
    DELETES,
    OPENS,
    OPERATION,
    TRUNCATES,
    WRITES,
)
from spark_channel.connectors.base.health import RowCost
from spark_channel.connectors.base.session_pool import ThreadSession
from spark_channel.connectors.postgresql.catalog import table_sql
from spark_channel.connectors.postgresql.copy.format import CopyRows
from spark_channel.connectors.postgresql.copy.paced import PacedCopy
from spark_channel.connectors.postgresql.failures import is_gone, is_refused_data, sqlstate_of
from spark_channel.connectors.postgresql.options import PostgresWriteOptions
from spark_channel.connectors.postgresql.session import PgWriteSession, literal_sql
from spark_channel.connectors.postgresql.types import encode
from spark_channel.connectors.postgresql.write.committed_chunk import (
    commit,
    reach,
    transaction_number,
)
from spark_channel.connectors.postgresql.write.dialect import DIALECT, PostgresPlan, written_columns
from spark_channel.connectors.postgresql.write.merge import PostgresMerge, keys_sql
from spark_channel.connectors.postgresql.write.staged_rows import CHUNKS, HELD, bring_staged
from spark_channel.connectors.postgresql.write.staging import (
    create_stage,
    drop_stage,
    stage_columns,
)
from spark_channel.connectors.sql.pacing import Spread
from spark_channel.connectors.sql.write.encode import BadValueError
from spark_channel.connectors.sql.write.in_session import in_session, retry
from spark_channel.connectors.sql.write.loading import (
    LOCKED_SECONDS,
    Loading,
    NoStagingError,
    RefuseRow,
    Rows,
    may_last,
    most_held,
)
from spark_channel.connectors.sql.write.plan import WriteTarget
from spark_channel.connectors.sql.write.postgresql_claims import END_WHEN_SILENT
from spark_channel.connectors.sql.write.refused_value import refused_value
from spark_channel.connectors.sql.write.sessions import WriteSessions
from spark_channel.connectors.sql.write.table_loading import savepoint
from spark_channel.connectors.sql.write.task_claim import TaskClaim
from spark_channel.errors import BatchRefusedError, SupersededError, TargetError
from spark_channel.lazy import compute as pc
from spark_channel.plain_text import log_of

__all__ = ["TASK_SECONDS", "PostgresTasks", "postgres_loading"]

_log = log_of(__name__)
_DIRECT_SECONDS = 0.1
_NATIVE_BYTES = 2 << 20
"""Rows that COPY takes as they are need not be many to be sent fast: a COPY costs 0.2 ms."""
_CHUNK_SECONDS = 1.0
"""Each chunk is a transaction, whose number the receipt holds: fewer of them."""
_ROWS = "spark_channel_rows"
_KEYS = "spark_channel_keys"
_OPERATIONS = (*DELETES, *WRITES, *TRUNCATES, *OPENS, *CLOSES, *CLOSE_ALL)
_NO_TABLE = "42P01"
_RECEIPT_BYTES = 256 << 10
_ENCODED_BYTES = 1 << 20
"""The driver has them in memory, and sends them by one statement. COPY writes a bit as 5 bytes, and repeats a value of
a dictionary.
"""
_LEAST_PIECE, _LEAST_PIECES = 50, 16
"""In how many pieces at least, if they are not smaller: between two the transaction is idle, which servers may end."""
TASK_SECONDS = 2.5
"""How long a task should last under a limit: its rows are held, and added at its end."""
_END_LATE = """
SELECT set_config(name, '{most}', true) FROM pg_catalog.pg_settings
WHERE name = 'idle_in_transaction_session_timeout' AND setting::bigint NOT BETWEEN 1 AND {most}
"""


class PostgresTasks(WriteSessions[PgWriteSession], Protocol):
    """What is used of the database here."""

    @property
    def options(self) -> PostgresWriteOptions: ...
    @property
    def row_cost(self) -> RowCost: ...
    @property
    def kept(self) -> ThreadSession[PgWriteSession]: ...
    def drop_staging(
        self, session: PgWriteSession, place: WriteTarget, names: Sequence[str]
    ) -> None: ...


def postgres_loading(
    database: PostgresTasks, claim: TaskClaim[PgWriteSession], *, stages: bool
) -> Loading[PgWriteSession]:
    """See the head of this file. Without `stages`: the role may not create a staging table."""
    plan, options = _plan(claim), database.options
    loading = partial(
        Loading,
        _Sessions(database, claim).connect,
        chunks=partial(_slices, options.batch_size),
        release=database.kept.give,
        answers=PgWriteSession.answers,
        explain=partial(_explained, database, claim),
    )
    copier = Copier(database, claim)
    if plan.commit == "job" and not plan.one_pass:
        # A few rows travel in the receipt of a task that is alone, and the transaction that publishes stages them.
        held_bytes = _RECEIPT_BYTES if plan.alone else 0
        staging = PostgresStaging(database, claim, copier, plan.staging)
        return loading(
            staging=staging,
            holds=_has_asked,
            carried=staging.carried,
            held_bytes=held_bytes,
            seconds=_CHUNK_SECONDS,
        )
    if plan.one_pass or not stages or not may_last(options, plan):
        direct = partial(loading, direct=PostgresLoader(database, claim, copier))
        if plan.native:
            return direct(seconds=_DIRECT_SECONDS, sent_bytes=_NATIVE_BYTES)
        return direct(seconds=_DIRECT_SECONDS)
    name = f"{plan.stage}{secrets.token_hex(8)}"
    own_staging = PostgresStaging(database, claim, copier, name, is_own=True)
    return loading(
        held=PostgresHeldLoader(database, claim, copier, own_staging),
        staging=own_staging,
        holds=_has_asked,
        held_bytes=most_held(options),
        is_paced=True,
        seconds=_CHUNK_SECONDS,
    )


def _has_asked(_session: PgWriteSession, _before: int, _after: int) -> bool:
    """`commit` has asked for the outcome of a COMMIT without an answer: rows that it did not find are not there."""
    return False


def _plan(claim: TaskClaim[PgWriteSession]) -> PostgresPlan:
    assert isinstance(claim.plan, PostgresPlan)
    return claim.plan


def _slices(most: int, rows: pa.Table) -> Iterable[Rows]:
    return (rows.slice(start, most) for start in range(0, rows.num_rows, most))


class _Sessions:
    """Makes the sessions of an attempt."""

    def __init__(self, database: PostgresTasks, claim: TaskClaim[PgWriteSession]) -> None:
        self._database, self._claim = database, claim
        self._has_made = False

    def connect(self) -> PgWriteSession:
        purpose = f"write {self._claim.plan.job}"
        session = self._database.kept.take() or reach(
            self._database.options, failure=TargetError, purpose=purpose
        )
        session.counts_in(_plan(self._claim))
        if self._has_made:
            _log.warning(
                "task %d lost its connection to the target, and continues with another",
                self._claim.task,
            )
        self._has_made = True
        return session


def _explained(
    database: PostgresTasks, claim: TaskClaim[PgWriteSession], error: TargetError
) -> TargetError:
    """What an error that ended the task's transaction means.

    Raises:
        SupersededError: a run that took over has ended the session: say that, and not how.
    """
    if is_gone(error):
        purpose = f"look after {claim.plan.job}"
        try:
            in_session(database, TargetError, purpose, claim.check)
        except SupersededError:
            raise
        except TargetError as failure:
            _log.debug("task %d could not look at its claim: %s", claim.task, failure)
        return TargetError(
            f"task {claim.task}: the connection was lost, and nothing of this attempt was stored. {error}"
        )
    if is_refused_data(error):
        return TargetError(f"task {claim.task}: a row is refused. {error}")
    return error


@final
class Copier:
    """Encodes the rows of an attempt, and sends them by COPY."""

    def __init__(
        self,
        database: PostgresTasks,
        claim: TaskClaim[PgWriteSession],
        *,
        clock: Clock | None = None,
    ) -> None:
        self._database, self._claim = database, claim
        self._options, self._plan = database.options, _plan(claim)
        self._clock = clock or SYSTEM_CLOCK

    def copy(
        self, session: PgWriteSession, schema: str, table: str, rows: Rows, spread: float
    ) -> None:
        """Immediately; where there is time, spread over it."""
        if spread:
            paced = self._paced(session)
            paced.begin(rows.num_rows, spread)
            paced.copy(session, schema, table, rows, self.encoded)
        else:
            session.copy(schema, table, self.encoded(rows))

    def copy_held(
        self,
        session: PgWriteSession,
        schema: str,
        table: str,
        tables: list[pa.Table],
        spread: Spread,
    ) -> None:
        """In pieces."""
        paced, count = self._paced(session), sum(rows.num_rows for rows in tables)
        short_rows = max(_LEAST_PIECE, count // _LEAST_PIECES)
        paced.begin(count, spread.seconds, spread.parts, short_rows=short_rows)
        for rows in tables:
            paced.copy(session, schema, table, rows, self.encoded)

    def _paced(self, session: PgWriteSession) -> PacedCopy:
        if session.pace is None:
            session.pace = PacedCopy(session, self._database.row_cost, self._clock)
        return session.pace

    def encoded(self, rows: Rows) -> CopyRows:
        """Rows as COPY takes them.

        Raises:
            BatchRefusedError: a value that the table would change.
        """
        if not self._plan.native:
            # It imports numpy, which rows from another PostgreSQL need not.
            from spark_channel.connectors.postgresql.copy.encoding import copy_rows

            return copy_rows(self._encode(rows))
        pieces = [native_data(column) for column in rows.to_batches()]
        return CopyRows(self._plan.target.names, rows.num_rows, pieces)

    def _encode(self, rows: Rows) -> pa.RecordBatch:
        is_exact = self._options.convert == "strict"
        try:
            batch = encode(rows, written_columns(self._plan.target), exact=is_exact)
        except BadValueError as error:
            raise refused_value(DIALECT, self._claim, error) from None
        if self._options.write_mode != "apply":
            return batch
        return batch.append_column(OPERATION, _operations(rows))


def _operations(rows: Rows) -> pa.Array:
    words: Any = pc.utf8_lower(pc.cast(rows.column(OPERATION), pa.string()))
    if isinstance(words, pa.ChunkedArray):
        words = words.combine_chunks()
    is_valid = pc.is_in(words, pa.array(_OPERATIONS))
    if not pc.all(is_valid).as_py():
        strange = words.filter(pc.invert(is_valid))[0].as_py()
        raise BatchRefusedError(
            f"column {OPERATION!r} holds {strange!r}; it takes one of: {', '.join(_OPERATIONS)}"
        )
    return words


@final
class PostgresStaging:
    """Stages chunks in the run's table, or in one of the attempt's own, which its first chunk makes.

    The outcome of a COMMIT without an answer is asked for by the number of its transaction. A publish removes rows that
    no receipt names.
    """

    has_session = opens_first = True
    fences_last = False

    def __init__(
        self,
        database: PostgresTasks,
        claim: TaskClaim[PgWriteSession],
        copier: Copier,
        name: str,
        *,
        is_own: bool = False,
    ) -> None:
        self._database, self._claim, self._copier = database, claim, copier
        self._schema, self.name, self._is_own = claim.plan.place.staging, name, is_own
        self.sql = table_sql(self._schema, name)
        self.is_made = not is_own
        self._chunks: dict[str, int] = {}

    def ready(self, session: PgWriteSession) -> None:
        """The claim is this run's, and the staging is there, with all that this attempt has put in."""
        if not self.is_made:
            return
        with session.closed_on_failure():
            self._claim.show_life(session)
            if session.value(f"SELECT to_regclass({literal_sql(self.sql)})::text") is None:
                raise TargetError(
                    f"the staging table {self.sql} no longer exists: the job was aborted or has ended"
                )
            if self._chunks:
                numbers = ", ".join(f"'{int(number) % (1 << 32)}'" for number in self._chunks)
                query = f"SELECT count(*) FROM {self.sql} WHERE xmin::text IN ({numbers})"  # noqa: S608 - a quoted name, and numbers
                if session.value(query) != sum(self._chunks.values()):
                    raise TargetError(
                        f"task {self._claim.task}: the server crashed, and with it went the rows staged in "
                        f"{self.sql}, an unlogged table: the task has to begin again"
                    )

    def add(self, session: PgWriteSession | None, rows: Rows, before: int, spread: float) -> bool:
        assert session is not None
        try:
            if not self.is_made:
                create_stage(session, self._claim.plan.target, self._schema, self.name)
                self.is_made = True
                # A run that takes over later finds the table and drops it; of one that did before, this says so.
                self._claim.check(session)
            number = self._committed(session, rows, spread)
        except TargetError as error:
            if is_refused_data(error):
                raise TargetError(f"task {self._claim.task}: a row is refused. {error}") from error
            if sqlstate_of(error) == _NO_TABLE:
                self.ready(session)
            raise
        self._chunks[str(number)] = rows.num_rows
        return session.is_open

    def _committed(self, session: PgWriteSession, rows: Rows, spread: float) -> int:
        """Stage a chunk. Returns the number of its transaction."""
        session.execute(DIALECT.begin)
        try:
            self._copier.copy(session, self._schema, self.name, rows, spread)
            number = transaction_number(session)
        except BaseException:
            session.undo()
            raise
        commit(session, self._database.options, number, TargetError)
        return number

    def carried(self, rows: list[pa.Table]) -> dict[str, Any] | None:
        most = self._database.options.batch_size
        chunks = [self._copier.encoded(chunk) for table in rows for chunk in _slices(most, table)]
        if sum(piece.nbytes for chunk in chunks for piece in chunk.pieces) > _ENCODED_BYTES:
            return None
        return {HELD: [(chunk.names, chunk.count, b"".join(chunk.pieces)) for chunk in chunks]}

    def finish(self) -> dict[str, Any]:
        return {CHUNKS: dict(self._chunks)}

    def forget(self, session: PgWriteSession | None) -> None:
        if not self._is_own or not self.is_made:
            return
        place = self._claim.plan.place
        if session is None:
            in_session(
                self._database,
                TargetError,
                f"write {self._claim.plan.job}",
                lambda other: self._database.drop_staging(other, place, [self.name]),
            )
        elif session.is_open:
            session.undo()
            self._database.drop_staging(session, place, [self.name])


@final
class PostgresLoader:
    """Copies rows into the table, or through a temporary table of the transaction, where keys or casts decide."""

    opens: Literal["transaction"] = "transaction"
    asks_again = False

    def __init__(
        self, database: PostgresTasks, claim: TaskClaim[PgWriteSession], copier: Copier
    ) -> None:
        self._database, self._claim, self._copier = database, claim, copier
        self._mode = database.options.write_mode
        self._goes_through = not _is_plain(database.options, claim)
        self._has_keys = self._mode in ("upsert", "skipExisting")
        self._has_rows = False

    def ready(self, session: PgWriteSession) -> None:
        pass

    def begin(self, session: PgWriteSession) -> None:
        if self._claim.is_done(session):
            return
        self._claim.check(session)
        session.start(DIALECT.begin)
        if self._goes_through:
            columns = ", ".join(stage_columns(_plan(self._claim).target))
            session.execute(f"CREATE TEMPORARY TABLE {_ROWS} ({columns}) ON COMMIT DROP")
        if self._has_keys:
            keys = keys_sql(self._claim.plan.target)
            session.execute(
                f"CREATE TEMPORARY TABLE {_KEYS} ON COMMIT DROP AS SELECT {keys} FROM {_ROWS}"  # noqa: S608 - names are quoted
            )
            session.execute(f"ALTER TABLE pg_temp.{_KEYS} ADD PRIMARY KEY ({keys})")

    def insert(self, session: PgWriteSession, rows: Rows, before: int, spread: float) -> None:
        if self._claim.plan.one_pass and not self._has_rows:
            # Before the first rows it may wait for its source, and locks none.
            session.execute(_END_LATE.format(most=LOCKED_SECONDS * 1_000))
        self._has_rows = True
        target = self._claim.plan.target
        if not self._goes_through:
            self._copier.copy(session, target.schema, target.name, rows, spread)
            return
        self._copier.copy(session, "pg_temp", _ROWS, rows, spread)
        PostgresMerge(session, target, f"pg_temp.{_ROWS}", self._mode, count=rows.num_rows).bring()
        if self._has_keys:
            keys = keys_sql(target)
            session.execute(f"INSERT INTO pg_temp.{_KEYS} SELECT {keys} FROM pg_temp.{_ROWS}")  # noqa: S608 - names are quoted
        session.execute(f"TRUNCATE pg_temp.{_ROWS}")

    def judge(self, session: PgWriteSession, rows: Rows, before: int) -> None:
        with savepoint(self._database, session):
            self.insert(session, rows, before, 0.0)
            session.execute("SET CONSTRAINTS ALL IMMEDIATE")

    def complete(self, session: PgWriteSession, *, judged: bool) -> None:
        pass  # each batch is in the table

    def repeated(self, work: Callable[[], None]) -> None:
        work()


@final
class PostgresHeldLoader:
    """Copies held rows into the table, or brings those of `staging` in, in one short transaction."""

    opens: Literal["session"] = "session"
    asks_again = False

    def __init__(
        self,
        database: PostgresTasks,
        claim: TaskClaim[PgWriteSession],
        copier: Copier,
        staging: PostgresStaging,
    ) -> None:
        self._database, self._claim, self._copier = database, claim, copier
        self._staging = staging
        self._is_plain = _is_plain(database.options, claim)
        self._is_checked = False

    def ready(self, session: PgWriteSession) -> None:
        if self._is_checked:
            return
        schema = self._claim.plan.place.staging
        with session.closed_on_failure():
            if not session.value(f"SELECT has_schema_privilege({literal_sql(schema)}, 'CREATE')"):
                raise NoStagingError(
                    f"this role may not create a staging table in schema {schema} (GRANT CREATE): the transaction "
                    f"of task {self._claim.task} is open for as long as the limit makes the task last, also in a pause"
                )
            if not self._claim.is_done(session):
                self._claim.show_life(session)
        self._is_checked = True

    def begin(self, session: PgWriteSession) -> None:
        # Before the first piece: its rows are locked.
        session.begin("ISOLATION LEVEL READ COMMITTED", END_WHEN_SILENT)

    def bring(
        self,
        session: PgWriteSession,
        rows: list[pa.Table],
        spread: Spread,
        refuse: RefuseRow | None,
    ) -> None:
        plan, staging = _plan(self._claim), self._staging
        if not staging.is_made and self._is_plain:
            self._copier.copy_held(session, plan.target.schema, plan.target.name, rows, spread)
            return
        if not staging.is_made:
            create_stage(session, plan.target, plan.place.staging, staging.name)
            self._copier.copy_held(session, plan.place.staging, staging.name, rows, spread)
        count = self._claim.tally.rows
        bring_staged(session, plan, staging.sql, self._database.options, count, overwrite=False)

    def clear(self, session: PgWriteSession) -> None:
        if self._staging.is_made or not self._is_plain:
            drop_stage(session, self._claim.plan.place.staging, self._staging.name)

    def repeated(self, work: Callable[[], None]) -> None:
        what = f"committing task {self._claim.task}"
        retry(self._database, what).call(
            work, lambda error: isinstance(error, TargetError) and is_gone(error)
        )


def _is_plain(options: PostgresWriteOptions, claim: TaskClaim[PgWriteSession]) -> bool:
    """Whether rows are copied into the table as they are."""
    casts = any(column.cast for column in written_columns(claim.plan.target))
    return options.write_mode == "insert" and not casts
