"""The operations of a filesystem that publishing needs: a local disk has rename and fsync, an object store has neither.

The log is built on `put_new`: of several jobs that write one name, one succeeds.
"""

import errno
import os
import posixpath
import shutil
import socket
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import accumulate
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
from pyarrow import fs as pafs

from spark_channel.clock import SYSTEM_CLOCK, Clock, utc_now
from spark_channel.connectors import hdfs
from spark_channel.connectors.files import conditional_put
from spark_channel.connectors.files.filesystem import LOG, Location, read_file
from spark_channel.errors import UnsupportedError

__all__ = [
    "UNFINISHED",
    "HdfsStore",
    "LocalStore",
    "ObjectStore",
    "OutsideError",
    "Store",
    "store_of",
]


UNFINISHED = "put-"
_TRIES = 20
_OLD = 86_400.0
"""Seconds after which a temporary file of another host is abandoned: a put that lasts so long writes another."""
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK, errno.EOPNOTSUPP)
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class OutsideError(OSError):
    """A path below the store's directory leads out of it."""


class Store(ABC):
    """Files under absolute paths. Missing files are no error to `remove` and `remove_tree`."""

    staged: ClassVar[bool]
    """True: written hidden, then renamed. False: written under the final name, visible by the manifest."""
    answers_late: ClassVar[bool] = True
    """Whether a request that failed may be carried out later: it is on its way to a server."""

    def __init__(self, location: Location, clock: Clock = SYSTEM_CLOCK) -> None:
        self.place = location
        self.clock = clock

    @abstractmethod
    def make(self, path: str) -> None:
        """Make a directory and those above it."""

    @abstractmethod
    def create(self, path: str) -> Any:
        """A new file, open to write bytes. Its directory exists."""

    @abstractmethod
    def seal(self, stream: Any) -> None:
        """Make durable and close what `create` gave."""

    @abstractmethod
    def put(self, path: str, data: bytes) -> None:
        """Write a small file in one step: readers see the old content or the new one; durable on return."""

    @abstractmethod
    def put_new(self, path: str, data: bytes) -> bool:
        """`put` only if the file does not exist; False = it exists. One of several at the same time succeeds.

        Raises:
            UnsupportedError: the filesystem has no such operation. OSError: not known whether it is written.
        """

    @abstractmethod
    def check_put_new(self, path: str) -> None:
        """Try `put_new` with the name `path`, which is then removed.

        Raises:
            UnsupportedError: the filesystem cannot, or ignores the condition.
        """

    @abstractmethod
    def rename(self, old: str, new: str) -> None: ...

    @abstractmethod
    def sync(self, directory: str) -> None:
        """Make the directory's entries durable."""

    @abstractmethod
    def remove(self, path: str) -> None: ...

    def remove_many(self, paths: Sequence[str]) -> None:
        for path in paths:
            self.remove(path)

    @abstractmethod
    def remove_tree(self, path: str) -> None: ...

    @abstractmethod
    def remove_empty(self, path: str) -> None:
        """Remove a directory if nothing is in it, where that can be done in one step."""

    def remove_unfinished(self, directory: str) -> None:  # noqa: B027 - an object store leaves nothing
        """Remove what killed calls of `put` and `put_new` left in `directory`."""

    @abstractmethod
    def touch(self, path: str) -> None:
        """A sign of life: the file's time of change is now."""

    def info(self, path: str) -> pafs.FileInfo:
        return self.place.info(path)

    def exists(self, path: str) -> bool:
        return bool(self.info(path).type != pafs.FileType.NotFound)

    def is_link(self, path: str) -> bool:
        return False

    def entries(self, path: str, *, recursive: bool = False) -> list[pafs.FileInfo]:
        """The entries of a directory; [] if it does not exist."""
        infos: list[pafs.FileInfo] = self.place.fs.get_file_info(
            pafs.FileSelector(path, allow_not_found=True, recursive=recursive)
        )
        return infos


