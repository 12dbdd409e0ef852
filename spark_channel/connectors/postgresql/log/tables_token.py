"""Tokens of a feed of several tables: one position in the log, and what was read of each table there. Pure.

A table that joins at position `since` is followed from there on: each of its later changes is delivered. Its existing
rows are read only when all that was committed before `since` was seen to be visible (`safe` is beyond it), as a new
slot waits for it: so no change is too early for the log and too late for a chunk.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from spark_channel.connectors.base.feed import Token
from spark_channel.connectors.postgresql.log.columns import TableColumns
from spark_channel.connectors.postgresql.log.entries import Entries, differ, read_entries
from spark_channel.connectors.postgresql.log.position import lsn_text, position_of
from spark_channel.connectors.sql.feed.incremental_snapshot import (
    BaseProgress,
    SeveralTables,
    safe_after,
)
from spark_channel.errors import SourceError

__all__ = ["TablePlace", "TablesToken"]


@dataclass(frozen=True, slots=True)
class TablePlace:
    """One table. `since` is None when its existing rows are read, `base` until their reading begins.

    `oid` is its number in the log. `columns` is a digest of the columns that the catalog had when `shape` was taken
    from there. `entries`: see `Entries`.
    """

    oid: int
    columns: str
    shape: TableColumns
    since: int | None = None
    base: BaseProgress | None = None
    entries: Entries = ()


@dataclass(frozen=True, slots=True)
class TablesToken(SeveralTables):
    """See `SeveralTables`. For `safe`, `doubt_at` and `doubt` see `BaseProgress`: they are of the log, and so of all
    tables.
    """

    lsn: int
    tables: Mapping[str, TablePlace]
    safe: int = 0
    doubt_at: int = 0
    doubt: tuple[int, ...] = ()
    waited: int = 0
    removed: tuple[str, ...] = ()

    @property
    def confirmable(self) -> int:
        """The position up to which the log is no longer needed, once this token is done with."""
        return self.lsn if self.is_read else self.safe

    def seen(self, end: int, running: Collection[int]) -> "TablesToken":
        """At `end`. `running`: the transactions that ran after a mark behind `end`; not asked when all is read."""
        if self.is_read:
            return replace(self, lsn=end, safe=0, doubt_at=0, doubt=(), waited=0)
        safe, doubt_at, doubt = safe_after((self.safe, self.doubt_at, self.doubt), end, running)
        return replace(self, lsn=end, safe=safe, doubt_at=doubt_at, doubt=doubt)

    def due(self) -> list[str]:
        """The tables whose existing rows may be read next."""
        return [
            name
            for name, progress in self.tables.items()
            if progress.base is not None
            or (progress.since is not None and self.safe > progress.since)
        ]

    def awaited(self) -> list[str]:
        """The tables whose existing rows wait for transactions of `doubt`."""
        if not self.doubt or self.due():
            return []
        return [name for name, progress in self.tables.items() if progress.since is not None]

    def held_by(self, entries: Mapping[int, Entries]) -> "TablesToken":
        """With the entries by which the publication has its tables now."""
        tables = {
            name: replace(progress, entries=entries.get(progress.oid, progress.entries))
            for name, progress in self.tables.items()
        }
        return replace(self, tables=tables)

    def reshaped(self, columns: Mapping[str, tuple[str, TableColumns]]) -> "TablesToken":
        """With other columns of some tables: a digest, and the columns."""
        changed = {
            name: replace(self.tables[name], columns=digest, shape=shape)
            for name, (digest, shape) in columns.items()
        }
        return replace(self, tables={**self.tables, **changed})

    def joined(
        self,
        name: str,
        oid: int,
        columns: str,
        shape: TableColumns,
        at: int = 0,
        entries: Entries = (),
    ) -> "TablesToken":
        """With one more table from here on, or from position `at` if that is later: the end of the log when its columns
        were looked at. Changes before it may have others.

        Raises:
            TunnelError: it is there already.
        """
        self.check_new(name)
        return self._waiting(
            name, TablePlace(oid, columns, shape, max(self.lsn, at), entries=entries)
        )

    def restarted(
        self,
        name: str,
        oid: int,
        columns: str,
        shape: TableColumns,
        at: int = 0,
        entries: Entries = (),
        takes: Callable[[TableColumns, TableColumns], bool] | None = None,
    ) -> "TablesToken":
        """With the existing rows of a table to be read once more, with its present columns.

        One that left the publication meanwhile is followed from `at` on, as one that joins: the log may lack earlier
        changes of transactions that ran when it came back. So is one that was made again, or has other columns now;
        but where `takes` says that the log may have rows of the old columns and of the new ones, none are left out.

        Raises:
            TunnelError: it is not there.
        """
        progress = self.known(name)
        is_other = (progress.oid, progress.columns) != (oid, columns)
        if is_other and progress.oid == oid and takes is not None:
            is_other = not takes(progress.shape, shape)
        since = max(
            self.lsn,
            progress.since or 0,
            at if is_other or differ(progress.entries, entries) else 0,
        )
        again = TablePlace(oid, columns, shape, since, entries=entries or progress.entries)
        return self._waiting(name, again)

    def begins(self) -> dict[str, int]:
        """Where the changes of each table begin to be delivered, in a range from here on."""
        return {name: max(self.lsn, progress.since or 0) for name, progress in self.tables.items()}

    def token(self) -> Token:
        noted: dict[str, Any] = {
            "lsn": lsn_text(self.lsn),
            "tables": {name: _noted(progress) for name, progress in self.tables.items()},
        }
        if self.removed:
            noted["removed"] = list(self.removed)
        if not self.is_read:
            noted["base"] = {
                "safe": lsn_text(self.safe),
                "doubt_at": lsn_text(self.doubt_at),
                "doubt": list(self.doubt),
                "waited": self.waited,
            }
        return noted

    @classmethod
    def read(cls, token: Token) -> "TablesToken":
        """
        Raises:
            SourceError: no token of such a feed.
        """
        try:
            tables = dict(_places(token["tables"]))
            if not tables:
                raise ValueError
            removed = tuple(token.get("removed", ()))
            if not all(isinstance(name, str) for name in removed):
                raise ValueError(removed)
            position = cls(position_of(token["lsn"]), tables, removed=removed)
            if position.is_read:
                return position
            base = token["base"]
            doubt, waited = base["doubt"], base["waited"]
            if not all(isinstance(number, int) for number in (*doubt, waited)):
                raise ValueError
            return replace(
                position,
                safe=position_of(base["safe"]),
                doubt_at=position_of(base["doubt_at"]),
                doubt=tuple(doubt),
                waited=waited,
            )
        except (AttributeError, KeyError, TypeError, ValueError):
            raise SourceError(
                f"the checkpoint {str(dict(token))[:200]} is not a position of several tables "
                "in a PostgreSQL log: it is damaged, or of another source. Reset the tunnel"
            ) from None

    def _waiting(self, name: str, progress: TablePlace) -> "TablesToken":
        position = self.placed(name, progress)
        return (
            replace(position, safe=self.lsn, doubt_at=self.lsn, doubt=())
            if self.is_read
            else position
        )


def _noted(progress: TablePlace) -> dict[str, Any]:
    noted: dict[str, Any] = {
        "oid": progress.oid,
        "columns": progress.columns,
        "shape": progress.shape.noted(),
    }
    if progress.since is not None:
        noted["since"] = lsn_text(progress.since)
    if progress.base is not None:
        noted["base"] = progress.base.noted()
    if progress.entries:
        noted["entries"] = list(progress.entries)
    return noted


def _places(noted: Mapping[str, Any]) -> Iterator[tuple[str, TablePlace]]:
    for name, entry in noted.items():
        oid, columns = entry["oid"], entry["columns"]
        if not isinstance(oid, int) or not isinstance(columns, str):
            raise ValueError(entry)
        since, base = entry.get("since"), entry.get("base")
        if base is not None and since is None:
            raise ValueError(entry)
        yield (
            name,
            TablePlace(
                oid,
                columns,
                TableColumns.from_noted(entry["shape"]),
                None if since is None else position_of(since),
                None if base is None else BaseProgress.from_noted(base),
                read_entries(entry.get("entries", ())),
            ),
        )
