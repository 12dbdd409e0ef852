"""Every test here has a watchdog, and leaves no thread behind."""

import faulthandler
import threading
from collections.abc import Iterator

import pytest

from spark_channel.testing import VirtualClock


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture(autouse=True)
def watchdog(request: pytest.FixtureRequest) -> Iterator[None]:
    before = set(threading.enumerate())
    long = request.node.get_closest_marker("soak") is not None
    faulthandler.dump_traceback_later(1_800 if long else 120, exit=True)
    yield
    for thread in set(threading.enumerate()) - before:
        thread.join(10)
        assert not thread.is_alive(), f"{thread.name} was left behind"
    faulthandler.cancel_dump_traceback_later()
