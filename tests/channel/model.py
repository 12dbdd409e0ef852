"""A model of a channel, written for clarity and not for speed: a list of rows.

A row is its number and its weight in bytes; the rows of one push weigh the same. An actor is one thread:
it has at most one transaction, and waits for at most one thing. How many rows a pull brings is left to
the channel; which ones, and in which order, is not.
"""

from dataclasses import dataclass, field

Row = tuple[int, int]


@dataclass
class Txn:
    puts: list[Row] = field(default_factory=list)
    takes: list[Row] = field(default_factory=list)


def weight(rows: list[Row]) -> int:
    return sum(w for _, w in rows)


class Model:
    def __init__(
        self, capacity_rows: int, capacity_bytes: int, transaction_rows: int | None, overflow: str
    ):
        self.capacity_rows = capacity_rows
        self.capacity_bytes = capacity_bytes
        self.given_transaction_rows = transaction_rows
        self.overflow = overflow
        self.ready: list[Row] = []
        self.transactions: dict[int, Txn] = {}
        self.pushing: list[tuple[int, list[Row]]] = []  # the actor, and what is left of its batch
        self.pulling: list[int] = []
        self.published: list[Row] = []
        self.consumed: list[Row] = []
        self.dropped: list[Row] = []
        self.rejected: list[Row] = []
        self.failed: list[Row] = []
        self.closed = False
        self.broken = False

    # ---- what holds

    @property
    def transaction_rows(self) -> int:
        return (
            self.capacity_rows
            if self.given_transaction_rows is None
            else self.given_transaction_rows
        )

    def held(self, but: int | None = None) -> list[Row]:
        return [
            row for actor, txn in self.transactions.items() if actor != but for row in txn.takes
        ]

    def over(self, actor: int | None = None) -> bool:
        """Will no row ever come again, for this actor?"""
        return self.closed and not self.ready and not self.held(but=actor)

    def fits(self, rows: list[Row], present: list[Row]) -> bool:
        if len(rows) == 1 and not present:
            return True
        return (
            len(present) + len(rows) <= self.capacity_rows
            and weight(present) + weight(rows) <= self.capacity_bytes
        )

    def slice(self, rows: list[Row]) -> list[Row]:
        """The most leading rows that an empty channel takes."""
        count = 1
        while count < len(rows) and self.fits(rows[: count + 1], []):
            count += 1
        return rows[:count]

    # ---- what happens

    def publish(self, rows: list[Row]) -> None:
        self.ready += rows
        self.published += rows

    def consume(self, rows: list[Row]) -> None:
        """The channel handed these out: the oldest, in order."""
        assert rows
        assert rows == self.ready[: len(rows)]
        self.ready = self.ready[len(rows) :]
        self.consumed += rows

    def make_room(self, rows: list[Row], held: list[Row]) -> bool:
        if self.overflow == "overwrite" and self.fits(rows, held):
            while not self.fits(rows, held + self.ready):
                self.dropped.append(self.ready.pop(0))
        return self.fits(rows, held + self.ready)

    def grant(self) -> None:
        """First come, first served, slice by slice, until the first one does not fit."""
        while self.pushing:
            actor, left = self.pushing.pop(0)
            if self.closed or self.broken:
                self.failed += left
                continue
            piece = self.slice(left)
            if not self.make_room(piece, self.held()):
                self.pushing.insert(0, (actor, left))
                return
            self.publish(piece)
            if left[len(piece) :]:
                self.pushing.append((actor, left[len(piece) :]))

    # ---- calls: what the caller sees, None for no news, "waits" for a wait

    def push(self, actor: int, rows: list[Row]) -> object:
        if self.closed or self.broken:
            self.failed += rows
            return "failed" if self.broken else "closed"
        if self.overflow == "reject":
            if self.pushing or not self.make_room(rows, self.held()):
                self.rejected += rows
                return False
            self.publish(rows)
            return True
        self.pushing.append((actor, rows))
        if len(self.pushing) == 1:
            self.grant()
        return "waits" if any(actor == waiting for waiting, _ in self.pushing) else True

    def put(self, actor: int, rows: list[Row]) -> object:
        if self.closed or self.broken:
            self.failed += rows
            return "failed" if self.broken else "closed"
        staged = self.transactions[actor].puts + rows
        too_heavy = weight(staged) > self.capacity_bytes and len(staged) > 1
        if len(staged) > self.transaction_rows or too_heavy:
            return "full"
        self.transactions[actor].puts = staged
        return None

    def commit(self, actor: int) -> object:
        txn = self.transactions[actor]
        if self.broken or (self.closed and txn.puts):
            self.failed += txn.puts
            return "failed" if self.broken else "closed"
        if txn.puts and (self.pushing or not self.make_room(txn.puts, self.held(but=actor))):
            self.failed += txn.puts
            return "no room"
        del self.transactions[actor]
        self.consumed += txn.takes
        self.publish(txn.puts)
        return None

    def roll_back(self, actor: int) -> None:
        takes = self.transactions.pop(actor).takes
        self.ready = sorted(self.ready + takes, key=self.published.index)

    def resize(
        self,
        capacity_rows: int | None,
        capacity_bytes: int | None,
        transaction_rows: int | None,
        keep_alive: float | None,
    ) -> object:
        if keep_alive is not None and keep_alive < 0:
            return "nonsense"
        if self.broken:
            return "failed"
        rows = self.capacity_rows if capacity_rows is None else capacity_rows
        nbytes = self.capacity_bytes if capacity_bytes is None else capacity_bytes
        least = self.given_transaction_rows if transaction_rows is None else transaction_rows
        if least is not None and rows < least:
            return "nonsense"
        stored = self.ready + self.held()
        if (rows < self.capacity_rows and len(stored) > rows) or (
            nbytes < self.capacity_bytes and weight(stored) > nbytes
        ):
            return "no room"
        self.capacity_rows, self.capacity_bytes, self.given_transaction_rows = rows, nbytes, least
        return None
