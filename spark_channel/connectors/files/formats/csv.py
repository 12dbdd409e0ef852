"""CSV: the columns of a file, and how it is split. `csv_blocks` reads, `csv_text` writes."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.csv as pacsv

from spark_channel.connectors.files.exact_types import exact_type
from spark_channel.connectors.files.formats.base import Encoder, Wanted
from spark_channel.connectors.files.formats.csv_blocks import CsvBlocks
from spark_channel.connectors.files.formats.csv_syntax import CsvSyntax
from spark_channel.connectors.files.formats.csv_text import CsvEncoder
from spark_channel.connectors.files.formats.text import TextFormat
from spark_channel.connectors.files.lines import TextFile
from spark_channel.connectors.files.manifest import Dialect
from spark_channel.connectors.files.options import CsvReadOptions, CsvWriteOptions
from spark_channel.connectors.files.text_types import from_text
from spark_channel.errors import SchemaError, SourceError

__all__ = ["CsvFormat"]

_DIALECT = ("header", "sep", "quote", "escape", "null_value", "date_format", "timestamp_format")


class CsvFormat(TextFormat):
    name = "csv"
    ending = "csv"
    refusal = "cannot be carried by CSV; cast it to text, or write another format"

    def schema(
        self, opened: pa.NativeFile, path: str, options: CsvReadOptions, multi_line: bool
    ) -> pa.Schema:
        """Names from the header or `_c0`, ...; types from the first `sampleBytes` (null: not known)."""
        syntax = CsvSyntax.of(options, multi_line)
        file = TextFile(opened, path, path, options.compression, options.encoding)
        file.head()
        taken = 0
        names: list[str] | None = None
        sample = b""
        for block in file.blocks(0, None, lambda: options.sample_bytes, syntax.boundary(file)):
            data = syntax.clean(block.data)
            if names is None:
                names, data = syntax.names(data)
                if names is None:
                    continue
            sample += data
            taken += len(block.data)
            if taken >= options.sample_bytes:
                break
        if names is None:
            return pa.schema([])
        if len(names) == 1 and "sep" not in options.model_fields_set:
            _refuse_other_separator(path, names[0], sample, syntax.quote)
        if not options.infer_schema:
            return pa.schema([(name, pa.string()) for name in names])
        return _infer(sample, names, syntax, options)

    def _has_no_rows(self, head: bytes, options: CsvReadOptions) -> bool:
        syntax = CsvSyntax.of(options, multi_line=False)
        names, rest = syntax.names(syntax.clean(head), strict=False)
        return names is None or (syntax.header and not rest.strip())

    def _spans_lines(self, options: CsvReadOptions) -> bool:
        return options.multi_line

    def batches(
        self, opened: pa.NativeFile, path: str, params: Mapping[str, Any], wanted: Wanted
    ) -> Iterator[pa.RecordBatch]:
        return CsvBlocks(opened, path, params, wanted).batches()

    def carries(self, kind: pa.DataType) -> bool:
        types = pa.types
        return bool(
            types.is_boolean(kind)
            or types.is_integer(kind)
            or types.is_float32(kind)
            or types.is_float64(kind)
            or types.is_decimal(kind)
            or types.is_string(kind)
            or types.is_large_string(kind)
            or types.is_date32(kind)
            or types.is_time(kind)
            or types.is_timestamp(kind)
        )

    def check(self, schema: pa.Schema, options: CsvWriteOptions) -> None:
        super().check(schema, options)
        if not schema.names:
            raise SchemaError("a CSV file needs at least one column")

    def encoder(self, sink: Any, schema: pa.Schema, options: CsvWriteOptions) -> Encoder:
        return CsvEncoder(sink, schema, options)

    def dialect(self, options: CsvWriteOptions) -> Dialect:
        return {name: getattr(options, name) for name in _DIALECT}


def _refuse_other_separator(path: str, header: str, sample: bytes, quote: str) -> None:
    """Hold a file of one column not to be one of several with another separator.

    Raises:
        SourceError: names the separator that header and rows have as often as each other.
    """
    rows = [line for line in sample.splitlines()[:20] if line.strip()]
    if mark := re.escape(quote.encode()):
        rows = [re.sub(mark + rb"[^" + mark + rb"]*" + mark, b"", line) for line in rows]
    for separator in (";", "\t", "|"):
        count = header.count(separator)
        if count and rows and all(line.count(separator.encode()) == count for line in rows):
            shown = "\\t" if separator == "\t" else separator
            raise SourceError(
                f"{path} has one column {header!r} when split at ',', and each row holds '{shown}' {count} times: set "
                f"option sep='{shown}', or sep=',' if it is one column"
            )


def _infer(sample: bytes, names: list[str], syntax: CsvSyntax, options: CsvReadOptions) -> pa.Schema:
    if not sample.strip():
        return pa.schema([(name, pa.null()) for name in names])

    def parsed(**more: Any) -> pa.Table:
        # A malformed row is the read's to report, with its place.
        return pacsv.read_csv(
            pa.BufferReader(sample),
            read_options=pacsv.ReadOptions(column_names=names, use_threads=False, block_size=len(sample) + 1),
            parse_options=syntax.parse_options(invalid_row_handler=lambda _: "skip"),
            convert_options=syntax.convert_options(check_utf8=False, **more),
        )

    table = parsed(timestamp_parsers=[pacsv.ISO8601])
    texts = parsed(column_types=dict.fromkeys(names, pa.string()))
    fields = []
    for field, column, text in zip(table.schema, table.columns, texts.columns, strict=True):
        kind = field.type
        if column.null_count < len(column):
            kind = exact_type(text.drop_null().combine_chunks(), kind)
        if kind == field.type and pa.types.is_string(kind) and column.null_count < len(column):
            kind = _by_pattern(column, options)
        fields.append(pa.field(field.name, kind))
    return pa.schema(fields)


def _by_pattern(column: pa.ChunkedArray, options: CsvReadOptions) -> pa.DataType:
    for kind, pattern in ((pa.date32(), options.date_format), (pa.timestamp("us"), options.timestamp_format)):
        if pattern is not None:
            try:
                for chunk in column.chunks:
                    from_text(chunk, kind, options)
            except pa.ArrowInvalid:
                continue
            return kind
    return pa.string()
