"""The ledger: a table in the target that remembers what was published, so that nothing is published twice.

A row per task that committed (`commit=task`), and two kinds of rows about a whole job, told apart by `task`.
"""

from dataclasses import dataclass

from spark_channel.clock import utc_now
from spark_channel.connectors.contracts import WritePlan
from spark_channel.connectors.sql.sqlite.database import Session

__all__ = ["LEDGER", "PREPARED", "PUBLISHED", "Entry", "Ledger"]

LEDGER = "spark_channel_ledger"
PUBLISHED = -1
"""`task` of the row that says: the job is published."""
PREPARED = -2
"""`task` of the row that says: a `commit=task` job has run its preSql, and emptied or created its table."""
_NO_BATCH = -1

_CREATE = f"""
CREATE TABLE IF NOT EXISTS main.{LEDGER} (
  job TEXT NOT NULL, batch INTEGER NOT NULL, task INTEGER NOT NULL, attempt INTEGER NOT NULL,
  table_name TEXT NOT NULL, txn_app_id TEXT, txn_version INTEGER,
  row_count INTEGER NOT NULL, byte_count INTEGER NOT NULL, published_at TEXT NOT NULL,
  PRIMARY KEY (job, batch, task)) WITHOUT ROWID
"""
_INSERT = (
    f"INSERT INTO main.{LEDGER} (job, batch, task, attempt, table_name, txn_app_id, txn_version, row_count, "  # noqa: S608 - a constant's name
    "byte_count, published_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_ENTRY = (
    f"SELECT attempt, row_count, byte_count, published_at FROM main.{LEDGER} "  # noqa: S608
    "WHERE job = ? AND batch = ? AND task = ?"
)
_TASKS = f"SELECT task FROM main.{LEDGER} WHERE job = ? AND batch = ? AND task >= 0"  # noqa: S608
_TXN = (
    f"SELECT published_at FROM main.{LEDGER} WHERE task = -1 AND table_name = ? AND txn_app_id = ? "  # noqa: S608
    "AND txn_version = ?"
)
_HALF_DONE = (
    f"SELECT job, count(*), sum(row_count) FROM main.{LEDGER} WHERE task >= 0 AND table_name = ? "  # noqa: S608
    "AND txn_app_id = ? AND txn_version = ? AND NOT (job = ? AND batch = ?) GROUP BY job LIMIT 1"
)
_PRUNE = (
    f"DELETE FROM main.{LEDGER} WHERE txn_app_id IS NULL AND published_at < "  # noqa: S608
    "strftime('%Y-%m-%dT%H:%M:%SZ', 'now', '-30 days')"
)


@dataclass(frozen=True, slots=True)
class Entry:
    """What the ledger holds about one task, or about the job."""

    attempt: int
    rows: int
    nbytes: int
    published_at: str


class Ledger:
    """The ledger as one write sees it; `table` is the target table's name as SQLite has it."""

    def __init__(self, session: Session, table: str) -> None:
        self._session = session
        self._table = table

    def exists(self) -> bool:
        query = "SELECT 1 FROM main.sqlite_master WHERE type = 'table' AND name = ?"
        return bool(self._session.rows(query, (LEDGER,)))

    def create(self) -> None:
        """Make the ledger when it is not there, and drop rows without a transaction pair after 30 days."""
        self._session.rows(_CREATE)
        self._session.rows(_PRUNE)

    def entry(self, plan: WritePlan, task: int) -> Entry | None:
        if not self.exists():
            return None
        rows = self._session.rows(_ENTRY, (*_key(plan.job, plan.batch), task))
        return Entry(*rows[0]) if rows else None

    def tasks(self, plan: WritePlan) -> set[int]:
        """The tasks of the job that committed."""
        if not self.exists():
            return set()
        return {int(task) for (task,) in self._session.rows(_TASKS, _key(plan.job, plan.batch))}

    def published_at(self, txn: tuple[str, int] | None) -> str | None:
        """When the pair was published to this table; None = it was not."""
        if txn is None or not self.exists():
            return None
        found = self._session.value(_TXN, (self._table, *txn))
        return None if found is None else str(found)

    def half_done(
        self, txn: tuple[str, int] | None, job: str, batch: int | None
    ) -> tuple[str, int, int] | None:
        """Another job that committed tasks of this pair and did not end: (job, tasks, rows)."""
        if txn is None or not self.exists():
            return None
        rows = self._session.rows(_HALF_DONE, (self._table, *txn, *_key(job, batch)))
        return (str(rows[0][0]), int(rows[0][1]), int(rows[0][2])) if rows else None

    def add(self, plan: WritePlan, task: int, *, attempt: int = -1, rows: int = 0, nbytes: int = 0) -> None:
        app, version = plan.txn or (None, None)
        now = utc_now().isoformat(timespec="seconds").replace("+00:00", "Z")
        values = (*_key(plan.job, plan.batch), task, attempt, self._table, app, version, rows, nbytes, now)
        self._session.rows(_INSERT, values)


def _key(job: str, batch: int | None) -> tuple[str, int]:
    return job, _NO_BATCH if batch is None else batch
