"""Spark Connect: the session is a client, the driver is elsewhere, only planner workers are on its host."""

import importlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import spark_channel
from spark_channel.service import SharedLimit
from tests.spark import recorded
from tests.spark.recorded import PROMPT, RATE, ROWS, TIMEOUT, worst_second
from tests.spark.remote_driver import DriverError, RemoteDriver

pytest.importorskip("grpc", reason="Spark Connect asks for grpcio")
pytest.importorskip("grpc_status", reason="Spark Connect asks for grpcio-status")
pytestmark = [pytest.mark.spark, pytest.mark.real_time]


@pytest.fixture(scope="module")
def connect() -> Iterator[RemoteDriver]:
    with RemoteDriver("connect", PROMPT) as driver:
        yield driver


class Messages(logging.Handler):
    """What was logged, as text."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def registered(spark: Any) -> list[str]:
    """Register twice, and return the session's class."""
    spark_channel.register(spark)
    spark_channel.register(spark)
    return [type(spark).__module__]


def warned(spark: Any, barrier: str) -> list[str]:
    messages = Messages()
    logging.getLogger("spark_channel").addHandler(messages)
    df = spark.range(len(barrier) + 100)
    if barrier == "exchange":
        df = df.selectExpr("id % 3 k").groupBy("k").count()
    elif barrier == "cache":
        df = df.cache()
        df.count()
    try:
        spark_channel.throttle(df, 1_000)
    finally:
        logging.getLogger("spark_channel").removeHandler(messages)
        df.unpersist()
    return messages.texts


def closed(spark: Any, folder: str, limit: dict[str, str]) -> list[str]:
    """A copy under a limit in a session whose server answers no question about its settings; what was logged."""
    grpc: Any = importlib.import_module("grpc")

    from spark_channel.spark.session import setting_of

    class RefusedError(grpc.RpcError):  # type: ignore[misc] # its base is untyped
        """The error that a client gets."""

        def code(self) -> Any:
            return grpc.StatusCode.PERMISSION_DENIED

        def details(self) -> str:
            return "settings are closed"

        def trailing_metadata(self) -> tuple[()]:
            return ()

    def refuse(*_given: object, **_more: object) -> None:
        raise RefusedError

    new = spark.newSession()
    new.client._stub.Config = refuse
    messages = Messages()
    logging.getLogger("spark_channel").addHandler(messages)
    try:
        spark_channel.register(new)
        recorded.write(new, folder, limit)
    finally:
        logging.getLogger("spark_channel").removeHandler(messages)
    assert setting_of(new, "spark.master") is None
    return messages.texts


def reported(spark: Any) -> object:
    return spark_channel.last_report()


def address(spark: Any) -> tuple[str, str]:
    """The service's address, and what its token looks like in a repr and in the plan of a throttle."""
    from spark_channel.spark.session import service_of

    found = service_of(spark)
    df: Any = spark_channel.throttle(spark.range(1), 1)
    plan = df._explain_string(extended=True)
    return str(found), "leaked" if found.token in plan or found.token in repr(found) else ""


def steered(spark: Any) -> list[str]:
    """What a client may do to the job of another client of the same server."""
    from spark_channel.errors import ServiceDeniedError
    from spark_channel.limits import SetRates, decode_reply, encode
    from spark_channel.progress import JobSpec
    from spark_channel.service import ServiceControl
    from spark_channel.service.connection import Connection
    from spark_channel.service.limits import job_limit
    from spark_channel.spark.session import service_of

    own, strange = service_of(spark), service_of(spark.newSession())
    with ServiceControl(own) as control:
        job = control.open_job(JobSpec("write", rows_per_second=1_000))
    answers = []
    change = encode(SetRates(job_limit(job), rows_per_second=1e9))
    for address in (own, strange):
        with Connection(address) as connection:
            try:
                answers.append(type(decode_reply(connection.send("coordinator", change))).__name__)
            except ServiceDeniedError as error:
                answers.append(str(error))
    with ServiceControl(strange) as control:
        answers.append(str(control.status()))
        try:
            control.call("limits", {})
        except ServiceDeniedError as error:
            answers.append(str(error))
    return answers


