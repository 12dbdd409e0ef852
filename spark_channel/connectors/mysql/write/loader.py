"""How a task's rows get into a MySQL table: `commit=job` loads them into a staging table of the attempt.

`commit=task` loads an append straight into the table; under a limit its rows are held, up to `most_held` bytes. The
other modes, and a larger task under a limit, gather rows in a temporary table, and bring them in at the end; when
refused rows are allowed, at once, since the target itself judges each batch.
"""

import re
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal, Protocol, final

import pyarrow as pa

from spark_channel.connectors.base.health import RowCost
from spark_channel.connectors.mysql.dialect import MysqlTable
from spark_channel.connectors.mysql.options import MysqlWriteOptions
from spark_channel.connectors.mysql.session import (
    NO_TABLE,
    TABLE_EXISTS,
    LostConnectionError,
    MysqlWriteSession,
    code_of,
    was_rolled_back,
)
from spark_channel.connectors.mysql.types import wider_text
from spark_channel.connectors.mysql.write.dialect import (
    MysqlWriteDialect,
    check_transactional,
    staged_columns,
)
from spark_channel.connectors.mysql.write.load_data import RefusedRowsError, RowSender
from spark_channel.connectors.mysql.write.merge import duplicate_words, insert_staged
from spark_channel.connectors.mysql.write.staging import create_stage, drop_tables, table_in
from spark_channel.connectors.mysql.write.table_locks import (
    end_sessions,
    hold,
    table_lock,
    take_over,
)
from spark_channel.connectors.sql.pacing import Spread
from spark_channel.connectors.sql.write.encode import BadValueError
from spark_channel.connectors.sql.write.in_session import in_transaction
from spark_channel.connectors.sql.write.loading import (
    LOCKED_SECONDS,
    Loading,
    NoStagingError,
    RefuseRow,
    Rows,
    may_last,
    most_held,
)
from spark_channel.connectors.sql.write.refused_value import refused_value, widening
from spark_channel.connectors.sql.write.sessions import WriteSessions
from spark_channel.connectors.sql.write.table_loading import savepoint, staged_whole
from spark_channel.connectors.sql.write.task_claim import TaskClaim
from spark_channel.errors import BatchRefusedError, ChannelError, TargetError
from spark_channel.retry import Retry

__all__ = ["TASK_SECONDS", "MysqlTasks", "is_of_rows", "mysql_loading"]

_CUT = re.compile(r"Data (?:truncated|too long) for column '(.+?)'")
"""What a server says of a text that is longer than its column."""

_AT_ONCE = Spread(0.0)
_REPLAYED_BYTES = 32 << 20
"""Bytes of rows that an attempt keeps, to load them again when the server rolls it back to end a deadlock."""
_LEAST_ROWS = 4_096
"""Batches of so many rows on average are encoded one by one; smaller ones are joined first."""
TASK_SECONDS = 2.5
"""How long a task should last under a limit: its rows are held, and added at its end."""
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


class MysqlTasks(WriteSessions[MysqlWriteSession], Protocol):
    """What is used of the database here."""

    @property
    def options(self) -> MysqlWriteOptions: ...
    @property
    def row_cost(self) -> RowCost: ...


def mysql_loading(
    database: MysqlTasks, claim: TaskClaim[MysqlWriteSession], *, stages: bool
) -> Loading[MysqlWriteSession]:
    """See the head of this file. Without `stages`: the user may not create temporary tables."""
    options, plan = database.options, claim.plan
    connect = partial(
        MysqlWriteSession, options, TargetError, local_infile=options.local_infile is not False
    )
    new_loading = partial(Loading, connect, chunks=_large)
    if plan.commit == "job" and not plan.one_pass:
        staging = MysqlStaging(database, claim)
        return new_loading(staging=staging, holds=staging.holds)
    is_append = options.write_mode == "insert" and options.duplicates == "error"
    is_paced = stages and may_last(options, plan)
    # A role that may create no table may create no temporary one.
    words = (
        duplicate_words(plan.target, options)
        if options.write_mode == "insert" and not (is_append or plan.place.has_ledger)
        else None
    )
    if (is_append or words is not None) and not is_paced:
        return new_loading(direct=MysqlLoader(database, claim, None, words), answers=_answers)
    temporary = TemporaryTable(database, claim, is_paced=is_paced)
    judges = options.tolerates_dirty_rows
    loader = MysqlLoader(database, claim, temporary, None, judges=judges, is_paced=is_paced)
    if judges:
        return new_loading(direct=loader, is_paced=is_paced, answers=_answers)
    return new_loading(
        held=loader,
        staging=temporary,
        held_bytes=most_held(options) if is_append else 0,
        is_paced=is_paced,
        answers=_answers,
    )


