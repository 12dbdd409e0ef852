"""From Arrow's values to the lines of LOAD DATA and the rows of INSERT, or a refusal of the row. Pure.

All of it works on whole columns: the bytes of a batch are those of one Arrow array of its lines.
"""

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from spark_channel.connectors.sql.mysql.column_types import members, parts
from spark_channel.connectors.sql.mysql.target import WriteColumn
from spark_channel.connectors.sql.search import first_failure

__all__ = ["BadValueError", "assignments", "insert_values", "load_lines"]

_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
_FIRST_MICROSECOND, _LAST_MICROSECOND = -62_135_596_800_000_000, 253_402_300_799_999_999
_FIRST_INSTANT, _LAST_INSTANT = 1_000_000, 2_147_483_647_999_999


class BadValueError(Exception):
    """Row `index` of a batch holds `value` in `column`, which the table would not give back as it is."""

    def __init__(self, column: WriteColumn, index: int, value: Any, why: str) -> None:
        super().__init__(column.name)
        self.column, self.index, self.value, self.why = column, index, value, why


def assignments(columns: Sequence[WriteColumn], quoted: Any) -> tuple[str, str]:
    """The column list and SET clause of LOAD DATA: bytes come as hexadecimal digits, bits as numbers."""
    listed, sets = [], []
    for number, column in enumerate(columns):
        name = parts(column.declared)[0]
        if _is_binary(column):
            listed.append(f"@c{number}")
            sets.append(f"{quoted(column.target)} = UNHEX(@c{number})")
        elif name == "bit":
            listed.append(f"@c{number}")
            sets.append(f"{quoted(column.target)} = CAST(@c{number} AS UNSIGNED)")
        else:
            listed.append(quoted(column.target))
    return ", ".join(listed), f" SET {', '.join(sets)}" if sets else ""


def load_lines(batch: pa.RecordBatch, columns: Sequence[WriteColumn]) -> bytes:
    """Lines for `FIELDS TERMINATED BY ',' OPTIONALLY ENCLOSED BY '"' ESCAPED BY ''`; NULL is a bare NULL.

    Raises:
        BadValueError: the first value found that would come back changed.
    """
    fields = []
    for column in columns:
        text, quotes = _text(_storage(batch.column(column.name)), column)
        if quotes:
            text = pc.replace_substring(text, '"', '""')
            text = pc.binary_join_element_wise('"', text, '"', "")
        fields.append(pc.fill_null(text, "NULL"))
    lines = pc.binary_join_element_wise(*fields, ",") if len(fields) > 1 else fields[0]
    return _bytes_of(pc.binary_join_element_wise(lines, "\n", ""))


def insert_values(
    batch: pa.RecordBatch, columns: Sequence[WriteColumn], most_bytes: int
) -> list[tuple[str, int]]:
    """The rows after INSERT ... VALUES, in pieces of at most `most_bytes` where a row is no longer: (text, rows)."""
    fields = []
    for column in columns:
        text, quotes = _text(_storage(batch.column(column.name)), column)
        if _is_binary(column):
            text = pc.binary_join_element_wise("x'", text, "'", "")
        elif quotes:
            text = pc.replace_substring(pc.replace_substring(text, "\\", "\\\\"), "'", "''")
            text = pc.binary_join_element_wise("'", text, "'", "")
        elif not _is_number(column):
            text = pc.binary_join_element_wise("'", text, "'", "")
        fields.append(pc.fill_null(text, "NULL"))
    rows = pc.binary_join_element_wise(*fields, ",") if len(fields) > 1 else fields[0]
    rows = pc.binary_join_element_wise("(", rows, ")", "").to_pylist()
    pieces: list[tuple[str, int]] = []
    begin = size = 0
    for number, row in enumerate(rows):
        if number > begin and size + len(row) * 3 > most_bytes:
            pieces.append((",".join(rows[begin:number]), number - begin))
            begin, size = number, 0
        size += len(row) if row.isascii() else len(row.encode())
    if begin < len(rows):
        pieces.append((",".join(rows[begin:]), len(rows) - begin))
    return pieces


