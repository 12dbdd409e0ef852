"""Reads JSON lines block by block: by Arrow's parser where it is exact, else line by line."""

import logging
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.json as pajson

from spark_channel.connectors.files.formats.base import Wanted, walk_types
from spark_channel.connectors.files.formats.json_lines import (
    LineError,
    count_objects,
    parse_lines,
    rounded_numbers,
)
from spark_channel.connectors.files.lines import Block, TextFile
from spark_channel.connectors.files.options import JsonReadOptions
from spark_channel.connectors.files.text_types import from_text
from spark_channel.errors import SourceError

__all__ = ["JsonBlocks"]

_log = logging.getLogger(__name__)
_BLOCK = 1 << 20
_FIRST_ROW_BYTES = 200


class JsonBlocks:
    """One piece of one file."""

    def __init__(self, opened: pa.NativeFile, path: str, params: Mapping[str, Any], wanted: Wanted) -> None:
        options: JsonReadOptions = wanted.options
        self._options = options
        self._wanted = wanted
        self._file = TextFile(opened, path, wanted.shown, options.compression, options.encoding)
        if "newline" in params:
            self._file.newline = params["newline"].encode()
        else:
            self._file.head()
        self._start, self._end = params.get("range", (0, None))
        self._row_bytes = float(_FIRST_ROW_BYTES)
        self._dropped = 0
        self._closed = wanted.strict or (wanted.inferred and _has_structs(wanted.schema))
        """A field that the sample did not have is an error, also inside a column."""
        # Arrow's parser refuses or ignores unknown fields everywhere: to see those inside, it is told of all columns.
        self._wire = _wire_schema(wanted.all if self._closed and not wanted.strict else wanted.schema)
        self._doubles = {
            path.removesuffix(".element").rpartition(".")[2].encode()
            for _, path, kind in walk_types(wanted.schema)
            if pa.types.is_floating(kind)
        }

    def _size(self) -> int:
        fetch = self._wanted.fetch
        size = min(fetch.nbytes or _BLOCK, _BLOCK)
        return max(1, min(size, int(fetch.rows * self._row_bytes))) if fetch.rows else size

    def batches(self) -> Iterator[pa.RecordBatch]:
        for block in self._file.blocks(self._start, self._end, self._size):
            if block.data.strip():
                yield from self._convert(block)
        if self._dropped:
            _log.warning("%s: %d rows did not fit and were dropped", self._wanted.shown, self._dropped)

    def _convert(self, block: Block) -> Iterator[pa.RecordBatch]:
        table = self._fast(block.data)
        if table is None:
            # Line by line: exact for every type, and knows the line of what does not fit.
            yield from self._slow(block)
            return
        if table.num_rows:
            self._row_bytes = len(block.data) / table.num_rows
        yield from table.to_batches()

    def _fast(self, data: bytes) -> pa.Table | None:
        if self._wire is None or (lines := count_objects(data, self._file.newline)) is None:
            return None
        if self._wanted.inferred and self._doubles and rounded_numbers(data, self._doubles):
            return None  # Arrow's parser rounds silently
        try:
            data.decode("utf-8")  # Arrow's parser takes any bytes for text
            table = pajson.read_json(
                pa.BufferReader(data),
                read_options=pajson.ReadOptions(use_threads=False, block_size=len(data) + 1),
                parse_options=pajson.ParseOptions(
                    explicit_schema=self._wire,
                    newlines_in_values=False,
                    unexpected_field_behavior="error" if self._closed else "ignore",
                ),
            )
            if table.num_rows != lines:
                return None
            table = table.select(self._wanted.schema.names)
            for number, field in enumerate(self._wanted.schema):
                if pa.types.is_date(field.type) or pa.types.is_timestamp(field.type):
                    column = from_text(table.column(number).combine_chunks(), field.type, self._options)
                    table = table.set_column(number, field, column)
        except (UnicodeDecodeError, pa.ArrowInvalid, pa.ArrowNotImplementedError):
            return None
        return table

    def _slow(self, block: Block) -> Iterator[pa.RecordBatch]:
        lines = (
            block.data.splitlines(keepends=True) if self._file.newline == b"\r" else block.data.split(b"\n")
        )
        rows, dropped = [], 0
        try:
            for number, row in parse_lines(lines, self._wanted, self._options):
                if isinstance(row, LineError):
                    if self._options.mode == "FAILFAST":
                        line = self._file.lines_before(self._start) + block.line + number + 1
                        raise SourceError(f"{self._wanted.shown}, line {line}: {row.reason}") from row.cause
                    dropped += 1
                else:
                    rows.append(row)
        finally:
            self._dropped += dropped
        columns = [
            pa.array([row[number] for row in rows], field.type)
            for number, field in enumerate(self._wanted.schema)
        ]
        if rows:
            self._row_bytes = len(block.data) / len(rows)
            yield pa.RecordBatch.from_arrays(columns, schema=self._wanted.schema)


def _has_structs(schema: pa.Schema) -> bool:
    return any(pa.types.is_struct(kind) for _, _, kind in walk_types(schema))


def _wire_schema(schema: pa.Schema) -> pa.Schema | None:
    """The schema for Arrow's parser; None if it cannot return all columns exactly."""
    fields = []
    for field in schema:
        kind = field.type
        if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
            fields.append(pa.field(field.name, pa.string()))
        elif _is_exact(kind):
            fields.append(pa.field(field.name, kind))
        else:
            return None
    # Without a column Arrow's parser cannot count the lines.
    return pa.schema(fields) if fields else None


def _is_exact(kind: pa.DataType) -> bool:
    types = pa.types
    if types.is_struct(kind):
        # Arrow's parser takes any field where it expects none.
        return kind.num_fields > 0 and all(_is_exact(kind.field(i).type) for i in range(kind.num_fields))
    if types.is_list(kind):
        return _is_exact(kind.value_type)
    return bool(
        types.is_boolean(kind)
        or types.is_integer(kind)
        or types.is_float32(kind)
        or types.is_float64(kind)
        or types.is_string(kind)
        or types.is_decimal128(kind)
    )
