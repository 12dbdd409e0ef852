"""Finds the rows that a target refuses in a batch that it refused."""

from collections.abc import Callable

import pyarrow as pa

from spark_channel.errors import BatchRefusedError

__all__ = ["sift"]


def sift(
    batch: pa.RecordBatch,
    write: Callable[[pa.RecordBatch], None],
    refused: Callable[[pa.RecordBatch, str], None],
) -> None:
    """Write `batch`; when it is refused, its halves, down to the rows that are refused alone.

    `write` takes all of what it is given, or raises `BatchRefusedError` and has taken none of it. `refused`
    gets each row that cannot be written, as a batch of one row, with the reason. Rows are written and
    refused in their order: of two rows with one key the first one stays. One bad row among n costs about
    2 log2(n) calls, and writes no good row twice.

    Raises:
        BatchRefusedError: of a batch without rows, which has nothing to refuse. Whatever else `write`
            and `refused` raise.
    """
    pieces = [batch]
    while pieces:
        piece = pieces.pop()
        try:
            write(piece)
        except BatchRefusedError as error:
            if piece.num_rows == 0:
                raise
            if piece.num_rows == 1:
                refused(piece, str(error))
                continue
            middle = piece.num_rows // 2
            pieces += [piece.slice(middle), piece.slice(0, middle)]
