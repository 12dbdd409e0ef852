"""CSV: columns, splits, encoder."""

import codecs
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.csv as pacsv

from spark_channel.connectors.base.types import exact_type
from spark_channel.connectors.files.formats.base import Encoder, ReadRequest, Sink
from spark_channel.connectors.files.formats.csv_reader import CsvBlocks, CsvSyntax, csv_buffer
from spark_channel.connectors.files.formats.text import TextFile, TextFormat
from spark_channel.connectors.files.formats.text_decode import from_text
from spark_channel.connectors.files.formats.text_encode import (
    compressed,
    has_text_form,
    is_long,
    join_lines,
    long_chunks,
    row_pieces,
    value_text,
)
from spark_channel.connectors.files.manifest import Dialect
from spark_channel.connectors.files.options import CsvReadOptions, CsvWriteOptions
from spark_channel.errors import SchemaError, SourceError, TargetError
from spark_channel.lazy import compute as pc
from spark_channel.transform.time_patterns import TimePattern

__all__ = [
    "CsvEncoder",
    "CsvFormat",
]

_DIALECT = (
    *("header", "sep", "quote", "escape", "null_value", "date_format", "timestamp_format"),
    *("encoding", "quote_all"),
)


class CsvEncoder(Encoder):
    """Values become text column by column, in Arrow's kernels."""

    def __init__(self, sink: Sink, schema: pa.Schema, options: CsvWriteOptions) -> None:
        self._options = options
        self._schema = schema
        self._sink, self._end = compressed(
            sink, options.compression or "none", options.compression_level
        )
        self._encoder = codecs.getincrementalencoder(options.encoding)()
        special = {*options.sep, options.quote, "\n", "\r", options.escape or options.quote}
        inside = "".join(f"\\x{ord(character):02x}" for character in special)
        # Leading and trailing blanks are quoted too, since some readers trim what is not.
        self._special = f"[{inside}]|^\\s|\\s$|^$"
        if options.header:
            names = pa.array(schema.names)
            line = pc.binary_join(
                pa.ListArray.from_arrays([0, len(names)], self._quoted(names)), options.sep
            )
            self._sink.write(self._encoded(line[0].as_py().encode() + b"\n"))

    def write(self, batch: pa.RecordBatch) -> None:
        for part, has_long in row_pieces(batch):
            if has_long:
                self._write_long(part)
                continue
            texts = [
                self._text(part.column(i), part.schema.field(i)) for i in range(part.num_columns)
            ]
            is_lost = len(texts) == 1 and not self._options.raw
            if is_lost and self._options.null_value == "" and texts[0].null_count:
                raise TargetError(
                    f"column {batch.schema.names[0]!r} holds NULL, which is an empty line in a CSV file "
                    "of one column, and "
                    r"empty lines are skipped by readers; set option nullValue, for example to \N"
                )
            lines = pc.binary_join_element_wise(
                *texts,
                pa.scalar(self._options.sep, pa.large_string()),
                null_handling="replace",
                null_replacement=self._options.null_value,
            )
            self._sink.write(self._encoded(join_lines(lines)))

    def _write_long(self, row: pa.RecordBatch) -> None:
        options = self._options
        quote, escape = options.quote.encode(), (options.escape or options.quote).encode()
        for number, values in enumerate(row.columns):
            if number:
                self._sink.write(self._encoded(options.sep.encode()))
            if not is_long(values):
                text = self._text(values, row.schema.field(number))[0].as_py()
                self._sink.write(
                    self._encoded((options.null_value if text is None else text).encode())
                )
                continue
            mark = b"" if options.raw else quote
            self._sink.write(self._encoded(mark))
            for chunk in long_chunks(values[0]):
                if not options.raw:
                    self.multi_line = self.multi_line or b"\n" in chunk or b"\r" in chunk
                    if escape != quote:
                        chunk = chunk.replace(escape, escape * 2)
                    chunk = chunk.replace(quote, escape + quote)
                self._sink.write(self._encoded(chunk))
            self._sink.write(self._encoded(mark))  # anew: its bytes may depend on those before it
        self._sink.write(self._encoded(b"\n"))

    def _encoded(self, data: bytes) -> bytes:
        encoding = self._options.encoding
        if encoding == "utf-8":
            return data
        try:
            return self._encoder.encode(data.decode())
        except UnicodeEncodeError as error:
            lost = error.object[error.start : error.end]
            raise TargetError(
                f"option 'encoding' got {encoding!r}, which has no character {lost!r}: write UTF-8, or replace the "
                "character in the source"
            ) from None

    def _text(self, values: pa.Array, field: pa.Field) -> pa.Array:
        kind = field.type
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            return self._quoted(values.cast(pa.large_string()))
        pattern = self._options.date_format if pa.types.is_date(kind) else None
        if pa.types.is_timestamp(kind):
            pattern = self._options.timestamp_format
        texts = value_text(values, pattern)
        return self._quoted(texts) if pattern or self._options.quote_all else texts

    def _quoted(self, values: pa.Array) -> pa.Array:
        options = self._options
        if options.raw:
            return values
        quote, escape = options.quote, options.escape or options.quote
        inner = values
        if escape != quote:
            inner = pc.replace_substring(inner, escape, escape * 2)
        inner = pc.replace_substring(inner, quote, escape + quote)
        marks = pa.scalar(quote, values.type), pa.scalar("", values.type)
        quoted = pc.binary_join_element_wise(marks[0], inner, marks[0], marks[1])
        if not self.multi_line and pc.any(pc.match_substring_regex(values, "[\\r\\n]")).as_py():
            self.multi_line = True
        if options.quote_all:
            return quoted
        needed = pc.match_substring_regex(values, self._special)
        if options.null_value:
            needed = pc.or_(needed, pc.equal(values, pa.scalar(options.null_value, values.type)))
        return pc.if_else(needed, quoted, values)

    def finish(self) -> None:
        self._end()