class LocalStore(Store):
    """Files below the directory are reached without following a link: who may write there leads no job out of it."""

    staged = True
    answers_late = False

    def make(self, path: str) -> None:
        for tries_left in reversed(range(_TRIES)):
            try:
                self._make(path)
            except FileNotFoundError:
                if not tries_left:
                    raise
            else:
                return

    def _make(self, path: str) -> None:
        Path(self.place.path).mkdir(parents=True, exist_ok=True)
        inside = posixpath.relpath(path, self.place.path)
        for folder_made in (
            list(accumulate(inside.split("/"), posixpath.join)) if inside != "." else ()
        ):
            with (
                self._beside(posixpath.join(self.place.path, folder_made)) as (folder, name),
                suppress(FileExistsError),
            ):
                os.mkdir(name, dir_fd=folder)

    def is_link(self, path: str) -> bool:
        return Path(path).is_symlink()

    @contextmanager
    def _beside(self, path: str) -> Iterator[tuple[int, str]]:
        """(the folder of `path`, opened; the name in it).

        Raises:
            OutsideError: `path` is not below the store's directory, or a link is on the way.
            FileNotFoundError: the folder does not exist.
        """
        root, inside = self.place.path, posixpath.relpath(path, self.place.path)
        if inside == ".":
            root, inside = posixpath.split(root)
        folder, name = posixpath.split(inside)
        parts = folder.split("/") if folder else []
        if ".." in (*parts, name):
            raise OutsideError(f"{path} is not below {self.place.path}")
        descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for part in parts:
                try:
                    inner = os.open(part, _FOLDER, dir_fd=descriptor)
                except OSError as error:
                    if error.errno not in (errno.ELOOP, errno.ENOTDIR):
                        raise
                    raise OutsideError(
                        f"{path} leads out of {self.place.path}: {part!r} is a link; put a folder in its place"
                    ) from None
                os.close(descriptor)
                descriptor = inner
            yield descriptor, name
        finally:
            os.close(descriptor)

    def create(self, path: str) -> Any:
        return Path(path).open("xb", buffering=1 << 16)

    def seal(self, stream: Any) -> None:
        stream.flush()
        os.fsync(stream.fileno())
        stream.close()

    def put(self, path: str, data: bytes) -> None:
        for tries_left in reversed(range(_TRIES)):
            temporary = self._temporary(data)
            try:
                self.rename(temporary, path)
                break
            except FileNotFoundError:
                if not tries_left or Path(temporary).exists():
                    raise
            finally:
                self.remove(temporary)
        self.sync(posixpath.dirname(path))

    def put_new(self, path: str, data: bytes) -> bool:
        """By a hard link to a whole file."""
        for tries_left in reversed(range(_TRIES)):
            temporary = self._temporary(data)
            try:
                self.link(temporary, path)
                break
            except FileExistsError:
                # Over NFS an answer may be lost, and the call repeated: then the name is a link to this file.
                if Path(temporary).stat().st_nlink == 1:
                    return False
                break
            except FileNotFoundError:
                if not tries_left or Path(temporary).exists():
                    raise  # the directory is gone; else another host's job took the file for a dead one's
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                raise UnsupportedError(
                    f"{self.place.show()}: the disk has no hard links ({error.strerror}), "
                    "so that two jobs could lose each other's rows. "
                    "Write to a disk that has them, to S3, GCS or Azure, or let Spark write the files"
                ) from error
            finally:
                self.remove(temporary)
        self.sync(posixpath.dirname(path))
        return True

    def check_put_new(self, path: str) -> None:
        try:
            self.put_new(path, b"")
        finally:
            self.remove(path)

    def _temporary(self, data: bytes) -> str:
        """A new file with `data`, durable, on the same disk; its name says whose it is."""
        path = posixpath.join(self.place.path, LOG, f"{UNFINISHED}{os.getpid()}-{uuid.uuid4().hex}")
        try:
            stream = self.create(path)
            try:
                stream.write(data)
                self.seal(stream)
            finally:
                _close_quietly(stream)
        except BaseException:
            self.remove(path)
            raise
        return path

    def remove_unfinished(self, directory: str) -> None:
        for info in self.entries(directory):
            kind, _, tail = info.base_name.partition("-")
            pid = tail.partition("-")[0]
            # A process of another host looks dead here: it finds its file gone, and writes another.
            if f"{kind}-" == UNFINISHED and pid.isdigit() and not is_running(int(pid)):
                self.remove(info.path)

    def link(self, old: str, new: str) -> None:
        os.link(old, new)

    def rename(self, old: str, new: str) -> None:
        with self._beside(old) as (here, name), self._beside(new) as (new_folder, other):
            os.rename(name, other, src_dir_fd=here, dst_dir_fd=new_folder)

    def sync(self, directory: str) -> None:
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def remove(self, path: str) -> None:
        with suppress(FileNotFoundError), self._beside(path) as (folder, name):
            os.unlink(name, dir_fd=folder)

    def remove_tree(self, path: str) -> None:
        with suppress(FileNotFoundError), self._beside(path) as (folder, name):
            try:
                shutil.rmtree(name, dir_fd=folder)
            except FileNotFoundError:
                # A task that still runs may have removed its own part of the tree.
                if Path(path).exists():
                    shutil.rmtree(name, ignore_errors=True, dir_fd=folder)

    def remove_empty(self, path: str) -> None:
        try:
            with self._beside(path) as (folder, name):
                os.rmdir(name, dir_fd=folder)
        except OutsideError:
            raise
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
                raise

    def touch(self, path: str) -> None:
        os.utime(path)


