"""The existing rows of a table, read in chunks while its log is followed: which rows are delivered. Pure.

These are the watermarks of DBLog. A range of the log begins at position `after`, and is delivered with the next chunk.
The chunk's statement sees the table at some later moment, and a high watermark is written to the log behind it. A row
of the chunk is delivered only if the log names its key neither between `after` and the high watermark, nor in an
earlier transaction that the statement did not see: then it is what the log up to `after` made of it, however late the
chunk was read, and however often. A row that is dropped has a change in the log, which is or will be delivered.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

__all__ = ["BaseProgress", "Chunk", "ChunkWindow", "Key", "WatermarkLog", "read_window"]

Key = tuple[Any, ...]
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class ChunkWindow:
    """The keys that a chunk must not deliver.

    `after`: where the range of the log begins. `sees`: whether the chunk's statement saw a transaction.
    """

    def __init__(self, after: int, sees: Callable[[int], bool]) -> None:
        self._after = after
        self._sees = sees
        self.keys: set[Key] = set()
        """Keys as the log writes them."""
        self.is_emptied = False
        """Whether no row may be delivered: the table was truncated."""

    def holds(self, commit: int, transaction: int) -> bool:
        """Whether the changes of a transaction, committed at position `commit`, are to be told."""
        return commit >= self._after or not self._sees(transaction)

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

    def sees(self, transaction: int) -> bool:
        """Whether the statement saw what `transaction` wrote."""
        ...

    def kept(self, window: ChunkWindow) -> Iterator[T_co]:
        """The rows whose keys `window` does not hold."""
        ...


class WatermarkLog(Protocol[T_co]):
    """What a database offers to read chunks of a table between watermarks in its log."""

    def mark(self) -> int:
        """Write a watermark. Returns its position, which can be read, and which is behind the commit of every
        transaction that any statement saw before.
        """
        ...

    def running(self) -> Collection[int]:
        """The transactions that a statement would not see now, of those that were begun before the last `mark`."""
        ...

    def bound(self, lower: Key | None, upper: Key, rows: int) -> Key | None:
        """The key of row number `rows` behind `lower`, up to `upper`; None = there are fewer rows."""
        ...

    def chunk(self, lower: Key | None, upper: Key, rows: int) -> Chunk[T_co]:
        """At most `rows` rows behind `lower`, up to and with `upper`, by a statement that begins now."""
        ...

    def events(self, after: int, upto: int, high: int, window: ChunkWindow) -> Iterator[T_co]:
        """The changes committed in [after, upto), in order. `window` is told of all that it `holds`, up to `high`.

        It begins where the log begins, which is not behind the last safe position that was confirmed.
        """
        ...


@dataclass(frozen=True, slots=True)
class BaseProgress:
    """How much of the base was read at a position of the log; part of its token.

    `after` is the last key read (None: none), `until` the last of the base. `read` counts rows, `rows` estimates all.
    `waited`: ranges since the last one with a chunk.

    A chunk needs the log from the first transaction on that its statement may not see, although it is committed: it is
    written to the log before others see it, for as long as a synchronous standby takes. So the log is confirmed up to
    `safe` only: everything before it was seen to be visible. `doubt` are the transactions that were running when all
    of the log up to `doubt_at` was read: when they have ended, `doubt_at` is safe.
    """

    after: Key | None
    until: Key
    safe: int
    doubt_at: int
    doubt: tuple[int, ...] = ()
    read: int = 0
    rows: int | None = None
    waited: int = 0

    def confirmable(self, end: int, running: Collection[int]) -> "BaseProgress":
        """With what is known when the log is read up to `end`; `running` was asked for after a `mark` behind `end`."""
        left = tuple(each for each in self.doubt if each in set(running))
        if left:
            return replace(self, doubt=left)
        if not running:
            return replace(self, safe=end, doubt_at=end, doubt=())
        return replace(self, safe=self.doubt_at, doubt_at=end, doubt=tuple(sorted(running)))

    def advanced(self, upto: Key | None, rows: int) -> "BaseProgress | None":
        """With the chunk up to key `upto`; None = with the last one."""
        if upto is None or upto == self.until:
            return None
        return replace(self, after=upto, read=self.read + rows, waited=0)


def read_window(
    log: WatermarkLog[T], after: int, upto: int, lower: Key | None, upper: Key, rows: int
) -> Iterator[T]:
    """The changes in [after, upto), then the base behind `lower` up to `upper`, in chunks of `rows` rows.

    No key is in both: what has changed since `after` is not delivered from a chunk.
    """
    is_first = True
    while True:
        chunk = log.chunk(lower, upper, rows)
        high = log.mark()
        window = ChunkWindow(after, chunk.sees)
        yield from log.events(after, upto if is_first else after, max(high, upto), window)
        yield from chunk.kept(window)
        if chunk.last is None:
            return
        lower, is_first = chunk.last, False
