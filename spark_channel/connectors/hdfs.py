"""HDFS without a JVM, by the library `hdfs-native`: a client, and a filesystem for `pyarrow` to read.

Its NameNode decides renames: onto a name that exists they fail, so of two one succeeds.
"""

import errno
import io
import os
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from functools import lru_cache
from importlib.util import find_spec
from typing import Any
from urllib.parse import urlsplit

from pyarrow import fs as pafs

from spark_channel.connectors import name_node
from spark_channel.connectors.remote.client import Download, Entry, Remote, filesystem_of
from spark_channel.errors import MissingPackageError
from spark_channel.requirements import check_versions

__all__ = ["HdfsClient", "connect", "filesystem", "is_hdfs", "is_installed"]

_SCHEMES = ("hdfs", "viewfs")
_BUFFER = 1 << 20
_FOLDER, _FILE = 0o755, 0o644
_CAUSES = (
    ("AccessControlException", errno.EACCES),
    ("PathIsNotEmptyDirectoryException", errno.ENOTEMPTY),
    ("QuotaExceededException", errno.EDQUOT),
    ("SafeModeException", errno.EROFS),
)
"""The NameNode's exceptions and the matching error numbers of a local disk."""


_ASK_SECONDS, _SECONDS = 5.0, 30.0
"""After so long the NameNode is asked what it asks for, and after so long the first call ends with an error."""
_WORDS = re.compile(r'"([^"]*)"\)*$')


class NoAnswerError(OSError):
    """The first call to a server had no answer, and why."""


@contextmanager
def _as_os(path: str) -> Iterator[None]:
    """Errors of the library as those of a disk."""
    try:
        yield
    except (
        FileNotFoundError,
        FileExistsError,
        IsADirectoryError,
        NotADirectoryError,
        NoAnswerError,
    ):
        raise
    except OSError as error:
        raise _os_error(path, error) from error
    except (RuntimeError, ValueError) as error:  # what the library makes of the rest
        raise _os_error(path, error) from error


def _os_error(path: str, error: Exception) -> OSError:
    text = str(error)
    if "FileNotFoundException" in text:
        return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    if "FileAlreadyExistsException" in text:
        return FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
    for name, code in _CAUSES:
        if name in text:
            return OSError(code, os.strerror(code), path)
    if "GSSAPI" in text:
        words = _WORDS.search(text)
        return NoAnswerError(
            f"{path}: the NameNode asks for Kerberos, and the login failed: {words[1] if words else text[:300]}. "
            "Get a ticket with kinit on each host that reads or writes, or name its file in KRB5CCNAME"
        )
    return OSError(f"{path}: {(text.splitlines() or [type(error).__name__])[0][:300]}")


class _FirstCall:
    """Calls to a server that may not be there: until one has ended, each has a deadline.

    hdfs-native tries for minutes, or forever, and the main thread would take no signal meanwhile.
    """

    def __init__(self, reason: "Callable[[], name_node.Answer]") -> None:
        """`reason`: what is known of a server that does not answer."""
        self._why = reason
        self.has_answered = False

    def __call__(self, call: "Callable[[], Any]") -> Any:
        """What `call` returns or raises.

        Raises:
            NoAnswerError: it had not ended at the deadline.
        """
        if self.has_answered:
            return call()
        future: Future[Any] = Future()

        def run() -> None:
            try:
                future.set_result(call())
            except BaseException as error:
                future.set_exception(error)

        threading.Thread(target=run, name="spark-channel-hdfs", daemon=True).start()
        wait([future], _ASK_SECONDS)
        if not future.done() and (answer := self._why()).kerberos:
            raise NoAnswerError(answer.text)
        wait([future], _SECONDS - _ASK_SECONDS)
        if not future.done():
            raise NoAnswerError(f"no answer within {_SECONDS:g} s: {self._why().text}")
        result = future.result()
        self.has_answered = True
        return result


