"""Writes CSV: values become text column by column, in Arrow's kernels."""

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from spark_channel.connectors.files.formats.base import Encoder
from spark_channel.connectors.files.formats.values import compressed, join_lines, strftime_pattern, value_text
from spark_channel.connectors.files.options import CsvWriteOptions
from spark_channel.errors import TargetError

__all__ = ["CsvEncoder"]

_ROWS = 16_384


class CsvEncoder(Encoder):
    def __init__(self, sink: Any, schema: pa.Schema, options: CsvWriteOptions) -> None:
        self._options = options
        self._schema = schema
        self._sink, self._end = compressed(sink, options.compression or "none", options.compression_level)
        special = {options.sep, options.quote, "\n", "\r", options.escape or options.quote}
        inside = "".join(f"\\x{ord(character):02x}" for character in special)
        # Leading and trailing blanks are quoted too, since some readers trim what is not.
        self._special = f"[{inside}]|^\\s|\\s$|^$"
        if options.header:
            names = pa.array(schema.names)
            line = pc.binary_join(pa.ListArray.from_arrays([0, len(names)], self._quoted(names)), options.sep)
            self._sink.write(line[0].as_py().encode() + b"\n")

    def write(self, batch: pa.RecordBatch) -> None:
        for start in range(0, batch.num_rows, _ROWS):
            part = batch.slice(start, _ROWS)
            texts = [self._text(part.column(i), part.schema.field(i)) for i in range(part.num_columns)]
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
            self._sink.write(join_lines(lines))

    def _text(self, values: pa.Array, field: pa.Field) -> pa.Array:
        kind = field.type
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            return self._quoted(values.cast(pa.large_string()))
        pattern = self._options.date_format if pa.types.is_date(kind) else None
        if pa.types.is_timestamp(kind):
            pattern = self._options.timestamp_format
        texts = value_text(values, strftime_pattern(pattern))
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
