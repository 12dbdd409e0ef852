"""`df.write.format("channel")`."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from chispa import assert_df_equality
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from spark_channel.connectors import WriteContext, load_writer
from spark_channel.errors import TargetError
from spark_channel.spark import write
from spark_channel.spark.worker import SessionFacts

pytestmark = pytest.mark.spark

TYPES = """
    select id, cast(id as int) i, cast(id % 100 as tinyint) t, id % 2 = 0 b, id / 3 d, cast(id as float) f,
      cast(id as decimal(38, 18)) dec, concat('row ', id) s,
      if(id % 3 = 0, null, encode(cast(id as string), 'utf-8')) bin,
      date_add(date'2000-02-28', cast(id as int)) day,
      timestamp'1999-12-31 23:59:59.123456' + make_interval(0, 0, 0, 0, 0, 0, id) ts,
      timestamp_ntz'2001-01-01 00:00:00.000001' ntz
    from range(0, 1000, 1, 3)
"""


def rows(path: Path, query: str) -> list[tuple[object, ...]]:
    with sqlite3.connect(path) as connection:
        found = connection.execute(query).fetchall()
    connection.close()
    return found


def numbers(spark: SparkSession, count: int, partitions: int = 2) -> DataFrame:
    return spark.range(0, count, 1, partitions)


@pytest.mark.parametrize("form", ["parquet", "arrow", "json", "csv"])
def test_files_round_trip(spark: SparkSession, tmp_path: Path, form: str) -> None:
    df = spark.sql(TYPES).drop("bin") if form == "csv" else spark.sql(TYPES)
    target = tmp_path / "out"
    df.write.format("channel").option("writer", form).mode("append").save(str(target))
    assert (target / "_SUCCESS").exists()
    again = spark.read.format("channel").option("reader", form).schema(df.schema).load(str(target))
    assert_df_equality(df, again, ignore_row_order=True, ignore_nullable=True)
    again.write.format("channel").option("writer", form).mode("append").save(str(target))
    assert spark.read.format("channel").option("reader", form).load(str(target)).count() == 2000
    df.limit(10).write.format("channel").option("writer", form).mode("overwrite").save(str(target))
    assert spark.read.format("channel").option("reader", form).load(str(target)).count() == 10


def test_spark_reads_what_we_write_to_parquet(spark: SparkSession, tmp_path: Path) -> None:
    df = spark.sql(TYPES)
    df.write.format("channel").option("writer", "parquet").mode("overwrite").save(
        str(tmp_path / "out")
    )
    assert_df_equality(
        df, spark.read.parquet(str(tmp_path / "out")), ignore_row_order=True, ignore_nullable=True
    )


def test_a_filter_of_spark_finds_each_number_in_parquet(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Statistics leave out NaN, which is the greatest number to Spark; a dictionary has one of 0.0 and -0.0."""
    target = str(tmp_path / "out")
    rows = spark.sql(
        "SELECT id, d, struct(float(d) f) n FROM VALUES (1, double('NaN')), (2, -0.0D), (3, 0.5D) AS t(id, d)"
    )
    rows.coalesce(1).write.format("channel").option("writer", "parquet").mode("append").save(target)
    for condition, ids in (
        ("d = double('NaN')", [1]),
        ("d > 1d", [1]),
        ("d = 0d", [2]),
        ("n.f >= float(0.5)", [1, 3]),
        ("n.f = float(0)", [2]),
    ):
        found = spark.read.parquet(target).where(condition).collect()
        assert sorted(row.id for row in found) == ids, condition


def test_sparks_own_source_sees_the_published_rows(spark: SparkSession, tmp_path: Path) -> None:
    """Not those that were replaced, which this package's readers may still need, nor those that are staged."""
    target = tmp_path / "out"

    def save(start: int, stop: int, mode: str) -> None:
        spark.range(start, stop).write.format("channel").option("writer", "parquet").mode(
            mode
        ).save(str(target))

    def seen() -> list[int]:
        return sorted(row.id for row in spark.read.parquet(str(target)).collect())

    save(0, 100, "append")
    save(100, 150, "append")
    assert seen() == list(range(150))
    save(200, 210, "overwrite")
    save(210, 215, "append")
    assert seen() == list(range(200, 215))
    assert any((target / "_spark_channel" / "replaced").rglob("*.parquet"))
    writer = load_writer({"writer": "parquet", "path": str(target)})[0]
    rows = pa.table({"id": [999]})
    attempt = writer.open(writer.prepare(WriteContext("staged"), rows.schema), 0, 0)
    attempt.write(rows.to_batches()[0])
    attempt.close()
    assert seen() == list(range(200, 215))


def test_sqlite_round_trips(spark: SparkSession, tmp_path: Path) -> None:
    df = spark.sql(TYPES)
    path = tmp_path / "copy.db"
    for mode in ("overwrite", "append"):
        df.write.format("channel").option("dbtable", "t").mode(mode).save(str(path))
    again = spark.read.format("channel").option("dbtable", "t").load(str(path))
    assert again.schema.simpleString() == df.schema.simpleString()
    assert again.count() == 2000
    assert_df_equality(df, again.distinct(), ignore_row_order=True, ignore_nullable=True)


