"""What several tables of a run share: one reason, and one statement for all of them."""

import re
from collections.abc import Iterable, Mapping, Sequence

from spark_channel.plain_text import log_of
from spark_channel.replication.report import TableOutcome
from spark_channel.replication.table_run import why_of

__all__ = ["every_reason", "park", "shared_reasons"]

_log = log_of(__name__)


def shared_reasons(reasons: Iterable[tuple[str, str]]) -> list[tuple[tuple[str, ...], str]]:
    """Reasons of tables, each once with its tables. Where only the table's name differs, the text has all names.

    So `CREATE PUBLICATION p FOR TABLE shop.a` of one table and of another is one statement that can be run.
    """
    same: dict[str, list[str]] = {}
    for table, reason in reasons:
        same.setdefault(reason, []).append(table)
    alike: dict[str, list[tuple[str, str]]] = {}
    for reason, tables in same.items():
        match = _named(tables[0]).search(reason) if len(tables) == 1 else None
        text = reason if match is None else reason.replace(match[0], "\0")
        written = "" if match is None else match[0]
        alike.setdefault(text, []).extend((table, written) for table in tables)
    return [
        (
            tuple(table for table, _ in every),
            text.replace("\0", ", ".join(written for _, written in every)),
        )
        for text, every in alike.items()
    ]


def _named(table: str) -> re.Pattern[str]:
    """The table's name, or the same with quotes around what SQL takes quoted."""
    parts = (rf'(?:{re.escape(part)}|"{re.escape(part)}")' for part in table.split("."))
    return re.compile(rf"(?<![\w.\"]){'[.]'.join(parts)}(?![\w\"]|\.[\w\"])")


def park(errors: Mapping[str, Exception], outcomes: Mapping[str, TableOutcome]) -> None:
    """Park tables for this run, by their streams: those of one reason with one line."""
    for streams, reason in shared_reasons((name, why_of(error)) for name, error in errors.items()):
        verb = "is" if len(streams) == 1 else "are"
        _log.warning("%s %s parked: %s", ", ".join(streams), verb, reason)
        for name in streams:
            outcome = outcomes[name]
            outcome.state, outcome.why = "parked", reason
            outcome.error_type = type(errors[name]).__name__


def every_reason(reasons: Mapping[str, str], verdict: str = "") -> Sequence[str]:
    """The lines that say why, each with its tables and the `verdict`. A table may have a reason in each line."""
    lines = (
        (name, line) for name, reason in reasons.items() for line in reason.split("\n") if line
    )
    return [f"{', '.join(tables)}: {verdict}{reason}" for tables, reason in shared_reasons(lines)]
