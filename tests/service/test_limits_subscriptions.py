"""Clients that ask seldom hear of a change immediately, and no call is kept waiting at the end."""

import queue
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from spark_channel.errors import LimitError
from spark_channel.limits import (
    Join,
    Joined,
    Leave,
    LimitChanged,
    Pause,
    Rejected,
    Reply,
    SetRates,
    Subscribe,
    decode_reply,
    encode,
)
from spark_channel.progress import JobSpec
from spark_channel.service import ServiceAddress, ServiceClient, ServiceServer, limits
from spark_channel.service.connection import Connection
from spark_channel.service.http_server import Caller
from spark_channel.service.limits import job_limit
from spark_channel.service.protocol import Subscriptions
from tests.service.helpers import wait_for
from tests.service.test_limits import ask, copy_rows

SPEC = JobSpec("read", rows_per_second=100_000)


@pytest.fixture
def crowd(server: ServiceServer) -> list[Joined]:
    """500 clients: asks are 2 s apart, and more."""
    server.jobs.open(SPEC, "j")
    replies = [server.limits.handle(Join(job_limit("j"), "j")) for _ in range(500)]
    return [reply for reply in replies if isinstance(reply, Joined)]


@pytest.mark.real_time
def test_a_task_among_many_hears_of_a_pause_in_time(
    server: ServiceServer, crowd: list[Joined]
) -> None:
    client = ServiceClient(server.address, "j", SPEC)
    with client, ThreadPoolExecutor(1) as pool:
        limiter = client.limiter("task")
        assert limiter is not None
        copying = pool.submit(copy_rows, limiter, 10**9)

        def listens() -> bool:
            return any(
                subscriptions
                for subscriptions in server.limits._subscriptions._subscriptions.values()
            )

        wait_for(listens, "the task to listen")
        began = time.monotonic()
        server.limits.handle(Pause(job_limit("j")))
        wait_for(lambda: getattr(limiter, "waiting", "") == "paused", "the pause to be heard of")
        assert time.monotonic() - began < 1.5
        server.jobs.close_all()
        with pytest.raises(LimitError):
            copying.result(60)


def listen(
    address: ServiceAddress, request: Subscribe, heard: queue.SimpleQueue[Reply | None]
) -> None:
    """Yield the service's notifications one by one, and None at the end."""
    try:
        with Connection(address) as connection:
            for data in connection.stream("listen", encode(request), timeout=30.0):
                heard.put(decode_reply(data))
    finally:
        heard.put(None)


def test_a_listener_hears_each_change_until_its_own_end(
    server: ServiceServer, crowd: list[Joined]
) -> None:
    limit, one, other = job_limit("j"), crowd[0], crowd[1]
    first: queue.SimpleQueue[Reply | None] = queue.SimpleQueue()
    second: queue.SimpleQueue[Reply | None] = queue.SimpleQueue()
    with ThreadPoolExecutor(2) as pool:
        pool.submit(listen, server.address, Subscribe(limit, one.client, one.epoch, 0), first)
        pool.submit(listen, server.address, Subscribe(limit, other.client, other.epoch, 0), second)
        wait_for(lambda: server.limits._subscriptions._count == 2, "both to listen")
        server.limits.handle(Leave(limit, other.client, other.epoch))
        assert isinstance(second.get(timeout=30), Rejected)
        assert second.get(timeout=30) is None
        assert first.empty()
        server.limits.handle(SetRates(limit, 50_000))
        assert first.get(timeout=30) == LimitChanged(1, 50_000.0, ask_within=499 / 400)
        server.limits.handle(Pause(limit))
        assert first.get(timeout=30) == LimitChanged(2, 0.0, 0.0, "paused", ask_within=499 / 400)
        server.limits.handle(Leave(limit, one.client, one.epoch))
        assert isinstance(first.get(timeout=30), Rejected)
        assert first.get(timeout=30) is None
    assert server.limits._subscriptions._count == 0


def test_a_call_that_listened_for_long_says_when_to_come_again(
    server: ServiceServer, crowd: list[Joined], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "LISTEN_SECONDS", 0.05)
    request = Subscribe(job_limit("j"), crowd[0].client, crowd[0].epoch, 0)
    (news,) = server.limits.listen(request)
    assert isinstance(news, LimitChanged)
    assert (news.version, news.again_in) == (0, 0.0)


def test_a_stranger_is_refused(server: ServiceServer, crowd: list[Joined]) -> None:
    heard: queue.SimpleQueue[Reply | None] = queue.SimpleQueue()
    listen(server.address, Subscribe(job_limit("j"), "unknown", crowd[0].epoch, 0), heard)
    assert isinstance(heard.get(), Rejected)
    assert heard.get() is None


def test_listening_is_an_action_of_its_own(server: ServiceServer, crowd: list[Joined]) -> None:
    limit, one = job_limit("j"), crowd[0]
    assert isinstance(ask(server.address, Subscribe(limit, one.client, one.epoch, 0)), Rejected)
    heard = list(server.limits.listen_endpoint(encode(Pause(limit)), Caller("service", "peer")))
    assert [type(decode_reply(data)) for data in heard] == [Rejected]
    assert [
        type(decode_reply(data))
        for data in server.limits.listen_endpoint(b"{", Caller("service", "peer"))
    ] == [Rejected]
    with pytest.raises(PermissionError):
        server.limits.listen(Subscribe(limit, one.client, one.epoch, 0), "limit:another")


def test_the_end_of_the_service_does_not_wait_for_listeners(
    crowd: list[Joined], server: ServiceServer
) -> None:
    request = Subscribe(job_limit("j"), crowd[0].client, crowd[0].epoch, 0)
    with ThreadPoolExecutor(1) as pool:
        listening = pool.submit(listen, server.address, request, queue.SimpleQueue())
        wait_for(lambda: server.limits._subscriptions._count == 1, "it to listen")
        began = time.monotonic()
        server.stop()
        assert time.monotonic() - began < 10, "not as long as a listener is held"
        assert listening.exception(5) is None or isinstance(listening.exception(5), LimitError)


def test_too_many_are_told_to_come_later() -> None:
    subscriptions = Subscriptions(most=1)
    first = subscriptions.subscribe("db", "a")
    assert first is not None
    assert subscriptions.subscribe("db", "b") is None
    subscriptions.unsubscribe("db", "a", first)
    again = subscriptions.subscribe("db@host", "b")
    assert again is not None
    subscriptions.notify("db")
    assert again.is_set()


def test_the_bell_of_the_same_client_before_rings() -> None:
    subscriptions = Subscriptions()
    first, second = subscriptions.subscribe("db", "a"), subscriptions.subscribe("db", "a")
    assert isinstance(first, threading.Event)
    assert first.is_set()
    assert second is not None
    subscriptions.unsubscribe("db", "a", first)
    subscriptions.notify("db", "a")
    assert second.is_set()
