"""Finds out whether a file is still the one that a read planned, by what its store says of it, not by its time alone.

A file may be replaced within a second by one of the same size. So the plan keeps a tag for each file, where the store
has one, and each read compares it after it has opened the file and after its last row:

| store | tag |
|---|---|
| S3, Azure | ETag, version id, time of change |
| GCS | generation |
| local disk | inode, time of change of its metadata, which no program can set |
| HDFS, SFTP, FTP | none: size and time of change only |
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Self

import pyarrow as pa
from pyarrow import fs as pafs

from spark_channel.connectors.files.credentials import StorageCredentials
from spark_channel.connectors.files.file_errors import reading
from spark_channel.connectors.files.filesystem import (
    find_replaced,
    open_planned,
    renames_in,
    reopen,
)
from spark_channel.connectors.files.listing import UNCHANGING, SourceFile
from spark_channel.errors import SourceError

__all__ = ["PlannedFile", "show_file", "with_tag", "with_tags"]

_OBJECTS = ("s3", "gcs", "abfs")
"""What pyarrow calls its filesystems of object stores: an open file of theirs knows its object's tag."""
_SECOND = 10**9
_UNKNOWN = 0
"""In place of a time: an FTP server may list the times of files, and refuse the time of a single file."""
_THREADS = 16
"""Requests at a time on the driver."""


@dataclass(frozen=True, slots=True)
class _Version:
    """`tag`: '' = the store has none, or it is not known."""

    size: int
    mtime_ns: int
    tag: str

    def is_same(self, now: "_Version") -> bool:
        if self.size != now.size:
            return False
        if self.tag and now.tag:
            return self.tag == now.tag
        times = (self.mtime_ns, now.mtime_ns)
        if UNCHANGING in times or _UNKNOWN in times or self.mtime_ns == now.mtime_ns:
            return True
        # Some object stores list a time with its fraction, and give it in whole seconds for a single object.
        is_whole = now.tag and now.mtime_ns % _SECOND == 0
        return bool(is_whole) and self.mtime_ns // _SECOND == now.mtime_ns // _SECOND

    def __str__(self) -> str:
        if self.tag or self.mtime_ns == UNCHANGING:
            return f"{self.size} bytes{self.tag and ', '}{self.tag}"
        return f"{self.size} bytes, changed at {_time(self.mtime_ns)}"


def _time(mtime_ns: int) -> str:
    return datetime.fromtimestamp(mtime_ns / _SECOND, UTC).isoformat()


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """A file as a plan names it: as it was listed, with the tag that was seen first."""

    root: str
    path: str
    size: int
    mtime_ns: int
    tag: str

    @classmethod
    def from_params(cls, file: "SourceFile | Mapping[str, Any]") -> Self:
        """`file`: listed, or the parameters of a split's piece."""
        if isinstance(file, SourceFile):
            return cls(file.root, file.path, file.size, file.mtime_ns, file.tag)
        return cls(file["root"], file["path"], file["size"], file["mtime_ns"], file.get("tag", ""))

    @property
    def shown(self) -> str:
        return show_file(self.root, self.path)

    def open(self, login: StorageCredentials | None) -> pa.NativeFile:
        """The file that was planned, also when a write has put it aside since.

        Raises:
            SourceError: another file is in its place. FileNotFoundError: there is none.
        """
        stream = open_planned(self.root, self.path, login)
        try:
            self._compare(self._opened(stream, login))
        except BaseException:
            stream.close()
            raise
        return stream

    def check_unchanged(self, login: StorageCredentials | None) -> None:
        """Whether all that was read since `open` is of one version.

        Raises:
            SourceError: another file is in its place. FileNotFoundError: there is none, in a store where each request
            reads what has the name then.
        """
        if self.mtime_ns == UNCHANGING:
            return
        now = _version_at(reopen(self.root, login), self.path)
        if now is not None:
            self._compare(now)
        elif not renames_in(self.root):  # elsewhere an open file that is removed stays readable
            raise FileNotFoundError(self.path)

    def explain(self, login: StorageCredentials | None) -> None:
        """To be called where reading failed: what was read may be parts of two versions.

        Raises:
            SourceError: another file is in its place.
        """
        try:
            self.check_unchanged(login)
        except (OSError, pa.ArrowException):
            pass  # the first error says more

    def _opened(self, stream: pa.NativeFile, login: StorageCredentials | None) -> _Version:
        fs = reopen(self.root, login)
        if fs.type_name in _OBJECTS:
            return _object_version(stream)
        if self.mtime_ns == UNCHANGING:
            return _Version(stream.size(), UNCHANGING, "")
        # The path is asked after the file is opened: in between it could only have become another file.
        now = _version_at(fs, self.path)
        if now is not None:
            return now
        replaced = find_replaced(fs, self.path) if renames_in(self.root) else None
        if replaced is None:
            raise FileNotFoundError(self.path)
        return _Version(
            replaced.size, replaced.mtime_ns or 0, ""
        )  # to be put aside changes the tag

    def _compare(self, now: _Version) -> None:
        then = _Version(self.size, self.mtime_ns, self.tag)
        if not then.is_same(now):
            raise SourceError(
                f"{self.shown} was changed after the read was planned (then: {then}; now: {now}), so its rows could be "
                "of two versions; load() it again"
            )


