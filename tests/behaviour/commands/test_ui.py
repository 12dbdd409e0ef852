"""`spark-channel ui` as a command."""

import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_the_page_is_served_until_a_signal(tmp_path: Path, sent: signal.Signals) -> None:
    tmp_path.chmod(0o700)
    process = subprocess.Popen(
        [sys.executable, "-m", "spark_channel.cli", "ui"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1", "XDG_RUNTIME_DIR": str(tmp_path)},
    )
    try:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(3)]
        change, read = (re.search(r"(http://127\.0\.0\.1:\d+/)#(\S+)", line) for line in lines[:2])
        assert change
        assert read
        assert change[1] == read[1]
        assert change[2] != read[2]
        with urllib.request.urlopen(change[1], timeout=10) as page:
            assert b"<title>spark-channel</title>" in page.read()
        process.send_signal(sent)
        assert process.stdout.read() == "the page is closed; jobs continue\n"
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def test_a_port_in_use_is_an_error_with_the_port(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = subprocess.run(
            [sys.executable, "-m", "spark_channel.cli", "ui", "--port", str(port)],
            capture_output=True,
            text=True,
            env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)},
            timeout=30,
            check=False,
        )
    assert ended.returncode == 1
    assert f"127.0.0.1:{port}" in ended.stderr
    assert "Traceback" not in ended.stderr
