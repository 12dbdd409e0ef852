"""Checks of what a file library returns: it copies bytes that are no text and times that no day has, and trusts the
offsets of Arrow files."""

import pyarrow as pa

from spark_channel.connectors.files.formats.base import ReadRequest, inner_types
from spark_channel.connectors.files.formats.types import as_type
from spark_channel.errors import SchemaError, SourceError

__all__ = ["check_types", "check_values", "checked"]

_PART = 64 << 10
_VALIDATED = (pa.types.is_nested, pa.types.is_dictionary, pa.types.is_time)


def check_types(schema: pa.Schema, path: str) -> pa.Schema:
    """Return `schema`, whose names are text and whose types pyarrow all knows.

    Raises:
        SchemaError: names the column, whose type may be an interval of months, which has no class in pyarrow.
    """
    for number, field in enumerate(schema, 1):
        try:
            for _, kind in inner_types(field.name, field.type):
                pa.nulls(0, kind)
        except pa.ArrowNotImplementedError:
            continue  # a class there is, but it makes no NULLs
        except UnicodeDecodeError as error:
            raise SchemaError(
                f"{path}: the name of column {number}, or of a field in it, is not UTF-8: {error.object!r}. "
                "Write the file again with another name"
            ) from error
        except KeyError as error:
            raise SchemaError(
                f"{path}: column {field.name!r} ({field.type}) has a type that pyarrow cannot represent. Cast it to "
                "another type where the file is written"
            ) from error
    return schema


def checked(
    batch: pa.RecordBatch, wanted: ReadRequest, readable: pa.Schema, *, decoded: bool
) -> pa.RecordBatch:
    """Return `batch` in the types of `readable`, the columns of its file. Its text is UTF-8.

    A column that is wanted as binary may hold any bytes, and keeps them.
    `decoded`: the library computed the offsets. Those of an Arrow file come from the file: wrong ones end the process.

    Raises:
        SourceError: names the column.
    """
    check_values(batch, wanted.schema, wanted.shown, decoded=decoded)
    columns = []
    for name, values in zip(batch.schema.names, batch.columns, strict=True):
        kind = readable.field(name).type
        same = values.type.equals(kind)
        if same or (pa.types.is_string(kind) and _wants_bytes(name, wanted.schema)):
            columns.append(values)
            continue
        try:
            columns.append(as_type(values, kind))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise SourceError(
                f"{wanted.shown}: column {name!r} ({values.type}) cannot be read as {kind}: {error}"
            ) from error
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def check_values(batch: pa.RecordBatch, wanted: pa.Schema, shown: str, *, decoded: bool) -> None:
    """
    Raises:
        SourceError: text that is not UTF-8 in a column that is not `wanted` as binary, a time that no day has, or
            offsets that are wrong.
    """
    for name, values in zip(batch.schema.names, batch.columns, strict=True):
        try:
            _check(values, decoded=decoded, any_bytes=_wants_bytes(name, wanted))
        except pa.ArrowInvalid as error:
            reason = str(error).splitlines()[0]
            fix = (
                "; to read its bytes, give a schema in which it is binary"
                if "UTF8" in reason
                else ""
            )
            raise SourceError(
                f"{shown}: column {name!r} ({values.type}) holds a value that is not valid: {reason}{fix}"
            ) from error


def _check(values: pa.Array, *, decoded: bool, any_bytes: bool) -> None:
    """Raises pa.ArrowInvalid. Looks at no more than it must: a full validation takes 5 ns for each text or time."""
    kind = values.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        if not decoded:
            values.view(pa.binary() if pa.types.is_string(kind) else pa.large_binary()).validate(
                full=True
            )
        if any_bytes or _is_ascii(values):
            return
    elif decoded and not any(each(kind) for each in _VALIDATED):
        return
    values.validate(full=True)


def _wants_bytes(name: str, wanted: pa.Schema) -> bool:
    return any(
        field.name.lower() == name.lower()
        and (pa.types.is_binary(field.type) or pa.types.is_large_binary(field.type))
        for field in wanted
    )


def _is_ascii(values: pa.Array) -> bool:
    _, offsets, data = values.buffers()
    if not len(values) or data is None or offsets is None:  # no offsets are needed for no values
        return True
    edges = memoryview(offsets).cast("i" if pa.types.is_string(values.type) else "q")
    start, end = edges[values.offset], edges[values.offset + len(values)]
    return all(
        data.slice(at, min(_PART, end - at)).to_pybytes().isascii()
        for at in range(start, end, _PART)
    )
