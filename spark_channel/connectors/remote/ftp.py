"""FTP, and FTPS with explicit TLS, by Python's own library."""

import calendar
import ftplib
import io
import posixpath
import re
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from spark_channel.connectors.remote.client import (
    MOST_BYTES,
    MOST_ENTRIES,
    Address,
    Download,
    Entry,
    Remote,
    not_utf8,
    plain_name,
)

__all__ = ["FtpRemote"]

_BUFFER = 1 << 20
_LISTED = re.compile(
    r"(?P<kind>[-dlpscb])\S{9}\S?\s+\d+\s+.*?(?P<size>\d+)\s+\w{3}\s+\d{1,2}\s+[\d:]{4,5}\s(?P<name>.*)"
)
"""A line of LIST as Unix servers write it."""
_KINDS = ("file", "dir")
_LINKS = ("os.unix=slink", "os.unix=symlink")
"""How pure-ftpd and ProFTPD begin the type of a symbolic link."""
_ARROW = " -> "
_UNKNOWN = ("500", "501", "502", "503", "504")
_REPLY_LINES = 10_000
_CUT = re.compile(
    r"truncat|incomplete|fail|unable|abort|denied|cannot|could not|too many|limit reached",
    re.IGNORECASE,
)
"""Words of an answer whose code says that all is well: pure-ftpd cuts a listing so, vsftpd shows none of a folder."""
_COUNTED = re.compile(r"^226[ -](\d+) matches total", re.MULTILINE)
_REFUSED = re.compile(r"denied|permission|not permitted", re.IGNORECASE)


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
        if code == "550" and _REFUSED.search(text):
            raise PermissionError(f"{path}: {text}") from error
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
        raise not_utf8(path, error) from error
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

        answer = super().retrlines(cmd, counted)
        if _CUT.search(answer):
            raise _Fault(
                f"the server says of a listing with {count} lines: {answer[:200]!r}. It is not whole: let the server "
                "show all files of a folder, or read fewer files at once"
            )
        total = _COUNTED.search(answer)
        if total is not None and int(total[1][:20]) != count:
            raise _Fault(f"the server lists {count} names, and says that it lists {total[1][:20]}")
        return answer

    def transfercmd(self, cmd: str, rest: Any = None) -> Any:
        """Bytes as they are: a listing, also one that failed, leaves the connection in the type of text."""
        self.voidcmd("TYPE I")
        return super().transfercmd(cmd, rest)

    def size(self, filename: str) -> int | None:
        """Servers know no size of a text."""
        self.voidcmd("TYPE I")
        return super().size(filename)

    def ntransfercmd(self, cmd: str, rest: Any = None) -> Any:
        data, size = super().ntransfercmd(cmd, rest)
        return self._checked(data), size

    def _checked(self, data: socket.socket) -> socket.socket:
        host = self.sock.getpeername()[0] if self.sock is not None else ""
        sender = data.getpeername()[0]
        if sender != host:  # with active=true anyone may connect
            data.close()
            raise _Fault(f"the data came from {sender}, and the server is {host}")
        return data


class _BoundedTls(_Bounded, ftplib.FTP_TLS):
    def ntransfercmd(self, cmd: str, rest: Any = None) -> Any:
        """A data connection continues the TLS session of the control connection: vsftpd and ProFTPD take no other,
        since it proves whose connection it is."""
        data, size = ftplib.FTP.ntransfercmd(self, cmd, rest)  # noqa: S321 - the library's name; it becomes TLS here
        self._checked(data)
        session = self.sock.session if isinstance(self.sock, ssl.SSLSocket) else None
        try:
            return self.context.wrap_socket(data, server_hostname=self.host, session=session), size
        except BaseException:
            data.close()
            raise


def _context(address: Address) -> ssl.SSLContext:
    path = address.get("sslrootcert")
    try:
        context = ssl.create_default_context(cafile=path)
    except OSError as error:
        raise OSError(
            f"sslrootcert in option 'storageOptions': {path} cannot be read: {error}"
        ) from None
    if address.get("sslmode") == "require":
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


