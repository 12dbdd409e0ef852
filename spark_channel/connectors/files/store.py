"""What publishing needs of a filesystem: a local disk has renames and fsync, an object store has neither."""

import errno
import fcntl
import json
import logging
import os
import posixpath
import random
import shutil
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
from pyarrow import fs as pafs

from spark_channel.clock import SYSTEM_CLOCK, Clock
from spark_channel.connectors.commit.owner import describe_owner, owner_is_gone
from spark_channel.connectors.files.manifest import HIDDEN
from spark_channel.connectors.files.paths import Location
from spark_channel.connectors.files.visible import read_file
from spark_channel.errors import TargetError

__all__ = ["UNFINISHED", "LocalStore", "ObjectStore", "Store", "store_of"]

_log = logging.getLogger(__name__)

UNFINISHED = "put-"
_FIRST_WAIT, _LONGEST_WAIT = 0.005, 0.25


class Store(ABC):
    """Files under absolute paths. Missing files are no error to `remove` and `remove_tree`."""

    staged: ClassVar[bool]
    """True: written hidden, then renamed. False: written under the final name, visible by the manifest."""

    def __init__(self, place: Location, clock: Clock = SYSTEM_CLOCK) -> None:
        self.place = place
        self.clock = clock

    @abstractmethod
    def make(self, path: str) -> list[str]:
        """Make a directory and those above it; returns what was made, the topmost first."""

    @abstractmethod
    def create(self, path: str) -> Any:
        """A new file, open to write bytes. Its directory exists."""

    @abstractmethod
    def seal(self, stream: Any) -> None:
        """Make durable and close what `create` gave."""

    @abstractmethod
    def put(self, path: str, data: bytes) -> None:
        """Write a small file in one step: readers see the old content or the new one; durable on return.

        The caller holds the lock; what a kill leaves is called `UNFINISHED`... in `HIDDEN`.
        """

    @abstractmethod
    def rename(self, old: str, new: str) -> None: ...

    @abstractmethod
    def sync(self, directory: str) -> None:
        """Make the directory's entries durable."""

    @abstractmethod
    def remove(self, path: str) -> None: ...

    @abstractmethod
    def remove_tree(self, path: str) -> None: ...

    @abstractmethod
    def remove_empty(self, path: str) -> None:
        """Remove a directory if nothing is in it, where that can be done in one step."""

    @abstractmethod
    def touch(self, path: str) -> None:
        """A sign of life: the file's time of change is now."""

    @abstractmethod
    def lock(self, path: str, timeout: float) -> Any:
        """A context manager that one process at a time is in, over all that use `path`.

        Raises:
            TargetError: not free within `timeout` seconds.
        """

    def info(self, path: str) -> pafs.FileInfo:
        return self.place.fs.get_file_info(path)

    def exists(self, path: str) -> bool:
        return bool(self.info(path).type != pafs.FileType.NotFound)

    def entries(self, path: str, *, recursive: bool = False) -> list[pafs.FileInfo]:
        """What is in a directory; [] when there is none."""
        found: list[pafs.FileInfo] = self.place.fs.get_file_info(
            pafs.FileSelector(path, allow_not_found=True, recursive=recursive)
        )
        return found


class LocalStore(Store):
    staged = True

    def make(self, path: str) -> list[str]:
        missing, above = [], Path(path)
        while not above.exists():
            missing.append(str(above))
            above = above.parent
        made = []
        for directory in reversed(missing):
            try:
                Path(directory).mkdir()
                made.append(directory)
            except FileExistsError:
                continue
        return made

    def create(self, path: str) -> Any:
        return Path(path).open("xb", buffering=1 << 16)

    def seal(self, stream: Any) -> None:
        stream.flush()
        os.fsync(stream.fileno())
        stream.close()

    def put(self, path: str, data: bytes) -> None:
        temporary = posixpath.join(self.place.path, HIDDEN, f"{UNFINISHED}{uuid.uuid4().hex}")
        try:
            stream = self.create(temporary)
            try:
                stream.write(data)
                self.seal(stream)
            finally:
                _close_quietly(stream)
            self.rename(temporary, path)
        except BaseException:
            self.remove(temporary)
            raise
        self.sync(posixpath.dirname(path))

    def rename(self, old: str, new: str) -> None:
        os.rename(old, new)  # noqa: PTH104 - one system call, by name

    def sync(self, directory: str) -> None:
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def remove(self, path: str) -> None:
        Path(path).unlink(missing_ok=True)

    def remove_tree(self, path: str) -> None:
        try:
            shutil.rmtree(path)
        except FileNotFoundError:
            # A task that still runs may have removed its own part of the tree.
            if Path(path).exists():
                shutil.rmtree(path, ignore_errors=True)

    def remove_empty(self, path: str) -> None:
        try:
            Path(path).rmdir()
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
                raise

    def touch(self, path: str) -> None:
        os.utime(path)

    @contextmanager
    def lock(self, path: str, timeout: float) -> Iterator[None]:
        """A lock of the kernel's, which a killed process gives up at once."""
        deadline, wait = self.clock.now() + timeout, _FIRST_WAIT
        while (descriptor := self._try_lock(path)) is None:
            if self.clock.now() >= deadline:
                raise TargetError(
                    f"another job has been publishing into {self.place.show()} for {timeout:g} s; run "
                    "again, or raise "
                    "option lockTimeout"
                )
            self.clock.sleep(wait * random.uniform(0.5, 1.0))  # noqa: S311 - spreads the tries of several jobs
            wait = min(wait * 1.5, _LONGEST_WAIT)
        try:
            yield
        finally:
            try:
                # While it is held, so that whoever opened the same file finds out that it is gone.
                self.remove(path)
            except OSError:
                pass  # a lock file that nobody holds hinders nobody
            finally:
                os.close(descriptor)

    def _try_lock(self, path: str) -> int | None:
        self.make(posixpath.dirname(path))
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except FileNotFoundError:  # another job has just removed the empty folder
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            held, there = os.fstat(descriptor), Path(path).stat()
            if (held.st_dev, held.st_ino) == (there.st_dev, there.st_ino):
                return descriptor
        except (BlockingIOError, FileNotFoundError):
            pass
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
        return None


