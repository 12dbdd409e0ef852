"""The variables of a session: those that this connector sets whatever the server's are, and the user's own."""

import re
from collections.abc import Mapping

from spark_channel.connectors.base.types import sqlglot, tokens
from spark_channel.errors import OptionError

__all__ = [
    "ALL_ROWS",
    "LEAST",
    "MODE",
    "SETTINGS",
    "own_mode",
    "session_variables",
    "settings_to_change",
]

ALL_ROWS = "SET SESSION sql_select_limit = 9223372036854775807"
"""The first statement of a session: the limit cuts the answers of SHOW, too
(findings/mariadb-select-limit-cuts-show.sh). Some servers read more as a negative.
"""
SETTINGS: Mapping[str, str] = {
    "sql_auto_is_null": "OFF",
    "sql_safe_updates": "OFF",
    "sql_quote_show_create": "ON",
    "sql_notes": "ON",
    "note_verbosity": "basic",
    "max_recursive_iterations": "4294967295",
    "foreign_key_checks": "ON",
    "unique_checks": "ON",
    "check_constraint_checks": "ON",
    "completion_type": "NO_CHAIN",
    "system_versioning_asof": "DEFAULT",
    "wsrep_dirty_reads": "OFF",
    "tx_isolation": "REPEATABLE-READ",
    "transaction_isolation": "REPEATABLE-READ",
    "information_schema_stats_expiry": "0",
}
"""What changes the rows that a read returns or a write stores, as a server shows it. Not every server has each.

The last one: MySQL's catalog shows the sizes of tables as they were up to a day ago."""
LEAST: Mapping[str, int] = {
    "group_concat_max_len": 1 << 20,
    "max_sort_length": 1024,
    "max_error_count": 1024,
    "net_read_timeout": 30,
    "net_write_timeout": 60,
    "wait_timeout": 600,
}
"""What may be larger, and is not left smaller: values are cut below, or a session ends that only waits for a limit."""
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


def settings_to_change(server_settings: Mapping[str, str]) -> str:
    """The assignments, as SET SESSION takes them, of those of `SETTINGS` and `LEAST` that a server shows with other
    values.
    """
    changed = {
        name: value if value == "DEFAULT" or value.isdigit() else repr(value)
        for name, value in SETTINGS.items()
        if name in server_settings and server_settings[name].upper() != value.upper()
    }
    changed |= {
        name: str(least)
        for name, least in LEAST.items()
        if name in server_settings and int(server_settings[name]) < least
    }
    return ", ".join(f"{name} = {value}" for name, value in changed.items())


def session_variables(text: str) -> str:
    """The assignments of `sessionVariables`, as SET SESSION takes them. Connector/J takes `;` between them, too.

    Raises:
        OptionError: no assignments.
    """
    takes = "name=value pairs with commas between, such as sql_mode='ANSI',time_zone='+08:00'"
    try:
        token_list = sqlglot.tokenize(text, read="mysql")
    except sqlglot.errors.SqlglotError:
        token_list = []
    parts, begin, depth = [], 0, 0
    for token in token_list:
        depth += {tokens.TokenType.L_PAREN: 1, tokens.TokenType.R_PAREN: -1}.get(
            token.token_type, 0
        )
        if depth == 0 and token.token_type in (tokens.TokenType.COMMA, tokens.TokenType.SEMICOLON):
            parts.append(text[begin : token.start].strip())
            begin = token.end + 1
    parts.append(text[begin:].strip())
    if not all(re.match(r"(@{0,2}[\w.]+)\s*:?=\s*\S", part) for part in parts):
        raise OptionError(
            f"option 'sessionVariables' got {text!r}; it takes {takes}",
            option="sessionVariables",
            got=text,
            takes=takes,
        )
    return ", ".join(part.removeprefix("@@session.").removeprefix("@@") for part in parts)