class HdfsClient(Remote):
    """Used by many threads. `close` does nothing: it is kept for the whole process."""

    def __init__(self, root: str) -> None:
        import hdfs_native

        has_host = bool(urlsplit(root).netloc)
        self._root = root
        self._first = _FirstCall(self._silence)
        self._data = _FirstCall(
            lambda: name_node.Answer(
                f"{root} names the DataNodes, and none takes the data: this host must reach the addresses that "
                "they have there (dfs.client.use.datanode.hostname asks for their names instead)"
            )
        )
        with _as_os(root if has_host else f"{root}/ (fs.defaultFS of HADOOP_CONF_DIR)"):
            self._native: Any = hdfs_native.Client(root if has_host else None)

    def _client(self, path: str) -> Any:
        """The library's client. The first call has a deadline: it asks for `path`."""

        def look() -> None:
            with suppress(FileNotFoundError):
                self._native.get_file_info(path)

        if not self._first.has_answered:
            self._first(look)
        return self._native

    def _silence(self) -> name_node.Answer:
        configuration = name_node.settings()
        answers = [
            name_node.ask(*address) for address in name_node.addresses(self._root, configuration)
        ]
        heard = (
            "; ".join(answer.text for answer in answers) or "the configuration names no NameNode"
        )
        folder = name_node.folder()
        if configuration.get("hadoop.security.authentication", "").lower() == "kerberos":
            return name_node.Answer(
                f"{self._root}: {heard}. Check the path's host and port, and the files in {folder}"
            )
        if any(answer.kerberos for answer in answers):
            return name_node.Answer(
                f"{self._root}: {heard}, and the settings of this client do not. Set hadoop.security.authentication "
                f"to kerberos in core-site.xml of {folder}, and get a ticket with kinit",
                kerberos=True,
            )
        return name_node.Answer(f"{self._root}: {heard}. Check the path's host and port")

    def close(self) -> None:
        pass

    def info(self, path: str) -> Entry | None:
        try:
            with _as_os(path):
                return _entry(path, self._client(path).get_file_info(path))
        except FileNotFoundError:
            return None

    def entries(self, path: str) -> list[Entry]:
        with _as_os(path):
            return [
                _entry(status.path, status)
                for status in self._client(path).list_status(path)
                if status.path != path
            ]

    def open_read(self, path: str) -> Any:
        with _as_os(path):
            file = self._client(path).read(path)
            return io.BufferedReader(_Download(file, path, self._data), _BUFFER)

    def open_write(self, path: str) -> Any:
        """A new file.

        Raises:
            FileExistsError: there is one.
        """
        import hdfs_native

        options = hdfs_native.WriteOptions(permission=_FILE, overwrite=False, create_parent=False)
        with _as_os(path):
            return _Upload(self._client(path).create(path, options), path, self._data)

    def make(self, path: str) -> None:
        with _as_os(path):
            self._client(path).mkdirs(path, _FOLDER, create_parent=True)

    def _make_one(self, path: str) -> None:
        self.make(path)

    def rename(self, old: str, new: str) -> None:
        """In one step; a file `new` is replaced."""
        with _as_os(old):
            self._client(old).rename(old, new, overwrite=True)

    def rename_new(self, old: str, new: str) -> None:
        """In one step, unless `new` exists.

        Raises:
            FileExistsError: it does. FileNotFoundError: `old` does not. OSError: not known whether it is renamed.
        """
        with _as_os(old):
            self._client(old).rename(old, new, overwrite=False)

    def remove(self, path: str) -> None:
        """Remove a file, or an empty folder."""
        with suppress(FileNotFoundError), _as_os(path):
            self._client(path).delete(path, recursive=False)

    def remove_empty(self, path: str) -> None:
        """Remove a folder, if nothing is in it."""
        try:
            self.remove(path)
        except OSError as error:
            if error.errno != errno.ENOTEMPTY:
                raise

    def remove_tree(self, path: str) -> None:
        with suppress(FileNotFoundError), _as_os(path):
            self._client(path).delete(path, recursive=True)

    def touch(self, path: str, at: float) -> None:
        """The file's time of change is `at`, in seconds since 1970."""
        with _as_os(path):
            self._client(path).set_times(path, int(at * 1000), int(at * 1000))


