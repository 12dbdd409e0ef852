"""A batch as rows of COPY's binary format: each column becomes bytes as a whole, and Arrow joins them into rows. Pure.

The format of a value is what the server's function `<type>_recv` takes. A driver that walks row by row and field by
field needs three times as long.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_channel.arrow_schema import numpy_name
from spark_channel.connectors.postgresql.copy.format import ELEMENT, CopyRows
from spark_channel.lazy import compute as pc

__all__ = ["copy_rows"]

_DAYS = 10_957
"""From 1970 to 2000, where PostgreSQL's days and microseconds begin to count."""
_MICROSECONDS = _DAYS * 86_400_000_000
_LOW_DIGITS = 18
"""So many decimal digits fit 64 bits."""

Matrix = npt.NDArray[np.uint8]
"""The bytes of a piece that is equally wide in all rows: (rows, width)."""
Piece: TypeAlias = Any
"""A `Matrix`, or large binary values without a null."""


def copy_rows(batch: pa.RecordBatch) -> CopyRows:
    """The rows of `batch` as COPY takes them.

    Takes booleans, signed whole numbers, floats, text and bytes, dates in days, times, timestamps and durations in
    microseconds, decimals, month-day-nano intervals, and lists of these.
    """
    pieces: list[Piece] = [_repeated(batch.num_columns.to_bytes(2, "big"), batch.num_rows)]
    for array, field in zip(batch.columns, batch.schema, strict=True):
        pieces += _field(array, field.metadata or {})
    data = _data(_joined(pieces, batch.num_rows))
    return CopyRows(batch.schema.names, batch.num_rows, [data])


def _field(array: pa.Array, metadata: Mapping[bytes, bytes]) -> Iterator[Piece]:
    """The length of each value, and the value; of NULL the length is -1."""
    kind, rows = array.type, len(array)
    if pa.types.is_list(kind):
        values = _lists(array, int(metadata[ELEMENT]))
    elif pa.types.is_string(kind) or pa.types.is_binary(kind):
        values = pc.cast(array, pa.large_binary())
    else:
        matrix = _matrix(array)
        if not array.null_count:
            yield _repeated(matrix.shape[1].to_bytes(4, "big"), rows)
            yield matrix
            return
        values = _where_valid(array, _rows(matrix))
    lengths = pc.fill_null(pc.binary_length(values), -1)
    yield _bytes(_whole(lengths), ">i4")
    yield pc.fill_null(values, b"") if values.null_count else values


def _lists(array: pa.ListArray, element: int) -> pa.LargeBinaryArray:
    """Arrays of one dimension; an empty one has no elements, and is what PostgreSQL makes of it."""
    rows, elements = len(array), array.flatten()
    counts = _whole(pc.fill_null(pc.list_value_length(array), 0))
    ends = np.concatenate(([0], np.cumsum(counts)))
    joined = _joined(list(_field(elements, {})), len(elements))
    header = np.empty((rows, 5), ">i4")
    header[:] = (1, int(elements.null_count > 0), element, 0, 1)
    header[:, 3] = counts
    content = _cut(joined.buffers()[2], _offsets(joined)[ends])
    return _where_valid(array, _joined([header.view(np.uint8), content], rows))


def _matrix(array: pa.Array) -> Matrix:
    """The values of one width; values where the array is null have no meaning."""
    kind = array.type
    if pa.types.is_decimal(kind):
        return _numeric(array)
    if pa.types.is_boolean(kind):
        return _plain(pc.cast(array, pa.uint8()), np.dtype(np.uint8)).reshape(-1, 1)
    if pa.types.is_fixed_size_binary(kind):
        return _plain(array, np.dtype((np.uint8, kind.byte_width)))
    for is_kind, values in _VALUES.items():
        if is_kind(kind):
            return values(array)
    raise TypeError(f"COPY has no form for {kind}")


def _number(array: pa.Array) -> Matrix:
    return _bytes(_whole(array))


