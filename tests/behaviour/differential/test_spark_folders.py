"""Folders that several jobs of Spark wrote: orders, cases, types and NULLs of columns, dots in names.

Spark itself is the judge: its rows of the same folder, with `mergeSchema`.
"""

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.connectors.files.helpers import read

pytestmark = pytest.mark.spark

Row = dict[str, Any]

COLUMNS = {
    "id": "bigint",
    "a": "struct<b: bigint, `c.d`: string>",
    "a.b": "bigint",
    "a.c.d": "string",
    "t": "string",
    "list": "array<bigint>",
    "list.element": "bigint",
    "price": "decimal(12,2)",
    "at": "timestamp",
    "local": "timestamp_ntz",
    "day": "date",
    "m": "map<string, bigint>",
}
_PLAIN = ("id", "a.b", "a.c.d", "t", "list.element", "price")
SEEDS = range(4)


def _value(name: str, chance: random.Random) -> Any:
    number = chance.randrange(10)
    if chance.random() < 0.3:
        return None
    kind = COLUMNS[name]
    if kind == "bigint":
        return number
    if kind == "string":
        return ["", "x", "é", "z" * 40][number % 4]
    return {
        "a": {"b": 100 + number, "c.d": f"inner {number}"},
        "list": [number, None, 2],
        "price": Decimal(number) / 4,
        "at": datetime(1_900 + 20 * number, 3, 1, 2, 30),
        "local": datetime(1_890 + 20 * number, 3, 1, 2, 30, 0, 123_456),
        "day": datetime(1_580 + 60 * number, 2, 28).date(),
        "m": {"k": number, "none": None},
    }[name]


def _append(
    session: SparkSession, form: str, path: Path, names: Sequence[str], chance: random.Random
) -> None:
    """One job of one or two files, which has some of the columns in an order of its own."""
    chosen = ["id", *(name for name in names if name != "id" and chance.random() < 0.8)]
    chance.shuffle(chosen)
    rows = [{name: _value(name, chance) for name in chosen} for _ in range(chance.randrange(1, 8))]
    schema = ", ".join(f"`{name}` {COLUMNS[name]}" for name in chosen)
    frame = session.createDataFrame([tuple(row[name] for name in chosen) for row in rows], schema)
    if form == "parquet":
        times = chance.choice(["INT96", "TIMESTAMP_MICROS", "TIMESTAMP_MILLIS"])
        session.conf.set("spark.sql.parquet.outputTimestampType", times)
    frame.repartition(chance.choice([1, 2])).write.mode("append").format(form).save(str(path))


@pytest.fixture
def session(spark: SparkSession) -> Iterator[SparkSession]:
    yield spark
    spark.conf.unset("spark.sql.parquet.outputTimestampType")


def _plain(value: Any) -> Any:
    """Values as both readers show them: maps and structs as pairs, moments in UTC."""
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, dict):
        return sorted((key, _plain(inner)) for key, inner in value.items())
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value


def _counted(table: pa.Table, names: Sequence[str]) -> Counter[str]:
    return Counter(repr([_plain(row[name]) for name in names]) for row in table.to_pylist())


def _in_microseconds(table: pa.Table) -> pa.Table:
    """Arrow shows nanoseconds by another class; nothing here has any."""
    for place, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type):
            column = table.column(place).cast(pa.timestamp("us", field.type.tz and "UTC"))
            table = table.set_column(place, field.name, column)
    return table


@pytest.mark.parametrize("form", ["parquet"])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_folder_of_several_jobs_has_the_rows_that_spark_has(
    session: SparkSession, tmp_path: Path, form: str, seed: int
) -> None:
    chance = random.Random(f"{form} {seed}")
    path = tmp_path / "folder"
    names = sorted([*chance.sample(sorted(COLUMNS), 7), "id"])
    for _ in range(3):
        _append(session, form, path, names, chance)
    theirs = session.read.option("mergeSchema", "true").format(form).load(str(path))
    expected = _in_microseconds(theirs.toArrow())
    ours = _in_microseconds(read(form, path, chance.randrange(1, 5), mergeSchema="true"))
    assert sorted(ours.column_names) == sorted(theirs.columns)
    assert _counted(ours, theirs.columns) == _counted(expected, theirs.columns)
    for name in set(_PLAIN) & set(theirs.columns):
        for condition in ("IS NULL", "IS NOT NULL"):
            right = theirs.where(f"`{name}` {condition}").count()
            found = read(form, path, 2, mergeSchema="true", where=f'"{name}" {condition}')
            assert found.num_rows == right, (name, condition)
        if COLUMNS[name] == "bigint":
            right = theirs.where(f"`{name}` > 4").count()
            assert read(form, path, 2, where=f'"{name}" > 4').num_rows == right, name
