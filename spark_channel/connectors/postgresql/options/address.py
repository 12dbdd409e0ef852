"""The address of a database: urls of JDBC and libpq, parsed to libpq's parameters. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import zip_longest
from types import MappingProxyType
from typing import Literal, get_args

from spark_channel.connectors.base.server_url import (
    check_no_semicolon,
    contradicted,
    decoded,
    encoded,
)
from spark_channel.connectors.sql.jdbc_parameters import WITHOUT_EFFECT
from spark_channel.errors import OptionError

__all__ = [
    "Address",
    "SslMode",
    "conninfo",
    "parse_url",
    "parsed_url",
]

SslMode = Literal["disable", "allow", "prefer", "require", "verify-ca", "verify-full"]
_TAKES = "jdbc:postgresql://host:5432/database or postgresql://host:5432/database"
_LIBPQ = frozenset(
    {
        "application_name",
        "channel_binding",
        "connect_timeout",
        "gssencmode",
        "hostaddr",
        "keepalives",
        "keepalives_count",
        "keepalives_idle",
        "keepalives_interval",
        "gssdelegation",
        "krbsrvname",
        "load_balance_hosts",
        "max_protocol_version",
        "min_protocol_version",
        "options",
        "passfile",
        "require_auth",
        "requirepeer",
        "service",
        "ssl_max_protocol_version",
        "ssl_min_protocol_version",
        "sslcert",
        "sslcertmode",
        "sslcompression",
        "sslcrl",
        "sslcrldir",
        "sslkey",
        "sslmode",
        "sslnegotiation",
        "sslpassword",
        "sslrootcert",
        "sslsni",
        "target_session_attrs",
        "tcp_user_timeout",
        "host",
        "port",
        "dbname",
        "user",
        "password",
    }
)
_OF_JDBC = {
    "applicationname": "application_name",
    "connecttimeout": "connect_timeout",
    "logintimeout": "connect_timeout",
}
_SERVER_TYPES = {
    "any": "any",
    "primary": "primary",
    "master": "primary",
    "secondary": "standby",
    "slave": "standby",
    "preferslave": "prefer-standby",
    "prefersecondary": "prefer-standby",
}
_NO_MEANING = WITHOUT_EFFECT | {"loadbalancehosts", "prefermode"}
"""Parameters of the JDBC driver about itself."""
_NUMBER = re.compile(r"[0-9]{1,5}")
_PORT = "5432"
_PLAIN_IN_VALUES = "/?@:[]"
_OF_ENVIRONMENT = {"host": "PGHOST", "port": "PGPORT", "dbname": "PGDATABASE"}


@dataclass(frozen=True, slots=True)
class Address:
    """A parsed url: libpq's parameters without the login, the login, and the first schema of the search path."""

    parameters: Mapping[str, str]
    user: str | None = None
    password: str | None = None
    current_schema: str | None = None

    @property
    def shown(self) -> str:
        """The url without any login and parameters: its parts are encoded, so that it is parsed to the same again."""
        hosts, ports = (
            self.parameters.get("host", "").split(","),
            self.parameters.get("port", "").split(","),
        )
        places = [
            (f"[{encoded(name, ':')}]" if ":" in name else encoded(name))
            + (f":{port}" if port else "")
            for name, port in zip_longest(hosts, ports, fillvalue="")
        ]
        return f"postgresql://{','.join(places)}/{encoded(self.parameters.get('dbname', ''))}"

    @property
    def url(self) -> str:
        """The url without any login, and without secrets."""
        parts = [
            f"{name}={encoded(value, _PLAIN_IN_VALUES)}"
            for name, value in self.parameters.items()
            if name not in ("host", "port", "dbname", "sslpassword")
        ]
        return self.shown + ("?" + "&".join(parts) if parts else "")