class FtpRemote(Remote):
    """A control connection, and a data connection for each file that is read or written."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._asks_facts = True
        self._ftp = self._connected()

    def _connected(self) -> ftplib.FTP:
        address = self._address
        client: ftplib.FTP = (
            _BoundedTls(context=_context(address)) if address.scheme == "ftps" else _Bounded()
        )
        try:
            with _as_os(address.shown):
                client.connect(address.host, address.port, timeout=address.timeout)
                client.login(address.get("user") or "anonymous", address.get("password") or "")
                if isinstance(client, ftplib.FTP_TLS):
                    client.prot_p()
                client.set_pasv((address.get("active") or "").lower() != "true")
        except BaseException:
            client.close()
            raise
        return client

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
        try:
            entries = self._by_mlsd(path)
            return self._by_list(path) if entries is None else entries
        except FileNotFoundError as error:
            entry = self.info(path)
            if entry is not None and entry.is_folder:  # 550 means a missing right, too
                raise PermissionError(f"the server does not list a folder: {error}") from error
            raise

    def _by_mlsd(self, path: str) -> list[Entry] | None:
        """None: the server does not know MLSD."""
        lines: list[str] = []
        with _as_os(path):
            if self._asks_facts:
                self._asks_facts = False
                with suppress(ftplib.error_perm):  # it sends the facts that it chooses
                    self._ftp.sendcmd("OPTS MLST type;size;modify;")
            try:
                self._ftp.retrlines(f"MLSD {path}", lines.append)
            except ftplib.error_perm as error:
                if not str(error).startswith(_UNKNOWN):
                    raise
                return None
        entries = []
        with _as_os(path):
            for name, facts in (_facts(path, line) for line in lines):
                kind = facts.get("type", "").lower()
                if kind in _KINDS:
                    entries.append(_entry(path, name, facts))
                elif kind.startswith(_LINKS):
                    entries += self._behind_link(_place(path, name))
        return entries

    def _by_list(self, path: str) -> list[Entry]:
        entries = []
        for line in self._lines(path):
            match = _LISTED.fullmatch(line)
            if match is None:
                if line.lower().startswith("total "):
                    continue
                raise _not_understood(path, line)
            name, kind = match["name"], match["kind"]
            if kind == "l":
                name = _linked_name(name, int(match["size"][:20]))
                entries += self._behind_link(posixpath.join(path, plain_name(name, path)))
            if name in (".", "..") or kind not in "-d":
                continue
            path_there, folder = posixpath.join(path, plain_name(name, path)), kind == "d"
            changed = None if folder else self._changed(path_there)
            if changed is None and not folder and self.info(path_there) is None:
                raise OSError(
                    f"{path}: the server lists {name[:80]!r}, and says that it has no such file: it shows another name "
                    "than the file's, or the file was removed meanwhile. Rename it on the server, or try again"
                )
            entries.append(
                Entry(path_there, folder, 0 if folder else int(match["size"][:20]), changed)
            )
        return entries

    def _lines(self, path: str) -> list[str]:
        """With -a vsftpd lists names that begin with a dot. Another server may take it for a file's name: the folder
        itself, which a listing with -a begins with, shows that it did not."""
        lines: list[str] = []
        with _as_os(path):
            self._ftp.cwd(path)
            try:
                self._ftp.retrlines("LIST -a", lines.append)
            except ftplib.error_perm:
                lines = []
            if not any(match and match["name"] == "." for match in map(_LISTED.fullmatch, lines)):
                lines = []
                self._ftp.retrlines("LIST", lines.append)
        return lines

    def open_read(self, path: str) -> Any:
        entry = self.info(path)
        if entry is None or entry.is_folder:
            raise FileNotFoundError(f"{path} does not exist")
        return io.BufferedReader(_Download(self, self._ftp, path, entry.size), _BUFFER)

    def reconnected(self) -> ftplib.FTP:
        """A new control connection: a transfer that is broken off leaves the old one in an unknown state."""
        self._ftp.close()
        self._asks_facts = True
        self._ftp = self._connected()
        return self._ftp

    def open_write(self, path: str) -> Any:
        with _as_os(path):
            return io.BufferedWriter(_Upload(self, self._ftp, path), _BUFFER)

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
        before, position = self._place, super().seek(offset, whence)
        if position != before and self._data is not None:
            self._abort_transfer()
        return position

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
    """At the end the file's size proves that the server has all of it, whatever it says."""

    def __init__(self, remote: FtpRemote, ftp: ftplib.FTP, path: str) -> None:
        self._remote, self._ftp, self._path = remote, ftp, path
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
                entry = self._remote.info(self._path)
                if entry is None or entry.size != self._sent:
                    has = "does not have the file" if entry is None else f"has {entry.size} bytes"
                    raise OSError(
                        f"{self._path}: the server {has}, and {self._sent} bytes were sent"
                    )
            finally:
                super().close()


def _facts(folder: str, line: str) -> tuple[str, dict[str, str]]:
    """The name and the facts in a line of MLSD: `type=file;size=3; a.csv`.

    Raises:
        OSError: it is another line, as the second half of a name with a line's end in it.
    """
    facts, blank, name = line.partition(" ")
    pairs = [fact.partition("=") for fact in facts.split(";")[:-1]]
    if not blank or not facts.endswith(";") or not all(mark for _, mark, _ in pairs):
        raise _not_understood(folder, line)
    return name, {key.lower(): value for key, _, value in pairs}


def _not_understood(folder: str, line: str) -> OSError:
    return OSError(f"{folder}: the server lists files in a form that is not known: {line[:80]!r}")


def _linked_name(text: str, size: int) -> str:
    """The name in `NAME -> TARGET`. Both may have an arrow; the size that is listed is that of the target's bytes."""
    raw, arrow = text.encode(), _ARROW.encode()
    if raw[: len(raw) - size].endswith(arrow):
        return raw[: len(raw) - size - len(arrow)].decode()
    return text.partition(_ARROW)[0]


def _place(folder: str, name: str) -> str:
    """Some servers name a file with its folder."""
    return posixpath.join(folder, plain_name(name.removeprefix(f"{folder.rstrip('/')}/"), folder))


def _entry(folder: str, name: str, facts: dict[str, str]) -> Entry:
    is_folder, modified = facts["type"].lower() == "dir", facts.get("modify")
    changed = _seconds(modified) if modified else None
    return Entry(
        _place(folder, name), is_folder, 0 if is_folder else int(facts.get("size") or 0), changed
    )


def _seconds(text: str) -> float:
    return float(calendar.timegm(time.strptime(text[:14], "%Y%m%d%H%M%S")))
