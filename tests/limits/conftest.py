"""A clock that only the test moves."""

import threading

import pytest


class HandClock:
    """Does not move until `now` is set or a thread sleeps."""

    def __init__(self) -> None:
        self.at = 0.0

    def now(self) -> float:
        return self.at

    def sleep(self, seconds: float) -> None:
        self.at += max(0.0, seconds)

    def wait(self, condition: threading.Condition, timeout: float | None = None) -> bool:
        assert timeout is not None, "no thread would ever wake this"
        self.at += timeout
        return False


@pytest.fixture
def clock() -> HandClock:
    return HandClock()
