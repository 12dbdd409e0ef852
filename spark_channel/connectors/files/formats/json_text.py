"""Writes JSON lines: values become JSON column by column, in Arrow's kernels."""

import base64
import json
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from spark_channel.connectors.files.formats.base import Encoder
from spark_channel.connectors.files.formats.values import compressed, join_lines, strftime_pattern, value_text
from spark_channel.connectors.files.options import JsonWriteOptions

__all__ = ["JsonEncoder"]

_ROWS = 16_384
_TEXT = pa.large_string()
# Beside these, only control characters must be escaped in JSON.
_ESCAPES = (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t"))
_CONTROLS = "[\\x00-\\x1f]"


def _text(value: str) -> pa.Scalar:
    return pa.scalar(value, _TEXT)


def _joined(*parts: Any) -> pa.Array:
    return pc.binary_join_element_wise(*parts, _text(""))


class JsonEncoder(Encoder):
    def __init__(self, sink: Any, schema: pa.Schema, options: JsonWriteOptions) -> None:
        self._options = options
        self._sink, self._end = compressed(sink, options.compression or "none", options.compression_level)

    def write(self, batch: pa.RecordBatch) -> None:
        for start in range(0, batch.num_rows, _ROWS):
            part = batch.slice(start, _ROWS)
            fields = [(part.schema.field(i).name, part.column(i)) for i in range(part.num_columns)]
            self._sink.write(join_lines(self._object(fields, part.num_rows)))

    def finish(self) -> None:
        self._end()

    def _object(self, fields: list[tuple[str, pa.Array]], rows: int) -> pa.Array:
        if not fields:
            return pa.repeat(_text("{}"), rows)
        pieces = []
        for name, values in fields:
            key = _text(json.dumps(name, ensure_ascii=False) + ":")
            text = self._value(values)
            if self._options.ignore_null_fields:
                pieces.append(pc.coalesce(_joined(key, text, _text(",")), _text("")))
            else:
                pieces.append(_joined(key, pc.coalesce(text, _text("null")), _text(",")))
        inner = pc.binary_join_element_wise(*pieces, _text(""))
        # Each field ends with a comma, the last one too.
        trimmed = pc.utf8_slice_codeunits(inner, 0, -1)
        return _joined(_text("{"), trimmed, _text("}"))

    def _value(self, values: pa.Array) -> pa.Array:
        """The JSON text of each value; NULL for NULL."""
        kind = values.type
        types = pa.types
        if types.is_struct(kind):
            # flatten() carries the struct's own nulls down to its fields.
            fields = [(kind.field(i).name, child) for i, child in enumerate(values.flatten())]
            return pc.if_else(pc.is_valid(values), self._object(fields, len(values)), pa.scalar(None, _TEXT))
        if types.is_map(kind):
            # As a list, since a map's `keys` and `items` ignore a slice's offset and null rows.
            entry = pa.struct([("key", kind.key_type), ("value", kind.item_type)])
            rows = values.cast(pa.list_(entry))
            return self._list(rows, self._entries(rows.flatten()), "{", "}")
        if types.is_list(kind):
            return self._list(values, pc.coalesce(self._value(values.flatten()), _text("null")), "[", "]")
        if types.is_string(kind) or types.is_large_string(kind):
            return self._quoted(values.cast(_TEXT))
        if types.is_binary(kind):
            encoded = [None if v is None else base64.b64encode(v).decode("ascii") for v in values.to_pylist()]
            return _joined(_text('"'), pa.array(encoded, _TEXT), _text('"'))
        if types.is_date(kind) or types.is_timestamp(kind):
            pattern = self._options.date_format if types.is_date(kind) else self._options.timestamp_format
            return _joined(_text('"'), value_text(values, strftime_pattern(pattern)), _text('"'))
        texts = value_text(values)
        if types.is_floating(kind):
            finite = pc.is_finite(values)
            texts = pc.if_else(finite, texts, _joined(_text('"'), texts, _text('"')))
        return texts

    def _entries(self, entries: pa.StructArray) -> pa.Array:
        keys, items = entries.flatten()
        return _joined(
            self._quoted(keys.cast(_TEXT)), _text(":"), pc.coalesce(self._value(items), _text("null"))
        )

    def _list(self, values: pa.Array, elements: pa.Array, start: str, end: str) -> pa.Array:
        lengths = pc.list_value_length(values)
        ends = pc.cumulative_sum(pc.coalesce(lengths, pa.scalar(0, lengths.type))).cast(pa.int64())
        offsets = pa.concat_arrays([pa.array([0], pa.int64()), ends])
        joined = pc.binary_join(pa.LargeListArray.from_arrays(offsets, elements), _text(","))
        made = _joined(_text(start), joined, _text(end))
        return pc.if_else(pc.is_valid(values), made, pa.scalar(None, _TEXT))

    def _quoted(self, values: pa.Array) -> pa.Array:
        if pc.any(pc.match_substring_regex(values, '[\\\\"\\x00-\\x1f]')).as_py():
            for character, escaped in _ESCAPES:
                values = pc.replace_substring(values, character, escaped)
            if pc.any(pc.match_substring_regex(values, _CONTROLS)).as_py():
                for code in range(32):
                    values = pc.replace_substring(values, chr(code), f"\\u{code:04x}")
        return _joined(_text('"'), values, _text('"'))
