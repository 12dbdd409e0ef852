"""Servers of files in threads of this process: FTP by pyftpdlib, SFTP by paramiko, over a folder."""

# mypy: disable-error-code="misc, no-any-return"
# The libraries of both servers have no types.

import base64
import hashlib
import os
import socket
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import paramiko

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # asyncore, which Python 3.12 has no more
    from pyftpdlib.authorizers import DummyAuthorizer
    from pyftpdlib.handlers import FTPHandler
    from pyftpdlib.servers import ThreadedFTPServer

USER, PASSWORD = "ann", "s3cret"


@contextmanager
def ftp_server(folder: Path, *, mlsd: bool = True) -> Iterator[int]:
    """The port. Without `mlsd`, as vsftpd: a listing is text for people."""

    class Handler(FTPHandler):
        authorizer = DummyAuthorizer()
        banner = "ready"
        use_sendfile = False
        auth_failed_timeout = 0

    Handler.authorizer.add_user(USER, PASSWORD, str(folder), perm="elradfmw")
    if not mlsd:
        Handler.proto_cmds = {
            name: what
            for name, what in FTPHandler.proto_cmds.items()
            if name not in ("MLSD", "MLST")
        }
    server = ThreadedFTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"timeout": 0.05}, daemon=True)
    thread.start()
    try:
        yield server.address[1]
    finally:
        server.close_all()
        thread.join(10)


class _Login(paramiko.ServerInterface):
    def check_auth_password(self, username: str, password: str) -> int:
        good = (username, password) == (USER, PASSWORD)
        return paramiko.AUTH_SUCCESSFUL if good else paramiko.AUTH_FAILED

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return paramiko.OPEN_SUCCEEDED

    def get_allowed_auths(self, username: str) -> str:
        return "password"


class _Handle(paramiko.SFTPHandle):
    def stat(self) -> Any:
        return paramiko.SFTPAttributes.from_stat(os.fstat(self.readfile.fileno()))


def _answer(call: Any, *args: Any) -> int:
    try:
        call(*args)
    except OSError as error:
        return paramiko.SFTPServer.convert_errno(error.errno or 5)
    return paramiko.SFTP_OK


class _Files(paramiko.SFTPServerInterface):
    root = "/"

    def _path(self, path: str) -> str:
        return self.root + self.canonicalize(path)

    def stat(self, path: str) -> Any:
        try:
            return paramiko.SFTPAttributes.from_stat(Path(self._path(path)).stat())
        except OSError as error:
            return paramiko.SFTPServer.convert_errno(error.errno or 5)

    lstat = stat

    def list_folder(self, path: str) -> Any:
        try:
            found = []
            for file in Path(self._path(path)).iterdir():
                each = paramiko.SFTPAttributes.from_stat(file.stat())
                each.filename = file.name
                found.append(each)
        except OSError as error:
            return paramiko.SFTPServer.convert_errno(error.errno or 5)
        return found

    def open(self, path: str, flags: int, attr: Any) -> Any:
        try:
            file = os.fdopen(
                os.open(self._path(path), flags, 0o644),
                "r+b" if flags & (os.O_WRONLY | os.O_RDWR) else "rb",
            )
        except OSError as error:
            return paramiko.SFTPServer.convert_errno(error.errno or 5)
        handle = _Handle(flags)
        handle.filename = path
        handle.readfile = handle.writefile = file
        return handle

    def remove(self, path: str) -> int:
        return _answer(os.remove, self._path(path))

    def rename(self, oldpath: str, newpath: str) -> int:
        return _answer(os.rename, self._path(oldpath), self._path(newpath))

    def mkdir(self, path: str, attr: Any) -> int:
        return _answer(os.mkdir, self._path(path))


@contextmanager
def sftp_server(folder: Path) -> Iterator[tuple[int, str]]:
    """(the port, the fingerprint of the server's key)."""
    key = paramiko.ECDSAKey.generate()
    digest = base64.b64encode(hashlib.sha256(key.asbytes()).digest()).decode().rstrip("=")
    listener = socket.create_server(("127.0.0.1", 0))
    files = type("Files", (_Files,), {"root": str(folder)})
    open_transports: list[paramiko.Transport] = []

    def serve() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            transport = paramiko.Transport(client)
            open_transports.append(transport)
            transport.add_server_key(key)
            transport.set_subsystem_handler("sftp", paramiko.SFTPServer, files)
            try:
                transport.start_server(server=_Login())
            except (paramiko.SSHException, EOFError, OSError):  # the client has gone
                transport.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1], f"SHA256:{digest}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(10)
        for transport in open_transports:
            transport.close()
