"""Arrow values as the text that CSV and JSON carry."""

import bz2
from collections.abc import Callable, Iterator

import pyarrow as pa

from spark_channel.connectors.files.formats.base import Sink
from spark_channel.lazy import compute as pc
from spark_channel.transform.time_patterns import TimePattern

__all__ = [
    "LONG_VALUE",
    "compressed",
    "has_bytes",
    "has_text_form",
    "is_long",
    "join_lines",
    "long_chunks",
    "row_pieces",
    "value_text",
]

_MEMBER = 4 << 20

LONG_VALUE = 1 << 20
"""Bytes of a value above which its row is encoded alone and in chunks: Arrow's kernels copy a value at each step."""
_ROWS = 16_384


def _large(text: str) -> pa.Scalar:
    return pa.scalar(text, pa.large_string())


def has_text_form(kind: pa.DataType) -> bool:
    """Whether CSV and JSON both write values of this type, by `value_text`."""
    types = pa.types
    return bool(
        types.is_boolean(kind)
        or types.is_integer(kind)
        or types.is_float32(kind)
        or types.is_float64(kind)
        or types.is_decimal(kind)
        or types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_date32(kind)
        or types.is_timestamp(kind)
    )


def value_text(values: pa.Array, pattern: str | None = None) -> pa.Array:
    """Numbers, booleans, dates and times as large strings; NULL stays NULL.

    Doubles have the fewest digits that give the same double back. Times are ISO 8601 with as many
    digits of a second as they need: none, or the unit's; with `Z` where they have a zone.
    """
    kind = values.type
    if pattern is not None:
        return TimePattern.from_text(pattern).format(values)
    if pa.types.is_timestamp(kind):
        if kind.tz is not None:
            values = values.cast(pa.timestamp(kind.unit, "UTC"))
        plain = values.cast(pa.timestamp(kind.unit)).cast(pa.large_string())
        texts = pc.replace_substring(plain, " ", "T")
        if kind.tz is None:
            return texts
        return pc.binary_join_element_wise(
            texts, pa.scalar("Z", pa.large_string()), pa.scalar("", pa.large_string())
        )
    texts = values.cast(pa.large_string())
    if pa.types.is_floating(kind):
        # 1 would be read as a whole number, and -0 lose its sign.
        whole = pc.match_substring_regex(texts, "^-?[0-9]+$")
        texts = pc.if_else(
            whole, pc.binary_join_element_wise(texts, _large(".0"), _large("")), texts
        )
        texts = _special_floats(values, texts)
    if pa.types.is_decimal(kind):
        # Arrow writes small decimals with an exponent, which not every reader takes: findings/arrow-decimal-as-text.sh
        with_exponent = pc.match_substring(texts, "E")
        if pc.any(with_exponent).as_py():
            plain = [None if value is None else format(value, "f") for value in values.to_pylist()]
            texts = pa.array(plain, pa.large_string())
    return texts


def _special_floats(values: pa.Array, texts: pa.Array) -> pa.Array:
    """As Spark spells them."""
    finite = pc.is_finite(values)
    if pc.all(finite).as_py() in (True, None):
        return texts
    names = pc.if_else(
        pc.is_nan(values),
        "NaN",
        pc.if_else(pc.greater(values, pa.scalar(0, values.type)), "Infinity", "-Infinity"),
    )
    return pc.if_else(finite, texts, names.cast(texts.type))


def join_lines(lines: pa.Array) -> bytes:
    """Each text with a line end after it, as one run of UTF-8 bytes."""
    ends = pc.binary_join_element_wise(
        lines, pa.scalar("\n", lines.type), pa.scalar("", lines.type)
    )
    # The values of a string array lie in one buffer, without gaps.
    ends = ends.cast(pa.large_binary())
    offsets, data = ends.buffers()[1], ends.buffers()[2]
    if data is None or len(ends) == 0:
        return b""
    bounds = memoryview(offsets).cast("q")
    return bytes(memoryview(data)[bounds[ends.offset] : bounds[ends.offset + len(ends)]])


def is_long(values: pa.Array) -> bool:
    """Whether `values`, of one row, are a text or binary value that is encoded in chunks."""
    return has_bytes(values.type) and values.nbytes > LONG_VALUE


def row_pieces(
    batch: pa.RecordBatch, most_rows: int = _ROWS
) -> Iterator[tuple[pa.RecordBatch, bool]]:
    """The rows in order, so many at once as are encoded together. True beside one row that has a long value."""
    for start in range(0, batch.num_rows, most_rows):
        part, begin = batch.slice(start, most_rows), 0
        for row in _long_rows(part):
            if row > begin:
                yield part.slice(begin, row - begin), False
            yield part.slice(row, 1), True
            begin = row + 1
        if begin < part.num_rows:
            yield part.slice(begin), False


def _long_rows(batch: pa.RecordBatch) -> list[int]:
    rows: set[int] = set()
    for values in batch.columns:
        if has_bytes(values.type) and values.nbytes > LONG_VALUE:
            lengths = pc.fill_null(pc.binary_length(values), 0)
            rows.update(pc.indices_nonzero(pc.greater(lengths, LONG_VALUE)).to_pylist())
    return sorted(rows)


def has_bytes(kind: pa.DataType) -> bool:
    """Whether a value of this type is a text or bytes as they are written to a file or a message."""
    types = pa.types
    return bool(
        types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_binary(kind)
        or types.is_large_binary(kind)
    )


def long_chunks(value: pa.Scalar, size: int = LONG_VALUE) -> Iterator[bytes]:
    """The bytes of a long value; those of a text are cut between characters."""
    data, start = memoryview(value.as_buffer()), 0
    is_text = pa.types.is_string(value.type) or pa.types.is_large_string(value.type)
    while start < len(data):
        end = min(start + size, len(data))
        while is_text and end < len(data) and data[end] & 0xC0 == 0x80 and end > start + 1:
            end -= 1
        yield bytes(data[start:end])
        start = end


class _Members:
    """Compresses runs of `_MEMBER` bytes, each a whole gzip, bz2, zstd or lz4 member; readers join them."""

    def __init__(self, sink: Sink, compress: Callable[[bytes], bytes]) -> None:
        self._sink = sink
        self._compress = compress
        self._held = bytearray()

    def write(self, data: bytes) -> None:
        self._held += data
        if len(self._held) >= _MEMBER:
            self.end()

    def end(self) -> None:
        if self._held:
            self._sink.write(self._compress(bytes(self._held)))
            self._held.clear()


def compressed(sink: Sink, codec: str, level: int | None) -> tuple[Sink, Callable[[], None]]:
    """A stream that compresses into `sink`, and what ends it without closing `sink`."""
    if codec == "none":
        return sink, lambda: None
    if codec == "bz2":
        members = _Members(sink, lambda data: bz2.compress(data, level or 9))
    else:
        compressor = pa.Codec(codec, compression_level=level)
        members = _Members(sink, lambda data: bytes(compressor.compress(data, asbytes=True)))
    return members, members.end
