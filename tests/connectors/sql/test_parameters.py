"""A row of parameters, as Arrow would make it."""

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_channel.connectors.sql.parameters import one_row

VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.text(st.characters(exclude_categories=["Cs"])),
    st.binary(),
    st.dates(),
)


@given(st.lists(VALUES, min_size=1, max_size=5))
def test_it_is_the_row_that_arrow_makes(values: list[Any]) -> None:
    row = one_row(values)
    assert row is not None
    row.validate(full=True)
    assert row.equals(
        pa.RecordBatch.from_arrays(
            [pa.array([value]) for value in values], [str(n) for n in range(len(values))]
        )
    )


def test_no_parameters_are_no_row() -> None:
    assert one_row(()) is None


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1])
def test_a_number_that_no_column_holds_is_refused_as_arrow_refuses_it(value: int) -> None:
    with pytest.raises(OverflowError):
        pa.array([value])
    with pytest.raises(OverflowError):
        one_row([value])
