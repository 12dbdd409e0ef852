"""What a half-done job needs to go on: its plan, kept beside the ledger until the job is published."""

import base64
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from spark_channel.clock import utc_now

__all__ = ["KEPT", "KeptPlans"]

KEPT = "spark_channel_plans"
_PART = 4000
"""Letters in a row: what every database takes in one text of bounded length."""
_DAYS = 30


@dataclass(frozen=True, slots=True)
class KeptPlans:
    """The plans in one database, each a compressed text in parts.

    `table` is the table's name as it stands in a statement. `run` runs a statement whose parameters are
    marked `?`; `exists` tells whether the table is there, and `before` are statements that run before it is made.
    """

    table: str
    run: Callable[[str, Sequence[Any]], list[tuple[Any, ...]]]
    exists: Callable[[], bool]
    before: tuple[str, ...] = ()

    def keep(self, job: str, text: str) -> None:
        """Keep `text` for `job`, instead of what was kept before; plans of long ago go. In a transaction."""
        if not self.exists():
            for statement in self.before:
                self.run(statement, ())
            self.run(
                f"CREATE TABLE IF NOT EXISTS {self.table} (job VARCHAR(200) NOT NULL, part INTEGER NOT NULL, "
                f"kept VARCHAR({_PART}) NOT NULL, kept_at VARCHAR(32) NOT NULL, PRIMARY KEY (job, part))",
                (),
            )
        self.run(f"DELETE FROM {self.table} WHERE job = ? OR kept_at < ?", (job, _moment(_DAYS)))  # noqa: S608 - a quoted name
        packed = base64.b64encode(zlib.compress(text.encode())).decode("ascii")
        for part, start in enumerate(range(0, len(packed), _PART)):
            self.run(
                f"INSERT INTO {self.table} (job, part, kept, kept_at) VALUES (?, ?, ?, ?)",  # noqa: S608
                (job, part, packed[start : start + _PART], _moment()),
            )

    def find(self, job: str) -> str | None:
        """What was kept for `job`."""
        if not self.exists():
            return None
        parts = self.run(f"SELECT kept FROM {self.table} WHERE job = ? ORDER BY part", (job,))  # noqa: S608
        packed = "".join(str(part) for (part,) in parts)
        return zlib.decompress(base64.b64decode(packed)).decode() if packed else None

    def drop(self, job: str) -> None:
        if self.exists():
            self.run(f"DELETE FROM {self.table} WHERE job = ?", (job,))  # noqa: S608


def _moment(days_ago: int = 0) -> str:
    return (utc_now() - timedelta(days=days_ago)).isoformat(timespec="seconds").replace("+00:00", "Z")
