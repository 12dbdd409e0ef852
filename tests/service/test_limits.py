"""Limits over a real port: kept by the job, spent by tasks, closed to strangers; lost with the service."""

import logging
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from spark_channel.channel import Limiter, MemoryChannel
from spark_channel.errors import LimitError, ServiceDeniedError, ServiceUnavailableError
from spark_channel.limits import (
    GrantRequest,
    Join,
    Joined,
    LimitStatus,
    Pause,
    Permit,
    PermitRequest,
    PermitReturn,
    Rejected,
    Reply,
    Request,
    Resume,
    RetryLater,
    SetRates,
    StatusRequest,
    decode_reply,
    encode,
)
from spark_channel.limits.grants import HORIZON
from spark_channel.progress import JobSpec, Phase
from spark_channel.service import ServiceAddress, ServiceClient, ServiceServer, SharedLimitAddress
from spark_channel.service.connection import Connection, failed_recently
from spark_channel.service.leases import PermitLease
from spark_channel.service.limits import job_limit, limit_scope
from tests.service.helpers import hello, wait_for

RATE = 2_000
SPEC = JobSpec("read", rows_per_second=RATE)
ROW = pa.record_batch({"n": pa.array([0], pa.int64())})


def copy_rows(limiter: Limiter, rows: int) -> list[float]:
    """Push one row after the other through a channel; returns when each was let through."""
    channel = MemoryChannel(limiter=limiter)
    stamps = []
    for _ in range(rows):
        channel.push(ROW)
        stamps.append(time.monotonic())
    return stamps


def ask(address: ServiceAddress, request: Request) -> Reply:
    with Connection(address) as connection:
        return decode_reply(connection.send("coordinator", encode(request)))


@pytest.fixture
def limited(server: ServiceServer) -> str:
    """A job with a limit; gives the limit's name."""
    server.jobs.open(SPEC, "j")
    return job_limit("j")


def limit_status(server: ServiceServer, limit: str) -> LimitStatus:
    status = server.limits.handle(StatusRequest(limit))
    assert isinstance(status, LimitStatus)
    return status


