"""The form in which values of two types are compared."""

import pyarrow as pa
import pytest

from spark_channel.errors import SchemaError
from spark_channel.verification.forms import common_form


@pytest.mark.parametrize(
    ("one", "other", "form"),
    [
        (pa.int32(), pa.int64(), "integer"),
        (pa.uint64(), pa.uint64(), "unsigned integer"),
        (pa.bool_(), pa.int8(), "integer (true is 1)"),
        (pa.decimal128(10, 2), pa.int64(), "decimal<2>"),
        (pa.decimal128(38, 0), pa.decimal128(38, 10), "wide decimal<10>"),
        (pa.float32(), pa.float64(), "double"),
        (pa.float64(), pa.int64(), "double (the other side's numbers are rounded to it)"),
        (pa.date32(), pa.timestamp("us"), "timestamp"),
        (pa.string(), pa.large_string(), "text"),
        (pa.string(), pa.binary(16), "uuid"),
        (pa.null(), pa.date32(), "date"),
        (pa.list_(pa.int8()), pa.large_list(pa.int64()), "array<integer>"),
    ],
)
def test_two_types_have_one_form_from_either_side(
    one: pa.DataType, other: pa.DataType, form: str
) -> None:
    assert str(common_form(one, other, "c")) == form
    assert str(common_form(other, one, "c")) == form


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (pa.string(), pa.int64()),
        (pa.date32(), pa.string()),
        (pa.struct([("a", pa.int8())]), pa.struct([("b", pa.int8())])),
    ],
)
def test_types_that_are_not_compared_are_refused_with_the_column(
    one: pa.DataType, other: pa.DataType
) -> None:
    with pytest.raises(SchemaError, match="column 'price'"):
        common_form(one, other, "price")
