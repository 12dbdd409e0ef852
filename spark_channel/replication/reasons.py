"""What several tables of a run share: one reason, and one statement for all of them."""

import re
from collections.abc import Mapping, Sequence

from spark_channel.plain_text import log_of
from spark_channel.replication.report import TableOutcome
from spark_channel.replication.table_run import why_of

__all__ = ["every_reason", "park", "shared_reasons"]

_log = log_of(__name__)


def shared_reasons(reasons: Mapping[str, str]) -> list[tuple[tuple[str, ...], str]]:
    """Reasons by table, each once with its tables. Where only the table's name differs, the text has all names.

    So `CREATE PUBLICATION p FOR TABLE shop.a` of one table and of another is one statement that can be run.
    """
    same: dict[str, list[str]] = {}
    for table, why in reasons.items():
        same.setdefault(why, []).append(table)
    alike: dict[str, list[str]] = {}
    for why, tables in same.items():
        text = _named(tables[0]).sub("\0", why) if len(tables) == 1 else why
        alike.setdefault(text, []).extend(tables)
    return [
        (tuple(tables), text.replace("\0", ", ".join(tables))) for text, tables in alike.items()
    ]


def _named(table: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![\w.]){re.escape(table)}(?![\w]|\.\w)")


def park(errors: Mapping[str, Exception], outcomes: Mapping[str, TableOutcome]) -> None:
    """Park tables for this run, by their streams: those of one reason with one line."""
    for streams, why in shared_reasons({name: why_of(error) for name, error in errors.items()}):
        verb = "is" if len(streams) == 1 else "are"
        _log.warning("%s %s parked: %s", ", ".join(streams), verb, why)
        for name in streams:
            outcome = outcomes[name]
            outcome.state, outcome.why = "parked", why
            outcome.error_type = type(errors[name]).__name__


def every_reason(reasons: Mapping[str, str]) -> Sequence[str]:
    """The lines that say why, each with its tables."""
    return [f"{', '.join(tables)}: {why}" for tables, why in shared_reasons(reasons)]
