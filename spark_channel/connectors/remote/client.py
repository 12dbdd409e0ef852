"""The operations of a file server that readers and writers need. Errors are `OSError`s, as those of a disk."""

import posixpath
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

__all__ = ["MOST_BYTES", "MOST_ENTRIES", "Entry", "Remote", "plain_name"]

MOST_BYTES = 256 << 20
MOST_ENTRIES = 1_000_000
"""The largest listing: it is held in memory."""
_LARGEST = 1 << 50


def plain_name(name: str, folder: str) -> str:
    """
    Raises:
        OSError: it would lead out of the folder in which a server lists it, or to the folder itself.
    """
    if not name or "/" in name or "\0" in name or name in (".", ".."):
        raise OSError(f"{folder}: the server lists {name[:80]!r}, which is not the name of a file")
    return name


@dataclass(frozen=True, slots=True)
class Entry:
    """A file or a folder. `changed` is in seconds since 1970; None = the server does not say."""

    path: str
    is_folder: bool
    size: int = 0
    changed: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.size <= _LARGEST:
            raise OSError(f"{self.path}: the server says that it has {self.size} bytes")

    @property
    def name(self) -> str:
        return posixpath.basename(self.path)


class Remote(ABC):
    """One connection, used by one thread. Close the files that it opened first."""

    @abstractmethod
    def info(self, path: str) -> Entry | None:
        """None: there is none."""

    @abstractmethod
    def entries(self, path: str) -> list[Entry]:
        """Return the entries of a folder, without `.` and `..`.

        Raises:
            FileNotFoundError: the folder does not exist.
        """

    @abstractmethod
    def open_read(self, path: str) -> Any:
        """A binary file that can seek."""

    @abstractmethod
    def open_write(self, path: str) -> Any:
        """A binary file; a file of that name is replaced. `close` raises if the server does not have all of it."""

    @abstractmethod
    def rename(self, old: str, new: str) -> None: ...

    @abstractmethod
    def remove(self, path: str) -> None:
        """Remove a file; one that does not exist is not an error."""

    @abstractmethod
    def _make_one(self, path: str) -> None: ...

    def make(self, path: str) -> None:
        """Make a folder and those above it."""
        found = self.info(path)
        if found is not None and not found.is_folder:
            raise NotADirectoryError(f"{path} is a file")
        if found is None:
            above = posixpath.dirname(path)
            if above not in (path, ""):
                self.make(above)
            try:
                self._make_one(path)
            except OSError:
                if self.info(path) is None:  # else another task was faster
                    raise

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> "Remote":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