def test_saving_without_a_mode_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(
        PySparkException, match=r"(?s)UNSUPPORTED_DATA_SOURCE_SAVE_MODE.*append|Append"
    ):
        numbers(spark, 1).write.format("channel").option("dbtable", "t").save(
            str(tmp_path / "x.db")
        )


def test_an_empty_dataframe_makes_an_empty_table(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    numbers(spark, 0).write.format("channel").option("dbtable", "t").mode("append").save(str(path))
    assert rows(path, "select count(*) from t") == [(0,)]


def test_a_failing_task_leaves_the_target_as_it_was(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    numbers(spark, 10).write.format("channel").option("dbtable", "t").mode("append").save(str(path))
    broken = numbers(spark, 1000).selectExpr("if(id = 777, raise_error('seventh'), id) as id")
    for mode in ("append", "overwrite"):
        with pytest.raises(PySparkException, match="seventh"):
            broken.selectExpr("cast(id as bigint) id").write.format("channel").option(
                "dbtable", "t"
            ).option("commit", "job").mode(mode).save(str(path))
        assert rows(path, "select count(*), sum(id) from t") == [(10, 45)]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["x.db"]


def fail_first_attempt(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Partition 1 dies half way, the first time."""
    task = TaskContext.get()
    assert task is not None
    for batch in batches:
        yield batch.slice(0, batch.num_rows // 2)
        if task.partitionId() == 1 and task.attemptNumber() == 0:
            raise RuntimeError("first attempt dies")
        yield batch.slice(batch.num_rows // 2)


@pytest.mark.parametrize("commit", ["job", "task"])
def test_a_task_that_is_retried_counts_once(
    spark: SparkSession, tmp_path: Path, commit: str
) -> None:
    path = tmp_path / "x.db"
    flaky = numbers(spark, 30_000, 3).mapInArrow(fail_first_attempt, "id bigint")
    for _ in range(2):
        writer = flaky.write.format("channel").options(dbtable="t", commit=commit)
        writer.mode("append").save(str(path))
    assert rows(path, "select count(*), count(distinct id) from t") == [(60_000, 30_000)]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["x.db"]


@pytest.mark.newest
@pytest.mark.parametrize("form", ["parquet", "csv"])
def test_a_retried_task_of_a_file_write_counts_once(
    spark: SparkSession, tmp_path: Path, form: str
) -> None:
    flaky = numbers(spark, 30_000, 3).mapInArrow(fail_first_attempt, "id bigint")
    flaky.write.format("channel").option("writer", form).mode("append").save(str(tmp_path / "out"))
    again = spark.read.format("channel").option("reader", form).load(str(tmp_path / "out"))
    assert again.selectExpr("count(*)", "count(distinct id)").first() == (30_000, 30_000)


def test_a_version_that_was_published_is_not_written_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = tmp_path / "x.db"
    for _ in range(2):
        (
            numbers(spark, 50)
            .write.format("channel")
            .option("dbtable", "t")
            .options(txnAppId="nightly", txnVersion=7)
            .mode("append")
            .save(str(path))
        )
    assert rows(path, "select count(*) from t") == [(50,)]


def test_a_target_without_permission_is_named(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(PySparkException, match=r"(?s)TargetError.*no/such"):
        numbers(spark, 1).write.format("channel").option("dbtable", "t").mode("append").save(
            str(tmp_path / "no" / "such" / "x.db")
        )


def test_a_stream_from_what_has_no_change_feed_is_refused_clearly(spark: SparkSession) -> None:
    with pytest.raises(PySparkException, match="change feed"):
        spark.readStream.format("channel").option("reader", "generator").schema(
            "id int"
        ).load().writeStream.format("noop").start().awaitTermination()


def test_values_are_converted_where_that_is_asked_for(spark: SparkSession, tmp_path: Path) -> None:
    """By default types must fit; a row whose value cannot be converted is refused."""
    target = tmp_path / "t.db"
    with sqlite3.connect(target) as connection:
        connection.execute("CREATE TABLE u (id VARCHAR(9), n INTEGER)")
    connection.close()
    df = spark.createDataFrame([(1, "7"), (2, "x"), (3, None)], "id int, n string")
    write = (
        df.write.format("channel").option("dbtable", "u").option("maxDirtyRows", 1).mode("append")
    )
    write.option("convert", "lenient").save(str(target))
    assert rows(target, "SELECT id, typeof(id), n, typeof(n) FROM u ORDER BY id") == [
        ("1", "text", 7, "integer"),
        ("3", "text", None, "null"),
    ]
    with pytest.raises(PySparkException, match="'id' is int32"):
        write.option("convert", "strict").save(str(target))
    with pytest.raises(PySparkException, match="refused"):
        write.option("convert", "lenient").option("maxDirtyRows", 0).save(str(target))


def test_a_write_whose_service_or_server_fails_it_before_its_tasks_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_given: object, **_more: object) -> None:
        raise TargetError("too many connections")

    monkeypatch.setattr(write, "reach_for_write", refuse)
    path = tmp_path / "t.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE t (v INTEGER)")
    connection.close()
    options = {"url": f"sqlite:{path}", "dbtable": "t"}
    with pytest.raises(TargetError, match="too many"):
        write.ChannelWriter(options, StructType().add("v", "long"), False, SessionFacts())
    assert [file.name for file in tmp_path.iterdir()] == ["t.db"]
    assert not rows(path, "SELECT * FROM spark_channel_claims WHERE kind = 'job'")
