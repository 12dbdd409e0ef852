"""JSON lines: columns, splits, encoder."""

import base64
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.json as pajson

from spark_channel.connectors.base.types import SMALL_INT
from spark_channel.connectors.files.formats.base import Encoder, ReadRequest, Sink
from spark_channel.connectors.files.formats.json_lines import (
    LONG_NUMBER,
    count_objects,
    infer_lines,
    nests_deeply,
    why_no_objects,
)
from spark_channel.connectors.files.formats.json_reader import JsonBlocks
from spark_channel.connectors.files.formats.text import BOM, TextFile, TextFormat
from spark_channel.connectors.files.formats.text_encode import (
    compressed,
    has_text_form,
    is_long,
    join_lines,
    long_chunks,
    row_pieces,
    value_text,
)
from spark_channel.connectors.files.formats.types import Notes, map_leaves
from spark_channel.connectors.files.manifest import Dialect
from spark_channel.connectors.files.options import JsonReadOptions, JsonWriteOptions
from spark_channel.errors import SourceError
from spark_channel.lazy import compute as pc

__all__ = [
    "JsonEncoder",
    "JsonFormat",
]


_TEXT = pa.large_string()
# Beside these, only control characters must be escaped in JSON.
_ESCAPES = (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t"))
_CONTROLS = "[\\x00-\\x1f]"
_BASE64_CHUNK = 3 << 18
"""Whole groups of three bytes."""


def _text(value: str) -> pa.Scalar:
    return pa.scalar(value, _TEXT)


def _joined(*parts: Any) -> pa.Array:
    return pc.binary_join_element_wise(*parts, _text(""))


class JsonEncoder(Encoder):
    """Values become JSON column by column, in Arrow's kernels."""

    def __init__(self, sink: Sink, schema: pa.Schema, options: JsonWriteOptions) -> None:
        self._options = options
        self._sink, self._end = compressed(
            sink, options.compression or "none", options.compression_level
        )

    def write(self, batch: pa.RecordBatch) -> None:
        for part, has_long in row_pieces(batch):
            if has_long:
                self._write_long(part)
                continue
            fields = [(part.schema.field(i).name, part.column(i)) for i in range(part.num_columns)]
            self._sink.write(join_lines(self._object(fields, part.num_rows)))

    def finish(self) -> None:
        self._end()

    def _write_long(self, row: pa.RecordBatch) -> None:
        before = b"{"
        for name, values in zip(row.schema.names, row.columns, strict=True):
            if self._options.ignore_null_fields and values.null_count:
                continue
            key = json.dumps(name, ensure_ascii=False).encode()
            self._sink.write(before + key + b":")
            before = b","
            if is_long(values):
                self._sink.write(b'"')
                for chunk in _escaped_chunks(values[0]):
                    self._sink.write(chunk)
                self._sink.write(b'"')
            else:
                text = self._value(values)[0].as_py()
                self._sink.write(("null" if text is None else text).encode())
        self._sink.write(b"}\n")

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
            return pc.if_else(
                pc.is_valid(values), self._object(fields, len(values)), pa.scalar(None, _TEXT)
            )
        if types.is_map(kind):
            # As a list, since a map's `keys` and `items` ignore a slice's offset (findings/arrow-map-slice.sh) and null
            # rows.
            entry = pa.struct([("key", kind.key_type), ("value", kind.item_type)])
            rows = values.cast(pa.list_(entry))
            return self._list(rows, self._entries(rows.flatten()), "{", "}")
        if types.is_list(kind):
            return self._list(
                values, pc.coalesce(self._value(values.flatten()), _text("null")), "[", "]"
            )
        if types.is_string(kind) or types.is_large_string(kind):
            return self._quoted(values.cast(_TEXT))
        if types.is_binary(kind):
            encoded = [
                None if v is None else base64.b64encode(v).decode("ascii")
                for v in values.to_pylist()
            ]
            return _joined(_text('"'), pa.array(encoded, _TEXT), _text('"'))
        if types.is_date(kind) or types.is_timestamp(kind):
            pattern = (
                self._options.date_format if types.is_date(kind) else self._options.timestamp_format
            )
            return _joined(_text('"'), value_text(values, pattern), _text('"'))
        texts = value_text(values)
        if types.is_floating(kind):
            finite = pc.is_finite(values)
            texts = pc.if_else(finite, texts, _joined(_text('"'), texts, _text('"')))
        return texts

    def _entries(self, entries: pa.StructArray) -> pa.Array:
        keys, items = entries.flatten()
        return _joined(
            self._quoted(keys.cast(_TEXT)),
            _text(":"),
            pc.coalesce(self._value(items), _text("null")),
        )

    def _list(self, values: pa.Array, elements: pa.Array, start: str, end: str) -> pa.Array:
        lengths = pc.list_value_length(values)
        ends = pc.cumulative_sum(pc.coalesce(lengths, pa.scalar(0, lengths.type))).cast(pa.int64())
        offsets = pa.concat_arrays([pa.array([0], pa.int64()), ends])
        joined = pc.binary_join(pa.LargeListArray.from_arrays(offsets, elements), _text(","))
        joined_list = _joined(_text(start), joined, _text(end))
        return pc.if_else(pc.is_valid(values), joined_list, pa.scalar(None, _TEXT))

    def _quoted(self, values: pa.Array) -> pa.Array:
        if pc.any(pc.match_substring_regex(values, '[\\\\"\\x00-\\x1f]')).as_py():
            for character, escaped in _ESCAPES:
                values = pc.replace_substring(values, character, escaped)
            if pc.any(pc.match_substring_regex(values, _CONTROLS)).as_py():
                for code in range(32):
                    values = pc.replace_substring(values, chr(code), f"\\u{code:04x}")
        return _joined(_text('"'), values, _text('"'))


def _escaped_chunks(value: pa.Scalar) -> Iterator[bytes]:
    """What stands between the quotes for a long text or binary value."""
    if pa.types.is_binary(value.type):
        yield from map(base64.b64encode, long_chunks(value, _BASE64_CHUNK))
        return
    for chunk in long_chunks(value):
        for character, escaped in _ESCAPES:
            chunk = chunk.replace(character.encode(), escaped.encode())
        if re.search(_CONTROLS.encode(), chunk):
            for code in range(32):
                chunk = chunk.replace(bytes([code]), b"\\u%04x" % code)
        yield chunk


class JsonFormat(TextFormat):
    """JSON lines: one object per line."""

    name = "json"
    ending = "jsonl"
    refusal = "cannot be carried by JSON; cast it to text, or write Parquet"

    def sample(
        self, stream: pa.NativeFile, path: str, options: JsonReadOptions
    ) -> tuple[pa.Schema, Dialect]:
        """Fields in the order in which they appear, typed from the first `sampleBytes`."""
        file = TextFile(stream, path, path, options)
        if file.head().removeprefix(BOM).lstrip().startswith(b"["):  # which may be one long line
            raise _not_lines(path, "is one JSON array", "'.[]'")
        sample = b""
        for block in file.blocks(0, None, lambda: options.sample_bytes):
            sample += block.data
            if len(sample) >= options.sample_bytes:
                break
        if not sample.strip():
            return pa.schema([]), {}
        if _spans_lines(sample):
            raise _not_lines(path, "holds a JSON object that spans several lines", ".")
        schema = _infer(sample)
        if (
            not len(schema)
            and options.mode == "FAILFAST"
            and (fault := why_no_objects(sample.splitlines()))
        ):
            line, error = fault
            raise SourceError(f"{path}, line {line + 1}: {error.reason}") from error.cause
        # Times are text in JSON, and stay it unless `inferTimestamp` says otherwise.
        time = pa.timestamp("us") if options.infer_timestamp else pa.string()

        def as_written(kind: pa.DataType, _notes: Notes) -> pa.DataType:
            return time if pa.types.is_timestamp(kind) else kind

        return pa.schema([map_leaves(field, as_written) for field in schema]), {}

    def batches(
        self, stream: pa.NativeFile, path: str, params: Mapping[str, Any], request: ReadRequest
    ) -> Iterator[pa.RecordBatch]:
        return JsonBlocks(stream, path, params, request).batches()

    def carries(self, kind: pa.DataType) -> bool:
        types = pa.types
        if types.is_nested(kind):
            string_keys = not types.is_map(kind) or types.is_string(kind.key_type)
            return bool(
                string_keys and (types.is_struct(kind) or types.is_map(kind) or types.is_list(kind))
            )
        return has_text_form(kind) or bool(types.is_binary(kind))

    def encoder(self, sink: Sink, schema: pa.Schema, options: JsonWriteOptions) -> Encoder:
        return JsonEncoder(sink, schema, options)

    def dialect(self, options: JsonWriteOptions) -> Dialect:
        names = ("date_format", "timestamp_format", "ignore_null_fields")
        return {name: getattr(options, name) for name in names}


def _not_lines(path: str, problem: str, jq: str) -> SourceError:
    return SourceError(
        f"{path} {problem}, and this reads JSON lines: one object in each line. Convert it, for one with jq -c "
        f"{jq} {path}; or read it with spark.read.json(path, multiLine=True), and throttle that"
    )


def _spans_lines(sample: bytes) -> bool:
    """Whether the first object continues behind its line."""
    text = sample.decode("utf-8", "replace").lstrip()
    first = text.split("\n", 1)[0].rstrip()
    if first == "{":
        return True
    try:
        _, end = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        return False
    return end > len(first)


def _infer(sample: bytes) -> pa.Schema:
    """By Arrow's parser, which rounds long numbers: a sample that has some is looked at line by line."""
    lines = sample.splitlines()
    if count_objects(sample) is None:
        # Lines that are no object are the read's to report, with their place.
        lines = [text for text in map(bytes.strip, lines) if text[:1] + text[-1:] == b"{}"]
        sample = b"\n".join(lines)
    if not lines:
        return pa.schema([])
    if nests_deeply(lines) or not _is_utf8(sample):
        return infer_lines(lines)
    try:
        schema = pajson.read_json(
            pa.BufferReader(sample),
            read_options=pajson.ReadOptions(use_threads=False, block_size=len(sample) + 1),
        ).schema
    except pa.ArrowInvalid:
        return infer_lines(lines)
    if not LONG_NUMBER.search(sample):
        return pa.schema([map_leaves(field, _small) for field in schema])
    exact = infer_lines(lines)
    times = {field.name: field.type for field in schema if pa.types.is_timestamp(field.type)}
    return pa.schema([field.with_type(times.get(field.name, field.type)) for field in exact])


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _small(kind: pa.DataType, _notes: Notes) -> pa.DataType:
    """Whole numbers of at most 15 digits, which a double holds, too."""
    return SMALL_INT if pa.types.is_integer(kind) else kind
