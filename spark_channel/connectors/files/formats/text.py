"""Text formats: lines, compression, values as text.

Text files are read in blocks of whole records, from any byte range, with the place of each block. A record belongs to
the range that its first byte lies in; so ranges that cover a file cover each record once. Memory is one block, or one
record when that is larger.
"""

import bz2
import codecs
import zipfile
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import IO, Any, ClassVar

import pyarrow as pa

from spark_channel.connectors.base.types import SMALL_INT, merge_numbers
from spark_channel.connectors.files.formats.base import (
    Format,
    Piece,
    ReadRequest,
    Sink,
    SplitRequest,
)
from spark_channel.connectors.files.formats.types import Notes, map_type
from spark_channel.connectors.files.log import Dialect
from spark_channel.connectors.files.options import TextReadOptions
from spark_channel.errors import SourceError
from spark_channel.lazy import compute as pc
from spark_channel.plain_text import log_of
from spark_channel.transform.time_patterns import TimePattern

__all__ = [
    "BOM",
    "HEAD",
    "LONG_VALUE",
    "Block",
    "TextBlocks",
    "TextFile",
    "TextFormat",
    "codec_of",
    "compressed",
    "from_text",
    "has_text_form",
    "is_long",
    "is_splittable",
    "join_lines",
    "long_chunks",
    "merge_inferred",
    "needs_text",
    "plain_inferred",
    "row_pieces",
    "text_pieces",
    "value_text",
]


_log = log_of(__name__)

HEAD = 64 << 10
BOM = b"\xef\xbb\xbf"

_COMPRESSED = {
    b"\x1f\x8b": "gzip",
    b"BZh91AY&SY": "bz2",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\x04\x22\x4d\x18": "lz4",
}
_ZIP = "a ZIP archive"
_OTHER_FORMATS = {
    b"PK\x03\x04": (_ZIP, "Set option compression=zip, or unpack it"),
    b"PAR1\x15": ("a Parquet file", "Set option reader=parquet"),
    b"ARROW1\0\0": ("an Arrow file", "Set option reader=arrow"),
}
_LONGEST_MAGIC = 10

Boundary = Callable[[bytes, bool], int]
"""(data from a record's start, whether it is the end of the file) -> bytes of whole records in it."""


@dataclass(frozen=True, slots=True)
class Block:
    """Whole records, in UTF-8. `line`: how many lines of the range came before."""

    data: bytes
    line: int


def codec_of(path: str, chosen: str | None) -> str | None:
    """The compression of a text file: as chosen, else by its suffix; None = plain."""
    if chosen is not None:
        return None if chosen == "none" else chosen
    suffix = path.rsplit("/", 1)[-1].rsplit(".", 1)[-1].lower()
    return {"gz": "gzip", "bz2": "bz2", "zst": "zstd", "lz4": "lz4", "br": "brotli"}.get(suffix)


def _is_utf8(encoding: str) -> bool:
    return encoding in ("utf-8", "utf-8-sig", "ascii")


def _is_ascii_superset(encoding: str) -> bool:
    """One byte is one character, and line ends are ASCII's: a line can be cut before it is decoded."""
    try:
        return bytes(range(128)).decode(encoding) == bytes(range(128)).decode("ascii") and all(
            len(bytes((byte,)).decode(encoding, "replace")) == 1
            and bytes((byte, 65)).decode(encoding, "replace")[-1] == "A"
            for byte in range(128, 256)
        )
    except UnicodeError:
        return False


def is_splittable(path: str, compression: str | None, encoding: str) -> bool:
    return codec_of(path, compression) is None and (
        _is_utf8(encoding) or _is_ascii_superset(encoding)
    )


