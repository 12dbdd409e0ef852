"""`throttle`: any DataFrame under one limit."""

import logging
import time
from pathlib import Path

import pytest
from chispa import assert_df_equality
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

import spark_channel
from spark_channel.errors import OptionError, SchemaError
from spark_channel.spark.driver import service_settings

pytestmark = [pytest.mark.spark, pytest.mark.real_time]


def test_the_rows_stay_as_they_are(spark: SparkSession) -> None:
    df = spark.range(0, 5_000, 1, 3).selectExpr("id", "cast(id as string) s", "array(id) a")
    assert_df_equality(spark_channel.throttle(df, "1M"), df, ignore_row_order=True)


@pytest.mark.parametrize(
    "query",
    [
        "select 1 `a.b`",
        "select struct(9 as b) a, 1 `a.b`",
        "select 1 `c``d`, 2 ``",
        "select 1 a, 2 a, 3 A",
        "select struct(1 as `x.y`) `a.b`, null n",
    ],
)
def test_columns_are_passed_by_their_places(spark: SparkSession, query: str) -> None:
    df = spark.sql(query)
    slow = spark_channel.throttle(df, "1M")
    assert slow.schema == df.schema
    assert slow.collect() == df.collect()


def test_notes_of_columns_stay(spark: SparkSession) -> None:
    df = spark.range(3).select(f.col("id").alias("a.b", metadata={"k": 1}))
    assert spark_channel.throttle(df, "1M").schema == df.schema


def test_rows_without_columns_are_rows(spark: SparkSession) -> None:
    slow = spark_channel.throttle(spark.range(0, 5, 1, 2).select(), "1M")
    assert slow.columns == []
    assert (slow.count(), len(slow.collect())) == (5, 5)


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("select interval '1' month i", "column 'i' is of type INTERVAL MONTH"),
        ("select array(make_interval(1, 2)) i", "column 'i.element' is of type INTERVAL"),
        ("select named_struct('a', 1, 'a', 2) s", "column 's' has two fields 'a'"),
        ("select array() e", "column 'e' is of type ARRAY<VOID>"),
        ("select map() m", "column 'm' is of type MAP<VOID,VOID>"),
    ],
)
def test_what_cannot_pass_is_refused_by_column(
    spark: SparkSession, query: str, message: str
) -> None:
    with pytest.raises(SchemaError, match=message):
        spark_channel.throttle(spark.sql(query), "1M")


def test_a_stream_passes(spark: SparkSession, tmp_path: Path) -> None:
    spark.range(0, 40, 1, 1).selectExpr("id `a.b`", "timestamp_seconds(id) at").write.parquet(
        str(tmp_path / "in")
    )
    schema = spark.read.parquet(str(tmp_path / "in")).schema
    df = spark.readStream.schema(schema).parquet(str(tmp_path / "in"))
    slow = spark_channel.throttle(df.withWatermark("at", "1 second"), "1M")
    counted = slow.groupBy(f.window("at", "10 seconds")).count()
    for rows, mode, name in ((slow, "append", "passed"), (counted, "complete", "counted")):
        query = rows.writeStream.format("memory").queryName(name).outputMode(mode)
        with_place = query.option("checkpointLocation", str(tmp_path / name))
        with_place.trigger(availableNow=True).start().awaitTermination(120)
    assert spark.table("passed").select("`a.b`").orderBy("`a.b`").collect() == [
        (n,) for n in range(40)
    ]
    assert [row["count"] for row in spark.table("counted").collect()] == [10] * 4


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
