"""CSV read block by block; its syntax."""

import logging
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from spark_channel.connectors.base.types import changed_by, is_number, may_hold_changed
from spark_channel.connectors.files.filesystem import not_text
from spark_channel.connectors.files.formats.base import ReadRequest
from spark_channel.connectors.files.formats.text import (
    Block,
    Boundary,
    TextFile,
    from_text,
    needs_text,
)
from spark_channel.connectors.files.options import CsvReadOptions
from spark_channel.errors import SourceError
from spark_channel.transform.select import marked

__all__ = [
    "CsvBlocks",
    "CsvSyntax",
]


# The syntax of one CSV source: where records end, and the settings of Arrow's parser.


@dataclass(frozen=True)
class CsvSyntax:
    header: bool
    sep: str
    quote: str
    escape: str
    nulls: tuple[str, ...]
    """Unquoted texts that mean NULL."""
    comment: str
    multi_line: bool

    @classmethod
    def of(cls, options: CsvReadOptions, multi_line: bool) -> "CsvSyntax":
        """`multi_line`: the file is known to hold line ends in values, whatever the options say."""
        return cls(
            header=options.header,
            sep=options.sep,
            quote=options.quote,
            escape=options.escape,
            nulls=tuple(
                sorted({text for text in ("", options.null_value) if text or options.empty_is_null})
            ),
            comment=options.comment,
            multi_line=options.multi_line or multi_line,
        )

    def parse_options(
        self, invalid_row_handler: Callable[[Any], str] | None = None
    ) -> pacsv.ParseOptions:
        return pacsv.ParseOptions(
            delimiter=self.sep,
            quote_char=self.quote or False,
            double_quote=bool(self.quote),
            escape_char=False,
            newlines_in_values=self.multi_line,
            ignore_empty_lines=True,
            invalid_row_handler=invalid_row_handler,
        )

    def convert_options(self, **more: Any) -> pacsv.ConvertOptions:
        return pacsv.ConvertOptions(
            null_values=list(self.nulls),
            true_values=["true", "True", "TRUE"],
            false_values=["false", "False", "FALSE"],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            **more,
        )

    def boundary(self, file: TextFile) -> Boundary:
        return self._whole_records if self.multi_line and self.quote else file.last_newline

    @property
    def _record(self) -> "re.Pattern[bytes]":
        """One record with its line end; quoted values may hold line ends and escaped quotes."""
        sep, quote, escape = (
            re.escape(text.encode()) for text in (self.sep, self.quote, self.escape)
        )
        escaped = rb"" if self.escape in ("", self.quote) else rb"|" + escape + rb"."
        inside = rb"[^" + quote + (rb"" if self.escape in ("", self.quote) else escape) + rb"]++"
        quoted = (
            quote
            + rb"(?:"
            + inside
            + rb"|"
            + quote
            + quote
            + escaped
            + rb")*+"
            + quote
            + rb"[^"
            + sep
            + rb"\r\n]*+"
        )
        bare = rb"(?!" + quote + rb")[^" + sep + rb"\r\n]*+"
        value = rb"(?:" + quoted + rb"|" + bare + rb")"
        return re.compile(value + rb"(?:" + sep + value + rb")*+(?:\r\n|\n|\r(?!\Z))", re.DOTALL)

    def _whole_records(self, data: bytes, at_end: bool) -> int:
        if at_end:
            return len(data)
        return sum(len(record) for record in self.records(data, partial=False))

    def records(self, data: bytes, *, partial: bool = True) -> list[bytes]:
        """Cut into records; an incomplete rest is the last one, if `partial`."""
        if not (self.multi_line and self.quote):
            return data.splitlines(keepends=True)
        pattern, found, position = self._record, [], 0
        while match := pattern.match(data, position):
            found.append(match.group(0))
            position = match.end()
        if partial and position < len(data):
            found.append(data[position:])
        return found

    def clean(self, data: bytes) -> bytes:
        """Without comments (lines stay, so that they can be counted), and with doubled quotes only."""
        if self.comment:
            mark = self.comment.encode()
            if mark in data:
                data = b"".join(
                    b"\n" * max(1, record.count(b"\n")) if record.startswith(mark) else record
                    for record in self.records(data)
                )
        escape, quote = self.escape.encode(), self.quote.encode()
        if not escape or not quote or escape == quote or escape not in data or quote not in data:
            return data
        e, q, s = re.escape(escape), re.escape(quote), re.escape(self.sep.encode())
        quoted = re.compile(
            rb"(?:\A|(?<=["
            + s
            + rb"\r\n]))"
            + q
            + rb"((?:[^"
            + q
            + e
            + rb"]++|"
            + e
            + rb".|"
            + q
            + q
            + rb")*+)"
            + q,
            re.DOTALL,
        )
        pair = re.compile(e + rb"([" + q + e + rb"])")

        def doubled(match: "re.Match[bytes]") -> bytes:
            if escape not in match.group(1):
                return match.group(0)
            inner = pair.sub(
                lambda found: quote * 2 if found.group(1) == quote else escape, match.group(1)
            )
            return quote + inner + quote

        return quoted.sub(doubled, data)

    def names(self, data: bytes, *, strict: bool = True) -> tuple[list[str] | None, bytes]:
        """The column names that cleaned data from a file's start gives, and the data after the header.

        None: only blank lines so far.

        Raises:
            UnicodeDecodeError: the names are no UTF-8, and `strict`.
        """
        rest = data
        for record in self.records(data):
            if record.strip(b"\r\n"):
                break
            rest = rest[len(record) :]
        else:
            return None, b""
        values = self.values(record)
        if not self.header:
            return [f"_c{number}" for number in range(len(values))], rest
        if strict:
            record.decode("utf-8")  # `values` would only replace what is none
        names = [value or f"_c{number}" for number, value in enumerate(values)]
        return names, rest[len(record) :]

    def values(self, record: bytes) -> list[str | None]:
        """The values of one record, as text."""
        count = record.count(self.sep.encode()) + 1
        table = pacsv.read_csv(
            pa.BufferReader(record.rstrip(b"\r\n") + b"\n"),
            read_options=pacsv.ReadOptions(
                autogenerate_column_names=True, use_threads=False, block_size=len(record) + 2
            ),
            parse_options=self.parse_options(),
            convert_options=pacsv.ConvertOptions(
                # Bytes, because this also shows text that is not UTF-8.
                column_types={f"f{number}": pa.binary() for number in range(count)},
                strings_can_be_null=False,
                null_values=[],
            ),
        )
        found = [column[0].as_py() if len(column) else None for column in table.columns]
        return [None if value is None else value.decode("utf-8", "replace") for value in found]


