"""SQL of users that runs unchanged (`preSql`, `sessionInitStatement`), split into statements."""

import re
import sqlite3
from collections.abc import Iterable, Iterator

from spark_channel.connectors.sql.script import IN_SESSION, IN_TRANSACTION
from spark_channel.errors import OptionError

__all__ = ["session_statements", "statements_of"]

_TRANSACTION = re.compile(
    r"(?:\s|--[^\n]*(?:\n|$)|/\*.*?\*/)*"
    r"(BEGIN|COMMIT|END|ROLLBACK|SAVEPOINT|RELEASE|ATTACH|DETACH|VACUUM)\b",
    re.IGNORECASE | re.DOTALL,
)
_OUTSIDE = frozenset({"ATTACH", "DETACH", "VACUUM"})
"""Those that run outside a transaction alone, as a session's first statements do."""
_EMPTY = re.compile(r"(?:\s|;|--[^\n]*(?:\n|$)|/\*.*?\*/)*", re.DOTALL)


def statements_of(texts: Iterable[str], option: str) -> list[str]:
    """The single statements of `texts`, in order; triggers with their semicolons stay whole.

    Raises:
        OptionError: a statement that would leave the transaction in which they run.
    """
    return [_allowed(each, option, frozenset(), IN_TRANSACTION) for text in texts for each in _split(text)]


def session_statements(texts: Iterable[str]) -> list[str]:
    """The single statements of `sessionInitStatement`; it may attach files.

    Raises:
        OptionError: a statement that begins or ends a transaction.
    """
    option = "sessionInitStatement"
    return [_allowed(each, option, _OUTSIDE, IN_SESSION) for text in texts for each in _split(text)]


def _allowed(statement: str, option: str, but: frozenset[str], why: str) -> str:
    match = _TRANSACTION.match(statement)
    if match and match.group(1).upper() not in but:
        raise OptionError(
            f"option {option!r} holds {match.group(1).upper()}: {why}", option=option, got=statement.strip()
        )
    return statement.strip()


def _split(text: str) -> Iterator[str]:
    begin = 0
    for place, letter in enumerate(text):
        # complete_statement knows quotes, comments and triggers; it opens no file.
        if letter == ";" and sqlite3.complete_statement(text[begin : place + 1]):
            if not _EMPTY.fullmatch(text, begin, place + 1):
                yield text[begin : place + 1]
            begin = place + 1
    if not _EMPTY.fullmatch(text, begin):
        yield text[begin:]
