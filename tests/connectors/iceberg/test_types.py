"""Every type both ways: pyiceberg and this reader read back what was written; values that do not fit are refused."""

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyiceberg")
pytest.importorskip("sqlalchemy")

from pyiceberg.catalog import Catalog

from spark_channel.errors import SchemaError, SourceError, TargetError
from tests.connectors.iceberg.helpers import read, rows_by_pyiceberg, shop, write

_TIME = dt.datetime(2024, 2, 29, 23, 59, 59, 123456)
_ZONED = _TIME.replace(tzinfo=dt.UTC)
EXACT: list[tuple[pa.DataType, pa.DataType, list[Any]]] = [
    (pa.bool_(), pa.bool_(), [True, False]),
    (pa.int8(), pa.int32(), [-128, 127]),
    (pa.int16(), pa.int32(), [-(2**15), 2**15 - 1]),
    (pa.int32(), pa.int32(), [-(2**31), 2**31 - 1]),
    (pa.int64(), pa.int64(), [-(2**63), 2**63 - 1]),
    (pa.uint8(), pa.int32(), [0, 255]),
    (pa.uint16(), pa.int32(), [0, 2**16 - 1]),
    (pa.uint32(), pa.int64(), [0, 2**32 - 1]),
    (pa.float16(), pa.float32(), [0.5, -2.0]),
    (pa.float32(), pa.float32(), [1.5, float("inf")]),
    (pa.float64(), pa.float64(), [0.1, -1e300]),
    (
        pa.decimal128(38, 10),
        pa.decimal128(38, 10),
        [Decimal("-1234567890123456789012345678.0123456789")],
    ),
    (pa.decimal128(5, 0), pa.decimal128(5, 0), [Decimal(99999)]),
    (pa.date32(), pa.date32(), [dt.date(1, 1, 1), dt.date(9999, 12, 31)]),
    (pa.timestamp("us"), pa.timestamp("us"), [_TIME, dt.datetime(1, 1, 1)]),
    (pa.timestamp("ms"), pa.timestamp("us"), [_TIME.replace(microsecond=123000)]),
    (pa.timestamp("ns"), pa.timestamp("us"), [_TIME]),
    (pa.timestamp("us", "UTC"), pa.timestamp("us", "UTC"), [_ZONED]),
    (pa.timestamp("us", "Europe/Berlin"), pa.timestamp("us", "UTC"), [_ZONED]),
    (pa.string(), pa.string(), ["", "ü\n\0", "x" * 100]),
    (pa.large_string(), pa.string(), ["a"]),
    (pa.dictionary(pa.int8(), pa.string()), pa.string(), ["a", "b", "a"]),
    (pa.binary(), pa.binary(), [b"", b"\0\xff"]),
    (pa.binary(2), pa.binary(2), [b"ab"]),
    (pa.time64("us"), pa.time64("us"), [dt.time(23, 59, 59, 999999)]),
    (pa.time32("ms"), pa.time64("us"), [dt.time(1, 2, 3, 4000)]),
    (pa.list_(pa.int32()), pa.list_(pa.int32()), [[], [1, None]]),
    (pa.list_(pa.uint8(), 2), pa.list_(pa.int32()), [[1, 255]]),
    (
        pa.struct([("x", pa.int32()), ("y", pa.string())]),
        pa.struct([("x", pa.int32()), ("y", pa.string())]),
        [{"x": 1, "y": None}, {"x": None, "y": "a"}],
    ),
    (
        pa.map_(pa.string(), pa.int64()),
        pa.map_(pa.string(), pa.int64()),
        [[("a", 1), ("b", None)], []],
    ),
]
REFUSED = [
    pa.uint64(),
    pa.decimal256(40, 2),
    pa.duration("s"),
    pa.month_day_nano_interval(),
    pa.null(),
    pa.date64(),
    pa.list_(pa.uint64()),
    pa.struct([("x", pa.duration("s"))]),
]


