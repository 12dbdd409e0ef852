"""A copy by Spark while things are killed, cut off and changed; the result is checked afterwards.

Each file of tests/scenarios/faults is a copy under a limit, what happens to it and when, and bands for the
rows per 100 ms that left the source and that reached the target.
"""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from pyspark.sql import SparkSession

import spark_channel
from spark_channel.service import LimitControl, SharedLimit
from spark_channel.service.discovery import ServiceDirectory, advert_name
from tests.spark.relay import Relay
from tests.spark.remote_driver import DriverError, RemoteDriver
from tests.spark.served_limit import ServedLimit
from tests.spark.timeline import Record, Timeline

pytestmark = [
    pytest.mark.spark,
    pytest.mark.newest,
    pytest.mark.real_time,
    pytest.mark.skipif(
        not sys.platform.startswith("linux"), reason="stops and kills processes by their pid"
    ),
]

SCENARIOS = sorted((Path(__file__).parents[2] / "scenarios" / "faults").glob("*.yaml"))
CHANNELS = 2


@pytest.fixture(scope="module")
def driver() -> Iterator[RemoteDriver]:
    conf = {
        "spark.sql.execution.arrow.maxRecordsPerBatch": "20"
    }  # rows reach the target as they come
    with RemoteDriver("local[2,2]", conf) as running:
        yield running


def jvm(spark: SparkSession) -> int:
    context: Any = spark.sparkContext
    return int(context._jvm.java.lang.ProcessHandle.current().pid())


def copy(spark: SparkSession, folder: str, options: dict[str, str]) -> None:
    read = spark.read.format("channel").options(
        reader="recorder", log=f"{folder}/source", channels=str(CHANNELS), **options
    )
    write = read.load().write.format("channel").options(writer="recorder", log=f"{folder}/target")
    write.mode("append").save()


def eventually(what: Callable[[], Any], seconds: float) -> Any:
    """What `what` gives once it is true; other processes cannot notify a test."""
    end = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)
    return found


class Scenario:
    """One file, run."""

    def __init__(self, path: Path, driver: RemoteDriver, folder: Path) -> None:
        self.spec: dict[str, Any] = yaml.safe_load(path.read_text())
        self.rate: int = self.spec["rows_per_second"]
        self.driver, self.folder = driver, folder
        self.events: list[float] = []
        self.zero = 0.0
        self.service: ServedLimit | None = None
        self.relay: Relay | None = None
        options = {"rows": str(self.rate * self.spec["seconds"])}
        if self.spec["limit"] == "served":
            name = f"faults-{os.getpid()}"
            self.service = ServedLimit(name, self.rate)
            options["sharedLimit"] = name
        elif self.spec["limit"] == "relayed":
            self.service = ServedLimit(f"far-{os.getpid()}", self.rate, folder / "token")
            host, port = self.service.address.partition("/")[0].split(":")
            self.relay = Relay((host, int(port)))
            options["sharedLimit"] = f"127.0.0.1:{self.relay.port}/{self.service.name}"
            options["sharedLimitToken"] = f"${{file:{folder / 'token'}}}"
        else:
            options["rowsPerSecond"] = str(self.rate)
        if fallback := self.spec.get("fallback"):
            options["limitFallback"] = fallback
        self.options = options

    def run(self) -> tuple[Record, str]:
        """The record, and how the copy ended."""
        copying = self.driver.submit(copy, str(self.folder), self.options)
        log = self.folder / "source"
        eventually(lambda: copying.done() or (log.exists() and log.stat().st_size), 90)
        zero = self.zero = float(log.read_text().split()[0])
        for event in self.spec["events"]:
            time.sleep(max(0.0, zero + event["at"] - time.monotonic()))
            happened = partial(getattr(self, event["do"]), event)()
            self.events.append((happened or time.monotonic()) - zero)
        ended = "done"
        try:
            copying.result(90)
        except DriverError as error:
            ended = str(error)
        source, target = (Timeline(self.folder / name, zero=zero) for name in ("source", "target"))
        return Record(source, target, self.events, self.rate), ended

    def close(self) -> None:
        if self.relay is not None:
            self.relay.end()
        if self.service is not None:
            self.service.end()

    # --- what happens

    def kill_worker(self, _event: dict[str, Any]) -> None:
        _, pid, _ = (self.folder / "source").read_text().splitlines()[-1].split()
        os.kill(int(pid), signal.SIGKILL)

    def kill_service(self, _event: dict[str, Any]) -> None:
        self._served.end(signal.SIGKILL)

    def start_service(self, _event: dict[str, Any]) -> None:
        self._served.start()

    def stop_service(self, _event: dict[str, Any]) -> None:
        os.kill(self._served.process.pid, signal.SIGSTOP)

    def continue_service(self, _event: dict[str, Any]) -> None:
        os.kill(self._served.process.pid, signal.SIGCONT)

    def cut_network(self, _event: dict[str, Any]) -> None:
        assert self.relay is not None
        self.relay.cut()

    def mend_network(self, _event: dict[str, Any]) -> None:
        assert self.relay is not None
        self.relay.mend()

    def kill_own_service(self, _event: dict[str, Any]) -> None:
        advert = ServiceDirectory().read(advert_name(self.driver.run(jvm)))
        assert advert is not None
        assert advert.service_pid not in (os.getpid(), advert.watch_pid)
        os.kill(advert.service_pid, signal.SIGKILL)

    def set(self, event: dict[str, Any]) -> float:
        LimitControl().set(self._served.name, event["rows_per_second"], None)
        return time.monotonic()

    def pause(self, _event: dict[str, Any]) -> None:
        LimitControl().pause(self._served.name)

    def resume(self, _event: dict[str, Any]) -> None:
        LimitControl().resume(self._served.name)

    @property
    def _served(self) -> ServedLimit:
        assert self.service is not None
        return self.service


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_it_stays_inside_its_bands(path: Path, driver: RemoteDriver, tmp_path: Path) -> None:
    judge(path, driver, tmp_path)


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_it_stays_inside_them_twenty_times(
    path: Path, driver: RemoteDriver, tmp_path: Path
) -> None:
    for number in range(20):
        folder = tmp_path / str(number)
        folder.mkdir()
        judge(path, driver, folder)


