"""Servers that want a login: each speaks as much of its protocol as it needs, and keeps all that it heard.

A trap is one of `KINDS`: it has no TLS; a certificate that another CA signed; a certificate for another host; it loses
the first connection with TLS, and has none in the next. Each asks for the password in plain text once it can.
"""

import base64
import datetime
import hashlib
import ipaddress
import socket
import ssl
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import bson
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.servers.rogue import rogue

__all__ = ["KINDS", "PASSWORD", "Authority", "Heard", "trap"]

PASSWORD = "a-password-of-this-test"
KINDS = ("no TLS", "other certificate", "other host", "downgrade")
_LOGINS = (
    PASSWORD.encode(),
    base64.b64encode(f"u:{PASSWORD}".encode()),
    base64.b64encode(f":{PASSWORD}".encode()),
)


class Authority:
    """A CA: `root` is the file of its certificate."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.root = folder / "root.pem"
        self._certificate = self._signed("root", self._key, None)
        self.root.write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))

    def _signed(
        self, name: str, key: ec.EllipticCurvePrivateKey, host: x509.GeneralName | None
    ) -> x509.Certificate:
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "root")])
        now = datetime.datetime.now(datetime.UTC)
        day = datetime.timedelta(days=1)
        made = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - day)
            .not_valid_after(now + day)
            .add_extension(x509.BasicConstraints(host is None, None), critical=True)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), False
            )
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
        )
        if host is not None:
            made = made.add_extension(x509.SubjectAlternativeName([host]), critical=False)
        else:
            usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
            made = made.add_extension(usage, critical=True)
        return made.sign(self._key, hashes.SHA256())

    def server(self, host: str) -> ssl.SSLContext:
        """The context of a server whose certificate names `host`."""
        key = ec.generate_private_key(ec.SECP256R1())
        name: x509.GeneralName = x509.DNSName(host)
        if host[0].isdigit():
            name = x509.IPAddress(ipaddress.ip_address(host))
        path = self._folder / f"{host}.pem"
        path.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
            + self._signed(host, key, name).public_bytes(serialization.Encoding.PEM)
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(path)
        return context


@dataclass
class Heard:
    """What a trap was sent, inside TLS and outside of it."""

    port: int = 0
    data: bytearray = field(default_factory=bytearray)
    connections: int = 0

    @property
    def has_password(self) -> bool:
        return any(login in self.data for login in _LOGINS)


class _Wire:
    """One connection of a client; `tls`: None = the trap has none, or no more."""

    def __init__(self, client: socket.socket, heard: Heard, tls: ssl.SSLContext | None) -> None:
        client.settimeout(5)
        self.socket, self._heard, self.tls = client, heard, tls

    def some(self) -> bytes:
        data = self.socket.recv(65_536)
        if not data:
            raise OSError("the client is gone")
        self._heard.data += data
        return data

    def exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            part = self.socket.recv(count - len(data))
            if not part:
                raise OSError("the client is gone")
            self._heard.data += part
            data += part
        return data

    def check(self) -> None:
        if self._heard.has_password:
            raise OSError("it has what it wanted")

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def encrypt(self) -> None:
        assert self.tls is not None
        self.socket = self.tls.wrap_socket(self.socket, server_side=True)
        self.socket.settimeout(5)

    def until_end(self) -> None:
        while not self._heard.has_password:
            self.some()


def _postgresql(wire: _Wire, _ask: str) -> None:
    while True:
        size, code = struct.unpack(">II", wire.exactly(8))
        if code == 80877103 and wire.tls is not None:
            wire.send(b"S")
            wire.encrypt()
        elif code in (80877103, 80877104):
            wire.send(b"N")
        else:
            break
    wire.exactly(size - 8)
    wire.send(b"R" + struct.pack(">II", 8, 3))  # the password, as it is
    wire.until_end()


_MYSQL_TLS = 1 << 11
_MYSQL = 1 << 19 | 1 << 9 | 1 << 15 | 1


def _mysql(wire: _Wire, ask: str) -> None:
    can = _MYSQL | (_MYSQL_TLS if wire.tls is not None else 0)
    greeted = b"sha256_password" if ask == "sha256_password" else b"mysql_native_password"

    def send(number: int, data: bytes) -> None:
        wire.send(len(data).to_bytes(3, "little") + bytes([number & 0xFF]) + data)

    def take() -> int:
        head = wire.exactly(4)
        wire.exactly(int.from_bytes(head[:3], "little"))
        return head[3]

    hello = b"\x0a8.0.36\0\1\0\0\0" + b"12345678\0" + (can & 0xFFFF).to_bytes(2, "little")
    hello += b"\x2d\x02\0" + (can >> 16).to_bytes(2, "little") + b"\x15" + b"\0" * 10
    send(0, hello + b"123456789012\0" + greeted + b"\0")
    number = take()
    if wire.tls is not None:
        wire.encrypt()
        number = take()
    more = b"Password: " if ask == "dialog" else b"12345678901234567890"
    send(
        number + 1,
        b"\xfe" + ask.encode() + b"\0" + (b"\5" if ask == "dialog" else b"") + more + b"\0",
    )
    number = take()
    if ask == "caching_sha2_password":
        send(number + 1, b"\x01\x04")
        take()
    wire.until_end()


def _http(wire: _Wire, _ask: str) -> None:
    while True:
        wire.some()
        wire.send(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")


def _redis(wire: _Wire, _ask: str) -> None:
    while True:
        wire.some()
        wire.send(b"-WRONGPASS no\r\n")


_SASL_HANDSHAKE, _API_VERSIONS, _UNSUPPORTED = 17, 18, 35
_KAFKA_HAS = ((3, 0, 1), (_SASL_HANDSHAKE, 0, 1), (_API_VERSIONS, 0, 0), (36, 0, 0))
"""Kinds of requests, and their first and last version."""


def _kafka(wire: _Wire, _ask: str) -> None:
    while True:
        (size,) = struct.unpack(">I", wire.exactly(4))
        if size > 10_000:
            return  # the first bytes of TLS
        kind, version, number = struct.unpack(">hhI", wire.exactly(size)[:8])
        if kind == _API_VERSIONS:
            body = struct.pack(">hI", 0 if version == 0 else _UNSUPPORTED, 4)
            body += b"".join(struct.pack(">hhh", *each) for each in _KAFKA_HAS)
        elif kind == _SASL_HANDSHAKE:
            body = struct.pack(">hIh", 0, 1, 5) + b"PLAIN"
        else:
            return  # SaslAuthenticate, with the password
        wire.send(struct.pack(">II", 4 + len(body), number) + body)


def _mongodb(wire: _Wire, _ask: str) -> None:
    hello = bson.encode(
        {
            "ok": 1.0,
            "helloOk": True,
            "ismaster": True,
            "isWritablePrimary": True,
            "minWireVersion": 0,
            "maxWireVersion": 21,
            "maxBsonObjectSize": 1 << 24,
            "maxMessageSizeBytes": 48_000_000,
            "maxWriteBatchSize": 100_000,
        }
    )
    while True:
        head = wire.exactly(16)
        size, number, _, kind = struct.unpack("<iiii", head)
        wire.exactly(size - 16)
        wire.check()
        if kind == 2004:
            body, code = struct.pack("<iqii", 8, 0, 0, 1) + hello, 1
        else:
            body, code = struct.pack("<I", 0) + b"\0" + hello, 2013
        wire.send(struct.pack("<iiii", 16 + len(body), 1, number, code) + body)


def _ftp(wire: _Wire, _ask: str) -> None:
    wire.send(b"220 here\r\n")
    while True:
        line = wire.some().upper()
        if line.startswith(b"AUTH") and wire.tls is not None:
            wire.send(b"234 go\r\n")
            wire.encrypt()
        elif line.startswith(b"USER"):
            wire.send(b"331 the password\r\n")
        else:
            wire.send(b"530 no\r\n")


_SPEAKS: dict[str, Callable[[_Wire, str], None]] = {
    "postgresql": _postgresql,
    "mysql": _mysql,
    "http": _http,
    "redis": _redis,
    "kafka": _kafka,
    "mongodb": _mongodb,
    "ftp": _ftp,
}
_AFTER_HELLO = ("postgresql", "mysql", "ftp")
"""Protocols that begin without TLS, and change to it."""


@contextmanager
def trap(
    protocol: str, kind: str, authority: Authority, other: Authority, ask: str
) -> Iterator[Heard]:
    """`ask`: for MySQL, the plugin by which the password is asked for."""
    contexts = {
        "other certificate": lambda: other.server("127.0.0.1"),
        "other host": lambda: authority.server("elsewhere.example"),
        "downgrade": lambda: other.server("127.0.0.1"),
    }
    context = contexts[kind]() if kind in contexts else None
    heard = Heard()

    def speak(client: socket.socket) -> None:
        heard.connections += 1
        is_plain = kind == "downgrade" and heard.connections > 1
        wire = _Wire(client, heard, None if is_plain else context)
        try:
            if wire.tls is not None and protocol not in _AFTER_HELLO:
                wire.encrypt()
            _SPEAKS[protocol](wire, ask)
        finally:
            wire.socket.close()

    with rogue(speak) as port:
        heard.port = port
        yield heard


def fingerprint(data: bytes) -> str:
    """SSH's, of a host key."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
