"""Requests that are broken in every way: refused, without an internal error, a wait or memory."""

import json
import logging
import random
import socket
import time
from typing import cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark_channel.limits import (
    GrantRequest,
    GrantReturn,
    Heartbeat,
    Join,
    Leave,
    Request,
    SetRates,
    StatusRequest,
    Subscribe,
    encode,
)
from spark_channel.progress import JobSpec
from spark_channel.service import ServiceServer
from tests.service.fuzz import mutated, odd, resident_mib
from tests.service.helpers import hello

SPEC = JobSpec(
    "write", target="sqlite x.db#t", rows_per_second=100, max_connections=2, static_tasks=4
).to_json()
SNAPSHOT = {
    "task": 1,
    "attempt": 2,
    "phase": "running",
    "rows_read": 3,
    "waits": {"limit:rows": 0.5},
    "seconds": 1.5,
}
SEEDS: list[tuple[str, bytes]] = [
    (action, json.dumps(body).encode())
    for action, body in [
        ("hello", {}),
        ("open_job", {"spec": SPEC, "job": "j"}),
        (
            "report",
            {"job": "k", "client": "c", "snapshots": [SNAPSHOT], "spec": SPEC, "leaving": False},
        ),
        ("enter", {"job": "j", "phase": "done", "rows": 5, "limit": "static"}),
        ("status", {"job": "j"}),
        ("job_report", {"job": "j"}),
        ("limits", {}),
        ("slots", {}),
    ]
] + [
    ("coordinator", encode(request))
    for request in cast(
        list[Request],
        [
            Join("job:j", "j", "task 1", "before"),
            GrantRequest("job:j", "c", "e", 1, 0, 0.0, 0.0, 0.0, 0.0, ""),
            GrantReturn("job:j", "c", "e", 1, 0, 0.0, 0.0, 0.0, 0.0),
            Heartbeat("job:j", "c", "e", "rows"),
            Leave("job:j", "c", "e", 0, 0.0, 0.0),
            Subscribe("job:j", "c", "e", 1),
            SetRates("job:j", 10, None),
            StatusRequest("job:j"),
        ],
    )
]


class Caller:
    """Sends whole requests over one connection, made again when the service ended it."""

    def __init__(self, server: ServiceServer) -> None:
        self._address = server.address
        self._socket: socket.socket | None = None

    def head(self, action: str, length: int) -> bytes:
        token = self._address.token
        return (
            f"POST /v1/{action} HTTP/1.1\r\nAuthorization: Bearer {token}\r\nContent-Length: {length}\r\n\r\n"
        ).encode()

    def ask(self, request: bytes, *, once: bool = False) -> int:
        """The status of the answer; 0 where the connection was ended without one."""
        if self._socket is None or once:
            self.close()
            self._socket = socket.create_connection(
                (self._address.host, self._address.port), timeout=20
            )
        try:
            self._socket.sendall(request)
            if once:
                self._socket.shutdown(socket.SHUT_WR)
            answer = b""
            while b"\r\n\r\n" not in answer:
                part = self._socket.recv(65_536)
                if not part:
                    self.close()
                    return int(answer[9:12]) if answer else 0
                answer += part
            head, _, rest = answer.partition(b"\r\n\r\n")
            if b"Transfer-Encoding: chunked" in head or once or b"Connection: close" in head:
                self.close()
            else:
                length = int(head.split(b"Content-Length: ")[1].split(b"\r\n")[0])
                while len(rest) < length:
                    rest += self._socket.recv(65_536)
            return int(head[9:12])
        except ConnectionError:
            self.close()
            return 0

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


@pytest.mark.timeout(1_800)
@pytest.mark.parametrize(
    ("requests", "seed"),
    [
        (10_000, 20_261_122),
        *(pytest.param(125_000, seed, marks=pytest.mark.soak) for seed in range(8)),
    ],
)
def test_broken_requests_are_refused(
    server: ServiceServer, caplog: pytest.LogCaptureFixture, requests: int, seed: int
) -> None:
    """The long form sends a million. `-s` shows what was answered, how long the slowest took, and the memory."""
    random_ = random.Random(seed)
    slowest = 0.0
    caller, statuses, before = Caller(server), dict[int, int](), 0
    with caplog.at_level(logging.ERROR):
        for number in range(requests):
            action, body = random_.choice(SEEDS)
            body = (mutated if random_.random() < 0.5 else odd)(random_, body)
            kind, start = random_.randrange(20), time.monotonic()
            if kind == 0:
                status = caller.ask(
                    mutated(random_, caller.head(action, len(body))) + body, once=True
                )
            elif kind == 1:
                status = caller.ask(caller.head(action, len(body) + 5) + body, once=True)
            else:
                status = caller.ask(caller.head(action, len(body)) + body)
            statuses[status] = statuses.get(status, 0) + 1
            slowest = max(slowest, time.monotonic() - start)
            if number == 1_000:
                before = resident_mib()
            if number % 5_000 == 0:
                server.jobs.settle()
    caller.close()
    more = resident_mib() - before
    print(f"{requests} requests, seed {seed}: {statuses}, slowest {slowest:.2f} s, {more} MiB more")
    assert set(statuses) <= {0, 200, 400, 401, 403, 413, 431}, statuses
    assert statuses[400] > requests // 10
    assert [each.getMessage() for each in caplog.records if each.exc_info] == []
    assert more < (200 if requests == 10_000 else 25), (
        "of a million: 200, and each service has an eighth of them"
    )
    assert hello(server.address)


_SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
_KEYS = st.sampled_from(sorted({key for _, body in SEEDS for key in json.loads(body)})) | st.text(
    max_size=5
)
ANY_JSON = st.recursive(
    _SCALARS,
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(_KEYS, inside, max_size=3),
    max_leaves=8,
)


def refuses_any_json(
    server: ServiceServer, caplog: pytest.LogCaptureFixture, examples: int
) -> None:
    caller, slowest, before = Caller(server), 0.0, resident_mib()

    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))
    @given(
        st.sampled_from(sorted({action for action, _ in SEEDS})),
        st.dictionaries(_KEYS, ANY_JSON, max_size=5),
    )
    def ask(action: str, body: dict[str, object]) -> None:
        nonlocal slowest
        data, start = json.dumps(body).encode("utf-8", "surrogatepass"), time.monotonic()
        assert caller.ask(caller.head(action, len(data)) + data) in (200, 400, 401, 413)
        slowest = max(slowest, time.monotonic() - start)

    with caplog.at_level(logging.ERROR):
        ask()
    caller.close()
    more = resident_mib() - before
    print(f"{examples} bodies of hypothesis: slowest {slowest:.2f} s, {more} MiB more")
    assert more < 200
    assert [each.getMessage() for each in caplog.records if each.exc_info] == []
    assert hello(server.address)


@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("examples", [50, pytest.param(20_000, marks=pytest.mark.soak)])
def test_any_json_is_answered_in_our_words(
    server: ServiceServer, caplog: pytest.LogCaptureFixture, examples: int
) -> None:
    """Made by hypothesis, which looks for its own kinds of fault."""
    refuses_any_json(server, caplog, examples)
