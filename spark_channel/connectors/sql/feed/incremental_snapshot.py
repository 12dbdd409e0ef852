"""The existing rows of a table, read in chunks while its log is followed: which rows are delivered. Pure.

These are the watermarks of DBLog. A range of the log begins at position `after`, and is delivered with the next chunk.
The chunk's statement sees the table at some later moment, and a high watermark is written to the log behind it. A row
from the chunk is delivered only if the log names its key neither between `after` and the high watermark, nor in an
earlier transaction that the statement did not see: then it is what the log up to `after` made of it, however late the
chunk was read, and however often. A row that is dropped has a change in the log, which is or will be delivered.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, Self, TypeVar, cast

from spark_channel.errors import TunnelError

__all__ = [
    "MOST_TABLES",
    "BaseProgress",
    "Chunk",
    "ChunkRange",
    "ChunkSizes",
    "ChunkWindow",
    "Key",
    "Safety",
    "SeveralTables",
    "WatermarkLog",
    "read_window",
    "read_windows",
    "safe_after",
]

Key = tuple[Any, ...]
MOST_TABLES = 500
"""Tables that share a range, each with all its existing rows."""
_SMALL_ROWS = 1_000
"""A table with fewer rows left shares its range."""
_MOST_HELD = 8 << 20
"""Bytes of the chunks that share a look at the log."""
P = TypeVar("P")
"""A position in a log."""
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class ChunkWindow:
    """The keys that a chunk must not deliver. `sees`: whether the chunk's statement saw a transaction."""

    def __init__(self, sees: Callable[[Any], bool]) -> None:
        self._sees = sees
        self.keys: set[Key] = set()
        """Keys as the log writes them."""
        self.is_emptied = False
        """Whether no row may be delivered: the table was truncated."""

    def holds(self, is_new: bool, transaction: Any) -> bool:
        """Whether the log must report the changes of a transaction. `is_new`: it is not before the range of the log.

        Asked once for each transaction, in the order of the log.
        """
        is_seen = self._sees(transaction)
        return is_new or not is_seen

    def changed(self, key: Key) -> None:
        self.keys.add(key)

    def emptied(self) -> None:
        self.is_emptied = True


class Chunk(Protocol[T_co]):
    """Rows in the order of their key, and what their statement saw."""

    @property
    def last(self) -> Key | None:
        """The last key, where more rows may follow; None at the end of the asked range."""
        ...

    @property
    def nbytes(self) -> int:
        """Of all rows."""
        ...

    def sees(self, transaction: Any) -> bool:
        """Whether the statement saw what `transaction` wrote. Asked in the order of the log."""
        ...

    def kept(self, window: ChunkWindow) -> Iterator[T_co]:
        """The rows whose keys `window` does not hold."""
        ...


class WatermarkLog(Protocol[P, T_co]):
    """What a database offers to read chunks of a table between watermarks in its log."""

    def mark(self) -> P:
        """Where the log must be read to: this can be read, and is behind the commit of every transaction that a
        chunk's statement saw before. It is written to the log where its server reports no such position.
        """
        ...

    def chunk(self, lower: Key | None, upper: Key, rows: int) -> Chunk[T_co]:
        """At most `rows` rows behind `lower`, up to and with `upper`, by a statement that begins now."""
        ...

    def events(self, after: P, upto: P, high: P, window: ChunkWindow) -> Iterator[T_co]:
        """The changes committed from `after` up to `upto`, in order. It reports to `window` all that this `holds`,
        up to the later one of `upto` and `high`.

        It begins where the log has the first transaction that a chunk's statement may not have seen.
        """
        ...


