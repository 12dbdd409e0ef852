"""Translates libpq's parameters to asyncpg's. Pure."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

__all__ = ["can_use", "connect_arguments"]

_IN_DSN = frozenset(
    {"sslmode", "sslcert", "sslkey", "sslrootcert", "sslcrl", "sslpassword", "target_session_attrs"}
)
_NAMED = {"user": "user", "password": "password", "passfile": "passfile", "dbname": "database"}
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
        "PGSERVICE",
        "PGSSLCERTMODE",
        "PGSSLCRLDIR",
        "PGSSLNEGOTIATION",
    }
)
"""What libpq hears of its environment, and asyncpg does not."""


def can_use(parameters: Mapping[str, str], environment: Mapping[str, str]) -> bool:
    """Whether asyncpg accepts all of the parameters that libpq would get, and treats them in the same way.

    It tries several hosts in the time that is meant for each, and reads `.pgpass` without its escapes.
    """
    return (
        parameters.keys() <= _IN_DSN | _NAMED.keys() | _OWN
        and not environment.keys() & _UNHEARD
        and "," not in parameters["host"]
        and "system" not in (parameters.get("sslrootcert"), environment.get("PGSSLROOTCERT"))
        and "password" in parameters
    )


def connect_arguments(
    parameters: Mapping[str, str], environment: Mapping[str, str]
) -> dict[str, Any]:
    """The arguments of `asyncpg.connect`, password included."""
    tls = {name: value for name, value in parameters.items() if name in _IN_DSN}
    named = {to: parameters[name] for name, to in _NAMED.items() if name in parameters}
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
    }
