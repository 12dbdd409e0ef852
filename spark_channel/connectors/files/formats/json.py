"""JSON lines: one object per line."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.json as pajson

from spark_channel.connectors.files.exact_types import SMALL_INT
from spark_channel.connectors.files.formats.base import Encoder, Wanted
from spark_channel.connectors.files.formats.json_blocks import JsonBlocks
from spark_channel.connectors.files.formats.json_lines import (
    LONG_NUMBER,
    count_objects,
    infer_lines,
    nests_deeply,
    why_no_objects,
)
from spark_channel.connectors.files.formats.json_text import JsonEncoder
from spark_channel.connectors.files.formats.text import TextFormat
from spark_channel.connectors.files.lines import TextFile
from spark_channel.connectors.files.manifest import Dialect
from spark_channel.connectors.files.options import JsonReadOptions, JsonWriteOptions
from spark_channel.errors import SourceError

__all__ = ["JsonFormat"]


class JsonFormat(TextFormat):
    name = "json"
    ending = "jsonl"
    refusal = "cannot be carried by JSON; cast it to text, or write Parquet"

    def schema(
        self, opened: pa.NativeFile, path: str, options: JsonReadOptions, multi_line: bool
    ) -> pa.Schema:
        """Fields in the order in which they appear, typed from the first `sampleBytes`."""
        file = TextFile(opened, path, path, options.compression, options.encoding)
        file.head()
        sample = b""
        for block in file.blocks(0, None, lambda: options.sample_bytes):
            sample += block.data
            if len(sample) >= options.sample_bytes:
                break
        if not sample.strip():
            return pa.schema([])
        if sample.lstrip().startswith(b"["):
            raise _not_lines(path, "is one JSON array", "'.[]'")
        if _spans_lines(sample):
            raise _not_lines(path, "holds a JSON object that spans several lines", ".")
        schema = _infer(sample)
        if not len(schema) and options.mode == "FAILFAST" and (why := why_no_objects(sample.splitlines())):
            line, error = why
            raise SourceError(f"{path}, line {line + 1}: {error.reason}") from error.cause
        fields = [pa.field(f.name, _as_written(f.type, options)) for f in schema]
        return pa.schema(fields)

    def batches(
        self, opened: pa.NativeFile, path: str, params: Mapping[str, Any], wanted: Wanted
    ) -> Iterator[pa.RecordBatch]:
        return JsonBlocks(opened, path, params, wanted).batches()

    def carries(self, kind: pa.DataType) -> bool:
        types = pa.types
        if types.is_nested(kind):
            string_keys = not types.is_map(kind) or types.is_string(kind.key_type)
            return bool(string_keys and (types.is_struct(kind) or types.is_map(kind) or types.is_list(kind)))
        return bool(
            types.is_boolean(kind)
            or types.is_integer(kind)
            or types.is_float32(kind)
            or types.is_float64(kind)
            or types.is_decimal(kind)
            or types.is_string(kind)
            or types.is_large_string(kind)
            or types.is_binary(kind)
            or types.is_date32(kind)
            or types.is_timestamp(kind)
        )

    def encoder(self, sink: Any, schema: pa.Schema, options: JsonWriteOptions) -> Encoder:
        return JsonEncoder(sink, schema, options)

    def dialect(self, options: JsonWriteOptions) -> Dialect:
        return {"date_format": options.date_format, "timestamp_format": options.timestamp_format}


def _not_lines(path: str, what: str, jq: str) -> SourceError:
    return SourceError(
        f"{path} {what}, and this reads JSON lines: one object in each line. Convert it, for one with jq -c "
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
    if nests_deeply(lines):
        return infer_lines(lines)
    try:
        found = pajson.read_json(
            pa.BufferReader(sample),
            read_options=pajson.ReadOptions(use_threads=False, block_size=len(sample) + 1),
        ).schema
    except pa.ArrowInvalid:
        return infer_lines(lines)
    if not LONG_NUMBER.search(sample):
        return pa.schema([field.with_type(_small(field.type)) for field in found])
    exact = infer_lines(lines)
    times = {field.name: field.type for field in found if pa.types.is_timestamp(field.type)}
    return pa.schema([field.with_type(times.get(field.name, field.type)) for field in exact])


def _small(kind: pa.DataType) -> pa.DataType:
    """Whole numbers of at most 15 digits, which a double holds, too."""
    types = pa.types
    if types.is_integer(kind):
        return SMALL_INT
    if types.is_struct(kind):
        fields = [kind.field(i) for i in range(kind.num_fields)]
        return pa.struct([field.with_type(_small(field.type)) for field in fields])
    if types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_small(kind.value_type)))
    return kind


def _as_written(kind: pa.DataType, options: JsonReadOptions) -> pa.DataType:
    """Times stay text, which they are in JSON, unless `inferTimestamp` says otherwise."""
    types = pa.types
    if types.is_timestamp(kind):
        return pa.timestamp("us") if options.infer_timestamp else pa.string()
    if types.is_struct(kind):
        fields = [kind.field(i) for i in range(kind.num_fields)]
        return pa.struct([field.with_type(_as_written(field.type, options)) for field in fields])
    if types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_as_written(kind.value_type, options)))
    return kind
