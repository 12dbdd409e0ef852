"""The ledger: a table in the target's schema that remembers what was published, so that nothing is twice.

A row per task that committed (`commit=task`), and two kinds of rows about a whole job, told apart by `task`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from spark_channel.connectors.contracts import Receipt, WriteContext, WritePlan
from spark_channel.connectors.sql import statements
from spark_channel.connectors.sql.kept import KEPT, KeptPlans
from spark_channel.connectors.sql.marks import marked
from spark_channel.connectors.sql.postgresql.session import Session, literal

__all__ = ["LEDGER", "PREPARED", "PUBLISHED", "Entry", "Ledger"]

LEDGER = "spark_channel_ledger"
PUBLISHED = -1
"""`task` of the row that says: the job is published."""
PREPARED = -2
"""`task` of the row that says: a `commit=task` job has run its preSql, and emptied or created its table."""
_NO_BATCH = -1

_CREATE = """
CREATE TABLE IF NOT EXISTS {ledger} (
  job text NOT NULL, batch bigint NOT NULL, task integer NOT NULL, attempt bigint NOT NULL,
  table_name text NOT NULL, txn_app_id text, txn_version bigint,
  row_count bigint NOT NULL, byte_count bigint NOT NULL, published_at timestamptz NOT NULL,
  PRIMARY KEY (job, batch, task))
"""
_INSERT = """
INSERT INTO {ledger} (job, batch, task, attempt, table_name, txn_app_id, txn_version, row_count, byte_count,
  published_at) VALUES ({values}, clock_timestamp()) ON CONFLICT DO NOTHING RETURNING task
"""
_AT = "to_char(published_at AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"')"


@dataclass(frozen=True, slots=True)
class Entry:
    """What the ledger holds about one task, or about the job."""

    attempt: int
    rows: int
    nbytes: int
    published_at: str


class Ledger:
    """The ledger as one write sees it; `schema` and `table` are the target's."""

    def __init__(self, session: Session, schema: str, table: str) -> None:
        self._session = session
        self._schema, self._table = schema, table
        self._name = statements.named_table((schema, LEDGER)).expression.sql("postgres")

    def exists(self) -> bool:
        return self._session.value(f"SELECT to_regclass({_quoted(self._name)})::text") is not None

    def create(self) -> None:
        """Make the ledger when it is not there, and drop rows without a transaction pair after 30 days."""
        if not self.exists():
            self._session.rows(_turn(self._name))
            self._session.rows(_CREATE.format(ledger=self._name))
        self._session.rows(
            f"DELETE FROM {self._name} WHERE txn_app_id IS NULL "  # noqa: S608 - a quoted identifier
            "AND published_at < clock_timestamp() - interval '30 days'"
        )

    def entry(self, plan: WritePlan, task: int) -> Entry | None:
        rows = self._ask(
            f"attempt, row_count, byte_count, {_AT}", f"{_job(plan.job, plan.batch)} AND task = {task}"
        )
        return Entry(*rows[0]) if rows else None

    def tasks(self, plan: WritePlan) -> set[int]:
        """The tasks of the job that committed."""
        return {int(task) for (task,) in self._ask("task", f"{_job(plan.job, plan.batch)} AND task >= 0")}

    @property
    def plans(self) -> KeptPlans:
        name = statements.named_table((self._schema, KEPT)).expression.sql("postgres")

        def exists() -> bool:
            return self._session.value(f"SELECT to_regclass({_quoted(name)})::text") is not None

        return KeptPlans(name, self._run, exists, (_turn(name),))

    def receipts(self, job: str) -> list[Receipt]:
        """Of each task of a transfer's job that committed."""
        rows = self._ask(
            "task, attempt, row_count, byte_count", f"{_job(job, None)} AND task >= 0 ORDER BY task"
        )
        return [
            Receipt(int(task), int(attempt), int(count), int(nbytes)) for task, attempt, count, nbytes in rows
        ]

    def published_at(self, write: WriteContext | WritePlan) -> str | None:
        """When the job, or another of its transaction pair, was published to this table; None = it was not."""
        whose = f"table_name = {_quoted(self._table)} AND {_job(write.job, write.batch)}"
        if write.txn is not None:
            whose = f"({whose} OR {self._pair(write.txn)})"
        rows = self._ask(_AT, f"task = {PUBLISHED} AND {whose}")
        return str(rows[0][0]) if rows else None

    def half_done(
        self, txn: tuple[str, int] | None, job: str, batch: int | None
    ) -> tuple[str, int, int] | None:
        """Another job that committed tasks of this pair and did not end: (job, tasks, rows)."""
        if txn is None:
            return None
        where = f"task >= 0 AND {self._pair(txn)} AND NOT ({_job(job, batch)}) GROUP BY job LIMIT 1"
        rows = self._ask("job, count(*), sum(row_count)::bigint", where)
        return (str(rows[0][0]), int(rows[0][1]), int(rows[0][2])) if rows else None

    def add(self, plan: WritePlan, task: int, *, attempt: int = -1, rows: int = 0, nbytes: int = 0) -> bool:
        """Write the row, unless another transaction has: False, after waiting for one that is at it."""
        app, version = plan.txn or (None, None)
        batch = _NO_BATCH if plan.batch is None else plan.batch
        values = (plan.job, batch, task, attempt, self._table, app, version, rows, nbytes)
        text = ", ".join(literal(value).sql("postgres") for value in values)
        return bool(self._session.rows(_INSERT.format(ledger=self._name, values=text)))

    def _ask(self, what: str, where: str) -> list[tuple[Any, ...]]:
        if not self.exists():
            return []
        return self._session.rows(f"SELECT {what} FROM {self._name} WHERE {where}")  # noqa: S608 - quoted parts

    def _run(self, sql: str, parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
        return self._session.rows(marked(sql, lambda number: literal(parameters[number - 1]).sql("postgres")))

    def _pair(self, txn: tuple[str, int]) -> str:
        return f"table_name = {_quoted(self._table)} AND txn_app_id = {_quoted(txn[0])} AND txn_version = {int(txn[1])}"


def _job(job: str, batch: int | None) -> str:
    return f"job = {_quoted(job)} AND batch = {_NO_BATCH if batch is None else int(batch)}"


def _turn(table: str) -> str:
    """Two that make one table at once would fail with a duplicate in the catalog: they take turns."""
    return f"SELECT pg_advisory_xact_lock(hashtextextended({_quoted(table)}, 0))"


def _quoted(text: str) -> str:
    return literal(text).sql("postgres")