def test_it_is_a_client_and_registers(connect: RemoteDriver) -> None:
    assert "connect" in connect.run(registered)[0]


@pytest.mark.parametrize(
    "path", [recorded.read, recorded.write, recorded.throttle, recorded.transfer]
)
def test_a_job_obeys_its_limit(connect: RemoteDriver, tmp_path: Path, path: Any) -> None:
    """The throttle's service is started through a planner call."""
    rows = connect.run(path, str(tmp_path), {"rowsPerSecond": str(RATE)}, timeout=TIMEOUT)
    assert rows == (ROWS if path is recorded.transfer else None), "a transfer reports"
    assert worst_second(tmp_path) <= 1.15 * RATE


@pytest.mark.newest
@pytest.mark.parametrize("path", [recorded.read, recorded.throttle])
def test_a_job_obeys_a_shared_limit(connect: RemoteDriver, tmp_path: Path, path: Any) -> None:
    with SharedLimit("connect-test", rows_per_second=RATE):
        connect.run(path, str(tmp_path), {"sharedLimit": "connect-test"}, timeout=TIMEOUT)
    assert worst_second(tmp_path) <= 1.15 * RATE


def relative_round_trip(spark: Any, folder: str) -> list[int]:
    """Written and read by relative paths, which begin where the driver runs."""
    import os

    spark_channel.register(spark)
    rows = spark.range(10)
    start = os.path.relpath(folder)
    counts = []
    for options in ({"writer": "parquet"}, {"dbtable": "t"}):
        path = f"{start}/rel.db" if "dbtable" in options else f"{start}/rel"
        rows.write.format("channel").options(**options).mode("append").save(path)
        again = {key.replace("writer", "reader"): value for key, value in options.items()}
        counts.append(spark.read.format("channel").options(**again).load(path).count())
    return counts


def test_a_relative_path_begins_at_the_driver(connect: RemoteDriver, tmp_path: Path) -> None:
    """Not in the Python worker's own folder, which the server deletes when it ends."""
    assert connect.run(relative_round_trip, str(tmp_path)) == [10, 10]
    assert (tmp_path / "rel.db").is_file()
    assert list((tmp_path / "rel").glob("*.parquet"))


def test_there_is_one_service_and_its_token_is_in_no_plan(connect: RemoteDriver) -> None:
    first, leaked = connect.run(address)
    second, _ = connect.run(address)
    assert first == second
    assert leaked == ""


@pytest.mark.newest
def test_a_client_steers_its_own_jobs_alone(connect: RemoteDriver) -> None:
    own, strange, listed, names = connect.run(steered)
    assert own == "LimitStatus"
    assert "for the jobs of another client" in strange
    assert listed == "[]"
    assert "for another purpose" in names


@pytest.mark.newest
@pytest.mark.parametrize("barrier", ["exchange", "cache"])
def test_a_barrier_below_throttle_is_warned_of(connect: RemoteDriver, barrier: str) -> None:
    assert any(barrier in text for text in connect.run(warned, barrier))


def test_a_plain_plan_is_not_warned_of(connect: RemoteDriver) -> None:
    assert connect.run(warned, "") == []


@pytest.mark.newest
def test_a_server_that_refuses_its_settings_keeps_no_job_from_its_limit(
    connect: RemoteDriver, tmp_path: Path
) -> None:
    limit = {"rowsPerSecond": str(RATE)}
    (warning,) = connect.run(closed, str(tmp_path), limit, timeout=TIMEOUT)
    assert "settings are closed" in warning
    assert worst_second(tmp_path) <= 1.15 * RATE


def test_the_report_is_refused_with_the_reason(connect: RemoteDriver) -> None:
    with pytest.raises(DriverError, match="Spark Connect"):
        connect.run(reported)