@dataclass(frozen=True, slots=True)
class BaseProgress:
    """How much of the base was read at a position of the log; part of its token.

    `after` is the last key read (None: none), `until` the last of the base. `read` counts rows, `rows` estimates all,
    `chunks` counts the ranges of keys that were read.
    `waited`: ranges since the last one with a chunk.

    A chunk needs the log from the first transaction on that its statement may not see, although it is committed: it is
    written to the log before others see it, for as long as a synchronous standby takes. So a log that its server keeps
    for its reader is confirmed up to `safe` only: everything before it was seen to be visible. `doubt` are the
    transactions that were running when all of the log up to `doubt_at` was read: when they have ended, `doubt_at` is
    safe.

    `order`: what the order of the keys depends on; () = not known. In another order, `after` would be another place.
    `since`: where the log begins to be delivered, if a chunk may be read from a server that is not there yet; else "".
    """

    after: Key | None
    until: Key
    safe: int = 0
    doubt_at: int = 0
    doubt: tuple[int, ...] = ()
    read: int = 0
    rows: int | None = None
    waited: int = 0
    order: tuple[str, ...] = ()
    since: str = ""
    chunks: int = 0

    def confirmable(self, end: int, running: Collection[int]) -> "BaseProgress":
        """With what is known when the log is read up to `end`; `running` was read after a `mark` behind `end`."""
        safe, doubt_at, doubt = safe_after((self.safe, self.doubt_at, self.doubt), end, running)
        return replace(self, safe=safe, doubt_at=doubt_at, doubt=doubt)

    def advanced(self, upto: Key | None, rows: int) -> "BaseProgress | None":
        """With the chunk up to key `upto`; None = with the last one."""
        if upto is None or upto == self.until:
            return None
        return replace(self, after=upto, read=self.read + rows, waited=0, chunks=self.chunks + 1)

    def noted(self) -> dict[str, Any]:
        """Plain data, without what is known of the log's safety."""
        return {
            "after": None if self.after is None else list(self.after),
            "until": list(self.until),
            "read": self.read,
            "rows": self.rows,
            "waited": self.waited,
            "chunks": self.chunks,
            **({"order": list(self.order)} if self.order else {}),
            **({"since": self.since} if self.since else {}),
        }

    @classmethod
    def from_noted(cls, noted: Any) -> Self:
        """What `noted` gave.

        Raises:
            KeyError, TypeError, ValueError: it was damaged.
        """
        if not isinstance(noted, Mapping):
            raise TypeError(noted)
        numbers = [noted["read"], noted["waited"], noted["chunks"]]
        keys = [*(noted["after"] or ()), *noted["until"]]
        if not all(isinstance(number, int) for number in numbers) or not noted["until"]:
            raise ValueError(noted)
        if not all(isinstance(key, int | str) for key in keys) or not isinstance(
            noted["rows"], int | None
        ):
            raise ValueError(noted)
        after = None if noted["after"] is None else tuple(noted["after"])
        order = tuple(noted.get("order", ()))
        since = noted.get("since", "")
        if not all(isinstance(text, str) for text in (*order, since)):
            raise ValueError(noted)
        return cls(
            after,
            tuple(noted["until"]),
            read=noted["read"],
            rows=noted["rows"],
            waited=noted["waited"],
            order=order,
            since=since,
            chunks=noted["chunks"],
        )

    @property
    def left(self) -> int | None:
        """Rows that were not read yet, about."""
        return None if self.rows is None else max(0, self.rows - self.read)


class SeveralTables:
    """A token of several tables: how much of their existing rows was read. Plain data of a frozen dataclass.

    `tables` are places by name, in the order in which the tables joined. A place has `since`, which is None when the
    existing rows of its table are read, and `base`, which is None until their reading begins.
    `removed`: tables that were removed, which the options may still name. `waited`: see `BaseProgress`.
    """

    __slots__ = ()
    tables: Mapping[str, Any]
    removed: tuple[str, ...]

    @property
    def is_read(self) -> bool:
        """Whether the existing rows of all tables are read."""
        return all(table.since is None for table in self.tables.values())

    def known(self, name: str) -> Any:
        """The place of a table.

        Raises:
            TunnelError: it is not there.
        """
        if name not in self.tables:
            raise TunnelError(
                f"the tunnel has no table {name!r}: it has {', '.join(self.tables)}. `tunnel add-table` adds one"
            )
        return self.tables[name]

    def check_new(self, name: str) -> None:
        """
        Raises:
            TunnelError: it is there already.
        """
        if name in self.tables:
            raise TunnelError(
                f"the tunnel has table {name!r} already: `tunnel resnapshot` reads it again"
            )

    def placed(self, name: str, progress: object) -> Self:
        """With a table at a place."""
        return self.changed(
            tables={**self.tables, name: progress},
            removed=tuple(other for other in self.removed if other != name),
        )

    def left(self, name: str) -> Self:
        """Without one table.

        Raises:
            TunnelError: it is not there, or is the only one.
        """
        if name not in self.tables:
            raise TunnelError(f"the tunnel has no table {name!r}: it has {', '.join(self.tables)}")
        tables = {other: progress for other, progress in self.tables.items() if other != name}
        if not tables:
            raise TunnelError(
                f"table {name!r} is the tunnel's only one: add another one first (`tunnel add-table`), or remove the "
                "tunnel (`tunnel delete`)"
            )
        return self.changed(tables=tables, removed=(*self.removed, name))

    def started(self, name: str, base: BaseProgress | None) -> Self:
        """With the range of keys that is to be read of a table; None: it is empty."""
        return self.all_started({name: base})

    def all_started(self, bases: Mapping[str, BaseProgress | None]) -> Self:
        """`started` of several tables."""
        places = {
            name: replace(self.tables[name], base=base, since=base and self.tables[name].since)
            for name, base in bases.items()
        }
        return self.changed(tables={**self.tables, **places})

    def advanced(self, name: str, upto: Key | None, rows: int) -> Self:
        """With the chunk of a table up to key `upto`; None = with its last one."""
        base = self.tables[name].base
        assert base is not None
        return self.started(name, base.advanced(upto, rows)).changed(waited=0)

    def chunks_to(self, after: Self) -> list[tuple[str, Any, Key]]:
        """The chunks between this token and a later one: the table of each at this token, and its last key."""
        chunks = []
        for name, progress in self.tables.items():
            new = after.tables[name].base
            if progress.base is not None and (new is None or new.after != progress.base.after):
                upper = progress.base.until if new is None else new.after
                assert upper is not None
                chunks.append((name, progress, upper))
        return chunks

    def sharing(self, names: Sequence[str], rows: int) -> list[str]:
        """Those of `names` that may have a part in a range of `rows` rows: the first, and small ones."""
        most = min(_SMALL_ROWS, rows)
        sharing: list[str] = []
        for name in names:
            base = self.tables[name].base
            if not sharing or base is None or base.left is None or base.left <= most:
                sharing.append(name)
        return sharing[:MOST_TABLES]

    def with_chunks(self, names: Sequence[str], rows: int, sizes: "ChunkSizes") -> Self:
        """With the next chunk of each table of a range of about `rows` rows: of one large table, or of small ones.

        `names`: the tables whose existing rows are being read, in order.
        """
        read: list[str] = []
        rows_left = rows
        for index, name in enumerate(self.sharing(names, rows)):
            base = self.tables[name].base
            most = min(_SMALL_ROWS, rows_left)
            is_large = base.left is not None and base.left > most
            if index and (is_large or not rows_left):
                continue
            count = most if is_large else sizes.count(name, base, most)
            if count < most:
                read.append(name)
                rows_left -= count
            elif not index:
                return self.advanced(name, sizes.bound(name, base, rows), rows)
        return self.all_started(dict.fromkeys(read)).changed(waited=0)

    def changed(self, **changes: Any) -> Self:
        return cast(Self, cast(Callable[..., Any], replace)(self, **changes))


