"""One attempt of one task: `commit=job` loads its rows into a staging table, `commit=task` into the table itself."""

import re
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, TypeVar

import pyarrow as pa

from spark_channel.connectors.base.claims import Claim
from spark_channel.connectors.base.contract import Receipt
from spark_channel.connectors.base.health import RowCost, seconds_per_row, way_seconds
from spark_channel.connectors.mysql.dialect import MysqlTable
from spark_channel.connectors.mysql.options import MysqlWriteOptions
from spark_channel.connectors.mysql.session import (
    IGNORED_ROWS,
    NO_TABLE,
    TABLE_EXISTS,
    LostConnectionError,
    MysqlWriteSession,
    code_of,
    quoted,
    was_rolled_back,
)
from spark_channel.connectors.mysql.types import (
    assignments,
    insert_values,
    load_lines,
    wider_text,
)
from spark_channel.connectors.mysql.write.dialect import check_transactional, staged_columns
from spark_channel.connectors.mysql.write.publish import (
    PIECE_SECONDS,
    check_affected,
    create_stage,
    drop_tables,
    duplicate_words,
    end_sessions,
    hold,
    in_turn,
    insert_staged,
    table_in,
    table_lock,
    take_over,
    turns_end,
)
from spark_channel.connectors.sql.catalog import WriteColumn
from spark_channel.connectors.sql.pacing import WritePacer, adding_seconds
from spark_channel.connectors.sql.write.claims import Claims
from spark_channel.connectors.sql.write.encode import BadValueError
from spark_channel.connectors.sql.write.plan import SqlPlan
from spark_channel.connectors.sql.write.task_writer import (
    LOCKED_SECONDS,
    DirectTaskWriter,
    OnePassTask,
    SqlTaskWriter,
    StagedTaskWriter,
)
from spark_channel.connectors.sql.write.writer import SqlWriter
from spark_channel.errors import BatchRefusedError, ChannelError, TargetError
from spark_channel.plain_text import log_of
from spark_channel.retry import Retry

__all__ = [
    "TASK_SECONDS",
    "Loader",
    "MysqlDirectWriter",
    "MysqlOnePassWriter",
    "MysqlStagedWriter",
    "RefusedRowsError",
    "is_of_rows",
]

_log = log_of(__name__)
_MOST_PACKET = 4 << 20
_FILE = "spark_channel_rows"
"""What the server calls the rows of a LOAD DATA: there is no such file."""
_WAYS = 2
"""A LOAD DATA goes to the server and back twice."""
_NEAR_SECONDS = 0.002
"""The round trip to a server, above which pieces take no turns: the server would be idle meanwhile."""


_CUT = re.compile(r"Data (?:truncated|too long) for column '(.+?)'")
"""What a server says of a text that is longer than its column."""


class RefusedRowsError(Exception):
    """The server took rows only with warnings: some of those from `begin` to `end` of the batch.

    MariaDB has no errors of values in LOAD DATA LOCAL: findings/mariadb-load-data-local-warns.sh
    """

    begin = end = 0


