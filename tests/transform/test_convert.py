"""Conversions by DataX's rules: each family of types into each other one, and what is refused as a row."""

from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from spark_channel.transform.convert import Convert, can_convert, convert

TEXT = pa.string()
US = pa.timestamp("us")
MOMENT = datetime(2024, 1, 31, 10, 0, 5)
BAD = object()
"""Where a value is refused."""


@pytest.mark.parametrize(
    ("given", "kind", "values", "expected"),
    [
        (
            TEXT,
            pa.int64(),
            ["12", "12.0", "1e3", "+5", " 7 ", "", None],
            [12, 12, 1000, 5, 7, None, None],
        ),
        (TEXT, pa.int64(), ["12.5", "x", "99999999999999999999", "0x10"], [BAD, BAD, BAD, BAD]),
        (TEXT, pa.int8(), ["127", "128", "-129"], [127, BAD, BAD]),
        (TEXT, pa.float64(), ["1.5", "+2", "1e3", "", "x"], [1.5, 2.0, 1000.0, None, BAD]),
        (
            TEXT,
            pa.decimal128(10, 2),
            ["1.235", "1e3", "", "x", "123456789.1"],
            [Decimal("1.24"), Decimal("1000.00"), None, BAD, BAD],
        ),
        (
            TEXT,
            pa.bool_(),
            ["true", "FALSE", "1", "0", "yes", None],
            [True, False, True, False, BAD, None],
        ),
        (
            TEXT,
            US,
            ["2024-01-31 10:00:05", "2024-01-31", "2024-01-31T10:00:05.25", "31.1.24"],
            [MOMENT, datetime(2024, 1, 31), datetime(2024, 1, 31, 10, 0, 5, 250_000), BAD],
        ),
        (TEXT, pa.date32(), ["2024-01-31 10:00:05", "2024-02-30"], [date(2024, 1, 31), BAD]),
        (TEXT, pa.time64("us"), ["10:00:05", "25:00:00"], [time(10, 0, 5), BAD]),
        (TEXT, pa.binary(), ["ä", None], ["ä".encode(), None]),
        (pa.int64(), pa.int16(), [1, 32768, None], [1, BAD, None]),
        (pa.int64(), pa.float64(), [1, 2**60], [1.0, float(2**60)]),
        (pa.int64(), pa.decimal128(10, 2), [1, 123456789], [Decimal("1.00"), BAD]),
        (pa.int64(), pa.bool_(), [0, 2, None], [False, True, None]),
        (pa.uint64(), TEXT, [2**64 - 1], ["18446744073709551615"]),
        (pa.float64(), pa.int32(), [1.0, 1.5, 1e20, float("nan")], [1, BAD, BAD, BAD]),
        (
            pa.float64(),
            pa.decimal128(10, 2),
            [0.1, 1.005, 1e20],
            [Decimal("0.10"), Decimal("1.01"), BAD],
        ),
        (
            pa.float64(),
            TEXT,
            [1.0, 0.1, 1e20, float("nan"), None],
            ["1.0", "0.1", "100000000000000000000", "NaN", None],
        ),
        (pa.decimal128(10, 2), pa.int32(), [Decimal("2.00"), Decimal("2.50")], [2, BAD]),
        (
            pa.decimal128(20, 3),
            pa.decimal128(10, 2),
            [Decimal("1.505"), Decimal("-1.505"), Decimal("99999999.999")],
            [Decimal("1.51"), Decimal("-1.51"), BAD],
        ),
        (
            pa.decimal128(38, 10),
            TEXT,
            [Decimal("0.0000000012"), Decimal("1.5")],
            ["0.0000000012", "1.5000000000"],
        ),
        (pa.bool_(), TEXT, [True, False, None], ["true", "false", None]),
        (pa.bool_(), pa.int8(), [True, None], [1, None]),
        (US, TEXT, [MOMENT.replace(microsecond=9)], ["2024-01-31 10:00:05"]),
        (
            US,
            pa.date32(),
            [MOMENT, datetime(1960, 1, 31, 10)],
            [date(2024, 1, 31), date(1960, 1, 31)],
        ),
        (US, pa.timestamp("s"), [MOMENT], [MOMENT]),
        (pa.date32(), US, [date(2024, 1, 31), None], [datetime(2024, 1, 31), None]),
        (pa.date32(), TEXT, [date(2024, 1, 31)], ["2024-01-31"]),
        (pa.time64("us"), TEXT, [time(10, 0, 5)], ["10:00:05"]),
        (pa.binary(), TEXT, [b"a", b"\xff"], ["a", BAD]),
    ],
    ids=lambda value: str(value) if isinstance(value, pa.DataType) else "",
)
def test_values_become_those_of_the_target(
    given: pa.DataType, kind: pa.DataType, values: list[Any], expected: list[Any]
) -> None:
    made, bad = convert(pa.array(values, given), kind)
    assert made.type == kind
    refused = [False] * len(values) if bad is None else bad.to_pylist()
    found = [BAD if no else value for value, no in zip(made.to_pylist(), refused, strict=True)]
    assert found == expected
    empty, none = convert(pa.array([], given), kind)
    assert (len(empty), none) == (0, None)


