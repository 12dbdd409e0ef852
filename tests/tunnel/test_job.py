"""A consumer of a tunnel is one job on the page, in the metrics and in the lineage, at next to no cost."""

import json
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from spark_channel.connectors.base.feed import FeedLag
from spark_channel.errors import ChannelError, SourceError
from spark_channel.limits import Pause, Resume, SetRates
from spark_channel.observers.metrics import prometheus_text
from spark_channel.progress import JobProgress
from spark_channel.service import ServiceServer, running
from spark_channel.service.limits import job_limit
from spark_channel.tunnel import Delivery, Tunnel, job, positions
from spark_channel.tunnel.worker import TunnelWorker
from tests.observers.conftest import receiver

__all__ = ["receiver"]


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection, connection:
        connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT)")
        connection.executemany("INSERT INTO orders VALUES (?, 'tea')", [(n,) for n in range(1000)])
    return tmp_path / "shop.db"


@pytest.fixture(autouse=True)
def runtime_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(running, "_running", [])  # without that of a Spark session
    monkeypatch.setattr(job, "_REPORT_SECONDS", 0.01)
    monkeypatch.setattr(job, "_LOOK_SECONDS", 0.01)
    for name in [name for name in os.environ if name.startswith(("OPENLINEAGE", "OTEL_"))]:
        monkeypatch.delenv(name)


@pytest.fixture
def served() -> Iterator[ServiceServer]:
    with ServiceServer() as server:
        yield server


def tunnel_of(shop: Path, **options: str) -> Tunnel:
    given = {"path": str(shop), "dbtable": "orders", "cursorColumn": "id", **options}
    made = Tunnel("orders", given, store=str(shop.parent / "tunnels.db"))
    made.create(channels=2)
    return made


class Jobs:
    """A `JobListener`: the jobs in order, and an event for the first."""

    def __init__(self, server: ServiceServer) -> None:
        self.all: list[JobProgress] = []
        self.opened, self.closed = threading.Event(), threading.Event()
        server.jobs.subscribe(self)

    def job_opened(self, progress: JobProgress) -> None:
        self.all.append(progress)
        self.opened.set()

    def job_closed(self, progress: JobProgress) -> None:
        self.closed.set()


def take(delivery: Delivery) -> None:
    for _ in delivery.batches:
        pass


def values(server: ServiceServer) -> dict[str, float]:
    """The metrics with the tunnel's name."""
    lines = prometheus_text(server.metrics.families()).decode().splitlines()
    found = (line.rpartition(" ") for line in lines if 'name="orders",kind="stream"' in line)
    return {
        name.replace('name="orders",kind="stream"', ""): float(value) for name, _, value in found
    }


def test_a_consumer_is_one_job_with_rows_waits_and_limit(shop: Path, served: ServiceServer) -> None:
    jobs = Jobs(served)
    tunnel_of(shop, rowsPerSecond="10000").consume(take, drained=True)
    (progress,) = jobs.all
    status = progress.status()
    assert (status.phase, status.spec.kind, status.spec.name) == ("done", "stream", "orders")
    assert (status.rows, status.rows_moved) == (1000, 1000)
    assert status.bytes == status.bytes_moved > 0
    assert status.spec.rows_per_second == 10_000
    assert {"source", "target", "limit:rows"} <= set(status.waits)
    assert status.spec.lag == {}, "a lag of some time ago would be wrong now"
    assert [column.name for column in status.spec.source_columns][:2] == ["id", "item"]
    (shown,) = served.view.watch(None, 0.0)["jobs"]
    assert (shown["name"], shown["rows"], shown["phase"]) == ("orders", 1000, "done")
    assert values(served)['spark_channel_rows_total{,side="target"}'] == 1000


def test_its_limit_is_paused_changed_and_resumed_from_the_page(
    shop: Path, served: ServiceServer
) -> None:
    jobs, rows, arrived = Jobs(served), [0], threading.Event()
    tunnel = tunnel_of(shop, rowsPerSecond="1")

    def process(delivery: Delivery) -> None:
        for batch in delivery.batches:
            rows[0] += batch.num_rows
            arrived.set()

    thread = threading.Thread(target=lambda: tunnel.consume(process, drained=True))
    thread.start()
    try:
        assert jobs.opened.wait(30)
        assert arrived.wait(30)
        limit = job_limit(jobs.all[0].job)
        served.view.change(Pause(limit))
        assert jobs.all[0].status().note == "paused"
        served.view.change(Resume(limit))
        served.view.change(SetRates(limit, 1_000_000, None))
    finally:
        thread.join(30)
    assert not thread.is_alive(), "1000 rows last 1000 s at the speed that the consumer began with"
    assert rows == [1000]


def test_its_lag_is_shown_while_it_runs(
    shop: Path, served: ServiceServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "_FIRST_LAG_SECONDS", 0.0)
    monkeypatch.setattr(positions, "_LAG_EVERY_SECONDS", 0.0)
    jobs, may_go, shown = Jobs(served), threading.Event(), threading.Event()
    set_lag = JobProgress.set_lag

    def note(progress: JobProgress, behind: str, lag: dict[str, Any]) -> None:
        set_lag(progress, behind, lag)
        if lag.get("rows"):
            shown.set()

    monkeypatch.setattr(JobProgress, "set_lag", note)
    tunnel = tunnel_of(shop, tunnelType="stream")
    with closing(sqlite3.connect(shop)) as connection, connection:
        connection.executemany(
            "INSERT INTO orders VALUES (?, 'new')", [(n,) for n in range(1000, 1030)]
        )

    def process(delivery: Delivery) -> None:
        assert may_go.wait(30)
        take(delivery)

    thread = threading.Thread(target=lambda: tunnel.consume(process, drained=True))
    thread.start()
    try:
        assert shown.wait(30)
        assert jobs.all[0].status().spec.lag["rows"] == 30
        assert jobs.all[0].status().spec.behind.startswith("behind 30 rows")
        assert values(served)["spark_channel_lag_rows{}"] == 30
    finally:
        may_go.set()
        thread.join(30)