def _large(rows: pa.Table) -> list[Rows]:
    """In batches that are large enough to be encoded alone: to join such as are copies all values."""
    is_large = rows.num_rows >= _LEAST_ROWS * max(column.num_chunks for column in rows.columns)
    return [rows if is_large else rows.combine_chunks()]


def _answers(session: MysqlWriteSession) -> bool:
    try:
        session.ping()
    except (ChannelError, LostConnectionError):
        return False
    return True


def _sender(
    database: MysqlTasks,
    claim: TaskClaim[MysqlWriteSession],
    session: MysqlWriteSession,
    table: str,
    *,
    words: tuple[str, str] | None = None,
    is_measured: bool,
) -> RowSender:
    options = database.options
    return RowSender(
        session,
        table,
        staged_columns(claim.plan.target),
        options.local_infile,
        exact=options.convert == "strict",
        words=words,
        cost=database.row_cost if is_measured else None,
        is_native=claim.plan.native,
    )


@contextmanager
def _refusals(
    claim: TaskClaim[MysqlWriteSession], before: int, *, judged: bool = False
) -> Iterator[None]:
    """Around the load of rows, before which the attempt accepted `before`."""
    try:
        yield
    except BadValueError as error:
        raise refused_value(MysqlWriteDialect(), claim, error, before) from None
    except RefusedRowsError as error:
        if judged:
            raise BatchRefusedError(str(error)) from None
        first, last = before + error.begin + 1, before + error.end
        raise BatchRefusedError(
            f"rows {first} to {last} of task {claim.task} cannot be stored in table "
            f"{claim.plan.target.label!r} as they are: {error}{_widened(claim, str(error))}"
        ) from None


def _widened(claim: TaskClaim[MysqlWriteSession], answer: str) -> str:
    """The statement that widens the column whose texts the server has cut."""
    cut = _CUT.search(answer)
    for column in claim.plan.target.columns:
        if cut is not None and column.target == cut[1]:
            wider = wider_text(column.declared)
            return widening(MysqlWriteDialect(), claim.plan, column.column, wider)
    return ""


@final
class MysqlStaging:
    """A staging table of the attempt.

    After a lost connection its rows are counted: a chunk is there whole or not at all.
    """

    has_session = opens_first = fences_last = True

    def __init__(self, database: MysqlTasks, claim: TaskClaim[MysqlWriteSession]) -> None:
        self._database, self._claim = database, claim
        self._table: str | None = None
        self._life = ""
        self._sender: RowSender | None = None

    def ready(self, session: MysqlWriteSession) -> None:
        """The end of the session can be waited for, by the lock that it holds."""
        if self._life:
            hold(session, self._life)
        life = f"spark_channel:{secrets.token_hex(16)}"
        hold(session, life)
        self._life = life
        if self._sender is not None:  # the table is there
            self._sender = self._new_sender(session)

    def _new_sender(self, session: MysqlWriteSession) -> RowSender:
        is_limited = self._database.options.is_limited
        return _sender(self._database, self._claim, session, self._sql, is_measured=is_limited)

    @property
    def _sql(self) -> str:
        assert self._table is not None
        return table_in(self._claim.plan.place.staging, self._table)

    def add(
        self, session: MysqlWriteSession | None, rows: Rows, before: int, spread: float
    ) -> bool:
        assert session is not None
        try:
            sender = self._sender or self._created(session)
            with _refusals(self._claim, before), in_transaction(self._database, session):
                sender.load(rows, spread)
        except TargetError as error:
            if code_of(error) == NO_TABLE:  # whoever took over dropped it
                self._claim.fence(session)
            raise
        return True

    def _created(self, session: MysqlWriteSession) -> RowSender:
        if self._table is None:
            self._table = self._claim.new_stage()
        columns = staged_columns(self._claim.plan.target)
        try:
            create_stage(session, self._sql, columns, temporary=False)
        except TargetError as error:
            if code_of(error) != TABLE_EXISTS:  # there already: its CREATE was not answered
                raise
        # A run that takes over later finds the table and drops it; of one that did before, the attempt learns here.
        self._claim.fence(session, shows_life=True)
        self._sender = self._new_sender(session)
        return self._sender

    def holds(self, session: MysqlWriteSession, before: int, after: int) -> bool:
        if self._sender is None:
            return False
        count = int(session.value(f"SELECT COUNT(*) FROM {self._sql}"))  # noqa: S608 - names are quoted
        return staged_whole(self._claim.task, count, before, after)

    def finish(self) -> dict[str, Any]:
        return {"table": self._table}

    def forget(self, session: MysqlWriteSession | None) -> None:
        if self._table is None:
            return
        try:
            if session is not None:
                drop_tables(session, [self._sql])
                return
            with MysqlWriteSession(self._database.options, TargetError) as other:
                drop_tables(other, [self._sql])
        except (ChannelError, LostConnectionError):
            pass  # the server is away: the job's end removes the table


