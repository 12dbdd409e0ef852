"""The plan of a partially committed transfer, stored until the transfer is published."""

import base64
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from spark_channel.clock import utc_now, utc_text

__all__ = ["StoredPlans"]

_PART = 4000
"""Letters in a row: what every database takes in one text of bounded length."""
_DAYS = 30


@dataclass(frozen=True, slots=True)
class StoredPlans:
    """The plans in one database, each a compressed text in parts.

    `table` is the table's name in a statement. `run` runs a statement whose parameters are
    marked `?`; `exists` tells whether the table is there, `before` are statements that run before it is made, and
    `after` ends CREATE TABLE.
    """

    table: str
    run: Callable[[str, Sequence[Any]], list[tuple[Any, ...]]]
    exists: Callable[[], bool]
    before: tuple[str, ...] = ()
    after: str = ""

    def make(self) -> None:
        """Create the table if it does not exist, in a separate transaction: some databases end one here."""
        if self.exists():
            return
        for statement in self.before:
            self.run(statement, ())
        if not self.exists():
            self.run(
                f"CREATE TABLE {self.table} (claim VARCHAR(64) NOT NULL, part INTEGER NOT NULL, "
                f"kept VARCHAR({_PART}) NOT NULL, kept_at VARCHAR(32) NOT NULL, PRIMARY KEY (claim, part)){self.after}",
                (),
            )

    def keep(self, claim: str, text: str) -> None:
        """Keep `text` under the key `claim`, instead of what was kept before; plans of long ago go. After `make`."""
        self.run(
            f"DELETE FROM {self.table} WHERE claim = ? OR kept_at < ?",  # noqa: S608 - a quoted name
            (claim, _moment(_DAYS)),
        )
        packed = base64.b64encode(zlib.compress(text.encode())).decode("ascii")
        for part, start in enumerate(range(0, len(packed), _PART)):
            self.run(
                f"INSERT INTO {self.table} (claim, part, kept, kept_at) VALUES (?, ?, ?, ?)",  # noqa: S608
                (claim, part, packed[start : start + _PART], _moment()),
            )

    def find(self, claim: str) -> str | None:
        """The plan that was stored under `claim`."""
        if not self.exists():
            return None
        parts = self.run(f"SELECT kept FROM {self.table} WHERE claim = ? ORDER BY part", (claim,))  # noqa: S608
        packed = "".join(str(part) for (part,) in parts)
        return zlib.decompress(base64.b64decode(packed)).decode() if packed else None

    def drop(self, claim: str) -> None:
        if self.exists():
            self.run(f"DELETE FROM {self.table} WHERE claim = ?", (claim,))  # noqa: S608


def _moment(days_ago: int = 0) -> str:
    return utc_text(utc_now() - timedelta(days=days_ago))
