"""The parameters with which asyncpg logs in as libpq does: where options leave any out, libpq says what it used."""

import os
from collections.abc import Mapping

import psycopg

from spark_channel.connectors.postgresql.options import conninfo

__all__ = ["forget_login", "login_parameters"]

_FILES = frozenset({"passfile", "service", "servicefile"})
"""Where libpq has looked: what it has found there is among its parameters."""
_ALWAYS = frozenset({"host", "port", "dbname", "user"})
_FILLED = {"sslcertmode": b"allow"}
"""What libpq sets by itself, and does not call a default."""
_MOST = 32

_logins: dict[object, dict[str, str]] = {}
"""By what was asked: each channel of a process logs in, and `.pgpass` is looked up once."""


def login_parameters(parameters: Mapping[str, str]) -> Mapping[str, str]:
    """`parameters` of libpq, with the login that it takes from `.pgpass`, a service file or the environment.

    Without a password where the server asks for none (trust, peer, a certificate). Logs in once, unless the options
    say all; no secret of it leaves this process.

    Raises:
        psycopg.Error: libpq cannot log in.
    """
    is_service = "service" in parameters or "PGSERVICE" in os.environ
    if not is_service and {"user", "password"} <= parameters.keys():
        return parameters
    key = _key(parameters)
    if key not in _logins:
        if len(_logins) >= _MOST:
            _logins.clear()
        _logins[key] = _asked(parameters)
    return {**_logins[key], **_named(parameters)}


def forget_login(parameters: Mapping[str, str]) -> bool:
    """Whether the login was kept: the password may have changed since."""
    return _logins.pop(_key(parameters), None) is not None


def _asked(parameters: Mapping[str, str]) -> dict[str, str]:
    # Not psycopg.connect, which looks the host up itself, and hands libpq the address.
    libpq = psycopg.pq.PGconn.connect(conninfo(parameters).encode())
    try:
        if libpq.status != psycopg.pq.ConnStatus.OK:
            raise psycopg.OperationalError(libpq.error_message.decode(errors="replace"))
        libpq_values = {
            option.keyword.decode(): (option.val, option.compiled)
            for option in libpq.info
            if option.val is not None and option.keyword.decode() not in _FILES
        }
        parameters_set = {
            name: value.decode()
            for name, (value, default) in libpq_values.items()
            if value not in (default, _FILLED.get(name)) or name in _ALWAYS
        }
        parameters_set.pop("password", None)
        if libpq.used_password:
            parameters_set["password"] = (libpq.password or b"").decode()
        return parameters_set
    finally:
        libpq.finish()


def _named(parameters: Mapping[str, str]) -> dict[str, str]:
    """The name of the session, which differs from one to the next of the same login."""
    return {name: value for name, value in parameters.items() if name == "application_name"}


def _key(parameters: Mapping[str, str]) -> object:
    heard = {name: value for name, value in os.environ.items() if name.startswith("PG")}
    compared = {name: value for name, value in parameters.items() if name != "application_name"}
    return tuple(sorted(compared.items())), tuple(sorted(heard.items()))
