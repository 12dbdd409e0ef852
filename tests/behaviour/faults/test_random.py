"""Transfers on PostgreSQL while all that takes part is killed, ended, restarted or fails, at random.

A transfer that fails is run again with its pair, as a scheduler does. When it has ended, each row of the source is in
the target once, whatever happened how often; the run that takes over removes what a killed driver staged.
"""

import os
import random
import signal
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import SparkSession

import spark_channel
from tests.behaviour.faults.test_database_faults import die_after_the_next_receipt
from tests.servers.postgres import PostgresServer
from tests.servers.sockets import process_at
from tests.spark.places import Place, postgres_place
from tests.spark.remote_driver import DriverError, RemoteDriver

pytestmark = [
    pytest.mark.spark,
    pytest.mark.newest,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc"),
]

ROWS = 20_000
SPEED = 10_000
MOST_RUNS = 20
MOST_FAULTS = 5
"""In one version, so that it has a chance to end."""
_CLIENTS = (
    "application_name LIKE 'spark-channel read%' OR application_name LIKE 'spark-channel write%'"
)


class Unlucky:
    """A step on the way: one task meets what `arm` has laid into `folder`, and says so there."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def arm(self, fault: str) -> Path:
        """The file that appears when the fault has happened."""
        met = self._folder / f"{fault}-met"
        met.unlink(missing_ok=True)
        (self._folder / fault).touch()
        return met

    def disarm(self) -> None:
        for path in self._folder.iterdir():
            path.unlink(missing_ok=True)

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        task = TaskContext.get()
        if task is None or batch.num_rows == 0:
            return batch
        if self._takes("dies"):
            die_after_the_next_receipt(self._folder / "dies-met")
        again = f"again-{task.partitionId()}"
        if self._takes("fails"):
            (self._folder / again).touch()
            raise RuntimeError("it fails")
        if task.attemptNumber() and self._takes(again):
            (self._folder / "fails-met").touch()
            raise RuntimeError("it fails again")
        return batch

    def _takes(self, fault: str) -> bool:
        try:
            (self._folder / fault).unlink()
        except FileNotFoundError:
            return False
        return True


class Driver:
    """A driver that is there again when it was killed."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self.remote = self._stack.enter_context(RemoteDriver("local[2,8]"))
        self.killed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._stack.close()

    def kill(self) -> None:
        self.killed = True
        self.remote.kill()

    def submit(self, function: Callable[..., Any], *arguments: object) -> "Future[Any]":
        if self.killed:
            self._stack.close()
            self.remote = self._stack.enter_context(RemoteDriver("local[2,8]"))
            self.killed = False
        return self.remote.submit(function, *arguments)


class Storm:
    """What goes wrong; each returns whether there was something that could."""

    def __init__(
        self,
        server: PostgresServer,
        driver: Driver,
        unlucky: Unlucky,
        chance: random.Random,
        *,
        drivers_die: bool,
    ) -> None:
        self._server, self._driver, self._unlucky, self._chance = server, driver, unlucky, chance
        self.copying: Future[Any] = Future()
        self.kinds: list[Callable[[], bool]] = [
            self.worker_killed,
            self.session_ended,
            self.all_sessions_ended,
            self.restarted,
            self.crashed,
            self.worker_killed_after_its_receipt,
            self.task_fails_twice,
            *([self.driver_killed] if drivers_die else ()),
        ]
        self.happened: dict[str, int] = {}

    @property
    def count(self) -> int:
        return sum(self.happened.values())

    def strike(self, kind: Callable[[], bool]) -> bool:
        struck = kind()
        if struck:
            name = kind.__name__
            self.happened[name] = self.happened.get(name, 0) + 1
        return struck

    def worker_killed(self) -> bool:
        port = self._one("client_port")
        process = None if port is None else process_at(port, self._server.port)
        if process is None:
            return False
        try:
            os.kill(process, signal.SIGKILL)
        except ProcessLookupError:
            return False
        return True

    def session_ended(self) -> bool:
        backend = self._one("pid")
        return (
            backend is not None
            and self._server.psql(f"SELECT pg_terminate_backend({backend})") == "t"
        )

    def all_sessions_ended(self) -> bool:
        ended = self._server.psql(
            f"SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE {_CLIENTS}"
        )
        return int(ended) > 0

    def restarted(self) -> bool:
        self._server.restart(how="fast")
        return True

    def crashed(self) -> bool:
        self._server.restart(how="immediate")
        return True

    def worker_killed_after_its_receipt(self) -> bool:
        return waited_for(self.copying, self._unlucky.arm("dies").exists, 300)

    def task_fails_twice(self) -> bool:
        return waited_for(self.copying, self._unlucky.arm("fails").exists, 300)

    def driver_killed(self) -> bool:
        self._driver.kill()
        return True

    def busy(self) -> bool:
        return self._one("pid") is not None

    def _one(self, column: str) -> int | None:
        found = self._server.rows(f"SELECT {column} FROM pg_stat_activity WHERE {_CLIENTS}")
        return int(self._chance.choice(found)[0]) if found else None


