"""No test of a carrier leaves a thread behind."""

import threading
from collections.abc import Iterator

import pytest

from tests.carrier.helpers import JOIN_SECONDS, older_threads


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    older_threads.clear()
    older_threads.update(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - older_threads:
        thread.join(JOIN_SECONDS)
        assert not thread.is_alive(), f"{thread.name} was left running"
