"""The filesystem of a table, by pyiceberg's own settings."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from spark_channel.connectors.files.paths import Location
from spark_channel.connectors.files.store import LocalStore, ObjectStore, Store
from spark_channel.errors import UnsupportedError

if TYPE_CHECKING:
    from pyiceberg.io import FileIO

__all__ = ["store_at"]


class _ArrowStore(ObjectStore):
    """Writes and removes by `pyarrow.fs`, which has the table's credentials."""

    def put(self, path: str, data: bytes) -> None:
        self._put_by_arrow(path, data)

    def remove(self, path: str) -> None:
        self._remove_by_arrow(path)

    def remove_many(self, paths: Sequence[str]) -> None:
        for path in paths:
            self.remove(path)


def store_at(io: "FileIO", location: str) -> tuple[Store, str]:
    """(the store, the path of `location` in it)."""
    from pyiceberg.io.pyarrow import PyArrowFileIO

    if not isinstance(io, PyArrowFileIO):
        raise UnsupportedError(
            f"{location} is opened by {type(io).__name__}; set py-io-impl to PyArrowFileIO"
        )
    scheme, netloc, path = io.parse_location(location, io.properties)
    fs: Any = io.fs_by_scheme(scheme, netloc)
    if scheme == "file":
        return LocalStore(Location(fs, path, "")), path
    return _ArrowStore(Location(fs, path, f"{scheme}://{netloc}")), path
