"""A store of `obstore` as a filesystem of `pyarrow`, for credentials that are renewed while a file is open.

A filesystem of `pyarrow` keeps the credentials that it was made with. `obstore` asks for them with each request.
Paths begin with the bucket or container, as those of `pyarrow` do.
"""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from pyarrow import fs as pafs

from spark_channel.connectors.files.vended import Vended

__all__ = ["object_filesystem"]

_BLOCK = 8 << 20
_UPLOADS = 2
"""Blocks of one file that are uploaded at the same time: each is held in memory."""


def object_filesystem(kind: str, vended: Vended) -> pafs.FileSystem:
    """Filesystems of one table are equal."""
    return pafs.PyFileSystem(_Handler(kind, vended))


def _key(path: str) -> str:
    """Without the bucket or container."""
    return path.partition("/")[2]


@contextmanager
def _explained(path: str) -> Iterator[None]:
    from obstore.exceptions import (
        BaseError,
        NotFoundError,
        PermissionDeniedError,
        UnauthenticatedError,
    )

    try:
        yield
    except (NotFoundError, FileNotFoundError) as error:
        raise FileNotFoundError(path) from error
    except (PermissionDeniedError, UnauthenticatedError) as error:
        raise OSError(f"the store refuses the credentials of {path}") from error
    except BaseError as error:
        raise OSError(
            str(error).splitlines()[0][:300] if str(error) else type(error).__name__
        ) from error


class _Reading(io.RawIOBase):
    """One object; each read is one request."""

    def __init__(self, store: Any, path: str, size: int) -> None:
        self._store, self._path, self._size, self._at = store, path, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(0, start + offset)
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        import obstore

        left = max(0, self._size - self._at)
        length = left if size is None or size < 0 else min(size, left)
        if not length:
            return b""
        with _explained(self._path):
            found = obstore.get_range(self._store, _key(self._path), start=self._at, length=length)
        self._at += length
        return bytes(found)


class _Writing(io.RawIOBase):
    """One new object, which is there when it is closed."""

    def __init__(self, store: Any, path: str) -> None:
        import obstore

        self._path, self._at = path, 0
        with _explained(path):
            self._file = obstore.open_writer(
                store, _key(path), buffer_size=_BLOCK, max_concurrency=_UPLOADS
            )

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def write(self, data: Any) -> int:
        with _explained(self._path):
            self._file.write(data)
        size = memoryview(data).nbytes
        self._at += size
        return size

    def flush(self) -> None:
        """A part of an object is not visible before it is whole."""

    def close(self) -> None:
        if not self.closed:
            try:
                with _explained(self._path):
                    self._file.close()
            finally:
                super().close()


class _Handler(pafs.FileSystemHandler):  # type: ignore[misc]  # pyarrow has no types
    def __init__(self, kind: str, vended: Vended) -> None:
        self._kind, self._vended, self._store = kind, vended, vended.store

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Handler) and other._vended == self._vended

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self._vended)

    def get_type_name(self) -> str:
        return self._kind

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: list[str]) -> list[pafs.FileInfo]:
        return [self._info(path) for path in paths]

    def _info(self, path: str) -> pafs.FileInfo:
        import obstore

        if _key(path):
            try:
                with _explained(path):
                    return _file_info(path, obstore.head(self._store(), _key(path)))
            except FileNotFoundError:
                pass
        there = next(self._listed(path), None)
        return pafs.FileInfo(
            path, pafs.FileType.NotFound if there is None else pafs.FileType.Directory
        )

    def _listed(self, folder: str) -> Iterator[pafs.FileInfo]:
        """Every object below the folder."""
        import obstore

        bucket = folder.partition("/")[0]
        with _explained(folder):
            for some in obstore.list(self._store(), _key(folder) or None, chunk_size=1000):
                for each in some:
                    yield _file_info(f"{bucket}/{each['path']}", each)

    def get_file_info_selector(self, selector: pafs.FileSelector) -> list[pafs.FileInfo]:
        import obstore

        folder = selector.base_dir.rstrip("/")
        if selector.recursive:
            found = list(self._listed(folder))
        else:
            bucket = folder.partition("/")[0]
            with _explained(folder):
                listed = obstore.list_with_delimiter(self._store(), _key(folder) or None)
            found = [_file_info(f"{bucket}/{each['path']}", each) for each in listed["objects"]]
            found += [
                pafs.FileInfo(f"{bucket}/{each}".rstrip("/"), pafs.FileType.Directory)
                for each in listed["common_prefixes"]
            ]
        if not found and not selector.allow_not_found:
            raise FileNotFoundError(folder)
        return found

    def open_input_file(self, path: str) -> pa.NativeFile:
        import obstore

        store = self._store()
        with _explained(path):
            size = obstore.head(store, _key(path))["size"]
        return pa.PythonFile(_Reading(store, path, size), mode="r")

    open_input_stream = open_input_file

    def open_output_stream(self, path: str, metadata: Any = None) -> pa.NativeFile:
        return pa.PythonFile(_Writing(self._store(), path), mode="w")

    def create_dir(self, path: str, recursive: bool = True) -> None:
        """An object's folders are a part of its name."""

    def delete_file(self, path: str) -> None:
        if self._vended.removes_one_by_one:
            self._vended.remove(path)
            return
        import obstore

        with _explained(path):
            obstore.delete(self._store(), _key(path))

    def delete_dir(self, path: str) -> None:
        for each in list(self._listed(path)):
            self.delete_file(each.path)

    delete_dir_contents = delete_dir

    def _unused(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError("objects are neither moved nor appended to")

    delete_root_dir_contents = move = copy_file = open_append_stream = _unused


def _file_info(path: str, found: Any) -> pafs.FileInfo:
    return pafs.FileInfo(path, pafs.FileType.File, mtime=found["last_modified"], size=found["size"])