def test_a_processor_that_fails_ends_the_job_without_the_rows_in_its_message(
    shop: Path, served: ServiceServer
) -> None:
    jobs = Jobs(served)

    def process(delivery: Delivery) -> None:
        raise ValueError("no room for 4111-1111")

    with pytest.raises(ValueError, match="no room"):
        tunnel_of(shop, onError="stop").consume(process, drained=True)
    status = jobs.all[0].status()
    assert status.phase == "failed"
    assert status.error == "ValueError; the program's log has the rest"


def test_a_service_that_ends_or_fails_does_not_end_the_consumer(shop: Path) -> None:
    tunnel = tunnel_of(shop, rowsPerSecond="1", tunnelType="stream")
    first = ServiceServer()
    first.start()
    jobs = Jobs(first)
    thread = threading.Thread(target=lambda: tunnel.consume(take))
    thread.start()
    try:
        assert jobs.opened.wait(30)
        first.stop()
        with ServiceServer() as second:
            again = Jobs(second)
            assert again.opened.wait(30), "the job is shown by the next service"
            assert thread.is_alive()

            def broken(*_: object, **__: object) -> None:
                raise RuntimeError("broken")

            second.jobs.report = broken  # type: ignore[method-assign] # replaced for a while
            tunnel.stop()
            thread.join(30)
            assert not thread.is_alive()
    finally:
        tunnel.stop()
        thread.join(30)


def test_a_consumer_of_a_process_without_a_service_is_found_by_the_page(
    shop: Path, tmp_path: Path
) -> None:
    tunnel = tunnel_of(shop)
    program = f"""
import threading
from spark_channel.tunnel import Tunnel, job
job._SERVE_SECONDS = job._REPORT_SECONDS = 0.01
tunnel = Tunnel("orders", {tunnel._options!r}, store={str(tmp_path / "tunnels.db")!r})
opened = threading.Event()
from spark_channel.service.jobs import JobRegistry
add = JobRegistry.open
def note(*args):
    made = add(*args)
    opened.set()
    return made
JobRegistry.open = note
thread = threading.Thread(target=lambda: tunnel.consume(list))
thread.start()
assert opened.wait(30)
import subprocess, sys
look = "from spark_channel.observe.page import _HostViews\\n"
look += "seen = [view.watch(None, 0.0) for view in _HostViews({{}}).all()]\\n"
look += "print([job['name'] for each in seen for job in each['jobs']])"
print(subprocess.check_output([sys.executable, "-c", look], text=True))
tunnel.stop()
thread.join(30)
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False
    )
    assert "['orders']" in ended.stdout, ended.stderr
    assert not list(tmp_path.glob("**/process-*.json")), "nothing is left of it"


def test_lineage_has_one_run_for_the_consumer(
    shop: Path,
    receiver: tuple[str, list[bytes]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("openlineage.client", reason="extra `openlineage`")
    url, posted = receiver
    monkeypatch.setenv("OPENLINEAGE_URL", url)
    with ServiceServer():
        tunnel = tunnel_of(shop)
        tunnel.shown = {"target": "sqlite dw.db#orders", "part_of": "replicate 1"}
        tunnel.consume(take, drained=True)
    start, end = (json.loads(each) for each in posted)
    assert (start["eventType"], end["eventType"]) == ("START", "COMPLETE")
    assert start["run"]["runId"] == end["run"]["runId"]
    assert end["job"]["name"] == "orders"
    assert end["job"]["facets"]["jobType"]["processingType"] == "STREAMING"
    assert end["inputs"][0]["name"].endswith("shop.db#orders"), "without the settings of the stream"
    assert end["outputs"][0]["outputFacets"]["outputStatistics"]["rowCount"] == 1000
    assert end["run"]["facets"]["spark_channel"]["replication"] == "replicate 1"


def test_a_source_that_reports_no_lag_is_no_error(
    shop: Path, served: ServiceServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "_FIRST_LAG_SECONDS", 0.0)
    monkeypatch.setattr(positions, "_LAG_EVERY_SECONDS", 0.0)
    jobs, asked = Jobs(served), threading.Event()
    errors = iter([SourceError("it is away"), OSError("no such host"), ChannelError("again")])

    def away(*_: object) -> FeedLag:
        error = next(errors, None)
        if error is None:
            asked.set()
            return FeedLag(7)
        raise error

    monkeypatch.setattr(TunnelWorker, "_lag", away)
    tunnel = tunnel_of(shop, tunnelType="stream")
    thread = threading.Thread(target=lambda: tunnel.consume(take))
    thread.start()
    try:
        assert asked.wait(30)
    finally:
        tunnel.stop()
        thread.join(30)
    assert jobs.all[0].status().phase == "done"