class ChunkSizes(Protocol):
    """What a database says of the existing rows of a table that are left to read."""

    def count(self, name: str, base: BaseProgress, most: int) -> int:
        """How many there are, up to `most`."""
        ...

    def bound(self, name: str, base: BaseProgress, rows: int) -> Key | None:
        """The key of row number `rows`; None = there are fewer rows."""
        ...


@dataclass(frozen=True, slots=True)
class ChunkRange(Generic[P, T]):
    """What is read of the table `name`: the rows behind `lower` up to `upper`, `rows` of them by one statement."""

    name: str
    log: WatermarkLog[P, T]
    lower: Key | None
    upper: Key
    rows: int


Safety = tuple[int, int, tuple[int, ...]]
"""`safe`, `doubt_at` and `doubt` of a `BaseProgress`."""


def safe_after(before: Safety, end: int, running: Collection[int]) -> Safety:
    """The safe position when the log is read up to `end`; `running` was read after a `mark` behind `end`."""
    safe, doubt_at, doubt = before
    remaining = tuple(transaction for transaction in doubt if transaction in set(running))
    if remaining:
        return safe, doubt_at, remaining
    if not running:
        return end, end, ()
    return doubt_at, end, tuple(sorted(running))


def read_window(
    log: WatermarkLog[P, T], after: P, upto: P, lower: Key | None, upper: Key, rows: int
) -> Iterator[T]:
    """The changes in [after, upto), then the base behind `lower` up to `upper`, in chunks of `rows` rows.

    No key is in both: what has changed since `after` is not delivered from a chunk.
    """
    is_first = True
    while True:
        chunk = log.chunk(lower, upper, rows)
        high = log.mark()
        window = ChunkWindow(chunk.sees)
        yield from log.events(after, upto if is_first else after, high, window)
        yield from chunk.kept(window)
        if chunk.last is None:
            return
        lower, is_first = chunk.last, False


def read_windows(
    ranges: Iterable[ChunkRange[P, T]],
    after: P,
    upto: P,
    events: Callable[[P, P, Mapping[str, ChunkWindow]], Iterator[T]],
) -> Iterator[T]:
    """As `read_window`, of several tables, whose first chunks share the high watermark and the look at the log.

    `events` reads the changes in [after, its first argument), and reports to the windows of tables, by name, what each
    of them holds, up to the later one of its positions. Chunks beyond a few megabytes are not held together.
    """
    ranges_left = iter(ranges)
    while True:
        chunks: list[tuple[ChunkRange[P, T], Chunk[T]]] = []
        nbytes = 0
        for chunk_range in ranges_left:
            chunk = chunk_range.log.chunk(chunk_range.lower, chunk_range.upper, chunk_range.rows)
            chunks.append((chunk_range, chunk))
            nbytes += chunk.nbytes
            if nbytes >= _MOST_HELD:
                break
        if not chunks:
            return
        high = chunks[-1][0].log.mark()
        windows = {chunk_range.name: ChunkWindow(chunk.sees) for chunk_range, chunk in chunks}
        yield from events(upto, high, windows)
        upto = after  # the changes are delivered once
        while chunks:
            chunk_range, chunk = chunks.pop(0)
            yield from chunk.kept(windows[chunk_range.name])
            if chunk.last is not None:
                yield from read_window(
                    chunk_range.log, after, after, chunk.last, chunk_range.upper, chunk_range.rows
                )
