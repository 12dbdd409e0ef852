"""ORC: split and read by stripe. Times have nanoseconds in ORC, and are read as microseconds."""

import io
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyarrow import orc

from spark_channel.connectors.files.formats.base import (
    Encoder,
    Format,
    Piece,
    ReadRequest,
    Sink,
    SplitRequest,
    WriterEncoder,
    even_pieces,
    inner_types,
    pick,
)
from spark_channel.connectors.files.formats.types import (
    UTC,
    Julian,
    Notes,
    as_spark,
    check_types,
    checked,
    first_julian,
    map_leaves,
    picked,
    plain_leaf,
    renamed,
    temporal_leaves,
    text_leaves,
)
from spark_channel.connectors.files.options import OrcWriteOptions
from spark_channel.errors import SourceError, TargetError
from spark_channel.lazy import compute as pc

__all__ = ["OrcFooter", "OrcFormat", "read_footer"]

_MOST_TEXT = 16 << 20
"""Bytes of the longest texts of the columns together: the library keeps the least and the greatest text of a column in
each index, stripe and footer, 17 times the size of a long one, and readers refuse such footers."""
_LIMIT_SECONDS = 2**63 // 10**9
_EPOCH = pa.scalar(0, pa.timestamp("s"))
_SPARK_TYPE = b"spark.sql.catalyst.type"
_JULIAN = Julian("UTC", lambda name: True)
"""Times before 1677 are refused by pyarrow."""
_JULIAN_CALENDAR, _JAVA_WRITER = 1, 0
_SNAPPY, _LZO, _LZ4, _ZSTD = 2, 3, 4, 5
_TAIL = 16 << 10
_MOST = 64 << 20
"""Bytes of a footer that is unpacked: a few thousand times what a writer makes."""


class OrcFormat(Format):
    name = "orc"
    refusal = "cannot be carried by ORC; cast it first"

    def schema(self, stream: pa.NativeFile, path: str, options: Any, multi_line: bool) -> pa.Schema:
        return _readable(check_types(orc.ORCFile(stream).schema, path))

    def pieces(self, stream: pa.NativeFile, path: str, cut: SplitRequest) -> list[Piece]:
        file = orc.ORCFile(stream)
        return even_pieces("stripes", file.nstripes, cut.size, cut.target, file.nrows)

    def batches(
        self, stream: pa.NativeFile, path: str, params: Mapping[str, Any], request: ReadRequest
    ) -> Iterator[pa.RecordBatch]:
        footer = read_footer(stream)
        file = orc.ORCFile(stream)
        schema = check_types(file.schema, path)
        readable = _readable(schema)
        names = pick(request, readable.names)
        columns = list(names)
        if footer is not None:
            _check_times(schema, columns, footer.times, request.shown)
        for number in range(*params.get("stripes", (0, file.nstripes))):
            # The library takes a name with a dot for a path, and finds another column or none.
            dotted = any("." in name for name in columns)
            batch = picked(
                file.read_stripe(number, None if dotted else columns), columns, request.shown
            )
            if footer is not None and batch.num_rows != footer.rows[number]:
                raise SourceError(
                    f"{request.shown}: stripe {number + 1} has {batch.num_rows} rows, and the footer says "
                    f"{footer.rows[number]}. The file is damaged; write it again"
                )
            if any(_has_instants(schema.field(n).type, readable.field(n).type) for n in columns):
                zone = "not known" if footer is None else footer.zone(stream, number)
                batch = _instants(batch, readable, zone, request.shown)
            batch = checked(batch, request, names, readable, decoded=True)
            if footer is None or footer.julian:
                batch = _JULIAN.rebased(batch, request.shown)
            yield renamed(batch, names)

    def carries(self, kind: pa.DataType) -> bool:
        types = pa.types
        if types.is_timestamp(kind):
            return bool(kind.tz in (None, "UTC"))
        if types.is_nested(kind):
            return bool(types.is_struct(kind) or types.is_map(kind) or types.is_list(kind))
        return bool(
            types.is_boolean(kind)
            or types.is_signed_integer(kind)
            or types.is_float32(kind)
            or types.is_float64(kind)
            or types.is_string(kind)
            or types.is_binary(kind)
            or types.is_date32(kind)
            or (types.is_decimal128(kind) and kind.scale >= 0)
        )

    def extension(self, options: OrcWriteOptions) -> str:
        codec = options.compression or "zstd"
        return "orc" if codec == "none" else f"{codec}.orc"

    def encoder(self, sink: Sink, schema: pa.Schema, options: OrcWriteOptions) -> Encoder:
        return _OrcEncoder(sink, schema, options)


