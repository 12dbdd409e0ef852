"""Classifies errors of the server: lost connection, invalid data, or a message for the user. Pure."""

import re

from spark_channel.connectors.sql.session import HIDDEN
from spark_channel.errors import ChannelError

__all__ = [
    "CANNOT_CARRY",
    "explain",
    "is_disk_full",
    "is_ended",
    "is_full",
    "is_gone",
    "is_locked",
    "is_of_input",
    "is_refused_data",
    "is_short",
    "sqlstate_of",
]

CANNOT_CARRY = "spark-channel cannot carry:"
"""Begins what a statement of a read says of an array that Arrow has no shape for."""
_ODD_ARRAY = re.compile(rf'{CANNOT_CARRY} (.*?)"?\nDETAIL', re.DOTALL)

_GONE = frozenset({"57P01", "57P02", "57P03", "57P05", "25P03", "40001", "40P01"})
_SHORT = frozenset({"53000", "53100", "53200"})
_GONE_TEXTS = (
    "server closed the connection",
    "no connection to the server",
    "connection to server was lost",
    "Connection refused",
    "could not receive data",
    "could not send data",
    "SSL connection has been closed",
    "connection not open",
    "Connection reset",
    "terminating connection",
    "the database system is",
    "timeout expired",
    "Broken pipe",
    "SSL SYSCALL error",
    "unexpected EOF",
    "the connection is closed",
    "the connection is lost",
    "Connect call failed",
    "cannot connect to server",
    "server login has been failing",
    "server conn crashed",
    "query_wait_timeout",
    "pgbouncer shutdown",
)
_MAY_QUOTE = ("22", "23", "38", "39", "44", "HV", "P0", "XX")
"""Classes of errors whose text may hold a value of a row."""
_OF_PROTOCOL = "08P01"
"""Also PgBouncer's code of all that it says itself."""
_HINTS = {
    "28P01": "the login is refused: see 'user' and 'password'",
    "28000": "the login is refused: see 'user', and the server's pg_hba.conf",
    "3D000": "the database does not exist: see 'url'",
    "42501": "this user lacks a privilege: GRANT it",
    "53100": "the disk of the server is full: free space on it and run again",
    "53300": "the server has no connection left: lower 'channels' or 'maxConnections'",
    "53200": "the server is out of memory: lower 'channels', or run again later",
    "55P03": "a lock is held by another session: end that, or run again later",
    "22021": "a text holds the character U+0000, which PostgreSQL cannot hold: replace it",
    "57014": "the statement was cancelled by another session: run again",
    "25P03": "the server's setting idle_in_transaction_session_timeout ended the session, whose transaction had "
    "waited: raise it for this role",
    "57P05": "the server's setting idle_session_timeout ended the session: raise it for this role",
}
_OF_INPUT = frozenset({"28P01", "28000", "3D000", "42501", "42P01", "3F000"})
_OF_INPUT_TEXTS = (
    "password authentication failed",
    "no password supplied",
    "no pg_hba.conf entry",
    'FATAL:  database "',
    "permission denied for ",
)
_FULL_TEXTS = ("too many clients", "too many connections for", "remaining connection slots")
_UNTRUSTED = "the server's certificate is not trusted, or names another host: see 'sslrootcert', 'url' and 'sslmode'"
_HINT_TEXTS = {
    "due to statement timeout": "the setting statement_timeout, or option 'queryTimeout', ended the statement: "
    "raise it",
    "due to lock timeout": "the setting lock_timeout ended the statement, which had waited for a lock: end the session "
    "that holds it, or run again later",
    "invalid snapshot identifier": "the transaction that held option 'snapshot' has ended, as by the setting "
    "idle_in_transaction_session_timeout: raise that for this role, or omit 'snapshot'",
    "could not import the requested snapshot": "the transaction that held option 'snapshot' has ended: run again",
    "conflict with recovery": "the standby ended the statement, whose rows its replay had to remove "
    "(max_standby_streaming_delay)",
    # The driver may meet the end of the connection before it reads the code.
    "due to idle-in-transaction timeout": _HINTS["25P03"],
    "due to idle-session timeout": _HINTS["57P05"],
    "password authentication failed": _HINTS["28P01"],
    "no password supplied": _HINTS["28P01"],
    "no pg_hba.conf entry": _HINTS["28000"],
    "certificate verify failed": _UNTRUSTED,
    "does not match host name": _UNTRUSTED,
    "Connection refused": "no server answers there: see 'url', and whether the server runs",
    "Connect call failed": "no server answers there: see 'url', and whether the server runs",
    'FATAL:  database "': _HINTS["3D000"],
    "could not translate host name": "the host is not known: see 'url'",
    "Name or service not known": "the host is not known: see 'url'",
    "No space left on device": _HINTS["53100"],
    **dict.fromkeys(_FULL_TEXTS, _HINTS["53300"]),
    "unsupported startup parameter": "a connection pooler (such as PgBouncer) answers, which refuses this parameter of "
    "the url or of PGOPTIONS: use 'currentSchema', SET statements in 'sessionInitStatement' or ALTER ROLE ... SET "
    "instead, or name the server itself in 'url'. The pooler's ignore_startup_parameters would drop it without a word",
    "statement pooling mode": "a connection pooler (such as PgBouncer) answers, in statement mode, which has no "
    "transactions: set pool_mode=transaction or session for this database, or name the server itself in 'url'",
    "query_wait_timeout": "the connection pooler had no free session for as long as its query_wait_timeout: raise its "
    "default_pool_size, or lower 'channels' or 'maxConnections'",
    "cannot connect to server": "the connection pooler does not reach its server: see the pooler's log",
    "server login has been failing": "the connection pooler does not reach its server: see the pooler's log",
    "max_client_conn": "the connection pooler takes no more clients: raise its max_client_conn, or lower 'channels' or "
    "'maxConnections'",
}
_NOISE = re.compile(
    r"^\w+: |Execution error \[\]: |\[libpq\] |Failed to [\w ]+ '.*?': (?=\w+:  )"
    r"|(Failed to [\w ]+(statement|query|params)?( '[^']*')?: )"
    r"|PGRES_FATAL_ERROR ?|connection failed: |\nLINE \d+: .*?\n *\^"
    r"|\n(?:QUERY|CONTEXT):  .*?PL/pgSQL function inline_code_block line 1 at OPEN"
    r"|\.? ?SQLSTATE: \w{5}\s*\Z|\n*Query was:.*\Z|\n*Query:.*\Z",
    re.DOTALL,
)


