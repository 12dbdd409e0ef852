"""Notes of how long texts may be."""

from typing import Any

import pyarrow as pa
import pytest

from spark_channel.arrow_schema import (
    TEXT_LENGTH,
    UNLIMITED,
    length_in,
    noted,
    text_lengths,
    widest,
    without_notes,
)
from spark_channel.transform import prepare
from spark_channel.transform.select import Output, Rename, Select

PLAIN = pa.schema([("id", pa.int64()), pa.field("item", pa.string(), metadata={"more": "kept"})])


def test_a_note_is_metadata_of_its_field_and_makes_no_other_schema() -> None:
    schema = noted(PLAIN, {"item": "200"})
    assert schema.field("item").metadata == {TEXT_LENGTH.encode(): b"200", b"more": b"kept"}
    assert schema.equals(PLAIN)
    assert text_lengths(schema) == {"item": "200"}
    assert without_notes(schema).equals(PLAIN, check_metadata=True)
    assert text_lengths(PLAIN) == {}
    assert noted(PLAIN, {}) is PLAIN
    assert without_notes(PLAIN) is PLAIN


@pytest.mark.parametrize(
    ("value", "means"),
    [
        ("200", "200"),
        (b"200", "200"),
        ("0200", "200"),
        ("unlimited", UNLIMITED),
        ("0", None),
        ("-1", None),
        ("1e3", None),
        ("٣", None),
        ("", None),
        (200, None),
        (b"\xff", None),
        (None, None),
    ],
)
def test_what_is_no_length_says_nothing(value: Any, means: str | None) -> None:
    assert length_in({TEXT_LENGTH: value}) == means
    assert length_in(None) is None


def test_of_several_sources_the_longest_counts_where_all_tell() -> None:
    assert widest([{"a": "9", "b": "9", "c": "9"}, {"a": "10", "b": UNLIMITED}]) == {
        "a": "10",
        "b": UNLIMITED,
    }
    assert widest([]) == {}


def test_steps_keep_a_note_where_they_keep_the_values() -> None:
    schema = noted(PLAIN, {"item": "200"})
    renamed = prepare([Rename(("key", "text"))], schema).output_schema
    assert text_lengths(renamed) == {"text": "200"}
    picked = prepare([Select((Output("item", "text"), Output("id", "item")))], schema).output_schema
    assert text_lengths(picked) == {"text": "200"}
    cast = prepare([Select((Output("item", "text", pa.binary()),))], schema).output_schema
    assert text_lengths(cast) == {}
