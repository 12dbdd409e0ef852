"""`spark.read.format("channel")`."""

import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from chispa import assert_df_equality
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import spark_channel

pytestmark = pytest.mark.spark


@pytest.fixture
def people(tmp_path: Path) -> Path:
    path = tmp_path / "people.csv"
    path.write_text("id,name,born\n1,Ada,1815-12-10\n2,Grace,1906-12-09\n3,,1912-06-23\n")
    return path


def test_csv_equals_sparks_own(spark: SparkSession, people: Path) -> None:
    ours = spark.read.format("channel").load(str(people))
    assert ours.schema.simpleString() == "struct<id:bigint,name:string,born:date>"
    own = spark.read.csv(str(people), header=True, schema="id bigint, name string, born date")
    assert_df_equality(ours, own, ignore_row_order=True)


def test_columns_and_where_run_in_the_source(spark: SparkSession, people: Path) -> None:
    df = (
        spark.read.format("channel")
        .option("columns", "born, id")
        .option("where", "id in (1, 2) and name like 'G%'")
        .load(str(people))
    )
    assert df.columns == ["born", "id"]
    assert [row.id for row in df.collect()] == [2]


def test_a_users_schema_is_taken(spark: SparkSession, people: Path) -> None:
    df = spark.read.format("channel").schema("id int, name string, born string").load(str(people))
    assert df.schema.simpleString() == "struct<id:int,name:string,born:string>"
    assert sorted(row.born for row in df.collect()) == ["1815-12-10", "1906-12-09", "1912-06-23"]


def test_a_large_file_is_read_in_several_channels(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "many.parquet"
    pq.write_table(pa.table({"n": range(100_000)}), path, row_group_size=10_000)
    df = spark.read.format("channel").option("channels", 4).load(str(path))
    assert df.rdd.getNumPartitions() == 4
    assert df.selectExpr("count(*)", "sum(n)", "count(distinct n)").first() == (
        100_000,
        4_999_950_000,
        100_000,
    )


def test_channels_per_task_puts_several_channels_into_one_spark_task(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = tmp_path / "many.parquet"
    pq.write_table(pa.table({"n": range(100_000)}), path, row_group_size=5_000)
    df = (
        spark.read.format("channel")
        .option("channels", 4)
        .option("channelsPerTask", 4)
        .load(str(path))
    )
    assert df.rdd.getNumPartitions() == 1
    assert df.selectExpr("count(*)", "sum(n)").first() == (100_000, 4_999_950_000)


def test_the_phases_of_a_read_are_in_its_report(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY)")
        connection.executemany("INSERT INTO t VALUES (?)", [(n,) for n in range(1000)])
    df = spark.read.format("channel").options(dbtable="t", channels="2").load(str(path))
    assert len(df.collect()) == 1000
    until = time.monotonic() + 30
    while (report := spark_channel.last_report()) is None or str(path) not in report.source:
        assert time.monotonic() < until, report
        time.sleep(0.1)
    frame = report.trace()
    assert (report.kind, frame["rows_read"].sum()) == ("read", 1000)
    assert (frame[["connect", "first_row"]] > 0).all().all(), frame
    assert (frame[["write", "publish"]] == 0).all().all(), frame


def test_an_empty_source_has_no_rows(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "none.csv"
    path.write_text("a,b\n")
    df = spark.read.format("channel").load(str(path))
    assert df.columns == ["a", "b"]
    assert df.count() == 0


def test_one_dataframe_serves_several_actions(spark: SparkSession, people: Path) -> None:
    df = spark.read.format("channel").load(str(people))
    assert [df.count(), df.filter("id = 1").count(), df.count()] == [3, 1, 3]
    assert df.union(df).count() == 6


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rowPerSecond": "5"}, "did you mean 'rowsPerSecond'"),
        ({"rowsPerSecond": "0"}, "'rowsPerSecond' got '0'; it takes a whole number of 1 or more"),
        ({"rowsPerSecond": "-1"}, "'rowsPerSecond' got '-1'"),
        ({"rowsPerSecond": "abc"}, "'rowsPerSecond' got 'abc'"),
        ({"reader": "postgrsql"}, "option 'reader' got 'postgrsql'"),
        ({"where": "id in (select 1)"}, "where"),
    ],
)
def test_a_bad_option_is_named(
    spark: SparkSession, people: Path, options: dict[str, str], message: str
) -> None:
    with pytest.raises(PySparkException) as caught:
        spark.read.format("channel").options(**options).load(str(people))
    assert "OptionError" in str(caught.value) or "spark_channel" in str(caught.value)
    assert message in str(caught.value)


def test_a_missing_path_is_named(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(PySparkException, match=r"nowhere\.csv"):
        spark.read.format("channel").load(str(tmp_path / "nowhere.csv"))


def test_a_row_that_does_not_fit_is_named_with_its_place(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = tmp_path / "bad.csv"
    path.write_text("id\n" + "1\n" * 10 + "oops\n")
    df = spark.read.format("channel").schema("id int").load(str(path))
    with pytest.raises(PySparkException) as caught:
        df.count()
    assert "bad.csv" in str(caught.value)
    assert "oops" in str(caught.value)


def test_a_source_that_disappears_fails_the_read(spark: SparkSession, people: Path) -> None:
    df = spark.read.format("channel").load(str(people))
    people.unlink()
    with pytest.raises(PySparkException, match=r"people\.csv"):
        df.count()


def test_a_time_of_day_is_text_where_the_session_takes_no_such_type(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Spark has the type since 4.1, and refuses to plan with it unless `spark.sql.timeType.enabled`."""
    duckdb = pytest.importorskip("duckdb")
    with duckdb.connect(str(tmp_path / "t.duckdb")) as database:
        database.execute(
            "CREATE TABLE t AS SELECT range id, TIME '10:00:00' + INTERVAL (range) SECOND AS moment FROM range(3)"
        )
    df = spark.read.format("channel").option("dbtable", "t").load(str(tmp_path / "t.duckdb"))
    assert dict(df.dtypes)["moment"] == "string"
    assert df.count() == 3
    assert df.groupBy("moment").count().count() == 3
    assert df.join(df.select("moment"), "moment").count() == 3
    assert [row["moment"] for row in df.cache().orderBy("moment").collect()] == [
        "10:00:00.000000",
        "10:00:01.000000",
        "10:00:02.000000",
    ]
    df.unpersist()


def test_a_table_of_the_catalog_is_answered_with_the_view_to_make(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Spark forgets the options of a Python data source in its catalog."""
    with pytest.raises(
        PySparkException, match="CREATE TEMPORARY VIEW name USING channel"
    ) as refused:
        spark.sql(
            f"CREATE TABLE forgotten USING channel OPTIONS (path '{tmp_path}/x.csv', reader 'csv')"
        )
    assert len(str(refused.value).splitlines()) <= 3, "the message, without the frames of a worker"
    spark.range(1).write.format("channel").option("dbtable", "t").mode("append").save(
        str(tmp_path / "t.db")
    )
    spark.sql(
        f"CREATE TEMPORARY VIEW kept USING channel OPTIONS (path '{tmp_path}/t.db', dbtable 't')"
    )
    try:
        spark.sql("INSERT INTO kept SELECT 7")
        assert {row.id for row in spark.table("kept").collect()} == {0, 7}
    finally:
        spark.catalog.dropTempView("kept")
