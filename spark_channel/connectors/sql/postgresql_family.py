"""PostgreSQL as two connectors use it: `postgresql`, and `adbc` with PostgreSQL's driver.

The settings of its transactions, and one under which its driver fails; how a connection pooler is recognised, and what
it cannot do; and the claims of writes.
"""

import os
import re
from collections.abc import Iterable, Mapping
from copy import copy
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from spark_channel.connectors.base.server_url import is_of_this_machine, tls_mode
from spark_channel.connectors.sql.statements import quoted_text
from spark_channel.errors import OptionError
from spark_channel.plain_text import log_of

if TYPE_CHECKING:
    import psycopg

__all__ = [
    "QUOTES",
    "SETTINGS",
    "connected",
    "escaped_text",
    "for_transaction",
    "is_pooler",
    "joined",
    "refused_by_pooler",
    "refused_by_quotes",
    "set_config",
    "sslmode_of",
    "verified",
]

_log = log_of(__name__)

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


# Which server gets the login.

_PROOFS = {"sslrootcert": "PGSSLROOTCERT", "sslcrl": "PGSSLCRL", "sslcrldir": "PGSSLCRLDIR"}
"""libpq's parameters that name what verifies a server, and the variables that stand for them."""
_PAIR = re.compile(r"(\w+)\s*=\s*('(?:\\.|[^'\\])*'|(?:\\.|\S)*)")
_URLS = ("postgresql://", "postgres://")
_PLAIN_ASKED = "server requested a cleartext password"
_REQUIRE_AUTH = 16_00_00
"""libpq's version that has `require_auth`."""
_MOST_PLACES = 64
_asks_for_plain: set[str] = set()
"""The servers that this process has named in a warning."""


def sslmode_of(
    parameters: Mapping[str, str], environment: Mapping[str, str], option: str
) -> str | None:
    """The `sslmode` of libpq's parameters; None: libpq's default. `option` has those that no option names.

    libpq would take `prefer` where only the certificates are named, and send the login to a server without TLS.

    Raises:
        OptionError: they name certificates, and a mode that does not use them.
    """
    mode = parameters.get("sslmode") or environment.get("PGSSLMODE") or None
    proof = next(
        (f"{name!r} (option {option!r})" for name in _PROOFS if parameters.get(name)), None
    )
    if proof is None:
        proof = next(
            (f"{name} of the environment" for name in _PROOFS.values() if environment.get(name)),
            None,
        )
        if parameters.get("sslmode") == "disable":
            return "disable"  # what the environment says is meant for other servers, too
    return tls_mode(mode, proof)


def verified(conninfo: str, option: str) -> str:
    """A url or connection string of libpq, with the `sslmode` that `sslmode_of` has for it."""
    is_url = conninfo.startswith(_URLS)
    pairs = parse_qsl(conninfo.partition("?")[2], True) if is_url else _PAIR.findall(conninfo)
    settings: dict[str, str] = {}
    for name, text in pairs:
        value = text.strip("'")
        if settings.setdefault(name, value) != value:
            raise OptionError(
                f"option {option!r} has parameter {name!r} twice, with two values: omit one of them",
                option=option,
            )
    mode = sslmode_of(settings, os.environ, option)
    if mode is None or mode == settings.get("sslmode"):
        return conninfo
    if not is_url:
        return f"{conninfo} sslmode={mode}"
    return f"{conninfo}{'&' if '?' in conninfo else '?'}sslmode={mode}"


def connected(conninfo: str, **settings: Any) -> "psycopg.Connection[tuple[Any, ...]]":
    """psycopg's connection. Warns once of a server that asks for the password in plain text, and proves nothing."""
    import psycopg

    try:
        return _connected(conninfo, settings)
    except psycopg.Error as error:
        shown = copy(error)  # a copy has no `pgconn`, whose text has the whole login
    raise shown


def _connected(conninfo: str, settings: Mapping[str, Any]) -> "psycopg.Connection[tuple[Any, ...]]":
    import psycopg

    addresses = _place_to_warn_of(conninfo)
    if addresses is not None:
        try:
            careful = psycopg.conninfo.make_conninfo(conninfo, require_auth="!password")
            return psycopg.connect(careful, **settings)
        except psycopg.OperationalError as error:
            if _PLAIN_ASKED not in str(error):
                raise
        if len(_asks_for_plain) >= _MOST_PLACES:
            _asks_for_plain.clear()
        _asks_for_plain.add(addresses)
        _log.warning(
            "%s asks for the password in plain text, and its certificate is not verified: who answers in its place, or "
            "reads the network, gets the password. Set 'sslrootcert', or have the server use scram-sha-256. "
            "require_auth=scram-sha-256 in the url refuses such a server, require_auth=password accepts it",
            addresses,
        )
    return psycopg.connect(conninfo, **settings)


def _place_to_warn_of(conninfo: str) -> str | None:
    """The servers' addresses; None where a plain password is expected, or does not leave this machine."""
    import psycopg

    if psycopg.pq.version() < _REQUIRE_AUTH:
        return None
    settings = {
        name: str(value) for name, value in psycopg.conninfo.conninfo_to_dict(conninfo).items()
    }
    heard = os.environ
    mode = settings.get("sslmode") or heard.get("PGSSLMODE") or ""
    if settings.get("require_auth") or heard.get("PGREQUIREAUTH") or mode.startswith("verify"):
        return None
    hosts = (
        settings.get("hostaddr")
        or settings.get("host")
        or heard.get("PGHOSTADDR")
        or heard.get("PGHOST")
    )
    away = [host for host in (hosts or "").split(",") if not is_of_this_machine(host)]
    addresses = f"{','.join(away)}:{settings.get('port', '5432')}"
    return addresses if away and addresses not in _asks_for_plain else None


def is_pooler(conninfo: str, **login: Any) -> bool:
    """Whether the protocol names another process than the one that runs statements. It opens its own connection.

    Raises:
        OSError: it cannot connect.
    """
    import psycopg

    try:
        with connected(conninfo, autocommit=True, prepare_threshold=None, **login) as connection:
            process = connection.execute("SELECT pg_backend_pid()").fetchone()
            return process != (connection.info.backend_pid,)
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
    match = _SET.fullmatch(statement)
    if match is None or _OF_A_SESSION.match(match["rest"]):
        return None
    return f"SET LOCAL {match['rest']}"


def refused_by_quotes(server: str, option: str) -> str:
    """What is said of a server that `QUOTES` has a row of; `option` names it."""
    return (
        f"{server}: the setting quote_all_identifiers is on, under which the driver returns the bytes of each value "
        f"instead of the value. Add options=-c%20quote_all_identifiers%3Doff to {option!r}, or run ALTER ROLE ... SET "
        "quote_all_identifiers = off"
    )


def refused_by_pooler(server: str, statement: str, option: str) -> str:
    """What is said of a statement of `sessionInitStatement` that only a session can keep; `option` names the server."""
    return (
        f"{server} is a connection pooler (such as PgBouncer), and option 'sessionInitStatement' holds "
        f"{statement[:200]!r}, whose effect would stay in a session that other applications get next. Use SET for a "
        f"setting, which then holds for a transaction, or ALTER ROLE ... SET, or name the server itself in {option!r}"
    )
