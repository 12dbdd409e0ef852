"""A file of a server, as one that Python can read from any position."""

import io
from abc import abstractmethod
from typing import Any

__all__ = ["Download"]


class Download(io.RawIOBase):
    """Knows its size and its position; `readinto` asks the server."""

    def __init__(self, path: str, size: int | None) -> None:
        if size is None:
            raise OSError(f"{path}: the server does not say how large the file is")
        self._path, self._size, self._place = path, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._size}[whence]
        self._place = max(0, start + offset)
        return self._place

    def tell(self) -> int:
        return self._place

    @abstractmethod
    def readinto(self, buffer: Any) -> int: ...

    def _cut(self, place: int) -> ConnectionError:
        """The server sent fewer bytes than it announced."""
        return ConnectionError(
            f"{self._path}: the transfer ended at byte {place} of {self._size}: "
            "the file was changed, or the connection is lost"
        )
