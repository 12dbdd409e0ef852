"""A service that a job started by itself ends with its driver's JVM: process, port and file are gone."""

import os
import signal
import socket
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_channel.service import find_service
from spark_channel.service.discovery import ServiceDirectory, ServiceRecord, advert_name
from tests.service.helpers import hello, wait_for, wait_gone
from tests.spark.remote_driver import RemoteDriver

pytestmark = [pytest.mark.spark, pytest.mark.newest, pytest.mark.timeout(600)]

ROWS = 2_000
START_SECONDS = 240.0
GONE_SECONDS = 60.0


def limited_read(spark: SparkSession) -> tuple[int, int]:
    """(rows, the JVM's pid): without `register`, so that the first job with a limit starts the service."""
    from spark_channel import ChannelDataSource

    spark.dataSource.register(ChannelDataSource)
    options = {"reader": "generator", "rows": str(ROWS), "channels": "2", "rowsPerSecond": "100k"}
    rows = spark.read.format("channel").options(**options).load().count()
    context: Any = spark.sparkContext
    return rows, int(context._jvm.java.lang.ProcessHandle.current().pid())


def stop(spark: SparkSession) -> None:
    """Also the gateway, which otherwise keeps the JVM, for another session, until Python ends."""
    context: Any = spark.sparkContext
    gateway = context._gateway
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()


def accepts(advert: ServiceRecord) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((advert.address.host, advert.address.port)) == 0


@pytest.mark.parametrize(
    "how",
    ["kill the JVM", pytest.param("stop", marks=pytest.mark.soak)],  # the JVM ends either way
)
def test_a_self_started_service_ends_with_its_jvm(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "run"
    directory.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(directory))
    with RemoteDriver("local[2]", environment={"XDG_RUNTIME_DIR": str(directory)}) as driver:
        rows, jvm = driver.run(limited_read, timeout=START_SECONDS)
        assert rows == ROWS
        advert = ServiceDirectory().read(advert_name(jvm))
        assert advert is not None
        assert advert.service_pid not in (jvm, os.getpid())
        assert find_service(jvm) == advert.address
        assert hello(advert.address)
        assert accepts(advert)
        again, _ = driver.run(limited_read, timeout=START_SECONDS)
        assert again == ROWS
        assert ServiceDirectory().read(advert_name(jvm)) == advert, "one service per driver"
        if how == "stop":
            driver.run(stop)
        else:
            os.kill(jvm, signal.SIGKILL)
        wait_gone(jvm, GONE_SECONDS)
        wait_gone(advert.service_pid, GONE_SECONDS)
        wait_for(lambda: ServiceDirectory().names() == [], "the file to go", GONE_SECONDS)
        assert not accepts(advert)
        assert find_service(jvm) is None
        driver.kill()
