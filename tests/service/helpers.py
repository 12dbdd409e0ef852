"""What several tests of the service do."""

import os
import re
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from spark_channel.errors import ServiceDeniedError
from spark_channel.progress import JobProgress
from spark_channel.service import ServiceAddress, ServiceControl

ROOT = Path(__file__).resolve().parents[2]


def own_threads() -> set[threading.Thread]:
    return {each for each in threading.enumerate() if each.name.startswith("spark-channel")}


def wait_for(condition: Callable[[], bool], what: str, seconds: float = 10.0) -> None:
    """Wait for a change that raises no event, as the end of another thread or process."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"waited {seconds} s for {what}"
        time.sleep(0.01)


def wait_gone(pid: int, seconds: float = 10.0) -> float:
    """Return the seconds until process `pid` has ended; it need not be a child of this process."""
    start = time.monotonic()
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return 0.0
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        assert poll.poll(seconds * 1000), f"process {pid} still runs after {seconds} s"
    finally:
        os.close(descriptor)
    return time.monotonic() - start


def refusal(address: ServiceAddress, action: str, body: dict[str, Any]) -> str:
    """Why the service refuses this."""
    with ServiceControl(address) as control:
        try:
            control.call(action, body)
        except ServiceDeniedError as error:
            return str(error)
    raise AssertionError(f"{action} was not refused")


def hello(address: ServiceAddress) -> bool:
    with ServiceControl(address) as control:
        return bool(control.hello()["service"] == "spark-channel")


def serve_limit(started: list[subprocess.Popen[str]], *arguments: str) -> str:
    """`spark-channel limits serve orders-db` as a process, see fixture `serve`; returns the address it printed."""
    process = subprocess.Popen(
        [sys.executable, "-m", "spark_channel.cli", "limits", "serve", "orders-db", *arguments],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    started.append(process)
    assert process.stdout is not None
    line = process.stdout.readline()
    match = re.search(r"at (\S+/orders-db)", line)
    assert match, line
    return match.group(1)


class Listener:
    """Keeps what it hears, and lets a test wait for a job's end."""

    def __init__(self) -> None:
        self.opened: list[str] = []
        self.closed: list[JobProgress] = []
        self.end = threading.Event()

    def job_opened(self, progress: JobProgress) -> None:
        self.opened.append(progress.job)

    def job_closed(self, progress: JobProgress) -> None:
        self.closed.append(progress)
        self.end.set()