def copy(
    spark: SparkSession, writer: dict[str, Any], commit: str, version: int, unlucky: Unlucky
) -> int:
    pair = {
        "txnAppId": "storm",
        "txnVersion": str(version),
        "batchSize": "1000",
        "retryTimeout": "30",
    }
    return spark_channel.transfer(
        spark,
        {**writer, "dbtable": "s", "fetchsize": "500"},
        {**writer, "dbtable": "t", **pair},
        transformers=[unlucky],
        channels=2,
        rows_per_second=SPEED,
        commit=commit,
    ).rows


def waited_for(copying: "Future[Any]", happened: Callable[[], bool], seconds: float) -> bool:
    """Whether it happened before the copy ended; other processes cannot notify a test."""
    end = time.monotonic() + seconds
    while not copying.done():
        if happened():
            return True
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)
    return False


def weather(
    faults: int, seed: int, seconds: float, folder: Path, *, drivers_die: bool = True
) -> dict[str, int]:
    """Transfer again and again until `faults` have happened, or the time is over; returns how many of each kind."""
    chance, unlucky = random.Random(seed), Unlucky(folder)
    end = time.monotonic() + seconds
    server = PostgresServer.create(fsync="on")  # what is committed survives a crash
    try:
        with Driver() as driver, postgres_place(server) as place:
            numbers = f"generate_series(0, {ROWS - 1})"
            place.run(
                f"CREATE TABLE s AS SELECT g::bigint AS id, 'row ' || g AS v FROM {numbers} g; "
                "ALTER TABLE s ADD PRIMARY KEY (id); CREATE TABLE t (id bigint, v text)"
            )
            storm = Storm(server, driver, unlucky, chance, drivers_die=drivers_die)
            kinds: list[Callable[[], bool]] = []
            version = 0
            while storm.count < faults and time.monotonic() < end:
                version += 1
                most = min(faults, storm.count + MOST_FAULTS)
                commit = "job" if version % 2 else "task"
                for _ in range(MOST_RUNS):
                    storm.copying = driver.submit(copy, place.writer, commit, version, unlucky)
                    while storm.count < most and waited_for(storm.copying, storm.busy, 300):
                        time.sleep(chance.uniform(0, 1))
                        kinds = kinds or chance.sample(storm.kinds, len(storm.kinds))
                        if storm.strike(kinds[-1]):
                            kinds.pop()
                    unlucky.disarm()
                    try:
                        storm.copying.result(300)
                        break
                    except DriverError as error:
                        print(f"run again: {str(error).splitlines()[-1][:200]}", flush=True)
                else:
                    raise AssertionError(f"{commit} did not arrive in {MOST_RUNS} runs")
                expect_once(place, f"{commit}, version {version}, {storm.happened}, seed {seed}")
                print(f"{storm.count} faults, {version} versions", flush=True)
            version += 1
            driver.submit(copy, place.writer, "job", version, unlucky).result(300)
            expect_once(place, f"calm, {storm.happened}, seed {seed}")
        return storm.happened
    finally:
        server.close()


def expect_once(place: Place, context: str) -> None:
    """Each row once, and nothing staged: the run that took over removed what a killed driver had staged."""
    assert place.held() == [ROWS, ROWS, ROWS * (ROWS - 1) // 2], context
    assert place.staged() == [], context
    place.run("TRUNCATE t")


@pytest.mark.timeout(600)
def test_each_fault_once(tmp_path: Path) -> None:
    """But for a killed driver, whose successor takes long to start; `test_transfer_goes_on` has one."""
    happened = weather(7, seed=1, seconds=400, folder=tmp_path, drivers_die=False)
    assert happened == dict.fromkeys(happened, 1)
    assert len(happened) == 7


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_two_hundred_faults(tmp_path: Path) -> None:
    seconds = float(os.environ.get("SOAK_SECONDS", "7000"))
    happened = weather(200, seed=random.randrange(1 << 30), seconds=seconds, folder=tmp_path)
    print(happened)
    assert sum(happened.values()) == 200 or seconds < 7000