def _of_archive(stream: pa.NativeFile, label: str) -> Callable[[int], bytes]:
    """Reads the files of a ZIP archive, one after the other.

    Raises:
        SourceError: it is none, or is encrypted or damaged; when it is read, too.
    """

    def parts() -> Iterator[IO[bytes]]:
        with zipfile.ZipFile(stream) as archive:
            for entry in archive.infolist():
                with archive.open(entry) as part:
                    yield part

    parts_left = parts()
    part: IO[bytes] | None = None

    def read(size: int) -> bytes:
        nonlocal part
        try:
            while True:
                data = b"" if part is None else part.read(size)
                if data or (part := next(parts_left, None)) is None:
                    return data
        except (zipfile.BadZipFile, RuntimeError, NotImplementedError, EOFError) as error:
            raise SourceError(
                f"{label} cannot be read as a ZIP archive: {error}. Unpack it, or pack it anew without a password"
            ) from None

    return read


class TextFile:
    """One open text file. `stream` is at its start, and closed by its owner."""

    def __init__(
        self, stream: pa.NativeFile, path: str, label: str, options: TextReadOptions
    ) -> None:
        self._opened = stream
        self._codec = codec_of(path, options.compression)
        self._encoding = options.encoding
        self._raw = _is_utf8(options.encoding) or _is_ascii_superset(options.encoding)
        self._most = options.max_line_bytes
        self._shown = label
        self._streams: list[pa.CompressedInputStream] = []
        self.newline = b"\n"

    def _stream(self) -> Callable[[int], bytes]:
        self._opened.seek(0)
        read: Callable[[int], bytes]
        if self._codec is None:
            read = self._opened.read
        elif self._codec == "zip":
            read = _of_archive(self._opened, self._shown)
        else:
            stream = pa.CompressedInputStream(self._opened, self._codec)
            # Kept, since a stream that is collected closes `opened`, which is its owner's.
            self._streams.append(stream)
            read = stream.read
        if self._raw:
            return read
        decoder = codecs.getincrementaldecoder(self._encoding)()

        def decoded(size: int) -> bytes:
            while True:
                chunk = bytes(read(size))
                text = decoder.decode(chunk, final=not chunk)
                if text or not chunk:
                    return text.encode("utf-8")

        return decoded

    def head(self) -> bytes:
        """The first 64 KiB, or all there is, and sets `newline`: some files end their lines with a lone \\r.

        Raises:
            SourceError: the file is not text, by its first bytes.
        """
        self._check_text()
        read, data = self._stream(), b""
        while len(data) < HEAD and (chunk := bytes(read(HEAD - len(data)))):
            data += chunk
        self.newline = b"\r" if b"\n" not in data and b"\r" in data[:-1] else b"\n"
        return data

    def _check_text(self) -> None:
        self._opened.seek(0)
        start = bytes(self._opened.read(_LONGEST_MAGIC))
        codec = next((name for magic, name in _COMPRESSED.items() if start.startswith(magic)), None)
        if codec is not None and self._codec is None:
            raise SourceError(
                f"{self._shown} is compressed with {codec}, unlike its name says. Set option compression={codec}"
            )
        for magic, (kind, advice) in _OTHER_FORMATS.items():
            if start.startswith(magic) and not (kind == _ZIP and self._codec == "zip"):
                raise SourceError(f"{self._shown} is {kind}, not text. {advice}")

    def last_newline(self, data: bytes, at_end: bool) -> int:
        """The boundary of files in which every line is a record."""
        return len(data) if at_end else data.rfind(self.newline) + 1

    def blocks(
        self,
        start: int,
        end: int | None,
        size: Callable[[], int],
        boundary: Boundary | None = None,
    ) -> Iterator[Block]:
        """Blocks of about `size()` bytes with the records that begin in [start, end).

        `start` > 0 needs a plain file whose every line is a record.

        Raises:
            SourceError: a record of more than `maxLineBytes`. UnicodeError: not in the encoding.
        """
        boundary = boundary or self.last_newline
        read = self._stream()
        position, pending, line = start, b"", 0
        if start > 0:
            self._opened.seek(start - 1)
            position, pending = self._next_line(read, start - 1)
        first = start == 0
        at_end = False
        while end is None or position < end:
            block_bytes = max(1, size())
            cut = 0
            while not cut:
                if not at_end:
                    # More of a record that is larger than a block: twice as much each time.
                    missing = max(block_bytes, len(BOM) if first else 0) - len(pending)
                    further = min(len(pending), self._most + 1 - len(pending))
                    chunk = bytes(read(missing if missing > 0 else further))
                    at_end = not chunk
                    pending += chunk
                if first and len(pending) < len(BOM) and not at_end:
                    continue
                if first:
                    # Other encodings of single bytes have no mark.
                    is_unicode = not self._raw or _is_utf8(self._encoding)
                    skipped = len(BOM) if is_unicode and pending.startswith(BOM) else 0
                    pending, position, first = pending[skipped:], position + skipped, False
                cut = boundary(pending, at_end)
                if at_end and not pending:
                    return
                if not cut and len(pending) > self._most:
                    raise SourceError(
                        f"{self._shown} holds a line of more than {self._most} bytes after byte {position}, which is "
                        "held in memory several times: it is not a text file, or a quote is not closed. Correct it, "
                        "or raise 'maxLineBytes'"
                    )
            if end is not None and position + cut > end:
                # A record behind a byte order mark belongs to the range of byte 0, which may end inside the mark.
                edge = pending.find(self.newline, max(0, end - position - 1)) + 1
                cut = min(cut, edge) if edge else cut
            data, pending = pending[:cut], pending[cut:]
            lines = data.count(self.newline)
            yield Block(self._as_utf8(data), line)
            line += lines
            position += cut

    def _next_line(self, read: Callable[[int], bytes], position: int) -> tuple[int, bytes]:
        while chunk := bytes(read(HEAD)):
            index = chunk.find(self.newline)
            if index >= 0:
                return position + index + 1, chunk[index + 1 :]
            position += len(chunk)
        return position, b""

    def _as_utf8(self, data: bytes) -> bytes:
        if not self._raw or _is_utf8(self._encoding):
            return data
        return data.decode(self._encoding).encode("utf-8")

    def lines_before(self, start: int) -> int:
        """The number of lines before byte `start` of a range: read again, for the message of an error."""
        if start == 0:
            return 0
        self._opened.seek(0)
        remaining, lines = start - 1, 0
        while remaining > 0 and (chunk := bytes(self._opened.read(min(remaining, 1 << 20)))):
            lines += chunk.count(self.newline)
            remaining -= len(chunk)
        # The line that byte start - 1 lies in is the last one of the range before.
        return lines + 1


