"""Values of job files: DataX reads numbers and flags from strings too, and so do these."""

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from spark_channel.datax.value_types import (
    Delimiter,
    Encoding,
    Flag,
    Fraction,
    NotNegative,
    Positive,
    Speed,
    Texts,
)


@pytest.mark.parametrize(
    ("kind", "value", "parsed"),
    [
        (Positive, "3", 3),
        (Positive, 3.0, 3),
        (NotNegative, 0, 0),
        (Speed, -1, None),
        (Speed, "1000", 1000),
        (Fraction, "0.02", 0.02),
        (Flag, "True", True),
        (Texts, "a", ("a",)),
        (Texts, ["a", " ", 1], ("a", "1")),
        (Delimiter, "\\u0001", "\x01"),
        (Delimiter, "\\t", "\t"),
        (Delimiter, "||", "||"),
        (Encoding, " ", "utf-8"),
    ],
)
def test_a_value_is_read_as_datax_reads_it(kind: Any, value: object, parsed: object) -> None:
    assert TypeAdapter(kind).validate_python(value) == parsed


@pytest.mark.parametrize(
    ("kind", "value", "takes"),
    [
        (Positive, 0, "a whole number from 1"),
        (Positive, True, "a whole number from 1"),
        (Positive, 1.5, "a whole number from 1"),
        (NotNegative, 2**63, "a whole number from 0"),
        (Speed, -2, "0 or -1: no limit"),
        (Fraction, 1.01, "a number from 0 to 1"),
        (Fraction, True, "a number from 0 to 1"),
        (Flag, "yes", "true or false"),
        (Texts, [["a"]], "a text, or a list of texts"),
    ],
)
def test_another_value_is_refused_with_what_it_takes(kind: Any, value: object, takes: str) -> None:
    with pytest.raises(ValidationError, match=takes):
        TypeAdapter(kind).validate_python(value)