_LINES = re.compile(r"[ \t.]*\n\s*")


def _cause(error: BaseException) -> BaseException:
    """The driver's message."""
    return (error.__cause__ or error) if isinstance(error, ChannelError) else error


def sqlstate_of(error: BaseException) -> str | None:
    """PostgreSQL's code of `error`, of the driver's or of one that a `Session` raised from it."""
    state = getattr(_cause(error), "sqlstate", None)
    return None if state is None else str(state)


def is_gone(error: BaseException) -> bool:
    """Whether the session is lost, or was ended for another's sake: a new one may succeed."""
    state = sqlstate_of(error)
    if state is not None and state != _OF_PROTOCOL:
        return state in _GONE or state.startswith("08")
    cause = _cause(error)
    return not isinstance(cause, ChannelError) and any(text in str(cause) for text in _GONE_TEXTS)


def is_ended(error: BaseException) -> bool:
    """Whether a time limit of the server, or an administrator, ended the statement, and not the session."""
    return _is(error, "57014", "canceling statement due to")


def is_full(error: BaseException) -> bool:
    """Whether the server, the database or the role has no connection left."""
    return any(_is(error, "53300", text) for text in _FULL_TEXTS)


def is_short(error: BaseException) -> bool:
    """Whether the server lacks disk, memory or connections, or a user cancelled the statement: it may succeed later.

    A time limit that ends a statement ends it again.
    """
    is_cancelled = is_ended(error) and "due to user request" in str(_cause(error))
    return is_cancelled or is_full(error) or sqlstate_of(error) in _SHORT


def is_of_input(error: BaseException) -> bool:
    """Whether the login, the database, the table or a right is not there."""
    state = sqlstate_of(error)
    return state in _OF_INPUT or (
        state is None and any(text in str(_cause(error)) for text in _OF_INPUT_TEXTS)
    )


def is_disk_full(error: BaseException) -> bool:
    return sqlstate_of(error) == "53100" or "No space left on device" in str(_cause(error))


def is_locked(error: BaseException) -> bool:
    """Whether another session held a lock for longer than `lock_timeout`."""
    return _is(error, "55P03", "canceling statement due to lock timeout")


def _is(error: BaseException, state: str, text: str) -> bool:
    """In the middle of a COPY the driver gives no code."""
    code, cause = sqlstate_of(error), _cause(error)
    if code is not None:
        return code == state
    return not isinstance(cause, ChannelError) and text in str(cause)


def is_refused_data(error: BaseException) -> bool:
    """Whether a value or a constraint is the matter: other rows may go through."""
    state = sqlstate_of(error) or ""
    return state[:2] in ("22", "23") or state in ("44000", "P0001")


def explain(error: BaseException, server: str, *, hides: bool = False) -> str:
    """The message of `error` for a user: what to do, and the server's own words without the statement.

    `hides`: words that may quote a value are left out, here and in `error`.
    """
    text = str(_cause(error)).strip()
    state = sqlstate_of(error)
    if match := _ODD_ARRAY.search(text):
        return (
            f"{server}: {match.group(1)}, which has several dimensions or does not begin at 1. Leave the rows out "
            "with 'where', or read the column as text with 'customSchema'"
        )
    words = _LINES.sub(". ", _NOISE.sub("", text).strip() or text)
    hint = next((hint for words, hint in _HINT_TEXTS.items() if words in text), "") or _HINTS.get(
        state or "", ""
    )
    if hides and not hint and not is_gone(error) and (state is None or state[:2] in _MAY_QUOTE):
        words = f"error {state or 'of a value'}; {HIDDEN}"
        error.args = (words,)
    return (
        f"{server}: {hint}. PostgreSQL says: {words}"
        if hint
        else f"{server}: PostgreSQL says: {words}"
    )
