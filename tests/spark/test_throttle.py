"""`throttle`: any DataFrame under one limit."""

import logging
import time
from pathlib import Path

import pytest
from chispa import assert_df_equality
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

import spark_channel
from spark_channel.errors import OptionError
from spark_channel.spark.driver import service_settings

pytestmark = [pytest.mark.spark, pytest.mark.real_time]


def test_the_rows_stay_as_they_are(spark: SparkSession) -> None:
    df = spark.range(0, 5_000, 1, 3).selectExpr("id", "cast(id as string) s", "array(id) a")
    assert_df_equality(spark_channel.throttle(df, "1M"), df, ignore_row_order=True)


def test_the_limit_is_the_total_of_all_tasks(spark: SparkSession) -> None:
    df = spark.range(0, 4_000, 1, 4).transform(spark_channel.throttle, rows_per_second=2_000)
    started = time.monotonic()
    assert df.count() == 4_000
    # never faster; how much slower is the machine's affair
    assert time.monotonic() - started > 4_000 / 2_000 * 0.95 - 0.1


def test_each_action_is_a_job_of_its_own(spark: SparkSession) -> None:
    df = spark_channel.throttle(spark.range(100), bytes_per_second="64MB")
    assert [df.count(), df.count()] == [100, 100]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "throttle takes rows_per_second"),
        ({"rows_per_second": 0}, "'rowsPerSecond' got '0'"),
        ({"bytes_per_second": "fast"}, "'bytesPerSecond' got 'fast'"),
    ],
)
def test_a_limit_that_makes_no_sense_is_refused(
    spark: SparkSession, arguments: dict[str, str], message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        spark_channel.throttle(spark.range(1), **arguments)


@pytest.mark.parametrize("barrier", ["exchange", "cache"])
def test_a_barrier_below_is_warned_of(
    spark: SparkSession, barrier: str, caplog: pytest.LogCaptureFixture
) -> None:
    counted = spark.range(10).groupBy(f.expr("id % 3")).count()
    df = counted if barrier == "exchange" else spark.range(10).cache()
    with caplog.at_level(logging.WARNING, "spark_channel"):
        spark_channel.throttle(df, 1_000)
    assert barrier in caplog.text
    df.unpersist()


def test_a_plain_plan_is_not_warned_of(
    spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "spark_channel"):
        spark_channel.throttle(spark.range(10).filter("id > 3"), 1_000)
    assert caplog.text == ""


def test_the_drivers_environment_says_where_the_service_is_and_that_it_speaks_tls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SPARK_CHANNEL_HOST", "10.0.0.5")
    monkeypatch.setenv("SPARK_CHANNEL_PORT", "38100")
    monkeypatch.setenv("SPARK_CHANNEL_TLS_CERTIFICATE", "cert.pem")
    with pytest.raises(OptionError, match="go together"):
        service_settings("--master yarn")
    monkeypatch.setenv("SPARK_CHANNEL_TLS_KEY", "key.pem")
    settings = service_settings("--master yarn")
    assert (settings.advertise_host, settings.port) == ("10.0.0.5", 38100)
    folder = Path.cwd()
    assert settings.tls == (str(folder / "cert.pem"), str(folder / "key.pem"), None), (
        "planners run elsewhere"
    )
