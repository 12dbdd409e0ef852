"""Rows as Stream Load's text: columns between \\x01, rows between \\x02, NULL as \\N."""

import hashlib

import pyarrow as pa
import pyarrow.compute as pc

from spark_channel.connectors.records.values import json_text
from spark_channel.errors import SchemaError

__all__ = ["HEADERS", "check_types", "digest", "encoded"]

_COLUMN, _ROW, _NULL = "\x01", "\x02", r"\N"
# The end of a row is `line_delimiter` in Doris and `row_delimiter` in StarRocks; each ignores the other's.
HEADERS = {"format": "csv", "column_separator": r"\x01", "row_delimiter": r"\x02", "line_delimiter": r"\x02"}


def check_types(schema: pa.Schema) -> None:
    """
    Raises:
        SchemaError: a type that has no text there.
    """
    types = pa.types
    for field in schema:
        kind = field.type
        if (
            types.is_binary(kind)
            or types.is_large_binary(kind)
            or types.is_duration(kind)
            or types.is_map(kind)
        ):
            raise SchemaError(
                f"column {field.name!r} of type {kind} has no text in a Stream Load; cast it to a string, such as hex()"
            )


def encoded(batch: pa.RecordBatch, zone: str) -> tuple[bytes, list[tuple[int, str]]]:
    """The text of the rows, and those that have none: (number, why)."""
    texts = [_text(array, zone) for array in batch.columns]
    refused: dict[int, str] = {}
    for field, given, text in zip(batch.schema, batch.columns, texts, strict=True):
        if (
            pa.types.is_string(given.type)
            or pa.types.is_large_string(given.type)
            or pa.types.is_nested(given.type)
        ):
            bad = pc.or_(pc.match_substring_regex(text, "[\x01\x02]"), pc.equal(text, _NULL))
            for number in pc.indices_nonzero(pc.fill_null(bad, False)).to_pylist():
                refused.setdefault(
                    number,
                    f"column {field.name!r}: a text with \\x01 or \\x02 in it, or \\N, which means NULL there",
                )
    whole = [pc.fill_null(text, _NULL) for text in texts]
    lines = pc.binary_join_element_wise(*whole, _COLUMN) if len(whole) > 1 else whole[0]
    if len(whole) == 1:
        for number in pc.indices_nonzero(pc.equal(lines, "")).to_pylist():
            refused.setdefault(
                number,
                f"column {batch.schema.names[0]!r}, the only one: an empty text is an empty line, which the server "
                "leaves out; load another column with it",
            )
    if refused:
        good = [number for number in range(batch.num_rows) if number not in refused]
        lines = lines.take(pa.array(good, pa.int64()))
    data = "".join(f"{line}{_ROW}" for line in lines.to_pylist()).encode()
    return data, sorted(refused.items())


def digest(data: bytes) -> int:
    """A number of the rows of `data`, whatever their order; add those of its parts, modulo 2 ** 128."""
    rows = data.split(_ROW.encode())[:-1]
    return sum(int.from_bytes(hashlib.blake2b(row, digest_size=16).digest(), "big") for row in rows)


def _text(array: pa.Array, zone: str) -> pa.Array:
    kind, types = array.type, pa.types
    if types.is_dictionary(kind):
        return _text(array.dictionary_decode(), zone)
    if types.is_boolean(kind):
        return pc.if_else(array, "1", "0")
    if types.is_timestamp(kind):
        moment = array.cast(pa.timestamp("us", kind.tz))
        if kind.tz:
            moment = pc.local_timestamp(moment.cast(pa.timestamp("us", zone)))
        return moment.cast(pa.string())
    if types.is_nested(kind):
        return pa.array(
            [None if each is None else json_text(each) for each in array.to_pylist()], pa.string()
        )
    return array.cast(pa.string())
