"""The end of a process asks every server at once to cancel, and waits for none that does not answer."""

import gc
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
    monkeypatch.setattr(open_sessions, "_sessions", type(open_sessions._sessions)())
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
