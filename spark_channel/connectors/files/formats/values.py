"""Arrow values as the text that CSV and JSON carry."""

import bz2
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from spark_channel.connectors.files.options import strptime_pattern

_MEMBER = 4 << 20

__all__ = ["compressed", "join_lines", "strftime_pattern", "value_text"]


def strftime_pattern(pattern: str | None) -> str | None:
    return None if pattern is None else strptime_pattern(pattern)


def _large(text: str) -> pa.Scalar:
    return pa.scalar(text, pa.large_string())


def value_text(values: pa.Array, pattern: str | None = None) -> pa.Array:
    """Numbers, booleans, dates and times as large strings; NULL stays NULL.

    Doubles have the fewest digits that give the same double back. Times are ISO 8601 with as many
    digits of a second as they need: none, or the unit's; with `Z` where they have a zone.
    """
    kind = values.type
    if pa.types.is_timestamp(kind):
        if kind.tz is not None:
            values = values.cast(pa.timestamp(kind.unit, "UTC"))
        if pattern is not None:
            return pc.strftime(
                values.cast(pa.timestamp("s", values.type.tz), safe=False), format=pattern
            ).cast(pa.large_string())
        plain = values.cast(pa.timestamp(kind.unit)).cast(pa.large_string())
        texts = pc.replace_substring(plain, " ", "T")
        if kind.tz is None:
            return texts
        return pc.binary_join_element_wise(
            texts, pa.scalar("Z", pa.large_string()), pa.scalar("", pa.large_string())
        )
    if pa.types.is_date(kind) and pattern is not None:
        return pc.strftime(values, format=pattern).cast(pa.large_string())
    texts = values.cast(pa.large_string())
    if pa.types.is_floating(kind):
        # 1 would be read as a whole number, and -0 lose its sign.
        whole = pc.match_substring_regex(texts, "^-?[0-9]+$")
        texts = pc.if_else(whole, pc.binary_join_element_wise(texts, _large(".0"), _large("")), texts)
        texts = _special_floats(values, texts)
    if pa.types.is_decimal(kind):
        # Arrow writes small decimals with an exponent, which not every reader takes.
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
    ends = pc.binary_join_element_wise(lines, pa.scalar("\n", lines.type), pa.scalar("", lines.type))
    # The values of a string array lie in one buffer, without gaps.
    ends = ends.cast(pa.large_binary())
    offsets, data = ends.buffers()[1], ends.buffers()[2]
    if data is None or len(ends) == 0:
        return b""
    bounds = memoryview(offsets).cast("q")
    return bytes(memoryview(data)[bounds[ends.offset] : bounds[ends.offset + len(ends)]])


class _Members:
    """Compresses runs of `_MEMBER` bytes, each a whole gzip, bz2, zstd or lz4 member; readers join them."""

    def __init__(self, sink: Any, compress: Callable[[bytes], bytes]) -> None:
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


def compressed(sink: Any, codec: str, level: int | None) -> tuple[Any, Callable[[], None]]:
    """A stream that compresses into `sink`, and what ends it without closing `sink`."""
    if codec == "none":
        return sink, lambda: None
    if codec == "bz2":
        members = _Members(sink, lambda data: bz2.compress(data, level or 9))
    else:
        found = pa.Codec(codec, compression_level=level)
        members = _Members(sink, lambda data: bytes(found.compress(data, asbytes=True)))
    return members, members.end
