"""How asyncpg is told of a database, from libpq's words. Pure."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

__all__ = ["can_tell", "connect_arguments"]

_IN_DSN = frozenset(
    {"sslmode", "sslcert", "sslkey", "sslrootcert", "sslcrl", "sslpassword", "target_session_attrs"}
)
_NAMED = {"user": "user", "password": "password", "passfile": "passfile", "dbname": "database"}
_OWN = frozenset(
    {
        "host", "port", "application_name", "connect_timeout", "client_encoding",
        "keepalives", "keepalives_idle", "keepalives_interval", "keepalives_count",
    }
)  # fmt: skip


def can_tell(parameters: Mapping[str, str]) -> bool:
    """Whether asyncpg can be told all that libpq would be."""
    return parameters.keys() <= _IN_DSN | _NAMED.keys() | _OWN


def connect_arguments(parameters: Mapping[str, str]) -> dict[str, Any]:
    """The arguments of `asyncpg.connect`, password included."""
    ports = [int(port) for port in parameters.get("port", "5432").split(",")]
    tls = {name: value for name, value in parameters.items() if name in _IN_DSN}
    named = {to: parameters[name] for name, to in _NAMED.items() if name in parameters}
    return {
        "dsn": "postgresql://?" + urlencode(tls),
        "host": parameters["host"].split(","),
        "port": ports if len(ports) > 1 else ports[0],
        "timeout": float(parameters["connect_timeout"]),
        "server_settings": {"application_name": parameters["application_name"]},
        "statement_cache_size": 0,  # a pooler between may hand each transaction to another server process
        **named,
    }