_BLOCK = 1 << 20


class TextBlocks:
    """Reads one piece of one text file block by block, without read-ahead and threads."""

    first_row_bytes: ClassVar[float]
    """The assumed bytes of a row, before the first block is read."""

    def __init__(
        self, stream: pa.NativeFile, path: str, params: Mapping[str, Any], request: ReadRequest
    ) -> None:
        self._options: TextReadOptions = request.options
        self._wanted = request
        self._file = TextFile(stream, path, request.shown, self._options)
        if "newline" in params:
            self._file.newline = params["newline"].encode()
        else:
            self._file.head()
        self._start, self._end = params.get("range", (0, None))
        self._row_bytes = self.first_row_bytes
        self._dropped = 0

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows of the piece, in their order."""
        yield from self._batches()
        if self._dropped:
            _log.warning(
                "%s: %d rows did not fit and were dropped", self._wanted.shown, self._dropped
            )

    @abstractmethod
    def _batches(self) -> Iterator[pa.RecordBatch]:
        """The rows; counts in `_dropped` those that did not fit."""

    def _size(self) -> int:
        """Bytes of the next block."""
        fetch = self._wanted.fetch
        size = min(fetch.nbytes or _BLOCK, _BLOCK)
        return max(1, min(size, int(fetch.rows * self._row_bytes))) if fetch.rows else size


def text_pieces(size: int, target: int, before: int = 0) -> list[tuple[int, int]]:
    """[start, end) ranges of about `target` bytes that cover `size` bytes; the first has `before` bytes and more."""
    count = max(1, -(-size // max(1, target)))
    edges = [size * number // count for number in range(1, count)]
    return [(a, b) for a, b in pairwise([0, *(e for e in edges if e > before), size]) if a < b]


_SUFFIX = {"none": "", "gzip": ".gz", "bz2": ".bz2", "zstd": ".zst", "lz4": ".lz4"}


class TextFormat(Format):
    """Rows that begin at line starts; `ending` is that of a file's name when it is not compressed."""

    text = True
    ending: ClassVar[str]

    @abstractmethod
    def sample(self, stream: pa.NativeFile, path: str, options: Any) -> tuple[pa.Schema, Dialect]:
        """The columns of one file (see `schema`), and what its first bytes show that the options do not say."""

    def schema(self, stream: pa.NativeFile, path: str, options: Any, multi_line: bool) -> pa.Schema:
        return self.sample(stream, path, options)[0]

    def pieces(self, stream: pa.NativeFile, path: str, cut: SplitRequest) -> list[Piece]:
        file = TextFile(stream, path, path, cut.options)
        head = file.head()
        body = head.removeprefix(BOM)
        first = self._first_row(body, cut.options)
        rows = b"" if first is None else body[first:].strip(b"\r\n")
        if not rows and len(head) < HEAD:
            return []
        newline = file.newline.decode()
        if (
            newline == "\r"
            or first is None
            or not rows
            or self._spans_lines(cut.options)
            or not is_splittable(path, cut.options.compression, cut.options.encoding)
        ):
            return [Piece({"newline": newline}, None, cut.size)]
        # The range of the file's start also has the bytes before the first row, however many.
        before = first + len(head) - len(body)
        return [
            Piece({"newline": newline, "range": [start, end]}, None, end - start)
            for start, end in text_pieces(cut.size, cut.target, before)
        ]

    def extension(self, options: Any) -> str:
        return self.ending + _SUFFIX[options.compression or "none"]

    def _first_row(self, head: bytes, options: Any) -> int | None:
        """The byte of `head`, a file's first ones, where the first row begins; None = behind them."""
        return 0

    def _spans_lines(self, options: Any) -> bool:
        """Whether a row may go on after a line end, so that the file cannot be cut."""
        return False


