"""SFTP, by paramiko."""

import base64
import hashlib
import io
import posixpath
import re
import socket
import stat
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import paramiko
from paramiko.sftp import CMD_CLOSE, CMD_HANDLE, CMD_NAME, CMD_OPENDIR, CMD_READDIR

from spark_channel.connectors.remote.client import (
    MOST_ENTRIES,
    Address,
    Download,
    Entry,
    Remote,
    not_utf8,
    plain_name,
)

__all__ = ["SftpRemote"]

_BUFFER = 1 << 20
_REQUEST = 32 << 10
"""The bytes that every server returns for one request."""
_KNOWN = ("~/.ssh/known_hosts", "/etc/ssh/ssh_known_hosts")


_LARGEST_PACKET = 1 << 20
"""SSH's own are 35 000 bytes; paramiko takes what the server announces, up to 4 GiB, before the host key is checked."""


@contextmanager
def _as_os(path: str) -> Iterator[None]:
    """Errors of the protocol as those of a disk."""
    try:
        yield
    except OSError:
        raise
    except UnicodeDecodeError as error:
        raise not_utf8(path, error) from error
    except (paramiko.SSHException, paramiko.SFTPError, EOFError) as error:
        raise ConnectionError(
            f"{path}: {str(error)[:300] or 'the server closed the connection'}"
        ) from error
    except (AttributeError, LookupError, TypeError, ValueError, struct.error) as error:
        raise OSError(
            f"{path}: an answer of the server is not understood: {str(error)[:200]}"
        ) from error


class _BoundedClient(paramiko.SFTPClient):  # type: ignore[misc] # paramiko is untyped
    """Lists folders without holding what a server claims to send."""

    def bounded_entries(self, path: str) -> Iterator[paramiko.SFTPAttributes]:
        kind, message = self._request(CMD_OPENDIR, path)
        if kind != CMD_HANDLE:
            raise paramiko.SFTPError("no handle for a folder")
        handle, count = message.get_binary(), 0
        try:
            while True:
                try:
                    kind, message = self._request(CMD_READDIR, handle)
                except EOFError:  # the end, as SFTP says it
                    return
                if kind != CMD_NAME:
                    raise paramiko.SFTPError("no names of files")
                for _ in range(message.get_int()):
                    count += 1
                    if count > MOST_ENTRIES:
                        raise OSError(f"a listing of more than {MOST_ENTRIES} files")
                    name, long = message.get_text(), message.get_text()
                    attributes = paramiko.SFTPAttributes._from_msg(message, name, long)  # noqa: SLF001 - as its client does
                    if name not in (".", ".."):
                        plain_name(name, path)
                        yield attributes
        finally:
            self._request(CMD_CLOSE, handle)