def _entry(path: str, status: Any) -> Entry:
    return Entry(path, status.isdir, status.length, status.modification_time / 1000)


class _Download(Download):
    def __init__(self, file: Any, path: str, data: _FirstCall) -> None:
        super().__init__(path, len(file))
        self._file, self._data = file, data

    def readinto(self, buffer: Any) -> int:
        count = max(0, min(len(buffer), self._size - self._place))
        if count:
            with _as_os(self._path):
                data = self._data(lambda: self._file.read_range(self._place, count))
            if len(data) != count:
                raise self._cut(self._place + len(data))
            buffer[:count] = data
            self._place += count
        return count


class _Upload(io.RawIOBase):
    """Gathers what is written into large pieces. `close` raises if HDFS does not have all of it, on disk."""

    def __init__(self, file: Any, path: str, data: _FirstCall) -> None:
        self._file, self._path, self._held, self._sent = file, path, bytearray(), 0
        self._data = data

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._held += data
        if len(self._held) >= _BUFFER:
            self._send()
        return len(data)

    def _send(self) -> None:
        data = bytes(self._held)
        with _as_os(self._path):
            self._data(lambda: self._file.write(data))
        self._sent += len(self._held)
        self._held.clear()

    def tell(self) -> int:
        return self._sent + len(self._held)

    def sync(self) -> None:
        """Have the DataNodes write to their disks what they have in memory."""
        self._send()
        with _as_os(self._path):
            self._data(self._file.hsync)

    def close(self) -> None:
        if self.closed:
            return
        try:
            if self._held:
                self._send()
            with _as_os(self._path):
                self._data(self._file.close)
        finally:
            io.RawIOBase.close(self._file)  # or it is closed again when it is collected
            super().close()


def is_hdfs(root: str) -> bool:
    """Whether a `Location.root` names HDFS."""
    scheme, mark, _ = root.partition("://")
    return bool(mark) and scheme.lower() in _SCHEMES


def is_installed() -> bool:
    return find_spec("hdfs_native") is not None


def connect(root: str) -> HdfsClient:
    """Return the client of a NameNode: one in a process, for all threads.

    Raises:
        MissingPackageError: hdfs-native is not installed. OSError: a name service that the configuration lacks.
    """
    if not is_installed():
        raise MissingPackageError(
            "writing to hdfs:// needs hdfs-native: pip install 'spark-channel[hdfs]', "
            "on the driver's host and on the workers",
            name="hdfs_native",
        )
    check_versions("hdfs")
    return _opened(root, os.getpid())  # a forked process has none of its parent's threads


@lru_cache(maxsize=32)
def _opened(root: str, _process: int) -> HdfsClient:
    return HdfsClient(root)


def filesystem(root: str) -> pafs.FileSystem:
    """A filesystem of `pyarrow`, to read. Opens no connection yet.

    Raises:
        ValueError: the uri has more than a host and a port.
    """
    parts = urlsplit(root)
    is_default = parts.scheme == "hdfs" and not parts.netloc  # fs.defaultFS of HADOOP_CONF_DIR
    if not parts.hostname and not is_default:
        raise ValueError(
            "the uri names no host; it takes hdfs://namenode:8020/path or hdfs://nameservice/path"
        )
    if parts.username or parts.query or parts.fragment:
        raise ValueError(
            "the uri names more than a host: the user is that of Kerberos or of HADOOP_USER_NAME, "
            "and settings are in HADOOP_CONF_DIR"
        )
    return filesystem_of(root.partition("://")[0], root, lambda: connect(root))