class CsvFormat(TextFormat):
    """The columns of a file, and how it is split. `CsvBlocks` reads, `CsvEncoder` writes."""

    name = "csv"
    ending = "csv"
    refusal = "cannot be carried by CSV; cast it to text, or write another format"

    def sample(
        self, stream: pa.NativeFile, path: str, options: CsvReadOptions
    ) -> tuple[pa.Schema, Dialect]:
        """Names from the header or `_c0`, ...; types from the first `sampleBytes` (null: not known).

        Where the options do not say it, the sample shows whether quoted values hold line ends.
        """
        file = TextFile(stream, path, path, options)
        file.head()
        syntax = CsvSyntax.from_options(options, multi_line=False)
        is_known = options.multi_line is not None

        def boundary(data: bytes, at_end: bool) -> int:
            nonlocal syntax, is_known
            lines = file.last_newline(data, at_end)
            if not is_known and lines:
                syntax, is_known = (
                    CsvSyntax.from_options(options, syntax.spans_lines(data[:lines])),
                    True,
                )
            return syntax.boundary(file)(data, at_end)

        nbytes = 0
        names: list[str] | None = None
        sample = b""
        for block in file.blocks(0, None, lambda: options.sample_bytes, boundary):
            data = syntax.clean(block.data)
            if names is None:
                names, data = syntax.names(data, path)
                if names is None:
                    continue
            sample += data
            nbytes += len(block.data)
            if nbytes >= options.sample_bytes:
                break
        dialect = {"multi_line": True} if syntax.multi_line else {}
        if names is None:
            return pa.schema([]), dialect
        if len(names) == 1 and "sep" not in options.model_fields_set:
            _refuse_other_separator(path, names[0], sample, syntax.quote)
        if not options.infer_schema:
            return pa.schema([(name, pa.string()) for name in names]), dialect
        return _infer(syntax.cleaned.whole(sample), names, syntax, options), dialect

    def _first_row(self, head: bytes, options: CsvReadOptions) -> int | None:
        syntax = CsvSyntax.from_options(options, multi_line=False)
        cleaned = syntax.clean(head)
        names, body = syntax.names(cleaned)
        if names is None:
            return None
        lines = cleaned[: len(cleaned) - len(body)].splitlines()
        return sum(map(len, head.splitlines(keepends=True)[: len(lines)]))

    def _spans_lines(self, options: CsvReadOptions) -> bool:
        return bool(options.multi_line)

    def batches(
        self, stream: pa.NativeFile, path: str, params: Mapping[str, Any], request: ReadRequest
    ) -> Iterator[pa.RecordBatch]:
        return CsvBlocks(stream, path, params, request).batches()

    def carries(self, kind: pa.DataType) -> bool:
        return has_text_form(kind) or bool(pa.types.is_time(kind))

    def check(self, schema: pa.Schema, options: CsvWriteOptions) -> None:
        super().check(schema, options)
        if not schema.names:
            raise SchemaError("a CSV file needs at least one column")

    def encoder(self, sink: Sink, schema: pa.Schema, options: CsvWriteOptions) -> Encoder:
        return CsvEncoder(sink, schema, options)

    def dialect(self, options: CsvWriteOptions) -> Dialect:
        return {name: getattr(options, name) for name in _DIALECT}


