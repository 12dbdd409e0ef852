"""What makes a table of SQLite skip or replace rows of an INSERT, and report success."""

import re
from collections.abc import Callable, Sequence
from typing import Any

from spark_channel.connectors.sql.statements import quoted_text

__all__ = [
    "has_triggers",
    "insert_words",
]

Run = Callable[[str], Sequence[tuple[Any, ...]]]
_CLAUSE = re.compile(r"\bON\s+CONFLICT\s+(IGNORE|REPLACE)\b", re.IGNORECASE)


def has_triggers(run: Run, table: str) -> bool:
    """Whether a trigger, which may skip rows by RAISE(IGNORE), belongs to the table."""
    return bool(_statements(run, table, "trigger"))


def insert_words(run: Run, table: str) -> str:
    """How an INSERT begins: a conflict clause of the table, which skips or replaces rows, does not hold for it.

    Only where there is one: the words hold for the statements of triggers, too.
    """
    clause = any(_CLAUSE.search(str(create)) for (create,) in _statements(run, table, "table"))
    return "INSERT OR ABORT" if clause else "INSERT"


def _statements(run: Run, table: str, kind: str) -> Sequence[tuple[Any, ...]]:
    """The statements that made the table, or its triggers."""
    name = quoted_text(table)  # sqlglot's generator takes a tenth of a second to load
    return run(
        f"SELECT sql FROM main.sqlite_master WHERE type = '{kind}' AND lower(tbl_name) = lower({name})"  # noqa: S608 - texts are quoted
    )
