"""What a stranger, and a caller who is let in, can make the service hold in memory."""

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spark_channel.service import ServiceAddress, ServiceControl, http_server, protocol
from spark_channel.service.protocol import Tokens
from tests.service.helpers import ROOT, hello

MIB = 1 << 20


@pytest.fixture
def elsewhere() -> Iterator[tuple[ServiceAddress, int]]:
    """A service in its own process, so that its memory can be read: (address, pid)."""
    yield from served("")


def served(how: str) -> Iterator[tuple[ServiceAddress, int]]:
    program = (
        "import json, sys; from spark_channel.service import ServiceServer; "
        f"from spark_channel.service.protocol import TlsFiles; s = ServiceServer({how}); "
        "print(json.dumps(s.start().to_json()), flush=True); sys.stdin.read(); s.stop()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert process.stdout is not None
    assert process.stdin is not None
    yield ServiceAddress.from_json(json.loads(process.stdout.readline())), process.pid
    process.stdin.close()
    process.wait(20)
    process.stdout.close()


def peak_mib(pid: int) -> int:
    """The most memory that the process ever had."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) // 1024


def pushed(address: ServiceAddress, head: bytes, most: int) -> int:
    """Bytes of a body of `most` that the service took before it cut the connection."""
    chunk, sent = b"x" * MIB, 0
    with socket.create_connection((address.host, address.port), timeout=10) as raw:
        try:
            raw.sendall(head)
            while sent < most:
                raw.sendall(chunk)
                sent += len(chunk)
        except OSError:
            pass
    return sent


def is_cut(stranger: socket.socket) -> bool:
    """The service ended the connection, without an answer."""
    try:
        return stranger.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize("token", [False, True])
def test_a_body_of_512_mib_is_never_in_memory(
    elsewhere: tuple[ServiceAddress, int], token: bool
) -> None:
    address, pid = elsewhere
    assert hello(address)
    before = peak_mib(pid)
    given = f"Authorization: Bearer {address.token}\r\n" if token else ""
    head = f"POST /v1/report HTTP/1.1\r\n{given}Content-Length: {512 * MIB}\r\n\r\n".encode()
    for _ in range(3):
        assert pushed(address, head, 512 * MIB) < 64 * MIB
    assert peak_mib(pid) - before < 16
    assert hello(address)


def test_a_head_without_an_end_is_never_in_memory(elsewhere: tuple[ServiceAddress, int]) -> None:
    address, pid = elsewhere
    before = peak_mib(pid)
    for head in (b"POST /v1/hello HTTP/1.1\r\nX: ", b""):
        assert pushed(address, head, 512 * MIB) < 64 * MIB
    assert peak_mib(pid) - before < 16
    assert hello(address)


def test_many_strangers_are_cut_and_callers_are_served(
    elsewhere: tuple[ServiceAddress, int],
) -> None:
    address, pid = elsewhere
    before = peak_mib(pid)
    kept: list[socket.socket] = []
    try:
        with ServiceControl(address) as control:
            control.hello()
            for _ in range(700):
                stranger = socket.create_connection((address.host, address.port), timeout=10)
                stranger.sendall(b"POST /v1/hello HTTP/1.1\r\nX: " + b"x" * 12_000)
                kept.append(stranger)
            assert control.hello()["service"] == "spark-channel"
            assert hello(address), "a new caller is let in beside them"
        kept[0].settimeout(5)
        assert is_cut(kept[0])
    finally:
        for each in kept:
            each.close()
    assert peak_mib(pid) - before < 32


@pytest.fixture
def with_tls(tmp_path: Path) -> Iterator[tuple[ServiceAddress, int]]:
    """As `elsewhere`, behind TLS."""
    certificate, key = str(tmp_path / "certificate.pem"), str(tmp_path / "key.pem")
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
            "-addext",
            "subjectAltName=IP:127.0.0.1",
            "-out",
            certificate,
            "-keyout",
            key,
        ],
        check=True,
        capture_output=True,
    )
    yield from served(f"tls=TlsFiles({certificate!r}, {key!r}, {certificate!r})")


def test_strangers_who_begin_a_handshake_are_bounded(with_tls: tuple[ServiceAddress, int]) -> None:
    """asyncio's own server reports a connection after its handshake: 3 000 of them took 490 MiB."""
    address, pid = with_tls
    assert hello(address)
    before = peak_mib(pid)
    kept: list[socket.socket] = []
    try:
        for number in range(800):
            stranger = socket.create_connection((address.host, address.port), timeout=10)
            stranger.sendall(
                b"\x16\x03\x01\x02\x00"
                if number % 2
                else b"no handshake at all, and not the end of it"
            )
            kept.append(stranger)
        assert hello(address), "a new caller is let in beside them"
        kept[0].settimeout(5)
        assert is_cut(kept[0]) or not kept[0].recv(1_000)
    finally:
        for each in kept:
            each.close()
    assert peak_mib(pid) - before < 80


def test_a_stranger_who_says_nothing_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    from spark_channel.service import ServiceServer

    monkeypatch.setattr(http_server, "_HEAD_SECONDS", 0.2)
    with ServiceServer() as server:
        with socket.create_connection(
            (server.address.host, server.address.port), timeout=10
        ) as raw:
            start = time.monotonic()
            assert is_cut(raw)
        assert time.monotonic() - start < 5
        assert hello(server.address)


def test_a_caller_who_stops_in_the_body_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    from spark_channel.service import ServiceServer

    monkeypatch.setattr(http_server, "_BODY_SECONDS", 0.2)
    with ServiceServer() as server:
        address = server.address
        head = f"POST /v1/hello HTTP/1.1\r\nAuthorization: Bearer {address.token}\r\nContent-Length: 9\r\n\r\n{{"
        with socket.create_connection((address.host, address.port), timeout=10) as raw:
            raw.sendall(head.encode())
            assert is_cut(raw)
        assert hello(address)


@pytest.mark.parametrize(
    "request_line",
    [
        b"POST /v1/hello HTTP/1.1\r\nAuthorization: Bearer %s\r\n\r\n",
        b"POST /v1/hello HTTP/1.1\r\nAuthorization: Bearer %s\r\nContent-Length: -1\r\n\r\n",
        b"POST /v1/hello HTTP/1.1\r\nAuthorization: Bearer %s\r\nContent-Length: 1e3\r\n\r\n",
        b"POST /v1/hello HTTP/1.1\r\nAuthorization: Bearer %s\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
        b"POST /v1/hello HTTP/1.1\r\nAuthorization: Bearer %s\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST /v1/hello HTTP/1.1\r\nAuthorization: Bearer %s\r\nAuthorization: Bearer x\r\n\r\n",
        b"GET /v1/hello HTTP/1.1\r\nAuthorization: Bearer %s\r\nContent-Length: 2\r\n\r\n{}",
        b"POST /v2/hello HTTP/1.1\r\nAuthorization: Bearer %s\r\nContent-Length: 2\r\n\r\n{}",
        b"POST /v1/hello HTTP/1.0\r\nAuthorization: Bearer %s\r\nContent-Length: 2\r\n\r\n{}",
        b"no request at all %s\r\n\r\n",
    ],
)
def test_a_head_that_could_be_read_in_two_ways_is_refused(
    elsewhere: tuple[ServiceAddress, int], request_line: bytes
) -> None:
    address, _ = elsewhere
    with socket.create_connection((address.host, address.port), timeout=10) as raw:
        raw.sendall(request_line % address.token.encode())
        answer = b""
        while part := raw.recv(4096):
            answer += part
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1") == 1
    assert hello(address)


def test_requests_that_come_together_are_answered_one_after_the_other(
    elsewhere: tuple[ServiceAddress, int],
) -> None:
    address, _ = elsewhere
    one = f"POST /v1/hello HTTP/1.1\r\nAuthorization: Bearer {address.token}\r\nContent-Length: 2\r\n\r\n{{}}"
    last = one.replace("Content-Length", "Connection: close\r\nContent-Length")
    with socket.create_connection((address.host, address.port), timeout=10) as raw:
        raw.sendall((one * 20 + last).encode())
        answer = b""
        while part := raw.recv(65536):
            answer += part
    assert answer.count(b"HTTP/1.1 200 OK") == 21


def test_answers_that_nobody_reads_are_bounded_also_without_a_token() -> None:
    """A stranger may ask for a page again and again, in one connection, and read nothing."""
    waiting: list[int] = []
    asked = 64

    def page(_body: bytes, _caller: http_server.Caller) -> http_server.Document:
        transports = [each._transport for each in server.calls]
        waiting.append(sum(each.get_write_buffer_size() for each in transports if each is not None))
        return http_server.Document("text/plain", bytes(MIB))

    public = frozenset({"GET /"})
    here = ServiceAddress("127.0.0.1", 0, "token")
    server = http_server.HttpServer(here, {"GET /": page}, Tokens(), inline=public, public=public)
    try:
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as raw:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 10)
            raw.sendall(b"GET / HTTP/1.1\r\n\r\n" * (asked - 1))
            raw.sendall(b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n")
            length = 0
            while part := raw.recv(MIB):
                length += len(part)
        assert len(waiting) == asked
        assert length > asked * MIB
        assert max(waiting) < 4 * MIB
    finally:
        server.shutdown(3)


def test_a_token_in_the_header_of_its_own_goes_before_that_of_a_proxy(
    elsewhere: tuple[ServiceAddress, int],
) -> None:
    address, _ = elsewhere
    head = (
        f"POST /v1/hello HTTP/1.1\r\nAuthorization: token of-jupyter\r\nX-Spark-Channel-Token: {address.token}\r\n"
        "Connection: close\r\nContent-Length: 2\r\n\r\n{}"
    )
    with socket.create_connection((address.host, address.port), timeout=10) as raw:
        raw.sendall(head.encode())
        assert raw.recv(65536).startswith(b"HTTP/1.1 200 ")


def test_the_largest_body_passes(elsewhere: tuple[ServiceAddress, int]) -> None:
    from spark_channel.errors import ServiceDeniedError
    from spark_channel.service.connection import Connection

    address, _ = elsewhere
    with Connection(address) as connection:
        for size, why in (
            (protocol.LARGEST_BODY, "not JSON"),
            (protocol.LARGEST_BODY + 1, "at most"),
        ):
            with pytest.raises(ServiceDeniedError, match=why):
                connection.send("report", os.urandom(size))
        assert connection.call("hello", {})["service"] == "spark-channel"


class Gone(asyncio.Transport):
    """The transport of a connection that its caller has reset."""

    aborted = False

    def write(self, data: object) -> None:
        """Nothing takes it."""

    def is_closing(self) -> bool:
        return False

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        raise OSError(107, "Transport endpoint is not connected")

    def abort(self) -> None:
        self.aborted = True


def test_a_caller_who_resets_the_connection_before_the_refusal_is_no_fault_of_ours() -> None:
    loop = asyncio.new_event_loop()
    shell: Any = SimpleNamespace(
        loop=loop,
        calls=set(),
        strangers=OrderedDict(),
        refusals=http_server._RejectionLog(),
        tokens=Tokens(),
        unfinished=0,
        _tls=None,
    )
    for name in ("admit", "dismiss"):
        setattr(shell, name, getattr(http_server.HttpServer, name).__get__(shell))
    call, transport = http_server._Call(shell), Gone()
    call.connection_made(transport)
    call.data_received(b"no request at all\r\n\r\n")
    assert transport.aborted
    assert (shell.calls, dict(shell.strangers)) == (set(), {})
    loop.close()
