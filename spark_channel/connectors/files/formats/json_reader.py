"""JSON lines read by block or line."""

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.json as pajson

from spark_channel.connectors.files.formats.base import ReadRequest, walk_types
from spark_channel.connectors.files.formats.json_lines import (
    MOST_LEVELS,
    LineError,
    count_objects,
    has_line_of,
    lower_ascii,
    nests_deeply,
    parse_lines,
    rounded_numbers,
)
from spark_channel.connectors.files.formats.text import Block, TextBlocks
from spark_channel.connectors.files.formats.text_decode import from_text
from spark_channel.connectors.files.options import JsonReadOptions
from spark_channel.errors import SourceError

__all__ = ["JsonBlocks"]

_ESCAPED_NAME = re.compile(r'\\u[0-9a-fA-F]{4}[^"\\]*+"\s*:')
"""The end of a field's name that has an escape."""


class JsonBlocks(TextBlocks):
    """Reads by Arrow's parser where it is exact, else line by line."""

    first_row_bytes: ClassVar[float] = 200.0
    _options: JsonReadOptions

    def __init__(
        self, stream: pa.NativeFile, path: str, params: Mapping[str, Any], request: ReadRequest
    ) -> None:
        super().__init__(stream, path, params, request)
        self._closed = request.strict or (request.inferred and _has_structs(request.schema))
        """A field that the sample did not have is an error, also inside a column."""
        # Arrow's parser refuses or ignores unknown fields everywhere: to see those inside, it gets all columns.
        self._wire = _wire_schema(
            request.all if self._closed and not request.strict else request.schema
        )
        self._decimals = any(pa.types.is_decimal(kind) for _, _, kind in walk_types(request.schema))
        self._doubles = {
            lower_ascii(name.encode()) for field in request.schema for name in _double_names(field)
        }
        self._names = _names_in(request.all)
        self._spelled = {name: name for name in request.all.names}
        """How the lines of the last block spelled the columns."""

    def _batches(self) -> Iterator[pa.RecordBatch]:
        for block in self._file.blocks(self._start, self._end, self._size):
            if block.data.strip():
                yield from self._convert(block)

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
        newline = self._file.newline
        if has_line_of(2 * MOST_LEVELS, data, newline) and nests_deeply(
            data.split(newline), MOST_LEVELS
        ):
            return None
        if self._wanted.inferred and self._doubles and rounded_numbers(data, self._doubles):
            return None  # Arrow's parser rounds silently
        try:
            # Arrow's parser takes any bytes for text: findings/arrow-json-takes-any-bytes.sh
            text = data.decode("utf-8")
        except UnicodeDecodeError:
            return None
        table = self._parse(self._wire, data, lines)
        if table is not None and self._is_as_spelled(table, text):
            return table
        # A field in another case is not a column for Arrow's parser.
        spelled = self._spelling(text)
        if spelled is None:
            return None
        if spelled != self._spelled:
            self._spelled = spelled
            table = self._parse(self._wire, data, lines)
        return table

    def _is_as_spelled(self, table: pa.Table, text: str) -> bool:
        """Whether no NULL of the table is the value of a field that is spelled otherwise."""
        if any(spelled != name and f'"{name}"' in text for name, spelled in self._spelled.items()):
            return False
        names: set[str] = set()
        for field, values in zip(table.schema, table.columns, strict=True):
            inside = _names_in(pa.schema([field]))
            if values.null_count or len(inside) > 1:
                names |= inside
        if not names:
            return True
        lower = text.lower()
        return not _ESCAPED_NAME.search(text) and all(
            lower.count(f'"{name.lower()}"') == text.count(f'"{self._spelled.get(name, name)}"')
            for name in names
        )

    def _spelling(self, text: str) -> dict[str, str] | None:
        """How all lines of `text` spell the columns; None = not all alike, or not certain."""
        pattern = _other_case(self._names)
        if pattern is None or _ESCAPED_NAME.search(text):
            return None
        spelled = {name: name for name in self._wanted.all.names}
        columns = {name.lower(): name for name in spelled}
        for name in set(pattern.findall(text)):
            column = columns.get(name.lower())
            if column is None or spelled[column] != column or f'"{column}"' in text:
                return None
            spelled[column] = name
        return spelled

    def _parse(self, wire: pa.Schema, data: bytes, lines: int) -> pa.Table | None:
        try:
            table = pajson.read_json(
                pa.BufferReader(data),
                read_options=pajson.ReadOptions(use_threads=False, block_size=len(data) + 1),
                parse_options=pajson.ParseOptions(
                    explicit_schema=pa.schema(
                        [field.with_name(self._spelled[field.name]) for field in wire]
                    ),
                    newlines_in_values=False,
                    unexpected_field_behavior="error" if self._closed else "ignore",
                ),
            )
            if table.num_rows != lines:
                return None
            table = table.select([self._spelled[name] for name in self._wanted.schema.names])
            table = table.rename_columns(self._wanted.schema.names)
            for column in table.columns if self._decimals else ():
                # Arrow's parser makes decimals of more digits than their type has.
                column.validate(full=True)
            for number, field in enumerate(self._wanted.schema):
                if pa.types.is_date(field.type) or pa.types.is_timestamp(field.type):
                    column = from_text(
                        table.column(number).combine_chunks(), field.type, self._options
                    )
                    table = table.set_column(number, field, column)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            return None
        return table

    def _slow(self, block: Block) -> Iterator[pa.RecordBatch]:
        lines = (
            block.data.splitlines(keepends=True)
            if self._file.newline == b"\r"
            else block.data.split(b"\n")
        )
        rows, dropped = [], 0
        try:
            for number, row in parse_lines(lines, self._wanted, self._options):
                if isinstance(row, LineError):
                    if self._options.mode == "FAILFAST":
                        line = self._file.lines_before(self._start) + block.line + number + 1
                        raise SourceError(
                            f"{self._wanted.shown}, line {line}: {row.reason}"
                        ) from row.cause
                    dropped += 1
                else:
                    rows.append(row)
        finally:
            self._dropped += dropped
        columns = [
            pa.array([row[number] for row in rows], field.type)
            for number, field in enumerate(self._wanted.schema)
        ]
        if rows and not columns:
            raise SourceError(
                f"{self._wanted.shown}: the lines that were looked at have no field, so the columns of its rows are "
                "unknown; give a schema"
            )
        if rows:
            self._row_bytes = len(block.data) / len(rows)
            yield pa.RecordBatch.from_arrays(columns, schema=self._wanted.schema)


def _double_names(field: pa.Field) -> Iterator[str]:
    """The names of the fields, at any depth, that hold a double. Numbers in lists have none."""
    kind = field.type
    if pa.types.is_floating(kind):
        yield field.name
    elif pa.types.is_struct(kind):
        for inner in kind:
            yield from _double_names(inner)
    elif pa.types.is_list(kind):
        yield from _double_names(kind.value_field)


def _names_in(schema: pa.Schema) -> frozenset[str]:
    """The names of columns and of the fields inside them."""
    inside = (
        field.name
        for _, _, kind in walk_types(schema)
        if pa.types.is_struct(kind)
        for field in kind
    )
    return frozenset([*schema.names, *inside])


@cache
def _other_case(names: frozenset[str]) -> "re.Pattern[str] | None":
    """A field that is one of `names` in another case; None = they differ in case alone themselves."""
    if len({name.lower() for name in names}) < len(names):
        return None
    any_name = "|".join(map(re.escape, sorted(names)))
    return re.compile(rf'"(?!(?:{any_name})")((?i:{any_name}))"\s*:')


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
        return kind.num_fields > 0 and all(
            _is_exact(kind.field(i).type) for i in range(kind.num_fields)
        )
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
