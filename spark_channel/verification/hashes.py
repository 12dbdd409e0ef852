"""64-bit hashes of rows in the form that both sides have in common.

Values that are equal in it have one hash, whichever side they come from. Every step works on whole Arrow arrays:
numpy multiplies and shifts words of 8 bytes. No database takes part, so no collation, locale or float format does.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_channel.arrow_schema import is_text, numpy_name
from spark_channel.lazy import compute as pc
from spark_channel.verification.arrow_buffers import decoded, fixed_width, null_mask, unpacked_bits
from spark_channel.verification.forms import Form

__all__ = ["Hashes", "hash_columns", "hash_values", "mixed"]


_NANOS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
Hashes = npt.NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_NULL = np.uint64(0x6A09E667F3BCC909)
_LENGTH = np.uint64(0xC2B2AE3D27D4EB4F)
_LONG = 1 << 16
"""Longer values are hashed one by one, with a few words of memory."""
_PIECE = 8 << 20
"""Bytes of text that are hashed at once: their words and positions take about six times as much."""


def mixed(words: Hashes) -> Hashes:
    """The finalizer of splitmix64: every bit of a word changes half of the bits of the result."""
    hashes = words ^ (words >> np.uint64(30))
    hashes *= _FIRST
    hashes ^= hashes >> np.uint64(27)
    hashes *= _SECOND
    hashes ^= hashes >> np.uint64(31)
    return hashes


def hash_columns(columns: Sequence[pa.Array], forms: Sequence[Form]) -> Hashes:
    """A hash for each row of these columns, in their order."""
    rows = len(columns[0])
    total = np.zeros(rows, np.uint64)
    for number, (values, form) in enumerate(zip(columns, forms, strict=True), 1):
        total += mixed(hash_values(values, form) + _times(number))
    return mixed(total)


def hash_values(values: pa.Array, form: Form) -> Hashes:
    """A hash for each value; all NULLs have one hash.

    Raises:
        pa.ArrowInvalid: a value that the form cannot hold.
    """
    values = decoded(values)
    if not len(values):
        return np.zeros(0, np.uint64)
    if values.null_count == len(values):
        return np.full(len(values), _NULL)
    hashes = _HASHED[form.name.partition(" (")[0].partition(",")[0]](values, form)
    if values.null_count:
        hashes[null_mask(values)] = _NULL
    return hashes


def _times(number: int) -> np.uint64:
    return np.uint64(number * int(_GOLDEN) & 0xFFFF_FFFF_FFFF_FFFF)


def _words(values: npt.NDArray[Any]) -> Hashes:
    return values.astype(np.int64, copy=False).view(np.uint64)


def _boolean(values: pa.Array, _form: Form) -> Hashes:
    return mixed(unpacked_bits(values.buffers()[1], values.offset, len(values)).astype(np.uint64))


def _integer(values: pa.Array, _form: Form) -> Hashes:
    if pa.types.is_boolean(values.type):
        return _boolean(values, _form)
    numbers = fixed_width(values, numpy_name(values.type))
    return mixed(numbers if numbers.dtype == np.uint64 else _words(numbers))


def _decimal(values: pa.Array, form: Form) -> Hashes:
    wide = form.name == "wide decimal"
    kind = pa.decimal256(76, form.scale) if wide else pa.decimal128(38, form.scale)
    if pa.types.is_boolean(values.type):
        values = values.cast(pa.int8())
    if pa.types.is_integer(values.type):
        values = values.cast(pa.decimal128(20, 0))
    width = 4 if wide else 2
    words = fixed_width(values.cast(kind), np.uint64, width).reshape(-1, width)
    hashes = mixed(words[:, 0])
    for number in range(1, width):
        hashes += mixed(words[:, number] + _times(number))
    return mixed(hashes)


def _double(values: pa.Array, _form: Form) -> Hashes:
    if pa.types.is_boolean(values.type):
        values = values.cast(pa.int8())
    if pa.types.is_decimal(values.type):
        # A text is rounded once, and so is always the nearest double.
        values = values.cast(pa.string())
    if not pa.types.is_floating(values.type):
        values = values.cast(pa.float64(), safe=False)
    with np.errstate(invalid="ignore"):  # a NaN may be a signalling one
        numbers = fixed_width(values, numpy_name(values.type)).astype(np.float64)
        numbers += 0.0  # -0.0 is 0.0
    numbers[np.isnan(numbers)] = np.nan
    return mixed(numbers.view(np.uint64))


def _moment(values: pa.Array, _form: Form) -> Hashes:
    """Microseconds, and what is left of them in nanoseconds."""
    kind = values.type
    if pa.types.is_date32(kind):
        return _units(fixed_width(values, np.int32).astype(np.int64), 86_400 * 10**9, values)
    if pa.types.is_date64(kind):
        return _units(fixed_width(values, np.int64), 10**6, values)
    wide = kind.bit_width == 64
    numbers = fixed_width(values, np.int64 if wide else np.int32).astype(np.int64)
    return _units(numbers, _NANOS[kind.unit], values)


def _units(numbers: npt.NDArray[np.int64], nanos: int, values: pa.Array) -> Hashes:
    if nanos >= 1000:
        times = nanos // 1000
        most = (1 << 63) // times - 1
        beyond = (numbers > most) | (numbers < -most)
        if values.null_count:
            beyond &= ~null_mask(values)
        if beyond.any():
            raise pa.ArrowInvalid(f"a {values.type} is out of the range of microseconds")
        return mixed((numbers * times).view(np.uint64))
    micros, remainder = np.divmod(numbers, 1000)
    hashes = mixed(micros.view(np.uint64))
    return np.where(remainder == 0, hashes, mixed(hashes + remainder.view(np.uint64) * _GOLDEN))


def _date(values: pa.Array, form: Form) -> Hashes:
    return _moment(values, form)


def _interval(values: pa.Array, _form: Form) -> Hashes:
    words = fixed_width(values, np.uint64, 2).reshape(-1, 2)
    return mixed(mixed(words[:, 0]) + mixed(words[:, 1] + _GOLDEN))


def _text(values: pa.Array, form: Form) -> Hashes:
    if form.name.endswith("NFC"):
        values = pc.utf8_normalize(values.cast(pa.large_string()), form="NFC")
    return _bytes(values, form)


def _bytes(values: pa.Array, _form: Form) -> Hashes:
    kind = values.type
    if pa.types.is_fixed_size_binary(kind):
        ends = (values.offset + np.arange(len(values) + 1, dtype=np.int64)) * kind.byte_width
        return _segments(values.buffers()[1], ends)
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        values = values.cast(pa.large_binary())
    _, ends, data = values.buffers()
    large = pa.types.is_large_string(values.type) or pa.types.is_large_binary(values.type)
    return _segments(data, _ends(values, ends, large=large))


def _ends(values: pa.Array, buffer: pa.Buffer, *, large: bool) -> npt.NDArray[np.int64]:
    offsets = np.frombuffer(buffer, np.int64 if large else np.int32)
    return offsets[values.offset : values.offset + len(values) + 1].astype(np.int64)


def _segments(buffer: pa.Buffer | None, ends: npt.NDArray[np.int64]) -> Hashes:
    """The hash of the bytes between each two neighbours of `ends`."""
    hashes = np.empty(len(ends) - 1, np.uint64)
    sizes = np.diff(ends)
    data = memoryview(b"") if buffer is None else memoryview(buffer)
    long = np.flatnonzero(sizes > _LONG)
    sizes[long] = 0
    first = 0
    while first < len(sizes):
        behind = np.searchsorted(np.cumsum(sizes[first:]), _PIECE, "right")
        last = min(len(sizes), first + max(1, int(behind)))
        hashes[first:last] = _piece(data, ends[first:last], sizes[first:last])
        first = last
    for row in long:
        digest = hashlib.blake2b(data[ends[row] : ends[row + 1]], digest_size=8).digest()
        hashes[row] = int.from_bytes(digest, "little")
    return hashes


def _piece(data: memoryview, starts: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]) -> Hashes:
    """Sum of the mixed words of each value: a word is mixed with its position, and the sum with the length."""
    counts = (sizes + 7) // 8
    bounds = np.concatenate(([0], np.cumsum(counts)))
    first = int(starts.min())
    octets = np.frombuffer(bytes(data[first : int((starts + sizes).max())]) + bytes(8), np.uint8)
    windows = np.ndarray((len(octets) - 7,), "<u8", buffer=octets.data, strides=(1,))
    places = np.arange(int(bounds[-1])) - np.repeat(bounds[:-1], counts)
    words = windows[np.repeat(starts - first, counts) + 8 * places].astype(np.uint64)
    remaining = np.repeat(sizes, counts) - 8 * places
    ends = np.flatnonzero(remaining < 8)
    words[ends] &= (np.uint64(1) << (8 * remaining[ends]).astype(np.uint64)) - np.uint64(1)
    words = mixed(mixed(words) + (places + 1).astype(np.uint64) * _GOLDEN)
    return mixed(_sums(words, bounds) + sizes.astype(np.uint64) * _LENGTH)


def _sums(words: Hashes, bounds: npt.NDArray[np.int64]) -> Hashes:
    """The sum, modulo 2^64, of the words between each two neighbours of `bounds`."""
    running = np.concatenate((np.zeros(1, np.uint64), np.cumsum(words, dtype=np.uint64)))
    return running[bounds[1:]] - running[bounds[:-1]]


def _uuid(values: pa.Array, form: Form) -> Hashes:
    """Text in any of the ways in which a UUID is written is its 16 bytes; other text is hashed unchanged."""
    if not is_text(values.type):
        return _bytes(values, form)

    def raw(text: str | None) -> bytes | None:
        try:
            return None if text is None else UUID(text).bytes
        except ValueError:
            return b"?" + str(text).encode()

    return _bytes(pa.array(map(raw, values.to_pylist()), pa.large_binary()), form)


def _json(values: pa.Array, form: Form) -> Hashes:
    """JSON text with sorted keys, without blanks, its numbers by value; other text is hashed unchanged."""

    def canonical(text: str | None) -> bytes | None:
        if text is None:
            return None
        try:
            document = json.loads(
                text, parse_float=_Number, parse_int=_Number, parse_constant=_refuse
            )
            return _json_text(document).encode(errors="surrogatepass")
        except (ValueError, ArithmeticError, RecursionError):
            return b"?" + text.encode()

    return _bytes(pa.array(map(canonical, values.to_pylist()), pa.large_binary()), form)


class _Number(str):
    """A number as a JSON text has it."""


def _refuse(constant: str) -> None:
    raise ValueError(constant)


def _json_text(value: object) -> str:
    if isinstance(value, _Number):
        negative, digits, exponent = Decimal(value).as_tuple()
        text = "".join(map(str, digits))
        significant = text.rstrip("0")
        return (
            f"{'-' * negative}{significant}e{int(exponent) + len(text) - len(significant)}"
            if significant
            else "0"
        )
    if isinstance(value, list):
        return f"[{','.join(map(_json_text, value))}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{json.dumps(key)}:{_json_text(value[key])}' for key in sorted(value))}}}"
    return json.dumps(value)


def _list(values: pa.Array, form: Form) -> Hashes:
    kind = values.type
    if pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind):
        values = values.cast(pa.large_list(kind.value_type))
        kind = values.type
    if pa.types.is_fixed_size_list(kind):
        ends = (values.offset + np.arange(len(values) + 1, dtype=np.int64)) * kind.list_size
    else:
        ends = _ends(values, values.buffers()[1], large=pa.types.is_large_list(kind))
    items = hash_values(_between(values.values, ends), form.parts[0])
    ends = ends - ends[0]
    places = np.arange(len(items)) - np.repeat(ends[:-1], np.diff(ends))
    items = mixed(items + (places + 1).astype(np.uint64) * _GOLDEN)
    return mixed(_sums(items, ends) + np.diff(ends).astype(np.uint64) * _LENGTH)


def _map(values: pa.Array, form: Form) -> Hashes:
    """In whatever order its entries are."""
    ends = _ends(values, values.buffers()[1], large=False)
    entries = hash_columns([_between(values.keys, ends), _between(values.items, ends)], form.parts)
    ends = ends - ends[0]
    return mixed(_sums(entries, ends) + np.diff(ends).astype(np.uint64) * _LENGTH)


def _between(values: pa.Array, ends: npt.NDArray[np.int64]) -> pa.Array:
    return values.slice(int(ends[0]), int(ends[-1] - ends[0]))


def _struct(values: pa.Array, form: Form) -> Hashes:
    if not form.fields:
        return np.full(len(values), _LENGTH)
    return hash_columns([values.field(name) for name in form.fields], form.parts)


_HASHED: Mapping[str, Callable[[pa.Array, Form], Hashes]] = {
    "boolean": _boolean,
    "integer": _integer,
    "unsigned integer": _integer,
    "decimal": _decimal,
    "wide decimal": _decimal,
    "double": _double,
    "timestamp": _moment,
    "date": _date,
    "time": _moment,
    "duration": _moment,
    "interval": _interval,
    "text": _text,
    "binary": _bytes,
    "uuid": _uuid,
    "json": _json,
    "array": _list,
    "map": _map,
    "struct": _struct,
}
