"""An attempt shows that its run lives, from its own thread, until it ends or is forgotten."""

import gc
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from spark_channel.connectors.sql.write.attempt import TaskAttempt
from spark_channel.connectors.sql.write.heartbeat import HeartbeatThread
from spark_channel.connectors.sql.write.loading import Loading
from spark_channel.connectors.sql.write.sessions import Verdict
from spark_channel.connectors.sql.write.task_claim import TaskClaim
from spark_channel.errors import TargetError
from spark_channel.testing import VirtualClock


def _thread() -> threading.Thread:
    return [each for each in threading.enumerate() if each.name == "spark-channel-heartbeat"][-1]


def test_life_is_shown_at_every_beat_until_the_end() -> None:
    clock = VirtualClock()
    shown: list[float] = []

    def show() -> None:
        shown.append(clock.now())
        if len(shown) == 2:
            raise TargetError("the database is away")

    sign = HeartbeatThread(show, seconds=3600, clock=clock)
    thread = _thread()
    clock.wait_until_blocked(thread)
    for _ in range(3):
        clock.advance(3600)
        clock.wait_until_blocked(thread)
    sign.end()
    sign.end()
    assert not thread.is_alive()
    clock.advance(7200)
    assert shown == [3600, 7200, 10800]


def test_an_attempt_that_is_forgotten_shows_no_life() -> None:
    sign = HeartbeatThread(lambda: None, seconds=3600)
    thread = _thread()
    del sign
    gc.collect()
    thread.join(30)
    assert not thread.is_alive()


class _Unanswered:
    """A session whose COMMIT gets no answer."""

    is_open = True

    def commit(self) -> None:
        raise TargetError("the connection is lost")

    def undo(self) -> None:
        assert self.is_open

    def close(self) -> None:
        self.is_open = False


class _Loader:
    """Has nothing to load."""

    opens = "nothing"
    asks_again = False

    def ready(self, session: Any) -> None: ...
    def begin(self, session: Any) -> None: ...
    def complete(self, session: Any, *, judged: bool) -> None: ...

    def repeated(self, work: Any) -> None:
        work()


def test_a_commit_without_an_answer_is_reported_as_that(monkeypatch: pytest.MonkeyPatch) -> None:
    """The session is closed before another one is asked for the outcome, and has nothing to undo."""
    monkeypatch.setattr(TaskClaim, "note", lambda *_given, **_named: True)
    monkeypatch.setattr("spark_channel.connectors.sql.write.task_claim.settle", lambda *_: None)
    loader: Any = _Loader()
    connect: Any = _Unanswered
    loading: Loading[Any] = Loading(connect, direct=loader, shows_life=False)
    plan: Any = None
    database: Any = SimpleNamespace(
        options=SimpleNamespace(batch_size=10, is_limited=False),
        verdict=lambda _: Verdict.LOST,
    )
    attempt = TaskAttempt(database, TaskClaim(database, plan, 0, 0), loading)
    attempt.open()
    with pytest.raises(TargetError, match="the connection is lost"):
        attempt.close()
