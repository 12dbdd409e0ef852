"""SQL of users that runs unchanged (`preSql`, `sessionInitStatement`), split into statements."""

import re
from collections.abc import Collection, Iterable
from typing import Any, Protocol

from spark_channel.connectors.base.types import sqlglot, tokens
from spark_channel.errors import OptionError, TargetError

__all__ = [
    "BY_ITSELF",
    "IN_SESSION",
    "IN_TRANSACTION",
    "TRANSACTION_WORDS",
    "run_in_transaction",
    "session_script",
    "split_script",
]


TRANSACTION_WORDS = frozenset(
    {
        "ABORT",
        "BEGIN",
        "COMMIT",
        "END",
        "PREPARE TRANSACTION",
        "RELEASE",
        "ROLLBACK",
        "SAVEPOINT",
        "START",
        "XA",
    }
)
"""First words of statements that leave the transaction in which they run."""
_SPACE = r"(?:\s|/\*.*?\*/|--[^\n]*\n)"
_LEAVES = re.compile(rf"{_SPACE}*PREPARE{_SPACE}+TRANSACTION\b", re.IGNORECASE | re.DOTALL)
"""PREPARE alone keeps a statement, and leaves nothing."""
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
        OptionError: text that cannot be parsed, or a statement that begins with a `forbidden` word
            and so would leave the transaction in which it runs; `why` ends the message.
    """
    statements = []
    for text in texts:
        for statement, word in _split(text, option, dialect):
            if _LEAVES.match(statement):
                word = "PREPARE TRANSACTION"
            if word in forbidden:
                raise OptionError(
                    f"option {option!r} holds {word}: {why}", option=option, got=statement
                )
            statements.append(statement)
    return statements


class _Session(Protocol):
    def execute(self, sql: str) -> None: ...


def run_in_transaction(
    session: _Session, statements: Iterable[str], option: str, *, written: bool
) -> None:
    """Run the user's `statements`, each under a savepoint, which goes with the transaction that one of them ends.

    A procedure may commit inside, or hold DDL that does: its first word does not show it. `written`: the rows and the
    note that they are published have been written in this transaction.

    Raises:
        TargetError: the transaction was ended; the statements behind did not run.
    """
    for statement in statements:
        session.execute("SAVEPOINT spark_channel_script")
        session.execute(statement)
        try:
            session.execute("RELEASE SAVEPOINT spark_channel_script")
        except TargetError as error:
            so_far = (
                "the rows are in the table, the write counts as published, and what follows did not run"
                if written
                else "no row was written, and what ran so far stays"
            )
            raise TargetError(
                f"option {option!r}: {statement[:200]!r} ended the transaction that writes the rows (a COMMIT or DDL "
                f"in a procedure): {so_far}. Take that out of the procedure, or run it before the job, as option "
                "'startSql' of a transfer does"
            ) from error


def session_script(options: Any, dialect: str) -> list[str]:
    """The statements of the options' `sessionInitStatement`, for a session that has just been opened.

    A session runs them before its own settings, which readers and writers rely on (its zone, its mode).

    Raises:
        OptionError: text that cannot be parsed, or a statement that begins a transaction.
    """
    texts: Collection[str] = options.session_init_statement or ()
    return split_script(texts, "sessionInitStatement", dialect, why=IN_SESSION)


def _split(text: str, option: str, dialect: str) -> list[tuple[str, str]]:
    try:
        read = sqlglot.tokenize(text, read=dialect)
    except sqlglot.errors.SqlglotError as error:
        raise OptionError(
            f"option {option!r} holds SQL that cannot be parsed: {str(error).splitlines()[0]}",
            option=option,
        ) from None
    statements, begin, word = [], 0, ""
    for token in read:
        if token.token_type == tokens.TokenType.SEMICOLON:
            if word:
                statements.append((text[begin : token.start].strip(), word))
            begin, word = token.end + 1, ""
        elif not word:
            word = token.text.upper().split()[0] if token.text.split() else token.text
    if word:
        statements.append((text[begin:].strip(), word))
    return statements