class SftpRemote(Remote):
    """One SSH connection."""

    def __init__(self, address: Address) -> None:
        self._address = address
        sock = socket.create_connection((address.host, address.port), timeout=address.timeout)
        self._transport: Any = None
        # paramiko waits for some answers without a timeout.
        late = threading.Event()
        deadline = threading.Timer(address.timeout, self._give_up, (sock, late))
        deadline.daemon = True
        deadline.start()
        try:
            with _as_os(address.shown):
                self._connect(sock)
        except BaseException as error:
            self.close()
            sock.close()
            if late.is_set():
                raise TimeoutError(
                    f"{address.shown}: the server has not opened SFTP within {address.timeout:g} s ('timeout')"
                ) from error
            raise
        finally:
            deadline.cancel()

    def _give_up(self, sock: socket.socket, late: threading.Event) -> None:
        late.set()
        transport = self._transport
        if transport is not None:
            transport.close()
        sock.close()

    def _connect(self, sock: socket.socket) -> None:
        address = self._address
        self._transport = transport = paramiko.Transport(sock)
        transport.banner_timeout = transport.auth_timeout = transport.channel_timeout = (
            address.timeout
        )
        _bound_packets(transport)
        transport.start_client(timeout=address.timeout)
        self._check_host()
        try:
            self._log_in()
        except paramiko.AuthenticationException as error:
            raise ConnectionError(
                f"{address.shown}: the login of {address.get('user')!r} is refused: "
                f"check user, password and private_key_file in option 'storageOptions' ({error})"
            ) from None
        channel = transport.open_session(timeout=address.timeout)
        channel.settimeout(address.timeout)
        channel.invoke_subsystem("sftp")
        self._sftp: Any = _BoundedClient(channel)

    def _check_host(self) -> None:
        key, expected = self._transport.get_remote_server_key(), self._address.get("host_key")
        digest = base64.b64encode(hashlib.sha256(key.asbytes()).digest()).decode().rstrip("=")
        if expected == "any" or expected == f"SHA256:{digest}":
            return
        host, port = self._address.host, self._address.port
        name = host if port == 22 else f"[{host}]:{port}"
        if expected is None:
            verdicts = {
                is_revoked
                for path in _KNOWN
                for is_revoked, line in _lines_for(Path(path).expanduser(), name)
                if line.key == key
            }
            if True in verdicts:
                raise ConnectionError(
                    f"{self._address.shown}: known_hosts says @revoked of the server's key SHA256:{digest}: who has "
                    "that key may not be the server. Ask its administrator for the new key"
                )
            if verdicts:
                return
        raise ConnectionError(
            f"{self._address.shown}: the server's key SHA256:{digest} is not "
            f"{'in known_hosts' if expected is None else 'the one expected'}, so another machine might be answering. "
            "Compare it with the server's, and give it in option 'storageOptions' as "
            '{"host_key": "SHA256:..."}'
        )

    def _log_in(self) -> None:
        address = self._address
        user, password = address.get("user") or "", address.get("password")
        path = address.get("private_key_file")
        if path is not None:
            try:
                secret = address.get("private_key_password")
                key = paramiko.PKey.from_path(
                    Path(path).expanduser(), secret.encode() if secret else None
                )
            except (paramiko.SSHException, ValueError, TypeError) as error:
                raise OSError(f"the private key {path} cannot be read: {error}") from None
            self._transport.auth_publickey(user, key)
        elif password is not None:
            self._transport.auth_password(user, password)
        else:
            self._transport.auth_none(user)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
            self._transport.join(10)

    def info(self, path: str) -> Entry | None:
        with _as_os(path):
            try:
                return _entry(path, self._sftp.stat(path))
            except FileNotFoundError:
                return None

    def entries(self, path: str) -> list[Entry]:
        entries = []
        with _as_os(path):
            for attributes in self._sftp.bounded_entries(path):
                path_there = posixpath.join(path, attributes.filename)
                if attributes.st_mode is not None and stat.S_ISLNK(attributes.st_mode):
                    entries += self._behind_link(path_there)
                elif _is_plain(attributes.st_mode):
                    entries.append(_entry(path_there, attributes))
        return entries

    def open_read(self, path: str) -> Any:
        with _as_os(path):
            file = self._sftp.open(path, "rb")
            return io.BufferedReader(_Download(file, path, file.stat().st_size), _BUFFER)

    def open_write(self, path: str) -> Any:
        with _as_os(path):
            file = self._sftp.open(path, "wb", bufsize=_BUFFER)
            file.set_pipelined(True)
            return _Upload(file, self._sftp, path)

    def rename(self, old: str, new: str) -> None:
        with _as_os(old):
            self._sftp.rename(old, new)

    def remove(self, path: str) -> None:
        with _as_os(path):
            try:
                self._sftp.remove(path)
            except FileNotFoundError:
                pass

    def _make_one(self, path: str) -> None:
        with _as_os(path):
            self._sftp.mkdir(path)


def _lines_for(path: Path, name: str) -> Iterator[tuple[bool, paramiko.hostkeys.HostKeyEntry]]:
    """The lines of a known_hosts file that are about `name`: whether each says @revoked, and its key.

    Lines that name a CA are left out: a server's certificate is not asked for.

    Raises:
        OSError: the file cannot be read, or a line is not understood.
    """
    if not path.is_file():
        return
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    for number, line in enumerate(lines, 1):
        text = line.strip()
        marker, key_text = (*text.split(None, 1), "")[:2] if text.startswith("@") else ("", text)
        if not text or text.startswith("#") or marker == "@cert-authority":
            continue
        try:
            entry = paramiko.hostkeys.HostKeyEntry.from_line(key_text.strip(), number)
        except (paramiko.SSHException, ValueError, LookupError) as error:
            raise _not_understood(
                path, number, f"its key cannot be read ({type(error).__name__})"
            ) from None
        if marker not in ("", "@revoked"):
            raise _not_understood(path, number, f"{marker[:40]!r} is not a marker")
        if entry is not None and _names(entry.hostnames, name):
            yield marker == "@revoked", entry


