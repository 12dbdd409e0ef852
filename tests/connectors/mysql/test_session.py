"""A server that is not what it says: what it is given when it asks for files and for the password."""

import hashlib
import random
import re
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from spark_channel.connectors import load_reader
from spark_channel.connectors.mysql.options import MysqlWriteOptions
from spark_channel.connectors.mysql.session import MysqlSession
from spark_channel.connectors.mysql.session.connection import _tls
from spark_channel.errors import SourceError, TargetError
from tests.servers.mariadb import MariadbServer
from tests.service.fuzz import mutated

SECRET = "-----BEGIN PRIVATE KEY----- geheim"
PASSWORD = "mein-passwort"
_WITH_A_KEY = (b"caching_sha2_password", b"sha256_password")
_PLUGIN_AUTH, _PROTOCOL_41, _SECURE, _LOCAL_FILES, _TLS = 1 << 19, 1 << 9, 1 << 15, 1 << 7, 1 << 11


class Rogue:
    """Speaks as much of MySQL's protocol as it needs to steal; keeps all that it was sent.

    `stolen`: the password, where it was sent for the rogue's own key. `hello`: what it says first, for one that speaks
    something else.
    """

    def __init__(
        self, file: Path, *, plugin: bytes | None = None, hello: bytes | None = None
    ) -> None:
        self._file, self._plugin, self._hello = file, plugin, hello
        self._key = rsa.generate_private_key(65_537, 2048) if plugin in _WITH_A_KEY else None
        self.heard = b""
        self.stolen = b""
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
        hello = (
            b"\x0a8.0.36\0" + b"\x01\0\0\0" + b"12345678\0" + (can & 0xFFFF).to_bytes(2, "little")
        )
        hello += b"\x2d\x02\0" + (can >> 16).to_bytes(2, "little") + b"\x15" + b"\0" * 10
        hello += b"123456789012\0" + b"mysql_native_password\0"
        if self._hello is not None:
            client.sendall(self._hello)
            client.settimeout(0.05)
            client.recv(1_000)
            return
        self._send(client, 0, hello)
        number = self._take(client)
        if self._key is not None:
            number = self._ask_for_the_password(client, number, self._key)
        elif self._plugin is not None:
            self._send(client, number + 1, b"\xfe" + self._plugin + b"\0Password: \0")
            number = self._take(client)
        self._send(client, number + 1, b"\0\0\0\x02\0\0\0")
        while True:
            number = self._take(client)
            self._send(client, number + 1, b"\xfb" + str(self._file).encode())

    def _ask_for_the_password(
        self, client: socket.socket, number: int, key: rsa.RSAPrivateKey
    ) -> int:
        """As a server whose cache does not know the login: the password, for a key that the rogue has made."""
        assert self._plugin is not None
        salt = b"12345678901234567890"
        self._send(client, number + 1, b"\xfe" + self._plugin + b"\0" + salt + b"\0")
        number = self._take(client)
        if self._plugin == b"caching_sha2_password":
            self._send(client, number + 1, b"\x01\x04")
            number = self._take(client)
        own = key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        before = len(self.heard)
        self._send(client, number + 1, b"\x01" + own)
        number = self._take(client)
        sha = hashes.SHA1()
        try:
            hidden = key.decrypt(self.heard[before:], padding.OAEP(padding.MGF1(sha), sha, None))
        except ValueError as error:
            raise OSError("what came is not the password for this key") from error
        self.stolen = bytes(letter ^ salt[at % 20] for at, letter in enumerate(hidden))
        return number

    def _take(self, client: socket.socket) -> int:
        head = self._exactly(client, 4)
        self.heard += self._exactly(client, int.from_bytes(head[:3], "little"))
        return head[3]

    @staticmethod
    def _exactly(client: socket.socket, number: int) -> bytes:
        data = b""
        while len(data) < number:
            part = client.recv(number - len(data))
            if not part:
                raise OSError("gone")
            data += part
        return data

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
    given = {
        "url": f"mysql://127.0.0.1:{port}/shop",
        "user": "u",
        "password": PASSWORD,
        "dbtable": "t",
    }
    parsed, _ = MysqlWriteOptions.parse({**given, **more})
    return parsed


@pytest.mark.parametrize("local", [False, True])
def test_a_file_that_no_statement_named_is_not_sent(rogue: Rogue, local: bool) -> None:
    with pytest.raises(TargetError, match="asked for the file"):
        MysqlSession(options(rogue.port), TargetError, local_infile=local, patient=False)
    assert b"geheim" not in rogue.heard


