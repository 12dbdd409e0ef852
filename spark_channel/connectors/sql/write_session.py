"""The connection of a writer that stages its rows in a table."""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from spark_channel.connectors.sql.session import BoundSession
from spark_channel.errors import ChannelError

__all__ = ["WriteSession"]


class WriteSession(BoundSession):
    """Outside a transaction each statement is committed by itself."""

    @abstractmethod
    def load(self, table: str, names: Sequence[str], rows: Sequence[Sequence[Any]]) -> int | None:
        """Insert `rows` into the columns `names`, both as they are in a statement, as fast as the database can.

        Returns how many rows the database stored; None = it does not report them.
        """

    def stored(self, sql: str) -> int | None:
        """Run an INSERT: the rows that the database stored; None = it does not report them."""
        self.rows(sql)
        return None

    @abstractmethod
    def begin(self) -> None: ...

    @abstractmethod
    def commit(self) -> None: ...

    @abstractmethod
    def undo(self) -> None:
        """End the transaction without its changes. Also after the connection was lost; raises nothing then."""

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commits in the end; any exception rolls back."""
        self.begin()
        try:
            yield
            self.commit()
        except BaseException:
            self.undo()
            raise

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """Inside a transaction: a `ChannelError` takes back what was done since."""
        self.rows("SAVEPOINT spark_channel_batch")
        try:
            yield
        except ChannelError:
            self.rows("ROLLBACK TO SAVEPOINT spark_channel_batch")
            raise
        self.rows("RELEASE SAVEPOINT spark_channel_batch")