_TICKET_AGE = 600.0


class ObjectStore(Store):
    staged = False

    def make(self, path: str) -> list[str]:
        if self.exists(path):
            return []
        self.place.fs.create_dir(path, recursive=True)
        return [path]

    def create(self, path: str) -> Any:
        return self.place.fs.open_output_stream(path)

    def seal(self, stream: Any) -> None:
        stream.close()

    def put(self, path: str, data: bytes) -> None:
        with self.place.fs.open_output_stream(path) as stream:
            stream.write(data)

    def rename(self, old: str, new: str) -> None:
        raise NotImplementedError("object stores do not rename")

    def sync(self, directory: str) -> None:
        """An object is durable when it is there."""

    def remove(self, path: str) -> None:
        try:
            self.place.fs.delete_file(path)
        except FileNotFoundError:
            pass
        except OSError:
            if self.exists(path):
                raise

    def remove_tree(self, path: str) -> None:
        for info in self.entries(path, recursive=True):
            if info.type == pafs.FileType.File:
                self.remove(info.path)
        try:
            self.place.fs.delete_dir(path)
        except OSError:
            if self.exists(path):
                raise

    def remove_empty(self, path: str) -> None:
        """Nothing: a directory is deleted with all that is in it, so also with what came in between."""

    def touch(self, path: str) -> None:
        with self.place.fs.open_input_file(path) as stream:
            data = bytes(stream.read())
        self.put(path, data)

    @contextmanager
    def lock(self, path: str, timeout: float) -> Iterator[None]:
        """Lamport's bakery: numbered tickets, which need listings that show every object there is.

        The ticket of a process of this machine that is gone does not count, nor one that is older than ten
        minutes by the store's clock.
        """
        name = uuid.uuid4().hex
        choosing = posixpath.join(path, f"choosing.{name}")
        self.place.fs.create_dir(path, recursive=True)
        ticket = ""
        try:
            about = json.dumps({"owner": describe_owner()}).encode()
            self.put(choosing, about)
            number = 1 + max((found[0] for found in self._tickets(path)), default=0)
            ticket = posixpath.join(path, f"{number:012d}.{name}")
            self.put(ticket, about)
            self.remove(choosing)
            self._wait_turn(path, ticket, (number, name), timeout)
            yield
        finally:
            for left in (choosing, ticket):
                self._remove_surely(left)

    def _remove_surely(self, path: str) -> None:
        """A ticket that stays would keep others waiting, so one failure is not taken for an answer."""
        for _ in range(3):
            try:
                if path:
                    self.remove(path)
                return
            except OSError as error:
                _log.warning("%s: %s", self.place.show(path), error)

    def _tickets(self, path: str) -> list[tuple[int, str, pafs.FileInfo]]:
        found = []
        for info in self.entries(path):
            number, _, name = info.base_name.partition(".")
            if number.isdigit():
                found.append((int(number), name, info))
        return found

    def _is_dead(self, ticket: pafs.FileInfo, own: pafs.FileInfo) -> bool:
        if (own.mtime_ns or 0) - (ticket.mtime_ns or 0) > _TICKET_AGE * 1e9:
            return True
        try:
            raw = read_file(self.place.fs, ticket.path)
            return raw is not None and owner_is_gone(json.loads(raw)["owner"])
        except (OSError, ValueError, KeyError, TypeError):
            return False  # given back while it was read, or of another version

    def _wait_turn(self, path: str, ticket: str, mine: tuple[int, str], timeout: float) -> None:
        deadline, wait = self.clock.now() + timeout, _FIRST_WAIT
        seen: set[str] = set()
        while True:
            entries = self.entries(path)
            own = [info for info in entries if info.path == ticket]
            if not own:
                raise TargetError(f"the lock of {self.place.show()} was taken away; run again")
            ahead = []
            for info in entries:
                number, _, name = info.base_name.partition(".")
                first = number == "choosing" or (number.isdigit() and (int(number), name) < mine)
                if info.path != ticket and first and info.base_name != f"choosing.{mine[1]}":
                    if info.path not in seen and self._is_dead(info, own[0]):
                        self.remove(info.path)
                    else:
                        seen.add(info.path)
                        ahead.append(info)
            if not ahead:
                return
            if self.clock.now() >= deadline:
                raise TargetError(
                    f"another job has been publishing into {self.place.show()} for {timeout:g} s; run "
                    "again, or raise "
                    "option lockTimeout"
                )
            self.clock.sleep(wait * random.uniform(0.5, 1.0))  # noqa: S311 - spreads the tries of several jobs
            wait = min(wait * 1.5, 8 * _LONGEST_WAIT)


def _close_quietly(stream: Any) -> None:
    try:
        stream.close()
    except (OSError, pa.ArrowException):
        pass


def store_of(place: Location, clock: Clock = SYSTEM_CLOCK) -> Store:
    return LocalStore(place, clock) if place.local else ObjectStore(place, clock)
