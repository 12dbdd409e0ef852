"""A session on a database file, which is kept for the next table of a run: each open reads the whole catalog."""

from abc import abstractmethod
from collections.abc import Callable, Hashable
from pathlib import Path
from types import TracebackType
from typing import Self

from spark_channel.connectors.base.session_pool import sessions
from spark_channel.connectors.sql.session.connection import BoundSession
from spark_channel.errors import ChannelError

__all__ = ["FileSession"]


class FileSession(BoundSession):
    """A session of the file at `path`. The pool keeps it only while the file that was opened is still there."""

    path: Path
    pool_key: Hashable | None = None
    _failure: type[ChannelError]
    file: tuple[int, int] | None = None
    """What was at `path` when it was opened; None = it is not kept."""

    @classmethod
    def lent(
        cls, key: Hashable | None, path: Path, failure: type[ChannelError], make: Callable[[], Self]
    ) -> Self:
        """A session that was kept for the tables of this run, else the one that `make` returns. None = no other fits.

        `key`: equal for those of a file that are opened alike.
        """
        if key is None:
            return make()
        whole_key = (cls, path.absolute(), key)
        # Asked before it is opened: the session of a file that is replaced meanwhile is not kept.
        file = _identity(path)
        return sessions.take(
            whole_key,
            lambda session: session.renewed(failure),
            lambda: make().kept_as(whole_key, file),
        )

    def kept_as(self, key: Hashable, file: tuple[int, int] | None) -> Self:
        """The session, with what the next user must have in common with this one."""
        self.pool_key, self.file = key, file
        return self

    @property
    def is_of_path(self) -> bool:
        """Whether its file has not been replaced by another one."""
        return self.file is not None and self.file == _identity(self.path)

    @abstractmethod
    def cleared(self) -> bool:
        """Undo what a user of the session may leave in it; False = it can no longer be used."""

    def renewed(self, failure: type[ChannelError]) -> bool:
        self._failure = failure
        return self.is_of_path and self.cleared()

    def is_reusable(self) -> bool:
        """Whether it is open. One that is in a transaction is not, as `cleared` finds."""
        return self._connection is not None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None or not sessions.give(self):
            self.close()


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino
