"""Processes as the system names them."""

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from spark_channel import processes
from spark_channel.processes import (
    describe_owner,
    driver_pid,
    has_ended,
    host_name,
    owner_is_gone,
    process_name,
    started,
)


def test_this_process_is_alive_and_another_is_not() -> None:
    about = describe_owner()
    assert not owner_is_gone(about)
    assert owner_is_gone({**about, "started": "1"})
    assert owner_is_gone({**about, "pid": 2**22 + 1})
    assert not owner_is_gone({**about, "machine": ["elsewhere", "", ""], "started": "1"})
    assert not has_ended(host_name(), process_name())
    assert has_ended(host_name(), "999999999@1")
    assert not has_ended("elsewhere/", "999999999@1")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
def test_a_process_that_nobody_has_waited_for_has_ended() -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as ended:
        about = {**describe_owner(), "pid": ended.pid, "started": started(ended.pid)}
        name = process_name(ended.pid)
        assert not owner_is_gone(about)
        assert ended.stdin is not None
        assert ended.stdout is not None
        ended.stdin.close()
        ended.stdout.read()
        while started(ended.pid) is not None:  # its output has ended, and it will in a moment
            pass
        assert owner_is_gone(about)
        assert has_ended(host_name(), name)


def test_a_process_that_cannot_be_looked_at_is_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    about, host, name = describe_owner(), host_name(), process_name()
    files, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, most))
    try:
        ended = has_ended(host, name)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, most))
    assert not ended
    monkeypatch.setattr(processes, "_stat", lambda _pid: None)  # as under hidepid
    assert not owner_is_gone(about)
    assert not has_ended(host, name)
    assert owner_is_gone({**about, "pid": 2**22 + 1})


def test_a_jvm_that_is_the_first_process_of_a_container_is_the_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = os.getpid()
    for pid, name, parent in ((1, "java", 0), (7, "python3", 1), (own, "python3", 7)):
        (tmp_path / str(pid)).mkdir()
        fields = ["S", str(parent), *["0"] * 17, str(100 + pid)]
        (tmp_path / str(pid) / "stat").write_text(f"{pid} ({name}) {' '.join(fields)}")
    monkeypatch.setattr(processes, "_PROC", tmp_path)
    monkeypatch.setattr(os, "getppid", lambda: 7)
    assert driver_pid() == 1
    assert describe_owner()["pid"] == 1
    assert describe_owner()["started"] == "101"