def parse_url(url: str, environment: Mapping[str, str] = MappingProxyType({})) -> Address:
    """Read `jdbc:postgresql://h:1/db?...`, `jdbc:postgresql:db`, `postgresql://...` or `postgres://...`.

    `environment` has the parameters that a url of libpq omits, as for libpq itself; JDBC ignores it. What a service
    says is in a file, which libpq reads: it is left out here.

    Raises:
        OptionError: another scheme, or a parameter that neither libpq nor JDBC knows; never shows a value.
    """
    text = url.strip()
    jdbc = text.lower().startswith("jdbc:")
    text = text[5:] if jdbc else text
    scheme, colon, address = text.partition(":")
    if scheme.lower() not in ("postgresql", "postgres") or not colon:
        raise _wrong(f"has scheme {scheme!r}", scheme)
    address, _, query = address.partition("?")
    check_no_semicolon(address.rpartition("@")[2])
    extra, schema = _parameters(query)
    outside: Mapping[str, str] = {} if jdbc else environment
    service = extra.get("service") or outside.get("PGSERVICE")
    parameters: dict[str, str] = {}
    user = password = None
    if address.startswith("//"):
        authority, _, name = address[2:].partition("/")
        login, at, places = authority.rpartition("@")
        if at:
            name_of_user, has_password, secret = login.partition(":")
            user = decoded(name_of_user, "user") or None
            password = decoded(secret, "password") if has_password else None
        parameters |= _hosts(places, "" if service else outside.get("PGPORT") or _PORT)
    else:
        name = address.lstrip("/")
    if "/" in name:
        raise _wrong(
            "names more than a database after its host (a slash in its name is written %2F)", None
        )
    if name:
        parameters["dbname"] = decoded(name, "database")
    user, password = extra.pop("user", user), extra.pop("password", password)
    parameters |= extra
    if service:
        parameters["service"] = service
    else:
        for name, variable in _OF_ENVIRONMENT.items():
            if outside.get(variable):
                parameters.setdefault(name, outside[variable])
        parameters = {"host": "localhost", "port": _PORT, **parameters}
        if "dbname" not in parameters and user is not None:
            parameters["dbname"] = user
        user = user or outside.get("PGUSER") or None
    if parameters.get("port", "").isdigit():  # libpq takes one for every host
        parameters["port"] = ",".join(
            [parameters["port"]] * (parameters.get("host", "").count(",") + 1)
        )
    return Address(parameters, user, password, schema)


parsed_url = lru_cache(maxsize=32)(parse_url)
"""The urls of this process: each table of a run asks for its own dozens of times."""


def _hosts(text: str, default_port: str) -> dict[str, str]:
    hosts, ports = [], []
    for host_text in text.split(",") if text else []:
        match = re.fullmatch(r"(\[[^\]]*\]|[^:\[\]]*)(?::(.*))?", host_text)
        if match is None or (match.group(2) and not _NUMBER.fullmatch(match.group(2))):
            raise _wrong("names a host or port that cannot be read", None)
        hosts.append(decoded(match.group(1).strip("[]"), "host"))
        ports.append(match.group(2) or default_port)
    if not any(hosts):
        return {"port": ports[0]} if len(hosts) == 1 and text.strip(":") else {}
    return {"host": ",".join(hosts), **({"port": ",".join(ports)} if any(ports) else {})}


def _parameters(query: str) -> tuple[dict[str, str], str | None]:
    parameters: dict[str, str] = {}
    schema = None
    twice = contradicted(query)
    if twice is not None:
        raise _wrong(f"has parameter {twice!r} twice, with two values", None)
    has_tls = False
    for part in query.split("&") if query else []:
        name, _, raw = part.partition("=")
        value, lowered = decoded(raw, f"parameter {name!r}"), name.lower()
        if lowered == "currentschema":
            schema = value
        elif lowered == "ssl":
            if value.lower() != "false":
                parameters.setdefault("sslmode", "verify-full")
                has_tls = True
        elif lowered in (
            "usessl",
            "requiressl",
        ):  # of MySQL's drivers, and of old ones of PostgreSQL
            if value.lower() in ("true", "1"):
                parameters.setdefault("sslmode", "require")
                has_tls = True
        elif lowered == "sslmode":
            parameters["sslmode"] = _mode(value)
        elif lowered == "tcpkeepalive":
            parameters["keepalives"] = "1" if value.lower() == "true" else "0"
        elif lowered == "targetservertype":
            if value.lower() not in _SERVER_TYPES:
                raise _wrong(
                    f"has a targetServerType other than {', '.join(sorted(_SERVER_TYPES))}", None
                )
            parameters["target_session_attrs"] = _SERVER_TYPES[value.lower()]
        elif (parameter := _OF_JDBC.get(lowered, lowered)) in _LIBPQ:
            parameters[parameter] = value
        elif lowered not in _NO_MEANING:
            raise _wrong(
                f"has parameter {name!r}, which neither libpq nor the JDBC driver knows", None
            )
    if has_tls and parameters["sslmode"] in ("disable", "allow", "prefer"):
        raise _wrong(f"asks for TLS, and has sslmode={parameters['sslmode']}, which does not", None)
    return parameters, schema


def _mode(text: str) -> str:
    mode = text.strip().lower()
    if mode not in get_args(SslMode):
        raise _wrong(f"has an sslmode other than {', '.join(get_args(SslMode))}", None)
    return mode


def _wrong(problem: str, got: str | None) -> OptionError:
    return OptionError(
        f"option 'url' {problem}; it takes {_TAKES}", option="url", got=got, takes=_TAKES
    )


def conninfo(parameters: Mapping[str, str]) -> str:
    """libpq's connection string."""
    return " ".join(f"{name}='{_escaped(value)}'" for name, value in parameters.items())


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("'", "\\'")
