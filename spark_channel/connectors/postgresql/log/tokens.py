"""Tokens of a replication feed: a position in the log, how much of the base was read there, and by which entries of its
publication the table is in the log. Pure.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from spark_channel.connectors.base.feed import Token
from spark_channel.connectors.postgresql.log.pgoutput import TableColumns, lsn_text
from spark_channel.connectors.sql.feed.incremental_snapshot import (
    BaseProgress,
    SeveralTables,
    safe_after,
)
from spark_channel.errors import SourceError

__all__ = [
    "Entries",
    "LogToken",
    "Snapshot",
    "TablePlace",
    "TablesToken",
    "differ",
    "position_of",
    "read_entries",
    "token_of",
]


# By which entries a publication has a table: the log lacks the changes of the time without one.
# Pure.
#
# The server decodes each change with the publication as it was then, so what it has now says
# nothing of changes before:
# a table that left and came back lacks those between. But it comes back by another entry. So a
# stream keeps the
# entries in its checkpoints: as long as one of them is there, the table never left.


Entries = tuple[str, ...]
"""One table's numbers of catalog rows, each with a letter for its catalog, and behind "@" the transaction that last
changed the publication's options. Empty: not known."""


def read_entries(found: object) -> Entries:
    """Entries as a token has them.

    Raises:
        ValueError: it was damaged.
    """
    if not isinstance(found, list | tuple) or not all(isinstance(each, str) for each in found):
        raise ValueError(found)
    return tuple(found)


def differ(was: Entries, now: Entries) -> bool:
    """Whether a table that was in its publication by some entries, and is by others now, may have left it between.

    Then the log lacks changes, and does not say so: findings/postgresql-publication-gap.sh
    Entries of an older version have no transaction.
    """
    if not all("@" in each for each in was):
        now = tuple(each.partition("@")[0] for each in now)
    return bool(was and now) and set(was).isdisjoint(now)


_POSITION = re.compile(r"[0-9A-F]{1,8}/[0-9A-F]{1,8}")
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
                None if table is None else (int(table["oid"]), TableColumns.of(table["shape"])),
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
        place = TablePlace(oid, "", columns, 0, replace(base, waited=0), self.entries)
        return TablesToken(self.lsn, {"": place}, base.safe, base.doubt_at, base.doubt, base.waited)

    @classmethod
    def of(cls, token: "TablesToken") -> "LogToken":
        """What `several` gave."""
        (place,) = token.tables.values()
        base = place.base and replace(
            place.base,
            safe=token.safe,
            doubt_at=token.doubt_at,
            doubt=token.doubt,
            waited=token.waited,
        )
        return cls(token.lsn, base, place.entries, (place.oid, place.shape))

    def token(self) -> Token:
        base = self.base
        found = dict(token_of(self.lsn))
        if self.entries:
            found[_ENTRIES] = list(self.entries)
        if self.table is not None:
            oid, shape = self.table
            found[_TABLE] = {"oid": oid, "shape": shape.noted()}
        if base is None:
            return found
        return {
            **found,
            "base": {
                **base.noted(),
                "safe": lsn_text(base.safe),
                "doubt_at": lsn_text(base.doubt_at),
                "doubt": list(base.doubt),
            },
        }


def token_of(lsn: int) -> Token:
    return {"lsn": lsn_text(lsn)}


def position_of(text: object) -> int:
    if not isinstance(text, str) or not _POSITION.fullmatch(text):
        raise ValueError
    high, _, low = text.partition("/")
    return (int(high, 16) << 32) | int(low, 16)


def _base(found: Any) -> BaseProgress:
    if not all(isinstance(each, int) for each in found["doubt"]):
        raise ValueError
    return replace(
        BaseProgress.of(found),
        safe=position_of(found["safe"]),
        doubt_at=position_of(found["doubt_at"]),
        doubt=tuple(found["doubt"]),
    )


# Which transactions a statement sees: PostgreSQL's `xmin:xmax:running`. Pure.


_SPAN = 1 << 32


