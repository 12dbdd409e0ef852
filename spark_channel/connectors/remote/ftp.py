"""FTP, and FTPS with explicit TLS, by Python's own library."""

import calendar
import ftplib
import io
import posixpath
import re
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from spark_channel.connectors.remote.client import (
    MOST_BYTES,
    MOST_ENTRIES,
    Address,
    Download,
    Entry,
    Remote,
    plain_name,
)

__all__ = ["FtpRemote"]

_BUFFER = 1 << 20
_LISTED = re.compile(
    r"(?P<kind>[-dl])\S{9}\S?\s+\d+\s+.*?(?P<size>\d+)\s+\w{3}\s+\d{1,2}\s+[\d:]{4,5}\s(?P<name>.*)"
)
"""A line of LIST as Unix servers write it."""
_KINDS = ("file", "dir")
_UNKNOWN = ("500", "501", "502", "503", "504")
_REPLY_LINES = 10_000


class _Fault(ftplib.Error):
    """The server sent more than is accepted, or something else."""


@contextmanager
def _as_os(path: str) -> Iterator[None]:
    """Errors of the protocol as those of a disk."""
    try:
        yield
    except ftplib.error_perm as error:
        code, text = str(error)[:3], str(error)[:300]
        if code == "530":
            raise ConnectionError(f"the login is refused: {text}") from error
        if code == "550":
            raise FileNotFoundError(f"{path}: {text}") from error
        raise OSError(f"{path}: {text}") from error
    except (ftplib.Error, EOFError) as error:
        raise ConnectionError(
            f"{path}: {str(error)[:300] or 'the server closed the connection'}"
        ) from error
    except ssl.SSLCertVerificationError as error:
        raise ConnectionError(
            f"{path}: the server's certificate is not trusted: {error.verify_message}; "
            "name the CA's file with sslrootcert in option 'storageOptions'. Or set sslmode=require there: "
            "the connection is then encrypted, but another server could impersonate this one"
        ) from error
    except UnicodeDecodeError as error:
        raise OSError(f"{path}: the server names files in another encoding than UTF-8") from error
    except ValueError as error:
        raise OSError(
            f"{path}: an answer of the server is not understood: {str(error)[:200]}"
        ) from error


class _Bounded(ftplib.FTP):
    """Bounds the memory that an answer or a listing of the server takes."""

    def getmultiline(self) -> str:
        line = self.getline()
        if line[3:4] != "-":
            return line
        lines, code = [line], line[:3]
        while True:
            line = self.getline()
            lines.append(line)
            if line[:3] == code and line[3:4] != "-":
                return "\n".join(lines)
            if len(lines) > _REPLY_LINES:
                raise _Fault(f"an answer of more than {_REPLY_LINES} lines")

    def retrlines(self, cmd: str, callback: Any = None) -> str:
        count = size = 0

        def counted(line: str) -> None:
            nonlocal count, size
            count, size = count + 1, size + len(line)
            if count > MOST_ENTRIES or size > MOST_BYTES:
                raise _Fault(
                    f"a listing of more than {MOST_ENTRIES} lines, or {MOST_BYTES >> 20} MiB"
                )
            callback(line)

        return super().retrlines(cmd, counted)

    def ntransfercmd(self, cmd: str, rest: Any = None) -> Any:
        data, size = super().ntransfercmd(cmd, rest)
        host = self.sock.getpeername()[0] if self.sock is not None else ""
        sender = data.getpeername()[0]
        if sender != host:  # with active=true anyone may connect
            data.close()
            raise _Fault(f"the data came from {sender}, and the server is {host}")
        return data, size


class _BoundedTls(_Bounded, ftplib.FTP_TLS):
    pass


def _context(address: Address) -> ssl.SSLContext:
    path = address.get("sslrootcert")
    try:
        made = ssl.create_default_context(cafile=path)
    except OSError as error:
        raise OSError(
            f"sslrootcert in option 'storageOptions': {path} cannot be read: {error}"
        ) from None
    if address.get("sslmode") == "require":
        made.check_hostname, made.verify_mode = False, ssl.CERT_NONE
    return made


