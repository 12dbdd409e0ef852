"""Files of Hive and of Spark: their calendars, zones and ways to keep times. Spark's reader is the judge."""

import datetime as dt
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import orc
from pyspark.sql import SparkSession

from spark_channel.connectors.files.formats import orc as orc_format
from spark_channel.connectors.files.formats.orc import read_footer
from spark_channel.errors import SourceError
from tests.connectors.files.helpers import read, read_all, reader_of

OLD_DAYS = ("0001-01-01", "0999-12-31", "1000-03-01", "1500-03-01", "1582-10-04", "1582-10-15")
DAYS = (*OLD_DAYS, "1969-12-31", "2024-02-29", "9999-12-31")


def columns_of(texts: Any, kind: str) -> str:
    return ", ".join(f"{kind}'{text}' AS c{number}" for number, text in enumerate(texts))


def seen_by_spark(spark: SparkSession, form: str, path: Path) -> list[Any]:
    rows = spark.read.format(form).load(str(path)).collect()
    return [value.isoformat() for value in rows[0]]


def dates_here(form: str, path: Path) -> list[Any]:
    row = read(form, path).to_pylist()[0]
    return [value.isoformat() for value in row.values()]


@pytest.mark.spark
@pytest.mark.newest
@pytest.mark.parametrize("codec", ["none", "snappy", "zlib", "zstd", "lz4"])
def test_days_of_orc_files_are_those_that_spark_wrote(
    spark: SparkSession, tmp_path: Path, codec: str
) -> None:
    frame = spark.sql(f"SELECT {columns_of(DAYS, 'DATE')}")
    frame.coalesce(1).write.option("compression", codec).orc(str(tmp_path / "out"))

    assert seen_by_spark(spark, "orc", tmp_path / "out") == list(DAYS)
    assert dates_here("orc", tmp_path / "out") == list(DAYS)


@pytest.mark.spark
def test_an_old_day_inside_another_value_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.sql("SELECT array(DATE'2024-01-01') AS new, array(DATE'1000-01-01') AS old")
    frame.coalesce(1).write.orc(str(tmp_path / "out"))

    with pytest.raises(SourceError, match="column 'old' holds 1000-01-06 inside another value"):
        read("orc", tmp_path / "out")
    assert read("orc", tmp_path / "out", columns="new").to_pylist() == [
        {"new": [dt.date(2024, 1, 1)]}
    ]


@pytest.mark.spark
@pytest.mark.parametrize("mode", ["LEGACY", "CORRECTED"])
@pytest.mark.parametrize("kind", ["INT96", "TIMESTAMP_MICROS", "TIMESTAMP_MILLIS"])
def test_parquet_is_read_in_the_calendar_of_its_footer(
    spark: SparkSession, tmp_path: Path, mode: str, kind: str
) -> None:
    settings = {
        "spark.sql.parquet.datetimeRebaseModeInWrite": mode,
        "spark.sql.parquet.int96RebaseModeInWrite": mode,
        "spark.sql.parquet.outputTimestampType": kind,
        "spark.sql.session.timeZone": "UTC",
    }
    before = {name: spark.conf.get(name) for name in settings}
    times = (
        "1000-01-01 01:02:03",
        "1582-10-04 23:59:59",
        "1850-06-01 00:00:00",
        "2262-04-12 00:00:00",
    )
    try:
        for name, value in settings.items():
            spark.conf.set(name, value)
        spark.sql(
            f"SELECT {columns_of(DAYS, 'DATE')}, "
            + ", ".join(f"TIMESTAMP'{text}' AS t{n}" for n, text in enumerate(times))
            + ", TIMESTAMP_NTZ'1000-01-01 00:00:00' AS n"
        ).coalesce(1).write.parquet(str(tmp_path / "out"))
    finally:
        for name, old in before.items():
            spark.conf.set(name, old or "")

    row = read("parquet", tmp_path / "out").to_pylist()[0]

    assert [str(row[f"c{number}"]) for number in range(len(DAYS))] == list(DAYS)
    expected = [dt.datetime.fromisoformat(text).replace(tzinfo=dt.UTC) for text in times]
    assert [row[f"t{number}"] for number in range(len(times))] == expected
    assert row["n"] == dt.datetime(1000, 1, 1)


@pytest.mark.parametrize("note", [b"2.4.8", b"3.0.1"])
def test_old_times_of_old_spark_without_a_zone_are_refused(tmp_path: Path, note: bytes) -> None:
    def written(*values: dt.datetime) -> Path:
        kind = pa.timestamp("us", "UTC")
        table = pa.table({"t": pa.array(values, kind)})
        table = table.replace_schema_metadata({b"org.apache.spark.version": note})
        path = tmp_path / "a.parquet"
        pq.write_table(table, path, use_deprecated_int96_timestamps=True, store_schema=False)
        # Spark's own files have the note in the footer, and no schema of Arrow's.
        with pq.ParquetWriter(path, table.schema, use_deprecated_int96_timestamps=True) as writer:
            writer.add_key_value_metadata({"org.apache.spark.version": note.decode()})
            writer.write_table(table)
        return path

    new = dt.datetime(2000, 1, 1, tzinfo=dt.UTC)
    assert read("parquet", written(new)).to_pylist() == [{"t": new}]
    with pytest.raises(SourceError, match=r"column 't' holds 1850-01-01 .* a time before 1900"):
        read("parquet", written(new, dt.datetime(1850, 1, 1, tzinfo=dt.UTC)))