class ObjectStore(Store):
    staged = False

    def make(self, path: str) -> None:
        if not self.exists(path):
            self.place.fs.create_dir(path, recursive=True)

    def create(self, path: str) -> Any:
        return self.place.fs.open_output_stream(path)

    def seal(self, stream: Any) -> None:
        stream.close()

    def put(self, path: str, data: bytes) -> None:
        if not conditional_put.put(self.place, path, data):
            self._put_by_arrow(path, data)

    def _put_by_arrow(self, path: str, data: bytes) -> None:
        with self.place.fs.open_output_stream(path) as stream:
            stream.write(data)

    def put_new(self, path: str, data: bytes) -> bool:
        return conditional_put.put_new(self.place, path, data)

    def check_put_new(self, path: str) -> None:
        try:
            conditional_put.check_conditional(self.place, path)
        finally:
            self.remove(path)

    def rename(self, old: str, new: str) -> None:
        raise NotImplementedError("object stores do not rename")

    def sync(self, directory: str) -> None:
        """An object is durable when it is there."""

    def remove(self, path: str) -> None:
        try:
            conditional_put.remove_many(self.place, [path])
        except FileNotFoundError:
            pass
        except OSError:
            self._remove_by_arrow(path)

    def _remove_by_arrow(self, path: str) -> None:
        try:
            self.place.fs.delete_file(path)
        except FileNotFoundError:
            pass
        except OSError:
            if self.exists(path):
                raise

    def remove_many(self, paths: Sequence[str]) -> None:
        for start in range(0, len(paths), 1000):
            some = paths[start : start + 1000]
            try:
                conditional_put.remove_many(self.place, some)
            except OSError:  # a missing one ends the whole request in some stores
                for path in some:
                    self.remove(path)

    def remove_tree(self, path: str) -> None:
        self.remove_many([info.path for info in self.entries(path, recursive=True) if info.is_file])
        try:
            self.place.fs.delete_dir(path)
        except FileNotFoundError:
            pass  # another job was faster; what came since is for the next one
        except OSError:
            if self.exists(path):
                raise

    def remove_empty(self, path: str) -> None:
        """Nothing: a directory is deleted with all that is in it, so also with what came in between."""

    def touch(self, path: str) -> None:
        data = read_file(self.place, path)
        if data:  # else it has ended, or another task is writing it
            self.put(path, data)


def _close_quietly(stream: Any) -> None:
    try:
        stream.close()
    except (OSError, pa.ArrowException):
        pass


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # another user's
    return True


def store_of(location: Location) -> Store:
    """
    Raises:
        MissingPackageError: HDFS without its library.
    """
    if location.renames and not location.local:
        return HdfsStore(location)
    return LocalStore(location) if location.local else ObjectStore(location)