@dataclass(frozen=True, slots=True)
class Snapshot:
    """`xmax`: the first number that was not begun; `running`: those below it that had not ended."""

    xmax: int
    running: frozenset[int]

    @classmethod
    def of(cls, text: str) -> Self:
        """Parse the text of a `txid_snapshot`."""
        _, xmax, running = text.split(":")
        return cls(int(xmax), frozenset(int(each) for each in running.split(",") if each))

    def sees(self, transaction: int) -> bool:
        """Whether a committed transaction is seen; `transaction` are the last 32 bits of its number, as logs hold."""
        behind = (self.xmax - transaction) % _SPAN  # 0 = xmax itself
        if behind == 0 or behind > _SPAN // 2:
            return False
        return self.xmax - behind not in self.running


# Tokens of a feed of several tables: one position in the log, and what was read of each table
# there. Pure.
#
# A table that joins at position `since` is followed from there on: each of its later changes is
# delivered. Its existing
# rows are read only when all that was committed before `since` was seen to be visible (`safe` is
# beyond it), as a new
# slot waits for it: so no change is too early for the log and too late for a chunk.


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
            for name, each in self.tables.items()
            if each.base is not None or (each.since is not None and self.safe > each.since)
        ]

    def awaited(self) -> list[str]:
        """The tables whose existing rows wait for transactions of `doubt`."""
        if not self.doubt or self.due():
            return []
        return [name for name, each in self.tables.items() if each.since is not None]

    def held_by(self, entries: Mapping[int, Entries]) -> "TablesToken":
        """With the entries by which the publication has its tables now."""
        tables = {
            name: replace(each, entries=entries.get(each.oid, each.entries))
            for name, each in self.tables.items()
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
        found = self.known(name)
        is_other = (found.oid, found.columns) != (oid, columns)
        if is_other and found.oid == oid and takes is not None:
            is_other = not takes(found.shape, shape)
        since = max(
            self.lsn, found.since or 0, at if is_other or differ(found.entries, entries) else 0
        )
        place = TablePlace(oid, columns, shape, since, entries=entries or found.entries)
        return self._waiting(name, place)

    def begins(self) -> dict[str, int]:
        """Where the changes of each table begin to be delivered, in a range from here on."""
        return {name: max(self.lsn, each.since or 0) for name, each in self.tables.items()}

    def token(self) -> Token:
        found: dict[str, Any] = {
            "lsn": lsn_text(self.lsn),
            "tables": {name: _noted(each) for name, each in self.tables.items()},
        }
        if self.removed:
            found["removed"] = list(self.removed)
        if not self.is_read:
            found["base"] = {
                "safe": lsn_text(self.safe),
                "doubt_at": lsn_text(self.doubt_at),
                "doubt": list(self.doubt),
                "waited": self.waited,
            }
        return found

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
            if not all(isinstance(each, str) for each in removed):
                raise ValueError(removed)
            made = cls(position_of(token["lsn"]), tables, removed=removed)
            if made.is_read:
                return made
            base = token["base"]
            doubt, waited = base["doubt"], base["waited"]
            if not all(isinstance(each, int) for each in (*doubt, waited)):
                raise ValueError
            return replace(
                made,
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

    def _waiting(self, name: str, place: TablePlace) -> "TablesToken":
        made = self.placed(name, place)
        return replace(made, safe=self.lsn, doubt_at=self.lsn, doubt=()) if self.is_read else made


def _noted(place: TablePlace) -> dict[str, Any]:
    found: dict[str, Any] = {
        "oid": place.oid,
        "columns": place.columns,
        "shape": place.shape.noted(),
    }
    if place.since is not None:
        found["since"] = lsn_text(place.since)
    if place.base is not None:
        found["base"] = place.base.noted()
    if place.entries:
        found["entries"] = list(place.entries)
    return found


def _places(found: Mapping[str, Any]) -> Iterator[tuple[str, TablePlace]]:
    for name, each in found.items():
        oid, columns = each["oid"], each["columns"]
        if not isinstance(oid, int) or not isinstance(columns, str):
            raise ValueError(each)
        since, base = each.get("since"), each.get("base")
        if base is not None and since is None:
            raise ValueError(each)
        yield (
            name,
            TablePlace(
                oid,
                columns,
                TableColumns.of(each["shape"]),
                None if since is None else position_of(since),
                None if base is None else BaseProgress.of(base),
                read_entries(each.get("entries", ())),
            ),
        )
