"""A command or a url that gets the report of each job at its end, and never slows or fails a job."""

import contextlib
import json
import logging
import socket
import sys
import threading
import time
from pathlib import Path

import pytest

from spark_channel.errors import OptionError
from spark_channel.observers import Observer, close_together, is_wanted, notices, observers
from spark_channel.observers.metrics import prometheus_text
from spark_channel.observers.notices import VARIABLE, FinishNotice, Outbox
from spark_channel.progress import JobSpec, Phase, TransferReport
from spark_channel.service import ServiceServer

SPEC = JobSpec("transfer", source="csv a", target="csv b")


def finished(server: ServiceServer, phase: Phase = Phase.DONE, spec: JobSpec = SPEC) -> str:
    job = server.jobs.open(spec)
    server.jobs.enter(job, phase, error="the disk is full" if phase is Phase.FAILED else "")
    return job


def test_a_url_gets_the_report_of_each_job(
    receiver: tuple[str, list[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, posted = receiver
    monkeypatch.setenv(VARIABLE, f"{url}/hook?key=1")
    with ServiceServer() as server:
        done, failed = finished(server), finished(server, Phase.FAILED)
        for batch in range(3):
            finished(server, spec=JobSpec("write", target="x", batch=batch))
    reports = [TransferReport.from_json(text.decode()) for text in posted]
    assert [(each.job, each.phase, each.error) for each in reports] == [
        (done, "done", ""),
        (failed, "failed", "the disk is full"),
    ]


def test_a_command_gets_the_report_on_its_standard_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "a report.json"
    code = "import sys, pathlib; pathlib.Path(sys.argv[1]).write_bytes(sys.stdin.buffer.read())"
    monkeypatch.setenv(VARIABLE, f"{sys.executable} -c '{code}' '{out}'")
    with ServiceServer() as server:
        job = finished(server)
    assert json.loads(out.read_text())["job"] == job


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("/no/such/program", "cannot be run"),
        ("false", "false ended with 1"),
        ("http://127.0.0.1:1/secret-path", "did not answer"),
        ("{url}/broken/secret-path", "answered 500"),
    ],
)
def test_a_failure_is_counted_and_logged_without_the_secret(
    receiver: tuple[str, list[bytes]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    target: str,
    why: str,
) -> None:
    monkeypatch.setenv(VARIABLE, target.format(url=receiver[0]))
    with ServiceServer() as server, caplog.at_level(logging.WARNING):
        finished(server)
        finished(server)
    text = prometheus_text(server.metrics.families()).decode()
    assert 'spark_channel_notices_total{to="onFinish",outcome="failed"} 2' in text
    assert caplog.text.count(why) == 1
    assert "secret-path" not in caplog.text


@pytest.mark.parametrize(
    "target",
    [
        "ftp://host/x",
        "http://",
        "echo 'open",
        "  ",
        "http://host:x/",
        "http://host/a b",
        "http://host/é",
    ],
)
def test_what_is_neither_a_url_nor_a_command_is_refused(target: str) -> None:
    with pytest.raises(OptionError, match=VARIABLE):
        FinishNotice(target)


def test_a_url_may_have_quotes_and_a_login(monkeypatch: pytest.MonkeyPatch) -> None:
    heads: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            with listening.accept()[0] as caller:
                heads.append(caller.recv(65536))
                caller.sendall(b"HTTP/1.1 204 No Content\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        port = listening.getsockname()[1]
        monkeypatch.setenv(VARIABLE, f"http://me:p%40ss@127.0.0.1:{port}/hook?it='s")
        with ServiceServer() as server:
            finished(server)
        thread.join(10)
    assert server._observers[0].outbox.counts()["sent"] == 1
    lines = heads[0].decode().split("\r\n")
    assert lines[0] == "POST /hook?it='s HTTP/1.1"
    assert "Authorization: Basic bWU6cEBzcw==" in lines


def test_a_receiver_that_answers_bit_by_bit_has_no_more_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(notices, "_URL_SECONDS", 0.3)
    ended = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            with listening.accept()[0] as caller, contextlib.suppress(OSError):
                for each in b"HTTP/1.1 100 " + b"x" * 60:
                    caller.sendall(bytes([each]))
                    if ended.wait(0.1):
                        return

        thread = threading.Thread(target=answer)
        thread.start()
        notice = FinishNotice(f"http://127.0.0.1:{listening.getsockname()[1]}/")
        try:
            with pytest.raises(ValueError, match="did not answer: TimeoutError"):
                notice._send(b"{}")
        finally:
            ended.set()
            thread.join(10)


def test_a_job_that_the_program_s_end_closes_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Since Python 3.12 an interpreter that ends starts no thread."""
    out = tmp_path / "report"
    monkeypatch.setenv(VARIABLE, f"sh -c 'cat > {out}'")
    server = ServiceServer()
    server.jobs.open(SPEC)
    sent: list[object] = []

    def refused(_thread: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refused)
        server.jobs.close_all(failed=True)
        late = Outbox("late", sent.append)
        late.put(1)
        close_together([each.outbox.close for each in server._observers] + [lambda: sent.append(2)])
        late.close()
    assert json.loads(out.read_text())["phase"] == "failed"
    assert sent == [2]
    assert late.counts()["dropped"] == 1


def test_a_receiver_that_hangs_holds_nothing_up_and_what_is_lost_is_counted() -> None:
    hangs = threading.Event()

    def send(_item: object) -> None:
        hangs.wait(30)

    outbox = Outbox("test", send, most=2)
    began = time.monotonic()
    for number in range(100):
        outbox.put(number)
    outbox.close(0.2)
    outbox.close(0.2)
    assert time.monotonic() - began < 2
    hangs.set()
    assert 97 <= outbox.counts()["dropped"] <= 100


def test_what_is_due_each_minute_is_done_however_many_items_there_are() -> None:
    """A stream's micro-batches are notices more often than each minute."""
    ticks: list[int] = []
    done = threading.Event()

    def tick() -> None:
        ticks.append(1)
        if len(ticks) == 3:
            done.set()

    outbox = Outbox("test", lambda _item: None, tick=tick, every=0.05)
    end = time.monotonic() + 10
    while not done.is_set() and time.monotonic() < end:
        outbox.put(1)
        done.wait(0.005)
    outbox.close()
    assert done.is_set()


def test_a_job_that_ends_is_told_once_the_program_ends() -> None:
    sent: list[object] = []
    outbox = Outbox("test", sent.append)
    for number in range(500):
        outbox.put(number)
    outbox.close()
    outbox.put("too late")
    assert sent == list(range(500))


def test_the_environment_names_what_is_told_of_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert not is_wanted()
    assert observers() == []
    monkeypatch.setenv(VARIABLE, "http://127.0.0.1:1/")
    assert is_wanted()
    told: list[Observer] = observers()
    assert [type(each) for each in told] == [FinishNotice]
    assert isinstance(told[0].outbox, Outbox)