class _NonRaisingSink(io.RawIOBase):
    """A sink that never raises: the ORC library is shown no error of its sink.

    The first error is kept for `check`, and later batches are dropped.
    """

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._error: Exception | None = None

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        if self._error is None:
            try:
                self._sink.write(data)
            except Exception as error:
                self._error = error
        return len(data)

    def check(self) -> None:
        if self._error is not None:
            raise self._error


class _OrcEncoder(WriterEncoder):
    def __init__(self, sink: Sink, schema: pa.Schema, options: OrcWriteOptions) -> None:
        self._schema = schema
        codec = options.compression or "zstd"
        self._sink = _NonRaisingSink(sink)
        self._writer = orc.ORCWriter(
            self._sink,
            compression="uncompressed" if codec == "none" else codec,
            stripe_size=options.stripe_bytes,
        )
        self._empty = True
        self._longest = [0] * len(schema)

    def write(self, batch: pa.RecordBatch) -> None:
        self._check_texts(batch)
        for field, values in zip(self._schema, batch.columns, strict=True):
            for leaf in temporal_leaves(values):
                _check_range(field.name, leaf)
        columns = [_with_inner_nulls(values) for values in batch.columns]
        self._writer.write(pa.table(columns, names=batch.schema.names))
        self._sink.check()
        self._empty = False

    def _check_texts(self, batch: pa.RecordBatch) -> None:
        for number, values in enumerate(batch.columns):
            if values.nbytes > self._longest[number]:
                longest = max((_longest(leaf) for leaf in text_leaves(values)), default=0)
                self._longest[number] = max(self._longest[number], longest)
        if sum(self._longest) > _MOST_TEXT:
            longest = max(self._longest)
            name = self._schema.names[self._longest.index(longest)]
            raise TargetError(
                f"column {name!r} holds a text of {longest} bytes, and the longest texts of all columns of an ORC file "
                f"may have {_MOST_TEXT} together: they are in its footer, too. Write Parquet, or cast the column to "
                "binary"
            )

    def finish(self) -> None:
        if self._empty:
            self._writer.write(self._schema.empty_table())
        super().finish()
        self._sink.check()


def _with_inner_nulls(values: pa.Array) -> pa.Array:
    """The same values, whose fields are NULL where their struct is, in arrays that are no slices.

    The library writes a field's values also where a struct in another struct is NULL, and looks for a slice's NULLs at
    the array's start: later rows would get the values of others (findings/arrow-orc-null-structs.sh).
    """
    kind = values.type
    if not any(pa.types.is_struct(inner) for _, inner in inner_types("", kind)):
        return values
    values = pa.concat_arrays([values])
    buffers = values.buffers()[:1] if pa.types.is_struct(kind) else values.buffers()[:2]
    if pa.types.is_struct(kind):
        inside = [_with_inner_nulls(field) for field in values.flatten()]
    elif pa.types.is_map(kind):
        pair = pa.struct([kind.key_field, kind.item_field])
        parts = [_with_inner_nulls(values.keys), _with_inner_nulls(values.items)]
        inside = [pa.Array.from_buffers(pair, len(values.keys), [None], children=parts)]
    else:
        inside = [_with_inner_nulls(values.values)]
    return pa.Array.from_buffers(kind, len(values), buffers, children=inside)


