"""The parameters of libpq as asyncpg takes them, which knows others and hears less of the environment. Pure."""

import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

__all__ = [
    "asyncpg_arguments",
    "why_not_asyncpg",
]

_IN_DSN = frozenset(
    {"sslmode", "sslcert", "sslkey", "sslrootcert", "sslcrl", "sslpassword", "target_session_attrs"}
)
_NAMED = {"user": "user", "password": "password", "dbname": "database"}
_OWN = frozenset(
    {
        "host",
        "port",
        "application_name",
        "connect_timeout",
        "client_encoding",
        "options",
        "keepalives",
        "keepalives_idle",
        "keepalives_interval",
        "keepalives_count",
    }
)
_UNHEARD = frozenset(
    {
        "PGCHANNELBINDING",
        "PGGSSENCMODE",
        "PGHOSTADDR",
        "PGREQUIREAUTH",
        "PGREQUIREPEER",
        "PGSSLCERTMODE",
        "PGSSLCRLDIR",
        "PGSSLNEGOTIATION",
    }
)
"""What libpq hears of its environment, and asyncpg does not."""


def why_not_asyncpg(parameters: Mapping[str, str], environment: Mapping[str, str]) -> str:
    """What asyncpg would not take, or treat otherwise than libpq, of the parameters that libpq would get; "" = nothing.

    It sends the server those that it does not know (findings/asyncpg-parameters-of-libpq.sh), and tries several hosts
    in the time that is meant for each.
    """
    unknown = sorted(parameters.keys() - (_IN_DSN | _NAMED.keys() | _OWN))
    if unknown:
        return f"the connection parameter {unknown[0]!r} is known to libpq alone"
    if unheard := sorted(environment.keys() & _UNHEARD):
        return f"the environment variable {unheard[0]} is heard by libpq alone"
    if "," in parameters.get("host", ""):
        return "the url names several hosts"
    if "host" not in parameters:
        return "no host is named"
    if "system" in (parameters.get("sslrootcert"), environment.get("PGSSLROOTCERT")):
        return "sslrootcert is 'system'"
    return ""


def asyncpg_arguments(
    parameters: Mapping[str, str], environment: Mapping[str, str]
) -> dict[str, Any]:
    """The arguments of `asyncpg.connect`, password included."""
    tls = {name: value for name, value in parameters.items() if name in _IN_DSN}
    named = {to: parameters[name] for name, to in _NAMED.items() if name in parameters}
    # libpq has found the password: asyncpg reads `.pgpass` without its escapes.
    secret = {} if "password" in named else {"passfile": os.devnull}
    settings = {name: parameters[name] for name in ("application_name",) if name in parameters}
    options = parameters.get("options") or environment.get("PGOPTIONS")
    if options:
        settings["options"] = options
    seconds = float(parameters["connect_timeout"])
    return {
        "dsn": "postgresql://?" + urlencode(tls),
        "host": parameters["host"],
        "port": int(parameters.get("port", "5432")),
        "timeout": seconds if seconds > 0 else None,
        "server_settings": settings,
        "statement_cache_size": 0,  # a pooler between may hand each transaction to another server process
        **named,
        **secret,
    }
