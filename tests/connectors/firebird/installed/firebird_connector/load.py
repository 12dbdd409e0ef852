"""Rows into a table: many in one statement, or from staging as `writeMode` says."""

from collections.abc import Sequence
from typing import Any

from firebird_connector.session import FirebirdSession
from firebird_connector.target import DIALECT, FirebirdPlan

from spark_channel.connectors.sql import Merge
from spark_channel.connectors.sql.merge import PLACE

__all__ = ["bring", "load"]

_MOST_ROWS, _MOST_LETTERS, _MOST_BYTES = 50, 40_000, 40_000
"""Of one statement: an answer of the server for 50 rows, within its 64 KiB of text and of parameters."""


def load(
    session: FirebirdSession, table: str, names: Sequence[str], rows: Sequence[Sequence[Any]], width: int
) -> None:
    """Insert `rows`, each of at most about `width` bytes beside its BLOBs."""
    one = f"INSERT INTO {table} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"  # noqa: S608 - quoted
    many = max(1, min(_MOST_ROWS, _MOST_LETTERS // (2 * len(one) + 40 * len(names)), _MOST_BYTES // width))
    whole = len(rows) // many * many if many > 1 else 0
    if whole:
        kinds = [f"TYPE OF COLUMN {table}.{name} = ?" for name in names]
        declared = ", ".join(f"P{n}_{i} {kind}" for n in range(many) for i, kind in enumerate(kinds))
        body = "".join(
            f"INSERT INTO {table} ({', '.join(names)}) VALUES ({', '.join(f':P{n}_{i}' for i in range(len(names)))});"  # noqa: S608
            for n in range(many)
        )
        blocks = [[v for row in rows[at : at + many] for v in row] for at in range(0, whole, many)]
        session.load(f"EXECUTE BLOCK ({declared}) AS BEGIN {body} END", blocks)
    if whole < len(rows):
        session.load(one, rows[whole:])


def bring(session: FirebirdSession, plan: FirebirdPlan) -> None:
    """All rows of the staging table that this transaction sees, into the table."""
    stage, names = DIALECT.quoted(plan.stage), ", ".join(plan.names)
    if plan.mode == "insert":
        session.rows(f"INSERT INTO {plan.table} ({names}) SELECT {names} FROM {stage} ORDER BY {PLACE}")  # noqa: S608
        return
    columns = [column.name for _, column in plan.columns]
    _Merge(session.rows, plan.table, stage, columns, plan.key, plan.mode, "").bring()


class _Merge(Merge):
    """With MERGE; Firebird compares no rows of several values."""

    def quoted(self, name: str) -> str:
        return DIALECT.quoted(name)

    def limited(self, query: str) -> str:
        return f"{query} FETCH FIRST ROW ONLY"

    def _delete(self) -> None:
        gone = f"SELECT 1 FROM {self._rows} s WHERE {self._same} AND {self.gone('s.')}"  # noqa: S608
        self._run(f"DELETE FROM {self._target} t WHERE EXISTS ({gone})")  # noqa: S608

    def _write(self, *, update: bool) -> None:
        sets = ", ".join(f"{self.quoted(each)} = s.{self.quoted(each)}" for each in self.others)
        self._run(
            f"MERGE INTO {self._target} t USING {self._rows} s ON {self._same} "
            f"{f'WHEN MATCHED THEN UPDATE SET {sets} ' if update and sets else ''}"
            f"WHEN NOT MATCHED THEN INSERT ({self.listed(self._names)}) VALUES ({self.listed(self._names, 's.')})"
        )

    @property
    def _same(self) -> str:
        return " AND ".join(f"t.{self.quoted(each)} = s.{self.quoted(each)}" for each in self._key)
