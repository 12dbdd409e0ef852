"""The task's side: counters arrive, a lost service costs at most a warning, nothing is left behind."""

import logging
import pickle
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from spark_channel.errors import ServiceDeniedError, ServiceUnavailableError
from spark_channel.limits import StaticShare
from spark_channel.progress import JobSpec, Phase
from spark_channel.service import (
    ServiceAddress,
    ServiceClient,
    ServiceControl,
    ServiceServer,
    SharedLimitAddress,
)
from spark_channel.service.connection import note_reached
from tests.service.helpers import Listener, own_threads, wait_for

SPEC = JobSpec("read", source="csv x", tasks=1)


def test_final_counters_are_there_when_close_returns(server: ServiceServer) -> None:
    heard = Listener()
    server.jobs.subscribe(heard)
    with ServiceClient(server.address, "j", SPEC) as client:
        counters = client.counters(0, 7, rows_expected=10)
        counters.read(10, 80)
        counters.pushed(10, 80)
        counters.enter(Phase.DONE)
    report = heard.closed[0].report()
    assert (report.phase, report.rows, report.bytes, report.tasks, report.attempts) == (
        "done",
        10,
        80,
        1,
        1,
    )


def test_a_service_of_this_process_is_called_without_a_socket(
    server: ServiceServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_given: object, **_named: object) -> None:
        raise OSError("no socket is wanted")

    monkeypatch.setattr("socket.create_connection", refuse)
    with ServiceControl(server.address) as control:
        job = control.open_job(SPEC, "j")
        with ServiceClient(server.address, job, SPEC) as client:
            client.counters(0, 7).pushed(10, 80)
        assert server.jobs.find(job).status().rows == 10
        with pytest.raises(ServiceUnavailableError):
            # A refusal goes through a socket, and is logged.
            control.enter("k", Phase.DONE)
    wrong = replace(server.address, token="not-this-one")
    with ServiceControl(wrong) as control, pytest.raises(ServiceUnavailableError):
        control.open_job(SPEC, "l")


def test_counters_arrive_while_the_task_runs(server: ServiceServer) -> None:
    with ServiceClient(server.address, "j", SPEC) as client:
        client.counters(0, 7).pushed(10, 80)
        wait_for(
            lambda: any(each.status().rows == 10 for each in server.jobs.live()), "the counters"
        )
        client.counters(1, 8).pushed(5, 40)
        wait_for(
            lambda: server.jobs.find("j").status().rows == 15, "the counters of the second task"
        )


def test_all_clients_of_a_run_are_one_job(server: ServiceServer) -> None:
    heard = Listener()
    server.jobs.subscribe(heard)
    spec = JobSpec("read", tasks=4)

    def work(task: int) -> None:
        with ServiceClient(server.address, "j", spec) as client:
            counters = client.counters(task, 10 + task)
            counters.pushed(100, 800)
            counters.enter(Phase.DONE)

    threads = [threading.Thread(target=work, args=(task,)) for task in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert heard.end.wait(30)
    assert heard.closed[-1].report().rows == 400
    assert set(heard.opened) == {"j"}


def test_it_pickles_as_its_arguments_and_connects_nowhere_before_its_use(
    server: ServiceServer,
) -> None:
    with ServiceClient(server.address, "j", SPEC) as client:
        client.counters(0, 0)
        copy = pickle.loads(pickle.dumps(client))
    assert (copy.address, copy.job, copy.spec) == (server.address, "j", SPEC)
    assert server.address.token not in repr(copy)
    before = own_threads()
    copy.close()
    assert own_threads() == before
    with pytest.raises(ServiceUnavailableError, match="closed"):
        copy.counters(0, 0)


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


@pytest.mark.skipif(sys.platform != "linux", reason="counts descriptors in /proc")
def test_threads_and_connections_end_with_the_client(server: ServiceServer) -> None:
    def once(number: int) -> None:
        with ServiceClient(server.address, f"j{number}", SPEC) as client:
            client.counters(0, 0).enter(Phase.DONE)

    once(0)
    before = descriptors()
    for number in range(1, 6):
        once(number)
    wait_for(lambda: descriptors() <= before, "the connections to be closed")


def nowhere() -> ServiceAddress:
    with ServiceServer() as gone:
        return gone.address


def test_without_a_service_the_task_runs_on_and_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING), ServiceClient(nowhere(), "j", SPEC) as client:
        counters = client.counters(0, 0)
        wait_for(lambda: "progress of this task is not shown" in caplog.text, "the warning")
        counters.pushed(1, 1)
        counters.enter(Phase.DONE)
    assert caplog.text.count("is not shown") == 1


@pytest.mark.real_time
def test_a_service_that_never_answers_holds_the_end_for_two_seconds_at_most(
    silent_port: int,
) -> None:
    address = ServiceAddress("127.0.0.1", silent_port, "token")
    client = ServiceClient(address, "j", SPEC)
    client.counters(0, 0).enter(Phase.DONE)
    start = time.monotonic()
    client.close()
    assert time.monotonic() - start < 3.0


