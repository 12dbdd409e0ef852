"""MySQL's types as Arrow's; decoding and encoding."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.csv

from spark_channel.arrow_schema import is_text
from spark_channel.connectors.sql.catalog import MisfitError, ReadColumn, WriteColumn
from spark_channel.connectors.sql.write.encode import (
    convert,
    dates,
    decimal_text,
    first_outside,
    local_timestamps,
    refuse_where,
    storage,
)
from spark_channel.errors import SchemaError
from spark_channel.lazy import compute as pc

__all__ = [
    "arrow_type",
    "assignments",
    "check_values",
    "declared_of",
    "decode_fields",
    "insert_values",
    "is_text_type",
    "is_wide_decimal",
    "load_lines",
    "members",
    "parts",
    "selected",
    "wider_text",
]


# MySQL's types as Arrow's. Pure; docs/mysql.md holds it as a table.


INSTANT, LOCAL, TIME = pa.timestamp("us", "UTC"), pa.timestamp("us"), pa.time64("us")
MOST_SCALE, SPARK_DIGITS = 30, 38

_DECLARED = re.compile(
    r"([a-z0-9 ]+?)\s*(?:\((.*)\))?\s*((?:unsigned|zerofill|signed|\s)*)", re.DOTALL
)
_MEMBER = re.compile(r"'((?:[^'\\]|''|\\.)*)'", re.DOTALL)
_ESCAPED = re.compile(r"''|\\(.)", re.DOTALL)
_CONTROLS = {"n": "\n", "r": "\r", "t": "\t", "0": "\0", "Z": "\x1a"}
SIGNED = {
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "mediumint": pa.int32(),
    "int": pa.int32(),
    "bigint": pa.int64(),
}
UNSIGNED = {
    "tinyint": pa.uint8(),
    "smallint": pa.uint16(),
    "mediumint": pa.uint32(),
    "int": pa.uint32(),
    "bigint": pa.uint64(),
}
_FIXED = {
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "datetime": LOCAL,
    "timestamp": INSTANT,
    "time": TIME,
    "year": pa.int16(),
}
_TEXTS = frozenset(
    {
        "char",
        "varchar",
        "tinytext",
        "text",
        "mediumtext",
        "longtext",
        "enum",
        "set",
        "json",
        "uuid",
        "inet4",
        "inet6",
    }
)
_BINARIES = frozenset({"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"})


def parts(declared: str) -> tuple[str, list[str], bool]:
    """(name, sizes, unsigned) of a declared type, such as `decimal(10,2) unsigned`."""
    match = _DECLARED.fullmatch(declared.strip().lower())
    if match is None:
        return declared.lower(), [], False
    name, sizes, suffix = match.group(1).strip(), match.group(2), match.group(3)
    return name, [size.strip() for size in sizes.split(",")] if sizes else [], "unsigned" in suffix


def is_text_type(declared: str) -> bool:
    return parts(declared)[0] in _TEXTS


def is_wide_decimal(declared: str) -> bool:
    """A DECIMAL of more digits than Arrow's decimals have."""
    name, sizes, _ = parts(declared)
    return name == "decimal" and bool(sizes) and int(sizes[0]) > SPARK_DIGITS


def members(declared: str) -> list[str]:
    """The texts that an `enum(...)` or `set(...)` may hold, in its order."""
    return [
        _ESCAPED.sub(lambda match: _CONTROLS.get(match[1], match[1]) if match[1] else "'", text)
        for text in _MEMBER.findall(declared)
    ]


def arrow_type(name: str, declared: str) -> pa.DataType:
    """The Arrow type of a declared type; `name` is for the message.

    Raises:
        SchemaError: a type that Spark cannot hold.
    """
    kind, sizes, unsigned = parts(declared)
    if kind == "tinyint" and sizes == ["1"] and not unsigned:
        return pa.bool_()
    if kind in SIGNED:
        return (UNSIGNED if unsigned else SIGNED)[kind]
    if kind in _FIXED:
        return _FIXED[kind]
    if kind == "decimal":
        precision, scale = (int(size) for size in (*sizes, "0")[:2]) if sizes else (10, 0)
        if precision <= SPARK_DIGITS:
            return pa.decimal128(precision, scale)
        raise SchemaError(
            f"column {name!r} is {declared}, and Spark's decimals have {SPARK_DIGITS} digits: "
            f"read it as text with customSchema ({name} STRING), or convert it with 'query'"
        )
    if kind == "bit":
        bits = int(sizes[0]) if sizes else 1
        return pa.bool_() if bits == 1 else pa.int64() if bits < 64 else pa.uint64()
    if kind in _TEXTS:
        return pa.string()
    if kind in _BINARIES:
        return pa.binary()
    is_vector = parts(declared)[0] == "vector"
    way = (
        "VECTOR_TO_STRING(...) of MySQL or VEC_ToText(...) of MariaDB"
        if is_vector
        else "ST_AsText(...)"
    )
    raise SchemaError(
        f"column {name!r} is {declared}, which Spark cannot hold: omit it with option 'columns', or convert "
        f"it with 'query', such as {way}"
    )