class HdfsStore(Store):
    """Files are written hidden and renamed, as on a disk. A rename onto a name that exists fails, in one step."""

    staged = True

    def __init__(self, location: Location, clock: Clock = SYSTEM_CLOCK) -> None:
        super().__init__(location, clock)
        hdfs.connect(location.root)  # a library that is missing is found out now

    @property
    def client(self) -> "hdfs.HdfsClient":
        return hdfs.connect(self.place.root)

    def make(self, path: str) -> None:
        self.client.make(path)

    def create(self, path: str) -> Any:
        return self.client.open_write(path)

    def seal(self, stream: Any) -> None:
        stream.sync()
        stream.close()

    def put(self, path: str, data: bytes) -> None:
        for tries_left in reversed(range(_TRIES)):
            temporary = self._temporary(data)
            try:
                self.client.rename(temporary, path)
            except FileNotFoundError:
                if (
                    not tries_left
                    or self.exists(temporary)
                    or not self.exists(posixpath.dirname(path))
                ):
                    raise
            else:
                return
            finally:
                self._remove_quietly(temporary)

    def put_new(self, path: str, data: bytes) -> bool:
        """By the rename of a whole file."""
        for tries_left in reversed(range(_TRIES)):
            temporary = self._temporary(data)
            try:
                self.client.rename_new(temporary, path)
            except FileExistsError:
                # The library may have lost the answer to a first request, and sent a second one.
                return self._has(path, data)
            except FileNotFoundError:
                if self._has(path, data):
                    return True
                if (
                    not tries_left
                    or self.exists(temporary)
                    or not self.exists(posixpath.dirname(path))
                ):
                    raise
            else:
                return True
            finally:
                self._remove_quietly(temporary)
        raise AssertionError("unreachable")

    def _has(self, path: str, data: bytes) -> bool:
        """Whether `path` is what was to be put: each entry of the log has its own id."""
        try:
            with self.client.open_read(path) as file:
                return bool(data) and file.read() == data
        except FileNotFoundError:
            return False

    def check_put_new(self, path: str) -> None:
        data = uuid.uuid4().hex.encode()
        try:
            self.put_new(path, data)
            if self.put_new(path, uuid.uuid4().hex.encode()):
                raise UnsupportedError(
                    f"{self.place.show()}: a rename replaces an existing file there, "
                    "so that two jobs could lose each other's rows. "
                    "Write to HDFS itself, to a disk with hard links, or to S3, GCS or Azure"
                )
        finally:
            self.remove(path)

    def _temporary(self, data: bytes) -> str:
        """A new file with `data`, durable; its name says whose it is."""
        name = f"{UNFINISHED}{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex}"
        path = posixpath.join(self.place.path, LOG, name)
        try:
            stream = self.create(path)
            try:
                stream.write(data)
                self.seal(stream)
            finally:
                with suppress(OSError):
                    stream.close()
        except BaseException:
            self._remove_quietly(path)
            raise
        return path

    def _remove_quietly(self, path: str) -> None:
        with suppress(OSError):  # a later job removes it
            self.remove(path)

    def remove_unfinished(self, directory: str) -> None:
        for info in self.entries(directory):
            if not info.base_name.startswith(UNFINISHED):
                continue
            host, _, pid = (
                info.base_name.removeprefix(UNFINISHED).rpartition("-")[0].rpartition("-")
            )
            is_mine = host == socket.gethostname() and pid.isdigit()
            # A driver in a container leaves a host behind that never comes again.
            is_old = info.mtime is not None and (utc_now() - info.mtime).total_seconds() > _OLD
            if is_old or (is_mine and not is_running(int(pid))):
                self.remove(info.path)

    def rename(self, old: str, new: str) -> None:
        try:
            self.client.rename(old, new)
        except FileNotFoundError:
            # The library may have lost the answer to a first request, and sent a second one.
            if self.exists(old) or not self.exists(new):
                raise

    def sync(self, directory: str) -> None:
        """The NameNode has written a change to its journal when it answers."""

    def remove(self, path: str) -> None:
        self.client.remove(path)

    def remove_tree(self, path: str) -> None:
        self.client.remove_tree(path)

    def remove_empty(self, path: str) -> None:
        self.client.remove_empty(path)

    def touch(self, path: str) -> None:
        with suppress(FileNotFoundError):
            self.client.touch(path, utc_now().timestamp())