def _is_binary(column: WriteColumn) -> bool:
    name = parts(column.declared)[0]
    return name.endswith(("binary", "blob"))


def _is_number(column: WriteColumn) -> bool:
    return parts(column.declared)[0] in (
        "tinyint", "smallint", "mediumint", "int", "bigint", "decimal", "float", "double", "year", "bit",
    )  # fmt: skip


def _storage(array: pa.Array) -> pa.Array:
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    return pc.cast(array, array.type.value_type) if pa.types.is_dictionary(array.type) else array


def _bytes_of(lines: pa.Array) -> bytes:
    """The bytes of all values of a text array, one after the other."""
    if len(lines) == 0:
        return b""
    lines = pa.concat_arrays([lines])  # a slice keeps the whole buffer, a copy does not
    return bytes(lines.buffers()[2] or b"")


def _text(array: pa.Array, column: WriteColumn) -> tuple[pa.Array, bool]:
    """The values as text, and whether they need quotes."""
    kind = array.type
    name, sizes, _ = parts(column.declared)
    if pa.types.is_null(kind):
        return pc.cast(array, pa.string()), False
    if pa.types.is_boolean(kind):
        return pc.cast(pc.cast(array, pa.int8()), pa.string()), False
    if pa.types.is_integer(kind):
        if name == "year":
            inside = pc.or_(
                pc.equal(array, 0), pc.and_(pc.greater_equal(array, 1901), pc.less_equal(array, 2155))
            )
            _refuse_where(pc.invert(inside), array, column, "a year is 0, or from 1901 to 2155")
            return pc.utf8_lpad(pc.cast(array, pa.string()), 4, "0"), False  # the text 0 is the year 2000
        return pc.cast(array, pa.string()), False
    if pa.types.is_floating(kind):
        array = pc.cast(
            array, pa.float64()
        )  # a float's own digits are another double, and may be none of a FLOAT
        odd = pc.invert(pc.is_finite(array))
        _refuse_where(odd, array, column, "MySQL has no NaN and no infinity; replace it or leave the row out")
        return pc.cast(array, pa.string()), False
    if pa.types.is_decimal(kind):
        return _decimal(array), False
    if pa.types.is_date(kind):
        days = pc.cast(_convert(array, pa.date32(), column, "a date has no time of day"), pa.int32())
        outside = pc.or_(pc.less(days, _FIRST_DAY), pc.greater(days, _LAST_DAY))
        _refuse_where(outside, array, column, "dates go from year 1 to 9999")
        return pc.cast(pc.cast(days, pa.date32()), pa.string()), False
    if pa.types.is_time(kind):
        micro = _convert(array, pa.time64("us"), column, "times end at microseconds")
        _refuse_finer(pc.cast(micro, pa.int64()), array, column, sizes)
        return pc.cast(micro, pa.string()), False
    if pa.types.is_timestamp(kind):
        return _timestamp(array, column, sizes), False
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or kind == pa.string_view():
        array = pc.cast(array, pa.string())
        if name == "char":
            why = "a CHAR column drops the spaces at the end; declare it VARCHAR"
            _refuse_where(pc.ends_with(array, " "), array, column, why)
        elif name in ("enum", "set"):
            _refuse_strangers(array, column, one=name == "enum")
        return array, True
    array = pc.cast(array, pa.binary())
    if name == "binary":
        short = pc.not_equal(pc.binary_length(array), int(sizes[0]) if sizes else 1)
        _refuse_where(
            short, array, column, f"column {column.target!r} is {column.declared}, which pads with zeros"
        )
    return _hexadecimal(array), False


def _refuse_strangers(array: pa.Array, column: WriteColumn, *, one: bool) -> None:
    """What is no member, letter for letter: MySQL takes '1' for the first member, and 'A' or 'a ' for 'a'."""
    places = {text: place for place, text in enumerate(members(column.declared))}

    def is_kept(text: str) -> bool:
        if one:
            return text in places
        found = [places.get(part, -1) for part in text.split(",")] if text else []
        return all(before < after for before, after in zip([-1, *found], found, strict=False))

    texts = pc.unique(array.drop_null()).to_pylist()
    strange = pa.array([text for text in texts if not is_kept(text)], pa.string())
    why = (
        f"column {column.target!r} is {column.declared}, and it is none of these"
        if one
        else f"column {column.target!r} is {column.declared}: members of it, in this order, each once"
    )
    _refuse_where(pc.is_in(array, value_set=strange), array, column, why)


