"""Statistics of the files and tables that spark-channel writes: they bound the column that they name, and no other.

Names have dots beside structs and lists with the same paths. The data is what pyarrow reads of each row group and file.
"""

import datetime as dt
import itertools
import json
import math
from collections.abc import Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_channel.connectors import WriteContext, load_writer
from tests.behaviour.differential import inputs
from tests.behaviour.differential.lengths import either_length, examples

MILLISECOND = dt.timedelta(milliseconds=1)
_numbers = st.one_of(st.integers(-5, 5), inputs.ints(64))
_times = st.datetimes(dt.datetime(1583, 1, 1), dt.datetime(9999, 1, 1))
_KINDS: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.int64(), _numbers),
    (pa.float64(), st.one_of(st.floats(), st.sampled_from([0.0, -0.0, math.nan, 1.5]))),
    (pa.string(), st.one_of(inputs.texts, st.sampled_from(["\uffff" * 40, "\U0010ffff" * 40]))),
    (pa.date32(), st.dates(dt.date(1583, 1, 1))),
    (pa.timestamp("us", "UTC"), _times),
    (pa.decimal128(9, 2), inputs.decimals(9, 2)),
    (pa.bool_(), st.booleans()),
]
_INSIDE = pa.struct([("b", pa.int64()), ("b.c", pa.int64()), ("B2", pa.string())])
_NESTED: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "a": (
        _INSIDE,
        st.fixed_dictionaries(
            {
                "b": inputs.maybe(st.integers(100, 109)),
                "b.c": inputs.maybe(st.integers(200, 209)),
                "B2": inputs.maybe(st.sampled_from(["m", "n"])),
            }
        ),
    ),
    "l": (pa.list_(pa.int64()), st.lists(st.integers(300, 309), max_size=3)),
}
_FLAT = ("id", "a.b", "a.b.c", "a.B2", "l.list.element", "x y", "é", "Id2", "`q`")


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    flat = draw(st.lists(st.sampled_from(_FLAT), min_size=1, max_size=5, unique=True))
    names = draw(st.permutations([*flat, *draw(st.sampled_from([["a"], ["l"], ["a", "l"], []]))]))
    rows = draw(st.integers(1, 12))
    arrays, fields = [], []
    for name in names:
        kind, values = _NESTED[name] if name in _NESTED else draw(st.sampled_from(_KINDS))
        column = draw(st.lists(inputs.maybe(values), min_size=rows, max_size=rows))
        arrays.append(pa.array(column, kind))
        fields.append(pa.field(name, kind))
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def write(form: str, path: Path, table: pa.Table, **options: Any) -> None:
    writer, _ = load_writer({"writer": form, "path": str(path), **options})
    plan = writer.prepare(WriteContext(path.name), table.schema)
    task = writer.open(plan, 0, 0)
    for batch in table.to_batches(max_chunksize=5):
        task.write(batch)
    writer.commit(plan, [task.close()])


def leaves(table: pa.Table) -> Iterator[list[Any]]:
    """The values of each leaf of a Parquet file, in the order of its leaves; lists have the values of their items."""
    for column in table.columns:
        yield from _leaves(column.combine_chunks())


def _leaves(array: pa.Array) -> Iterator[list[Any]]:
    if pa.types.is_struct(array.type):
        for item in array.flatten():
            yield from _leaves(item)
    elif pa.types.is_list(array.type):
        yield array.flatten().to_pylist()
    else:
        yield array.to_pylist()


def comparable(values: Sequence[Any]) -> list[Any]:
    return [
        value.encode() if isinstance(value, str) else value
        for value in values
        if value is not None and not (isinstance(value, float) and math.isnan(value))
    ]


def check_bounds(shown: str, low: Any, high: Any, values: Sequence[Any]) -> None:
    there = comparable(values)
    for value in there:
        assert low is None or comparable([low])[0] <= value, f"{shown}: {low!r} > {value!r}"
        assert high is None or comparable([high])[0] >= value, f"{shown}: {high!r} < {value!r}"


@either_length
def test_footers_of_parquet_bound_each_column(tmp_path: Path, length: str) -> None:
    paths = (tmp_path / str(number) for number in itertools.count())
    bounded = 0

    @examples(length, quick=12)
    @given(tables())
    def check(table: pa.Table) -> None:
        nonlocal bounded
        path = next(paths)
        write("parquet", path, table)
        (file,) = path.glob("*.parquet")
        opened = pq.ParquetFile(file)
        for number in range(opened.num_row_groups):
            group, columns = (
                opened.metadata.row_group(number),
                list(leaves(opened.read_row_group(number))),
            )
            assert len(columns) == group.num_columns
            for column, values in enumerate(columns):
                told = group.column(column)
                statistics = told.statistics
                if statistics is None:
                    continue
                if statistics.has_min_max:
                    bounded += 1
                    check_bounds(told.path_in_schema, statistics.min, statistics.max, values)
                if statistics.has_null_count and "list" not in told.path_in_schema:
                    assert statistics.null_count == values.count(None), told.path_in_schema

    check()
    assert bounded


def parsed(value: Any, kind: pa.DataType) -> Any:
    """What the log of a Delta table says; it cuts times to milliseconds."""
    if value is None or pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return value
    if pa.types.is_string(kind):
        return value
    if pa.types.is_floating(kind):
        return float(value)
    if pa.types.is_decimal(kind):
        return Decimal(str(value))
    if pa.types.is_date(kind):
        return dt.date.fromisoformat(value)
    return dt.datetime.fromisoformat(value)


def logged(path: Path) -> Iterator[tuple[pa.Table, dict[str, Any]]]:
    """Each file of a Delta table, and what the log says of its columns."""
    for entry in sorted((path / "_delta_log").glob("*.json")):
        for line in entry.read_text(encoding="utf-8").splitlines():
            add = json.loads(line, parse_float=Decimal).get("add")
            if add is not None:
                file = pq.ParquetFile(path / add["path"])
                yield file.read(), json.loads(add["stats"], parse_float=Decimal)


@either_length
def test_the_log_of_delta_bounds_each_column(tmp_path: Path, length: str) -> None:
    pytest.importorskip("deltalake")
    paths = (tmp_path / str(number) for number in itertools.count())
    bounded = 0

    @examples(length, quick=15)
    @given(tables())
    def check(table: pa.Table) -> None:
        nonlocal bounded
        path = next(paths)
        write("delta", path, table)
        total = 0
        for data, told in logged(path):
            total += data.num_rows
            assert told["numRecords"] == data.num_rows
            names = {name for key in ("minValues", "maxValues", "nullCount") for name in told[key]}
            assert names <= set(table.column_names)
            for name in names:
                kind, values = data.schema.field(name).type, data.column(name).to_pylist()
                if pa.types.is_nested(kind):
                    raise AssertionError(f"{name} has statistics of its own: {told}")
                assert told["nullCount"].get(name) in (None, values.count(None)), name
                low = parsed(told["minValues"].get(name), kind)
                high = parsed(told["maxValues"].get(name), kind)
                if pa.types.is_timestamp(kind) and high is not None:
                    high += MILLISECOND
                bounded += low is not None
                check_bounds(name, low, high, values)
        assert total == table.num_rows

    check()
    assert bounded
