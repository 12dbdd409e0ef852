"""The variables of a session: those that this connector sets whatever the server's are, and the user's own."""

import re
from collections.abc import Mapping

import sqlglot
from sqlglot.tokens import TokenType  # type: ignore[attr-defined]

from spark_channel.errors import OptionError

__all__ = ["ALL_ROWS", "MODE", "SETTINGS", "own_mode", "session_variables", "settings_to_change"]

ALL_ROWS = "SET SESSION sql_select_limit = 18446744073709551615"
"""The first statement of a session: the limit cuts the answers of SHOW, too."""
SETTINGS: Mapping[str, str] = {
    "sql_auto_is_null": "OFF",
    "sql_safe_updates": "OFF",
    "sql_quote_show_create": "ON",
    "foreign_key_checks": "ON",
    "unique_checks": "ON",
    "check_constraint_checks": "ON",
    "completion_type": "NO_CHAIN",
    "system_versioning_asof": "DEFAULT",
    "wsrep_dirty_reads": "OFF",
    "tx_isolation": "REPEATABLE-READ",
    "transaction_isolation": "REPEATABLE-READ",
}
"""What changes the rows that a read returns or a write stores, as a server shows it. Not every server has each."""
_ZERO = "NO_AUTO_VALUE_ON_ZERO"
MODE = f"STRICT_ALL_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION,{_ZERO}"
_NOT_IN_OWN_MODE = (
    "NO_BACKSLASH_ESCAPES",  # texts would end elsewhere than where they are quoted
    "EMPTY_STRING_IS_NULL",
    "PAD_CHAR_TO_FULL_LENGTH",
    "HIGH_NOT_PRECEDENCE",
)


def own_mode() -> str:
    """The session's mode, as SQL, without words that change the meaning of this connector's statements and values."""
    mode = f"CONCAT(@@sql_mode, ',{_ZERO}')"
    for word in _NOT_IN_OWN_MODE:  # by another word: an empty text may be NULL in this mode
        mode = f"REPLACE({mode}, '{word}', '{_ZERO}')"
    return mode


def settings_to_change(shown: Mapping[str, str]) -> str:
    """The assignments, as SET SESSION takes them, of those of `SETTINGS` that a server shows with other values."""
    changed = [(name, SETTINGS[name]) for name, value in shown.items() if value.upper() != SETTINGS[name]]
    return ", ".join(f"{name} = {value if value == 'DEFAULT' else repr(value)}" for name, value in changed)


def session_variables(text: str) -> str:
    """The assignments of `sessionVariables`, as SET SESSION takes them. Connector/J takes `;` between them, too.

    Raises:
        OptionError: no assignments.
    """
    takes = "name=value pairs with commas between, such as sql_mode='ANSI',time_zone='+08:00'"
    try:
        tokens = sqlglot.tokenize(text, read="mysql")
    except sqlglot.errors.SqlglotError:
        tokens = []
    parts, begin, depth = [], 0, 0
    for token in tokens:
        depth += {TokenType.L_PAREN: 1, TokenType.R_PAREN: -1}.get(token.token_type, 0)
        if depth == 0 and token.token_type in (TokenType.COMMA, TokenType.SEMICOLON):
            parts.append(text[begin : token.start].strip())
            begin = token.end + 1
    parts.append(text[begin:].strip())
    if not all(re.match(r"(@{0,2}[\w.]+)\s*:?=\s*\S", part) for part in parts):
        raise OptionError(
            f"option 'sessionVariables' got {text!r}; it takes {takes}",
            option="sessionVariables", got=text, takes=takes,
        )  # fmt: skip
    return ", ".join(part.removeprefix("@@session.").removeprefix("@@") for part in parts)
