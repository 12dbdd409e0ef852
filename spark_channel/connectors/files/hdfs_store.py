"""HDFS: files are written hidden and renamed, as on a disk. A rename onto a name that exists fails, in one step."""

import os
import posixpath
import socket
import uuid
from contextlib import suppress
from typing import Any

from spark_channel.clock import SYSTEM_CLOCK, Clock, utc_now
from spark_channel.connectors import hdfs
from spark_channel.connectors.files.paths import LOG, Location
from spark_channel.connectors.files.store import UNFINISHED, Store, is_running
from spark_channel.errors import UnsupportedError

__all__ = ["HdfsStore"]

_TRIES = 20
_OLD = 86_400.0
"""Seconds after which a temporary file of another host is abandoned: a put that lasts so long writes another."""


class HdfsStore(Store):
    staged = True

    def __init__(self, place: Location, clock: Clock = SYSTEM_CLOCK) -> None:
        super().__init__(place, clock)
        hdfs.connect(place.root)  # a library that is missing is found out now

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
        for left in reversed(range(_TRIES)):
            temporary = self._temporary(data)
            try:
                self.client.rename(temporary, path)
            except FileNotFoundError:
                if not left or self.exists(temporary) or not self.exists(posixpath.dirname(path)):
                    raise
            else:
                return
            finally:
                self._remove_quietly(temporary)

    def put_new(self, path: str, data: bytes) -> bool:
        """By the rename of a whole file."""
        for left in reversed(range(_TRIES)):
            temporary = self._temporary(data)
            try:
                self.client.rename_new(temporary, path)
            except FileExistsError:
                # The library may have lost the answer to a first request, and sent a second one.
                return self._has(path, data)
            except FileNotFoundError:
                if self._has(path, data):
                    return True
                if not left or self.exists(temporary) or not self.exists(posixpath.dirname(path)):
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
            host, _, pid = info.base_name.removeprefix(UNFINISHED).rpartition("-")[0].rpartition("-")
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