def _not_understood(path: Path, number: int, reason: str) -> OSError:
    return OSError(
        f"line {number} of {path} is not understood: {reason}. Mend or remove it, or give the server's key in option "
        '\'storageOptions\' as {"host_key": "SHA256:..."}'
    )


def _names(patterns: list[str], name: str) -> bool:
    """Whether a line's names have this one, as OpenSSH matches them: `*`, `?`, `!` before a name, hashed names."""
    is_named = False
    for pattern in patterns:
        plain = pattern.removeprefix("!")
        if plain.startswith("|1|"):
            is_match = paramiko.HostKeys.hash_host(name, plain) == plain
        else:
            text = re.escape(plain.lower()).replace(r"\*", ".*").replace(r"\?", ".")
            is_match = re.fullmatch(text, name.lower()) is not None
        if is_match and pattern.startswith("!"):
            return False
        is_named = is_named or is_match
    return is_named


def _bound_packets(transport: Any) -> None:
    packets = transport.packetizer
    plain = packets.read_all

    def read_all(count: int, *arguments: Any, **named: Any) -> bytes:
        if count > _LARGEST_PACKET:
            raise paramiko.SSHException(f"a packet of {count} bytes, where SSH has 35 000")
        data: bytes = plain(count, *arguments, **named)
        return data

    packets.read_all = read_all


def _is_plain(mode: int | None) -> bool:
    """A file or a folder; a server need not say what it is."""
    return mode is None or stat.S_IFMT(mode) == 0 or stat.S_ISREG(mode) or stat.S_ISDIR(mode)


def _entry(path: str, attributes: Any) -> Entry:
    is_folder = attributes.st_mode is not None and stat.S_ISDIR(attributes.st_mode)
    return Entry(
        path,
        is_folder,
        0 if is_folder else attributes.st_size or 0,
        float(attributes.st_mtime or 0),
    )


class _Download(Download):
    """A window of requests at a time: neither one answer for each, nor the whole file in memory."""

    def __init__(self, file: Any, path: str, size: int | None) -> None:
        super().__init__(path, size)
        self._file = file

    def readinto(self, buffer: Any) -> int:
        end = min(self._place + len(buffer), self._size)
        requests = [
            (offset, min(_REQUEST, end - offset)) for offset in range(self._place, end, _REQUEST)
        ]
        count = 0
        if self._file.sftp.get_channel().closed:
            # Paramiko's thread that asks would end with a traceback.
            raise ConnectionError(
                f"{self._path}: the connection is lost at byte {self._place} of {self._size}"
            )
        with _as_os(self._path):
            for (_, size), data in zip(
                requests, self._file.readv(requests) if requests else (), strict=True
            ):
                if len(data) != size:
                    raise self._cut(self._place + count + len(data))
                buffer[count : count + size] = data
                count += size
        self._place += count
        return count

    def close(self) -> None:
        if not self.closed:
            with _as_os(self._path):
                self._file.close()
        super().close()


class _Upload(io.RawIOBase):
    """Sends requests without waiting for each answer; at the end the file's size proves that all were carried out.
    Paramiko does not look: findings/paramiko-pipelined-writes.sh
    """

    def __init__(self, file: Any, sftp: Any, path: str) -> None:
        self._file, self._sftp, self._path = file, sftp, path
        self._sent = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        with _as_os(self._path):
            self._file.write(bytes(data))
        self._sent += len(data)
        return len(data)

    def tell(self) -> int:
        return self._sent

    def close(self) -> None:
        if not self.closed:
            try:
                with _as_os(self._path):
                    self._file.close()
                    size = self._sftp.stat(self._path).st_size
                if size != self._sent:
                    raise OSError(
                        f"{self._path} has {size} bytes on the server, and {self._sent} were sent"
                    )
            finally:
                super().close()
