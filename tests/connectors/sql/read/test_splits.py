"""The stride of Spark's JDBC source: its boundaries, as Spark 4.3 makes them."""

from datetime import UTC, date, datetime, timedelta, timezone
from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_channel.connectors.sql.read.strides import Bound, boundaries, parse_bound
from spark_channel.errors import OptionError


@pytest.mark.parametrize(
    ("lower", "upper", "count", "expected"),
    [
        (0, 100, 4, [25, 50, 75]),
        (0, 4, 4, [1, 2, 3]),
        (0, 3, 4, [1, 2]),
        (5, 5, 4, []),
        (0, 100, 1, []),
        (1, 1000, 3, [334, 667]),
        (-10, 10, 4, [-5, 0, 5]),
        # A stride of 1.9 is cut to 1; the bounds move by half of what that loses.
        (0, 19, 10, [6, 7, 8, 9, 10, 11, 12, 13, 14]),
        (-(2**63), 2**63 - 1, 2, [0]),
        (date(2024, 1, 1), date(2024, 1, 31), 3, [date(2024, 1, 11), date(2024, 1, 21)]),
        (datetime(2024, 1, 1), datetime(2024, 1, 2), 2, [datetime(2024, 1, 1, 12)]),
    ],
)
def test_boundaries(lower: Bound, upper: Bound, count: int, expected: list[Bound]) -> None:
    assert boundaries(lower, upper, count) == expected


@given(st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**63), st.integers(1, 200))
def test_boundaries_ascend_by_equal_steps_within_the_bounds(
    lower: int, width: int, count: int
) -> None:
    found = [int(str(bound)) for bound in boundaries(lower, lower + width, count)]
    assert len(found) == max(0, min(count, width) - 1)
    assert len({after - before for before, after in pairwise(found)}) <= 1
    assert all(lower <= bound <= lower + width for bound in found)


def test_bounds_the_wrong_way_round() -> None:
    with pytest.raises(OptionError, match=r"'lowerBound' \(5\) is above 'upperBound' \(4\)"):
        boundaries(5, 4, 2)


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        (" 12 ", pa.int64(), 12),
        ("-3", pa.float64(), -3),
        ("3", pa.decimal128(10, 2), 3),
        ("2024-01-31", pa.date32(), date(2024, 1, 31)),
        ("2024-01-31 10:00:00.5", pa.timestamp("us"), datetime(2024, 1, 31, 10, 0, 0, 500_000)),
        ("2024-01-31", pa.timestamp("us"), datetime(2024, 1, 31)),
        ("2024-01-31T10:00+02:00", pa.timestamp("us", "UTC"), datetime(2024, 1, 31, 8, tzinfo=UTC)),
        ("2024-01-31", pa.timestamp("us", "UTC"), datetime(2024, 1, 31, tzinfo=UTC)),
    ],
)
def test_bounds_are_read_as_their_column(text: str, kind: pa.DataType, value: Bound) -> None:
    assert parse_bound(text, kind, "lowerBound") == value


@pytest.mark.parametrize(
    ("text", "kind", "takes"),
    [
        ("1.5", pa.int64(), "a whole number"),
        ("abc", pa.int64(), "a whole number"),
        ("31.1.2024", pa.date32(), "a date, such as"),
        ("noon", pa.timestamp("us"), "a timestamp, such as"),
        ("2024-01-01T00:00+01:00", pa.timestamp("us"), "a timestamp, such as"),
    ],
)
def test_bounds_that_do_not_fit_their_column(text: str, kind: pa.DataType, takes: str) -> None:
    with pytest.raises(
        OptionError,
        match=f"'upperBound' got '{text}'".replace("+", r"\+").replace(".", r"\.") + f".*{takes}",
    ):
        parse_bound(text, kind, "upperBound")


def test_a_column_that_cannot_be_strided() -> None:
    with pytest.raises(OptionError, match="column of type string; a stride needs"):
        parse_bound("a", pa.string(), "lowerBound")


def test_instants_keep_their_zone() -> None:
    zone = timezone(timedelta(hours=2))
    found = boundaries(datetime(2024, 1, 1, tzinfo=zone), datetime(2024, 1, 3, tzinfo=zone), 2)
    assert found == [datetime(2024, 1, 2, tzinfo=zone)]