@pytest.mark.real_time
def test_two_tasks_share_the_jobs_limit(server: ServiceServer) -> None:
    stamps: list[float] = []
    lock = threading.Lock()

    def work(task: int) -> None:
        with ServiceClient(server.address, "j", SPEC) as client:
            counters = client.counters(task, task)
            limiter = client.limiter(f"task {task}")
            assert limiter is not None
            mine = copy_rows(limiter, RATE)
            counters.enter(Phase.DONE)
        with lock:
            stamps.extend(mine)

    threads = [threading.Thread(target=work, args=(task,)) for task in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stamps.sort()
    # Any second may hold the limit, 40 ms of slices and one row of each client.
    worst = max(
        sum(1 for each in stamps if start <= each < start + 1) for start in stamps[:: RATE // 20]
    )
    assert worst <= RATE * 1.05 + 2


def test_the_limit_comes_and_goes_with_the_job(server: ServiceServer, limited: str) -> None:
    assert server.limits.book.names() == (limited,)
    assert limit_status(server, limited).rows_per_second == RATE
    server.jobs.enter("j", Phase.DONE)
    assert server.limits.book.names() == ()
    assert isinstance(ask(server.address, Join(limited, "j")), Rejected)


def test_an_unlimited_job_has_no_limiter_and_no_permits(server: ServiceServer) -> None:
    with ServiceClient(server.address, "j", JobSpec("read")) as client:
        assert client.limiter() is None
        with client.permit() as permit:
            assert permit is None


def test_any_job_name_has_a_limit_of_its_own(server: ServiceServer) -> None:
    names = ["orders copy", "orders@copy", "kopie äöü", "x" * 200, "ж" * 200]
    assert len({job_limit(name) for name in names}) == len(names)
    for name in names:
        with ServiceClient(server.address, name, SPEC) as client:
            limiter = client.limiter()
            assert limiter is not None
            assert len(copy_rows(limiter, 3)) == 3
            assert job_limit(name) in server.limits.book.names()


def test_set_pause_and_resume_act_and_are_shown(server: ServiceServer, limited: str) -> None:
    progress = server.jobs.find("j")
    assert isinstance(ask(server.address, SetRates(limited, rows_per_second=50.0)), LimitStatus)
    assert progress.status().spec.rows_per_second == 50
    ask(server.address, Pause(limited))
    assert progress.status().note == "paused"
    joined = ask(server.address, Join(limited, "j"))
    assert isinstance(joined, Joined)
    assert isinstance(joined.answer, RetryLater)
    assert joined.answer.reason == "paused"
    ask(server.address, Resume(limited))
    assert progress.status().note == ""


NONSENSE: list[Callable[[str], Any]] = [
    lambda limit: Join("unknown", "j"),
    lambda limit: Join(limit + "@mark", "j"),
    lambda limit: GrantRequest(limit, "another client", "epoch", 1),
    lambda limit: SetRates(limit, rows_per_second=-1.0),
    lambda limit: SetRates(limit, rows_per_second=0.0),
    lambda limit: SetRates(limit, rows_per_second=float(2**63)),
    lambda limit: PermitRequest(limit, "another holder"),
]


@pytest.mark.parametrize("request_of", NONSENSE)
def test_what_makes_no_sense_is_denied_and_the_service_goes_on(
    server: ServiceServer, limited: str, request_of: Callable[[str], Any]
) -> None:
    assert isinstance(ask(server.address, request_of(limited)), Rejected)
    assert limit_status(server, limited).rows_per_second == RATE
    assert hello(server.address)


@pytest.mark.parametrize("amount", [2.0**63, -1.0, float(2**62)])
def test_amounts_that_no_client_can_have_spent_are_denied(
    server: ServiceServer, limited: str, amount: float
) -> None:
    joined = ask(server.address, Join(limited, "j"))
    assert isinstance(joined, Joined)
    false = GrantRequest(limited, joined.client, joined.epoch, 1, grant=1, spent_rows=amount)
    assert isinstance(ask(server.address, false), Rejected)
    assert limit_status(server, limited).issued_rows <= RATE


@pytest.mark.parametrize(
    "body",
    [b"", b"\xff" * 100, b"{}", b"[]", b'{"type":"Join"}', b'{"type":"Grant"}', b"{" * 50_000],
)
def test_garbage_bytes_are_denied_and_the_service_goes_on(
    server: ServiceServer, body: bytes
) -> None:
    with Connection(server.address) as connection:
        assert isinstance(decode_reply(connection.send("coordinator", body)), Rejected)
    assert hello(server.address)


def test_the_token_of_a_limit_spends_it_and_nothing_else(
    server: ServiceServer, limited: str, caplog: pytest.LogCaptureFixture
) -> None:
    server.limits.book.add_limit("orders", 100)
    token = server.tokens.add(limit_scope("orders"))
    address = replace(server.address, token=token)
    assert isinstance(ask(address, Join("orders", "j")), Joined)
    assert isinstance(ask(address, StatusRequest("orders")), LimitStatus)
    for request in (
        Join(limited, "j"),
        StatusRequest(limited),
        SetRates("orders", 1e6),
        Pause("orders"),
        Resume("orders"),
    ):
        with (
            caplog.at_level(logging.DEBUG),
            pytest.raises(ServiceDeniedError, match="is not valid for limit"),
        ):
            ask(address, request)
    assert limit_status(server, "orders").rows_per_second == 100
    assert "refused" in caplog.text
    assert token not in caplog.text


def test_a_shared_limit_holds_for_jobs_of_other_services(server: ServiceServer) -> None:
    server.limits.book.add_limit("orders", 100)
    shared_at = replace(server.address, token=server.tokens.add(limit_scope("orders")))
    with (
        ServiceServer() as own,
        ServiceClient(
            own.address, "j", JobSpec("read"), shared_limit=SharedLimitAddress(shared_at, "orders")
        ) as client,
    ):
        limiter = client.limiter("task 1")
        assert limiter is not None
        stamps = copy_rows(limiter, 30)
        assert stamps[-1] - stamps[0] >= 0.2
        status = limit_status(server, "orders")
        assert [each.name for each in status.clients] == ["task 1"]
        assert server.jobs.live() == []
    assert limit_status(server, "orders").client_count == 0


def test_a_jobs_own_limit_and_a_shared_one_hold_together(server: ServiceServer) -> None:
    server.limits.book.add_limit("orders", 10_000)
    shared = SharedLimitAddress(server.address, "orders")
    with ServiceClient(
        server.address, "j", JobSpec("read", rows_per_second=100), shared_limit=shared
    ) as client:
        limiter = client.limiter()
        assert limiter is not None
        stamps = copy_rows(limiter, 30)
        assert stamps[-1] - stamps[0] >= 0.2
        assert limit_status(server, "orders").client_count == 1
        assert limit_status(server, job_limit("j")).client_count == 1


def test_a_limit_per_mark_is_one_for_each_resource(server: ServiceServer) -> None:
    spec = replace(SPEC, per_mark=True)
    with ServiceClient(server.address, "j", spec) as client:
        for mark in ("db1", "db2"):
            limiter = client.limiter(mark=mark)
            assert limiter is not None
            copy_rows(limiter, 2)
        assert client.limiter(mark="db1") is client.limiter(mark="db1")
        names = server.limits.book.names()
    assert names == ("job:j", "job:j@db1", "job:j@db2")


def test_a_client_that_closes_gives_its_share_back_at_once(
    server: ServiceServer, limited: str
) -> None:
    with ServiceClient(server.address, "j", SPEC) as client:
        limiter = client.limiter()
        assert limiter is not None
        copy_rows(limiter, 5)
        assert limit_status(server, limited).client_count == 1
    status = limit_status(server, limited)
    assert status.client_count == 0
    assert status.outstanding_rows == 0


def test_a_wrong_token_ends_the_work_at_once(server: ServiceServer) -> None:
    wrong = replace(server.address, token="wrong-token-0123")
    with ServiceClient(wrong, "j", SPEC, timeout=120.0) as client:
        limiter = client.limiter()
        assert limiter is not None
        start = time.monotonic()
        with pytest.raises(ServiceDeniedError) as caught:
            copy_rows(limiter, 1)
    assert time.monotonic() - start < 60, "not tried again for as long as `timeout` says"
    assert "wrong-token-0123" not in str(caught.value)


@pytest.mark.real_time
def test_a_service_that_cannot_be_reached_ends_the_work_with_the_way_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = ServiceAddress("127.0.0.1", taken.getsockname()[1], "token")
    with ServiceClient(address, "j", SPEC, timeout=1.0) as client:
        limiter = client.limiter()
        assert limiter is not None
        start = time.monotonic()
        with pytest.raises(ServiceUnavailableError, match="rowsPerSecondPerTask"):
            copy_rows(limiter, 1)
    assert 0.9 <= time.monotonic() - start < 4


@pytest.mark.real_time
def test_a_service_that_never_answers_ends_the_work_too(silent_port: int) -> None:
    address = ServiceAddress("127.0.0.1", silent_port, "token")
    with ServiceClient(address, "j", SPEC, timeout=1.0) as client:
        limiter = client.limiter()
        assert limiter is not None
        start = time.monotonic()
        with pytest.raises(ServiceUnavailableError, match="rowsPerSecondPerTask"):
            copy_rows(limiter, 1)
    assert 0.9 <= time.monotonic() - start < 5


def test_a_service_lost_midway_never_lets_the_work_run_unlimited() -> None:
    server = ServiceServer()
    address = server.start()
    passed: list[float] = []
    with ServiceClient(address, "j", SPEC, timeout=1.0) as client:
        limiter = client.limiter()
        assert limiter is not None
        channel = MemoryChannel(capacity_rows=10**6, limiter=limiter)
        running = threading.Event()
        failure: list[LimitError] = []

        def push() -> None:
            try:
                while True:
                    channel.push(ROW)
                    passed.append(time.monotonic())
                    running.set()
            except LimitError as error:
                failure.append(error)

        thread = threading.Thread(target=push)
        thread.start()
        assert running.wait(10)
        server.stop()
        stopped = time.monotonic()
        thread.join(10)
        assert isinstance(failure[0], ServiceUnavailableError)
    after = [each for each in passed if each > stopped]
    assert len(after) <= RATE * (HORIZON + 0.02) + 1, (
        "what one grant allows, 20 ms of surplus, and a row in debt"
    )


def test_a_service_that_was_started_again_is_joined_again() -> None:
    first = ServiceServer()
    address = first.start()
    again = ServiceServer(port=address.port, token=address.token)
    with ServiceClient(address, "j", SPEC) as client:
        limiter = client.limiter()
        assert limiter is not None
        copy_rows(limiter, 5)
        first.stop()
        again.jobs.open(SPEC, "j")
        with again:
            assert len(copy_rows(limiter, RATE // 2)) == RATE // 2
            assert limit_status(again, job_limit("j")).client_count == 1


PERMITTED = JobSpec("write", max_connections=2)


def test_at_most_max_connections_hold_a_permit(server: ServiceServer) -> None:
    lock = threading.Lock()
    held, most, served = 0, 0, 0

    def work() -> None:
        nonlocal held, most, served
        with ServiceClient(server.address, "j", PERMITTED) as client, client.permit():
            with lock:
                held += 1
                most = max(most, held)
            time.sleep(0.05)
            with lock:
                held -= 1
                served += 1

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert (most, held, served) == (2, 0, 6)


def test_a_permit_is_renewed_while_it_is_held_and_returned_at_the_end(
    server: ServiceServer,
) -> None:
    server.jobs.open(replace(PERMITTED, max_connections=1), "j")
    with ServiceClient(server.address, "j", PERMITTED) as client, client.permit():
        refused = ask(server.address, PermitRequest(job_limit("j"), "another holder"))
        assert isinstance(refused, RetryLater)
        ask(server.address, PermitReturn(job_limit("j"), "another holder"))
    assert isinstance(ask(server.address, PermitRequest(job_limit("j"), "another holder")), Permit)


def test_a_wait_for_a_permit_can_be_cancelled(server: ServiceServer) -> None:
    server.jobs.open(replace(PERMITTED, max_connections=1), "j")
    with PermitLease(server.address, job_limit("j")):
        waiting = PermitLease(server.address, job_limit("j"))
        failure: list[LimitError] = []

        def wait() -> None:
            try:
                waiting.acquire()
            except LimitError as error:
                failure.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        wait_for(
            lambda: isinstance(
                ask(server.address, PermitRequest(job_limit("j"), "a third holder")), RetryLater
            ),
            "line",
        )
        waiting.cancel()
        thread.join(30)
        waiting.release()
        assert "cancelled" in str(failure[0])


def test_a_permit_that_nobody_can_give_is_an_error_in_time(
    silent_port: int, server: ServiceServer
) -> None:
    with pytest.raises(ServiceDeniedError, match="no permits"):
        PermitLease(server.address, job_limit("unknown")).acquire()
    silent = ServiceAddress("127.0.0.1", silent_port, "token")
    holder = PermitLease(silent, "job:j", timeout=0.5)
    with pytest.raises(ServiceUnavailableError, match="maxConnections"):
        holder.acquire()
    holder.release()


def test_without_the_option_a_permit_that_nobody_can_give_is_missed(
    silent_port: int, caplog: pytest.LogCaptureFixture
) -> None:
    silent = ServiceAddress("127.0.0.1", silent_port, "token")
    with PermitLease(silent, "job:j", timeout=0.0, option=None):
        assert "connections are not counted" in caplog.text
    assert failed_recently(silent), "the next task of this worker does not wait"
    assert "30 s" not in caplog.text, "there is none to give back"
