from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from spark_channel.errors import OptionError, SchemaError
from spark_channel.transform import Calculate


def results(values: Any, operation: Any, number: str) -> list[Any]:
    array = values if isinstance(values, pa.Array) else pa.array(values)
    outcome = Calculate("n", operation, number).apply(pa.record_batch({"n": array}))
    assert outcome.refused == ()
    found: list[Any] = outcome.batch.column(0).to_pylist()
    return found


@pytest.mark.parametrize(
    ("value", "operation", "number", "wanted"),
    [
        ("12", "+", "0.50", "12.50"),
        ("1.10", "-", "1E2", "-98.90"),
        ("-2.345", "*", "7.125", "-16.708125"),
        ("0", "*", "-0.7", "0.0"),
        ("-0", "+", "0", "0"),
        ("1E3", "+", "3", "1003"),
        ("1E3", "*", "2", "2E+3"),
        ("1E3", "-", "1E2", "9E+2"),
        ("2.5E-7", "*", "0.50", "1.250E-7"),
        ("1e-9", "*", "1e-3", "1E-12"),
        ("12", "/", "-4", "-3.00"),
        ("100", "/", "3", "33.33"),
        ("-7", "/", "3", "-2.33"),
        ("1.10", "/", "3", "0.37"),
        ("10.50 ", "/", "3.00", "3.500"),
        ("7.", "/", "3", "2.33"),
        ("+.5", "/", "3", "0.2"),
        ("1.5e3", "/", "7.125", "210.526"),
        ("1E3", "/", "3", "333.33"),
        ("0.005", "/", "2", "0.003"),
        ("-2.345", "/", "2", "-1.173"),
        ("0", "/", "3", "0.00"),
        ("0.0000001", "/", "3", "0E-7"),
        ("10.50 ", "%", "3", "1.50"),
        ("-7", "%", "3", "-1"),
        ("100", "%", "0.50", "0"),
        ("12", "%", "3.00", "0.00"),
        ("1000", "%", "3.00", "1.00"),
        ("1E3", "%", "3", "1"),
        ("1E3", "%", "0.50", "0E+1"),
        ("-1000.00", "%", "1E2", "0.00"),
        ("0.00", "%", "3", "0.00"),
        ("0", "%", "0.50", "0"),
        ("1.10", "%", "7.125", "1.10"),
        ("-2.345", "%", "1e-3", "0.000"),
        ("1000", "%", "1e-3", "0"),
        ("1.10", "^", "2", "1.2100"),
        ("-7", "^", "3", "-343"),
        ("0", "^", "0", "1"),
        ("1E3", "^", "2", "1E+6"),
        ("2.5E-7", "^", "3", "1.5625E-20"),
        ("-2.345", "^", "0", "1"),
        (" 3.25 ", "+", "0", "3.25"),
        (
            "123456789012345678901234567890.12345",
            "*",
            "1E2",
            "12345678901234567890123456789012.345",
        ),
    ],
)
def test_texts_are_those_of_javas_bigdecimal(
    value: str, operation: Any, number: str, wanted: str
) -> None:
    """What a JVM printed for these."""
    assert results([value, None, value], operation, number) == [wanted, None, wanted]


@pytest.mark.parametrize(
    ("array", "operation", "number", "wanted"),
    [
        (
            pa.array([1, -(2**63), 2**63 - 1, None]),
            "+",
            "0.50",
            ["1.50", "-9223372036854775807.50", "9223372036854775807.50", None],
        ),
        (pa.array([2**64 - 1], pa.uint64()), "*", "10", ["184467440737095516150"]),
        (
            pa.array([3]),
            "*",
            "12345678901234567890123456789012345678",
            ["37037036703703703670370370367037037034"],
        ),
        (pa.array([7], pa.int8()), "/", "2", ["3.50"]),
        (pa.array([Decimal("1.10"), Decimal("-0.05")]), "-", "1.1", ["0.00", "-1.15"]),
        (pa.array([Decimal("0.0000001")]), "*", "0.1", ["1E-8"]),
        (pa.array([Decimal("0.00000000")]), "+", "0", ["0E-8"]),
        (pa.array([Decimal("9" * 38)]), "*", "9" * 38, [str(int("9" * 38) ** 2)]),
        (pa.array([1.5, 1e20, 2.5e-7]), "*", "2", ["3.0", "200000000000000000000", "5.0E-7"]),
        (pa.array([1.0]), "/", "3", ["0.3"]),
        (pa.array(["4", "5", "4"]).dictionary_encode(), "^", "2", ["16", "25", "16"]),
        (pa.array([None], pa.null()), "+", "1", [None]),
        (pa.array([], pa.string()), "+", "1", []),
    ],
)
def test_columns_of_numbers(
    array: pa.Array, operation: Any, number: str, wanted: list[str | None]
) -> None:
    assert results(array, operation, number) == wanted


def test_what_is_not_a_number_is_refused() -> None:
    bad = ["x", "", "0x10", "NaN", "1.5f", "1,5", "1e1001", "1" * 1_001, "1e-999999999"]
    batch = pa.record_batch({"n": ["1", *bad, None]})
    outcome = Calculate(0, "+", "1").apply(batch)
    assert outcome.batch.to_pydict() == {"n": ["2", None]}
    (refused,) = outcome.refused
    assert refused.rows["n"].to_pylist() == bad
    assert "column 'n' is not a number" in refused.reason
    large = Calculate(0, "^", "99999").apply(pa.record_batch({"n": ["1", "12"]}))
    assert (large.batch.num_rows, large.refused[0].rows.num_rows) == (1, 1)


def test_the_column_becomes_text() -> None:
    schema = pa.schema([pa.field("n", pa.int64(), nullable=False)])
    assert Calculate("n", "+", "1").output_schema(schema).field("n") == pa.field(
        "n", pa.string(), nullable=False
    )
    with pytest.raises(SchemaError, match="column 'n' has type bool, which is not a number"):
        Calculate("n", "+", "1").output_schema(pa.schema([("n", pa.bool_())]))


@pytest.mark.parametrize(
    ("operation", "number", "message"),
    [
        ("&", "1", "got operation '&'; it takes one of"),
        ("+", "x", "got number 'x'; it takes a number"),
        ("/", "0.0", "it takes a number other than 0"),
        ("%", "0", "it takes a number other than 0"),
        ("^", "2.0", "a whole number from 0 for a power"),
        ("^", "-1", "a whole number from 0 for a power"),
    ],
)
def test_parameters_are_checked(operation: Any, number: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        Calculate(0, operation, number)