def _timestamp(array: pa.Array, column: WriteColumn, sizes: list[str]) -> pa.Array:
    zoned = array.type.tz is not None
    exact = pa.timestamp("us", "UTC") if zoned else pa.timestamp("us")
    micro = pc.cast(_convert(array, exact, column, "timestamps end at microseconds"), pa.int64())
    first, last = (_FIRST_INSTANT, _LAST_INSTANT) if zoned else (_FIRST_MICROSECOND, _LAST_MICROSECOND)
    outside = pc.or_(pc.less(micro, first), pc.greater(micro, last))
    local = pc.cast(micro, pa.timestamp("us"))
    why = (
        "a TIMESTAMP goes from 1970 to 2038; cast it to a timestamp without zone, which is a DATETIME"
        if zoned
        else ("timestamps go from year 1 to 9999")
    )
    _refuse_where(outside, local, column, why)
    _refuse_finer(micro, local, column, sizes)
    return pc.cast(local, pa.string())


def _refuse_finer(micro: pa.Array, array: pa.Array, column: WriteColumn, sizes: list[str]) -> None:
    """The server would round to the column's digits without a word."""
    digits = int(sizes[0]) if sizes else 0
    if digits < 6:
        unit = 10 ** (6 - digits)
        whole = pc.multiply(pc.divide(micro, unit), unit)
        why = f"column {column.target!r} is {column.declared}, which rounds it to {digits} digits of a second"
        _refuse_where(pc.not_equal(whole, micro), array, column, why)


def _decimal(array: pa.Array) -> pa.Array:
    text = pc.cast(array, pa.string())
    if pc.any(pc.match_substring(text, "E")).as_py():
        plain = [None if value is None else format(Decimal(value), "f") for value in text.to_pylist()]
        text = pa.array(plain, pa.string())
    return text


def _hexadecimal(array: pa.Array) -> pa.Array:
    """Bytes as hexadecimal digits, the whole column at once."""
    array = pa.concat_arrays([array])
    validity, offsets, data = array.buffers()
    if data is None or len(array) == 0:
        return (
            pc.fill_null(pa.array([""] * len(array), pa.string()), "")
            if not array.null_count
            else pa.array([None if each is None else "" for each in array.to_pylist()], pa.string())
        )
    places = pa.Array.from_buffers(pa.int32(), len(array) + 1, [None, offsets], offset=array.offset)
    doubled = pc.multiply(places, pa.scalar(2, pa.int32()))
    digits = pa.py_buffer(bytes(data).hex().encode())
    if array.offset and validity is not None:
        return pa.array([None if each is None else each.hex() for each in array.to_pylist()], pa.string())
    return pa.Array.from_buffers(pa.string(), len(array), [validity, doubled.buffers()[1], digits])


def _convert(array: pa.Array, kind: pa.DataType, column: WriteColumn, why: str) -> pa.Array:
    def convert(part: pa.Array) -> pa.Array:
        return pc.cast(part, kind)

    try:
        return convert(array)
    except pa.ArrowInvalid:
        index = first_failure(array, convert)
        raise BadValueError(column, index, _shown(array, index), why) from None


def _refuse_where(mask: pa.Array, array: pa.Array, column: WriteColumn, why: str) -> None:
    index = pc.index(mask, True).as_py()
    if index >= 0:
        raise BadValueError(column, index, _shown(array, index), why)


def _shown(array: pa.Array, index: int) -> str:
    try:
        return str(array[index].as_py())
    except (ValueError, OverflowError):  # Python's dates and times hold less than Arrow's
        return str(pc.cast(array.slice(index, 1), pa.string())[0].as_py())