# Arrow values as the text that CSV and JSON carry.


_MEMBER = 4 << 20


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


LONG_VALUE = 1 << 20
"""Bytes of a value above which its row is encoded alone and in chunks: Arrow's kernels copy a value at each step."""
_ROWS = 16_384


def is_long(values: pa.Array) -> bool:
    """Whether `values`, of one row, are a text or binary value that is encoded in chunks."""
    return _has_bytes(values.type) and values.nbytes > LONG_VALUE


def row_pieces(batch: pa.RecordBatch) -> Iterator[tuple[pa.RecordBatch, bool]]:
    """The rows in order, so many at once as are encoded together. True beside one row that has a long value."""
    for start in range(0, batch.num_rows, _ROWS):
        part, begin = batch.slice(start, _ROWS), 0
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
        if _has_bytes(values.type) and values.nbytes > LONG_VALUE:
            lengths = pc.fill_null(pc.binary_length(values), 0)
            rows.update(pc.indices_nonzero(pc.greater(lengths, LONG_VALUE)).to_pylist())
    return sorted(rows)


def _has_bytes(kind: pa.DataType) -> bool:
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


# Values of text files: from text to Arrow's types, exactly.


_ZONED = r"\d[T ]\d.*(Z|[+-]\d\d(:?\d\d)?)$"


