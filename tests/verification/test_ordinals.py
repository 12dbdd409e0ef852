"""Whole numbers in order, of every way in which Arrow holds them."""

import pyarrow as pa
import pytest

from spark_channel.verification.forms import Form
from spark_channel.verification.ordinals import has_ordinals, ordinals


@pytest.mark.parametrize(
    "values",
    [
        pa.array([3, 1, 2], pa.int8()),
        pa.array([3, 1, 2]).dictionary_encode(),
        pa.array([0, 3, 1, 2, 0]).slice(1, 3),
    ],
)
def test_numbers_are_read_as_they_are(values: pa.Array) -> None:
    numbers, nulls = ordinals(values)
    assert numbers.tolist() == [3, 1, 2]
    assert nulls is None


def test_null_is_said_apart() -> None:
    _, nulls = ordinals(pa.array([1, None, 3]))
    assert nulls is not None
    assert nulls.tolist() == [False, True, False]
    numbers, nulls = ordinals(pa.nulls(2))
    assert (len(numbers), nulls is not None and nulls.all()) == (2, True)


def test_only_whole_numbers_have_an_order_that_all_systems_share() -> None:
    assert has_ordinals(Form("integer"))
    assert not any(has_ordinals(Form(name)) for name in ("text", "double", "unsigned integer"))
