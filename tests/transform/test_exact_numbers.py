"""Numbers that keep what was read."""

import pyarrow as pa
import pytest

from spark_channel.transform.exact_numbers import (
    Converted,
    as_carried,
    carried_type,
    exact_field,
    is_exact,
    java_double,
    kept,
)


def cast(array: pa.Array, kind: pa.DataType) -> Converted:
    return array.cast(kind), None


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0.0, "0.0"),
        (-0.0, "0.0"),
        (1.0, "1.0"),
        (0.001, "0.001"),
        (0.0001, "1.0E-4"),
        (1234567.5, "1234567.5"),
        (1e7, "1.0E7"),
        (-1.5e300, "-1.5E300"),
        (float("nan"), "NaN"),
        (float("-inf"), "-Infinity"),
        (None, None),
    ],
)
def test_a_double_is_written_as_java_writes_it(number: float | None, text: str | None) -> None:
    assert java_double(pa.array([number], pa.float64())).to_pylist() == [text]


def test_a_field_of_a_number_is_carried_as_a_text_or_a_decimal() -> None:
    double, whole = pa.field("d", pa.float64()), pa.field("w", pa.int64(), nullable=False)
    assert [is_exact(kind) for kind in (double.type, whole.type, pa.string())] == [
        True,
        True,
        False,
    ]
    assert exact_field(double).type == pa.string()
    assert exact_field(whole).type == pa.decimal128(38, 0)
    assert not exact_field(whole).nullable
    assert carried_type(exact_field(double)) == pa.float64()
    assert carried_type(exact_field(whole)) == pa.int64()
    assert carried_type(pa.field("text", pa.string())) == pa.string()


def test_a_text_keeps_its_digits_and_what_is_no_number_is_said() -> None:
    texts = pa.array(["12345678901234567.89", "1.50", "0x1F", "NaN", None])
    array, refused = kept(texts, pa.float64(), cast)
    assert array.to_pylist() == ["12345678901234567.89", "1.50", None, "NaN", None]
    assert refused is not None
    assert refused.to_pylist() == [False, False, True, False, False]


def test_a_carried_number_becomes_a_number_for_a_step_that_asks() -> None:
    array, refused = as_carried(pa.array(["1.5"]), exact_field(pa.field("d", pa.float64())), cast)
    assert (array.to_pylist(), refused) == ([1.5], None)
