"""Session: rows, stream, load, publish; user scripts; rests under limits."""

import re
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self

import pyarrow as pa

from spark_channel.clock import SYSTEM_CLOCK, Clock
from spark_channel.connectors.base.health import seconds_per_row
from spark_channel.connectors.base.types import sqlglot, tokens
from spark_channel.errors import ChannelError, OptionError, TargetError
from spark_channel.masking import mask_statement

__all__ = [
    "BY_ITSELF",
    "HIDDEN",
    "IN_SESSION",
    "IN_TRANSACTION",
    "TRANSACTION_WORDS",
    "BatchSize",
    "BoundSession",
    "DriverSession",
    "PacedFetch",
    "Session",
    "WriteSession",
    "committed",
    "in_pieces",
    "run_in_transaction",
    "session_script",
    "split_script",
    "transaction",
]


HIDDEN = "its words may quote a value, and are hidden: run the query in a client of the database to see them"
"""In the place of a server's own words, with option `hideValues`."""

# The interface of a connection to a database.


@dataclass(frozen=True, slots=True)
class BatchSize:
    """The most rows and about the most bytes of one batch of a result."""

    rows: int
    nbytes: int


class Session(ABC):
    """One connection, used by one thread; transactions are begun and ended by statements.

    What it raises says what the user can do, and is of the class that it was made with: `SourceError` for a read,
    `TargetError` for a write.
    """

    place: str
    """The database, for messages: a file, or host and port. Without any secret."""
    failures: tuple[type[BaseException], ...] = ()
    """What the driver raises."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """End the connection, and with it a transaction that is open. Safe twice, and in the middle of a result."""

    @abstractmethod
    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """All rows of a small result; [] for a statement without one."""

    def value(self, sql: str) -> Any:
        """The first column of the first row; None when there is none."""
        rows = self.rows(sql)
        return rows[0][0] if rows else None

    def ping(self) -> None:
        """Have the server answer.

        Raises:
            ChannelError: it does not.
        """
        self.rows("SELECT 1")

    def stream(self, sql: str, size: BatchSize) -> Iterator[pa.RecordBatch]:
        """A result as Arrow, fetched while it is consumed. A session that only writes has none.

        A generator: when it is closed early, the server is not made to send the rest.

        Raises:
            ChannelError: also in the middle of the result.
        """
        raise NotImplementedError

    def start(self, begin: str) -> None:
        """Begin a transaction; `begin` is the dialect's statement for it."""
        self.rows(begin)

    def commit(self) -> None:
        """End the transaction with its changes."""
        self.rows("COMMIT")

    def undo(self) -> None:
        """End the transaction without its changes."""
        self.rows("ROLLBACK")

    def rest(self) -> None:  # noqa: B027 - a connection in autocommit has nothing open
        """Between two short statements: end the transaction that the last one left open, and its locks."""

    @abstractmethod
    def explain(self, error: BaseException) -> ChannelError:
        """`error` of the driver as an error for the user."""

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Raise the driver's errors in the block as errors for the user."""
        try:
            yield
        except self.failures as error:
            # Its text may quote the statement, and is shown as the cause.
            error.args = tuple(
                mask_statement(each) if isinstance(each, str) else each for each in error.args
            )
            raise self.explain(error) from error

    @contextmanager
    def closed_on_failure(self) -> Iterator[None]:
        """Also when a generator is left in the middle of the block."""
        try:
            yield
        except BaseException:
            self.close()
            raise


class DriverSession(Session):
    """Has its driver's connection in `_connection`, and nothing else to end."""

    _connection: Any = None

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(*self.failures):  # it is gone, which is what is wanted
                connection.close()


class BoundSession(DriverSession):
    """Its statements may have parameters, marked as the database marks them."""

    @abstractmethod
    def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]: ...

    def value(self, sql: str, parameters: Sequence[Any] = ()) -> Any:
        rows = self.rows(sql, parameters)
        return rows[0][0] if rows else None


@contextmanager
def transaction(session: Session, begin: str) -> Iterator[None]:
    """Commits in the end; any exception rolls back."""
    session.start(begin)
    with committed(session):
        yield


@contextmanager
def committed(session: Session) -> Iterator[None]:
    """Commits the transaction that is open in the end; any exception rolls back."""
    try:
        yield
        session.commit()
    except BaseException:
        with suppress(Exception):  # else the database, or its connection's end, has rolled back
            session.undo()
        raise


# Staged rows are added to their table in pieces of about a millisecond, with rests between them.


