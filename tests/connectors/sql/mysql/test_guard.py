"""A server that is not what it says: what it is given when it asks for files and for the password."""

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_channel.connectors import load_reader
from spark_channel.connectors.sql.mysql.options import MysqlWriteOptions
from spark_channel.connectors.sql.mysql.session import Session
from spark_channel.errors import SourceError, TargetError
from tests.servers.mariadb import MariadbServer

SECRET = "-----BEGIN PRIVATE KEY----- geheim"
PASSWORD = "mein-passwort"
_PLUGIN_AUTH, _PROTOCOL_41, _SECURE, _LOCAL_FILES = 1 << 19, 1 << 9, 1 << 15, 1 << 7


class Rogue:
    """Speaks as much of MySQL's protocol as it needs to steal; keeps all that it was sent."""

    def __init__(self, file: Path, *, plugin: bytes | None = None) -> None:
        self._file, self._plugin = file, plugin
        self.heard = b""
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listening.getsockname()[1])
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join(10)

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            with client:
                client.settimeout(5)
                try:
                    self._speak(client)
                except OSError:
                    continue

    def _speak(self, client: socket.socket) -> None:
        can = _PLUGIN_AUTH | _PROTOCOL_41 | _SECURE | _LOCAL_FILES
        hello = b"\x0a8.0.36\0" + b"\x01\0\0\0" + b"12345678\0" + (can & 0xFFFF).to_bytes(2, "little")
        hello += b"\x2d\x02\0" + (can >> 16).to_bytes(2, "little") + b"\x15" + b"\0" * 10
        hello += b"123456789012\0" + b"mysql_native_password\0"
        self._send(client, 0, hello)
        number = self._take(client)
        if self._plugin is not None:
            self._send(client, number + 1, b"\xfe" + self._plugin + b"\0Password: \0")
            number = self._take(client)
        self._send(client, number + 1, b"\0\0\0\x02\0\0\0")
        while True:
            number = self._take(client)
            self._send(client, number + 1, b"\xfb" + str(self._file).encode())

    def _take(self, client: socket.socket) -> int:
        head = client.recv(4, socket.MSG_WAITALL)
        if len(head) < 4:
            raise OSError("gone")
        self.heard += client.recv(int.from_bytes(head[:3], "little"), socket.MSG_WAITALL)
        return head[3]

    @staticmethod
    def _send(client: socket.socket, number: int, data: bytes) -> None:
        client.sendall(len(data).to_bytes(3, "little") + bytes([number & 0xFF]) + data)


@pytest.fixture
def key(tmp_path: Path) -> Path:
    file = tmp_path / "id_rsa"
    file.write_text(SECRET)
    return file


@pytest.fixture
def rogue(key: Path, request: pytest.FixtureRequest) -> Iterator[Rogue]:
    server = Rogue(key, plugin=getattr(request, "param", None))
    yield server
    server.close()


def options(port: int, **more: str) -> MysqlWriteOptions:
    given = {"url": f"mysql://127.0.0.1:{port}/shop", "user": "u", "password": PASSWORD, "dbtable": "t"}
    parsed, _ = MysqlWriteOptions.parse({**given, **more})
    return parsed


@pytest.mark.parametrize("local", [False, True])
def test_a_file_that_no_statement_named_is_not_sent(rogue: Rogue, local: bool) -> None:
    with pytest.raises(TargetError, match="asked for the file"):
        Session(options(rogue.port), TargetError, local_infile=local, patient=False)
    assert b"geheim" not in rogue.heard


def test_another_file_than_the_one_of_the_load_is_not_sent(
    rogue: Rogue, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(Session, "_make_ready", lambda _self, _options: None)
    with (
        Session(options(rogue.port), TargetError, local_infile=True, patient=False) as session,
        pytest.raises(TargetError, match="asked for the file"),
        session.may_send(str(tmp_path / "rows")),
    ):
        session.affected("LOAD DATA LOCAL INFILE 'rows' INTO TABLE t")
    assert b"geheim" not in rogue.heard


def test_the_file_of_the_load_is_sent_and_no_second_time(
    key: Path, rogue: Rogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rogue's own file is the one that is named here: what the guard lets pass, does pass."""
    monkeypatch.setattr(Session, "_make_ready", lambda _self, _options: None)
    with Session(options(rogue.port), TargetError, local_infile=True, patient=False) as session:
        with pytest.raises(TargetError), session.may_send(str(key)):
            session.affected("LOAD DATA LOCAL INFILE 'rows' INTO TABLE t")
        assert b"geheim" in rogue.heard


def test_a_read_sends_no_file_either(rogue: Rogue) -> None:
    reader, _ = load_reader(
        {"url": f"mysql://127.0.0.1:{rogue.port}/shop", "user": "u", "password": PASSWORD, "dbtable": "t"}
    )
    with pytest.raises(SourceError, match="asked for the file"):
        reader.schema()
    assert b"geheim" not in rogue.heard


@pytest.mark.parametrize("rogue", [b"mysql_clear_password", b"dialog"], indirect=True)
def test_the_password_is_not_sent_as_it_is_without_tls(rogue: Rogue) -> None:
    with pytest.raises(TargetError, match="sslmode"):
        Session(options(rogue.port), TargetError, patient=False)
    assert PASSWORD.encode() not in rogue.heard


@pytest.mark.parametrize(("mode", "encrypted"), [(None, True), ("preferred", True), ("disabled", False)])
def test_tls_is_used_where_the_server_has_it(mode: str | None, encrypted: bool) -> None:
    server = MariadbServer.create(ssl=True)
    try:
        given = {**server.login, "dbtable": "t"} | ({} if mode is None else {"sslMode": mode})
        parsed, _ = MysqlWriteOptions.parse(given)
        with Session(parsed, TargetError, patient=False) as session:
            assert bool(session.value("SHOW SESSION STATUS LIKE 'Ssl_version'")) is True
            ((_, version),) = session.rows("SHOW SESSION STATUS LIKE 'Ssl_version'")
            assert bool(version) is encrypted
    finally:
        server.close()


def test_required_tls_that_the_server_has_not_is_an_error(mariadb_server: MariadbServer) -> None:
    if mariadb_server.sql("SELECT @@have_ssl") == "YES":
        pytest.skip("this MariaDB makes itself a certificate")
    parsed, _ = MysqlWriteOptions.parse({**mariadb_server.login, "dbtable": "t", "sslMode": "required"})
    with pytest.raises(TargetError, match="SSL is required"):
        Session(parsed, TargetError, patient=False)
    parsed, _ = MysqlWriteOptions.parse({**mariadb_server.login, "dbtable": "t"})
    with Session(parsed, TargetError, patient=False) as session:
        assert session.value("SELECT 1") == 1