@final
class TemporaryTable:
    """Gathers the rows of one attempt: a table of its session, which ends with it."""

    has_session = opens_first = True
    fences_last = False

    def __init__(
        self, database: MysqlTasks, claim: TaskClaim[MysqlWriteSession], *, is_paced: bool
    ) -> None:
        self._database, self._claim, self._is_paced = database, claim, is_paced
        self.sql = table_in(claim.plan.place.staging, _TEMPORARY)
        self.sender: RowSender | None = None
        """None: there is no table."""

    def ready(self, session: MysqlWriteSession) -> None:
        options, target = self._database.options, self._claim.plan.target
        columns = staged_columns(target)
        try:
            create_stage(session, self.sql, columns, temporary=True, key=target.key)
        except TargetError as error:
            is_append = options.write_mode == "insert" and options.duplicates == "error"
            if not is_append or code_of(error) not in _NO_RIGHT:
                raise
            raise NoStagingError(
                "this user may not create temporary tables (GRANT CREATE TEMPORARY TABLES): "
                f"the transaction of task {self._claim.task} is open for as long as the limit makes the task last, "
                "also in a pause"
            ) from error
        is_measured = options.is_limited or self._is_paced
        self.sender = _sender(
            self._database, self._claim, session, self.sql, is_measured=is_measured
        )

    def add(
        self, session: MysqlWriteSession | None, rows: Rows, before: int, spread: float
    ) -> bool:
        assert session is not None
        assert self.sender is not None
        with _refusals(self._claim, before), in_transaction(self._database, session):
            self.sender.load(rows, spread)
        return True

    def finish(self) -> dict[str, Any]:
        return {}

    def forget(self, session: MysqlWriteSession | None) -> None:
        pass