def _longest(texts: pa.Array) -> int:
    return int(pc.max(pc.binary_length(texts)).as_py() or 0)


def _check_range(name: str, values: pa.Array) -> None:
    """Arrow's ORC reader holds times in 64-bit nanoseconds: 1677 to 2262. Spark's takes old days for Julian ones, and
    fails at parts of a second before 1970 as Arrow writes them."""
    if not pa.types.is_timestamp(values.type):
        if (date := first_julian(values)) is not None:
            raise TargetError(
                f"column {name!r} holds the date {date}, which Spark reads from ORC files as another day: before "
                "1582-10-15 it counts by the Julian calendar. Write Parquet, or cast the column to text"
            )
        return
    if (
        values.type.unit == "ns"
        and pc.any(pc.not_equal(values, pc.floor_temporal(values, unit="microsecond"))).as_py()
    ):
        raise TargetError(
            f"column {name!r} holds a time with nanoseconds, and times of ORC files are read with microseconds; write "
            "Parquet, or cast the column to microseconds or text"
        )
    edges = pc.min_max(
        pc.cast(values, pa.timestamp("s", values.type.tz), safe=False).cast(pa.int64())
    )
    for edge in (edges["min"].as_py(), edges["max"].as_py()):
        if edge is not None and abs(edge) >= _LIMIT_SECONDS - 1:
            raise TargetError(
                f"column {name!r} holds a time outside of 1677-09-21 to 2262-04-11, which ORC files "
                "cannot give back; write Parquet, or cast the column to text"
            )
    if (pc.min(values.view(pa.int64())).as_py() or 0) < 0:
        seconds = pc.floor_temporal(values, unit="second")
        parted = pc.and_(pc.not_equal(values, seconds), pc.less(seconds, _EPOCH.cast(values.type)))
        if pc.any(parted).as_py():
            date = pc.min(values.filter(parted))
            raise TargetError(
                f"column {name!r} holds {date}, a part of a second before 1970: Spark cannot read ORC files with such "
                "times from Arrow's writer. Write Parquet, or cast the column to text"
            )


