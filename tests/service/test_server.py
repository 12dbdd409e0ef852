"""A real server: who gets in, what it refuses, and that it works afterwards."""

import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from spark_channel.errors import OptionError, ServiceDeniedError, ServiceUnavailableError
from spark_channel.progress import JobSpec, Phase
from spark_channel.service import (
    ServiceAddress,
    ServiceControl,
    ServiceServer,
    SharedLimit,
    TlsFiles,
    find_shared_limit,
    protocol,
    shared_speed,
)
from spark_channel.service.connection import Connection
from spark_channel.service.limits import limit_scope
from tests.service.helpers import Listener, hello, refusal

SPEC = JobSpec("write", target="sqlite x.db#t").to_json()


def test_jobs_are_opened_watched_and_closed(server: ServiceServer) -> None:
    heard = Listener()
    server.jobs.subscribe(heard)
    with ServiceControl(server.address) as control:
        assert control.hello()["pid"] == os.getpid()
        job = control.open_job(JobSpec("write", target="sqlite x.db#t", commit="job"))
        assert [each["job"] for each in control.status()] == [job]
        assert control.status(job)[0]["phase"] == "planning"
        control.enter(job, Phase.PUBLISHING)
        control.enter(job, Phase.DONE, where="sqlite x.db, table t", rows=7)
        assert control.status() == []
        report = control.report(job)
    assert (report.rows, report.where, report.commit) == (7, "sqlite x.db, table t", "job")
    assert heard.opened == [job]
    assert [each.job for each in heard.closed] == [job]


def with_token(address: ServiceAddress, token: str) -> ServiceAddress:
    return ServiceAddress(address.host, address.port, token)


@pytest.mark.parametrize("wrong", ["x", "", "Bearer", "x" * 5000])
def test_a_wrong_token_is_refused_and_named_nowhere(
    server: ServiceServer, wrong: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        why = refusal(with_token(server.address, wrong), "hello", {})
    assert "token is wrong" in why
    assert hello(server.address)
    assert any("refused 1 call" in each.getMessage() for each in caplog.records)
    for text in [why, caplog.text, repr(server), repr(server.tokens), repr(server.address)]:
        assert server.address.token not in text
        assert len(wrong) < 3 or wrong == "Bearer" or wrong not in text


@pytest.mark.parametrize("token", ["gehäuse", "line\nbreak", "nul\0"])
def test_what_cannot_be_a_token_is_refused_before_it_travels(
    server: ServiceServer, token: str
) -> None:
    why = refusal(with_token(server.address, token), "hello", {})
    assert "characters that no token has" in why
    assert token not in why


def asked(address: ServiceAddress, request: bytes) -> bytes:
    """All that the service says to these bytes, until it closes the connection."""
    answer = b""
    with socket.create_connection((address.host, address.port), timeout=10) as raw:
        raw.sendall(request)
        while part := raw.recv(4096):
            answer += part
    return answer


@pytest.mark.parametrize("given", ["nothing", "no scheme", "another scheme"])
def test_without_a_token_nothing_answers_and_the_log_says_so(
    server: ServiceServer, given: str, caplog: pytest.LogCaptureFixture
) -> None:
    token = server.address.token
    header = {
        "nothing": "",
        "no scheme": f"Authorization: {token}\r\n",
        "another scheme": f"Authorization: Basic {token}\r\n",
    }[given]
    with caplog.at_level(logging.DEBUG):
        answers = [
            asked(
                server.address,
                f"POST /v1/{action} HTTP/1.1\r\n{header}Content-Length: 2\r\n\r\n{{}}".encode(),
            )
            for action in ("hello", "nothing", "")
        ]
    assert {answer.split(b"\r\n")[0] for answer in answers} == {b"HTTP/1.1 401 Unauthorized"}
    (logged,) = [each for each in caplog.records if "refused 1 call" in each.getMessage()]
    assert logged.levelno == logging.WARNING
    assert server.address.token not in caplog.text + str(answers)
    assert hello(server.address)


@pytest.mark.parametrize(
    ("action", "body"),
    [
        ("nothing", {}),
        ("hello", {"x": 1}),
        ("open_job", {}),
        ("open_job", {"spec": {}}),
        ("open_job", {"spec": {"kind": "read", "rows_per_second": -1}}),
        ("open_job", {"spec": SPEC, "job": "a\nb"}),
        ("report", {"job": "j", "client": "c", "snapshots": "all"}),
        (
            "report",
            {"job": "j", "client": "c", "snapshots": [{"task": -1, "attempt": 0, "phase": "done"}]},
        ),
        ("report", {"job": "j", "client": "c", "snapshots": [], "leaving": "yes"}),
        ("report", {"job": "j", "client": "c", "snapshots": [None] * 10_001}),
        ("enter", {"job": "unknown", "phase": "done"}),
        ("enter", {"job": "j", "phase": "flying"}),
        ("enter", {"job": "j", "phase": None}),
        ("enter", {"job": "j", "phase": "done", "rows": -1}),
        ("enter", {"job": "j", "phase": "done", "error": 5}),
        ("status", {"job": "unknown"}),
        ("job_report", {"job": ["j"]}),
        ("limits", {"all": True}),
    ],
)
def test_a_request_that_makes_no_sense_is_refused_and_the_service_goes_on(
    server: ServiceServer, action: str, body: dict[str, Any]
) -> None:
    refusal(server.address, action, body)
    assert hello(server.address)
    assert server.jobs.live() == []


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x00" * 1000,
        b"{",
        b'{"job": 1e999}',
        b'{"n": 18446744073709551616}',
        b"x" * (protocol.LARGEST_BODY + 1),
    ],
)
@pytest.mark.parametrize("action", ["report", "open_job"])
def test_garbage_bytes_are_refused_and_the_service_goes_on(
    server: ServiceServer, action: str, body: bytes
) -> None:
    with Connection(server.address) as connection, pytest.raises(ServiceDeniedError):
        connection.send(action, body)
    assert hello(server.address)


