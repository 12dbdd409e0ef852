"""Tokens as JSON text: equal values come back, of equal types."""

from datetime import UTC, date, datetime
from decimal import Decimal

import pytest

from spark_channel.serialization.tagged import dump_tagged, load_tagged


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        12345678901234567890,
        1.5,
        "ü\n",
        b"\x00\xff",
        date(2026, 1, 31),
        datetime(2026, 1, 31, 12, 0, 0, 123456, tzinfo=UTC),
        Decimal("1.50"),
        {"lsn": "0/1", "ids": [1, b"a", Decimal(2)], "nested": {"at": date(1, 1, 1)}},
    ],
)
def test_a_value_comes_back_equal(value: object) -> None:
    loaded = load_tagged(dump_tagged(value))
    assert loaded == value
    assert type(loaded) is type(value)


def test_a_decimal_keeps_its_digits() -> None:
    assert str(load_tagged(dump_tagged(Decimal("1.50")))) == "1.50"


def test_a_value_that_is_no_plain_data_is_refused() -> None:
    with pytest.raises(TypeError, match="object is not plain data"):
        dump_tagged({"a": [object()]})


@pytest.mark.parametrize("text", ['{"$":"colour","v":"red"}', '{"$":"bytes","v":"?"}', "{"])
def test_a_text_of_another_version_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        load_tagged(text)