@final
class MysqlLoader:
    """Loads rows into the table, or brings those of `temporary` in."""

    opens: Literal["session"] = "session"
    asks_again = False

    def __init__(
        self,
        database: MysqlTasks,
        claim: TaskClaim[MysqlWriteSession],
        temporary: TemporaryTable | None,
        words: tuple[str, str] | None,
        *,
        judges: bool = False,
        is_paced: bool = False,
    ) -> None:
        self._database, self._claim = database, claim
        self._temporary, self._words = temporary, words
        self._judges, self._is_paced = judges, is_paced
        self._sender: RowSender | None = None
        self._session: MysqlWriteSession | None = None
        """That in which the transaction was begun."""
        self._replayed: list[Rows] | None = []
        self._replayed_bytes = 0

    def ready(self, session: MysqlWriteSession) -> None:
        if self._judges and self._temporary is not None:
            self._temporary.ready(session)
            self._sender = self._temporary.sender
            return
        is_measured = self._database.options.is_limited or self._is_paced
        self._sender = _sender(
            self._database,
            self._claim,
            session,
            self._claim.plan.target.sql,
            words=self._words,
            is_measured=is_measured,
        )

    def begin(self, session: MysqlWriteSession) -> None:
        """No other attempt of the task has a transaction then, of this run or one that it took over: its locks on keys
        would stop this one.
        """
        if self._session is session:
            return  # `repeated` has begun it again
        claim = self._claim
        epoch = claim.plan.claim.epoch
        if epoch > 1:
            epochs = range(max(1, epoch - _OLDER_EPOCHS), epoch)
            end_sessions(session, [self._lock(older) for older in epochs])
        take_over(session, self._lock(epoch))
        # A run that was overtaken has no say; one that has published in one pass holds no claim any more.
        if claim.plan.one_pass:
            if not claim.is_done(session):
                claim.fence(session, shows_life=True)
        else:
            claim.fence(session, shows_life=True)
            claim.is_done(session)
        if claim.done is None:
            self._start(session)
            self._session = session

    def _lock(self, epoch: int) -> str:
        """The name of the lock of the task's one transaction in a run."""
        key = self._claim.plan.claim.identity.key[:16]
        return f"spark_channel:{key}_{epoch}_{self._claim.task}"[:64]

    def _start(self, session: MysqlWriteSession) -> None:
        if not self._claim.plan.one_pass:
            session.start(self._database.dialect.begin)
            return
        # What empties the table waits for this transaction from its first row on, and so sees all rows or none.
        lock = table_lock(self._claim.plan.target.label)
        hold(session, lock)  # a publish may last longer than the server lets one wait for a row
        try:
            session.start(self._database.dialect.begin)
            self._claim.hold_table(session)
            table = self._claim.planned_table(session)
            assert isinstance(table, MysqlTable)
            check_transactional(session, table)
            ((waits,),) = session.rows("SELECT @@wait_timeout")
            if int(waits) > LOCKED_SECONDS:  # MySQL refuses LEAST here
                session.execute(f"SET SESSION wait_timeout = {LOCKED_SECONDS}")
        finally:
            session.execute("SELECT RELEASE_LOCK(%s)", (lock,))

    def insert(self, session: MysqlWriteSession, rows: Rows, before: int, spread: float) -> None:
        with _refusals(self._claim, before):
            self.repeated(partial(self._send, rows))
        if self._judges and self._temporary is not None:
            self._merge(session, self._temporary, rows.num_rows)
        self._keep(rows)

    def _send(self, rows: Rows, spread: Spread = _AT_ONCE) -> None:
        assert self._sender is not None
        self._sender.load(rows, spread.seconds, spread.parts)

    def judge(self, session: MysqlWriteSession, rows: Rows, before: int) -> None:
        self._replayed = None  # rows that were judged are not kept
        with savepoint(self._database, session):
            with _refusals(self._claim, before, judged=True):
                self._send(rows)
            if self._temporary is not None:
                self._merge(session, self._temporary, rows.num_rows)

    def _merge(self, session: MysqlWriteSession, temporary: TemporaryTable, rows: int) -> None:
        self._insert_staged(session, temporary, rows, 0.0)
        session.execute(f"DELETE FROM {temporary.sql}")  # noqa: S608 - a constant

    def _keep(self, rows: Rows) -> None:
        if self._replayed is not None:
            self._replayed.append(rows)
            self._replayed_bytes += rows.nbytes
            if self._replayed_bytes > _REPLAYED_BYTES:
                self._replayed = None

    def complete(self, session: MysqlWriteSession, *, judged: bool) -> None:
        session.end_when_silent()  # before the end: its rows are locked

    def bring(
        self,
        session: MysqlWriteSession,
        rows: list[pa.Table],
        spread: Spread,
        refuse: RefuseRow | None,
    ) -> None:
        session.end_when_silent()  # before the first piece: its rows are locked
        if self._temporary is not None and self._temporary.sender is not None:
            self._insert_staged(session, self._temporary, self._claim.tally.rows, spread.seconds)
        elif rows:
            table = pa.concat_tables(rows).combine_chunks()
            rows[:] = [table]  # the same rows, should the server end a deadlock
            with _refusals(self._claim, 0):
                self._send(table, spread)

    def _insert_staged(
        self, session: MysqlWriteSession, temporary: TemporaryTable, rows: int, spread: float
    ) -> None:
        insert_staged(
            session,
            self._claim.plan.target,
            self._database.options,
            [(temporary.sql, rows)],
            indexed=True,
            paced=self._is_paced,
            spread=spread,
        )

    def clear(self, session: MysqlWriteSession) -> None:
        pass

    def repeated(self, work: Callable[[], None]) -> None:
        """Again when the server ends a deadlock by rolling the transaction back, behind the rows that were in it."""
        is_again = False

        def attempt() -> None:
            nonlocal is_again
            if is_again and self._session is not None:
                self._session.execute("ROLLBACK")
                self._start(self._session)
                for rows in self._replayed or ():
                    self._send(rows)
            is_again = True
            try:
                work()
            except TargetError as error:
                if was_rolled_back(error) and self._replayed is None:
                    raise TargetError(
                        f"{error}. The task's rows are not kept to be sent again "
                        f"(more than {_REPLAYED_BYTES >> 20} MiB, or judged one by one): Spark runs the task again"
                    ) from None
                raise

        timeout, activity = self._database.options.retry_timeout, f"task {self._claim.task}"
        Retry(timeout, first=0.05, longest=1.0, what=activity).call(attempt, was_rolled_back)


def is_of_rows(error: TargetError) -> bool:
    """Whether a row is the matter of it."""
    return isinstance(error, BatchRefusedError) or code_of(error) in _DATA_ERRORS
