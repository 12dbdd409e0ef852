"""Settings of PostgreSQL's transactions, and one under which its driver fails; how a connection pooler is recognised,
and what it cannot do.

Used by the connector `postgresql`, and by `adbc` with PostgreSQL's driver.
"""

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from spark_channel.connectors.sql.statements import quoted_text

__all__ = [
    "QUOTES",
    "SETTINGS",
    "escaped_text",
    "for_transaction",
    "is_pooler",
    "joined",
    "refused_by_pooler",
    "refused_by_quotes",
    "set_config",
]

SETTINGS: Mapping[str, str] = {
    "client_encoding": "UTF8",
    "DateStyle": "ISO",
    "IntervalStyle": "postgres",
    "extra_float_digits": "1",
    "bytea_output": "hex",
    "standard_conforming_strings": "on",
    "array_nulls": "on",
    "xmloption": "content",
    "gin_fuzzy_search_limit": "0",
}
"""What the text of a value depends on, as rows are read and as conditions and keys are sent; and, last, what leaves
rows out of a result. docs/postgresql.md lists them.
"""

QUOTES = "SELECT 1 WHERE CAST(current_setting('quote_all_identifiers') AS boolean)"
"""A query with a row where the driver of ADBC knows no type, as it connects: it knows types by the names of their
functions. It then returns the bytes of each value, also of this row.
"""

_SPACE = r"(?:\s|/\*.*?\*/|--[^\n]*\n)"
_SET = re.compile(
    rf"{_SPACE}*SET{_SPACE}+(?:LOCAL{_SPACE}+|SESSION{_SPACE}+(?!AUTHORIZATION\b|CHARACTERISTICS\b))?(?P<rest>.*)",
    re.IGNORECASE | re.DOTALL,
)
_OF_A_SESSION = re.compile(
    r"(?:SESSION\s+CHARACTERISTICS|TRANSACTION|CONSTRAINTS|default_transaction_\w+|idle_session_timeout)\b",
    re.IGNORECASE,
)
"""What SET LOCAL does nothing with, or another thing than SET."""


def is_pooler(conninfo: str, **login: Any) -> bool:
    """Whether the protocol names another process than the one that runs statements. It opens its own connection.

    Raises:
        OSError: it cannot connect.
    """
    import psycopg

    try:
        with psycopg.connect(
            conninfo, autocommit=True, prepare_threshold=None, **login
        ) as connection:
            found = connection.execute("SELECT pg_backend_pid()").fetchone()
            return found != (connection.info.backend_pid,)
    except psycopg.Error as error:
        raise OSError(str(error)) from error


def joined(statements: Iterable[str]) -> str:
    """Statements as one script. A statement of a user may end with a comment."""
    return "\n;\n".join(statements)


def set_config(values: Mapping[str, str], *, local: bool) -> str:
    """The statement that sets `values`; `local`: until the transaction ends."""
    calls = [_set_call(name, value, local=local) for name, value in values.items()]
    return f"SELECT {', '.join(calls)}"


@lru_cache(maxsize=256)  # each table of a run begins a dozen transactions with the same ones
def _set_call(name: str, value: str, *, local: bool) -> str:
    return f"SET_CONFIG({quoted_text(name)}, {escaped_text(value)}, {'TRUE' if local else 'FALSE'})"


def escaped_text(value: str) -> str:
    """A text in a statement of PostgreSQL, also where `standard_conforming_strings` is off: a statement that is sent
    with the ones that set it is parsed before these run.
    """
    text = quoted_text(value)
    return text if "\\" not in value else " E" + text.replace("\\", "\\\\")


def for_transaction(statement: str) -> str | None:
    """A user's SET, for one transaction; None = another statement, or a setting that transactions do not have."""
    found = _SET.fullmatch(statement)
    if found is None or _OF_A_SESSION.match(found["rest"]):
        return None
    return f"SET LOCAL {found['rest']}"


def refused_by_quotes(place: str, option: str) -> str:
    """What is said of a server that `QUOTES` has a row of; `option` names it."""
    return (
        f"{place}: the setting quote_all_identifiers is on, under which the driver returns the bytes of each value "
        f"instead of the value. Add options=-c%20quote_all_identifiers%3Doff to {option!r}, or run ALTER ROLE ... SET "
        "quote_all_identifiers = off"
    )


def refused_by_pooler(place: str, statement: str, option: str) -> str:
    """What is said of a statement of `sessionInitStatement` that only a session can keep; `option` names the server."""
    return (
        f"{place} is a connection pooler (such as PgBouncer), and option 'sessionInitStatement' holds "
        f"{statement[:200]!r}, whose effect would stay in a session that other applications get next. Use SET for a "
        f"setting, which then holds for a transaction, or ALTER ROLE ... SET, or name the server itself in {option!r}"
    )