def test_times_of_96_bits_are_instants_of_any_year(tmp_path: Path) -> None:
    far = dt.datetime(9999, 12, 31, 23, 59, 59, 999999)
    table = pa.table(
        {
            "t": [far, None, dt.datetime(1, 1, 1)],
            "deep": [{"x": [far]}, None, {"x": [None]}],
            "map": pa.array([[("k", far)], [], None], pa.map_(pa.string(), pa.timestamp("us"))),
            "local": [far] * 3,
        }
    )
    for stored in (True, False):
        path = tmp_path / f"{stored}.parquet"
        pq.write_table(
            table.drop_columns("local"),
            path,
            use_deprecated_int96_timestamps=True,
            store_schema=stored,
        )
        found = read("parquet", path)
        assert found.schema.field("t").type == pa.timestamp("us", "UTC")
        instant = far.replace(tzinfo=dt.UTC)
        assert found["t"].to_pylist() == [instant, None, dt.datetime(1, 1, 1, tzinfo=dt.UTC)]
        assert found["deep"].to_pylist() == [{"x": [instant]}, None, {"x": [None]}]
        assert found["map"].to_pylist() == [[("k", instant)], [], None]
    pq.write_table(table, tmp_path / "local.parquet")
    assert read("parquet", tmp_path / "local.parquet")["local"].to_pylist() == [far] * 3


@pytest.mark.spark
@pytest.mark.newest
def test_types_that_spark_notes_beside_those_of_orc(spark: SparkSession, tmp_path: Path) -> None:
    spark.sql(
        "SELECT TIMESTAMP'2024-07-01 12:00:00.123456' AS t, TIMESTAMP_NTZ'1000-01-01 00:00:00' AS n, "
        "array(TIMESTAMP_NTZ'2024-01-01 00:00:00') AS deep, INTERVAL '1 02:03:04.5' DAY TO SECOND AS d, "
        "INTERVAL '1-2' YEAR TO MONTH AS m"
    ).coalesce(1).write.orc(str(tmp_path / "out"))
    at = spark.read.orc(str(tmp_path / "out")).selectExpr("unix_micros(t)").collect()[0][0]

    found = read("orc", tmp_path / "out")

    assert found["t"].cast(pa.int64()).to_pylist() == [at]
    assert found.schema.field("t").type == pa.timestamp("us", "UTC")
    assert found.drop_columns("t").to_pylist() == [
        {
            "n": dt.datetime(1000, 1, 1),
            "deep": [dt.datetime(2024, 1, 1)],
            "d": dt.timedelta(days=1, hours=2, minutes=3, seconds=4.5),
            "m": "P14M",
        }
    ]


@pytest.mark.spark
@pytest.mark.parametrize("column", ["late", "deep", "early"])
def test_times_that_arrows_reader_of_orc_cannot_hold_are_refused(
    spark: SparkSession, tmp_path: Path, column: str
) -> None:
    spark.sql(
        "SELECT 1 AS n, map('k', 2) AS m, TIMESTAMP'9999-12-31 00:00:00' AS late, "
        "array(struct('x', TIMESTAMP'2262-04-13 00:00:00')) AS deep, TIMESTAMP'1677-09-20 00:00:00' AS early, "
        "TIMESTAMP'2024-01-01 00:00:00' AS fine"
    ).coalesce(1).write.orc(str(tmp_path / "out"))

    with pytest.raises(SourceError, match=f"column '{column}' holds a time outside of 1677"):
        read("orc", tmp_path / "out", columns=column)
    assert read("orc", tmp_path / "out", columns="n,m,fine").num_rows == 1


@pytest.mark.parametrize("codec", ["uncompressed", "snappy", "zlib", "zstd", "lz4"])
def test_the_footer_of_orc_is_read_whatever_its_codec(tmp_path: Path, codec: str) -> None:
    path = tmp_path / "a.orc"
    with orc.ORCWriter(str(path), compression=codec, stripe_size=1024, batch_size=100) as writer:
        for start in range(0, 1000, 100):
            writer.write(pa.table({"n": range(start, start + 100)}))
    with pa.OSFile(str(path)) as opened:
        footer = read_footer(opened)

    assert footer is not None
    assert not footer.julian
    assert sum(footer.rows) == 1000
    assert read_all(reader_of("orc", path))["n"].to_pylist() == list(range(1000))


@pytest.mark.parametrize("codec", ["snappy", "zlib", "zstd", "lz4"])
def test_a_footer_of_orc_unpacks_to_bounded_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, codec: str
) -> None:
    path = tmp_path / "a.orc"
    table = pa.table({f"column {number}": [1] for number in range(50)})
    with orc.ORCWriter(str(path), compression=codec) as writer:
        writer.write(table)
    assert read_all(reader_of("orc", path)).num_columns == 50
    monkeypatch.setattr(orc_format, "_MOST", 500)
    with (
        pa.OSFile(str(path)) as opened,
        pytest.raises(ValueError, match="unpacks to more than 500 bytes"),
    ):
        read_footer(opened)