def test_a_wrong_token_is_a_warning_without_the_token(
    server: ServiceServer, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = ServiceAddress(server.address.host, server.address.port, "wrong-token-0123")
    with caplog.at_level(logging.DEBUG), ServiceClient(wrong, "j", SPEC) as client:
        client.counters(0, 0)
    assert "refused" in caplog.text
    assert "wrong-token-0123" not in caplog.text
    assert server.jobs.live() == []


def test_counters_that_were_lost_come_with_a_later_report() -> None:
    server = ServiceServer()
    address = server.start()
    again = ServiceServer(port=address.port, token=address.token)
    with ServiceClient(address, "j", SPEC) as client:
        counters = client.counters(0, 0)
        counters.pushed(10, 80)
        wait_for(lambda: len(server.jobs.live()) == 1, "the first report")
        server.stop()
        counters.pushed(10, 80)
        with again:
            wait_for(
                lambda: [each.status().rows for each in again.jobs.live()] == [20],
                "a report to the service that was started again",
            )


def test_in_a_forked_child_it_starts_anew(server: ServiceServer) -> None:
    """Each side of a fork reports through its own connection."""
    script = f"""
import os, sys, warnings
warnings.simplefilter("ignore")
from spark_channel.progress import JobSpec, Phase
from spark_channel.service import ServiceAddress, ServiceClient
address = ServiceAddress.from_json({server.address.to_json()!r})
client = ServiceClient(address, "forked", JobSpec("read"))
client.counters(0, 0).pushed(1, 8)
client.limiter()
child = os.fork()
if child == 0:
    client.close()
    with client:
        client.counters(1, 1).pushed(2, 16)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
client.close()
"""
    import subprocess

    done = subprocess.run(
        [sys.executable, "-c", script], timeout=30, check=False, capture_output=True
    )
    assert done.returncode == 0, done.stderr.decode()
    assert server.jobs.find("forked").report().rows == 3


def test_a_denied_control_call_says_why(server: ServiceServer) -> None:
    with (
        ServiceControl(server.address) as control,
        pytest.raises(ServiceDeniedError, match="job nope is unknown"),
    ):
        control.enter("nope", Phase.DONE)


@pytest.mark.real_time
def test_a_silent_service_is_given_up_in_time(silent_port: int) -> None:
    start = time.monotonic()
    address = ServiceAddress("127.0.0.1", silent_port, "token")
    with (
        ServiceControl(address, timeout=0.5) as control,
        pytest.raises(ServiceUnavailableError, match=r"0\.5 s"),
    ):
        control.hello()
    assert time.monotonic() - start < 2.0


def test_a_task_that_reaches_no_service_keeps_its_share_and_the_next_one_begins_with_it(
    silent_port: int,
) -> None:
    silent = ServiceAddress("127.0.0.1", silent_port, "token")
    spec = JobSpec("read", rows_per_second=1_000, static_tasks=4)
    took = []
    for _ in range(2):
        start = time.monotonic()
        with ServiceClient(silent, "j", spec, static=StaticShare(1_000, None, 4)) as client:
            limiter = client.limiter("group 0")
            assert limiter is not None
            first = limiter.pay(1, 0, lambda: None)
            wait_for(lambda first=first: first.remaining().seconds == 0.0, "the first row")  # type: ignore[misc] # mypy infers no lambda with a default
            took.append(time.monotonic() - start)
            begun = time.monotonic()
            rest = limiter.pay(100, 0, lambda: None)
            wait_for(lambda rest=rest: rest.remaining().seconds == 0.0, "a hundred rows")  # type: ignore[misc] # mypy infers no lambda with a default
            assert 0.35 <= time.monotonic() - begun <= 0.6, "250 rows/s, a quarter of the limit"
            assert client.is_static
    note_reached(silent)
    assert 3.5 <= took[0] <= 5.0
    assert took[1] <= 0.5


def test_a_shared_limit_has_no_share(silent_port: int, server: ServiceServer) -> None:
    """Jobs that know nothing of each other cannot split it."""
    silent = SharedLimitAddress(ServiceAddress("127.0.0.1", silent_port, "token"), "orders-db")
    client = ServiceClient(
        server.address,
        "j",
        JobSpec("read"),
        shared_limit=silent,
        timeout=0.5,
        static=StaticShare(10, None, 1),
    )
    with client:
        limiter = client.limiter("group 0")
        assert limiter is not None
        payment = limiter.pay(1, 0, lambda: None)
        with pytest.raises(ServiceUnavailableError, match="limits serve orders-db"):
            wait_for(lambda: payment.remaining().seconds == 0.0, "an error", 5.0)
        payment.cancel()
