"""A file server as a read-only filesystem of `pyarrow`. Each call opens a connection and closes it."""

from collections.abc import Callable, Hashable, Iterator
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from pyarrow import fs as pafs

from spark_channel.connectors.remote import connect
from spark_channel.connectors.remote.client import MOST_ENTRIES, Address, Entry, Remote

__all__ = ["filesystem", "filesystem_of"]

_DEEPEST = 64


def filesystem(address: Address) -> pafs.FileSystem:
    """Opens no connection yet."""
    return filesystem_of(address.scheme, address, lambda: connect(address))


def filesystem_of(kind: str, key: Hashable, connect: Callable[[], Remote]) -> pafs.FileSystem:
    """`connect` opens a client, which each call closes. Filesystems of one `key` are equal."""
    return pafs.PyFileSystem(_Handler(kind, key, connect))


class _Closing:
    """A file, and its connection, which is closed after it."""

    def __init__(self, remote: Remote, file: Any) -> None:
        self._remote, self._file = remote, file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def close(self) -> None:
        try:
            self._file.close()
        finally:
            self._remote.close()


class _Handler(pafs.FileSystemHandler):  # type: ignore[misc]  # pyarrow has no types
    def __init__(self, kind: str, key: Hashable, connect: Callable[[], Remote]) -> None:
        self._kind, self._key, self._connect = kind, key, connect

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Handler) and other._key == self._key

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self._key)

    def get_type_name(self) -> str:
        return self._kind

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: list[str]) -> list[pafs.FileInfo]:
        with self._connect() as remote:
            found = [(path, remote.info(path)) for path in paths]
        return [
            pafs.FileInfo(path, pafs.FileType.NotFound) if entry is None else _info(entry)
            for path, entry in found
        ]

    def get_file_info_selector(self, selector: pafs.FileSelector) -> list[pafs.FileInfo]:
        with self._connect() as remote:
            try:
                return [
                    _info(entry) for entry in _listed(remote, selector.base_dir, selector.recursive)
                ]
            except FileNotFoundError:
                if not selector.allow_not_found:
                    raise
                return []

    def open_input_file(self, path: str) -> pa.NativeFile:
        remote = self._connect()
        try:
            return pa.PythonFile(_Closing(remote, remote.open_read(path)), mode="r")
        except BaseException:
            remote.close()
            raise

    open_input_stream = open_input_file

    def _only_read(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError("files on a server are written by their own writer")

    create_dir = delete_dir = delete_dir_contents = delete_root_dir_contents = delete_file = (
        _only_read
    )
    move = copy_file = open_output_stream = open_append_stream = _only_read


def _listed(remote: Remote, folder: str, recursive: bool) -> Iterator[Entry]:
    """
    Raises:
        OSError: it does not end, as where a folder is linked into itself.
    """
    waiting, count = [(folder, 0)], 0
    while waiting:
        place, depth = waiting.pop()
        for entry in remote.entries(place):
            yield entry
            count += 1
            if count > MOST_ENTRIES:
                raise OSError(
                    f"{folder} has more than {MOST_ENTRIES} files; read it by parts of it"
                )
            if recursive and entry.is_folder:
                if depth == _DEEPEST:
                    raise OSError(
                        f"{entry.path} is {depth + 1} folders below {folder}: "
                        "is a folder linked into itself? Read its files by a pattern, such as folder/*.csv"
                    )
                waiting.append((entry.path, depth + 1))


def _info(entry: Entry) -> pafs.FileInfo:
    kind = pafs.FileType.Directory if entry.is_folder else pafs.FileType.File
    changed = None if entry.changed is None else datetime.fromtimestamp(entry.changed, UTC)
    return pafs.FileInfo(
        entry.path, kind, mtime=changed, size=None if entry.is_folder else entry.size
    )
