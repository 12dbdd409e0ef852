"""The ledger of a database: a table that remembers what was published, so that nothing is published twice.

A row per task that committed (`commit=task`), and two kinds of rows about a whole job, told apart by `task`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from spark_channel.clock import utc_now
from spark_channel.connectors.contracts import Receipt, WriteContext, WritePlan
from spark_channel.connectors.sql.kept import KeptPlans
from spark_channel.connectors.sql.marks import marked

__all__ = ["LEDGER", "PREPARED", "PUBLISHED", "Entry", "LedgerDialect", "RowSession", "TableLedger"]

LEDGER = "spark_channel_ledger"
PUBLISHED = -1
"""`task` of the row that says: the job is published."""
PREPARED = -2
"""`task` of the row that says: a `commit=task` job has run its preSql, and emptied or created its table."""
_NO_BATCH = -1
_COLUMNS = (
    "job", "batch", "task", "attempt", "table_name", "txn_app_id", "txn_version", "row_count", "byte_count",
    "published_at",
)  # fmt: skip


class RowSession(Protocol):
    """A connection that runs one statement."""

    def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """All rows of a small result; [] for a statement without one."""
        ...


@dataclass(frozen=True, slots=True)
class LedgerDialect:
    """How a database says it. `table` is the ledger's name as it stands in a statement, quoted.

    `create` are the statements that make the table when it is not there, `exists` one that gives a row when
    it is, `prune` drops rows without a transaction pair after 30 days; `mark` writes the n-th parameter,
    counted from 1. `kept` and `kept_exists` are `table` and `exists` of the plans that are kept beside it.
    """

    table: str
    create: tuple[str, ...]
    exists: str
    prune: str
    kept: str
    kept_exists: str
    mark: Callable[[int], str] = lambda _number: "?"


@dataclass(frozen=True, slots=True)
class Entry:
    """What the ledger holds about one task, or about the job."""

    attempt: int
    rows: int
    nbytes: int
    published_at: str


class TableLedger:
    """The ledger as one write sees it; `target` is the target table's name as the database has it."""

    def __init__(self, session: RowSession, target: str, dialect: LedgerDialect) -> None:
        self._session = session
        self._target = target
        self._dialect = dialect
        self._there = False

    @property
    def plans(self) -> KeptPlans:
        dialect, ask = self._dialect, self._session.rows
        return KeptPlans(dialect.kept, self._run, lambda: bool(ask(dialect.kept_exists)))

    def exists(self) -> bool:
        self._there = self._there or bool(self._session.rows(self._dialect.exists))
        return self._there

    def create(self) -> None:
        """Make the ledger when it is not there."""
        if not self.exists():
            for statement in self._dialect.create:
                self._session.rows(statement)

    def prune(self) -> None:
        """Drop rows without a transaction pair after 30 days."""
        self._session.rows(self._dialect.prune)

    def entry(self, plan: WritePlan, task: int) -> Entry | None:
        rows = self._select(
            "attempt, row_count, byte_count, published_at",
            "job = ? AND batch = ? AND task = ?",
            (*_key(plan.job, plan.batch), task),
        )
        return Entry(int(rows[0][0]), int(rows[0][1]), int(rows[0][2]), str(rows[0][3])) if rows else None

    def tasks(self, plan: WritePlan) -> set[int]:
        """The tasks of the job that committed."""
        rows = self._select("task", "job = ? AND batch = ? AND task >= 0", _key(plan.job, plan.batch))
        return {int(task) for (task,) in rows}

    def receipts(self, job: str) -> list[Receipt]:
        """Of each task of a transfer's job that committed."""
        rows = self._select(
            "task, attempt, row_count, byte_count",
            "job = ? AND batch = ? AND task >= 0 ORDER BY task",
            _key(job, None),
        )
        return [
            Receipt(int(task), int(attempt), int(count), int(nbytes)) for task, attempt, count, nbytes in rows
        ]

    def published_at(self, write: WriteContext | WritePlan) -> str | None:
        """When the job, or another of its transaction pair, was published to this table; None = it was not."""
        own, key = "job = ? AND batch = ?", _key(write.job, write.batch)
        if write.txn is None:
            rows = self._select(
                "published_at", f"task = -1 AND table_name = ? AND {own}", (self._target, *key)
            )
        else:
            rows = self._select(
                "published_at",
                f"task = -1 AND table_name = ? AND ({own} OR (txn_app_id = ? AND txn_version = ?))",
                (self._target, *key, *write.txn),
            )
        return str(rows[0][0]) if rows else None

    def half_done(
        self, txn: tuple[str, int] | None, job: str, batch: int | None
    ) -> tuple[str, int, int] | None:
        """Another job that committed tasks of this pair and did not end: (job, tasks, rows)."""
        if txn is None:
            return None
        rows = self._select(
            "job, count(*), sum(row_count)",
            "task >= 0 AND table_name = ? AND txn_app_id = ? AND txn_version = ? "
            "AND NOT (job = ? AND batch = ?) GROUP BY job ORDER BY job",
            (self._target, *txn, *_key(job, batch)),
        )
        return (str(rows[0][0]), int(rows[0][1]), int(rows[0][2])) if rows else None

    def add(self, plan: WritePlan, task: int, *, attempt: int = -1, rows: int = 0, nbytes: int = 0) -> None:
        app, version = plan.txn or (None, None)
        now = utc_now().isoformat(timespec="seconds").replace("+00:00", "Z")
        values = (*_key(plan.job, plan.batch), task, attempt, self._target, app, version, rows, nbytes, now)
        marks = ", ".join("?" for _ in values)
        self._run(f"INSERT INTO {self._dialect.table} ({', '.join(_COLUMNS)}) VALUES ({marks})", values)  # noqa: S608

    def _select(self, what: str, where: str, parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
        if not self.exists():
            return []
        return self._run(f"SELECT {what} FROM {self._dialect.table} WHERE {where}", parameters)  # noqa: S608 - constants

    def _run(self, sql: str, parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
        return self._session.rows(marked(sql, self._dialect.mark), parameters)


def _key(job: str, batch: int | None) -> tuple[str, int]:
    return job, _NO_BATCH if batch is None else batch
