"""A token for the jobs that its holder opens: it does everything with them, and nothing with those of others."""

import socket
from collections.abc import Callable
from typing import Any

import pytest

from spark_channel.errors import ServiceDeniedError
from spark_channel.limits import (
    Join,
    Joined,
    LimitStatus,
    Pause,
    Permit,
    PermitRequest,
    Request,
    Resume,
    SetRates,
    StatusRequest,
    Subscribe,
    encode,
)
from spark_channel.progress import JobSpec, Phase
from spark_channel.service import ServiceAddress, ServiceClient, ServiceControl, ServiceServer
from spark_channel.service.connection import Connection
from spark_channel.service.limits import job_limit
from tests.service.helpers import hello, refusal
from tests.service.test_limits import ask, copy_rows

SPEC = JobSpec("read", rows_per_second=2_000, max_connections=1)
ANN, BOB = "ann", "bob"
STRANGE = "this token is for the jobs of another client"


@pytest.fixture
def two(server: ServiceServer) -> tuple[ServiceAddress, ServiceAddress]:
    """Two clients of one service; the first has opened the job `j`."""
    one, other = server.address.for_jobs_of(ANN), server.address.for_jobs_of(BOB)
    with ServiceControl(one) as control:
        control.open_job(SPEC, "j")
    return one, other


def test_it_is_made_without_asking_and_stays_narrow(server: ServiceServer) -> None:
    first = server.address.for_jobs_of(ANN)
    assert first == server.address.for_jobs_of(ANN)
    assert first.for_jobs_of(BOB) == first, "who holds it cannot make another"
    assert server.address.for_jobs_of(BOB).token != first.token
    assert hello(first)


def test_its_holder_does_everything_with_its_jobs(
    two: tuple[ServiceAddress, ServiceAddress], server: ServiceServer
) -> None:
    own, _ = two
    with ServiceClient(own, "j", SPEC) as client, client.permit():
        counters, limiter = client.counters(0, 0), client.limiter()
        assert limiter is not None
        assert len(copy_rows(limiter, 3)) == 3
        counters.enter(Phase.DONE)
    changes: list[Request] = [Pause(job_limit("j")), Resume(job_limit("j"))]
    changes.append(SetRates(job_limit("j"), rows_per_second=50.0))
    for request in changes:
        assert isinstance(ask(own, request), LimitStatus)
    with ServiceControl(own) as control:
        assert [each["job"] for each in control.status()] == ["j"]
        control.enter("j", Phase.DONE, rows=3)
        assert control.report("j").rows == 3
    assert server.jobs.live() == []


ACTIONS: list[tuple[str, dict[str, Any]]] = [
    ("open_job", {"spec": SPEC.to_json(), "job": "j"}),
    ("report", {"job": "j", "client": "c", "snapshots": [], "spec": SPEC.to_json()}),
    ("enter", {"job": "j", "phase": "done"}),
    ("status", {"job": "j"}),
    ("job_report", {"job": "j"}),
    (
        "health",
        {"job": "j", "side": "source", "values": {}, "delays": [], "missing": [], "error": ""},
    ),
    ("limits", {}),
    ("slots", {}),
    ("watch", {"job": None, "since": 0}),
]
REQUESTS: list[Callable[[str], Request]] = [
    SetRates,
    Pause,
    Resume,
    StatusRequest,
    lambda limit: Join(limit, "j"),
    lambda limit: PermitRequest(limit, "holder-of-it"),
]


@pytest.mark.parametrize(("action", "body"), ACTIONS, ids=[action for action, _ in ACTIONS])
def test_no_action_reaches_the_job_of_another_client(
    two: tuple[ServiceAddress, ServiceAddress],
    server: ServiceServer,
    action: str,
    body: dict[str, Any],
) -> None:
    said = refusal(two[1], action, body)
    assert STRANGE in said or "another purpose" in said or "job j exists" in said
    assert [each.job for each in server.jobs.live()] == ["j"]
    with ServiceControl(two[1]) as control:
        assert control.status() == []


@pytest.mark.parametrize("made", REQUESTS)
@pytest.mark.parametrize("resource", ["", "@mark"])
def test_no_request_reaches_the_limit_of_another_client(
    two: tuple[ServiceAddress, ServiceAddress],
    server: ServiceServer,
    made: Callable[[str], Request],
    resource: str,
) -> None:
    with pytest.raises(ServiceDeniedError, match=STRANGE):
        ask(two[1], made(job_limit("j") + resource))
    status = server.limits.handle(StatusRequest(job_limit("j")))
    assert isinstance(status, LimitStatus)
    assert (status.rows_per_second, status.paused) == (2_000, False)
    assert isinstance(ask(two[0], Join(job_limit("j"), "j")), Joined)
    assert isinstance(ask(two[0], PermitRequest(job_limit("j"), "holder-of-it")), Permit)


def test_nobody_listens_to_the_limit_of_another_client(
    two: tuple[ServiceAddress, ServiceAddress],
) -> None:
    request = encode(Subscribe(job_limit("j"), "client-of-bob", "epoch-of-bob"))
    with Connection(two[1]) as connection, pytest.raises(ServiceDeniedError, match=STRANGE):
        list(connection.stream("listen", request, timeout=5.0))


def test_a_shared_limit_asks_for_its_own_token(
    two: tuple[ServiceAddress, ServiceAddress], server: ServiceServer
) -> None:
    server.limits.book.add_limit("shop", 100.0, None)
    with pytest.raises(ServiceDeniedError, match="not valid for limit 'shop'"):
        ask(two[1], Join("shop", "j"))


def test_a_task_of_another_service_is_refused(server: ServiceServer) -> None:
    with ServiceServer() as other:
        wrong = other.address.for_jobs_of(ANN)
        mixed = ServiceAddress(server.address.host, server.address.port, wrong.token)
        assert "token is wrong" in refusal(mixed, "hello", {})


@pytest.mark.parametrize("token", ["jobs-of:" + "a" * 24, "jobs-of:\udcff.x", "jobs-of:é.x"])
def test_what_looks_like_such_a_token_is_refused(server: ServiceServer, token: str) -> None:
    head = f"POST /v1/hello HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\nContent-Length: 2\r\n\r\n{{}}"
    with socket.create_connection((server.address.host, server.address.port), 10) as connected:
        connected.sendall(head.encode("utf-8", "surrogateescape"))
        assert connected.recv(100).startswith(b"HTTP/1.1 401")
    assert hello(server.address)