@pytest.mark.parametrize(("given", "kept", "values"), EXACT, ids=[str(case[0]) for case in EXACT])
def test_values_come_back(
    tmp_path: Path, catalog: Catalog, given: pa.DataType, kept: pa.DataType, values: list[Any]
) -> None:
    path = tmp_path
    column = pa.array([*values, None], pa.float32() if pa.types.is_float16(given) else given)
    table = pa.table({"n": range(len(values) + 1), "x": column.cast(given)})
    write(path, table)
    write(path, table)  # into a table that is there
    expected = table["x"].to_pylist() * 2
    for found in (read(path), rows_by_pyiceberg(catalog, "shop.t")):
        rows = found["x"].to_pylist()
        assert sorted(rows, key=repr) == sorted(expected, key=repr)
    assert read(path).schema.field("x").type.equals(kept), read(path).schema


@pytest.mark.parametrize("kind", REFUSED, ids=str)
def test_types_that_iceberg_lacks_are_refused(
    tmp_path: Path, catalog: Catalog, kind: pa.DataType
) -> None:
    with pytest.raises(
        SchemaError, match=r"column 'x' of type .* has no exact counterpart in Iceberg"
    ):
        write(tmp_path, pa.table({"n": [1], "x": pa.nulls(1, kind)}))
    assert not catalog.table_exists("shop.t")


def test_values_that_would_be_cut_are_refused(tmp_path: Path, catalog: Catalog) -> None:
    fine = pa.table({"x": pa.array([1], pa.timestamp("ns"))})
    with pytest.raises(TargetError, match="column 'x' holds a value that does not fit timestamp"):
        write(tmp_path, fine)


def test_types_that_a_table_does_not_hold_are_refused(tmp_path: Path, catalog: Catalog) -> None:
    path = tmp_path
    write(path, pa.table({"x": pa.array([1], pa.int32())}))
    write(path, pa.table({"x": pa.array([2], pa.int16())}))
    for kind in (pa.int64(), pa.uint32(), pa.float64(), pa.string()):
        with pytest.raises(SchemaError, match=f"column 'x' is {kind}, and .* has it as int32"):
            write(path, pa.table({"x": pa.nulls(1, kind)}))
    assert sorted(read(path)["x"].to_pylist()) == [1, 2]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.int32(), -3),
        (pa.int64(), 2**60),
        (pa.date32(), dt.date(2024, 2, 29)),
        (pa.bool_(), True),
    ],
)
def test_partition_columns_of_each_type(
    tmp_path: Path, catalog: Catalog, kind: pa.DataType, value: Any
) -> None:
    path = tmp_path
    table = pa.table({"p": pa.array([value, None], kind), "id": [1, 2]})
    write(path, table, partitionBy="p")
    for found in (read(path), rows_by_pyiceberg(catalog, "shop.t")):
        assert found.sort_by("id").select(["p", "id"]).to_pylist() == table.to_pylist()
    write(path, table, overwrite=True)
    assert read(path).num_rows == 2


@pytest.mark.parametrize(
    "kind", [pa.float64(), pa.timestamp("us"), pa.binary(), pa.decimal128(5, 2)], ids=str
)
def test_partition_columns_without_an_exact_text_are_refused(
    tmp_path: Path, catalog: Catalog, kind: pa.DataType
) -> None:
    with pytest.raises(SchemaError, match="partition column 'p'"):
        write(tmp_path, pa.table({"p": pa.nulls(1, kind), "id": [1]}), partitionBy="p")


def rewritten(catalog: Catalog, name: str, rows: pa.Table, note: str = "", **how: Any) -> None:
    """A table of `rows`, whose data file is written again: as another tool than pyiceberg would write it."""
    table = catalog.create_table(name, rows.schema)
    table.append(pa.table([pa.nulls(len(rows), kind) for kind in rows.schema.types], rows.schema))
    (task,) = table.scan().plan_files()
    path = urlsplit(task.file.file_path).path
    schema = pq.read_schema(path).remove_metadata()
    with pq.ParquetWriter(path, schema, store_schema=False, **how) as out:
        if note:
            out.add_key_value_metadata({"org.apache.spark.version": note})
        out.write_table(rows.cast(schema))


