"""Types that Spark has, and files do not: they are numbers there, and Spark notes what they are."""

import datetime as dt
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tests.connectors.files.helpers import read, reader_of

INTERVALS = """
SELECT * FROM VALUES
  (1, INTERVAL '1 02:03:04.000005' DAY TO SECOND, INTERVAL '7' HOUR, INTERVAL '1-2' YEAR TO MONTH, INTERVAL '-3' MONTH),
  (2, INTERVAL '-1' DAY, NULL, INTERVAL '0' MONTH, NULL)
AS t(id, d, h, y, m)
"""


@pytest.mark.spark
@pytest.mark.parametrize("form", ["parquet", "orc"])
def test_intervals_are_those_that_spark_wrote(
    spark: SparkSession, tmp_path: Path, form: str
) -> None:
    path = str(tmp_path / "out")
    spark.sql(INTERVALS).coalesce(1).write.format(form).save(path)
    written = (
        spark.read.format(form)
        .load(path)
        .orderBy("id")
        .selectExpr(
            "d",
            "h",
            "12 * extract(YEAR FROM y) + extract(MONTH FROM y) y",
            "extract(MONTH FROM m) m",
        )
        .collect()
    )
    days = [dt.timedelta(1, 7384, 5), dt.timedelta(-1)]
    assert [tuple(row) for row in written] == [
        (days[0], dt.timedelta(hours=7), 14, -3),
        (days[1], None, 0, None),
    ]

    found = read(form, path)

    assert found.schema.field("d").type == pa.duration("us")
    assert [tuple(row.values())[1:] for row in found.to_pylist()] == [
        (days[0], dt.timedelta(hours=7), "P14M", "P-3M"),
        (days[1], None, "PT0S", None),
    ]


@pytest.mark.spark
def test_intervals_inside_others_and_beside_numbers(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "out")
    frame = spark.sql(
        "SELECT struct(5L AS n, INTERVAL '1' DAY AS d) s, array(INTERVAL '2' MONTH) a, "
        "map('k', INTERVAL '3' SECOND) m, 4L AS `s.d`, INTERVAL '6' DAY AS `a.b`, cast(7 AS decimal(9,2)) AS x"
    )
    frame.coalesce(1).write.parquet(path)

    (row,) = read("parquet", path).to_pylist()

    assert row == {
        "s": {"n": 5, "d": dt.timedelta(1)},
        "a": ["P2M"],
        "m": [("k", dt.timedelta(seconds=3))],
        "s.d": 4,
        "a.b": dt.timedelta(6),
        "x": Decimal("7.00"),
    }


def test_a_footer_whose_notes_are_of_other_columns_is_read_as_numbers(tmp_path: Path) -> None:
    for number, notes in enumerate(
        (
            '{"type":"struct","fields":[{"name":"b","type":"interval day"}]}',
            '{"type":"struct","fields":[{"name":"a","type":{"type":"array","elementType":"interval day"}}]}',
            '{"type":"struct","fields":[{"name":"a"}]}',
            "no JSON",
        )
    ):
        path = tmp_path / f"{number}.parquet"
        schema = pa.schema(
            [("s", pa.struct([("a", pa.int64())])), ("a", pa.string())],
            metadata={"org.apache.spark.sql.parquet.row.metadata": notes},
        )
        pq.write_table(pa.table({"s": [{"a": 1}], "a": ["x"]}, schema=schema), path)
        assert read("parquet", path).to_pylist() == [{"s": {"a": 1}, "a": "x"}]


@pytest.mark.spark
def test_row_groups_are_not_skipped_by_the_numbers_of_intervals(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = str(tmp_path / "out")
    spark.sql("SELECT id, make_ym_interval(0, cast(id AS int)) m FROM range(20)").coalesce(
        1
    ).write.parquet(path)
    assert read("parquet", path, where="m = 'P11M'").to_pylist() == [{"id": 11, "m": "P11M"}]
    given = pa.schema([("m", pa.string()), ("id", pa.int64())])
    reader = reader_of("parquet", path, where="m = 'P11M'").with_schema(given)
    assert [batch.num_rows for split in reader.split(1) for batch in reader.read(split)] == [1]
