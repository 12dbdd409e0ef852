"""Tokens of a replication feed: a position in the log, how much of the base was read there, and by which entries of its
publication the table is in the log. Pure.
"""

from dataclasses import dataclass, replace
from typing import Any

from spark_channel.connectors.base.feed import Token
from spark_channel.connectors.postgresql.log.columns import TableColumns
from spark_channel.connectors.postgresql.log.entries import Entries, read_entries
from spark_channel.connectors.postgresql.log.position import lsn_text, position_of
from spark_channel.connectors.postgresql.log.tables_token import TablePlace, TablesToken
from spark_channel.connectors.sql.feed.incremental_snapshot import BaseProgress
from spark_channel.errors import SourceError

__all__ = ["LogToken", "token_of"]


_ENTRIES = "entries"
_OPERATIONS = "operations"
"""In tokens of older versions."""
_TABLE = "table"
_BASE = {"after", "until", "safe", "doubt_at", "doubt", "read", "rows", "waited", "chunks"}


@dataclass(frozen=True, slots=True)
class LogToken:
    """`base` is None where all of it was read, or none belongs to the feed.

    `table`: its number and columns. It and `entries` are not known (None, empty) of a position that `startingOffsets`
    gives.
    """

    lsn: int
    base: BaseProgress | None = None
    entries: Entries = ()
    table: tuple[int, TableColumns] | None = None

    @classmethod
    def read(cls, token: Token) -> "LogToken":
        """
        Raises:
            SourceError: no token of such a feed.
        """
        try:
            base = token.get("base")
            if set(token) - {"lsn", "base", _ENTRIES, _OPERATIONS, _TABLE} or (
                base is not None and set(base) - {"order"} != _BASE
            ):
                raise ValueError
            entries = read_entries(token.get(_ENTRIES, ()))
            table = token.get(_TABLE)
            return cls(
                position_of(token["lsn"]),
                None if base is None else _base(base),
                entries,
                None
                if table is None
                else (int(table["oid"]), TableColumns.from_noted(table["shape"])),
            )
        except (KeyError, TypeError, ValueError):
            raise SourceError(
                f"the checkpoint {dict(token)!r} is not a position in a PostgreSQL log: it is damaged, or of another "
                "source. Reset the tunnel, or begin with a new checkpoint directory"
            ) from None

    def several(self, oid: int, columns: TableColumns) -> "TablesToken":
        """As a list of one table, which has no name in it."""
        base = self.base
        if base is None:
            return TablesToken(self.lsn, {"": TablePlace(oid, "", columns, entries=self.entries)})
        # The log reports to a window all transactions that a chunk's statement may not see: since 0.
        progress = TablePlace(oid, "", columns, 0, replace(base, waited=0), self.entries)
        return TablesToken(
            self.lsn, {"": progress}, base.safe, base.doubt_at, base.doubt, base.waited
        )

    @classmethod
    def single(cls, token: "TablesToken") -> "LogToken":
        """What `several` gave."""
        (progress,) = token.tables.values()
        base = progress.base and replace(
            progress.base,
            safe=token.safe,
            doubt_at=token.doubt_at,
            doubt=token.doubt,
            waited=token.waited,
        )
        return cls(token.lsn, base, progress.entries, (progress.oid, progress.shape))

    def token(self) -> Token:
        base = self.base
        noted = dict(token_of(self.lsn))
        if self.entries:
            noted[_ENTRIES] = list(self.entries)
        if self.table is not None:
            oid, shape = self.table
            noted[_TABLE] = {"oid": oid, "shape": shape.noted()}
        if base is None:
            return noted
        return {
            **noted,
            "base": {
                **base.noted(),
                "safe": lsn_text(base.safe),
                "doubt_at": lsn_text(base.doubt_at),
                "doubt": list(base.doubt),
            },
        }


def token_of(lsn: int) -> Token:
    return {"lsn": lsn_text(lsn)}


def _base(noted: Any) -> BaseProgress:
    if not all(isinstance(number, int) for number in noted["doubt"]):
        raise ValueError
    return replace(
        BaseProgress.from_noted(noted),
        safe=position_of(noted["safe"]),
        doubt_at=position_of(noted["doubt_at"]),
        doubt=tuple(noted["doubt"]),
    )
