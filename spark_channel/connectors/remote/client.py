"""A file server: its address and login, the operations that readers and writers need, and a filesystem of `pyarrow`.

Errors are `OSError`s, as those of a disk.
"""

import io
import posixpath
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from pyarrow import fs as pafs

__all__ = [
    "MOST_BYTES",
    "MOST_ENTRIES",
    "SETTINGS",
    "Address",
    "Download",
    "Entry",
    "Remote",
    "filesystem_of",
    "is_remote",
    "not_utf8",
    "plain_name",
]

PORTS = {"ftp": 21, "ftps": 21, "sftp": 22}
SETTINGS = (
    "user",
    "password",
    "private_key_file",
    "private_key_password",
    "host_key",
    "timeout",
    "active",
    "sslmode",
    "sslrootcert",
)
"""Names of settings in option `storageOptions`."""
_TIMEOUT = 60.0
_LONGEST = 86_400

MOST_BYTES = 256 << 20
MOST_ENTRIES = 1_000_000
"""The largest listing: it is held in memory."""
_LARGEST = 1 << 50
_DEEPEST = 64


def is_remote(root: str) -> bool:
    """Whether a `Location.root` is one of a server of files."""
    scheme, mark, _ = root.partition("://")
    return bool(mark) and scheme.lower() in PORTS


@dataclass(frozen=True, slots=True)
class Address:
    """`settings` are never shown."""

    scheme: str
    host: str
    port: int
    settings: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @classmethod
    def from_uri(cls, root: str, settings: tuple[tuple[str, str], ...] = ()) -> "Address":
        """
        Raises:
            ValueError: no host, or a setting that is malformed.
        """
        parts = urlsplit(root)
        if not parts.hostname:
            raise ValueError("the uri names no host; it takes sftp://host:22/folder")
        own_settings = dict(settings)
        if parts.username and "user" not in own_settings:
            own_settings["user"] = unquote(parts.username)
        address = cls(
            parts.scheme,
            parts.hostname,
            parts.port or PORTS[parts.scheme],
            tuple(sorted(own_settings.items())),
        )
        if not 0 < address.timeout <= _LONGEST:
            raise ValueError(
                f"'timeout' in option 'storageOptions' is not between 0 and {_LONGEST} seconds"
            )
        tls = next((name for name in ("sslmode", "sslrootcert") if address.get(name)), None)
        if tls is not None and address.scheme != "ftps":
            raise ValueError(
                f"{tls!r} in option 'storageOptions' is for TLS, and {address.scheme}:// has none: use ftps://"
            )
        if address.get("sslmode") not in (None, "verify-full", "require"):
            raise ValueError(
                "'sslmode' in option 'storageOptions' is not verify-full, or require, which checks no certificate"
            )
        if address.get("sslmode") == "require" and address.get("sslrootcert") is not None:
            raise ValueError(
                "'sslmode' in option 'storageOptions' is require, which checks no certificate, and 'sslrootcert' there "
                "names what verifies the server's: omit one of the two"
            )
        return address

    def get(self, name: str) -> str | None:
        return dict(self.settings).get(name)

    @property
    def timeout(self) -> float:
        """Seconds for one answer of the server."""
        timeout_text = self.get("timeout")
        try:
            return _TIMEOUT if timeout_text is None else float(timeout_text)
        except ValueError:
            raise ValueError(
                "'timeout' in option 'storageOptions' is not a number of seconds"
            ) from None

    @property
    def shown(self) -> str:
        return f"{self.scheme}://{self.host}:{self.port}"


def plain_name(name: str, folder: str) -> str:
    """
    Raises:
        OSError: it would lead out of the folder in which a server lists it, or to the folder itself.
    """
    if not name or "/" in name or "\0" in name or name in (".", ".."):
        raise OSError(f"{folder}: the server lists {name[:80]!r}, which is not the name of a file")
    return name


def not_utf8(folder: str, error: UnicodeDecodeError) -> OSError:
    """An error that shows the line with the name."""
    begin = error.object.rfind(b"\n", 0, error.start) + 1
    line = error.object[max(begin, error.start - 80) : error.start + 40].splitlines()[0]
    return OSError(
        f"{folder}: the server names a file in another encoding than UTF-8: {line!r}. "
        "Rename it on the server, or have the server show its names in UTF-8"
    )


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
        """Return the entries of a folder, without `.` and `..`. A link to a file is that file; others are left out.

        Raises:
            FileNotFoundError: the folder does not exist.
        """

    def _behind_link(self, path: str) -> list[Entry]:
        """The file that a link leads to, under the link's path; nothing for a link to a folder, or to nothing."""
        entry = self.info(path)
        return [] if entry is None or entry.is_folder else [entry]

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
        entry = self.info(path)
        if entry is not None and not entry.is_folder:
            raise NotADirectoryError(f"{path} is a file")
        if entry is None:
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


class Download(io.RawIOBase):
    """A file of a server that can be read from any position: `readinto` asks the server."""

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

    def _cut(self, position: int) -> ConnectionError:
        """The server sent fewer bytes than it announced."""
        return ConnectionError(
            f"{self._path}: the transfer ended at byte {position} of {self._size}: "
            "the file was changed, or the connection is lost"
        )


def filesystem_of(kind: str, key: Hashable, connect: Callable[[], Remote]) -> pafs.FileSystem:
    """A read-only filesystem of `pyarrow`; filesystems of one `key` are equal.

    `connect` opens a client, and each call closes its own.
    """
    return pafs.PyFileSystem(_Handler(kind, key, connect))


class _ConnectedFile:
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
            entries = [(path, remote.info(path)) for path in paths]
        return [
            pafs.FileInfo(path, pafs.FileType.NotFound) if entry is None else _info(entry)
            for path, entry in entries
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
            return pa.PythonFile(_ConnectedFile(remote, remote.open_read(path)), mode="r")
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
        subfolder, depth = waiting.pop()
        for entry in remote.entries(subfolder):
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
                        "a folder may be linked into itself. Read its files by a pattern, such as folder/*.csv"
                    )
                waiting.append((entry.path, depth + 1))


def _info(entry: Entry) -> pafs.FileInfo:
    kind = pafs.FileType.Directory if entry.is_folder else pafs.FileType.File
    changed = None if entry.changed is None else datetime.fromtimestamp(entry.changed, UTC)
    return pafs.FileInfo(
        entry.path, kind, mtime=changed, size=None if entry.is_folder else entry.size
    )
