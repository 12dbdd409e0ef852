"""Encodes Arrow values as lines of LOAD DATA and rows of INSERT, or refuses the row. Pure.

All of it works on whole columns: the bytes of a batch are those of one Arrow array of its lines.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from spark_channel.arrow_schema import is_text
from spark_channel.connectors.files.formats.text_encode import is_long, row_pieces
from spark_channel.connectors.mysql.types.arrow import members, parts
from spark_channel.connectors.sql.catalog import WriteColumn
from spark_channel.connectors.sql.write.encode import (
    convert,
    dates,
    decimal_text,
    local_timestamps,
    refuse_where,
    storage,
)
from spark_channel.lazy import compute as pc

__all__ = ["assignments", "check_values", "insert_values", "load_lines", "wider_text"]


_INSTANTS = (1_000_000, 2_147_483_647_999_999)
_LATE_INSTANTS = (1_000_000, 4_294_967_295_999_999)
"""Microseconds that a TIMESTAMP holds, and that of MariaDB 11.5 and later."""


_QUOTED = (b'"', b",", b"\n", b"NULL")
"""Texts of a column with one of these are enclosed in quotes."""
_NULLS: dict[str, Any] = {"null_handling": "replace", "null_replacement": "NULL"}
_LONGEST = max(map(len, _QUOTED))
_LOOK = 1 << 20
_BYTES = {"tiny": 2**8 - 1, "": 2**16 - 1, "medium": 2**24 - 1}
"""Bytes that a TEXT or BLOB holds, by what its name begins with."""


def assignments(columns: Sequence[WriteColumn], quoted: Any) -> tuple[str, str]:
    """The column list and SET clause of LOAD DATA: bytes come as hexadecimal digits, bits as numbers."""
    names, sets = [], []
    for number, column in enumerate(columns):
        name = parts(column.declared)[0]
        if _is_binary(column):
            names.append(f"@c{number}")
            sets.append(f"{quoted(column.target)} = UNHEX(@c{number})")
        elif name == "bit":
            names.append(f"@c{number}")
            sets.append(f"{quoted(column.target)} = CAST(@c{number} AS UNSIGNED)")
        else:
            names.append(quoted(column.target))
    return ", ".join(names), f" SET {', '.join(sets)}" if sets else ""


def load_lines(
    batch: pa.RecordBatch, columns: Sequence[WriteColumn], *, exact: bool = True
) -> Iterator[memoryview | bytes]:
    """Lines for `FIELDS TERMINATED BY ',' OPTIONALLY ENCLOSED BY '"' ESCAPED BY ''`; NULL is a bare NULL. In pieces:
    a row with a long value is not in memory as a line.

    Raises:
        BadValueError: the first value found that would come back changed; not by the iterator.
    """
    texts = [_text(storage(batch.column(column.name)), column, exact) for column in columns]
    names = [str(number) for number in range(len(texts))]
    rows = pa.RecordBatch.from_arrays([text for text, _ in texts], names=names)
    return _lines(rows, [quotes for _, quotes in texts])


def _lines(rows: pa.RecordBatch, quotes: Sequence[bool]) -> Iterator[memoryview | bytes]:
    for part, has_long in row_pieces(rows, max(1, rows.num_rows)):
        if has_long:
            yield from _long_line(part, quotes)
            continue
        *fields, last = map(_field, part.columns, quotes)
        last = pc.binary_join_element_wise(last, "\n", "", **_NULLS)
        yield _bytes_of(pc.binary_join_element_wise(*fields, last, ",", **_NULLS))


def _field(text: pa.Array, quotes: bool) -> pa.Array:
    if pa.types.is_binary(text.type):
        text = _hexadecimal(text)
    if quotes:
        # Of most columns no text needs quotes: this look is cheaper.
        found = _marks_of(_bytes_of(text))
        if b'"' in found:
            text = pc.replace_substring(text, '"', '""')
        if found:
            text = pc.binary_join_element_wise('"', text, '"', "")
    return text


def _long_line(row: pa.RecordBatch, quotes: Sequence[bool]) -> Iterator[memoryview | bytes]:
    for number, (values, in_quotes) in enumerate(zip(row.columns, quotes, strict=True)):
        yield b"," if number else b""
        if not is_long(values):
            yield _bytes_of(pc.fill_null(_field(values, in_quotes), "NULL"))
            continue
        data, mark = _bytes_of(values), b'"' if in_quotes else b""
        yield mark
        for begin in range(0, len(data), _LOOK):
            part = bytes(data[begin : begin + _LOOK])
            yield part.replace(b'"', b'""') if in_quotes else part.hex().encode()
        yield mark
    yield b"\n"


def insert_values(
    batch: pa.RecordBatch, columns: Sequence[WriteColumn], most_bytes: int, *, exact: bool = True
) -> list[tuple[str, int]]:
    """The rows after INSERT ... VALUES, in pieces of at most `most_bytes` where a row is no longer: (text, rows)."""
    fields = []
    for column in columns:
        text, quotes = _text(storage(batch.column(column.name)), column, exact)
        if pa.types.is_binary(text.type):
            text = _hexadecimal(text)
        if _is_binary(column):
            text = pc.binary_join_element_wise("x'", text, "'", "")
        elif quotes:
            text = pc.replace_substring(pc.replace_substring(text, "\\", "\\\\"), "'", "''")
            text = pc.binary_join_element_wise("'", text, "'", "")
        elif not _is_number(column):
            text = pc.binary_join_element_wise("'", text, "'", "")
        fields.append(pc.fill_null(text, "NULL"))
    rows = pc.binary_join_element_wise(*fields, ",") if len(fields) > 1 else fields[0]
    del fields, text
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
        "tinyint",
        "smallint",
        "mediumint",
        "int",
        "bigint",
        "decimal",
        "float",
        "double",
        "year",
        "bit",
    )


def _bytes_of(texts: pa.StringArray | pa.BinaryArray) -> memoryview:
    """The bytes of all values of an array, one after the other; copies nothing."""
    _, ends, data = texts.buffers()
    if len(texts) == 0 or data is None:
        return memoryview(b"")
    places = memoryview(ends).cast("i")
    return memoryview(data)[places[texts.offset] : places[texts.offset + len(texts)]]


def _marks_of(data: memoryview) -> set[bytes]:
    """Those of `_QUOTED` that `data` holds, which is not copied as a whole."""
    found: set[bytes] = set()
    for begin in range(0, len(data), _LOOK):
        part = bytes(data[begin : begin + _LOOK + _LONGEST - 1])
        found.update(mark for mark in _QUOTED if mark not in found and mark in part)
    return found


def _text(array: pa.Array, column: WriteColumn, exact: bool) -> tuple[pa.Array, bool]:
    """The values as text, or bytes, and whether they need quotes; `exact`: those that the server would change are
    refused."""
    kind = array.type
    name, sizes, _ = parts(column.declared)
    _refuse_filled_nulls(array, column, name)
    if pa.types.is_null(kind):
        return pc.cast(array, pa.string()), False
    if pa.types.is_boolean(kind):
        return pc.cast(pc.cast(array, pa.int8()), pa.string()), False
    if pa.types.is_integer(kind):
        if name == "year":
            inside = pc.or_(
                pc.equal(array, 0),
                pc.and_(pc.greater_equal(array, 1901), pc.less_equal(array, 2155)),
            )
            refuse_where(pc.invert(inside), array, column, "a year is 0, or from 1901 to 2155")
            return pc.utf8_lpad(
                pc.cast(array, pa.string()), 4, "0"
            ), False  # the text 0 is the year 2000: findings/mariadb-year-zero-as-text.sh
        return pc.cast(array, pa.string()), False
    if pa.types.is_floating(kind):
        # A float's own digits are another double, and may be none of a FLOAT.
        array = pc.cast(array, pa.float64())
        odd = pc.invert(pc.is_finite(array))
        refuse_where(
            odd, array, column, "MySQL has no NaN and no infinity; replace it or leave the row out"
        )
        return pc.cast(array, pa.string()), False
    if pa.types.is_decimal(kind):
        return decimal_text(array), False
    if pa.types.is_date(kind):
        return pc.cast(dates(array, column), pa.string()), False
    if pa.types.is_time(kind):
        micro = convert(array, pa.time64("us"), column, "times end at microseconds")
        if exact:
            _refuse_finer(pc.cast(micro, pa.int64()), array, column, sizes)
        return pc.cast(micro, pa.string()), False
    if pa.types.is_timestamp(kind):
        return _moment(array, column, sizes, exact), False
    if is_text(kind):
        array = pc.cast(array, pa.string())
        if name == "char" and exact:
            reason = "a CHAR column drops the spaces at the end; declare it VARCHAR"
            refuse_where(pc.ends_with(array, " "), array, column, reason)
        elif name in ("enum", "set"):
            _refuse_strangers(array, column, one=name == "enum")
        return array, True
    array = pc.cast(array, pa.binary())
    if name == "binary" and exact:
        short = pc.not_equal(pc.binary_length(array), int(sizes[0]) if sizes else 1)
        refuse_where(
            short,
            array,
            column,
            f"column {column.target!r} is {column.declared}, which pads with zeros",
        )
    return array, False


def wider_text(declared: str) -> str:
    """The type of a column for longer texts or bytes; "" = there is none."""
    name, _, _ = parts(declared)
    wider = {"char": "text", "varchar": "text", "binary": "blob", "varbinary": "blob"}
    wider |= {f"{size}{end}": f"long{end}" for size in _BYTES for end in ("text", "blob")}
    return wider.get(name, "")


def check_values(array: pa.Array, column: WriteColumn) -> None:
    """Check that the server holds the values unchanged, as far as its columns' declarations say.

    Raises:
        BadValueError: the first one found that it does not hold.
    """
    array = storage(array)
    _text(array, column, True)
    name, sizes, _ = parts(column.declared)
    reason, wider = f"it is longer than {column.declared}", wider_text(column.declared)
    ends = [end for end in ("text", "blob") if name.endswith(end)]
    most = _BYTES.get(name.removesuffix(ends[0])) if ends else None
    if name in ("char", "varchar") and sizes and is_text(array.type):
        refuse_where(pc.greater(pc.utf8_length(array), int(sizes[0])), array, column, reason, wider)
    elif name in ("binary", "varbinary") and sizes:
        refuse_where(
            pc.greater(pc.binary_length(array), int(sizes[0])), array, column, reason, wider
        )
    elif most is not None:
        refuse_where(pc.greater(pc.binary_length(array), most), array, column, reason, wider)


def _refuse_filled_nulls(array: pa.Array, column: WriteColumn, name: str) -> None:
    """NULL in columns for which the server has its own value, whatever the session's mode."""
    about = column.column
    if not array.null_count or not about.not_null:
        return
    if name == "timestamp":
        reason = (
            f"column {column.target!r} is NOT NULL, and the server would store the present time"
        )
        refuse_where(pc.is_null(array), array, column, reason)
    elif getattr(about, "numbered", False):
        reason = (
            f"column {column.target!r} is AUTO_INCREMENT, and the server would store a number. "
            "Leave the column out"
        )
        refuse_where(pc.is_null(array), array, column, reason)


