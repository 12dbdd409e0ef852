"""Servers on free ports, a private runtime directory per test, and a check that nothing is left behind."""

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_channel.service import ServiceServer
from tests.service.helpers import own_threads, wait_for


@pytest.fixture(autouse=True)
def runtime_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "run"
    directory.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(directory))
    return directory


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    before = own_threads()
    yield
    wait_for(lambda: own_threads() <= before, "threads to end", 5.0)


@pytest.fixture
def server() -> Iterator[ServiceServer]:
    with ServiceServer(idle_seconds=0.3) as running:
        yield running


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port where connections are accepted and nothing ever answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        kept: list[socket.socket] = []

        def accept() -> None:
            while True:
                try:
                    kept.append(listening.accept()[0])
                except OSError:
                    return

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)
        thread.join(30)
        for each in kept:
            each.close()


@pytest.fixture
def driver() -> Iterator[subprocess.Popen[bytes]]:
    """A process that stands for the driver's JVM; it lives until its stdin is closed, or it is killed."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.wait()
    assert process.stdin is not None
    process.stdin.close()


@pytest.fixture
def serve() -> Iterator[list[subprocess.Popen[str]]]:
    """What `serve_limit` starts; killed at the end."""
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