class FtpRemote(Remote):
    """A control connection, and a data connection for each file that is read or written."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._ftp = self._connected()

    def _connected(self) -> ftplib.FTP:
        address = self._address
        made: ftplib.FTP = (
            _BoundedTls(context=_context(address)) if address.scheme == "ftps" else _Bounded()
        )
        try:
            with _as_os(address.shown):
                made.connect(address.host, address.port, timeout=address.timeout)
                made.login(address.get("user") or "anonymous", address.get("password") or "")
                if isinstance(made, ftplib.FTP_TLS):
                    made.prot_p()
                made.set_pasv((address.get("active") or "").lower() != "true")
                made.voidcmd("TYPE I")
        except BaseException:
            made.close()
            raise
        return made

    def close(self) -> None:
        self._ftp.close()

    def info(self, path: str) -> Entry | None:
        with _as_os(path):
            try:
                self._ftp.cwd(path)
            except ftplib.error_perm:
                pass
            else:
                return Entry(path, is_folder=True)
            try:
                size = self._ftp.size(path)
            except ftplib.error_perm as error:
                if not str(error).startswith("550"):
                    raise
                return None
        return Entry(path, is_folder=False, size=size or 0, changed=self._changed(path))

    def _changed(self, path: str) -> float | None:
        try:
            return _seconds(self._ftp.voidcmd(f"MDTM {path}").split()[1])
        except (ftplib.error_perm, ValueError, IndexError):
            return None

    def entries(self, path: str) -> list[Entry]:
        found = self._by_mlsd(path)
        listed = self._by_list(path) if found is None else found
        with _as_os(path):
            self._ftp.voidcmd("TYPE I")  # a listing is text, and servers know no size of a text
        return listed

    def _by_mlsd(self, path: str) -> list[Entry] | None:
        """None: the server does not know MLSD."""
        with _as_os(path):
            try:
                listed = list(self._ftp.mlsd(path, ["type", "size", "modify"]))
            except ftplib.error_perm as error:
                if not str(error).startswith(_UNKNOWN):
                    raise
                return None
        with _as_os(path):
            return [
                _entry(path, name, facts)
                for name, facts in listed
                if facts.get("type", "").lower() in _KINDS
            ]

    def _by_list(self, path: str) -> list[Entry]:
        lines: list[str] = []
        with _as_os(path):
            self._ftp.cwd(path)
            self._ftp.retrlines("LIST", lines.append)
        made = []
        for line in lines:
            match = _LISTED.fullmatch(line)
            if match is None:
                if line.lower().startswith("total "):
                    continue
                raise OSError(
                    f"{path}: the server lists files in a form that is not known: {line[:80]!r}"
                )
            name = match["name"]
            if name in (".", "..") or match["kind"] == "l":
                continue
            place, folder = posixpath.join(path, plain_name(name, path)), match["kind"] == "d"
            changed = None if folder else self._changed(place)
            made.append(Entry(place, folder, 0 if folder else int(match["size"][:20]), changed))
        return made

    def open_read(self, path: str) -> Any:
        found = self.info(path)
        if found is None or found.is_folder:
            raise FileNotFoundError(f"{path} does not exist")
        return io.BufferedReader(_Download(self, self._ftp, path, found.size), _BUFFER)

    def reconnected(self) -> ftplib.FTP:
        """A new control connection: a transfer that is broken off leaves the old one in an unknown state."""
        self._ftp.close()
        self._ftp = self._connected()
        return self._ftp

    def open_write(self, path: str) -> Any:
        with _as_os(path):
            return io.BufferedWriter(_Upload(self._ftp, path), _BUFFER)

    def rename(self, old: str, new: str) -> None:
        with _as_os(old):
            self._ftp.rename(old, new)

    def remove(self, path: str) -> None:
        try:
            with _as_os(path):
                self._ftp.delete(path)
        except FileNotFoundError:
            if self.info(path) is not None:  # 550 means a missing right, too
                raise PermissionError(f"{path} cannot be removed") from None

    def _make_one(self, path: str) -> None:
        with _as_os(path):
            self._ftp.mkd(path)


class _Download(Download):
    """Reads on from any position, by a new transfer from there."""

    def __init__(self, remote: FtpRemote, ftp: ftplib.FTP, path: str, size: int) -> None:
        super().__init__(path, size)
        self._remote, self._ftp = remote, ftp
        self._data: Any = None

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        before, place = self._place, super().seek(offset, whence)
        if place != before and self._data is not None:
            self._abort_transfer()
        return place

    def readinto(self, buffer: Any) -> int:
        if self._place >= self._size:
            return 0
        with _as_os(self._path):
            if self._data is None:
                self._data = self._ftp.transfercmd(f"RETR {self._path}", rest=self._place or None)
            count = int(self._data.recv_into(buffer))
            if count == 0:
                raise self._cut(self._place)
            self._place += count
            if self._place >= self._size:
                self._end()
        return count

    def _end(self) -> None:
        self._data.close()
        self._data = None
        self._ftp.voidresp()

    def _abort_transfer(self) -> None:
        self._data.close()
        self._data = None
        self._ftp = self._remote.reconnected()

    def close(self) -> None:
        if not self.closed and self._data is not None:
            self._data.close()
            self._data = None
            self._ftp.close()
        super().close()


class _Upload(io.RawIOBase):
    def __init__(self, ftp: ftplib.FTP, path: str) -> None:
        self._ftp, self._path = ftp, path
        self._sent = 0
        self._data: Any = ftp.transfercmd(f"STOR {path}")

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._data.sendall(data)
        self._sent += len(data)
        return len(data)

    def tell(self) -> int:
        return self._sent

    def close(self) -> None:
        if not self.closed:
            data, self._data = self._data, None
            try:
                if hasattr(data, "unwrap"):
                    data.unwrap()
                data.close()
                with _as_os(self._path):
                    self._ftp.voidresp()
            finally:
                super().close()


def _entry(folder: str, name: str, facts: dict[str, str]) -> Entry:
    """Some servers name a file with its folder."""
    begin = f"{folder.rstrip('/')}/"
    is_folder, modified = facts["type"].lower() == "dir", facts.get("modify")
    changed = _seconds(modified) if modified else None
    place = posixpath.join(folder, plain_name(name.removeprefix(begin), folder))
    return Entry(place, is_folder, 0 if is_folder else int(facts.get("size") or 0), changed)


def _seconds(text: str) -> float:
    return float(calendar.timegm(time.strptime(text[:14], "%Y%m%d%H%M%S")))
