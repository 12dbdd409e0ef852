"""The changes of one delivery, until all of them are read: a few in memory, many in a file on disk.

A range never ends in the middle of a transaction, and one transaction may have any number of changes.
"""

import errno
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from types import TracebackType
from typing import IO, Self

import pyarrow as pa

from spark_channel.connectors.base.feed import OPERATION, TRUNCATES
from spark_channel.errors import ChannelError
from spark_channel.lazy import compute as pc
from spark_channel.replication.deletes import AT, schema_of

__all__ = ["ChangeRows", "GatheredRows"]

_IN_MEMORY = 32 << 20
"""Bytes of a delivery that stay in memory; each thread has one delivery."""
_PIECE_ROWS = 20_000


class GatheredRows:
    """Rows are added once, and read any number of times. Leaving the context removes them.

    Rows beyond `_IN_MEMORY` are in a file of mode 0600 that has no name, so it ends with its process, also by a kill.
    """

    def __init__(self) -> None:
        self.num_rows = 0
        self._shapes: dict[pa.Schema, None] = {}
        self._in_memory: list[pa.RecordBatch] = []
        self.nbytes = 0
        self._file: IO[bytes] | None = None
        self._writer: pa.RecordBatchStreamWriter | None = None
        self._written = pa.schema([])
        self._begins: list[int] = []
        """Where a stream of batches of one schema begins in the file."""
        self._truncated: tuple[int, datetime | None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._in_memory.clear()
        if self._file is not None:
            with suppress(
                OSError
            ):  # it writes what is left, which nobody reads: a full disk was named before
                self._file.close()

    def add(self, batch: pa.RecordBatch) -> None:
        """
        Raises:
            ChannelError: the disk of temporary files is full.
        """
        is_emptied = pc.is_in(pc.utf8_lower(batch.column(OPERATION)), pa.array(sorted(TRUNCATES)))
        if is_emptied.true_count:
            index = batch.num_rows - 1 - is_emptied.to_pylist()[::-1].index(True)
            self._truncated = self.num_rows + index, batch.column(AT)[index].as_py()
        self.num_rows += batch.num_rows
        self._shapes[batch.schema] = None
        self.nbytes += batch.nbytes
        if self._file is None and self.nbytes <= _IN_MEMORY:
            self._in_memory.append(batch)
            return
        in_memory, self._in_memory = self._in_memory, []
        with _told():
            for piece in (*in_memory, batch):
                self._spill(piece)

    def _spill(self, batch: pa.RecordBatch) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="spark-channel-")  # noqa: SIM115 - as long as the rows
        if self._writer is None or self._written != batch.schema:
            if self._writer is not None:
                self._writer.close()
            self._begins.append(self._file.tell())
            self._writer = pa.ipc.new_stream(self._file, batch.schema)
            self._written = batch.schema
        self._writer.write_batch(batch)

    def rows(self) -> "ChangeRows":
        """All of them, when the last one was added.

        Raises:
            SchemaError: a column has types that no type holds together.
            ChannelError: the disk of temporary files is full.
        """
        if self._writer is not None and self._file is not None:
            with _told():
                self._writer.close()
                self._file.flush()
            self._writer = None
        return ChangeRows(self, schema_of(list(self._shapes)))

    @property
    def truncated(self) -> tuple[int, datetime | None] | None:
        """The place of the last truncate, and when it was."""
        return self._truncated

    def batches(self) -> Iterator[pa.RecordBatch]:
        """As they were added."""
        if self._file is None:
            yield from self._in_memory
            return
        for begin in self._begins:
            self._file.seek(begin)
            yield from pa.ipc.open_stream(self._file)


class ChangeRows:
    """Rows of a `GatheredRows`, from place `begin` on and without the columns `dropped`; or those of a table."""

    def __init__(
        self,
        source: "GatheredRows | pa.Table",
        schema: pa.Schema,
        begin: int = 0,
        dropped: tuple[str, ...] = (),
    ) -> None:
        self._source, self._all, self._begin, self._dropped = source, schema, begin, dropped
        self.schema = pa.schema([column for column in schema if column.name not in dropped])
        self.num_rows = source.num_rows - begin

    @classmethod
    def from_table(cls, table: pa.Table) -> Self:
        return cls(table, table.schema)

    def after_truncate(self, now: datetime) -> tuple["ChangeRows", datetime | None]:
        """The changes behind the last truncate, and when that was; None = there is none."""
        assert isinstance(self._source, GatheredRows)
        if self._source.truncated is None:
            return self, None
        index, at = self._source.truncated
        return ChangeRows(self._source, self._all, index + 1, self._dropped), at or now

    def without(self, name: str) -> "ChangeRows":
        return ChangeRows(self._source, self._all, self._begin, (*self._dropped, name))

    def batches(self) -> Iterator[pa.RecordBatch]:
        """In the types of `schema`, a few large ones."""
        if isinstance(self._source, pa.Table):
            yield from self._source.combine_chunks().to_batches()
            return
        pieces: list[pa.RecordBatch] = []
        count, skipped = 0, self._begin
        for batch in self._source.batches():
            remainder = batch.slice(min(skipped, batch.num_rows))
            skipped -= batch.num_rows - remainder.num_rows
            if remainder.num_rows:
                pieces.append(remainder)
                count += remainder.num_rows
            if count >= _PIECE_ROWS:
                yield from self._fitted(pieces)
                pieces, count = [], 0
        yield from self._fitted(pieces)

    def _fitted(self, batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The batches as one, in the types of `schema`."""
        if batches:
            empty = pa.Table.from_batches([], self._all)
            tables = [empty, *(pa.Table.from_batches([batch]) for batch in batches)]
            whole = pa.concat_tables(tables, promote_options="permissive").select(self.schema.names)
            yield from whole.combine_chunks().to_batches()

    def table(self) -> pa.Table:
        """All of them in memory."""
        return pa.Table.from_batches(self.batches(), self.schema)


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        folder = tempfile.gettempdir()
        raise ChannelError(
            f"the disk of {folder} is full, where the changes of one large transaction wait until all of them are "
            "read: free space there, or set TMPDIR to a folder on another disk, and run again"
        ) from error