def judge(path: Path, driver: RemoteDriver, tmp_path: Path) -> None:
    """Run the scenario and hold it against its bands."""
    scenario = Scenario(path, driver, tmp_path)
    try:
        record, ended = scenario.run()
        seconds = time.monotonic() - scenario.zero - record.events[-1]
    finally:
        scenario.close()
    for name, timeline in (("source", record.source), ("target", record.target)):
        print(name, *timeline.bins(timeline.times[-1] + 0.1))
    print("events", *(f"{at:.2f}" for at in record.events), ended[-300:])
    missed = []
    for band in scenario.spec["expect"]:
        value = record.measure(band)
        low, high = (
            band.get("min", float("-inf")),
            band.get("max", band.get("within", float("inf"))),
        )
        print(f"{band}: {value:.4g}")
        if not low <= value <= high:
            missed.append(f"{band} is {value:.4g}")
    assert not missed, "\n".join(missed)
    assert scenario.spec["outcome"] in ended
    if ended == "done":
        assert int((tmp_path / "target.published").read_text()) == int(scenario.options["rows"])
    assert seconds < scenario.spec.get("within", 60)
    if scenario.spec.get("then_the_next_works"):
        again = tmp_path / "again"
        again.mkdir()
        driver.run(copy, str(again), {"rows": "1000", "rowsPerSecond": str(scenario.rate)})
        assert int((again / "target.published").read_text()) == 1000


def test_there_are_scenarios() -> None:
    assert len(SCENARIOS) >= 6


def read_marks(spark: SparkSession, folder: str, options: dict[str, str]) -> int:
    """Rows of a read whose splits load two hosts in turn."""
    df = spark.read.format("channel").options(
        reader="recorder", log=f"{folder}/source", channels="2", marks="db1,db2", **options
    )
    return int(df.load().count())


def transfer_marks(spark: SparkSession, folder: str, options: dict[str, str]) -> int:
    """The same by a transfer."""
    reader = {"name": "recorder", "log": f"{folder}/source", "marks": "db1,db2", **options}
    return spark_channel.transfer(spark, reader=reader, writer={"name": "discard"}, channels=2).rows


def marks_in_use() -> set[str]:
    return {kept.name.rpartition("@")[2] for kept in LimitControl().all() if "@" in kept.name}


@pytest.mark.parametrize(
    ("limit", "moved"),
    [
        ("own", transfer_marks),
        ("shared", read_marks),
        pytest.param("own", read_marks, marks=pytest.mark.soak),
        pytest.param("shared", transfer_marks, marks=pytest.mark.soak),
    ],
)
def test_a_limit_per_mark_holds_for_each_host(
    driver: RemoteDriver, tmp_path: Path, limit: str, moved: Callable[..., int]
) -> None:
    options = {"rows": "8000", "limitPerMark": "true"}
    with SharedLimit("faults-marks", rows_per_second=2_000, per_mark=True):
        options |= {"rowsPerSecond": "2000"} if limit == "own" else {"sharedLimit": "faults-marks"}
        reading = driver.submit(moved, str(tmp_path), options)
        eventually(lambda: reading.done() or marks_in_use() == {"db1", "db2"}, 120)
        assert not reading.done() or reading.result(0) is None, (
            "each host has its own limit meanwhile"
        )
        assert reading.result(120) == 8_000
    for host in ("db1", "db2"):
        timeline = Timeline(tmp_path / f"source.{host}")
        assert timeline.sums[-1] == 4_000
        for window in (0.5, 1.0, 2.0):
            assert timeline.worst(window) <= 2_000 * (window + 1.5)
