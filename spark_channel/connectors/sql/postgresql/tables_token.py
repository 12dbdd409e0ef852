"""Tokens of a feed of several tables: one position in the log, and what was read of each table there. Pure.

A table that joins at position `since` is followed from there on: each of its later changes is delivered. Its existing
rows are read only when all that was committed before `since` was seen to be visible (`safe` is beyond it), as a new
slot waits for it: so no change is too early for the log and too late for a chunk.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from spark_channel.connectors.split_reader import Token
from spark_channel.connectors.sql.chunk_window import BaseProgress, Key, safe_after
from spark_channel.connectors.sql.postgresql.entries import Entries, differ, read_entries
from spark_channel.connectors.sql.postgresql.log_token import position_of
from spark_channel.connectors.sql.postgresql.pgoutput import lsn_text
from spark_channel.errors import SourceError, TunnelError

__all__ = ["TablePlace", "TablesToken"]


@dataclass(frozen=True, slots=True)
class TablePlace:
    """One table. `since` is None when its existing rows are read, `base` until their reading begins.

    `oid` is its number in the log, and `columns` a digest of its columns as they were when it joined. For `entries` see
    `entries.py`; () = not known.
    """

    oid: int
    columns: str
    since: int | None = None
    base: BaseProgress | None = None
    entries: Entries = ()


@dataclass(frozen=True, slots=True)
class TablesToken:
    """`tables` by name, in the order in which they joined. For the others see `BaseProgress`.

    They are of the log, and so of all tables.
    """

    lsn: int
    tables: Mapping[str, TablePlace]
    safe: int = 0
    doubt_at: int = 0
    doubt: tuple[int, ...] = ()
    waited: int = 0

    @property
    def is_read(self) -> bool:
        """Whether the existing rows of all tables are read."""
        return all(each.since is None for each in self.tables.values())

    @property
    def confirmable(self) -> int:
        """The position up to which the log is not needed any more, once this token is done with."""
        return self.lsn if self.is_read else self.safe

    def seen(self, end: int, running: Collection[int]) -> "TablesToken":
        """At `end`. `running`: the transactions that ran after a mark behind `end`; not asked when all is read."""
        if self.is_read:
            return replace(self, lsn=end, safe=0, doubt_at=0, doubt=(), waited=0)
        safe, doubt_at, doubt = safe_after((self.safe, self.doubt_at, self.doubt), end, running)
        return replace(self, lsn=end, safe=safe, doubt_at=doubt_at, doubt=doubt)

    def due(self) -> str | None:
        """The table whose existing rows are read next; None: none is read yet, or all are."""
        for name, each in self.tables.items():
            if each.base is not None or (each.since is not None and self.safe > each.since):
                return name
        return None

    def held_by(self, entries: Mapping[int, Entries]) -> "TablesToken":
        """With the entries by which the publication has its tables now."""
        tables = {
            name: replace(each, entries=entries.get(each.oid, each.entries))
            for name, each in self.tables.items()
        }
        return replace(self, tables=tables)

    def joined(self, name: str, oid: int, columns: str, at: int = 0, entries: Entries = ()) -> "TablesToken":
        """With one more table from here on, or from position `at` if that is later: the end of the log when its columns
        were looked at. Changes before it may have others.

        Raises:
            TunnelError: it is there already.
        """
        if name in self.tables:
            raise TunnelError(f"the tunnel has table {name!r} already: `tunnel resnapshot` reads it again")
        return self._waiting(name, TablePlace(oid, columns, max(self.lsn, at), entries=entries))

    def restarted(
        self, name: str, oid: int, columns: str, at: int = 0, entries: Entries = ()
    ) -> "TablesToken":
        """With the existing rows of a table to be read once more. One that left the publication meanwhile is followed
        from `at` on, as one that joins: the log may lack earlier changes of transactions that ran when it came back.

        Raises:
            TunnelError: it is not there, or is another table now.
        """
        found = self.tables.get(name)
        if found is None:
            raise TunnelError(
                f"the tunnel has no table {name!r}: it has {', '.join(self.tables)}. `tunnel add-table` adds one"
            )
        if (found.oid, found.columns) != (oid, columns):
            raise TunnelError(
                f"table {name!r} was made again, or has other columns than when the tunnel began to follow it: "
                "changes of it as it was may be in the log. Reset the tunnel"
            )
        since = max(self.lsn, found.since or 0, at if differ(found.entries, entries) else 0)
        return self._waiting(name, replace(found, since=since, base=None, entries=entries or found.entries))

    def started(self, name: str, base: BaseProgress | None) -> "TablesToken":
        """With the range of keys that is to be read of a table; None: it is empty."""
        found = self.tables[name]
        place = replace(found, base=base, since=None if base is None else found.since)
        return replace(self, tables={**self.tables, name: place})

    def advanced(self, name: str, upto: Key | None, rows: int) -> "TablesToken":
        """With the chunk of a table up to key `upto`; None = with its last one."""
        base = self.tables[name].base
        assert base is not None
        return replace(self.started(name, base.advanced(upto, rows)), waited=0)

    def begins(self) -> dict[str, int]:
        """Where the changes of each table begin to be delivered, in a range from here on."""
        return {name: max(self.lsn, each.since or 0) for name, each in self.tables.items()}

    def chunk_to(self, after: "TablesToken") -> tuple[str, TablePlace, Key] | None:
        """The chunk between this token and a later one: its table at this token, and its last key."""
        for name, each in self.tables.items():
            new = after.tables[name].base
            if each.base is not None and (new is None or new.after != each.base.after):
                upper = each.base.until if new is None else new.after
                assert upper is not None
                return name, each, upper
        return None

    def token(self) -> Token:
        found: dict[str, Any] = {
            "lsn": lsn_text(self.lsn),
            "tables": {name: _noted(each) for name, each in self.tables.items()},
        }
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
            made = cls(position_of(token["lsn"]), tables)
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
        tables = {**self.tables, name: place}
        if self.is_read:
            return replace(self, tables=tables, safe=self.lsn, doubt_at=self.lsn, doubt=())
        return replace(self, tables=tables)


def _noted(place: TablePlace) -> dict[str, Any]:
    found: dict[str, Any] = {"oid": place.oid, "columns": place.columns}
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
                None if since is None else position_of(since),
                None if base is None else BaseProgress.of(base),
                read_entries(each.get("entries", ())),
            ),
        )
