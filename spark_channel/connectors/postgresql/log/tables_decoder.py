"""pgoutput's messages of several tables, decoded in one pass: each message goes to the decoder of its table. Pure."""

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from spark_channel.connectors.postgresql.log.pgoutput import DAMAGE, RELATION, ChangeDecoder
from spark_channel.errors import ChannelError, SourceError
from spark_channel.final_errors import final

__all__ = ["TableChanges", "TablesDecoder"]


_COMMIT = struct.Struct(">Q").unpack_from
_COUNT = struct.Struct(">i").unpack_from
_BEGIN_TAG, _COLUMNS, _TRUNCATE_TAG = b"BRT"
_CHANGES = frozenset(b"IUD")


@dataclass
class TableChanges:
    """One table's decoder. `first`: transactions whose commit is before it are not its own, whatever their columns."""

    name: str
    decoder: ChangeDecoder
    first: int
    messages: list[bytes] = field(default_factory=list)
    columns: bytes | None = None
    """The log's last message about its columns, if the decoder has not read it yet."""


class TablesDecoder:
    """Messages in, batches with their table's name out. The changes of a table keep their order; of two tables, they
    are in order of a call of `feed` only.

    Args:
        tables: by their numbers in the log.
    """

    def __init__(self, tables: Mapping[int, TableChanges]) -> None:
        self._tables = tables
        self._begin = b""
        self._commit = 0
        self._begun: set[int] = set()

    def feed(self, messages: Sequence[bytes]) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Decode messages in the order in which the server gave them. It raises what `ChangeDecoder.feed` raises."""
        try:
            self._sort(messages)
        except DAMAGE as error:
            raise SourceError(
                f"the log has a message that is not as pgoutput writes it ({type(error).__name__}): what answers is "
                "not PostgreSQL, or it is damaged; see 'url' and the server's log"
            ) from error
        for table in self._tables.values():
            if table.messages:
                unread, table.messages = table.messages, []
                for batch in _decoded(table.name, table.decoder.feed(unread)):
                    yield table.name, batch

    def _sort(self, messages: Sequence[bytes]) -> None:
        """Give each table its messages."""
        tables, begun = self._tables, self._begun
        for message in messages:
            kind = message[0]
            if kind in _CHANGES:
                (oid,) = RELATION(message, 1)
                if oid in begun:
                    tables[oid].messages.append(message)
                elif oid in tables:
                    self._open(oid, message)
            elif kind == _BEGIN_TAG:
                self._begin = message
                (self._commit,) = _COMMIT(message, 1)
                begun.clear()
            elif kind == _COLUMNS:
                (oid,) = RELATION(message, 1)
                if oid in begun:
                    tables[oid].messages.append(message)
                elif oid in tables:
                    tables[oid].columns = message
            elif kind == _TRUNCATE_TAG:
                (count,) = _COUNT(message, 1)
                for number in range(count):
                    (oid,) = RELATION(message, 6 + 4 * number)
                    if oid in tables:
                        self._open(oid, message)

    def finish(self) -> Iterator[tuple[str, pa.RecordBatch]]:
        """The remaining rows."""
        for table in self._tables.values():
            for batch in _decoded(table.name, table.decoder.finish()):
                yield table.name, batch

    def _open(self, oid: int, message: bytes) -> None:
        """A change of a table: its decoder hears of the transaction first, and of its columns."""
        table = self._tables[oid]
        if self._commit < table.first:
            return
        if oid not in self._begun:
            self._begun.add(oid)
            table.messages.append(self._begin)
        if table.columns is not None:
            table.messages.append(table.columns)
            table.columns = None
        table.messages.append(message)


def _decoded(table: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches; an error names the table, and comes again: the log stays as it is."""
    try:
        yield from batches
    except ChannelError as error:
        error.tables = (table,)
        raise final(error) from None
