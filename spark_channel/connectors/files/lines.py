"""Text files in blocks of whole records, from any byte range, with the place of each block.

A record belongs to the range that its first byte lies in; so ranges that cover a file cover each record
once. Memory is one block, or one record when that is larger.
"""

import codecs
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import pyarrow as pa

from spark_channel.errors import SourceError

__all__ = ["HEAD", "Block", "TextFile", "codec_of", "is_splittable", "text_pieces"]

_LARGEST_RECORD = 256 << 20
HEAD = 64 << 10
_BOM = b"\xef\xbb\xbf"

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
    return codec_of(path, compression) is None and (_is_utf8(encoding) or _is_ascii_superset(encoding))


class TextFile:
    """One open text file. `opened` is at its start, and closed by its owner."""

    def __init__(
        self, opened: pa.NativeFile, path: str, shown: str, compression: str | None, encoding: str
    ) -> None:
        self._opened = opened
        self._codec = codec_of(path, compression)
        self._encoding = encoding
        self._raw = _is_utf8(encoding) or _is_ascii_superset(encoding)
        self._shown = shown
        self._streams: list[pa.CompressedInputStream] = []
        self.newline = b"\n"

    def _stream(self) -> Callable[[int], bytes]:
        self._opened.seek(0)
        read: Callable[[int], bytes]
        if self._codec is None:
            read = self._opened.read
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
                    return text.removeprefix("\ufeff").encode("utf-8")

        return decoded

    def head(self) -> bytes:
        """The first 64 KiB, and sets `newline`: some files end their lines with a lone \\r."""
        data = bytes(self._stream()(HEAD))
        self.newline = b"\r" if b"\n" not in data and b"\r" in data[:-1] else b"\n"
        return data

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
            SourceError: a record of more than 256 MiB. UnicodeError: not in the encoding.
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
            wanted = max(1, size())
            cut = 0
            while not cut:
                if not at_end:
                    # More of a record that is larger than a block: twice as much each time.
                    missing = max(wanted, len(_BOM) if first else 0) - len(pending)
                    chunk = bytes(read(missing if missing > 0 else len(pending)))
                    at_end = not chunk
                    pending += chunk
                if first and self._raw and (len(pending) >= len(_BOM) or at_end):
                    skipped = len(_BOM) if pending.startswith(_BOM) and _is_utf8(self._encoding) else 0
                    pending, position, first = pending[skipped:], position + skipped, False
                cut = boundary(pending, at_end)
                if at_end and not pending:
                    return
                if not cut and len(pending) > _LARGEST_RECORD:
                    raise SourceError(
                        f"{self._shown} holds a line of more than {_LARGEST_RECORD >> 20} MiB after byte "
                        f"{position}; is it a text file, and are the quotes closed?"
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
            found = chunk.find(self.newline)
            if found >= 0:
                return position + found + 1, chunk[found + 1 :]
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
        left, lines = start - 1, 0
        while left > 0 and (chunk := bytes(self._opened.read(min(left, 1 << 20)))):
            lines += chunk.count(self.newline)
            left -= len(chunk)
        # The line that byte start - 1 lies in is the last one of the range before.
        return lines + 1


def text_pieces(size: int, target: int) -> list[tuple[int, int]]:
    """[start, end) ranges of about `target` bytes that cover `size` bytes."""
    count = max(1, -(-size // max(1, target)))
    edges = [size * number // count for number in range(count + 1)]
    return [(a, b) for a, b in pairwise(edges) if a < b]
