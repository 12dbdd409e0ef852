"""COPY's bytes as the server takes them: ADBC reads back the values that were written."""

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given, settings

from spark_channel.connectors.postgresql.copy.encoding import copy_rows
from spark_channel.connectors.postgresql.copy.format import ELEMENT
from spark_channel.connectors.postgresql.session import PgWriteSession
from spark_channel.connectors.postgresql.types import ELEMENTS
from spark_channel.errors import TargetError
from tests.connectors.postgresql.pg import Pg

TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
NUMBERS: list[tuple[str, pa.DataType]] = [
    ("numeric(4,0)", pa.decimal128(4, 0)),
    ("numeric(15,2)", pa.decimal128(15, 2)),
    ("numeric(16,5)", pa.decimal128(16, 5)),
    ("numeric(18,18)", pa.decimal128(18, 18)),
    ("numeric(19,1)", pa.decimal128(19, 1)),
    ("numeric(38,0)", pa.decimal128(38, 0)),
    ("numeric(38,18)", pa.decimal128(38, 18)),
    ("numeric(38,38)", pa.decimal128(38, 38)),
]


def _decimals(kind: pa.DataType) -> st.SearchStrategy[Decimal]:
    most = 10**kind.precision - 1
    return st.integers(-most, most).map(lambda whole: Decimal(f"{whole}e-{kind.scale}"))


def _whole(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(1 << (bits - 1)), (1 << (bits - 1)) - 1)


PLAIN: list[tuple[str, pa.DataType, st.SearchStrategy[Any]]] = [
    ("bool", pa.bool_(), st.booleans()),
    ("int2", pa.int16(), _whole(16)),
    ("int4", pa.int32(), _whole(32)),
    ("int8", pa.int64(), _whole(64)),
    ("float4", pa.float32(), st.floats(width=32, allow_nan=False)),
    ("float8", pa.float64(), st.floats(allow_nan=False)),
    ("text", pa.string(), TEXT),
    ("varchar", pa.string(), TEXT),
    ("bytea", pa.binary(), st.binary(max_size=20)),
    ("date", pa.date32(), st.dates()),
    ("time", pa.time64("us"), st.times()),
    ("timestamp", pa.timestamp("us"), st.datetimes()),
    ("timestamptz", pa.timestamp("us", "UTC"), st.datetimes(timezones=st.just(UTC))),
]
COLUMNS = [
    *PLAIN,
    *((declared, kind, _decimals(kind)) for declared, kind in NUMBERS),
    *(
        (f"{declared}[]", pa.list_(kind), st.lists(st.none() | values, max_size=4))
        for declared, kind, values in PLAIN
    ),
]


def _field(name: str, declared: str, kind: pa.DataType) -> pa.Field:
    element = ELEMENTS.get(declared.removesuffix("[]"), 0)
    return pa.field(
        name, kind, metadata={ELEMENT: str(element).encode()} if pa.types.is_list(kind) else None
    )


def test_whatever_is_copied_is_read_again(pg: Pg) -> None:
    names = [f"c{number}" for number in range(len(COLUMNS))]
    declared = ", ".join(f"{name} {each[0]}" for name, each in zip(names, COLUMNS, strict=True))
    pg.psql(f"CREATE TABLE t ({declared})")
    schema = pa.schema([_field(name, *each[:2]) for name, each in zip(names, COLUMNS, strict=True)])
    rows = st.tuples(*(st.none() | each[2] for each in COLUMNS))

    with PgWriteSession(pg.writer().options, failure=TargetError, purpose="test") as session:

        @settings(max_examples=25)
        @given(st.lists(rows, min_size=1, max_size=6), st.integers(0, 3), st.booleans())
        def copied(values: list[tuple[Any, ...]], first: int, filled: bool) -> None:
            if filled:  # without a NULL the bytes are made another way
                values = [row for row in values if None not in row] or [FULL]
            columns = [list(column) for column in zip(*values, strict=True)]
            arrays = [
                pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)
            ]
            batch = pa.RecordBatch.from_arrays(arrays, schema=schema).slice(first)
            session.execute("TRUNCATE t")
            session.copy(pg.schema, "t", copy_rows(batch))
            found = pg.read()
            assert found.to_pylist() == batch.to_pylist()

        copied()


FULL = (
    True,
    -1,
    2,
    -3,
    0.5,
    -1e300,
    "a",
    "",
    b"\xff",
    date(1, 1, 1),
    time(23, 59, 59, 999_999),
    datetime(9999, 12, 31),
    datetime(1, 1, 1, tzinfo=UTC),
    Decimal(-9999),
    Decimal("10000.01"),
    Decimal("0.00001"),
    Decimal("1e-18"),
    Decimal("-0.1"),
    Decimal(10) ** 37,
    Decimal("-1e-18"),
    Decimal("1e-38"),
    *([] for _ in PLAIN),
)


