"""One connection for all reads of a thread, because a new one costs the server 10 to 50 ms of CPU."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from spark_channel.connectors.sql.postgresql.session import PgSession
from spark_channel.errors import ChannelError

__all__ = ["Keeper"]


class Keeper:
    """Used by one thread. `connect` makes a session."""

    def __init__(self, connect: Callable[[], PgSession]) -> None:
        self._connect = connect
        self._kept: PgSession | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._kept is not None:
            self._kept.close()

    @contextmanager
    def session(self) -> Iterator[PgSession]:
        """The kept session when its server still answers, else a new one. Kept again when the block ends well."""
        session, self._kept = self._answering(), None
        if session is None:
            session = self._connect()
        try:
            yield session
        except BaseException:
            session.close()
            raise
        if session.is_open:
            self._kept = session

    def _answering(self) -> PgSession | None:
        kept = self._kept
        if kept is not None:
            try:
                kept.rows("SELECT 1")
            except ChannelError:
                kept.close()
                return None
        return kept
