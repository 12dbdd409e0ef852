"""SQL of users that runs unchanged (`preSql`, `sessionInitStatement`), split into statements."""

from collections.abc import Collection, Iterable
from typing import Any

import sqlglot
from sqlglot.tokens import TokenType  # type: ignore[attr-defined]

from spark_channel.errors import OptionError

__all__ = ["BY_ITSELF", "IN_SESSION", "IN_TRANSACTION", "TRANSACTION_WORDS", "session_script", "split_script"]

TRANSACTION_WORDS = frozenset(
    {"ABORT", "BEGIN", "COMMIT", "END", "RELEASE", "ROLLBACK", "SAVEPOINT", "START", "XA"}
)
"""First words of statements that leave the transaction in which they run."""
IN_TRANSACTION = (
    "its statements run inside the transaction that writes the rows, and may not end it or leave it"
)
BY_ITSELF = "each of its statements runs by itself, and is committed by itself"
IN_SESSION = "its statements make a session ready, and may not begin a transaction"


def split_script(
    texts: Iterable[str],
    option: str,
    dialect: str,
    forbidden: Collection[str] = TRANSACTION_WORDS,
    *,
    why: str = IN_TRANSACTION,
) -> list[str]:
    """The single statements of `texts`, in order, as they are written; quotes and comments are known.

    Raises:
        OptionError: text that cannot be taken apart, or a statement that begins with a `forbidden` word
            and so would leave the transaction in which it runs; `why` ends the message.
    """
    found = []
    for text in texts:
        for statement, word in _split(text, option, dialect):
            if word in forbidden:
                raise OptionError(f"option {option!r} holds {word}: {why}", option=option, got=statement)
            found.append(statement)
    return found


def session_script(options: Any, dialect: str) -> list[str]:
    """The statements of the options' `sessionInitStatement`, for a session that has just been opened.

    A session runs them before its own settings, which readers and writers rely on (its zone, its mode).

    Raises:
        OptionError: text that cannot be taken apart, or a statement that begins a transaction.
    """
    texts: Collection[str] = options.session_init_statement or ()
    return split_script(texts, "sessionInitStatement", dialect, why=IN_SESSION)


def _split(text: str, option: str, dialect: str) -> list[tuple[str, str]]:
    try:
        tokens = sqlglot.tokenize(text, read=dialect)
    except sqlglot.errors.SqlglotError as error:
        raise OptionError(
            f"option {option!r} holds SQL that cannot be taken apart: {str(error).splitlines()[0]}",
            option=option,
        ) from None
    found, begin, word = [], 0, ""
    for token in tokens:
        if token.token_type == TokenType.SEMICOLON:
            if word:
                found.append((text[begin : token.start].strip(), word))
            begin, word = token.end + 1, ""
        elif not word:
            word = token.text.upper().split()[0] if token.text.split() else token.text
    if word:
        found.append((text[begin:].strip(), word))
    return found
