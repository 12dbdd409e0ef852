"""Shared by the text formats: lines, their compression, and splits at line starts."""

from typing import Any, ClassVar

import pyarrow as pa

from spark_channel.connectors.files.formats.base import Cut, Format, Piece
from spark_channel.connectors.files.lines import HEAD, TextFile, is_splittable, text_pieces

__all__ = ["TextFormat"]

_SUFFIX = {"none": "", "gzip": ".gz", "bz2": ".bz2", "zstd": ".zst", "lz4": ".lz4"}


class TextFormat(Format):
    """Rows that begin at line starts; `ending` is that of a file's name when it is not compressed."""

    text = True
    ending: ClassVar[str]

    def pieces(self, opened: pa.NativeFile, path: str, cut: Cut) -> list[Piece]:
        file = TextFile(opened, path, path, cut.options.compression, cut.options.encoding)
        head = file.head()
        if not head or (len(head) < HEAD and self._has_no_rows(head, cut.options)):
            return []
        newline = file.newline.decode()
        if (
            newline == "\r"
            or self._spans_lines(cut.options)
            or not is_splittable(path, cut.options.compression, cut.options.encoding)
        ):
            return [Piece({"newline": newline}, None, cut.size)]
        return [
            Piece({"newline": newline, "range": [start, end]}, None, end - start)
            for start, end in text_pieces(cut.size, cut.target)
        ]

    def extension(self, options: Any) -> str:
        return self.ending + _SUFFIX[options.compression or "none"]

    def _has_no_rows(self, head: bytes, options: Any) -> bool:
        """Whether `head`, the whole of a file, is no more than a header."""
        return False

    def _spans_lines(self, options: Any) -> bool:
        """Whether a row may go on after a line end, so that the file cannot be cut."""
        return False
