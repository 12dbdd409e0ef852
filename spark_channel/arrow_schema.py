"""Arrow batches cast to a schema; text lengths in its metadata."""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from spark_channel.errors import SchemaError

__all__ = [
    "TEXT_LENGTH",
    "UNLIMITED",
    "TextLengths",
    "conform",
    "length_in",
    "noted",
    "text_lengths",
    "widest",
    "without_notes",
]


# How long the texts of a source's column may be: a note in the metadata of Arrow's and Spark's
# fields.


TEXT_LENGTH = "spark_channel.arrow_schema"
"""The key. Its value is the number of characters that the source's column holds, or `UNLIMITED`."""
UNLIMITED = "unlimited"

TextLengths = Mapping[str, str]
"""Column -> what the note says. A column without a note is not in it."""


def length_in(metadata: Mapping[Any, Any] | None, key: str | bytes = TEXT_LENGTH) -> str | None:
    """What a field's metadata says; None = nothing, or nothing that is understood."""
    found = (metadata or {}).get(key)
    text = found.decode(errors="replace") if isinstance(found, bytes) else found
    if text == UNLIMITED:
        return UNLIMITED
    if not isinstance(text, str) or not (text.isascii() and text.isdecimal()):
        return None
    return str(int(text)) if int(text) else None


def text_lengths(schema: pa.Schema) -> dict[str, str]:
    """What the notes of an Arrow schema say."""
    found = {field.name: length_in(field.metadata, TEXT_LENGTH.encode()) for field in schema}
    return {name: length for name, length in found.items() if length is not None}


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


def widest(each: Sequence[TextLengths]) -> dict[str, str]:
    """The longest of several sources, for the columns of which all say something."""
    names = [name for name in (each[0] if each else {}) if all(name in lengths for lengths in each)]
    found = {}
    for name in names:
        lengths = [lengths[name] for lengths in each]
        found[name] = UNLIMITED if UNLIMITED in lengths else str(max(map(int, lengths)))
    return found


# Casts batches to the declared schema without loss, or refuses them.


def conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """`batch` with exactly `schema`: columns picked by name, types cast without loss.

    Costs nothing for a batch that has it already.

    Raises:
        SchemaError: a column that is not there, a value that the column's type cannot hold, or a null where
            the schema promises none; names the column.
    """
    if batch.schema.equals(schema):
        return batch
    if batch.schema.names != schema.names:
        missing = [name for name in schema.names if batch.schema.names.count(name) != 1]
        if missing:
            raise SchemaError(
                f"a batch has columns {', '.join(batch.schema.names)}; "
                f"promised were {', '.join(schema.names)}"
            )
        batch = batch.select(schema.names)
    columns = [_cast(column, field) for column, field in zip(batch.columns, schema, strict=True)]
    if not columns:
        return batch
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _cast(column: pa.Array, field: pa.Field) -> pa.Array:
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    if not field.nullable and column.null_count:
        raise SchemaError(f"column {field.name!r} holds a null, and its schema promises none")
    if column.type.equals(field.type):
        return column
    try:
        return column.cast(field.type, safe=True)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise SchemaError(
            f"column {field.name!r} of type {column.type} does not fit {field.type}: {error}"
        ) from error
