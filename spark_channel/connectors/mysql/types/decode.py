"""Decodes the server's texts to Arrow: texts and bytes column by column, the others through one CSV."""

from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.csv

from spark_channel.connectors.sql.catalog import MisfitError, ReadColumn
from spark_channel.connectors.sql.write.encode import first_outside
from spark_channel.lazy import compute as pc

__all__ = ["decode_fields", "selected"]


def selected(columns: Sequence[ReadColumn]) -> list[str]:
    """What is selected: texts and bytes as they are, and one field with all other columns, commas between.

    Numbers, dates and times hold no comma, so that Arrow's own CSV reader takes them apart, which is several
    times as fast as a field each.
    """
    plain = [f"IFNULL({_shown(column)}, '')" for column in columns if not _is_raw(column)]
    raw = [column.expression for column in columns if _is_raw(column)]
    return [f"CONCAT_WS(',', {', '.join(plain)})", *raw] if plain else raw


def _is_raw(column: ReadColumn) -> bool:
    """Whether its bytes come as they are, in a separate field."""
    return bool(pa.types.is_string(column.kind) or pa.types.is_binary(column.kind))


def _shown(column: ReadColumn) -> str:
    """An IFNULL with a text would show a double with fewer digits than it has; CONCAT shows all."""
    return f"CONCAT({column.expression})"


def decode_fields(
    fields: Sequence[pa.LargeBinaryArray], columns: Sequence[ReadColumn], schema: pa.Schema
) -> pa.RecordBatch:
    """The fields of `selected(columns)` as a batch of `schema`.

    Raises:
        MisfitError: a value that its column's type cannot hold.
    """
    plain = [column for column in columns if not _is_raw(column)]
    arrays = _plain_arrays(fields[0], plain) if plain else {}
    raw_fields = iter(fields[1:] if plain else fields)
    for column in columns:
        if _is_raw(column):
            try:
                arrays[column.name] = pc.cast(next(raw_fields), column.kind)
            except pa.ArrowInvalid as error:
                raise MisfitError(column, str(error)) from None
    return pa.RecordBatch.from_arrays([arrays[column.name] for column in columns], schema=schema)


def _plain_arrays(lines: pa.LargeBinaryArray, columns: list[ReadColumn]) -> dict[str, pa.Array]:
    ends = [pa.scalar(end, pa.large_binary()) for end in (b"", b"\n")]
    names = [str(number) for number in range(len(columns))]
    if len(columns) == 1:
        # A line without anything would be no line at all.
        lines = pc.binary_join_element_wise(ends[0], lines, pa.scalar(b",", pa.large_binary()))
        names = ["_", *names]
    text = pc.binary_join_element_wise(lines, *ends).buffers()[2]
    kinds = {
        name: _parsed_kind(column.kind)
        for name, column in zip(names[-len(columns) :], columns, strict=True)
    }
    try:
        table = _parsed(text, names, kinds)
    except pa.ArrowInvalid as error:
        raise _misfit(text, names, columns, kinds, error) from None
    arrays = {}
    for name, column in zip(kinds, columns, strict=True):
        array = table.column(name).combine_chunks()
        array = array.chunk(0) if isinstance(array, pa.ChunkedArray) else array
        arrays[column.name] = _finished(array, column)
    return arrays


def _parsed(text: pa.Buffer, names: list[str], kinds: Mapping[str, pa.DataType]) -> pa.Table:
    """Those of the columns `names` that are in `kinds`."""
    # All in one block. A larger block is allocated in full, which costs a batch of few rows more than its rows.
    block = max(1 << 12, int(text.size) + 1)
    return pyarrow.csv.read_csv(
        pa.BufferReader(text),
        read_options=pyarrow.csv.ReadOptions(
            column_names=names, use_threads=False, block_size=block
        ),
        parse_options=pyarrow.csv.ParseOptions(quote_char=False, ignore_empty_lines=False),
        convert_options=pyarrow.csv.ConvertOptions(
            column_types=kinds, null_values=[""], include_columns=list(kinds)
        ),
    )


def _parsed_kind(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_boolean(kind):
        return pa.int64()
    return pa.timestamp("us") if pa.types.is_timestamp(kind) else kind


def _finished(array: pa.Array, column: ReadColumn) -> pa.Array:
    if pa.types.is_boolean(column.kind):
        outside = pc.or_(pc.less(array, 0), pc.greater(array, 1))
        index = pc.index(outside, True).as_py()
        if index >= 0:
            raise MisfitError(
                column,
                f"{array[index].as_py()}, neither 0 nor 1; read it with customSchema "
                f"({column.name} TINYINT)",
            )
        return pc.cast(array, pa.bool_())
    if (index := first_outside(array)) >= 0:
        raise MisfitError(column, f"{array[index].cast(pa.string())}: years go from 1 to 9999")
    if pa.types.is_timestamp(column.kind) and column.kind.tz is not None:
        return array.view(column.kind)
    return array


def _misfit(
    text: pa.Buffer,
    names: list[str],
    columns: list[ReadColumn],
    kinds: dict[str, pa.DataType],
    error: Exception,
) -> Exception:
    """Which column it is: each is converted alone."""
    for name, column in zip(kinds, columns, strict=True):
        try:
            _parsed(text, names, {name: kinds[name]})
        except pa.ArrowInvalid as failure:
            return MisfitError(
                column,
                str(failure).rpartition("CSV conversion error")[2].strip(" :") or str(failure),
            )
    return error