def _refuse_other_separator(path: str, header: str, sample: bytes, quote: str) -> None:
    """Check that a file of one column is not one of several with another separator.

    Raises:
        SourceError: names the separator that header and rows have as often as each other.
    """
    rows = [line for line in sample.splitlines()[:20] if line.strip()]
    if mark := re.escape(quote.encode()):
        rows = [re.sub(mark + rb"[^" + mark + rb"]*" + mark, b"", line) for line in rows]
    for separator in (";", "\t", "|"):
        count = header.count(separator)
        if count and rows and all(line.count(separator.encode()) == count for line in rows):
            sep = "\\t" if separator == "\t" else separator
            raise SourceError(
                f"{path} has one column {header!r} when split at ',', and each row holds '{sep}' {count} times: set "
                f"option sep='{sep}', or sep=',' if it is one column"
            )


def _infer(
    sample: bytes, names: list[str], syntax: CsvSyntax, options: CsvReadOptions
) -> pa.Schema:
    if not sample.strip(b"\r\n"):
        return pa.schema([(name, pa.null()) for name in names])

    def parsed(**settings: Any) -> pa.Table:
        # A malformed row is the read's to report, with its place.
        return pacsv.read_csv(
            csv_buffer(sample),
            read_options=pacsv.ReadOptions(
                column_names=names, use_threads=False, block_size=len(sample) + 4
            ),
            parse_options=syntax.parse_options(invalid_row_handler=lambda _: "skip"),
            convert_options=syntax.convert_options(check_utf8=False, **settings),
        )

    table = parsed(timestamp_parsers=[pacsv.ISO8601])
    texts = parsed(column_types=dict.fromkeys(names, pa.string()))
    fields = []
    for field, column, text in zip(table.schema, table.columns, texts.columns, strict=True):
        kind = field.type
        if column.null_count < len(column):
            kind = exact_type(text.drop_null().combine_chunks(), kind)
        patterned = (
            (pa.types.is_string(kind) and kind == field.type)
            or (pa.types.is_date(kind) and options.date_format is not None)
            or (pa.types.is_timestamp(kind) and options.timestamp_format is not None)
        )
        if patterned and column.null_count < len(column):
            kind = _by_pattern(text, options)
        fields.append(pa.field(field.name, kind))
    return pa.schema(fields)


def _by_pattern(column: pa.ChunkedArray, options: CsvReadOptions) -> pa.DataType:
    time = options.timestamp_format
    zone = "UTC" if time is not None and TimePattern.from_text(time).has_zone else None
    for kind, pattern in ((pa.date32(), options.date_format), (pa.timestamp("us", zone), time)):
        if pattern is not None:
            try:
                for chunk in column.chunks:
                    from_text(chunk, kind, options)
            except pa.ArrowInvalid:
                continue
            return kind
    return pa.string()
