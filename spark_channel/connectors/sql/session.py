"""The interface of a connection to a database."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from spark_channel.errors import ChannelError

__all__ = ["BatchSize", "BoundSession", "DriverSession", "Session", "committed", "transaction"]


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
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
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

    def rest(self) -> None:  # noqa: B027 - a connection in autocommit has nothing open
        """Between two short statements: end the transaction that the last one left open, and its locks."""

    @abstractmethod
    def explain(self, error: BaseException) -> ChannelError:
        """`error` of the driver as what a user is told."""

    @contextmanager
    def explained(self) -> Iterator[None]:
        """What the driver raises in the block is raised as a user is told it."""
        try:
            yield
        except self.failures as error:
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
    session.rows(begin)
    with committed(session):
        yield


@contextmanager
def committed(session: Session) -> Iterator[None]:
    """Commits the transaction that is open in the end; any exception rolls back."""
    try:
        yield
        session.rows("COMMIT")
    except BaseException:
        with suppress(Exception):  # else the database, or the end of its connection, has rolled back
            session.rows("ROLLBACK")
        raise