class Loader:
    """Loads batches into `table`. A value that the server would change or leave out is an error, and no row of that
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
            session.rows("SET SESSION sql_notes = 0")  # each cut fraction is a note
        self._table, self._label = table, table.replace("`", "")
        self._columns = columns
        self._instants = any(_is_instant(column.kind) for column in columns)
        self._local = (session.local_infile if local is None else local) and words is None
        self._cost = cost
        self._way = 0.0 if cost is None else way_seconds(lambda: session.rows("SELECT 1"))
        self._pacer = WritePacer(PIECE_SECONDS, empty_seconds=_WAYS * self._way)
        if not self._local:
            self._packet = min(_MOST_PACKET, session.most_packet // 2)

    def load(self, rows: pa.RecordBatch, spread: float = 0.0) -> None:
        """Load all `rows`: under a limit in pieces over `spread` seconds, else at once.

        Raises:
            BadValueError: a value that cannot be stored exactly, found here.
            RefusedRowsError: a value that the server would change.
            BatchRefusedError: a row that it left out.
        """

        def send(begin: int, end: int) -> None:
            try:
                self._send(rows.slice(begin, end - begin))
            except BadValueError as error:
                error.index += begin
                raise
            except RefusedRowsError as error:
                error.begin, error.end = begin, min(end, rows.num_rows)
                raise

        with self._session.in_utc() if self._instants else nullcontext():
            if spread and self._cost is not None:
                until = turns_end(spread) if self._way <= _NEAR_SECONDS else None

                def send_in_turn(begin: int, end: int) -> float:
                    return in_turn(lambda: send(begin, end), until)

                self._pacer.run(send_in_turn, 0, rows.num_rows, spread=spread)
                return
            most = rows.num_rows if self._words is None else IGNORED_ROWS
            for begin in range(0, rows.num_rows, max(1, most)):
                send(begin, begin + most)

    def _send(self, part: pa.RecordBatch) -> None:
        if self._local:
            self._load(load_lines(part, self._columns, exact=self._exact), part.num_rows)
            return
        names = ", ".join(quoted(column.target) for column in self._columns)
        verb, more = self._words or ("INSERT", "")
        for text, rows in insert_values(part, self._columns, self._packet, exact=self._exact):
            self._run(f"{verb} INTO {self._table} ({names}) VALUES {text}{more}", rows)

    def _load(self, lines: memoryview, rows: int) -> None:
        names, sets = assignments(self._columns, quoted)
        with self._session.may_send(_FILE, lines):
            self._run(
                f"LOAD DATA LOCAL INFILE '{_FILE}' INTO TABLE {self._table} "
                "CHARACTER SET utf8mb4 FIELDS TERMINATED BY ',' OPTIONALLY ENCLOSED BY '\"' ESCAPED BY '' "
                f"LINES TERMINATED BY '\\n' ({names}){sets}",
                rows,
                ways=_WAYS,
            )

    def _run(self, sql: str, rows: int, *, ways: int = 1) -> None:
        """`ways`: how often the statement goes to the server and back."""
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
        check_affected(self._label, rows, affected, self._words or ("INSERT", ""))


def _is_instant(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind)) and kind.tz is not None


_T = TypeVar("_T")
_MOST_KEPT = 32 << 20
"""Bytes of rows that an attempt keeps, to load them again when the server rolls it back to end a deadlock."""
_MOST_HELD = 64 << 20
_MOVE_SECONDS = 2.0
"""Over so many seconds rows that were held are sent to the temporary table, when they are too many."""
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


class _MysqlTaskWriter(SqlTaskWriter[MysqlWriteSession]):
    """Shared by both commit modes: the messages of refusals, and of a lost connection."""

    _options: MysqlWriteOptions

    @property
    def _exact(self) -> bool:
        return self._options.convert == "strict"

    @contextmanager
    def _refusals(self, before: int) -> Iterator[None]:
        """Around the load of rows, before which the attempt took `before`."""
        try:
            yield
        except BadValueError as error:
            raise self._refused(error, before) from None
        except RefusedRowsError as error:
            if self.tolerant:
                raise BatchRefusedError(str(error)) from None
            first, last = before + error.begin + 1, before + error.end
            raise BatchRefusedError(
                f"rows {first} to {last} of task {self._task} cannot be stored in table "
                f"{self._plan.target.label!r} as they are: {error}{self._widened(str(error))}"
            ) from None

    def _widened(self, said: str) -> str:
        """The statement that widens the column whose texts the server has cut."""
        cut = _CUT.search(said)
        for each in self._plan.target.columns:
            if cut is not None and each.target == cut[1]:
                return self._widening(each.column, wider_text(each.declared))
        return ""

    def _new_session(self) -> MysqlWriteSession:
        return MysqlWriteSession(
            self._options, TargetError, local_infile=self._options.local_infile is not False
        )


class MysqlStagedWriter(_MysqlTaskWriter, StagedTaskWriter[MysqlWriteSession]):
    """`commit=job`: each attempt stages in its own table.

    After a lost connection the rows of the table are counted: a chunk is there whole or not at all.
    """

    def __init__(
        self, writer: SqlWriter[MysqlWriteSession], plan: SqlPlan, task: int, attempt: int
    ) -> None:
        self._table: str | None = None
        self._life = ""
        self._loader: Loader | None = None
        super().__init__(writer, plan, task, attempt)

    def _prepare(self) -> None:
        self._lasting(lambda _again: None)

    def finish(self) -> dict[str, Any]:
        # Only a look, which ends early what the publish would refuse.
        self._lasting(lambda _again: self._fence())
        return {"table": self._table}

    def _fence(self) -> Claim:
        return self._claims(self._open).fence(self._plan.claim)

    def _forget(self) -> None:
        try:
            if self._session is None:
                self._session = self._new_session()
            assert self._table is not None
            drop_tables(self._session, [self._sql(self._table)])
        except (ChannelError, LostConnectionError):
            pass  # the server is away: the job's end removes the table

    def _lasting(self, work: Callable[[bool], object]) -> None:
        try:
            super()._lasting(work)
        except LostConnectionError as error:
            raise TargetError(error.text) from error

    def _connect(self) -> None:
        """A session whose end can be waited for, by the lock that it holds."""
        super()._connect()
        if self._life:
            hold(self._open, self._life)
        life = f"spark_channel:{secrets.token_hex(16)}"
        hold(self._open, life)
        self._life = life
        if self._loader is not None:  # the table is there
            self._loader = self._new_loader()

    def _new_loader(self) -> Loader:
        assert self._table is not None
        return Loader(
            self._open,
            self._sql(self._table),
            staged_columns(self._plan.target),
            self._options.local_infile,
            exact=self._exact,
            cost=self._writer.row_cost if self._is_limited else None,
        )

    def _sql(self, table: str) -> str:
        return table_in(self._plan.place.staging, table)

    def store(self, rows: pa.Table, before: int) -> None:
        try:
            super().store(rows, before)
        except TargetError as error:
            if code_of(error) == NO_TABLE:  # whoever took over dropped it
                self._lasting(lambda _again: self._fence())
            raise

    def _stage(self, rows: pa.RecordBatch | pa.Table, before: int) -> None:
        if self._loader is None:
            self._create()
        assert self._loader is not None
        with (
            self._refusals(before),
            self._writer.transaction(self._open),
        ):
            self._loader.load(rows, self.spread)

    def _create(self) -> None:
        if self._table is None:
            self._table = self._new_stage()
        try:
            create_stage(
                self._open,
                self._sql(self._table),
                staged_columns(self._plan.target),
                temporary=False,
            )
        except TargetError as error:
            if code_of(error) != TABLE_EXISTS:  # there already: its CREATE was not answered
                raise
        # A run that takes over later finds the table and drops it; of one that did before, the attempt learns here.
        self._claims(self._open).show_life(self._plan.claim, self._fence())
        self._loader = self._new_loader()

    def _is_staged(self, before: int, after: int) -> bool:
        return self._loader is not None and super()._is_staged(before, after)

    def _count(self) -> str:
        assert self._table is not None
        return f"SELECT COUNT(*) FROM {self._sql(self._table)}"  # noqa: S608 - names are quoted


class MysqlDirectWriter(_MysqlTaskWriter, DirectTaskWriter[MysqlWriteSession]):
    """`commit=task`: the transaction holds the claim at its end.

    `writeMode=insert` loads batches straight into the table; under a limit it holds the rows, up to `capacityBytes` of
    them, and loads them at the end. The other modes, and a larger task under a limit, gather rows in a temporary table,
    and bring them in at the end; when refused rows are allowed, at once, since the target itself judges each batch.
    """

    def _prepare(self) -> None:
        options, plan = self._options, self._plan
        self._gathers, self._came_at = self._writer.outlasts(plan), self._clock.now()
        insert, self._words = options.write_mode == "insert", None
        if insert and options.duplicates != "error" and not plan.place.has_ledger:
            # A role that may create no table may create no temporary one.
            self._words = duplicate_words(plan.target, options)
        straight = insert and (options.duplicates == "error" or self._words is not None)
        holds = self._gathers and insert and options.duplicates == "error"
        self._held: list[pa.RecordBatch | pa.Table] | None = [] if holds else None
        self._held_bytes = 0
        self._straight = holds or (straight and not self._gathers)
        self._loaded: list[pa.RecordBatch | pa.Table] | None = []
        self._loaded_bytes = 0
        self._session = self._new_session()
        try:
            self._loader = self._new_loader(self._session)
        except BaseException as error:
            self.rollback()
            if isinstance(error, LostConnectionError):
                raise TargetError(error.text) from error
            raise

    def write(self, batch: pa.RecordBatch) -> None:
        if not self._tally.rows:
            self._came_at = self._clock.now()  # the first task of a job is opened long before
        super().write(batch)

    def finish(self) -> dict[str, Any]:
        try:
            if self._held is not None:
                self._ensure_session()
            super().finish()
        except LostConnectionError as error:
            self._open.close()
            self._done = self._after_loss(error)
        return {}

    def _ensure_session(self) -> None:
        """Have a session: one that ended in a pause held nothing of the task."""
        try:
            self._open.ping()
        except (ChannelError, LostConnectionError):
            self._open.close()
            self._session = self._new_session()
            self._loader = self._new_loader(self._session)

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
            cost=self._writer.row_cost if self._is_limited or self._gathers else None,
        )

    @property
    def _temporary(self) -> str:
        return table_in(self._plan.place.staging, _TEMPORARY)

    def _begin(self, session: MysqlWriteSession) -> None:
        """Begin the transaction in which the table is written, unless the task has committed.

        No other attempt of the task has one then, of this run or one that it took over: its locks on keys would stop
        this one.
        """
        claims, held = self._claims(session), self._plan.claim
        if held.epoch > 1:
            epochs = range(max(1, held.epoch - _OLDER_EPOCHS), held.epoch)
            end_sessions(session, [self._lock(epoch) for epoch in epochs])
        take_over(session, self._lock(held.epoch))
        self._done = self._own_receipt(claims)
        if self._done is None:
            self._start(session)

    def _start(self, session: MysqlWriteSession) -> None:
        session.start(self._writer.dialect.begin)

    def _own_receipt(self, claims: Claims) -> Receipt | None:
        """Fence, and return the receipt of an attempt that has committed: never one of a run that took over."""
        held = self._plan.claim
        claims.show_life(held, claims.fence(held))
        return self._committed(claims)

    def _lock(self, epoch: int) -> str:
        """The name of the lock of the task's one transaction in a run."""
        key = self._plan.claim.identity.key[:16]
        return f"spark_channel:{key}_{epoch}_{self._task}"[:64]

    def _add(self, rows: pa.RecordBatch | pa.Table, before: int) -> None:
        try:
            if self._held is not None:
                self._hold(self._held, rows, before)
                return
            with self._refusals(before):
                if self._straight or self.tolerant:
                    super()._add(rows, before)
                    return
                with self._writer.transaction(self._open):
                    self._loader.load(rows, self.spread)
        except LostConnectionError as error:
            raise TargetError(
                f"{error.text}. The attempt's rows were lost with the connection"
            ) from error

    def _hold(
        self, held: list[pa.RecordBatch | pa.Table], rows: pa.RecordBatch | pa.Table, before: int
    ) -> None:
        """Keep `rows` in memory, or send all that are held to the temporary table."""
        held.append(rows)
        self._held_bytes += rows.nbytes
        if self._held_bytes <= min(self._options.capacity_bytes, _MOST_HELD):
            return
        self._ensure_session()
        self._held, self._straight = None, False
        self._loader = self._new_loader(self._open)
        self.spread = _MOVE_SECONDS / len(held)
        before -= sum(each.num_rows for each in held[:-1])
        for each in held:
            self._add(each, before)
            before += each.num_rows

    def _load_held(self, held: list[pa.RecordBatch | pa.Table]) -> None:
        """In pieces, over a part of the time in which they came."""
        if not held:
            return
        (rows,) = pa.Table.from_batches(held).combine_chunks().to_batches()
        held[:] = [rows]  # the same rows, should the server end a deadlock
        with self._refusals(0):
            self._loader.load(rows, self._adding_seconds(rows.num_rows))

    def _adding_seconds(self, rows: int) -> float:
        room = self._options.capacity_rows / max(1, rows)
        took = max(self.arrived_seconds, self._clock.now() - self._came_at)
        return adding_seconds(took, room, overlapped=self.overlapped)

    def _insert(
        self, session: MysqlWriteSession, rows: pa.RecordBatch | pa.Table, before: int
    ) -> None:
        if not self.tolerant:
            self._through_deadlocks(session, lambda: self._loader.load(rows))
            self._keep(rows)
            return
        self._loaded = None  # rows that were judged are not kept
        with self._refusals(before):
            self._loader.load(rows)
        if not self._straight:
            self._bring(session, rows.num_rows)

    def _keep(self, batch: pa.RecordBatch | pa.Table) -> None:
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
                self._start(session)
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

    def _bring(self, session: MysqlWriteSession, rows: int) -> None:
        self._insert_staged(session, rows)
        session.rows(f"DELETE FROM {self._temporary}")  # noqa: S608 - a constant

    def _insert_staged(self, session: MysqlWriteSession, rows: int) -> None:
        insert_staged(
            session,
            self._plan.target,
            self._options,
            [(self._temporary, rows)],
            indexed=True,
            paced=self._gathers,
            spread=self._adding_seconds(rows),
        )

    def _conclude(self, session: MysqlWriteSession) -> None:
        self._through_deadlocks(session, lambda: super(MysqlDirectWriter, self)._conclude(session))

    def _complete(self, session: MysqlWriteSession) -> None:
        session.end_when_silent()  # before the first piece: its rows are locked
        if self._held is not None:
            self._load_held(self._held)
        elif not self._straight and not self.tolerant:
            self._insert_staged(session, self._tally.rows)

    def _after_loss(self, lost: LostConnectionError) -> Receipt:
        """Whether an attempt has committed the rows of one whose connection was lost before its COMMIT."""

        def ask(session: MysqlWriteSession) -> Receipt | None:
            return self._own_receipt(self._claims(session))

        done = self._writer.run(TargetError, f"write {self._plan.job}", ask)
        if done is None:
            raise self._not_committed(lost)
        return done

    @staticmethod
    def _not_committed(lost: LostConnectionError) -> TargetError:
        return TargetError(
            f"{lost.text}. The attempt's rows were not committed: the claims do not have them"
        )