# Reads CSV block by block: no read-ahead, no threads, and the place of every row that does not fit.


_log = logging.getLogger(__name__)
_BLOCK = 1 << 20
_HEADER = 16 << 10
_FIRST_ROW_BYTES = 100


class CsvBlocks:
    """One piece of one file."""

    def __init__(
        self, opened: pa.NativeFile, path: str, params: Mapping[str, Any], wanted: ReadRequest
    ) -> None:
        options: CsvReadOptions = wanted.options
        self._options = options
        self._wanted = wanted
        self._syntax = CsvSyntax.of(options, bool(params.get("multi_line")))
        self._file = TextFile(opened, path, wanted.shown, options.compression, options.encoding)
        if "newline" in params:
            self._file.newline = params["newline"].encode()
        else:
            self._file.head()
        self._start, self._end = params.get("range", (0, None))
        self._names: list[str] = []
        self._row_bytes = float(_FIRST_ROW_BYTES)
        self._dropped = 0

    def _size(self) -> int:
        fetch = self._wanted.fetch
        size = min(fetch.nbytes or _BLOCK, _BLOCK)
        return max(1, min(size, int(fetch.rows * self._row_bytes))) if fetch.rows else size

    def batches(self) -> Iterator[pa.RecordBatch]:
        boundary = self._syntax.boundary(self._file)
        if self._start > 0 and self._syntax.header:
            self._names = self._header_of_file()
        started = self._start > 0
        if started and not self._syntax.header:
            self._names = self._bind(None)
        for block in self._file.blocks(self._start, self._end, self._size, boundary):
            data = self._syntax.clean(block.data)
            skipped = 0
            if not started:
                names, rest = self._syntax.names(data)
                if names is None:
                    continue
                self._names = self._bind(names if self._syntax.header else None, len(names))
                skipped = data[: len(data) - len(rest)].count(self._file.newline)
                data, started = rest, True
            if data.strip():
                yield from self._convert(data, Block(block.data, block.line + skipped))
        if self._dropped:
            _log.warning(
                "%s: %d rows did not fit and were dropped", self._wanted.shown, self._dropped
            )

    def _header_of_file(self) -> list[str]:
        for block in self._file.blocks(0, None, lambda: _HEADER, self._syntax.boundary(self._file)):
            names, _ = self._syntax.names(self._syntax.clean(block.data))
            if names is not None:
                return self._bind(names)
        return self._bind([])

    def _bind(self, header: list[str] | None, count: int | None = None) -> list[str]:
        """The source's name for each column of this file, in the file's order."""
        all_names = self._wanted.all.names
        if header is None:
            if count is not None and count != len(all_names):
                raise SourceError(
                    f"{self._wanted.shown} has {count} columns, and the schema has {len(all_names)}: "
                    f"{', '.join(all_names)}"
                )
            return list(all_names)
        by_case = {name.lower(): name for name in all_names}
        bound = [name if name in all_names else by_case.get(name.lower(), name) for name in header]
        missing = [name for name in self._wanted.schema.names if name not in bound]
        if not missing:
            return bound
        if (
            self._options.enforce_schema
            and len(header) == len(all_names)
            and not set(bound) & set(all_names)
        ):
            return list(all_names)
        raise SourceError(
            f"{self._wanted.shown} has no column {missing[0]!r}; "
            f"its header has {', '.join(header) or 'nothing'}"
        )

    def _convert(self, data: bytes, block: Block) -> Iterator[pa.RecordBatch]:
        try:
            table = self._parse(data)
        except pa.ArrowInvalid as error:
            if self._options.mode == "FAILFAST":
                raise self._misfit(data, block, error) from error
            yield from self._fitting(self._syntax.records(data))
            return
        if table.num_rows:
            self._row_bytes = len(data) / table.num_rows
        yield from table.to_batches()

    def _parse(self, data: bytes, columns: list[str] | None = None) -> pa.Table:
        """Raises pa.ArrowInvalid when a row has too few values, or one does not fit its type."""
        wanted = {field.name: field.type for field in self._wanted.schema}
        # Without a column a row could not be counted.
        columns = columns or list(wanted) or self._names[:1]
        text = {name: needs_text(wanted[name], self._options) for name in columns if name in wanted}
        types = {name: pa.string() if text.get(name, True) else wanted[name] for name in columns}
        table = pacsv.read_csv(
            pa.BufferReader(data),
            read_options=pacsv.ReadOptions(
                column_names=self._names, use_threads=False, block_size=len(data) + 1
            ),
            parse_options=self._syntax.parse_options(),
            convert_options=self._syntax.convert_options(
                column_types=types, include_columns=columns
            ),
        )
        for number, name in enumerate(columns):
            if name in wanted and pa.types.is_string(table.schema.field(number).type):
                column = self._trimmed(table.column(number))
                if text[name]:
                    column = from_text(column.combine_chunks(), wanted[name], self._options)
                table = table.set_column(number, pa.field(name, wanted[name]), column)
        if self._wanted.inferred:
            self._refuse_changed(data, table)
        return table

    def _refuse_changed(self, data: bytes, table: pa.Table) -> None:
        """Raises pa.ArrowInvalid for a number or time that its column's inferred type would change, such as 007."""
        suspect = may_hold_changed(data)
        names = [
            field.name
            for field, column in zip(table.schema, table.columns, strict=True)
            if (suspect and is_number(field.type)) or self._may_be_changed_time(field.type, column)
        ]
        if not names:
            return
        texts = pacsv.read_csv(
            pa.BufferReader(data),
            read_options=pacsv.ReadOptions(
                column_names=self._names, use_threads=False, block_size=len(data) + 1
            ),
            parse_options=self._syntax.parse_options(),
            convert_options=self._syntax.convert_options(
                column_types=dict.fromkeys(names, pa.string()), include_columns=names
            ),
        )
        for name in names:
            kind = table.schema.field(name).type
            if pc.any(changed_by(texts.column(name).combine_chunks(), kind)).as_py():
                raise pa.ArrowInvalid(f"column {name!r} ({kind}) would change a value")

    def _may_be_changed_time(self, kind: pa.DataType, column: pa.ChunkedArray) -> bool:
        """Whether a text of the column may have no time of day, or no zone where others have one."""
        if (
            not pa.types.is_timestamp(kind)
            or {"timestamp_format", "time_zone"} & self._options.model_fields_set
        ):
            return False
        if kind.tz is not None:
            return True
        hours = pc.floor_temporal(column, unit="hour")
        return bool(pc.any(pc.equal(hours, column)).as_py())

    def _trimmed(self, column: pa.ChunkedArray) -> pa.ChunkedArray:
        left, right = (
            self._options.ignore_leading_white_space,
            self._options.ignore_trailing_white_space,
        )
        if not (left or right):
            return column
        if left:
            column = pc.utf8_ltrim_whitespace(column)
        if right:
            column = pc.utf8_rtrim_whitespace(column)
        nulls = pc.is_in(column, value_set=pa.array(self._syntax.nulls, pa.string()))
        return pc.if_else(nulls, pa.scalar(None, pa.string()), column)

    def _fits(self, records: list[bytes]) -> bool:
        try:
            self._parse(b"".join(records))
        except pa.ArrowInvalid:
            return False
        return True

    def _fitting(self, records: list[bytes]) -> Iterator[pa.RecordBatch]:
        """The batches of the records that fit: halves are tried until what is left is one that does not."""
        if not any(record.strip() for record in records):
            return
        try:
            yield from self._parse(b"".join(records)).to_batches()
        except pa.ArrowInvalid as why:
            if len(records) == 1:
                if self._options.mode == "MARK":
                    yield self._marked(records[0], why)
                else:
                    self._dropped += 1
                return
            middle = len(records) // 2
            yield from self._fitting(records[:middle])
            yield from self._fitting(records[middle:])

    def _marked(self, record: bytes, error: pa.ArrowInvalid) -> pa.RecordBatch:
        """The record as a row whose first column tells of it; the columns are texts, as jobs read them."""
        schema = self._wanted.schema
        text = marked(
            f"{self._wanted.shown}: {self._reason(record, error)}",
            record.decode("utf-8", "replace").rstrip("\r\n"),
        )
        arrays = [
            pa.array([text if number == 0 else None], field.type)
            for number, field in enumerate(schema)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _misfit(self, data: bytes, block: Block, error: pa.ArrowInvalid) -> SourceError:
        """The first record of the block that does not fit, found by halving."""
        records = self._syntax.records(data)
        good, bad = 0, len(records)
        while bad - good > 1:
            middle = (good + bad) // 2
            if self._fits(records[:middle]):
                good = middle
            else:
                bad = middle
        record = records[good] if records else b""
        before = b"".join(records[:good]).count(self._file.newline)
        line = self._file.lines_before(self._start) + block.line + before + 1
        return SourceError(f"{self._wanted.shown}, line {line}: {self._reason(record, error)}")

    def _reason(self, record: bytes, error: pa.ArrowInvalid) -> str:
        shown = record.decode("utf-8", "replace").rstrip("\r\n")
        shown = shown if len(shown) <= 200 else shown[:197] + "..."
        if self._fits([record]):
            hint = (
                ""
                if self._syntax.multi_line
                else "; if values in quotes hold line ends, set option multiLine=true"
            )
            return f"the rows from here on cannot be read ({str(error).splitlines()[0]}): {shown}{hint}"
        try:
            values = self._syntax.values(record)
        except pa.ArrowInvalid:
            values = []
        if len(values) != len(self._names):
            quotes = (
                ""
                if self._syntax.multi_line
                else "; values in quotes that hold line ends need multiLine=true"
            )
            return f"{len(values)} values for {len(self._names)} columns: {shown}{quotes}"
        for field in self._wanted.schema:
            try:
                self._parse(record, [field.name])
            except pa.ArrowInvalid:
                try:
                    record.decode("utf-8")
                except UnicodeDecodeError as not_utf8:
                    return f"column {field.name!r} {not_text(not_utf8)}"
                value = values[self._names.index(field.name)]
                return (
                    f"column {field.name!r} ({field.type}) cannot hold {value!r}; give another type in a schema, "
                    f"or set nullValue or mode=DROPMALFORMED. The row: {shown}"
                )
        return f"{error}: {shown}"