def test_a_refused_row_is_told_with_its_column_and_the_others_go_on() -> None:
    batch = pa.record_batch(
        {"a": ["1", "x", "3"], "b": ["2024-01-01", "2024-01-01", "never"], "c": [1, 2, 3]}
    )
    step = Convert((("a", pa.int32()), ("b", pa.date32())))
    outcome = step.apply(batch)
    assert outcome.batch.schema == step.output_schema(batch.schema)
    assert outcome.batch.to_pylist() == [{"a": 1, "b": date(2024, 1, 1), "c": 1}]
    rejected = [(each.rows.to_pylist()[0]["c"], each.reason) for each in outcome.refused]
    assert rejected == [
        (2, "column 'a': string that is not a value of int32"),
        (3, "column 'b': string that is not a value of date32[day]"),
    ]


def test_whole_numbers_are_milliseconds_since_1970() -> None:
    """As DataX's LongColumn: an instant, or what the machine's clock shows then."""
    millis = pa.array([1_706_695_205_250, None, 0, 2**62, -(2**62)], pa.int64())
    moment = datetime(2024, 1, 31, 10, 0, 5, 250_000)
    made, bad = convert(millis, pa.timestamp("us", "UTC"), zone="Asia/Shanghai")
    assert made.to_pylist()[0] == moment.replace(tzinfo=UTC)
    assert bad is not None
    assert bad.to_pylist() == [False, False, False, True, True]
    local = [
        convert(millis.slice(0, 3), kind, zone="Asia/Shanghai")[0].to_pylist()
        for kind in (US, pa.date32(), pa.time64("us"))
    ]
    assert local == [
        [datetime(2024, 1, 31, 18, 0, 5, 250_000), None, datetime(1970, 1, 1, 8)],
        [date(2024, 1, 31), None, date(1970, 1, 1)],
        [time(18, 0, 5, 250_000), None, time(8)],
    ]
    # The year 9892 in nanoseconds would be 1708.
    for kind in (pa.timestamp("ns"), pa.timestamp("ns", "UTC")):
        made, bad = convert(pa.array([250_000_000_000_000, 1]), kind, zone="Asia/Shanghai")
        assert bad is not None
        assert (bad.to_pylist(), made.null_count) == ([True, False], 1)
    seconds, _ = convert(pa.array([1_001]), pa.timestamp("s", "UTC"))
    assert seconds.cast(pa.int64()).to_pylist() == [1]


def test_patterns_of_the_job_read_texts_as_times() -> None:
    made, bad = convert(pa.array(["31.01.2024", "2024-01-31"]), pa.date32(), ("%d.%m.%Y",))
    assert bad is None
    assert made.to_pylist() == [date(2024, 1, 31), date(2024, 1, 31)]


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        (US, pa.int64()),
        (pa.float64(), US),
        (pa.timestamp("us", "UTC"), US),
        (US, pa.timestamp("us", "UTC")),
        (pa.bool_(), US),
    ],
    ids=lambda value: str(value) if isinstance(value, pa.DataType) else "",
)
def test_what_has_no_meaning_is_left_to_the_writer(given: pa.DataType, kind: pa.DataType) -> None:
    assert not can_convert(given, kind)
    schema = pa.schema([("a", given)])
    assert Convert((("a", kind),)).output_schema(schema) == schema


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (pa.array([1e300, 1.5]), pa.float32()),
        (pa.array([Decimal("1e60"), Decimal("1.5")], pa.decimal256(65, 1)), pa.float32()),
        (pa.array([datetime(3000, 1, 1), datetime(2000, 1, 1)]), pa.timestamp("ns")),
        (pa.array([date(3000, 1, 1), date(2000, 1, 1)]), pa.timestamp("ns")),
        (pa.array(["3000-01-01 00:00:00", "2000-01-01 00:00:00"]), pa.timestamp("ns")),
    ],
)
def test_a_value_out_of_range_does_not_become_another(values: pa.Array, kind: pa.DataType) -> None:
    for patterns in ((), ("yyyy-MM-dd HH:mm:ss",)):
        made, bad = convert(values, kind, patterns)
        assert bad is not None
        assert bad.to_pylist() == [True, False]
        assert made.is_valid().to_pylist() == [False, True]


def test_a_float_that_is_infinite_stays_so() -> None:
    made, bad = convert(pa.array([float("inf"), float("nan"), None]), pa.float32())
    assert bad is None
    assert str(made.to_pylist()) == "[inf, nan, None]"
