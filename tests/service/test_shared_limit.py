"""A limit that several jobs share: found, spent, changed, killed and served again."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from spark_channel.channel import Limiter
from spark_channel.errors import OptionError, ServiceDeniedError, ServiceUnavailableError
from spark_channel.limits import Grant, Join, Joined, RetryLater
from spark_channel.progress import JobSpec
from spark_channel.service import (
    LimitControl,
    Probe,
    ServiceAddress,
    ServiceClient,
    ServiceServer,
    SharedLimit,
    SharedLimitAddress,
    find_shared_limit,
)
from spark_channel.service.connection import Connection
from spark_channel.service.discovery import ServiceDirectory, ServiceRecord
from spark_channel.service.limits import limit_scope
from spark_channel.service.shared_limit import limit_advert, spending_token
from tests.service.helpers import ROOT, serve_limit, wait_for


class Spender:
    """Pays single rows as fast as the limit lets it, in a thread, like a job with one task."""

    def __init__(self, server: ServiceServer, limit: SharedLimitAddress, job: str) -> None:
        self.times: list[float] = []
        self.error: Exception | None = None
        self._client = ServiceClient(server.address, job, JobSpec("read"), shared_limit=limit)
        self._changed = threading.Condition()
        self._stopped = False
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Spender":
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        self._thread.join(10)
        self._client.close()

    def wait_for(self, rows: int, seconds: float = 10.0) -> bool:
        with self._changed:
            return self._changed.wait_for(
                lambda: len(self.times) >= rows or self.error is not None, seconds
            )

    def _run(self) -> None:
        limiter = self._client.limiter("task 0")
        assert limiter is not None
        try:
            while self._pay(limiter):
                with self._changed:
                    self.times.append(time.monotonic())
                    self._changed.notify_all()
        except Exception as error:
            with self._changed:
                self.error = error
                self._changed.notify_all()

    def _pay(self, limiter: Limiter) -> bool:
        payment = limiter.pay(1, 0, self._wake)
        try:
            with self._changed:
                while not self._stopped:
                    wait = payment.remaining()
                    if wait.seconds == 0.0:
                        return True
                    self._changed.wait(wait.seconds)
                return False
        finally:
            payment.cancel()

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()


def test_jobs_of_this_host_find_it_by_name(server: ServiceServer) -> None:
    with SharedLimit("orders-db", rows_per_second="2k") as limit:
        found = find_shared_limit("orders-db")
        assert found.service.token == limit.token
        assert f"{found.service}/{found.name}" == limit.address
        with Spender(server, found, "job-a") as spender:
            assert spender.wait_for(200)
        assert limit.status().spent_rows >= 200


def test_others_take_its_address_and_token(
    server: ServiceServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with SharedLimit("orders-db", rows_per_second=2_000) as limit:
        with Spender(server, find_shared_limit(limit.address, limit.token), "job-a") as spender:
            assert spender.wait_for(100)
        variable = "SPARK_CHANNEL_SHARED_LIMIT_TOKEN_FILE"
        with pytest.raises(OptionError, match=f"token is missing: .*{variable}"):
            find_shared_limit(limit.address)
        file = tmp_path / "token"
        monkeypatch.setenv(variable, str(file))
        with pytest.raises(OptionError, match=f"{variable} names .*No such file"):
            find_shared_limit(limit.address)
        file.write_text(f"{limit.token}\n")
        with Spender(server, find_shared_limit(limit.address), "job-b") as spender:
            assert spender.wait_for(100)


@pytest.mark.real_time
def test_two_jobs_share_it_evenly(server: ServiceServer) -> None:
    with SharedLimit("orders-db", rows_per_second=1_000):
        limit = find_shared_limit("orders-db")
        with Spender(server, limit, "job-a") as a, Spender(server, limit, "job-b") as b:
            assert a.wait_for(800)
            assert b.wait_for(800)
            first, second = len(a.times), len(b.times)
    assert 0.6 <= first / second <= 1.7
    together = sorted([*a.times, *b.times])
    seconds = together[-1] - together[0]
    assert len(together) <= 1_000 * seconds * 1.05 + 100


@pytest.mark.real_time
def test_a_job_that_ends_gives_its_share_back(server: ServiceServer) -> None:
    with SharedLimit("orders-db", rows_per_second=1_000):
        limit = find_shared_limit("orders-db")
        with Spender(server, limit, "job-a") as a:
            with Spender(server, limit, "job-b") as b:
                assert b.wait_for(300)
            alone = len(a.times)
            since = time.monotonic()
            assert a.wait_for(alone + 1_500)
            # at half the speed these rows would take 3 s
            assert time.monotonic() - since < 2.6


@pytest.mark.real_time
@pytest.mark.parametrize("change", ["pause", "set"])
def test_a_change_acts_while_jobs_run(server: ServiceServer, change: str) -> None:
    with (
        SharedLimit("orders-db", rows_per_second=1_000) as limit,
        Spender(server, find_shared_limit("orders-db"), "job-a") as spender,
    ):
        assert spender.wait_for(100)
        control = LimitControl()
        if change == "pause":
            assert control.pause("orders-db").paused
        else:
            assert control.set("orders-db", 1, None).rows_per_second == 1
        changed = time.monotonic()
        spender.wait_for(10_000, 2.0)
        late = [at for at in spender.times if at > changed + 1.0]
        assert len(late) <= 3
        limit.resume()
        limit.set(rows_per_second=5_000)
        assert spender.wait_for(len(spender.times) + 500)


def test_the_progress_of_a_job_shows_it_and_its_changes(server: ServiceServer) -> None:
    with SharedLimit("orders-db", rows_per_second=1_000) as limit:
        found = find_shared_limit("orders-db")
        with ExitStack() as stack:
            for task in (0, 1):
                client = ServiceClient(server.address, "job-a", JobSpec("read"), shared_limit=found)
                stack.enter_context(client).counters(task, task)
            wait_for(lambda: bool(server.jobs.live()), "the job is heard of")
            progress = server.jobs.find("job-a")
            wait_for(lambda: progress.status().spec.rows_per_second == 1_000, "the limit is shown")
            limit.set(rows_per_second=500)
            wait_for(lambda: progress.status().spec.rows_per_second == 500, "the change is shown")
            limit.pause()
            wait_for(lambda: progress.status().note == "paused", "the pause is shown")
            limit.resume()
            wait_for(lambda: progress.status().note == "", "the end of the pause is shown")
        report = progress.report()
    assert [(each.rows_per_second, each.note) for each in report.changes] == [
        (1_000, ""),
        (500, ""),
        (500, "paused"),
        (500, ""),
    ]


def test_what_no_limit_can_be_is_refused(server: ServiceServer) -> None:
    spec = JobSpec("read").to_json()
    body = {"job": "job-a", "client": "c", "snapshots": [], "spec": spec}
    good = {"rows_per_second": 1_000, "bytes_per_second": None, "note": ""}
    with Connection(server.address) as connection:
        connection.call("report", {**body, "shared_limit": good})
        assert server.jobs.find("job-a").status().spec.rows_per_second == 1_000
        for bad in (
            {"rows_per_second": 0},
            {"bytes_per_second": "7"},
            {"note": None},
            {"surprise": 1},
        ):
            with pytest.raises(ServiceDeniedError):
                connection.call("report", {**body, "shared_limit": {**good, **bad}})
        with pytest.raises(ServiceDeniedError):
            connection.call("report", {**body, "shared_limit": [1]})


def test_a_spending_token_changes_nothing_and_opens_no_other_limit(server: ServiceServer) -> None:
    with (
        SharedLimit("orders-db", rows_per_second=1_000),
        SharedLimit("other", rows_per_second=1_000),
    ):
        orders, other = find_shared_limit("orders-db"), find_shared_limit("other")
        stolen = SharedLimitAddress(orders.service, "other")
        assert orders.service.token != other.service.token
        with Spender(server, stolen, "thief") as spender:
            assert spender.wait_for(1)
        assert isinstance(spender.error, ServiceDeniedError)
        assert orders.service.token not in str(spender.error)


def test_what_is_not_served_is_an_error_that_says_what_is(server: ServiceServer) -> None:
    with pytest.raises(OptionError, match="none is served here"):
        find_shared_limit("orders-db")
    with (
        SharedLimit("orders-db", rows_per_second=1),
        pytest.raises(OptionError, match="served here: orders-db"),
    ):
        find_shared_limit("ordersdb")
    with pytest.raises(OptionError, match="none is served here"):
        find_shared_limit("orders-db")
    with pytest.raises(OptionError, match="letters, digits"):
        find_shared_limit("../orders")


def test_a_name_is_served_once() -> None:
    with (
        SharedLimit("orders-db", rows_per_second=1),
        pytest.raises(OptionError, match="served on this host already"),
    ):
        SharedLimit("orders-db", rows_per_second=1).start()


@pytest.mark.parametrize("speed", [None, 0, -1, "fast", 2**63])
def test_a_speed_that_makes_no_sense_is_refused(speed: int | str | None) -> None:
    with pytest.raises(OptionError):
        SharedLimit("orders-db", rows_per_second=speed)


def test_a_stopped_limit_has_no_address() -> None:
    with pytest.raises(ServiceUnavailableError, match="not served"):
        _ = SharedLimit("orders-db", rows_per_second=1).address


def test_a_limit_is_known_before_anyone_can_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs of one that was killed call the next one in the moment in which it listens."""
    known: list[tuple[str | None, list[str]]] = []
    start = ServiceServer.start

    def watched(server: ServiceServer) -> ServiceAddress:
        scope = server.tokens.scope_of(f"Bearer {spending_token(server.token, 'orders-db')}")
        known.append((scope, list(server.limits.book.names())))
        return start(server)

    monkeypatch.setattr(ServiceServer, "start", watched)
    with SharedLimit("orders-db", rows_per_second=1):
        pass
    assert known == [(limit_scope("orders-db"), ["orders-db"])]


