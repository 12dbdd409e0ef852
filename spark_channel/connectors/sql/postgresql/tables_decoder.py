"""pgoutput's messages of several tables, decoded in one pass: each message goes to the decoder of its table. Pure."""

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from spark_channel.connectors.sql.postgresql.pgoutput import ChangeDecoder

__all__ = ["TableChanges", "TablesDecoder"]

_COMMIT = struct.Struct(">Q").unpack_from
_COUNT = struct.Struct(">i").unpack_from
_RELATION = struct.Struct(">I").unpack_from
_BEGIN, _COLUMNS, _TRUNCATE = b"BRT"
_CHANGES = frozenset(b"IUD")


@dataclass
class TableChanges:
    """One table's decoder. `first`: transactions whose commit is before it are not its own, whatever their columns."""

    name: str
    decoder: ChangeDecoder
    first: int
    messages: list[bytes] = field(default_factory=list)
    columns: bytes | None = None
    """What the log last said of its columns, where the decoder was not told yet."""


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
        tables, begun = self._tables, self._begun
        for message in messages:
            kind = message[0]
            if kind in _CHANGES:
                (oid,) = _RELATION(message, 1)
                if oid in begun:
                    tables[oid].messages.append(message)
                elif oid in tables:
                    self._open(oid, message)
            elif kind == _BEGIN:
                self._begin = message
                (self._commit,) = _COMMIT(message, 1)
                begun.clear()
            elif kind == _COLUMNS:
                (oid,) = _RELATION(message, 1)
                if oid in begun:
                    tables[oid].messages.append(message)
                elif oid in tables:
                    tables[oid].columns = message
            elif kind == _TRUNCATE:
                (count,) = _COUNT(message, 1)
                for number in range(count):
                    (oid,) = _RELATION(message, 6 + 4 * number)
                    if oid in tables:
                        self._open(oid, message)
        for each in tables.values():
            if each.messages:
                taken, each.messages = each.messages, []
                for batch in each.decoder.feed(taken):
                    yield each.name, batch

    def finish(self) -> Iterator[tuple[str, pa.RecordBatch]]:
        """The remaining rows."""
        for each in self._tables.values():
            for batch in each.decoder.finish():
                yield each.name, batch

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
