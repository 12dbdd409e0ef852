"""Which transactions a statement sees: PostgreSQL's `xmin:xmax:running`. Pure."""

from dataclasses import dataclass
from typing import Self

__all__ = ["Snapshot"]


_SPAN = 1 << 32


@dataclass(frozen=True, slots=True)
class Snapshot:
    """`xmax`: the first number that was not begun; `running`: those below it that had not ended."""

    xmax: int
    running: frozenset[int]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the text of a `txid_snapshot`."""
        _, xmax, running = text.split(":")
        return cls(int(xmax), frozenset(int(number) for number in running.split(",") if number))

    def sees(self, transaction: int) -> bool:
        """Whether a committed transaction is seen; `transaction` are the last 32 bits of its number, as logs hold."""
        behind = (self.xmax - transaction) % _SPAN  # 0 = xmax itself
        if behind == 0 or behind > _SPAN // 2:
            return False
        return self.xmax - behind not in self.running
