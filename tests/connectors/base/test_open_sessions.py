"""The end of a process asks every server at once to cancel, and waits for none that does not answer."""

import gc
import subprocess
import sys
import threading

import pytest

from spark_channel.connectors.base import open_sessions


class Session:
    def __init__(self, cancelled: list[str], name: str) -> None:
        self.cancelled, self.name = cancelled, name

    def cancel(self) -> None:
        self.cancelled.append(self.name)


class _Refused(Session):
    def cancel(self) -> None:
        raise ConnectionError("no connection is left")


class _Silent(Session):
    answered = threading.Event()

    def cancel(self) -> None:
        self.answered.wait(60)


def test_sessions_that_are_open_are_cancelled_whatever_becomes_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    open_sessions._open.forget()
    monkeypatch.setattr(open_sessions, "_END_SECONDS", 0.1)
    cancelled = list[str]()
    kinds = (_Silent, _Refused, Session, _Silent, Session)
    sessions = [kind(cancelled, f"s{number}") for number, kind in enumerate(kinds)]
    for session in sessions:
        open_sessions.note_open(session)
    open_sessions.note_open(Session(cancelled, "forgotten"))
    gc.collect()
    open_sessions.cancel_all()
    _Silent.answered.set()
    assert sorted(cancelled) == ["s2", "s4"]


def test_a_session_is_cancelled_though_no_thread_can_be_started_for_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    open_sessions._open.forget()
    cancelled = list[str]()
    sessions = [Session(cancelled, "s0"), Session(cancelled, "s1")]
    for session in sessions:
        open_sessions.note_open(session)
    start, refused = threading.Thread.start, list[threading.Thread]()

    def start_but_one(thread: threading.Thread) -> None:
        if not refused:
            refused.append(thread)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_but_one)
    open_sessions.cancel_all()
    assert len(cancelled) == 1


_FORKING = """
import os
from spark_channel.connectors.base import open_sessions

class Session:
    def __init__(self, name):
        self.name = name

    def cancel(self):
        os.write(1, f"{self.name} by {'parent' if os.getpid() == parent else 'child'}\\n".encode())

parent = os.getpid()
session = Session("parent's")
open_sessions.note_open(session)
with open_sessions._open._lock:  # as another thread of the parent may hold it
    child = os.fork()
    if not child:
        own = Session("child's")
        open_sessions.note_open(own)
        open_sessions.cancel_all()
        os._exit(0)
assert os.waitpid(child, 0)[1] == 0
open_sessions.cancel_all()
"""


def test_a_forked_child_cancels_nothing_of_its_parents() -> None:
    command = [sys.executable, "-c", _FORKING]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "child's by child\nparent's by parent\n", done.stderr