def test_a_value_of_every_type_and_no_null(pg: Pg) -> None:
    names = [f"c{number}" for number in range(len(COLUMNS))]
    pg.psql(
        f"CREATE TABLE t ({', '.join(f'{n} {each[0]}' for n, each in zip(names, COLUMNS, strict=True))})"
    )
    schema = pa.schema([_field(name, *each[:2]) for name, each in zip(names, COLUMNS, strict=True)])
    batch = pa.RecordBatch.from_pylist([dict(zip(names, FULL, strict=True))] * 3, schema=schema)
    with PgWriteSession(pg.writer().options, failure=TargetError, purpose="test") as session:
        session.copy(pg.schema, "t", copy_rows(batch))
        session.copy(pg.schema, "t", copy_rows(batch.slice(0, 0)))
    assert pg.read().to_pylist() == batch.to_pylist()


def _scaled(whole: int, kind: pa.DataType) -> pa.Array:
    """A decimal of more scale than digits, or of less than none: Arrow makes none of Python's."""
    return pa.Array.from_buffers(
        kind, 1, pa.array([Decimal(whole)], pa.decimal128(38, 0)).buffers()
    )


@pytest.mark.parametrize(
    ("declared", "array", "text"),
    [
        ("numeric", pa.array([Decimal("1.50")], pa.decimal128(3, 2)), "1.50"),
        ("numeric", _scaled(-123, pa.decimal128(3, -2)), "-12300"),
        ("numeric", _scaled(12, pa.decimal128(2, 5)), "0.00012"),
        ("numeric", pa.array([Decimal(0)], pa.decimal128(38, 10)), "0.0000000000"),
        ("numeric", pa.array([-(Decimal(10) ** 75)], pa.decimal256(76, 0)), "-1" + "0" * 75),
        ("numeric", pa.array([Decimal("1e-40")], pa.decimal256(76, 40)), "0." + "0" * 39 + "1"),
        (
            "interval",
            pa.array([timedelta(days=1, microseconds=-1)], pa.duration("us")),
            "23:59:59.999999",
        ),
        (
            "interval",
            pa.array([pa.MonthDayNano([14, -3, 5_000_000])], pa.month_day_nano_interval()),
            "1 year 2 mons -3 days +00:00:00.005",
        ),
        (
            "uuid",
            pa.array([bytes(range(16))], pa.binary(16)),
            "00010203-0405-0607-0809-0a0b0c0d0e0f",
        ),
        ("float8", pa.array([float("nan")]), "NaN"),
        ("float4", pa.array([float("-inf")], pa.float32()), "-Infinity"),
    ],
    ids=str,
)
def test_the_servers_own_text_of_it(pg: Pg, declared: str, array: pa.Array, text: str) -> None:
    pg.psql(f"CREATE TABLE t (v {declared})")
    with PgWriteSession(pg.writer().options, failure=TargetError, purpose="test") as session:
        session.copy(pg.schema, "t", copy_rows(pa.record_batch([array], ["v"])))
    assert pg.psql("SELECT v FROM t") == text


@pytest.mark.parametrize(
    ("declared", "array"),
    [
        ("timestamp", pa.array([-(1 << 63) + 1, (1 << 63) - 1], pa.timestamp("us"))),
        ("timestamptz", pa.array([-(1 << 63) + 946_684_800_000_000], pa.timestamp("us", "UTC"))),
        ("date", pa.array([-(1 << 31)], pa.date32())),
        ("time", pa.array([86_400_000_001], pa.time64("us"))),
    ],
    ids=["timestamp", "timestamptz", "date", "time"],
)
def test_what_no_calendar_holds_is_refused_and_not_another_day(
    pg: Pg, declared: str, array: pa.Array
) -> None:
    pg.psql(f"CREATE TABLE t (v {declared})")
    with (
        PgWriteSession(pg.writer().options, failure=TargetError, purpose="test") as session,
        pytest.raises(TargetError, match="out of range"),
    ):
        session.copy(pg.schema, "t", copy_rows(pa.record_batch([array], ["v"])))
    assert pg.psql("SELECT count(*) FROM t") == "0"


def test_a_decimal_of_more_digits_than_it_says_keeps_them(pg: Pg) -> None:
    """Arrow does not look at what others put into its buffers."""
    pg.psql("CREATE TABLE t (v numeric)")
    honest = pa.array([Decimal(123_456_789), Decimal(-1)], pa.decimal128(38, 0))
    liar = pa.Array.from_buffers(pa.decimal128(5, 2), 2, honest.buffers())
    with PgWriteSession(pg.writer().options, failure=TargetError, purpose="test") as session:
        session.copy(pg.schema, "t", copy_rows(pa.record_batch([liar], ["v"])))
    assert pg.psql("SELECT string_agg(v::text, ' ') FROM t") == "1234567.89 -0.01"


def test_a_batch_without_rows_has_no_bytes() -> None:
    assert copy_rows(pa.record_batch([pa.array([], pa.decimal128(38, 5))], ["v"])).count == 0