def test_control_lists_limits_and_names_those_there_are(server: ServiceServer) -> None:
    with SharedLimit("a", rows_per_second=1), SharedLimit("b", bytes_per_second="1MB"):
        assert [kept.name for kept in LimitControl().all()] == ["a", "b"]
        with pytest.raises(OptionError, match="running are: a, b"):
            LimitControl().show("c")


def test_a_probe_lowers_the_limit_and_lets_it_recover() -> None:
    lag = [10.0]
    pressed = threading.Event()
    recovered = threading.Event()
    broken = threading.Event()

    def measure() -> float:
        if lag[0] < 0:
            raise ConnectionError("postgresql://user:secret@db")
        return lag[0]

    probe = Probe(
        measure,
        threshold=5.0,
        seconds=0.01,
        what="replication lag",
    )
    with SharedLimit("orders-db", rows_per_second=1_000, probe=probe) as limit:

        def until(event: threading.Event, word: str) -> str:
            for _ in range(500):
                status = limit.status()
                if word in (status.pressure or "open"):
                    event.set()
                    return status.pressure
                time.sleep(0.01)
            raise AssertionError(f"never {word}: {limit.status().pressure}")

        assert "replication lag 10" in until(pressed, "pressed")
        assert (limit.status().effective_rows_per_second or 0) < 1_000
        lag[0] = 0.0
        until(recovered, "open")
        lag[0] = -1.0
        text = until(broken, "unreachable")
        assert "ConnectionError" in text
        assert "secret" not in text
        assert limit.status().effective_rows_per_second == 1_000, (
            "an unreachable probe holds the speed"
        )


