"""SQL that users give to be run as it stands (`preSql`, `postSql`), taken apart into statements."""

import re
import sqlite3
from collections.abc import Iterable, Iterator

from spark_channel.errors import OptionError

__all__ = ["statements_of"]

_TRANSACTION = re.compile(
    r"(?:\s|--[^\n]*(?:\n|$)|/\*.*?\*/)*"
    r"(BEGIN|COMMIT|END|ROLLBACK|SAVEPOINT|RELEASE|ATTACH|DETACH|VACUUM)\b",
    re.IGNORECASE | re.DOTALL,
)
_EMPTY = re.compile(r"(?:\s|;|--[^\n]*(?:\n|$)|/\*.*?\*/)*", re.DOTALL)


def statements_of(texts: Iterable[str], option: str) -> list[str]:
    """The single statements of `texts`, in order; triggers with their semicolons stay whole.

    Raises:
        OptionError: a statement that would leave the transaction in which they run.
    """
    found = []
    for text in texts:
        for statement in _split(text):
            if match := _TRANSACTION.match(statement):
                raise OptionError(
                    f"option {option!r} holds {match.group(1).upper()}: its statements run inside the "
                    "transaction "
                    "that writes the rows, and may not end it or leave it",
                    option=option,
                    got=statement.strip(),
                )
            found.append(statement.strip())
    return found


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
