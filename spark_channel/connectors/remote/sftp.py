"""SFTP, by paramiko."""

import base64
import hashlib
import io
import posixpath
import socket
import stat
from pathlib import Path
from typing import Any

import paramiko

from spark_channel.connectors.remote.address import Address
from spark_channel.connectors.remote.client import Entry, Remote

__all__ = ["SftpRemote"]

_BUFFER = 1 << 20
_REQUEST = 32 << 10
"""What every server returns for one request."""
_KNOWN = ("~/.ssh/known_hosts", "/etc/ssh/ssh_known_hosts")


class SftpRemote(Remote):
    """One SSH connection."""

    def __init__(self, address: Address) -> None:
        self._address = address
        sock = socket.create_connection((address.host, address.port), timeout=address.timeout)
        self._transport: Any = None
        try:
            self._transport = paramiko.Transport(sock)
            self._transport.banner_timeout = self._transport.auth_timeout = address.timeout
            self._transport.start_client(timeout=address.timeout)
            self._check_host()
            self._log_in()
            found = paramiko.SFTPClient.from_transport(self._transport)
            assert found is not None
            self._sftp: Any = found
            self._sftp.get_channel().settimeout(address.timeout)
        except BaseException as error:
            self.close()
            sock.close()
            if isinstance(error, paramiko.AuthenticationException):
                raise ConnectionError(
                    f"{address.shown}: the login of {address.get('user')!r} is refused: check user, password and "
                    f"private_key_file in option 'storageOptions' ({error})"
                ) from None
            if isinstance(error, (paramiko.SSHException, EOFError)):
                raise ConnectionError(
                    f"{address.shown}: {str(error) or 'the server closed the connection'}"
                ) from error
            raise

    def _check_host(self) -> None:
        key, wanted = self._transport.get_remote_server_key(), self._address.get("host_key")
        digest = base64.b64encode(hashlib.sha256(key.asbytes()).digest()).decode().rstrip("=")
        if wanted == "any" or wanted == f"SHA256:{digest}":
            return
        host, port = self._address.host, self._address.port
        name = host if port == 22 else f"[{host}]:{port}"
        if wanted is None:
            known = paramiko.HostKeys()
            for path in _KNOWN:
                if Path(path).expanduser().is_file():
                    known.load(str(Path(path).expanduser()))
            if known.check(name, key):
                return
        raise ConnectionError(
            f"{self._address.shown}: the server's key SHA256:{digest} is not "
            f"{'in known_hosts' if wanted is None else 'the one expected'}, so another machine might be answering. "
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
                key = paramiko.PKey.from_path(Path(path).expanduser(), secret.encode() if secret else None)
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
        try:
            return _entry(path, self._sftp.stat(path))
        except FileNotFoundError:
            return None

    def entries(self, path: str) -> list[Entry]:
        return [
            _entry(posixpath.join(path, found.filename), found)
            for found in self._sftp.listdir_attr(path)
            if stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)
        ]

    def open_read(self, path: str) -> Any:
        file = self._sftp.open(path, "rb")
        return io.BufferedReader(_Download(file, file.stat().st_size), _BUFFER)

    def open_write(self, path: str) -> Any:
        file = self._sftp.open(path, "wb", bufsize=_BUFFER)
        file.set_pipelined(True)
        return _Upload(file, self._sftp, path)

    def rename(self, old: str, new: str) -> None:
        self._sftp.rename(old, new)

    def remove(self, path: str) -> None:
        try:
            self._sftp.remove(path)
        except FileNotFoundError:
            pass

    def _make_one(self, path: str) -> None:
        self._sftp.mkdir(path)


def _entry(path: str, found: Any) -> Entry:
    return Entry(path, stat.S_ISDIR(found.st_mode), found.st_size or 0, float(found.st_mtime or 0))


class _Download(io.RawIOBase):
    """A window of requests at a time: neither one answer for each, nor the whole file in memory."""

    def __init__(self, file: Any, size: int) -> None:
        self._file, self._size, self._place = file, size, 0

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

    def readinto(self, buffer: Any) -> int:
        end = min(self._place + len(buffer), self._size)
        wanted = [(place, min(_REQUEST, end - place)) for place in range(self._place, end, _REQUEST)]
        count = 0
        for (_, size), data in zip(wanted, self._file.readv(wanted) if wanted else (), strict=True):
            if len(data) != size:
                raise ConnectionError(
                    f"the file ended at byte {self._place + count + len(data)} of {self._size}"
                )
            buffer[count : count + size] = data
            count += size
        self._place += count
        return count

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


class _Upload(io.RawIOBase):
    """Requests are sent without waiting for each answer: the size tells in the end that all were carried out."""

    def __init__(self, file: Any, sftp: Any, path: str) -> None:
        self._file, self._sftp, self._path = file, sftp, path
        self._sent = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._file.write(bytes(data))
        self._sent += len(data)
        return len(data)

    def tell(self) -> int:
        return self._sent

    def close(self) -> None:
        if not self.closed:
            try:
                self._file.close()
                found = self._sftp.stat(self._path).st_size
                if found != self._sent:
                    raise OSError(f"{self._path} has {found} bytes on the server, and {self._sent} were sent")
            finally:
                super().close()
