"""The types of records, from some of them."""

from typing import Any

import pyarrow as pa
import pytest

from spark_channel.connectors.records import inferred_schema


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, 2**53], pa.int64()),
        ([1, 1.5], pa.float64()),
        ([2**53 + 1, 1], pa.int64()),
        ([2**53 + 1, 1.5], pa.string()),
        ([1.5, -(2**53) - 1], pa.string()),
        ([2**63], pa.string()),
        ([1, None], pa.int64()),
        ([None], pa.string()),
        ([1, True], pa.string()),
        ([1, "x"], pa.string()),
    ],
)
def test_a_type_holds_every_value_exactly(values: list[Any], kind: pa.DataType) -> None:
    assert inferred_schema({"a": value} for value in values) == pa.schema([("a", kind)])
