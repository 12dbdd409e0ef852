"""The syntax of one CSV source: where records end, and the settings of Arrow's parser."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.csv as pacsv

from spark_channel.connectors.files.lines import Boundary, TextFile
from spark_channel.connectors.files.options import CsvReadOptions

__all__ = ["CsvSyntax"]


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
            nulls=tuple(sorted({text for text in ("", options.null_value) if text or options.empty_is_null})),
            comment=options.comment,
            multi_line=options.multi_line or multi_line,
        )

    def parse_options(self, invalid_row_handler: Callable[[Any], str] | None = None) -> pacsv.ParseOptions:
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
        sep, quote, escape = (re.escape(text.encode()) for text in (self.sep, self.quote, self.escape))
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
            inner = pair.sub(lambda found: quote * 2 if found.group(1) == quote else escape, match.group(1))
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