def test_garbage_on_the_socket_harms_nobody(server: ServiceServer) -> None:
    for garbage in (
        b"\x00" * 4096,
        b"GET / HTTP/1.1\r\n\r\n",
        os.urandom(4096),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 99,
    ):
        with socket.create_connection((server.address.host, server.address.port)) as raw:
            raw.sendall(garbage)
    assert hello(server.address)


def test_a_fault_of_ours_is_logged_and_not_told(
    server: ServiceServer, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_body: bytes, _caller: object) -> bytes:
        raise RuntimeError("inside")

    server.add_endpoint("broken", broken)
    with Connection(server.address) as connection, pytest.raises(ServiceUnavailableError) as caught:
        connection.call("broken", {})
    assert "inside" not in str(caught.value)
    assert "inside" in caplog.text
    assert hello(server.address)


def test_a_token_of_a_limit_opens_no_job(server: ServiceServer) -> None:
    token = server.tokens.add(limit_scope("orders"))
    address = with_token(server.address, token)
    assert hello(address)
    requests: list[tuple[str, dict[str, Any]]] = [
        ("open_job", {"spec": SPEC}),
        ("report", {"job": "j", "client": "c", "snapshots": []}),
        ("enter", {"job": "j", "phase": "done"}),
        ("status", {}),
        ("job_report", {"job": "j"}),
        ("limits", {}),
    ]
    for action, body in requests:
        assert "another purpose" in refusal(address, action, body)
    server.tokens.remove(limit_scope("orders"))
    assert "token is wrong" in refusal(address, "hello", {})


def test_a_taken_port_is_a_clear_error(server: ServiceServer) -> None:
    second = ServiceServer(port=server.address.port)
    with pytest.raises(ServiceUnavailableError, match=str(server.address.port)):
        second.start()
    assert hello(server.address)


def test_an_address_that_is_not_ours_is_a_clear_error() -> None:
    with pytest.raises(ServiceUnavailableError, match="host of this machine"):
        ServiceServer("192.0.2.1").start()


def test_it_listens_on_one_address_only(server: ServiceServer) -> None:
    with (
        pytest.raises(OSError),
        socket.create_connection(("127.0.0.2", server.address.port), timeout=5),
    ):
        pass


def test_stop_frees_the_port_and_start_works_again() -> None:
    server = ServiceServer()
    first = server.start()
    assert server.start() == first
    server.stop()
    server.stop()
    with pytest.raises(RuntimeError):
        _ = server.address
    with ServiceControl(first, timeout=2) as control, pytest.raises(ServiceUnavailableError):
        control.hello()
    with socket.create_server((first.host, first.port)):
        pass
    server.start()
    assert hello(server.address)
    server.stop()