class MysqlOnePassWriter(OnePassTask[MysqlWriteSession], MysqlDirectWriter):
    """See `OnePassTask`."""

    def _own_receipt(self, claims: Claims) -> Receipt | None:
        done = self._committed(claims)
        if done is None:
            held = self._plan.claim
            claims.show_life(held, claims.fence(held))
        return done

    def _start(self, session: MysqlWriteSession) -> None:
        """What empties the table waits for this transaction from its first row on, and so sees all rows or none."""
        lock = table_lock(self._plan.target.label)
        hold(session, lock)  # a publish may last longer than the server lets one wait for a row
        try:
            super()._start(session)
            self._claims(session).keep_table(self._plan.claim)
            table = self._check_table(session)
            assert isinstance(table, MysqlTable)
            check_transactional(session, table)
            ((waits,),) = session.rows("SELECT @@wait_timeout")
            if int(waits) > LOCKED_SECONDS:  # MySQL refuses LEAST here
                session.rows(f"SET SESSION wait_timeout = {LOCKED_SECONDS}")
        finally:
            session.rows("SELECT RELEASE_LOCK(%s)", (lock,))

    def _after_loss(self, lost: LostConnectionError) -> Receipt:
        done = self._writer.settle(self._plan, self._task)
        if done is None:
            raise self._not_committed(lost)
        return done


def is_of_rows(error: TargetError) -> bool:
    """Whether a row is the matter of it."""
    return isinstance(error, BatchRefusedError) or code_of(error) in _DATA_ERRORS
