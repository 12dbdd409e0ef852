"""Driver, workers and firewalls on several hosts: network namespaces with their own addresses."""

import os
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import spark_channel
from tests.behaviour.hosts.cluster import SERVICE_PORT, Cluster
from tests.behaviour.hosts.network import Host, Network, why_not
from tests.behaviour.hosts.programs import HostedPostgres, running
from tests.behaviour.hosts.slow_link import DELAY
from tests.spark import recorded
from tests.spark.recorded import CHANNELS, RATE, ROWS, TIMEOUT, worst_second
from tests.spark.remote_driver import DriverError, RemoteDriver
from tests.spark.timeline import Timeline

_WHY_NOT = why_not()
pytestmark = [
    pytest.mark.spark,
    pytest.mark.newest,
    pytest.mark.real_time,
    pytest.mark.skipif(bool(_WHY_NOT), reason=_WHY_NOT or "there are hosts"),
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("hosts")
    with (
        Network("driver", "one", "two", "limits", "database") as network,
        Cluster(network, folder, "one", "two") as running,
    ):
        yield running


@pytest.fixture(scope="module")
def driver(cluster: Cluster) -> Iterator[RemoteDriver]:
    with cluster.driver() as running:
        running.run(warm, timeout=TIMEOUT)
        yield running


@pytest.fixture(scope="module")
def database(cluster: Cluster) -> Iterator[HostedPostgres]:
    server = HostedPostgres.on(cluster.network["database"])
    yield server
    server.close()


@pytest.fixture
def firewall(cluster: Cluster) -> Iterator[None]:
    """Executors reach Spark's ports of the driver, and not the service's: packets to the service are dropped."""
    drop(cluster)
    try:
        yield
    finally:
        drop(cluster, False)


def drop(cluster: Cluster, cut: bool = True) -> None:
    network = cluster.network
    network["driver"].drop_answers_from(SERVICE_PORT, network["one"], network["two"], drop=cut)


def warm(spark: Any) -> int:
    """Registers, and has a Python worker started on every core."""
    spark_channel.register(spark)
    return int(spark.sparkContext.parallelize(range(8), 8).map(lambda n: n).sum())


def where(spark: Any) -> tuple[str, list[str]]:
    """The address that tasks get, and the hosts that run them."""
    from spark_channel.spark.session import service_of

    def host(_: int) -> str:
        import socket

        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as trial:
            trial.connect(("10.77.0.250", 9))
            return str(trial.getsockname()[0])

    return str(service_of(spark)), spark.sparkContext.parallelize(range(16), 16).map(
        host
    ).distinct().collect()


def relative_round_trip(spark: Any, folder: str) -> list[int]:
    start = os.path.relpath(folder)
    rows = spark.range(10).repartition(4)
    rows.write.format("channel").option("writer", "parquet").mode("append").save(f"{start}/rel")
    rows.write.format("channel").option("dbtable", "t").mode("append").save(f"{start}/rel.db")
    return [
        spark.read.format("channel").option("reader", "parquet").load(f"{start}/rel").count(),
        spark.read.format("channel").option("dbtable", "t").load(f"{start}/rel.db").count(),
    ]


def test_relative_paths_begin_at_the_driver(driver: RemoteDriver, tmp_path: Path) -> None:
    """Each executor runs in its own folder."""
    assert driver.run(relative_round_trip, str(tmp_path), timeout=TIMEOUT) == [10, 10]


def scope(spark: Any) -> str:
    report = spark_channel.last_report()
    return "" if report is None else report.limit_scope


def test_the_service_is_told_under_the_address_that_spark_knows(driver: RemoteDriver) -> None:
    address, hosts = driver.run(where)
    assert address == f"10.77.0.1:{SERVICE_PORT}"
    assert sorted(hosts) == ["10.77.0.2", "10.77.0.3"]


@pytest.mark.parametrize("path", [recorded.read, recorded.transfer])
def test_executors_on_two_hosts_obey_the_limit(
    driver: RemoteDriver, tmp_path: Path, path: Any
) -> None:
    driver.run(path, str(tmp_path), {"rowsPerSecond": str(RATE)}, timeout=TIMEOUT)
    assert worst_second(tmp_path) <= 1.15 * RATE


@pytest.mark.parametrize(
    "path",
    [
        recorded.read,
        recorded.transfer,
        *(
            pytest.param(each, marks=pytest.mark.soak)
            for each in (recorded.write, recorded.throttle)
        ),
    ],
)
def test_executors_that_do_not_reach_the_service_obey_the_limit(
    driver: RemoteDriver, tmp_path: Path, path: Any, firewall: None
) -> None:
    start = time.monotonic()
    driver.run(path, str(tmp_path), {"rowsPerSecond": str(RATE)}, timeout=TIMEOUT)
    took = time.monotonic() - start
    assert worst_second(tmp_path) <= 1.15 * RATE
    # 3 s of rows, 5 s until it is found out, and what Spark needs for a job
    assert took <= ROWS / RATE + 5.0 + 5.0
    if path in (recorded.write, recorded.transfer):
        assert re.search(r"static limit: (\d) of \1 tasks", driver.run(scope))


def test_the_firewall_without_a_fallback_is_an_error_that_names_the_way_out(
    driver: RemoteDriver, tmp_path: Path, firewall: None
) -> None:
    options = {"rowsPerSecond": str(RATE), "limitFallback": "fail"}
    with pytest.raises(DriverError, match="rowsPerSecondPerTask"):
        driver.run(recorded.transfer, str(tmp_path), options, timeout=TIMEOUT)


@pytest.mark.soak
def test_connections_are_counted_where_they_are_and_need_no_service_where_few_tasks_run(
    driver: RemoteDriver, tmp_path: Path, firewall: None
) -> None:
    driver.run(recorded.write, str(tmp_path), {"maxConnections": "4"}, timeout=TIMEOUT)
    more = tmp_path / "more"
    more.mkdir()
    with pytest.raises(DriverError, match=r"'maxConnections'.*coalesce"):
        driver.run(recorded.write, str(more), {"maxConnections": "1"}, timeout=TIMEOUT)


def into_a_database(spark: Any, folder: str, target: dict[str, str]) -> tuple[int, str]:
    """A transfer of small rows; the rows and the scope of the limit, as its report has them."""
    reader = {"name": "recorder", "log": f"{folder}/source", "rows": ROWS, "rowBytes": 20}
    writer = {"name": "postgresql", "commit": "job", **target}
    report = spark_channel.transfer(spark, reader, writer, channels=CHANNELS, channels_per_task=2)
    return report.rows, report.limit_scope


def login(database: HostedPostgres, host: Host, port: int, table: str) -> dict[str, str]:
    return {
        **database.login,
        "url": f"postgresql://{host.address}:{port}/postgres",
        "dbtable": table,
    }


def test_executors_that_reach_the_database_and_not_the_driver(
    cluster: Cluster, driver: RemoteDriver, database: HostedPostgres, tmp_path: Path, firewall: None
) -> None:
    target = login(database, cluster.network["database"], database.port, "walled")
    database.psql(
        "DROP TABLE IF EXISTS walled; CREATE TABLE walled (id bigint PRIMARY KEY, padding text)"
    )
    limit = {"rowsPerSecond": str(RATE)}
    rows, scope = driver.run(into_a_database, str(tmp_path), {**target, **limit}, timeout=TIMEOUT)
    assert (rows, database.psql("SELECT count(*) FROM walled")) == (ROWS, str(ROWS))
    assert "static limit" in scope


def test_a_slow_link_that_loses_packets_to_the_database_and_to_a_shared_limit(
    cluster: Cluster, driver: RemoteDriver, database: HostedPostgres, tmp_path: Path
) -> None:
    limits, far, token = cluster.network["limits"], cluster.network["database"], tmp_path / "token"
    served = (
        "serve",
        "far",
        "--rows-per-second",
        str(RATE),
        "--port",
        "38200",
        "--token-file",
        str(token),
    )
    database.psql(
        "DROP TABLE IF EXISTS far; CREATE TABLE far (id bigint PRIMARY KEY, padding text)"
    )
    with (
        running(limits, tmp_path / "run", "spark_channel.cli", "limits", *served),
        running(
            limits,
            tmp_path / "run",
            "tests.behaviour.hosts.slow_link",
            limits.address,
            "38300",
            "127.0.0.1",
            "38200",
        ),
        running(
            far,
            tmp_path / "run",
            "tests.behaviour.hosts.slow_link",
            far.address,
            "38400",
            "127.0.0.1",
            str(database.port),
        ),
    ):
        limit = {
            "sharedLimit": f"{limits.address}:38300/far",
            "sharedLimitToken": token.read_text().strip(),
        }
        target = {**login(database, far, 38_400, "far"), **limit}
        start = time.monotonic()
        rows, _ = driver.run(into_a_database, str(tmp_path), target, timeout=TIMEOUT)
        took = time.monotonic() - start
    assert (rows, database.psql("SELECT count(*) FROM far")) == (ROWS, str(ROWS))
    source = Timeline(tmp_path / "source")
    assert source.worst(1.0) <= RATE * (1.0 + 1.5)  # rows are asked for before they are paid
    assert source.times[-1] >= 0.9 * (ROWS / RATE - 1.5)
    # Spark's own time is in it; a page a piece took minutes.
    assert took <= ROWS / RATE + 100 * DELAY + 25.0


def longer(spark: Any, folder: str) -> int:
    """A transfer of 24 s, four groups on two hosts."""
    reader = {"name": "recorder", "log": f"{folder}/source", "rows": 12_000}
    writer = {"name": "recorder", "log": f"{folder}/target", "rowsPerSecond": "500"}
    return spark_channel.transfer(spark, reader, writer, channels=4).rows


def cut_while_it_runs(
    cluster: Cluster, driver: RemoteDriver, folder: Path, seconds: float, *, after: float = 4.0
) -> float:
    """Run `longer` with the service cut off for `seconds`; returns when it was, as the records count time."""
    future = driver.submit(longer, str(folder))
    target = folder / "target"
    end = time.monotonic() + TIMEOUT
    while not target.exists() and time.monotonic() < end:
        time.sleep(0.05)
    time.sleep(after)
    cut = time.monotonic()
    drop(cluster)
    back = threading.Timer(seconds, drop, (cluster, False))
    back.start()
    try:
        assert future.result(TIMEOUT) == 12_000
    finally:
        back.cancel()
        back.join()
        drop(cluster, False)
    return cut


@pytest.mark.parametrize("seconds", [5.0, pytest.param(60.0, marks=pytest.mark.soak)])
def test_a_link_that_is_cut_while_a_job_runs_costs_time_and_not_the_limit(
    cluster: Cluster, driver: RemoteDriver, tmp_path: Path, seconds: float
) -> None:
    cut_while_it_runs(cluster, driver, tmp_path, seconds)
    record = Timeline(tmp_path / "target")
    assert record.sums[-1] == 12_000
    assert record.worst(1.0) <= 1.15 * 500
    assert record.worst(5.0) <= 1.05 * 500 * 5


@pytest.mark.soak
def test_a_driver_behind_a_name_that_only_executors_know(cluster: Cluster, tmp_path: Path) -> None:
    """As a headless service of Kubernetes: the driver binds its address, and tasks reach it under another name."""
    network = cluster.network
    for worker in ("one", "two"):
        network[worker].know({"outer-name.example": network["driver"].address})
    conf = {"spark.driver.host": network["driver"].address}
    environment = {"SPARK_CHANNEL_HOST": "outer-name.example", "SPARK_CHANNEL_PORT": "38101"}
    with cluster.driver(conf, **environment) as named:
        named.run(warm, timeout=TIMEOUT)
        address, _ = named.run(where)
        assert address == "outer-name.example:38101"
        named.run(recorded.transfer, str(tmp_path), {"rowsPerSecond": str(RATE)}, timeout=TIMEOUT)
    assert worst_second(tmp_path) <= 1.15 * RATE
