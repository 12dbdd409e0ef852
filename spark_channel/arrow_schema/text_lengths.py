"""How long the texts of a source's column may be: a note in the metadata of Arrow's and Spark's fields."""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

__all__ = [
    "TEXT_LENGTH",
    "UNLIMITED",
    "TextLengths",
    "length_in",
    "noted",
    "text_lengths",
    "widest",
    "without_notes",
]

TEXT_LENGTH = "spark_channel.arrow_schema"
"""The key. Its value is the number of characters that the source's column holds, or `UNLIMITED`."""
UNLIMITED = "unlimited"

TextLengths = Mapping[str, str]
"""Column -> what the note says. A column without a note is not in it."""


def length_in(metadata: Mapping[Any, Any] | None, key: str | bytes = TEXT_LENGTH) -> str | None:
    """What a field's metadata says; None = nothing, or nothing that is understood."""
    note = (metadata or {}).get(key)
    text = note.decode(errors="replace") if isinstance(note, bytes) else note
    if text == UNLIMITED:
        return UNLIMITED
    if not isinstance(text, str) or not (text.isascii() and text.isdecimal()):
        return None
    return str(int(text)) if int(text) else None


def text_lengths(schema: pa.Schema) -> dict[str, str]:
    """What the notes of an Arrow schema say."""
    lengths_found = {
        field.name: length_in(field.metadata, TEXT_LENGTH.encode()) for field in schema
    }
    return {name: length for name, length in lengths_found.items() if length is not None}


def noted(schema: pa.Schema, lengths: TextLengths) -> pa.Schema:
    """`schema` with these notes."""
    if not lengths:
        return schema
    fields = [
        field.with_metadata({**(field.metadata or {}), TEXT_LENGTH: lengths[field.name]})
        if field.name in lengths
        else field
        for field in schema
    ]
    return pa.schema(fields, schema.metadata)


def without_notes(schema: pa.Schema) -> pa.Schema:
    """`schema` without its notes."""
    key = TEXT_LENGTH.encode()
    if not any(key in (field.metadata or {}) for field in schema):
        return schema
    fields = [
        field.with_metadata(
            {name: value for name, value in (field.metadata or {}).items() if name != key}
        )
        for field in schema
    ]
    return pa.schema(fields, schema.metadata)


def widest(schemas: Sequence[TextLengths]) -> dict[str, str]:
    """The longest of several sources, for the columns of which all say something."""
    names = [
        name
        for name in (schemas[0] if schemas else {})
        if all(name in lengths for lengths in schemas)
    ]
    merged = {}
    for name in names:
        lengths = [lengths[name] for lengths in schemas]
        merged[name] = UNLIMITED if UNLIMITED in lengths else str(max(map(int, lengths)))
    return merged