def with_tag(
    file: SourceFile, stream: pa.NativeFile | None, login: StorageCredentials | None
) -> SourceFile:
    """`file`, which is open, with its tag.

    Raises:
        SourceError: it is not the one that was listed, or of which the tag was seen before.
    """
    fs = reopen(file.root, login)
    if file.mtime_ns == UNCHANGING:
        return file
    if fs.type_name in _OBJECTS:
        now: _Version | None = _object_version(stream)
    else:
        now = _local_version(file.path) if file.root == "" else None
    if now is None:  # the store says no more than the listing, or a write has put the file aside
        return file
    PlannedFile.from_params(file)._compare(now)  # noqa: SLF001 - of this module
    return replace(file, tag=now.tag)


def with_tags(files: Iterable[SourceFile], login: StorageCredentials | None) -> list[SourceFile]:
    """The files, each with its tag: in an object store this takes one request for each that was not opened yet."""
    files = list(files)
    unknown = [file for file in files if not file.tag and file.mtime_ns != UNCHANGING]
    local = [_tagged(file, login) for file in unknown if file.root == ""]
    objects = [
        file for file in unknown if file.root and reopen(file.root, login).type_name in _OBJECTS
    ]
    tagged = {(file.root, file.path): file for file in [*local, *_tagged_objects(objects, login)]}
    return [tagged.get((file.root, file.path), file) for file in files]


def _tagged_objects(
    files: Sequence[SourceFile], login: StorageCredentials | None
) -> list[SourceFile]:
    if not files:
        return []
    with ThreadPoolExecutor(min(_THREADS, len(files)), "file-tags") as pool:
        waiting = [pool.submit(_tagged, file, login) for file in files]
        try:
            return [future.result() for future in waiting]
        finally:
            pool.shutdown(cancel_futures=True)


def _tagged(file: SourceFile, login: StorageCredentials | None) -> SourceFile:
    with reading(show_file(file.root, file.path)):
        if file.root == "":
            return with_tag(file, None, login)
        with open_planned(file.root, file.path, login) as stream:
            return with_tag(file, stream, login)


def show_file(root: str, path: str) -> str:
    return path if not root else f"{root.split('://', 1)[0]}://{path}"


def _version_at(fs: pafs.FileSystem, path: str) -> _Version | None:
    """None: the file does not exist."""
    if fs.type_name == "local":
        return _local_version(path)
    if fs.type_name in _OBJECTS:
        try:
            with fs.open_input_file(path) as stream:
                return _object_version(stream)
        except FileNotFoundError:
            return None
    info = fs.get_file_info(path)
    return (
        None
        if info.type == pafs.FileType.NotFound
        else _Version(info.size or 0, info.mtime_ns or 0, "")
    )


def _local_version(path: str) -> _Version | None:
    try:
        status = os.stat(path)  # noqa: PTH116 - asked for each file
    except (FileNotFoundError, NotADirectoryError):
        return None
    # A mount over a network or FUSE may number its inodes differently on each host, or again after a while.
    is_disk = os.major(status.st_dev) != 0
    inode = f"inode {status.st_ino}, " if is_disk else ""
    return _Version(
        status.st_size, status.st_mtime_ns, f"{inode}changed at {status.st_ctime_ns} ns"
    )


def _object_version(stream: pa.NativeFile) -> _Version:
    metadata = {name.lower(): value.decode() for name, value in stream.metadata().items()}
    changed = metadata.get("updated") or metadata.get("last-modified") or ""
    if generation := metadata.get("generation"):
        tag = f"generation {generation}"
    else:
        named = {
            "ETag": metadata.get("etag"),
            "version": metadata.get("versionid"),
            "changed at": changed,
        }
        tag = ", ".join(f"{name} {value}" for name, value in named.items() if value)
    return _Version(stream.size(), _nanoseconds(changed), tag)


def _nanoseconds(text: str) -> int:
    if not text:
        return UNCHANGING  # nothing to compare
    at = datetime.fromisoformat(text) - datetime(1970, 1, 1, tzinfo=UTC)
    return (at.days * 86_400 + at.seconds) * _SECOND + at.microseconds * 1_000