def test_a_killed_server_comes_back_and_its_jobs_go_on(
    server: ServiceServer, serve: list[subprocess.Popen[str]]
) -> None:
    address = serve_limit(serve, "--rows-per-second", "500")
    with Spender(server, find_shared_limit("orders-db"), "job-a") as spender:
        assert spender.wait_for(100)
        serve[0].send_signal(signal.SIGKILL)
        serve[0].wait()
        assert serve_limit(serve, "--rows-per-second", "500") == address
        assert spender.wait_for(len(spender.times) + 500, 15)
        assert spender.error is None
    seconds = spender.times[-1] - spender.times[0]
    assert len(spender.times) <= 500 * seconds * 1.02 + 60, "the limit holds across the gap"


def test_a_server_that_stays_away_stops_the_work(
    server: ServiceServer, serve: list[subprocess.Popen[str]]
) -> None:
    serve_limit(serve, "--rows-per-second", "100")
    limit = find_shared_limit("orders-db")
    with Spender(server, limit, "job-a") as spender:
        assert spender.wait_for(20)
        serve[0].send_signal(signal.SIGKILL)
        serve[0].wait()
        assert spender.wait_for(10**9, 20)
        assert isinstance(spender.error, ServiceUnavailableError)
        assert limit.service.token not in str(spender.error)
        assert "start it again (`spark-channel limits serve orders-db`" in str(spender.error)
        assert "rowsPerSecondPerTask" not in str(spender.error)


def test_a_served_limit_ends_cleanly(serve: list[subprocess.Popen[str]], tmp_path: Path) -> None:
    token_file = tmp_path / "token"
    serve_limit(serve, "--rows-per-second", "100", "--token-file", str(token_file))
    limit = find_shared_limit("orders-db")
    assert serve[0].stdout is not None
    assert "sharedLimitToken=${file:" in serve[0].stdout.readline()
    assert token_file.read_text() == limit.service.token
    assert token_file.stat().st_mode & 0o777 == 0o600
    command_line = Path(f"/proc/{serve[0].pid}/cmdline").read_text()
    assert limit.service.token not in command_line
    serve[0].send_signal(signal.SIGTERM)
    assert serve[0].wait(10) == 0
    assert "served no more" in serve[0].stdout.read()
    with pytest.raises(OptionError, match="none is served here"):
        find_shared_limit("orders-db")