_UNSIGNED_FLAG, _ENUM_FLAG, _SET_FLAG = 32, 256, 2048
_BINARY_CHARSET = 63
_CODES = {
    1: "tinyint",
    2: "smallint",
    3: "int",
    4: "float",
    5: "double",
    7: "timestamp",
    8: "bigint",
    9: "mediumint",
    10: "date",
    11: "time",
    12: "datetime",
    13: "year",
    14: "date",
    245: "json",
    247: "enum",
    248: "set",
    255: "geometry",
}


def declared_of(field: Any) -> str:
    """The declared type of a column of a result, from the protocol's description of it."""
    unsigned = " unsigned" if field.flags & _UNSIGNED_FLAG else ""
    code, length, scale = field.type_code, field.length, field.scale
    if field.flags & _ENUM_FLAG:
        return "enum"
    if field.flags & _SET_FLAG:
        return "set"
    if code == 1:
        return f"tinyint({length}){unsigned}"
    if code in (2, 3, 8, 9):
        return _CODES[code] + unsigned
    if code in (0, 246):
        digits = length - (1 if scale else 0) - (0 if unsigned else 1)
        return f"decimal({digits},{scale}){unsigned}"
    if code == 16:
        return f"bit({length})"
    if code in (7, 11, 12):
        return f"{_CODES[code]}({scale})" if 0 < scale <= 6 else _CODES[code]
    if code in _CODES:
        return _CODES[code]
    binary = field.charsetnr == _BINARY_CHARSET
    if code in (249, 250, 251, 252):
        return "longblob" if binary else "longtext"
    if code == 6 or (code == 254 and binary and not length):
        return (
            "varchar"  # an untyped NULL, which may become any type; as in PostgreSQL it is a text
        )
    if code == 254:
        return f"binary({length})" if binary else "char"
    return f"varbinary({length})" if binary else "varchar"


# Decodes the server's texts to Arrow: texts and bytes column by column, the others through one CSV.


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


# Encodes Arrow values as lines of LOAD DATA and rows of INSERT, or refuses the row. Pure.
#
# All of it works on whole columns: the bytes of a batch are those of one Arrow array of its lines.


_INSTANTS = (1_000_000, 2_147_483_647_999_999)
_LATE_INSTANTS = (1_000_000, 4_294_967_295_999_999)
"""Microseconds that a TIMESTAMP holds, and that of MariaDB 11.5 and later."""


_QUOTED = (b'"', b",", b"\n", b"NULL")
"""Texts of a column with one of these are enclosed in quotes."""


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
) -> memoryview:
    """Lines for `FIELDS TERMINATED BY ',' OPTIONALLY ENCLOSED BY '"' ESCAPED BY ''`; NULL is a bare NULL.

    Raises:
        BadValueError: the first value found that would come back changed.
    """
    fields = []
    for column in columns:
        text, quotes = _text(storage(batch.column(column.name)), column, exact)
        if quotes:
            data = bytes(_bytes_of(text))  # of most columns none needs quotes: this look is cheaper
            if b'"' in data:
                text = pc.replace_substring(text, '"', '""')
            if any(mark in data for mark in _QUOTED):
                text = pc.binary_join_element_wise('"', text, '"', "")
            del data
        fields.append(pc.fill_null(text, "NULL"))
    lines = pc.binary_join_element_wise(*fields, ",") if len(fields) > 1 else fields[0]
    # A long value is in memory once for each name that holds it.
    del fields, text
    return _bytes_of(pc.binary_join_element_wise(lines, "\n", ""))


def insert_values(
    batch: pa.RecordBatch, columns: Sequence[WriteColumn], most_bytes: int, *, exact: bool = True
) -> list[tuple[str, int]]:
    """The rows after INSERT ... VALUES, in pieces of at most `most_bytes` where a row is no longer: (text, rows)."""
    fields = []
    for column in columns:
        text, quotes = _text(storage(batch.column(column.name)), column, exact)
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


def _bytes_of(texts: pa.StringArray) -> memoryview:
    """The bytes of all values of a text array, one after the other; copies nothing."""
    _, ends, data = texts.buffers()
    if len(texts) == 0 or data is None:
        return memoryview(b"")
    places = memoryview(ends).cast("i")
    return memoryview(data)[places[texts.offset] : places[texts.offset + len(texts)]]


def _text(array: pa.Array, column: WriteColumn, exact: bool) -> tuple[pa.Array, bool]:
    """The values as text, and whether they need quotes; `exact`: those that the server would change are refused."""
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
    return _hexadecimal(array), False


_BYTES = {"tiny": 2**8 - 1, "": 2**16 - 1, "medium": 2**24 - 1}
"""Bytes that a TEXT or BLOB holds, by what its name begins with."""


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
    doubled = pc.multiply(places, pa.scalar(2, pa.int32()))
    digits = pa.py_buffer(bytes(data).hex().encode())
    if array.offset and validity is not None:
        return pa.array(
            [None if value is None else value.hex() for value in array.to_pylist()], pa.string()
        )
    return pa.Array.from_buffers(pa.string(), len(array), [validity, doubled.buffers()[1], digits])