def _refuse_strangers(array: pa.Array, column: WriteColumn, *, one: bool) -> None:
    """Values that are not exactly a member: MySQL takes '1' for the first member, and 'A' or 'a ' for 'a'."""
    places = {text: number for number, text in enumerate(members(column.declared))}

    def is_kept(text: str) -> bool:
        if one:
            return text in places
        numbers = [places.get(part, -1) for part in text.split(",")] if text else []
        return all(before < after for before, after in zip([-1, *numbers], numbers, strict=False))

    texts = pc.unique(array.drop_null()).to_pylist()
    strange = pa.array([text for text in texts if not is_kept(text)], pa.string())
    reason = (
        f"column {column.target!r} is {column.declared}, and it is none of these"
        if one
        else f"column {column.target!r} is {column.declared}: members of it, in this order, each once"
    )
    refuse_where(pc.is_in(array, value_set=strange), array, column, reason)


def _moment(array: pa.Array, column: WriteColumn, sizes: list[str], exact: bool) -> pa.Array:
    if array.type.tz is None:
        local = local_timestamps(array, column)
    else:
        is_late = getattr(column.column, "holds_2106", False)
        reason = (
            f"a TIMESTAMP of this server goes from 1970 to {2106 if is_late else 2038}; cast it to a timestamp "
            "without zone, which is a DATETIME"
        )
        local = local_timestamps(array, column, _LATE_INSTANTS if is_late else _INSTANTS, reason)
    if exact:
        _refuse_finer(pc.cast(local, pa.int64()), local, column, sizes)
    return pc.cast(local, pa.string())


