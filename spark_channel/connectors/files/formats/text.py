"""Text formats: lines, compression, values as text.

Text files are read in blocks of whole records, from any byte range, with the place of each block. A record belongs to
the range that its first byte lies in; so ranges that cover a file cover each record once. Memory is one block, or one
record when that is larger.
"""

import codecs
import zipfile
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import IO, Any, ClassVar

import pyarrow as pa

from spark_channel.connectors.files.formats.base import Format, Piece, ReadRequest, SplitRequest
from spark_channel.connectors.files.manifest import Dialect
from spark_channel.connectors.files.options import TextReadOptions
from spark_channel.errors import SourceError
from spark_channel.plain_text import log_of

__all__ = [
    "BOM",
    "HEAD",
    "Block",
    "TextBlocks",
    "TextFile",
    "TextFormat",
    "codec_of",
    "is_splittable",
    "text_pieces",
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

_BLOCK = 1 << 20
_SUFFIX = {"none": "", "gzip": ".gz", "bz2": ".bz2", "zstd": ".zst", "lz4": ".lz4"}


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
