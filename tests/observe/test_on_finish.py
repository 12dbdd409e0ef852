"""A command or a url that gets the report of each job at its end, and never slows or fails a job."""

import json
import logging
import sys
import threading
import time
from pathlib import Path

import pytest

from spark_channel.errors import OptionError
from spark_channel.observe.metrics import prometheus_text
from spark_channel.observe.on_finish import VARIABLE, FinishNotice
from spark_channel.observe.outbox import Outbox
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


@pytest.mark.parametrize("target", ["ftp://host/x", "http://", "echo 'open", "  "])
def test_what_is_neither_a_url_nor_a_command_is_refused(target: str) -> None:
    with pytest.raises(OptionError, match=VARIABLE):
        FinishNotice(target)


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


def test_a_job_that_ends_is_told_once_the_program_ends() -> None:
    sent: list[object] = []
    outbox = Outbox("test", sent.append)
    for number in range(500):
        outbox.put(number)
    outbox.close()
    outbox.put("too late")
    assert sent == list(range(500))