def needs_text(kind: pa.DataType, options: TextReadOptions) -> bool:
    """Whether a column of this type is read as text and made by `from_text`."""
    if pa.types.is_date(kind):
        return options.date_format is not None or not pa.types.is_date32(kind)
    if pa.types.is_timestamp(kind):
        return options.timestamp_format is not None or kind.tz is not None
    return False


def from_text(texts: pa.Array, kind: pa.DataType, options: TextReadOptions) -> pa.Array:
    """Dates and times of `kind` from their text.

    Raises:
        pa.ArrowInvalid: a text that is none.
    """
    if pa.types.is_date(kind):
        if options.date_format is None:
            return texts.cast(pa.date32()).cast(kind)
        times = TimePattern.from_text(options.date_format).parse(texts)
        days = times.cast(pa.date32(), safe=False)
        if not pc.all(pc.equal(days.cast(times.type), times), min_count=0).as_py():
            raise pa.ArrowInvalid("a date with a time of day")
        return days.cast(kind)
    if options.timestamp_format is not None:
        times = TimePattern.from_text(options.timestamp_format).parse(texts)
        if times.type.tz is None:
            return _in_zone(times, kind, options)
        if kind.tz is None:
            raise pa.ArrowInvalid("a time with a zone, for a column without one")
        return times.cast(kind)
    if kind.tz is None:
        return texts.cast(kind)
    zoned = pc.match_substring_regex(texts, _ZONED)
    nothing = pa.scalar(None, texts.type)
    with_zone = pc.if_else(zoned, texts, nothing).cast(pa.timestamp(kind.unit, kind.tz))
    if with_zone.null_count == texts.null_count:
        return with_zone
    without = pc.if_else(zoned, nothing, texts).cast(pa.timestamp(kind.unit))
    return pc.coalesce(with_zone, _in_zone(without, kind, options))


def _in_zone(times: pa.Array, kind: pa.DataType, options: TextReadOptions) -> pa.Array:
    if kind.tz is None:
        return times.cast(kind)
    if options.time_zone != "UTC":
        # The hour that a clock shows twice, or never, as Java reads it: the earlier offset.
        times = pc.assume_timezone(
            times, options.time_zone, ambiguous="earliest", nonexistent="latest"
        )
    else:
        times = times.cast(pa.timestamp(times.type.unit, "UTC"))
    return times.cast(kind)


def plain_inferred(kind: pa.DataType) -> pa.DataType:
    """An inferred type as a reader gives it: times in microseconds, what is only null as text."""
    return map_type(kind, _plain_inferred)


def _plain_inferred(kind: pa.DataType, _notes: Notes) -> pa.DataType:
    types = pa.types
    if kind == SMALL_INT:
        return pa.int64()
    if types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    others = (types.is_null, types.is_time, types.is_duration, types.is_binary)
    return pa.string() if any(is_other(kind) for is_other in others) else kind


def merge_inferred(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """The type that holds what two samples found."""
    types = pa.types
    if one == other or types.is_null(other):
        return one
    if types.is_null(one):
        return other
    if (number := merge_numbers(one, other)) is not None:
        return number
    if types.is_struct(one) and types.is_struct(other):
        names = {one.field(i).name: one.field(i).type for i in range(one.num_fields)}
        for number in range(other.num_fields):
            field = other.field(number)
            names[field.name] = merge_inferred(names.get(field.name, pa.null()), field.type)
        return pa.struct(list(names.items()))
    if types.is_list(one) and types.is_list(other):
        return pa.list_(merge_inferred(one.value_type, other.value_type))
    times = [kind for kind in (one, other) if types.is_timestamp(kind)]
    if times and all(types.is_timestamp(kind) or types.is_date(kind) for kind in (one, other)):
        zones = {kind.tz for kind in times}
        return pa.timestamp("us", times[0].tz) if len(zones) == 1 else pa.string()
    return pa.string()
