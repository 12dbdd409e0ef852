"""Makes splits of about equal bytes: large files are divided, small ones packed together."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from spark_channel.connectors.files.formats.base import Piece
from spark_channel.connectors.files.listing import SourceFile
from spark_channel.planning import Split

__all__ = ["FilePiece", "pack", "target_bytes"]

_SMALLEST = 32 << 10


@dataclass(frozen=True, slots=True)
class FilePiece:
    """A piece, and the file that it is of."""

    file: SourceFile
    piece: Piece

    def params(self) -> dict[str, Any]:
        file, written = self.file, self.file.written
        logged = (
            {}
            if written is None
            else {"written": {"names": written[0].names, "dialect": dict(written[1])}}
        )
        return {
            **logged,
            "root": file.root,
            "path": file.path,
            "size": file.size,
            "mtime_ns": file.mtime_ns,
            "tag": file.tag,
            "partition": list(file.partition),
            "piece": dict(self.piece.params),
        }


def target_bytes(files: Sequence[SourceFile], advice: int, chosen: int | None) -> int:
    """About how many bytes a split should have."""
    total = sum(file.size for file in files)
    return chosen or max(_SMALLEST, -(-total // max(1, advice)))


def pack(pieces: Iterable[FilePiece], target: int) -> list[Split]:
    """Splits of about `target` bytes, in the order of the pieces."""
    splits: list[Split] = []
    group: list[FilePiece] = []
    size = 0
    for piece in pieces:
        # Closing before or after this piece: whichever is nearer to the target.
        if group and size + piece.piece.nbytes / 2 >= target:
            splits.append(_split(group))
            group, size = [], 0
        group.append(piece)
        size += piece.piece.nbytes
    if group:
        splits.append(_split(group))
    return splits


def _split(pieces: Sequence[FilePiece]) -> Split:
    rows = [piece.piece.rows for piece in pieces]
    counts = [count for count in rows if count is not None]
    return Split(
        {"pieces": [piece.params() for piece in pieces]},
        rows=sum(counts) if len(counts) == len(rows) else None,
        nbytes=sum(piece.piece.nbytes for piece in pieces),
    )