@pytest.mark.real_time
def test_a_successor_waits_for_as_long_as_the_longest_grant_of_its_predecessor() -> None:
    with SharedLimit("slow", rows_per_second=1_000_000) as limit:
        file = limit_advert("slow")
        before = ServiceDirectory().read(file)
        assert before is not None
        assert before.grant_seconds == 1.0
        grants = [0.0]

        def join() -> float:
            joined = limit._serving().limits.handle(Join("slow", "job"))
            assert isinstance(joined, Joined)
            if isinstance(joined.answer, Grant):
                grants.append(joined.answer.lasts)
            return max(grants)

        for _ in range(1_000):
            join()
        wait_for(lambda: join() > 1.0, "the first grants, of a few clients, to end")
        longest = max(grants)
        after = ServiceDirectory().read(file)
        assert after is not None
        assert after.nonce == before.nonce
        assert after.grant_seconds >= longest
        dead = replace(after, service_started="another boot")
        ServiceDirectory().publish(file, dead, replace=after.nonce)
        assert limit._held is not None
        os.close(limit._held)  # as the system does with the lock of a process that has ended
        limit._held = None
        with SharedLimit("slow", rows_per_second=1_000_000) as successor:
            answer = successor._serving().limits.handle(Join("slow", "job"))
            assert isinstance(answer, Joined)
            assert isinstance(answer.answer, RetryLater)
            assert answer.answer.reason == "restart"
            assert answer.answer.retry_in > longest - 1.0
            later = ServiceDirectory().read(file)
            assert later is not None
            assert later.grant_seconds == after.grant_seconds


def test_an_advert_of_a_container_that_is_gone_does_not_hold_the_name() -> None:
    """A restarted container has the files of the one before, another pid namespace, and pids that mean nothing."""
    with SharedLimit("orders-db", rows_per_second=7) as limit:
        place, file = ServiceDirectory(), limit_advert("orders-db")
        advert = place.read(file)
        assert advert is not None
        port = int(limit.address.partition(":")[2].partition("/")[0])
        gone = replace(advert, namespace="1")
        place.publish(file, gone, replace=advert.nonce)
        with pytest.raises(OptionError, match="served on this host already"):
            # Its process lives, and has the lock.
            SharedLimit("orders-db", rows_per_second=7).start()
    place.publish(file, gone)
    with SharedLimit("orders-db", rows_per_second=7) as again:
        assert again.address.endswith(f":{port}/orders-db"), "jobs find it where it was"
        assert again.token == limit_token(gone)
    assert not list(place.directory.iterdir())


def limit_token(advert: ServiceRecord) -> str:
    return spending_token(advert.address.token, "orders-db")


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("unshare") is None, reason="root makes pid namespaces"
)
def test_a_container_that_is_started_again_with_its_tmp_serves_again() -> None:
    program = [
        "unshare",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
        sys.executable,
        "-m",
        "spark_channel.cli",
        "limits",
        "serve",
        "orders-db",
        "--rows-per-second",
        "5",
    ]
    said = []
    for _ in range(2):
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        process = subprocess.Popen(
            program, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment
        )
        assert process.stdout is not None
        try:
            said.append(process.stdout.readline())
            if len(said) == 1:
                assert "already" in refused_by(program, environment), (
                    "while it is served, another container is refused"
                )
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
    assert all("orders-db" in line for line in said), said
    assert said[0] == said[1], "the same port: jobs that spend it go on"


def refused_by(program: list[str], environment: dict[str, str]) -> str:
    done = subprocess.run(
        program, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=60, check=False
    )
    assert done.returncode != 0
    return done.stdout + done.stderr


def test_a_token_with_many_jobs_leaves_the_others_a_share(server: ServiceServer) -> None:
    """5 000 made-up jobs left an honest one 66 of 10 000 rows/s."""
    with SharedLimit("orders-db", rows_per_second=10_000, max_jobs=4) as limit:
        found = find_shared_limit("orders-db")
        with Spender(server, found, "honest") as honest:
            assert honest.wait_for(10)
            refused = 0
            for number in range(5_000):
                request = Join("orders-db", f"invented {number}")
                try:
                    limit._serving().limits.handle(request, limit_scope("orders-db"))
                except ServiceDeniedError as error:
                    refused += "max_jobs" in str(error)
            assert refused == 5_000 - 3
            assert limit.status().jobs == 4
            assert honest.wait_for(len(honest.times) + 500)


def test_a_served_limit_has_as_many_jobs_as_it_is_told(
    server: ServiceServer, serve: list[subprocess.Popen[str]]
) -> None:
    """limits serve with one job: the second is refused, and the first goes on."""
    serve_limit(serve, "--rows-per-second", "5k", "--max-jobs", "1")
    found = find_shared_limit("orders-db")
    with Spender(server, found, "first") as first:
        assert first.wait_for(10)
        with Spender(server, found, "second") as second:
            assert second.wait_for(1)
            assert "max_jobs" in str(second.error)
        assert first.wait_for(len(first.times) + 100)


def test_jobs_of_no_number_are_refused() -> None:
    with pytest.raises(OptionError, match="max_jobs"):
        SharedLimit("orders-db", rows_per_second=1, max_jobs=0)