def _refuse_finer(micro: pa.Array, array: pa.Array, column: WriteColumn, sizes: list[str]) -> None:
    """The server would round to the column's digits, or cut, without a word:
    findings/mariadb-cut-second-without-a-note.sh
    """
    digits = int(sizes[0]) if sizes else 0
    if digits < 6:
        unit = 10 ** (6 - digits)
        whole = pc.multiply(pc.divide(micro, unit), unit)
        reason = f"column {column.target!r} is {column.declared}, which rounds it to {digits} digits of a second"
        refuse_where(pc.not_equal(whole, micro), array, column, reason)


def _hexadecimal(array: pa.Array) -> pa.Array:
    """Bytes as hexadecimal digits, the whole column at once."""
    array = pa.concat_arrays([array])
    validity, offsets, data = array.buffers()
    if data is None or len(array) == 0:
        return (
            pc.fill_null(pa.array([""] * len(array), pa.string()), "")
            if not array.null_count
            else pa.array(
                [None if value is None else "" for value in array.to_pylist()], pa.string()
            )
        )
    places = pa.Array.from_buffers(pa.int32(), len(array) + 1, [None, offsets], offset=array.offset)
    doubled = pc.multiply(pc.subtract(places, places[0]), pa.scalar(2, pa.int32()))
    digits = pa.py_buffer(_bytes_of(array).hex().encode())
    if array.offset and validity is not None:
        return pa.array(
            [None if value is None else value.hex() for value in array.to_pylist()], pa.string()
        )
    return pa.Array.from_buffers(pa.string(), len(array), [validity, doubled.buffers()[1], digits])
