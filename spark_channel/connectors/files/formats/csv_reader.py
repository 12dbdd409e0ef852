"""CSV read block by block; its syntax."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.csv as pacsv

from spark_channel.arrow_schema import is_number, match_names
from spark_channel.connectors.base.types import changed_by, may_hold_changed, plain_numbers
from spark_channel.connectors.files.file_errors import not_text
from spark_channel.connectors.files.formats.base import ReadRequest
from spark_channel.connectors.files.formats.text import Block, Boundary, TextBlocks, TextFile
from spark_channel.connectors.files.formats.text_decode import from_text, needs_text
from spark_channel.connectors.files.options import CsvReadOptions
from spark_channel.errors import SourceError
from spark_channel.lazy import compute as pc
from spark_channel.transform.select import marked

__all__ = [
    "CsvBlocks",
    "CsvSyntax",
    "csv_buffer",
]

_MARK = "\ufeff".encode()
_HEADER = 16 << 10


@dataclass(frozen=True)
class CsvSyntax:
    """The syntax of one CSV source: where records end, and the settings of Arrow's parser."""

    header: bool
    sep: str
    quote: str
    escape: str
    nulls: tuple[str, ...]
    """Unquoted texts that mean NULL."""
    comment: str
    multi_line: bool
    skip_header: bool = False
    quoted_nulls: bool = False
    least: int = 0
    """A file has at least so many columns."""
    trims: tuple[bool, bool] = (False, False)
    """Whether blanks and tabs outside of quotes are removed at the start, and at the end of values."""

    @classmethod
    def from_options(cls, options: CsvReadOptions, multi_line: bool) -> "CsvSyntax":
        """`multi_line`: the file is known to hold line ends in values, whatever the options say."""
        return cls(
            header=options.header and not options.skip_header,
            sep=options.sep,
            quote=options.quote,
            escape=options.escape,
            nulls=tuple(
                sorted({text for text in ("", options.null_value) if text or options.empty_is_null})
            ),
            comment=options.comment,
            multi_line=bool(options.multi_line) or multi_line,
            skip_header=options.skip_header,
            quoted_nulls=options.quoted_is_null,
            least=options.least_columns,
            trims=(options.ignore_leading_white_space, options.ignore_trailing_white_space),
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

    def convert_options(self, **settings: Any) -> pacsv.ConvertOptions:
        return pacsv.ConvertOptions(
            null_values=list(self.nulls),
            true_values=["true", "True", "TRUE"],
            false_values=["false", "False", "FALSE"],
            strings_can_be_null=True,
            quoted_strings_can_be_null=self.quoted_nulls,
            **settings,
        )

    def boundary(self, file: TextFile) -> Boundary:
        if not (self.multi_line and self.quote):
            return file.last_newline

        def whole_records(data: bytes, at_end: bool) -> int:
            if at_end:
                return len(data)
            # A \r at the end may be the first half of a line end.
            end = data.rfind(file.newline, 0, len(data) - (file.newline == b"\r")) + 1
            if self.is_regular(data[:end]):
                return end
            return sum(len(record) for record in self.records(data, partial=False))

        return whole_records

    def spans_lines(self, data: bytes) -> bool:
        """Whether `data`, whole lines from a file's start, is well formed only if quoted values hold line ends."""
        if not self.quote or self.quote.encode() not in data:
            return False
        one_line, several = replace(self, multi_line=False), replace(self, multi_line=True)
        if one_line.is_regular(data) or all(map(one_line.is_whole, one_line.records(data))):
            return False
        records = list(several.records(data, partial=False))
        return all(map(several.is_whole, records)) and not all(map(one_line.is_whole, records))

    def check(self, data: bytes, rows: int) -> None:
        """Refuse `data`, of which Arrow's parser made `rows`, if a quote is not closed where it must be.

        Raises:
            pa.ArrowInvalid: there is such a quote.
        """
        if not self.quote or self.quote.encode() not in data:
            return
        if self._has_a_row_per_line(data, rows):
            return
        if not (self.is_regular(data) or all(map(self.is_whole, self.records(data)))):
            raise pa.ArrowInvalid("a quote is not closed")

    def _has_a_row_per_line(self, data: bytes, rows: int) -> bool:
        """Whether counting is enough to show that each line is a row: a quote that is not closed makes fewer rows."""
        if self.multi_line or rows != data.count(b"\n") + (not data.endswith(b"\n")):
            return False
        if b"\r" in data and data.count(b"\r") != data.count(b"\r\n"):
            return False
        # At the end of the data such a quote takes no line from another row.
        return all(map(self.is_whole, self.records(data[data.rfind(b"\n", 0, -1) + 1 :])))

    def is_whole(self, record: bytes) -> bool:
        """Whether the quotes of a record are closed.

        Text behind a closing quote belongs to the value, as for Arrow's parser
        (findings/arrow-csv-text-behind-quote.sh). Only in a record of several lines it shows that an earlier quote was
        not closed, so there it is none.
        """
        body = record.rstrip(b"\r\n")
        several = b"\n" in body or b"\r" in body
        if not self.quote or self.quote.encode() not in body:
            return not several
        return (self._strict if several else self._lenient).fullmatch(body + b"\n") is not None

    def whole(self, data: bytes) -> bytes:
        """The records of `data` whose quotes are closed."""
        if not self.quote or self.quote.encode() not in data or self.is_regular(data):
            return data
        return b"".join(record for record in self.records(data) if self.is_whole(record))

    def is_open(self, record: bytes) -> bool:
        """Whether a quote of the record is never closed."""
        return self._lenient.fullmatch(record.rstrip(b"\r\n") + b"\n") is None

    def is_regular(self, data: bytes) -> bool:
        """Whether `data` is whole records without text behind a closing quote: a quick look at all of it."""
        if not data.endswith((b"\n", b"\r")):
            data += b"\n"
        pattern = rf"(?s)\A(?:{self._record(strict=True, possessive='')})*\z"
        matches = pc.match_substring_regex(pa.array([data], pa.large_binary()), pattern)
        return bool(matches[0].as_py())

    @cached_property
    def _strict(self) -> "re.Pattern[bytes]":
        return re.compile(self._record(strict=True).encode(), re.DOTALL)

    @cached_property
    def _lenient(self) -> "re.Pattern[bytes]":
        return re.compile(self._record(strict=False).encode(), re.DOTALL)

    def _record(self, *, strict: bool, possessive: str = "+") -> str:
        """The pattern of a record with its line end, or of a comment. RE2 knows no `possessive` quantifiers."""
        sep, quote, escape, comment = (
            f"\\x{ord(text):02x}" if text else ""
            for text in (self.sep, self.quote, self.escape, self.comment)
        )
        escape = "" if escape == quote else escape
        line_ends, any_byte = ("", ".") if self.multi_line else (r"\r\n", r"[^\r\n]")
        inside = rf"[^{quote}{escape}{line_ends}]+{possessive}|{quote}{quote}"
        inside += rf"|{escape}{any_byte}" if escape else ""
        blanks = rf"[{self._blanks}]*{possessive}" if self.quote and any(self.trims) else ""
        before, after = (blanks if trims else "" for trims in self.trims)
        behind = after if strict else rf"[^{sep}\r\n]*{possessive}"
        quoted = rf"{quote}(?:{inside})*{possessive}{quote}{behind}"
        bare = rf"[^{sep}\r\n]*{possessive}"
        value = rf"{before}(?:{quoted}|[^{quote}{sep}\r\n]{bare}|)"
        first = rf"{before}(?:{quoted}|[^{quote}{sep}{comment}\r\n]{bare}|)"
        end = r"(?:\r\n|\n|\r)" if strict else r"(?:\r\n|\n|\r(?!\Z))"
        record = rf"{first}(?:{sep}{value})*{possessive}{end}"
        return rf"(?:{comment}[^\r\n]*{possessive}{end}|{record})" if comment else rf"(?:{record})"

    def records(self, data: bytes, *, partial: bool = True) -> Iterator[bytes]:
        """Cut into records; an incomplete rest is the last one, if `partial`."""
        if not (self.multi_line and self.quote):
            yield from data.splitlines(keepends=True)
            return
        position = 0
        while match := self._lenient.match(data, position):
            yield match.group(0)
            position = match.end()
        if partial and position < len(data):
            yield data[position:]

    @property
    def _blanks(self) -> str:
        return "".join(blank for blank in " \t" if blank != self.sep)

    def _without_blanks(self, data: bytes) -> bytes:
        """Without the blanks around values; those inside of quotes stay."""
        if self._around is None or not self._has_edge(data):
            return data
        return self._around.sub(lambda match: match.group(1) or b"", data)

    def _has_edge(self, data: bytes) -> bool:
        """Whether `_edge` is somewhere: looks for two bytes take a sixth of its search, which stops at every byte."""
        left, right = self.trims
        blanks = [blank.encode() for blank in self._blanks]
        ends = [bytes([character]) for character in (*self.sep.encode(), *b"\r\n")]
        return any(
            (left and (data.startswith(blank) or any(end + blank in data for end in ends)))
            or (right and (data.endswith(blank) or any(blank + end in data for end in ends)))
            for blank in blanks
        )

    @cached_property
    def _edge(self) -> "re.Pattern[bytes] | None":
        left, right = self.trims
        sep, blank = re.escape(self.sep.encode()), self._blanks.encode()
        edges = [rb"(?:\A|(?<=[%b\r\n]))[%b]++" % (sep, blank)] if left else []
        if right:
            edges.append(rb"(?<![%b])[%b]++(?=[%b\r\n]|\Z)" % (blank, blank, sep))
        return re.compile(b"|".join(edges)) if edges and blank else None

    @cached_property
    def _around(self) -> "re.Pattern[bytes] | None":
        """A quoted value (the group) with the blanks around it, or the blanks around another value."""
        if self._edge is None:
            return None
        if not self.quote:
            return re.compile(rb"()(?:%b)" % self._edge.pattern)
        sep, q = re.escape(self.sep.encode()), re.escape(self.quote.encode())
        escape = re.escape(self.escape.encode()) if self.escape not in ("", self.quote) else b""
        line_ends = b"" if self.multi_line else rb"\r\n"
        inside = rb"[^%b%b%b]++|%b%b" % (q, escape, line_ends, q, q)
        if escape:
            inside += rb"|%b." % escape
        before, after = (rb"[%b]*+" % self._blanks.encode() if trim else b"" for trim in self.trims)
        quoted = rb"(?:\A|(?<=[%b\r\n]))%b(%b(?:%b)*+%b)%b(?=[%b\r\n]|\Z)" % (
            *(sep, before, q, inside, q, after, sep),
        )
        return re.compile(rb"%b|(?:%b)" % (quoted, self._edge.pattern), re.DOTALL)

    def clean(self, data: bytes) -> bytes:
        """Without comments (lines stay, so that they can be counted) and blanks, and with doubled quotes only."""
        return self._without_blanks(self._in_plain_quotes(self._without_comments(data)))

    def _without_comments(self, data: bytes) -> bytes:
        mark = self.comment.encode()
        if not mark or mark not in data:
            return data
        return b"".join(
            record[len(record.rstrip(b"\r\n")) :] if record.startswith(mark) else record
            for record in self.records(data)
        )

    def _in_plain_quotes(self, data: bytes) -> bytes:
        escape, quote = self.escape.encode(), self.quote.encode()
        if not escape or not quote or escape == quote or escape not in data or quote not in data:
            return data
        e, q, s = re.escape(escape), re.escape(quote), re.escape(self.sep.encode())
        line_ends, escaped = (b"", b".") if self.multi_line else (rb"\r\n", rb"[^\r\n]")
        blanks = rb"[%b]*+" % self._blanks.encode() if self._blanks and self.trims[0] else b""
        quoted = re.compile(
            rb"(?:\A|(?<=[%b\r\n]))%b%b((?:[^%b%b%b]++|%b%b|%b%b)*+)%b"
            % (s, blanks, q, q, e, line_ends, e, escaped, q, q, q),
            re.DOTALL,
        )
        pair = re.compile(e + rb"([" + q + e + rb"])")

        def doubled(match: "re.Match[bytes]") -> bytes:
            if escape not in match.group(1):
                return match.group(0)
            inner = pair.sub(
                lambda quote_match: quote * 2 if quote_match.group(1) == quote else escape,
                match.group(1),
            )
            return quote + inner + quote

        return quoted.sub(doubled, data)

    @cached_property
    def cleaned(self) -> "CsvSyntax":
        """The syntax of cleaned data."""
        return replace(self, escape="", comment="", trims=(False, False))

    def names(self, data: bytes, label: str | None = None) -> tuple[list[str] | None, bytes]:
        """The column names that cleaned data from a file's start gives, and the data after the header.

        None: only blank lines so far. `label`: the file, if names that cannot be read are an error.

        Raises:
            SourceError: a quote in the first record is not closed. UnicodeDecodeError: the names are no UTF-8.
        """
        if self.skip_header:
            return self._names_by_order(data, label)
        line, body = 1, data
        for record in self.cleaned.records(data):
            if record.strip(b"\r\n"):
                break
            line, body = line + 1, body[len(record) :]
        else:
            return None, b""
        if label is not None and not self.cleaned.is_whole(record):
            raise SourceError(f"{label}, line {line}: {self.why_not_whole(record)}")
        if label is not None and self.header:
            record.decode("utf-8")  # `values` would only replace what is none
        values = self.values(record) if self.cleaned.is_whole(record) else []
        if not self.header:
            return [f"_c{number}" for number in range(max(len(values), self.least))], body
        names = [value or f"_c{number}" for number, value in enumerate(values)]
        return names, body[len(record) :]

    def _names_by_order(self, data: bytes, label: str | None) -> tuple[list[str] | None, bytes]:
        """As `names`; the skipped line gives the names if it has one for each value of the first row."""
        line = (data.splitlines(keepends=True) or [b""])[0]
        if not line.endswith((b"\n", b"\r")):
            return (None, b"") if not line else (self._distinct(line, None), b"")
        names, body = replace(self, skip_header=False).names(data[len(line) :], label)
        return self._distinct(line, names), body

    def _distinct(self, line: bytes, names: list[str] | None) -> list[str] | None:
        values = self.values(line) if line.strip() and self.cleaned.is_whole(line) else []
        names_given = [value for value in values if value]
        columns = len(values) if names is None else len(names)
        if len({value.lower() for value in names_given}) == columns:
            return names_given or None
        return names if names is not None else [f"_c{n}" for n in range(len(values))] or None

    def why_not_whole(self, record: bytes) -> str:
        """The fault of a cleaned record that is not whole, and what to do."""
        lines = record.strip(b"\r\n").splitlines()
        first_line = cut_text(lines[0])
        if not self.multi_line:
            fix = "; if values in quotes hold line ends, set option multiLine=true"
            fault = f"a quote is not closed on its line: {first_line}"
        elif self.cleaned.is_open(record):
            fix, fault = (
                "",
                f"a quote is never closed, and the row that it opens in begins: {first_line}",
            )
        else:
            fix = f"; if a quote is part of a value, write it as {self.quote}{self.quote}"
            fault = (
                f"text follows a closing quote in a row of {len(lines)} lines, so a quote before it was not closed. "
                f"The row begins: {first_line}"
            )
        if self.escape.encode() in record and self.escape not in ("", self.quote):
            fix += f"; if {self.escape} is an ordinary character, set option escape={self.quote}"
        return fault + fix

    def fields(self, record: bytes) -> list[bytes]:
        """The values of one whole record, as they are written."""
        body = record.rstrip(b"\r\n")
        return [match[0] for match in self._field.finditer(body)] if body else []

    @cached_property
    def _field(self) -> "re.Pattern[bytes]":
        sep, quote = re.escape(self.sep.encode()), re.escape(self.quote.encode())
        quoted = (
            rb"%b(?:[^%b]|%b%b)*+%b[^%b]*+|" % (quote, quote, quote, quote, quote, sep)
            if quote
            else b""
        )
        return re.compile(
            rb"(?:\A|(?<=%b))(?:%b[^%b]*+)(?=%b|\Z)" % (sep, quoted, sep, sep), re.DOTALL
        )

    def values(self, record: bytes) -> list[str | None]:
        """The values of one record, as text."""
        count = record.count(self.sep.encode()) + 1
        table = pacsv.read_csv(
            csv_buffer(record.rstrip(b"\r\n") + b"\n"),
            read_options=pacsv.ReadOptions(
                autogenerate_column_names=True, use_threads=False, block_size=len(record) + 5
            ),
            parse_options=self.parse_options(),
            convert_options=pacsv.ConvertOptions(
                # Bytes, because this also shows text that is not UTF-8.
                column_types={f"f{number}": pa.binary() for number in range(count)},
                strings_can_be_null=False,
                null_values=[],
            ),
        )
        values = [column[0].as_py() if len(column) else None for column in table.columns]
        return [None if value is None else value.decode("utf-8", "replace") for value in values]


def csv_buffer(data: bytes) -> pa.BufferReader:
    """`data` for Arrow's parser.

    It drops a byte order mark at the beginning, and takes an empty value behind a quoted one for a text where no line
    end follows.
    """
    mark = _MARK if data.startswith(_MARK) else b""
    end = b"" if data.endswith((b"\n", b"\r")) else b"\n"
    return pa.BufferReader(mark + data + end if mark or end else data)


def cut_text(record: bytes) -> str:
    text = record.decode("utf-8", "replace").rstrip("\r\n")
    return text if len(text) <= 200 else text[:197] + "..."


class CsvBlocks(TextBlocks):
    """Knows the place of every row that does not fit."""

    first_row_bytes: ClassVar[float] = 100.0
    _options: CsvReadOptions

    def __init__(
        self, stream: pa.NativeFile, path: str, params: Mapping[str, Any], request: ReadRequest
    ) -> None:
        super().__init__(stream, path, params, request)
        self._syntax = CsvSyntax.from_options(self._options, bool(params.get("multi_line")))
        self._names: list[str] = []
        self._numbers_are_plain = self._wanted.inferred

    def _batches(self) -> Iterator[pa.RecordBatch]:
        boundary = self._syntax.boundary(self._file)
        started = self._start > 0
        if started:
            self._names = self._header_of_file() if self._syntax.header else self._bind(None)
        for block in self._file.blocks(self._start, self._end, self._size, boundary):
            data = self._syntax.clean(block.data)
            skipped = 0
            if not started:
                names, body = self._syntax.names(data, self._wanted.shown)
                if names is None:
                    continue
                self._names = self._bind(names if self._syntax.header else None, len(names))
                skipped = data[: len(data) - len(body)].count(self._file.newline)
                data, started = body, True
            if data.strip(b"\r\n"):
                yield from self._convert(data, Block(block.data, block.line + skipped))

    def _header_of_file(self) -> list[str]:
        for block in self._file.blocks(0, None, lambda: _HEADER, self._syntax.boundary(self._file)):
            names, _ = self._syntax.names(self._syntax.clean(block.data), self._wanted.shown)
            if names is not None:
                return self._bind(names)
        return self._bind([])

    def _bind(self, header: list[str] | None, count: int | None = None) -> list[str]:
        """The source's name for each column of this file, in the file's order."""
        all_names = self._wanted.all.names
        if header is None:
            if count is not None and count != len(all_names) and self._options.mode != "MARK":
                raise SourceError(
                    f"{self._wanted.shown} has {count} columns, and the schema has {len(all_names)}: "
                    f"{', '.join(all_names)}"
                )
            return list(all_names)
        matched = match_names(all_names, header, self._wanted.shown)
        names = {spelled: name for name, spelled in matched.items()}
        bound = [names.get(name, name) for name in header]
        missing = [name for name in self._wanted.schema.names if name not in bound]
        extra = [name for name in bound if name not in all_names] if self._wanted.strict else []
        if not missing and not extra:
            return bound
        if not missing:
            raise SourceError(
                f"{self._wanted.shown} has column {extra[0]!r}, which the first file of the source does not have. Give "
                "a schema, or name the columns to read with option 'columns'"
            )
        if (
            self._options.enforce_schema
            and not self._wanted.inferred
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
            records = list(self._syntax.cleaned.records(data))
            if self._options.mode == "MARK" and self._syntax.least:
                records = [self._as_wide(record) for record in records]
            yield from self._fitting(records)
            return
        if table.num_rows:
            self._row_bytes = len(data) / table.num_rows
        yield from table.to_batches()

    def _as_wide(self, record: bytes) -> bytes:
        """The record with a value for each column, if it has the least number of values."""
        width, syntax = len(self._names), self._syntax
        separators = record.count(syntax.sep.encode())
        if separators + 1 == width or not record.strip(b"\r\n"):
            return record
        if not syntax.cleaned.is_whole(record):
            return record
        fields = syntax.fields(record)
        if len(fields) == width or len(fields) < syntax.least:
            return record
        empty_values = [b""] * (width - len(fields))
        return syntax.sep.encode().join([*fields[:width], *empty_values]) + b"\n"

    def _parse(self, data: bytes, columns: list[str] | None = None) -> pa.Table:
        """Raises pa.ArrowInvalid when a row has too few values, or one does not fit its type."""
        column_types = {field.name: field.type for field in self._wanted.schema}
        # Without a column a row could not be counted.
        columns = columns or list(column_types) or self._names[:1]
        text = {
            name: needs_text(column_types[name], self._options)
            for name in columns
            if name in column_types
        }
        suspect = self._wanted.inferred and may_hold_changed(data)
        numbers = {
            name
            for name, is_text in text.items()
            if suspect and self._numbers_are_plain and is_number(column_types[name]) and not is_text
        }
        types = {
            name: pa.string() if text.get(name, True) or name in numbers else column_types[name]
            for name in columns
        }
        table = pacsv.read_csv(
            csv_buffer(data),
            read_options=pacsv.ReadOptions(
                column_names=self._names, use_threads=False, block_size=len(data) + 8
            ),
            parse_options=self._syntax.parse_options(),
            convert_options=self._syntax.convert_options(
                column_types=types, include_columns=columns
            ),
        )
        self._syntax.cleaned.check(data, table.num_rows)
        numbers_by_name = {
            name: plain_numbers(table.column(name), column_types[name]) for name in numbers
        }
        if any(column is None for column in numbers_by_name.values()):
            # Blanks around a number, or one that does not fit: Arrow's parser decides, for the other blocks too.
            self._numbers_are_plain = False
            return self._parse(data, columns)
        for column in table.columns:
            if pa.types.is_decimal(column.type):
                # Arrow's parser makes decimals of more digits than their type has.
                column.validate(full=True)
        for number, name in enumerate(columns):
            if name in column_types and pa.types.is_string(table.schema.field(number).type):
                column = table.column(number)
                if text[name]:
                    column = from_text(column.combine_chunks(), column_types[name], self._options)
                elif name in numbers_by_name:
                    column = numbers_by_name[name]
                table = table.set_column(number, pa.field(name, column_types[name]), column)
        if self._wanted.inferred:
            self._refuse_changed(data, table, suspect=suspect and not numbers)
        return table

    def _refuse_changed(self, data: bytes, table: pa.Table, *, suspect: bool) -> None:
        """Raises pa.ArrowInvalid for a time that its column's inferred type would change, and if `suspect` for a
        number, such as 007.
        """
        names = [
            field.name
            for field, column in zip(table.schema, table.columns, strict=True)
            if (suspect and is_number(field.type)) or self._may_be_changed_time(field.type, column)
        ]
        if not names:
            return
        texts = pacsv.read_csv(
            csv_buffer(data),
            read_options=pacsv.ReadOptions(
                column_names=self._names, use_threads=False, block_size=len(data) + 8
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

    def _fits(self, records: list[bytes]) -> bool:
        try:
            self._parse(b"".join(records))
        except pa.ArrowInvalid:
            return False
        return True

    def _fitting(self, records: list[bytes]) -> Iterator[pa.RecordBatch]:
        """The batches of the records that fit: halves are tried until what is left is one that does not."""
        if not any(record.strip(b"\r\n") for record in records):
            return
        try:
            yield from self._parse(b"".join(records)).to_batches()
        except pa.ArrowInvalid as error:
            if len(records) == 1:
                if self._syntax.multi_line and self._syntax.cleaned.is_open(records[0]):
                    # It is unknown which rows its value swallows.
                    reason = self._syntax.why_not_whole(records[0])
                    raise SourceError(f"{self._wanted.shown}: {reason}") from error
                if self._options.mode == "MARK":
                    yield self._marked(records[0], error)
                else:
                    self._dropped += 1
                return
            middle = len(records) // 2
            yield from self._fitting(records[:middle])
            yield from self._fitting(records[middle:])

    def _marked(self, record: bytes, error: pa.ArrowInvalid) -> pa.RecordBatch:
        """The record as a row whose first column describes it; the columns are texts, as jobs read them."""
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
        records = list(self._syntax.cleaned.records(data))
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
        text = cut_text(record)
        if not self._syntax.cleaned.is_whole(record):
            return self._syntax.why_not_whole(record)
        try:
            values = self._syntax.values(record)
        except pa.ArrowInvalid:
            values = []
        if len(values) != len(self._names):
            return f"{len(values)} values for {len(self._names)} columns: {text}"
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
                    f"or set nullValue or mode=DROPMALFORMED. The row: {text}"
                )
        return f"{error}: {text}"