def test_another_file_than_the_one_of_the_load_is_not_sent(
    rogue: Rogue, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(MysqlSession, "_make_ready", lambda _self, _options: None)
    with (
        MysqlSession(options(rogue.port), TargetError, local_infile=True, patient=False) as session,
        pytest.raises(TargetError, match="asked for the file"),
        session.may_send(str(tmp_path / "rows"), [b"rows"]),
    ):
        session.affected("LOAD DATA LOCAL INFILE 'rows' INTO TABLE t")
    assert b"geheim" not in rogue.heard


def test_the_file_of_the_load_is_sent_and_no_second_time(
    key: Path, rogue: Rogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rogue's own file is the one that is named here: what the guard lets pass, does pass."""
    monkeypatch.setattr(MysqlSession, "_make_ready", lambda _self, _options: None)
    with MysqlSession(
        options(rogue.port), TargetError, local_infile=True, patient=False
    ) as session:
        with pytest.raises(TargetError), session.may_send(str(key), [b"the rows"]):
            session.affected("LOAD DATA LOCAL INFILE 'rows' INTO TABLE t")
        assert b"the rows" in rogue.heard
        assert b"geheim" not in rogue.heard, "no file is opened, whatever its name"


def test_a_read_sends_no_file_either(rogue: Rogue) -> None:
    reader, _ = load_reader(
        {
            "url": f"mysql://127.0.0.1:{rogue.port}/shop",
            "user": "u",
            "password": PASSWORD,
            "dbtable": "t",
        }
    )
    with pytest.raises(SourceError, match="asked for the file"):
        reader.schema()
    assert b"geheim" not in rogue.heard


@pytest.mark.parametrize("rogue", [b"mysql_clear_password", b"dialog"], indirect=True)
def test_the_password_is_not_sent_as_it_is_without_tls(rogue: Rogue) -> None:
    with pytest.raises(TargetError, match="sslmode"):
        MysqlSession(options(rogue.port), TargetError, patient=False)
    assert PASSWORD.encode() not in rogue.heard


@pytest.mark.parametrize("rogue", _WITH_A_KEY, indirect=True)
def test_the_password_is_not_sent_for_a_key_that_came_without_tls(rogue: Rogue) -> None:
    with pytest.raises(TargetError, match="serverRsaPublicKeyFile"):
        MysqlSession(options(rogue.port), TargetError, patient=False)
    assert PASSWORD.encode() not in rogue.stolen


class Modern(Rogue):
    """An honest MySQL 8: `caching_sha2_password`, whose cache knows the login (`knows`) or asks for the password."""

    def __init__(self, file: Path, *, knows: bool, tls: ssl.SSLContext | None) -> None:
        self._knows, self._tls = knows, tls
        super().__init__(file)

    def _speak(self, client: socket.socket) -> None:
        salt = b"12345678901234567890"
        can = _PLUGIN_AUTH | _PROTOCOL_41 | _SECURE | (_TLS if self._tls else 0)
        hello = b"\x0a8.0.36\0\x01\0\0\0" + salt[:8] + b"\0" + (can & 0xFFFF).to_bytes(2, "little")
        hello += b"\x2d\x02\0" + (can >> 16).to_bytes(2, "little") + b"\x15" + b"\0" * 10
        self._send(client, 0, hello + salt[8:] + b"\0caching_sha2_password\0")
        number = self._take(client)
        if self._tls is not None:
            self.heard = b""
            with self._tls.wrap_socket(client, server_side=True) as inside:
                self._log_in(inside, salt, self._take(inside))
        else:
            self._log_in(client, salt, number)

    def _log_in(self, client: socket.socket, salt: bytes, number: int) -> None:
        first = hashlib.sha256(PASSWORD.encode()).digest()
        proof = hashlib.sha256(hashlib.sha256(first).digest() + salt).digest()
        assert bytes(a ^ b for a, b in zip(first, proof, strict=True)) in self.heard
        if self._knows:
            self._send(client, number + 1, b"\x01\x03")
            number += 1
        else:
            self._send(client, number + 1, b"\x01\x04")
            number = self._take(client)
            assert self.heard.endswith(PASSWORD.encode() + b"\0")
        self._send(client, number + 1, b"\0\0\0\x02\0\0\0")
        while True:  # every statement is answered with OK
            number = self._take(client)
            self._send(client, number + 1, b"\0\0\0\x02\0\0\0")


@pytest.mark.parametrize(("knows", "encrypted"), [(True, False), (True, True), (False, True)])
def test_caching_sha2_password_logs_in(
    knows: bool, encrypted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = None
    if encrypted:
        names = [str(tmp_path / "cert"), str(tmp_path / "key")]
        subprocess.run(
            [
                "openssl",
                "req",
                "-new",
                "-x509",
                "-days",
                "2",
                "-nodes",
                "-subj",
                "/CN=127.0.0.1",
                "-newkey",
                "rsa:2048",
                "-out",
                names[0],
                "-keyout",
                names[1],
            ],
            check=True,
            capture_output=True,
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*names)
    monkeypatch.setattr(MysqlSession, "_make_ready", lambda _self, _options: None)
    server = Modern(tmp_path, knows=knows, tls=context)
    more = {} if knows else {"enableCleartextPlugin": "true"}
    try:
        with MysqlSession(options(server.port, **more), TargetError, patient=False) as session:
            assert session.affected("DO 1") == (0, 0)
    finally:
        server.close()


@pytest.mark.parametrize("rogue", _WITH_A_KEY, indirect=True)
def test_a_key_is_taken_where_the_user_says_so(
    rogue: Rogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rogue stands for a server without TLS whose users accept that: the login works."""
    monkeypatch.setattr(MysqlSession, "_make_ready", lambda _self, _options: None)
    with MysqlSession(
        options(rogue.port, allowPublicKeyRetrieval="true"), TargetError, patient=False
    ):
        pass
    assert rogue.stolen == PASSWORD.encode() + b"\0"


@pytest.mark.parametrize("rogue", _WITH_A_KEY, indirect=True)
def test_another_key_than_the_one_of_the_file_opens_nothing(rogue: Rogue, tmp_path: Path) -> None:
    theirs = rsa.generate_private_key(65_537, 2048).public_key()
    file = tmp_path / "public_key.pem"
    file.write_bytes(
        theirs.public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )
    with pytest.raises(TargetError):
        MysqlSession(
            options(rogue.port, serverRSAPublicKeyFile=str(file)), TargetError, patient=False
        )
    assert PASSWORD.encode() not in rogue.stolen
    with pytest.raises(TargetError, match="serverRsaPublicKeyFile"):
        MysqlSession(
            options(rogue.port, serverRSAPublicKeyFile=str(tmp_path / "none")),
            TargetError,
            patient=False,
        )


@pytest.mark.parametrize(
    ("rogue", "install"),
    [(b"caching_sha2_password", "PyMySQL[rsa]"), (b"client_ed25519", "PyNaCl")],
    indirect=["rogue"],
)
def test_a_library_that_the_login_needs_is_named(
    rogue: Rogue, install: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pymysql

    def missing() -> None:
        raise RuntimeError("'pynacl' package is required for ed25519_password auth method")

    monkeypatch.setattr(pymysql._auth, "_have_cryptography", False)
    monkeypatch.setattr(pymysql._auth, "_init_nacl", missing)
    with pytest.raises(TargetError, match=re.escape(f"install `{install}`")):
        MysqlSession(
            options(rogue.port, allowPublicKeyRetrieval="true"), TargetError, patient=False
        )


@pytest.mark.parametrize(
    "rogue", [b"mysql_old_password", b"auth_gssapi_client", b"\xff\xfe"], indirect=True
)
def test_a_login_that_is_not_known_is_named(rogue: Rogue) -> None:
    with pytest.raises(TargetError, match=r"127\.0\.0\.1"):
        MysqlSession(options(rogue.port), TargetError, patient=False)


@pytest.mark.parametrize("number", [15, pytest.param(5_000, marks=pytest.mark.soak)])
def test_what_is_not_a_mysql_server_is_an_error_that_names_the_place(
    key: Path, number: int
) -> None:
    """Another service at that port, and hellos that are broken in any way."""
    random_ = random.Random(17)
    good = (
        b"\x4e\0\0\0\x0a8.0.36\0\x01\0\0\x0012345678\0\xff\xf7\x2d\x02\0\xff\xdf\x15" + b"\0" * 10
    )
    good += b"123456789012\0mysql_native_password\0"
    known = [
        b"SSH-2.0-OpenSSH_9.2p1\r\n",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"\0" * 64,
        b"",
        b"\x01\0\0\0\x0a",
        b"\x04\0\0\0\x0a\xff\xff\0",
        b"\x02\0\0\0\xff\x15",
    ]
    for hello in [*known, *(mutated(random_, good) for _ in range(number))]:
        rogue = Rogue(key, hello=hello)
        try:
            with pytest.raises(TargetError, match=r"127\.0\.0\.1"):
                MysqlSession(options(rogue.port), TargetError, patient=False)
        finally:
            rogue.close()


@pytest.mark.timeout(30)
def test_a_service_that_waits_for_the_client_to_speak_is_given_up_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        given = options(silent.getsockname()[1], connectTimeout="1")
        with pytest.raises(TargetError, match=r"127\.0\.0\.1"):
            MysqlSession(given, TargetError, patient=False)


@pytest.mark.parametrize(
    ("mode", "encrypted"), [(None, True), ("preferred", True), ("disabled", False)]
)
def test_tls_is_used_where_the_server_has_it(
    server_class: type[MariadbServer], mode: str | None, encrypted: bool
) -> None:
    server = server_class.create(ssl=True)
    try:
        given = {**server.login, "dbtable": "t"} | ({} if mode is None else {"sslMode": mode})
        parsed, _ = MysqlWriteOptions.parse(given)
        with MysqlSession(parsed, TargetError, patient=False) as session:
            assert bool(session.value("SHOW SESSION STATUS LIKE 'Ssl_version'")) is True
            ((_, version),) = session.rows("SHOW SESSION STATUS LIKE 'Ssl_version'")
            assert bool(version) is encrypted
    finally:
        server.close()


@pytest.mark.parametrize(
    ("mode", "verified", "named"),
    [
        ("preferred", ssl.CERT_NONE, False),
        ("required", ssl.CERT_NONE, False),
        ("verify-ca", ssl.CERT_REQUIRED, False),
        ("verify-identity", ssl.CERT_REQUIRED, True),
    ],
)
def test_the_systems_certificates_are_loaded_where_they_are_looked_at(
    mode: str, verified: ssl.VerifyMode, named: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They take 20 ms of CPU for each connection."""
    loaded: list[str] = []
    monkeypatch.setattr(ssl.SSLContext, "load_default_certs", lambda *_: loaded.append(mode))
    context = _tls(options(1, sslMode=mode), TargetError)
    assert context is not None
    assert (context.verify_mode, context.check_hostname) == (verified, named)
    assert bool(loaded) is (verified is ssl.CERT_REQUIRED)


def test_required_tls_that_the_server_has_not_is_an_error(mariadb_server: MariadbServer) -> None:
    if mariadb_server.sql("SELECT @@have_ssl") == "YES":
        pytest.skip("this MariaDB makes itself a certificate")
    parsed, _ = MysqlWriteOptions.parse(
        {**mariadb_server.login, "dbtable": "t", "sslMode": "required"}
    )
    with pytest.raises(TargetError, match="SSL is required"):
        MysqlSession(parsed, TargetError, patient=False)
    parsed, _ = MysqlWriteOptions.parse({**mariadb_server.login, "dbtable": "t"})
    with MysqlSession(parsed, TargetError, patient=False) as session:
        assert session.value("SELECT 1") == 1


@pytest.mark.parametrize("same", [True, False], ids=["its server", "another server"])
def test_a_session_is_ended_on_its_own_server_alone(
    mariadb_server: MariadbServer, *, same: bool
) -> None:
    """Behind a balancer the number may be a session of somebody else."""
    server = mariadb_server
    login = options(server.port, user=server.user, password=server.password)
    with MysqlSession(login, TargetError) as session:
        if not same:
            session._server = {**session._server, "hostname": "another"}
        session.cancel()
        number = f"SELECT COUNT(*) FROM information_schema.processlist WHERE id = {session.id}"
        with MysqlSession(login, TargetError) as witness:
            until = time.monotonic() + 10
            while (left := witness.rows(number) == [(1,)]) and same and time.monotonic() < until:
                time.sleep(0.05)
    assert left is not same


def test_a_session_whose_server_does_not_say_who_it_is_is_not_ended(
    mariadb_server: MariadbServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_channel.connectors.mysql.session.connection._SERVER", ("port",))
    server = mariadb_server
    login = options(server.port, user=server.user, password=server.password)
    with MysqlSession(login, TargetError) as session:
        session.cancel()
        assert session.rows("SELECT 1") == [(1,)]
