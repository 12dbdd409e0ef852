from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from spark_channel.errors import OptionError, SchemaError
from spark_channel.transform import DropRows

TEXT = ["a", "b", "c", None]


def kept(step: DropRows, values: list[Any], kind: pa.DataType) -> list[Any]:
    batch = pa.record_batch({"value": pa.array(values, kind), "row": pa.array(range(len(values)))})
    assert step.output_schema(batch.schema).equals(batch.schema)
    outcome = step.apply(batch)
    assert outcome.refused == ()
    return [values[row] for row in outcome.batch.column(1).to_pylist()]


@pytest.mark.parametrize(
    ("operator", "value", "left"),
    [
        ("=", "b", ["a", "c", None]),
        ("!=", "b", ["b"]),
        (">", "b", ["a", "b", None]),
        (">=", "b", ["a", None]),
        ("<", "b", ["b", "c", None]),
        ("<=", "b", ["c", None]),
        ("like", "[ab]", ["c", None]),
        ("like", "a|x", ["b", "c", None]),
        ("not like", "[ab]", ["a", "b"]),
        ("=", "null", ["a", "b", "c"]),
        ("!=", "NULL", [None]),
    ],
)
def test_rows_that_meet_the_condition_are_dropped(
    operator: Any, value: str, left: list[Any]
) -> None:
    assert kept(DropRows("value", operator, value), TEXT, pa.string()) == left


def test_like_must_match_the_whole_text() -> None:
    assert kept(DropRows(0, "like", "b"), ["abc", "b"], pa.string()) == ["abc"]


NOON = datetime(2024, 1, 1, 12)


@pytest.mark.parametrize(
    ("kind", "values", "operator", "value", "left"),
    [
        (pa.int32(), [9, 10, 11], ">=", "10", [9]),
        (pa.int64(), [9, 10], "<", "99999999999999999999", []),
        (pa.uint64(), [1, 2**64 - 1], "=", str(2**64 - 1), [1]),
        (pa.float64(), [1.0, 2.5], ">", "2", [1.0]),
        (pa.float32(), [0.5, 1.5], "=", "1.5", [0.5]),
        (pa.decimal128(5, 2), [Decimal("1.50"), Decimal("1.51")], "<=", "1.5", [Decimal("1.51")]),
        (pa.timestamp("ms"), [NOON, datetime(2024, 1, 2)], ">", "2024-01-01T12:00:00", [NOON]),
        (pa.timestamp("us", "UTC"), [NOON.replace(tzinfo=UTC)], "=", "1704110400000", []),
        (pa.date32(), [date(1970, 1, 1), date(1970, 1, 2)], "=", "86400000", [date(1970, 1, 1)]),
        (pa.bool_(), [True, False], "=", "true", [False]),
        (pa.binary(), [b"a", b"b"], "=", "a", [b"b"]),
        (pa.int64(), [1, None], "=", "null", [1]),
        (pa.int64(), [1, None], "!=", "null", [None]),
        (pa.int64(), [1, None, 2], "!=", "1", [1]),
        (pa.int64(), [10, 21, None], "like", "1.", [21, None]),
        (pa.dictionary(pa.int8(), pa.string()), ["a", "b"], "=", "a", ["b"]),
    ],
)
def test_each_type_compares_as_itself(
    kind: pa.DataType, values: list[Any], operator: Any, value: str, left: list[Any]
) -> None:
    assert kept(DropRows("value", operator, value), values, kind) == left


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.int64(), "1.5"),
        (pa.int64(), "ten"),
        (pa.float64(), "x"),
        (pa.decimal128(5, 2), "x"),
        (pa.date32(), "soon"),
        (pa.list_(pa.int64()), "1"),
    ],
)
def test_a_value_that_does_not_compare_is_refused_before_a_row_moves(
    kind: pa.DataType, value: str
) -> None:
    with pytest.raises(SchemaError, match="'value'"):
        DropRows("value", ">", value).output_schema(pa.schema([("value", kind)]))


@pytest.mark.parametrize(
    ("operator", "value"), [("~", "a"), ("=", ""), ("like", "(?=look)ahead"), ("like", "(open")]
)
def test_a_condition_that_makes_no_sense_is_refused_when_it_is_made(
    operator: Any, value: str
) -> None:
    with pytest.raises(OptionError, match="it takes"):
        DropRows("value", operator, value)