@pytest.mark.parametrize(
    ("value", "note", "fine"),
    [
        (dt.datetime(2024, 1, 1), "", True),
        (dt.datetime(9999, 12, 31), "", False),
        (dt.datetime(2024, 1, 1), "2.4.8", True),
        (dt.datetime(1800, 1, 1), "2.4.8", False),
    ],
)
def test_a_data_file_whose_times_pyiceberg_would_change_is_refused(
    tmp_path: Path, value: dt.datetime, note: str, fine: bool
) -> None:
    zoned = pa.array([value.replace(tzinfo=dt.UTC)], pa.timestamp("us", "UTC"))
    rows = pa.table({"ts": zoned, "day": [dt.date(2024, 1, 1)]})
    with shop(tmp_path) as catalog:
        rewritten(catalog, "shop.t", rows, note, use_deprecated_int96_timestamps=True)
        if fine:
            assert read(tmp_path).to_pylist() == rows.to_pylist()
        else:
            with pytest.raises(SourceError, match="column 'ts' holds"):
                read(tmp_path)


def test_a_null_list_or_map_of_structs_is_not_an_empty_one(tmp_path: Path) -> None:
    """pyiceberg alone copies it without its NULLs."""
    struct = pa.struct([("x", pa.bool_())])
    lists = pa.list_(struct)
    given = [None, [], [None], [{"x": None}], [{"x": True}]]
    table = pa.table(
        {
            "l": pa.array(given, lists),
            "m": pa.array(
                [None if each is None else [("k", each)] for each in given],
                pa.map_(pa.string(), lists),
            ),
            "n": pa.array(
                [None, [], [("k", None)], [("k", {"x": None})], None], pa.map_(pa.string(), struct)
            ),
            "s": pa.array([{"l": each} for each in given], pa.struct([("l", lists)])),
            "ll": pa.array([[each] for each in given], pa.list_(lists)),
        }
    )
    with shop(tmp_path):
        write(tmp_path, table)
        assert read(tmp_path).to_pylist() == table.to_pylist()
        assert read(tmp_path, columns="l").to_pylist() == table.select(["l"]).to_pylist()


def test_a_null_struct_has_no_field_that_is_not_null(tmp_path: Path, catalog: Catalog) -> None:
    struct = pa.struct([pa.field("a", pa.int64(), nullable=False), pa.field("b", pa.string())])
    kind = pa.map_(pa.string(), pa.list_(pa.field("element", struct)))
    table = catalog.create_table("shop.t", pa.schema([("id", pa.int64()), ("x", kind)]))
    # As Spark sends it: each field of a NULL struct is NULL.
    nulls = pa.array([True, False])
    structs = pa.StructArray.from_arrays(
        [pa.array([None, 5]), pa.array([None, "x"])], fields=list(struct), mask=nulls
    )
    lists = pa.ListArray.from_arrays(pa.array([0, 2], pa.int32()), structs)
    maps = pa.MapArray.from_arrays(pa.array([0, 1], pa.int32()), pa.array(["k"]), lists)
    rows = pa.table({"id": [1], "x": maps})
    write(tmp_path, rows)
    write(tmp_path, rows, writeMode="upsert", keyColumns="id")
    assert read(tmp_path).to_pylist() == rows.to_pylist()
    assert table.refresh().scan(selected_fields=("id",)).to_arrow().to_pylist() == [{"id": 1}]


def test_text_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    raw = pa.array([b"\xff\xfe"]).view(pa.string())
    with shop(tmp_path) as catalog:
        rewritten(catalog, "shop.t", pa.table({"s": raw}), write_statistics=False)
        with pytest.raises(SourceError, match=r"'s'.*UTF8"):
            read(tmp_path)


def test_rows_that_the_log_counts_are_read(tmp_path: Path) -> None:
    with shop(tmp_path) as catalog:
        catalog.create_table("shop.t", pa.schema([("n", pa.int64())])).append(
            pa.table({"n": [1, 2]})
        )
        (task,) = catalog.load_table("shop.t").scan().plan_files()
        path = urlsplit(task.file.file_path).path
        pq.write_table(pq.read_table(path).slice(1), path)
        with pytest.raises(SourceError, match="has 1 rows, and the table's log says 2"):
            read(tmp_path)
