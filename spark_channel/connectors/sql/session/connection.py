"""The interface of a connection to a database, and of one that a writer stages its rows by."""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar

import pyarrow as pa

from spark_channel.connectors.base.overlap import FreeConnections
from spark_channel.errors import ChannelError
from spark_channel.masking import mask_statement, without_frames

__all__ = [
    "HIDDEN",
    "BatchSize",
    "BoundSession",
    "DriverSession",
    "S",
    "Session",
    "WriteSession",
    "committed",
    "transaction",
]


HIDDEN = "its words may quote a value, and are hidden: run the query in a client of the database to see them"
"""In the place of a server's own words, with option `hideValues`."""


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

    def execute(self, sql: str) -> None:
        """Run a statement for what it does: DDL, DML, SET, the ends of a transaction."""
        self.rows(sql)

    def value(self, sql: str) -> Any:
        """The first column of the first row; None when there is none."""
        rows = self.rows(sql)
        return rows[0][0] if rows else None

    def repeated(
        self, name: str, types: str, sql: str, literals: Sequence[str]
    ) -> list[tuple[Any, ...]]:
        """The rows of a query in which `$1` stands for the first of `literals`, of these SQL `types`.

        A session that runs many of them may keep the server's plan as `name`.
        """
        return self.rows(re.sub(r"\$(\d)", lambda match: literals[int(match[1]) - 1], sql))

    def free_connections(self) -> FreeConnections | None:
        """How many more connections the server takes from this login now; None = it has no bound, or does not say."""
        return None

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
        self.execute(begin)

    def commit(self) -> None:
        """End the transaction with its changes."""
        self.execute("COMMIT")

    def undo(self) -> None:
        """End the transaction without its changes."""
        self.execute("ROLLBACK")

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
                mask_statement(argument) if isinstance(argument, str) else argument
                for argument in error.args
            )
            raise self.explain(error) from without_frames(error)

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
    def rows(self, sql: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]: ...

    def execute(self, sql: str, parameters: Sequence[object] = ()) -> None:
        self.rows(sql, parameters)

    def value(self, sql: str, parameters: Sequence[object] = ()) -> Any:
        rows = self.rows(sql, parameters)
        return rows[0][0] if rows else None


S = TypeVar("S", bound=BoundSession)
"""The session of a writer, and of its tasks."""


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
        self.execute(sql)
        return None

    @abstractmethod
    def begin(self) -> None:
        """Begin a transaction, which `commit` or `undo` ends."""

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