def test_stop_closes_what_runs_with_its_summary() -> None:
    heard = Listener()
    with ServiceServer() as server:
        server.jobs.subscribe(heard)
        server.jobs.open(JobSpec("read"))
    assert len(heard.closed) == 1


def test_a_call_that_never_ends_does_not_hold_the_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("spark_channel.service.server._SHUTDOWN_SECONDS", 0.3)
    entered, leave = threading.Event(), threading.Event()

    def endless(body: bytes, _caller: object) -> bytes:
        entered.set()
        leave.wait(30)
        return body

    server = ServiceServer()
    server.add_endpoint("endless", endless)
    address = server.start()

    def call() -> None:
        with (
            ServiceControl(address, timeout=0.5) as control,
            pytest.raises(ServiceUnavailableError),
        ):
            control.call("endless", {})

    caller = threading.Thread(target=call)
    caller.start()
    assert entered.wait(10)
    start = time.monotonic()
    server.stop()
    assert time.monotonic() - start < 5
    assert "left behind" in caplog.text
    caller.join(10)
    leave.set()


def test_the_programs_signals_stay_its_own() -> None:
    # A shell's background ignores it.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with ServiceServer():
            assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


def test_idle_jobs_are_closed_without_anybody_asking(server: ServiceServer) -> None:
    heard = Listener()
    server.jobs.subscribe(heard)
    with ServiceControl(server.address) as control:
        body = {
            "job": "j",
            "client": "c",
            "snapshots": [],
            "spec": JobSpec("read").to_json(),
            "leaving": True,
        }
        control.call("report", body)
    assert heard.end.wait(30)


def test_an_outer_name_is_what_clients_are_told() -> None:
    with ServiceServer("127.0.0.1", advertise_host="localhost") as server:
        assert server.address.host == "localhost"
        assert hello(server.address)


@pytest.fixture
def tls(tmp_path: Path) -> TlsFiles:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl makes the certificate")
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        [
            openssl,
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-keyout",
            key,
            "-out",
            certificate,
            "-days",
            "2",
            "-subj",
            "/CN=localhost",
            "-addext",
            "subjectAltName=DNS:localhost,IP:127.0.0.1",
        ],
        check=True,
        capture_output=True,
    )
    return TlsFiles(str(certificate), str(key))


def test_tls_lets_in_only_those_who_know_the_certificate(tls: TlsFiles) -> None:
    with ServiceServer(tls=tls) as server:
        address = server.address
        assert address.location.startswith("https://")
        assert hello(address)
        plain = ServiceAddress(address.host, address.port, address.token)
        with ServiceControl(plain, timeout=2) as control, pytest.raises(ServiceUnavailableError):
            control.hello()


def test_a_missing_tls_file_is_a_clear_error(tls: TlsFiles) -> None:
    with pytest.raises(ServiceUnavailableError, match=r"no\.pem"):
        ServiceServer(tls=tls._replace(key="/nowhere/no.pem")).start()


def test_a_proxy_of_the_environment_is_not_used(
    server: ServiceServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "https_proxy", "grpc_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(name, "http://192.0.2.1:3128")
    assert hello(server.address)


def test_a_shared_limit_over_tls_is_spent_by_those_who_trust_it(
    tls: TlsFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    with SharedLimit("secret", rows_per_second=1_000, tls=tls) as limit:
        assert limit.address.startswith("tls://")
        here = find_shared_limit("secret")
        assert shared_speed(here) == (1_000, None)
        with pytest.raises(OptionError, match="SPARK_CHANNEL_TLS_ROOT"):
            find_shared_limit(limit.address, limit.token)
        monkeypatch.setenv("SPARK_CHANNEL_TLS_ROOT", tls.certificate)
        assert shared_speed(find_shared_limit(limit.address, limit.token)) == (1_000, None)
        plain = find_shared_limit(limit.address.removeprefix("tls://"), limit.token)
        assert shared_speed(plain) == (None, None), "without TLS it does not answer"


_FEW_FILES = """
import resource, spark_channel
resource.setrlimit(resource.RLIMIT_NOFILE, (18, 18))
source = {"name": "generator", "rows": "1000", "channels": "8"}
try:
    spark_channel.transfer(None, source, {"name": "discard"}, rows_per_second="1M")
except spark_channel.ChannelError as error:
    print("failed:", error)
"""


def test_few_open_files_end_in_messages_and_no_tracebacks(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _FEW_FILES],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert "Traceback" not in done.stdout + done.stderr
    assert "Too many open files" in done.stdout + done.stderr