_PIECE_SECONDS = 0.001
_SEEN = 256
_REST, _BUSY, _LONGEST_REST = 3.0, 4.0, 0.5
"""The server rests three times as long as a piece took: as it counts, at most four times what is usual, and half a
second."""


def in_pieces(
    work: Callable[[int, int], float | None],
    begin: int,
    end: int,
    *,
    first: int,
    most: int,
    seconds: float = _PIECE_SECONDS,
    clock: Clock = SYSTEM_CLOCK,
) -> None:
    """`work(a, b)` for ranges that cover `begin` to `end`, none shorter than `first` but the last, none longer than
    `most`.

    A range takes the server about `seconds`, and then it rests for three times as long: it uses a quarter of a core.
    The least that was seen counts: one that is busy with others, or waits for a lock, takes longer for the same work.
    `work` may return the seconds that the server says.
    """
    seen: deque[float] = deque(maxlen=_SEEN)
    at, step = begin, first
    while at < end:
        length, begun = min(step, end - at), clock.now()
        reported = work(at, at + length)
        took = clock.now() - begun if reported is None else reported
        at += length
        seen.append(took / length)
        each = sorted(seen)[len(seen) // 8]
        step = max(first, min(2 * step, most, int(seconds / each) if each else most))
        if at < end:
            clock.sleep(min(_REST * took, _REST * _BUSY * length * each, _LONGEST_REST))


_FIRST_ROWS, _LEAST_ROWS, _MOST_ROWS = 250, 50, 4_096
_FIRST_STATEMENT, _FIRST_SECONDS = 1_000, 0.1
"""The rows of the first statement, and for how long they last at most where the speed is known."""
_PIECES_SEEN = 16
_STATEMENT_SECONDS = 0.35
"""How long a statement's rows last at the speed that was seen. With what waits to be paid, and what is paid, a read is
ahead by at most a second and a half of its limit."""
_SPREAD = 0.75
_LONGEST_SPREAD = 0.5
_BLOCKED = 0.05
"""The part of a cycle that was waited for the limit, below which the job waits for the reader."""
_LEAST_HURRY = 1 / 16
_MOST_LARGER = 8
_STARTING = 8
"""So many statements are read at no more than twice the speed that is expected."""
_CYCLES = 8
_PAUSE_SECONDS = 3.0
"""A cycle that took longer was a pause, and says nothing of the speed."""


class PacedFetch:
    """When the pieces of limited statements are due, and how large they are: the server rests between two.

    Of one thread, for statement after statement; `begin`, for each piece `rest` and `took`, and `handed_on`. A
    statement has the rows of 0.35 s, and one piece of it keeps a core of the server busy for `burst_seconds` at most.
    Pieces are due evenly over three quarters of the time until the next statement; one that is late makes the rests
    behind it shorter. Whoever takes the rows keeps some for the limit to be paid: while it takes them at once, the
    reader is late, and rests less.

    `seconds` is how long a statement may last, `empty_seconds` what one without rows takes, which is the network's
    latency, and `speed` the rows per second that are expected, until a speed was seen; 0.0 = not known.
    """

    def __init__(
        self,
        burst_seconds: float,
        *,
        seconds: float = 5.0,
        empty_seconds: float = 0.0,
        speed: float = 0.0,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._burst_seconds = burst_seconds
        self._expected_speed = speed
        self._longest_spread = min(_LONGEST_SPREAD, seconds / 4)
        self._empty_seconds = empty_seconds
        self._clock = clock
        self._row_seconds: deque[float] = deque(maxlen=_PIECES_SEEN)
        self.most_rows = _MOST_ROWS
        self._rows = _FIRST_ROWS
        self.statement_rows = min(
            _FIRST_STATEMENT,
            max(_LEAST_ROWS, int(speed * _FIRST_SECONDS)) if speed else _FIRST_STATEMENT,
        )
        """The most rows of the next statement."""
        self._spread = 0.0
        self._began = clock.now()
        self._asked = self._taken = 0
        self._hurry = 1.0
        """The part of the usual spread that the next statement has."""
        self._starting = _STARTING if speed else 0
        self._larger = 1
        """Pieces are so many times larger while the reader is late without any rest: each waits in a busy server."""
        self._blocked_at: float | None = None
        self._since_blocked = 0
        self._cycles: deque[tuple[int, float]] = deque(maxlen=_CYCLES)

    @property
    def rows(self) -> int:
        """The rows of the next piece, at most `most_rows`."""
        return min(self._rows * self._larger, self.most_rows)

    @property
    def row_seconds(self) -> float:
        """How long the server works for a row; 0.0 = not known. The least counts: a busy one takes longer for it."""
        seen = sorted(self._row_seconds)
        return seen[len(seen) // 8] if seen else 0.0

    def begin(self, rows: int, *, spread: float | None = None) -> None:
        """A statement for so many rows begins; `spread`: the seconds over which its pieces are spread, where that is
        known.
        """
        self._began, self._asked, self._taken = self._clock.now(), rows, 0
        if spread is not None:
            self._spread = spread
        elif speed := self._speed():
            usual = min(self._longest_spread, _SPREAD * rows / speed)
            self._spread = usual * self._hurry if self._hurry >= _LEAST_HURRY else 0.0

    def rest(self) -> float:
        """Before a piece: wait until it is due. Returns the seconds of rest."""
        if not 0 < self._taken < self._asked:
            return 0.0
        wait = self._began + self._spread * self._taken / self._asked - self._clock.now()
        self._clock.sleep(wait)
        return max(0.0, wait)

    def sent(self, rows: int) -> None:
        """So many rows are on their way; how long the server works for them is not known."""
        self._taken += rows

    def took(self, rows: int, seconds: float) -> None:
        """A piece brought `rows` in so many seconds.

        Where the network takes most of them, only larger pieces show what a row costs.
        """
        self._taken += rows
        # A busy client measures too much for the way: no piece is faster than the network.
        self._empty_seconds = min(self._empty_seconds, seconds)
        if rows < min(_LEAST_ROWS, self.rows):
            return
        cost = seconds_per_row(rows, seconds, self._empty_seconds, least_rows=1)
        if cost is not None:
            self._row_seconds.append(cost)
        else:  # it is less than this, whatever slower pieces seemed to cost
            fitting = (each for each in self._row_seconds if each <= seconds / rows)
            self._row_seconds = deque(fitting, _PIECES_SEEN)
        least = self.row_seconds
        most = int(self._burst_seconds / least) if least else _MOST_ROWS
        self._rows = max(_LEAST_ROWS, min(most, 2 * self._rows, _MOST_ROWS))

    def handed_on(self, rows: int, inside: float, outside: float) -> None:
        """The statement's `rows` were read in `inside` seconds; `outside` later the next ones are wanted."""
        now, cycle = self._clock.now(), inside + outside
        self._since_blocked += rows
        if outside > _BLOCKED * cycle and rows:
            self._learn(now)
            self._hurry, self._larger = 1.0, max(1, self._larger // 2)
        elif 2 * rows > self._asked:  # fewer rows are taken at once in any case
            if self._hurry < 1.0:
                self.statement_rows = max(self.statement_rows, 2 * rows)
            if self._hurry < _LEAST_HURRY and self._cycles:
                self._larger = min(_MOST_LARGER, 2 * self._larger)
            least = _LEAST_HURRY / 2
            if self._starting:  # the rows of the head start need not be there at once
                self._starting, least = self._starting - 1, 0.5
            self._hurry = max(self._hurry / 2, least)

    def _learn(self, now: float) -> None:
        """Learn from the rows handed on since the last wait for the limit, which has paid for them meanwhile."""
        before, rows = self._blocked_at, self._since_blocked
        self._blocked_at, self._since_blocked = now, 0
        if before is None or now - before > _PAUSE_SECONDS:
            return
        self._cycles.append((rows, now - before))
        if speed := self._speed():
            self.statement_rows = max(_LEAST_ROWS, int(speed * _STATEMENT_SECONDS))

    def _speed(self) -> float:
        """Rows per second; 0.0 = not known."""
        seconds = sum(each for _, each in self._cycles)
        return sum(rows for rows, _ in self._cycles) / seconds if seconds else self._expected_speed


# SQL of users that runs unchanged (`preSql`, `sessionInitStatement`), split into statements.


TRANSACTION_WORDS = frozenset(
    {
        "ABORT",
        "BEGIN",
        "COMMIT",
        "END",
        "PREPARE TRANSACTION",
        "RELEASE",
        "ROLLBACK",
        "SAVEPOINT",
        "START",
        "XA",
    }
)
"""First words of statements that leave the transaction in which they run."""
_SPACE = r"(?:\s|/\*.*?\*/|--[^\n]*\n)"
_LEAVES = re.compile(rf"{_SPACE}*PREPARE{_SPACE}+TRANSACTION\b", re.IGNORECASE | re.DOTALL)
"""PREPARE alone keeps a statement, and leaves nothing."""
IN_TRANSACTION = (
    "its statements run inside the transaction that writes the rows, and may not end it or leave it"
)
BY_ITSELF = "each of its statements runs by itself, and is committed by itself"
IN_SESSION = "its statements make a session ready, and may not begin a transaction"


def split_script(
    texts: Iterable[str],
    option: str,
    dialect: str,
    forbidden: Collection[str] = TRANSACTION_WORDS,
    *,
    why: str = IN_TRANSACTION,
) -> list[str]:
    """The single statements of `texts`, in order, as they are written; quotes and comments are known.

    Raises:
        OptionError: text that cannot be parsed, or a statement that begins with a `forbidden` word
            and so would leave the transaction in which it runs; `why` ends the message.
    """
    found = []
    for text in texts:
        for statement, word in _split(text, option, dialect):
            if _LEAVES.match(statement):
                word = "PREPARE TRANSACTION"
            if word in forbidden:
                raise OptionError(
                    f"option {option!r} holds {word}: {why}", option=option, got=statement
                )
            found.append(statement)
    return found


class _Session(Protocol):
    def rows(self, sql: str) -> list[tuple[Any, ...]]: ...


def run_in_transaction(
    session: _Session, statements: Iterable[str], option: str, *, written: bool
) -> None:
    """Run the user's `statements`, each under a savepoint, which goes with the transaction that one of them ends.

    A procedure may commit inside, or hold DDL that does: its first word does not show it. `written`: the rows and the
    note that they are published have been written in this transaction.

    Raises:
        TargetError: the transaction was ended; the statements behind did not run.
    """
    for statement in statements:
        session.rows("SAVEPOINT spark_channel_script")
        session.rows(statement)
        try:
            session.rows("RELEASE SAVEPOINT spark_channel_script")
        except TargetError as error:
            so_far = (
                "the rows are in the table, the write counts as published, and what follows did not run"
                if written
                else "no row was written, and what ran so far stays"
            )
            raise TargetError(
                f"option {option!r}: {statement[:200]!r} ended the transaction that writes the rows (a COMMIT or DDL "
                f"in a procedure): {so_far}. Take that out of the procedure, or run it before the job, as option "
                "'startSql' of a transfer does"
            ) from error


def session_script(options: Any, dialect: str) -> list[str]:
    """The statements of the options' `sessionInitStatement`, for a session that has just been opened.

    A session runs them before its own settings, which readers and writers rely on (its zone, its mode).

    Raises:
        OptionError: text that cannot be parsed, or a statement that begins a transaction.
    """
    texts: Collection[str] = options.session_init_statement or ()
    return split_script(texts, "sessionInitStatement", dialect, why=IN_SESSION)


def _split(text: str, option: str, dialect: str) -> list[tuple[str, str]]:
    try:
        read = sqlglot.tokenize(text, read=dialect)
    except sqlglot.errors.SqlglotError as error:
        raise OptionError(
            f"option {option!r} holds SQL that cannot be parsed: {str(error).splitlines()[0]}",
            option=option,
        ) from None
    found, begin, word = [], 0, ""
    for token in read:
        if token.token_type == tokens.TokenType.SEMICOLON:
            if word:
                found.append((text[begin : token.start].strip(), word))
            begin, word = token.end + 1, ""
        elif not word:
            word = token.text.upper().split()[0] if token.text.split() else token.text
    if word:
        found.append((text[begin:].strip(), word))
    return found


# The connection of a writer that stages its rows in a table.


class WriteSession(BoundSession):
    """Outside a transaction each statement is committed by itself."""

    @abstractmethod
    def load(self, table: str, batch: pa.RecordBatch) -> int | None:
        """Insert the rows of `batch` into its columns, as fast as the database can.

        `table` and the batch's names are as they are in a statement. Returns how many rows the database stored; None =
        it does not report them.
        """

    def stored(self, sql: str) -> int | None:
        """Run an INSERT: the rows that the database stored; None = it does not report them."""
        self.rows(sql)
        return None

    @abstractmethod
    def begin(self) -> None: ...

    def start(self, begin: str) -> None:
        self.begin()

    @abstractmethod
    def commit(self) -> None: ...

    @abstractmethod
    def undo(self) -> None:
        """End the transaction without its changes. Also after the connection was lost; raises nothing then."""

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commits in the end; any exception rolls back."""
        self.begin()
        with committed(self):
            yield