def _date(array: pa.Array) -> Matrix:
    return _bytes(_since_2000(_plain(array, np.dtype(np.int32)), _DAYS))


def _time(array: pa.Array) -> Matrix:
    return _bytes(_plain(array, np.dtype(np.int64)))


def _timestamp(array: pa.Array) -> Matrix:
    return _bytes(_since_2000(_plain(array, np.dtype(np.int64)), _MICROSECONDS))


def _duration(array: pa.Array) -> Matrix:
    return _interval_of(_plain(array, np.dtype(np.int64)), 0, 0)


def _interval(array: pa.Array) -> Matrix:
    parts = _plain(array, np.dtype([("months", "<i4"), ("days", "<i4"), ("nanoseconds", "<i8")]))
    return _interval_of(parts["nanoseconds"] // 1000, parts["days"], parts["months"])


def _interval_of(microseconds: Any, days: Any, months: Any) -> Matrix:
    value = np.empty(
        len(microseconds), [("microseconds", ">i8"), ("days", ">i4"), ("months", ">i4")]
    )
    value["microseconds"], value["days"], value["months"] = microseconds, days, months
    return value.view(np.uint8).reshape(len(value), value.itemsize)


_VALUES: dict[Callable[[pa.DataType], bool], Callable[[pa.Array], Matrix]] = {
    pa.types.is_integer: _number,
    pa.types.is_floating: _number,
    pa.types.is_date32: _date,
    pa.types.is_time64: _time,
    pa.types.is_timestamp: _timestamp,
    pa.types.is_duration: _duration,
    pa.types.is_interval: _interval,
}


def _since_2000(values: npt.NDArray[Any], epoch: int) -> npt.NDArray[Any]:
    """The lowest number stands for -infinity, and below it one would begin again at the other end."""
    lowest = np.iinfo(values.dtype).min + epoch + 1
    return np.asarray(np.maximum(values, lowest) - values.dtype.type(epoch))


def _numeric(array: pa.Array) -> Matrix:
    """Digits of base 10 000, those of the whole part and those behind the point in separate groups.

    Zeros at both ends are cut off by the server.
    """
    if array.type.scale < 0:
        array = pc.cast(array, pa.decimal256(array.type.precision - array.type.scale, 0))
    precision, scale = array.type.precision, array.type.scale
    before, after = -(-max(0, precision - scale) // 4), -(-scale // 4)
    fill = 4 * after - scale
    groups_found = _low_groups(array, before + after, fill)
    if groups_found is None:
        groups_found = _all_groups(array, before, after, fill)
    negative, groups = groups_found
    value = np.empty((len(array), 4 + groups.shape[1]), ">i2")
    value[:, 0] = groups.shape[1]
    value[:, 1] = groups.shape[1] - after - 1
    value[:, 2] = np.where(negative, 0x4000, 0)
    value[:, 3] = scale
    value[:, 4:] = groups
    return value.view(np.uint8)


Groups = tuple[npt.NDArray[np.bool_], npt.NDArray[Any]]
"""Which rows are negative, and the digits: (rows, groups)."""


def _low_groups(array: pa.Array, count: int, fill: int) -> Groups | None:
    """By the low 64 bits; None where they may not hold every number."""
    if array.type.bit_width != 128 or array.type.precision + fill > _LOW_DIGITS:
        return None
    low = _plain(array, np.dtype(("<i8", 2)))[:, 0]
    remainder = np.abs(low) * 10**fill
    groups = np.empty((len(array), count), np.int16)
    for group in reversed(range(count)):
        remainder, groups[:, group] = np.divmod(remainder, 10_000)
    return None if remainder.any() else (low < 0, groups)


def _all_groups(array: pa.Array, before: int, after: int, fill: int) -> Groups:
    """By the decimal digits, as text: of any length."""
    wide = pa.decimal256(76, 0) if array.type.bit_width == 256 else pa.decimal128(38, 0)
    whole = pa.Array.from_buffers(wide, len(array), array.buffers(), array.null_count, array.offset)
    text = pc.fill_null(pc.cast(whole, pa.string()), "0")
    negative = _plain(pc.cast(pc.starts_with(text, "-"), pa.uint8()), np.dtype(np.bool_))
    digits = pc.ascii_ltrim(text, "-")
    # A decimal may hold more than it says.
    longest = int(pc.max(pc.binary_length(digits)).as_py() or 0)
    width = max(4 * before, -(-(longest + fill) // 4) * 4 - 4 * after) + 4 * after
    digits = pc.ascii_rpad(pc.ascii_lpad(digits, width - fill, "0"), width, "0")
    figures = np.frombuffer(_data(pc.cast(digits, pa.large_binary())), np.uint8).reshape(
        len(array), width // 4, 4
    )
    return negative, (figures - ord("0")).astype(np.int16) @ np.array([1000, 100, 10, 1], np.int16)


def _whole(array: pa.Array) -> npt.NDArray[Any]:
    """Numbers by their own type; pyarrow's `to_numpy` is not there where numpy was left out of its import."""
    return _plain(array, np.dtype(numpy_name(array.type)))


def _plain(array: pa.Array, kind: np.dtype[Any]) -> npt.NDArray[Any]:
    """The values as they lie in memory."""
    if not len(array):
        return np.empty((0, *kind.shape), kind.base)
    return np.frombuffer(array.buffers()[1], kind, len(array) + array.offset)[array.offset :]


def _bytes(values: npt.NDArray[Any], kind: str | None = None) -> Matrix:
    """Each value as PostgreSQL reads it: the highest byte first."""
    swapped = np.ascontiguousarray(values, kind or values.dtype.newbyteorder(">"))
    return swapped.view(np.uint8).reshape(len(values), swapped.itemsize)


def _repeated(piece: bytes, rows: int) -> Matrix:
    return np.broadcast_to(np.frombuffer(piece, np.uint8), (rows, len(piece)))


def _joined(pieces: list[Piece], rows: int) -> pa.LargeBinaryArray:
    """The pieces of each row one behind the other."""
    columns: list[pa.LargeBinaryArray] = []
    wide: list[Matrix] = []
    for piece in pieces:
        if isinstance(piece, np.ndarray):
            wide.append(piece)
            continue
        if wide:
            columns.append(_rows(np.concatenate(wide, axis=1)))
            wide = []
        columns.append(piece)
    if wide:
        columns.append(_rows(np.concatenate(wide, axis=1)))
    if len(columns) == 1:
        return columns[0]
    return pc.binary_join_element_wise(*columns, pa.scalar(b"", pa.large_binary()))


def _rows(matrix: Matrix) -> pa.LargeBinaryArray:
    rows, width = matrix.shape
    return _cut(
        pa.py_buffer(np.ascontiguousarray(matrix)), np.arange(rows + 1, dtype=np.int64) * width
    )


def _cut(data: pa.Buffer, offsets: npt.NDArray[np.int64]) -> pa.LargeBinaryArray:
    """The bytes between each two neighbours of `offsets`."""
    buffers = [None, pa.py_buffer(offsets), data]
    return pa.Array.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)


def _where_valid(nulls_of: pa.Array, values: pa.LargeBinaryArray) -> pa.LargeBinaryArray:
    """`values`, null where `nulls_of` is."""
    return pc.if_else(pc.is_valid(nulls_of), values, None) if nulls_of.null_count else values


def _offsets(array: pa.LargeBinaryArray) -> npt.NDArray[np.int64]:
    return np.frombuffer(array.buffers()[1], np.int64, len(array) + array.offset + 1)[
        array.offset :
    ]


def _data(array: pa.LargeBinaryArray) -> memoryview:
    """All its bytes in a row."""
    if not len(array):
        return memoryview(b"")
    offsets = _offsets(array)
    return memoryview(array.buffers()[2] or b"")[offsets[0] : offsets[-1]]