def _check_times(
    schema: pa.Schema, columns: list[str], times: Mapping[int, tuple[int, int]], label: str
) -> None:
    """Old versions of pyarrow let times overflow that are not within 64-bit nanoseconds."""
    number = 1
    for field in schema:
        end = number + _count(field.type)
        edges = [edge for column in range(number, end) for edge in times.get(column, ())]
        if field.name in columns and any(abs(edge) // 1000 >= _LIMIT_SECONDS for edge in edges):
            raise SourceError(
                f"{label}: column {field.name!r} holds a time outside of 1677-09-21 to 2262-04-11, which Arrow's "
                "reader of ORC cannot hold. Leave it out with option 'columns', or write the file again as Parquet"
            )
        number = end


def _count(kind: pa.DataType) -> int:
    """How many columns of ORC a column of Arrow is: itself and those inside it."""
    types = pa.types
    if types.is_map(kind):
        return 1 + _count(kind.key_type) + _count(kind.item_type)
    if types.is_struct(kind) or types.is_union(kind):
        return 1 + sum(_count(kind.field(number).type) for number in range(kind.num_fields))
    return 1 + _count(kind.value_type) if types.is_list(kind) else 1


def _readable(schema: pa.Schema) -> pa.Schema:
    """Times have nanoseconds in ORC, and microseconds in Spark, which notes its own types beside those of the file."""

    def as_read(kind: pa.DataType, notes: Notes) -> pa.DataType:
        spark = (notes or {}).get(_SPARK_TYPE, b"").decode(errors="replace")
        if pa.types.is_timestamp(kind):
            return pa.timestamp("us", "UTC" if kind.tz or spark == "timestamp" else None)
        if pa.types.is_int64(kind):
            if spark == "timestamp_ntz":
                return pa.timestamp("us")
            if spark.startswith("time("):
                return pa.time64("ns")
        return as_spark(kind, spark) or plain_leaf(kind, notes)

    return pa.schema([map_leaves(field, as_read) for field in schema])


def _instants(batch: pa.RecordBatch, readable: pa.Schema, zone: str, label: str) -> pa.RecordBatch:
    """The batch with Spark's instants in UTC: the file has them as local times of its writer's zone."""
    if zone in UTC:
        return batch
    columns = []
    for name, values in zip(batch.schema.names, batch.columns, strict=True):
        kind, column_type = values.type, readable.field(name).type
        if pa.types.is_timestamp(kind) and kind.tz is None and column_type.tz:
            try:
                values = pc.assume_timezone(values, zone).cast(pa.timestamp("ns", "UTC"))
            except (pa.ArrowException, ValueError, OSError) as error:
                raise SourceError(
                    f"{label}: column {name!r} holds a time that is not one certain instant in the zone {zone!r}, in "
                    f"which Spark wrote it: {error}. Write the file again as Parquet"
                ) from error
        elif pa.types.is_nested(kind) and _has_instants(kind, column_type):
            raise SourceError(
                f"{label}: column {name!r} ({kind}) holds times of the zone {zone!r}, which are read in columns, and "
                "not inside others. Write the file again as Parquet"
            )
        columns.append(values)
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _has_instants(kind: pa.DataType, readable: pa.DataType) -> bool:
    pairs = zip(inner_types("", kind), inner_types("", readable), strict=True)
    return any(
        pa.types.is_timestamp(inner) and not inner.tz and here.tz for (_, inner), (_, here) in pairs
    )


@dataclass(frozen=True, slots=True)
class OrcFooter:
    """`julian`: days before 1582-10-15 are of the Julian calendar. `rows`: of each stripe.

    `times`: the first and the last millisecond of columns of timestamps, by the columns' numbers in the file, which
    count the types inside others, too. A column without statistics is omitted.
    """

    julian: bool
    rows: tuple[int, ...]
    times: Mapping[int, tuple[int, int]]
    _footers: tuple[tuple[int, int], ...]
    _codec: int

    def zone(self, stream: pa.NativeFile, stripe: int) -> str:
        """Where the times of a stripe were local when they were written; "" = not said.

        Raises:
            ValueError: damaged.
        """
        with _damage():
            data = _at(stream, *self._footers[stripe])
            return str(_fields(_plain(data, self._codec)).get(3, [b""])[0], "utf-8")


@contextmanager
def _damage() -> Iterator[None]:
    try:
        yield
    except (IndexError, KeyError, OSError, zlib.error, UnicodeDecodeError) as error:
        raise ValueError(f"its footer cannot be read: {error}") from error


def read_footer(stream: pa.NativeFile) -> OrcFooter | None:
    """None = it is compressed by LZO, which Arrow and Python lack. Leaves `stream` at its start.

    Raises:
        ValueError: damaged.
    """
    with _damage():
        size = stream.size()
        tail = _at(stream, max(0, size - _TAIL), min(size, _TAIL))
        last = len(tail) - 1
        script = _fields(tail[last - tail[-1] : last])
        length, codec = _first(script, 1), _first(script, 2)
        if codec == _LZO:
            stream.seek(0)
            return None
        data = _at(stream, size - 1 - tail[-1] - length, length)
        footer = _fields(_plain(data, codec))
        rows, footers = [], []
        for raw in footer.get(3, []):
            stripe = _fields(raw)
            offset, index, data_length, foot, count = (_first(stripe, n) for n in range(1, 6))
            rows.append(count)
            footers.append((offset + index + data_length, foot))
        stream.seek(0)
    # Before files named their calendar, there was Java's writer alone, and Hive's old calendar.
    calendar, writer = _first(footer, 11), _first(footer, 9)
    julian = calendar == _JULIAN_CALENDAR or (not calendar and writer == _JAVA_WRITER)
    return OrcFooter(julian, tuple(rows), _times(footer.get(7, [])), tuple(footers), codec)


def _times(statistics: list[bytes]) -> dict[int, tuple[int, int]]:
    edges_by_column = {}
    for number, raw in enumerate(statistics):
        for message in _fields(raw).get(9, []):
            edges = _fields(message)
            low, high = (edges.get(utc) or edges.get(local) for utc, local in ((3, 1), (4, 2)))
            if low and high:
                # Signed numbers have their sign in the lowest bit.
                edges_by_column[number] = (
                    (low[0] >> 1) ^ -(low[0] & 1),
                    (high[0] >> 1) ^ -(high[0] & 1),
                )
    return edges_by_column


def _at(stream: pa.NativeFile, offset: int, length: int) -> bytes:
    stream.seek(offset)
    return bytes(stream.read(length))


def _first(fields: dict[int, list[Any]], number: int) -> int:
    return int(fields.get(number, [0])[0])


def _plain(data: bytes, codec: int) -> bytes:
    """The bytes of chunks, each of which has its length and whether it is compressed in front."""
    if codec == 0:
        return data
    parts = []
    at, remaining = 0, _MOST
    while at < len(data):
        head = int.from_bytes(data[at : at + 3], "little")
        chunk = data[at + 3 : at + 3 + (head >> 1)]
        at += 3 + (head >> 1)
        parts.append(chunk if head & 1 else _decompressed(chunk, codec, remaining))
        remaining -= len(parts[-1])
        if remaining < 0:
            raise OSError(f"it unpacks to more than {_MOST} bytes")
    return b"".join(parts)


def _decompressed(chunk: bytes, codec: int, most: int) -> bytes:
    """The bytes of a chunk; if they are more than `most`, `most + 1` or more of them."""
    if codec == 1:
        unpacking = zlib.decompressobj(-15)
        plain = unpacking.decompress(chunk, most + 1)
        if not unpacking.eof and len(plain) <= most:
            raise zlib.error("it is cut off")
        return plain
    if codec == _ZSTD:
        return bytes(pa.CompressedInputStream(pa.BufferReader(chunk), "zstd").read(most + 1))
    if codec == _SNAPPY:
        size, _ = _number(chunk, 0)
        if size > most:
            raise OSError(f"it unpacks to more than {_MOST} bytes")
        return bytes(pa.Codec("snappy").decompress(chunk, decompressed_size=size))
    if codec == _LZ4:
        return _unpacked(chunk, most)
    raise KeyError(f"codec {codec}")


def _unpacked(chunk: bytes, most: int) -> bytes:
    """A block of LZ4, which does not say its size, as Arrow's codec would have to know it."""
    plain = bytearray()
    at = 0
    while at < len(chunk) and len(plain) <= most:
        token = chunk[at]
        length, at = _length(chunk, at + 1, token >> 4)
        plain += chunk[at : at + length]
        at += length
        if at >= len(chunk):
            break
        distance = int.from_bytes(chunk[at : at + 2], "little")
        length, at = _length(chunk, at + 2, token & 15)
        for _ in range(min(length + 4, most + 1 - len(plain))):
            plain.append(plain[-distance])
    return bytes(plain)


def _length(chunk: bytes, at: int, length: int) -> tuple[int, int]:
    part = 255 if length == 15 else 0
    while part == 255:
        part = chunk[at]
        length += part
        at += 1
    return length, at


def _number(data: bytes, at: int) -> tuple[int, int]:
    """(a number in base 128 at `at`, where it ends)."""
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, at
        shift += 7


def _fields(data: bytes) -> dict[int, list[Any]]:
    """The fields of a message of protobuf, by their numbers."""
    fields: dict[int, list[Any]] = {}
    at = 0
    while at < len(data):
        tag, at = _number(data, at)
        number, kind = tag >> 3, tag & 7
        if number == 0:
            break
        value: Any
        if kind == 0:
            value, at = _number(data, at)
        else:
            if kind == 2:
                length, at = _number(data, at)
            else:
                length = {1: 8, 5: 4}[kind]
            value = data[at : at + length]
            at += length
        fields.setdefault(number, []).append(value)
    return fields
