"""Threads for calls that may wait."""

import threading

import pytest

from spark_channel.service.http_server import CallPool


def test_at_the_end_of_the_interpreter_a_call_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """From Python 3.12 on no thread starts then; the caller hears that the service cannot answer."""

    def no_more(_thread: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    pool = CallPool("test")
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_more)
        assert not pool.take(lambda: None)
    done = threading.Event()
    assert pool.take(done.set)
    assert done.wait(5)
    assert pool.end(5)
