"""What became of a replication: one outcome for each table."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from spark_channel.progress import TransferReport

__all__ = ["PARKED", "ReplicationReport", "State", "TableOutcome"]

PARKED = 3
"""The exit code of a run in which a table was parked."""

State = Literal["done", "unchanged", "parked", "not run"]


@dataclass
class TableOutcome:
    """One table. `unchanged`: it has no new rows. `parked`: it failed, and `why` says what to do."""

    stream: str
    object: str
    mode: str
    state: State = "not run"
    rows: int = 0
    nbytes: int = 0
    seconds: float = 0.0
    why: str = ""
    error_type: str = ""
    position: int | None = None
    report: TransferReport | None = None

    def to_plain(self) -> dict[str, Any]:
        """JSON's types; `transfer` is the whole report of the copy."""
        return {
            "stream": self.stream,
            "object": self.object,
            "mode": self.mode,
            "state": self.state,
            "rows": self.rows,
            "bytes": self.nbytes,
            "seconds": round(self.seconds, 3),
            "why": self.why,
            "error_type": self.error_type,
            "position": self.position,
            "transfer": None if self.report is None else json.loads(self.report.to_json()),
        }


@dataclass
class ReplicationReport:
    """All tables of one run, in the order in which they were begun. `notes`: what the file says in vain.

    `windows`: the limits that held, with the time from which each did.
    """

    run_id: str
    started_at: datetime
    seconds: float = 0.0
    tables: list[TableOutcome] = field(default_factory=list)
    notes: Sequence[str] = ()
    windows: Sequence[tuple[datetime, str, str]] = ()

    @property
    def rows(self) -> int:
        """Rows that were written to all tables."""
        return sum(each.rows for each in self.tables)

    @property
    def parked(self) -> list[TableOutcome]:
        """The tables that failed."""
        return [each for each in self.tables if each.state == "parked"]

    @property
    def exit_code(self) -> int:
        """0, or 3 when a table was parked."""
        return PARKED if any(each.state in ("parked", "not run") for each in self.tables) else 0

    def to_json(self) -> str:
        """The report as JSON text."""
        return json.dumps(
            {
                "version": 1,
                "run_id": self.run_id,
                "started_at": self.started_at.isoformat(timespec="milliseconds"),
                "seconds": round(self.seconds, 3),
                "exit_code": self.exit_code,
                "rows": self.rows,
                "bytes": sum(each.nbytes for each in self.tables),
                "notes": list(self.notes),
                "windows": [
                    {"at": at.isoformat(timespec="seconds"), "window": window, "limit": limit}
                    for at, window, limit in self.windows
                ],
                "tables": [each.to_plain() for each in self.tables],
            },
            ensure_ascii=False,
            indent=1,
        )

    def __str__(self) -> str:
        states = dict.fromkeys(("done", "unchanged", "parked", "not run"), 0)
        for each in self.tables:
            states[each.state] += 1
        said = ", ".join(f"{count} {state}" for state, count in states.items() if count)
        return (
            f"{len(self.tables)} tables: {said or 'none'}; {self.rows} rows in {self.seconds:.1f} s"
        )
