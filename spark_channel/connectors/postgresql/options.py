"""Options, and addresses: of libpq and JDBC, and as asyncpg takes them."""

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import zip_longest
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, get_args
from urllib.parse import urlencode

from pydantic import Field, SecretStr, model_validator

from spark_channel.connectors.base.server_url import (
    check_no_semicolon,
    contradicted,
    decoded,
    encoded,
)
from spark_channel.connectors.sql.jdbc_parameters import WITHOUT_EFFECT
from spark_channel.connectors.sql.options import (
    LedgerOptions,
    OnePassOptions,
    ServerOptions,
    SqlReadOptions,
    SqlWriteOptions,
)
from spark_channel.connectors.sql.postgresql_family import sslmode_of
from spark_channel.errors import OptionError
from spark_channel.options import Secret, Trait, certificate_file

__all__ = [
    "Address",
    "PostgresOptions",
    "PostgresReadOptions",
    "PostgresWriteOptions",
    "SslMode",
    "asyncpg_arguments",
    "conninfo",
    "parse_url",
    "why_not_asyncpg",
]

SslMode = Literal["disable", "allow", "prefer", "require", "verify-ca", "verify-full"]


# The address of a database: urls of JDBC and libpq, parsed to libpq's parameters. Pure.


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


_parsed = lru_cache(maxsize=32)(parse_url)
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


# The same for asyncpg, which takes other parameters and hears less of the environment. Pure.


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


# Options of the PostgreSQL connector, and the address that they name.


_FILES = ("sslrootcert", "sslcert", "sslkey", "sslcrl", "sslcrldir", "passfile")

_OF_JDBC_DRIVER: Mapping[str, str] = dict.fromkeys(
    (
        "reWriteBatchedInserts",
        "prepareThreshold",
        "defaultRowFetchSize",
        "stringtype",
        "autosave",
        "socketTimeout",
        "tcpKeepAlive",
        "binaryTransfer",
        "preferQueryMode",
    ),
    "it is about the JDBC driver's own way of talking to the server; this connector uses COPY",
)


class PostgresOptions(ServerOptions):
    """Options of reader and writer. A login inside the url is moved to `user` and `password`."""

    sslmode: Annotated[SslMode | None, Trait.SAME_ROWS] = Field(
        None,
        description="TLS mode of libpq; default: from the url, else `verify-full` with `sslrootcert`, else libpq's "
        "`prefer`",
    )
    sslpassword: Secret | None = Field(None, description="password of `sslkey`; default: none")
    current_schema: str | None = Field(
        None,
        description="the first schema in which names are resolved; default: the role's `search_path`",
    )
    session_time_zone: str | None = Field(
        None,
        description="time zone in which `where`, `query` and `now()` are evaluated; instants stay the same; "
        "default: the server's",
    )

    @model_validator(mode="before")
    @classmethod
    def _hide_login(cls, values: Any) -> object:
        """No text that may be printed contains a password."""
        url = values.get("url") if isinstance(values, dict) else None
        if not isinstance(url, str):
            return values
        address = parse_url(url, os.environ)
        files = {
            name: certificate_file(value)
            for name, value in address.parameters.items()
            if name in _FILES
        }
        absolute = replace(address, parameters={**address.parameters, **files})
        hidden = {**values, "url": absolute.url}
        for name, value in (
            ("user", address.user),
            ("password", address.password),
            ("current_schema", address.current_schema),
            ("sslpassword", address.parameters.get("sslpassword")),
        ):
            if value is not None and hidden.get(name) is None:
                hidden[name] = value
        return hidden

    def model_post_init(self, context: object) -> None:
        super().model_post_init(context)
        if getattr(self, "url", None) is None:
            raise OptionError(
                "nothing says where the database is: give 'url' as jdbc:postgresql://host:5432/database",
                option="url",
            )
        self.parameters()

    @property
    def address(self) -> Address:
        return _parsed(str(getattr(self, "url")))  # noqa: B009 - both subclasses have it

    def parameters(self, application: str | None = None) -> dict[str, str]:
        """libpq's connection parameters, including the password: never to be shown.

        `application` names the session, and behind a pooler also what other clients do in it.

        Raises:
            OptionError: certificates are named, and a mode that does not use them.
        """
        libpq_parameters: dict[str, str | SecretStr | None] = {
            "user": self.user,
            "password": self.password,
            "sslmode": self.sslmode,
            "sslrootcert": self.sslrootcert,
            "sslcert": self.sslcert,
            "sslkey": self.sslkey,
            "sslpassword": self.sslpassword,
        }
        parameters: dict[str, str] = {
            "connect_timeout": str(math.ceil(self.connect_timeout)),
            **({} if application is None else {"application_name": application}),
            # A server that vanished is noticed within a minute instead of hours.
            "keepalives_idle": "30",
            "keepalives_interval": "10",
            "keepalives_count": "3",
            **self.address.parameters,
            "client_encoding": "UTF8",
        }
        for name, value in libpq_parameters.items():
            if value is not None:
                parameters[name] = (
                    value.get_secret_value() if isinstance(value, SecretStr) else value
                )
        mode = sslmode_of(
            parameters, os.environ, "url" if self.sslrootcert is None else "sslrootcert"
        )
        return parameters if mode is None else {**parameters, "sslmode": mode}

    def conninfo(self, application: str | None = None) -> str:
        """libpq's connection string: never to be shown."""
        return conninfo(self.parameters(application))


class PostgresReadOptions(PostgresOptions, SqlReadOptions):
    """Options of the PostgreSQL reader."""

    ignored: ClassVar[Mapping[str, str]] = {
        **SqlReadOptions.ignored,
        **_OF_JDBC_DRIVER,
        "hint": "PostgreSQL takes no hints",
    }

    timestamps_as: Literal["instant", "local"] = Field(
        "instant",
        description="read timestamptz as an `instant`; or it and timetz as `local` times of the session without a zone",
    )
    floats_as: Literal["number", "text"] = Field(
        "number",
        description="read floats as a `number`, or as the `text` that the server shows: `100`, `1e20`, `1.50`",
    )
    snapshot: bool = Field(
        False, description="all splits read one snapshot of the database; only for a transfer"
    )


class PostgresWriteOptions(PostgresOptions, LedgerOptions, OnePassOptions, SqlWriteOptions):
    """Options of the PostgreSQL writer."""

    ignored: ClassVar[Mapping[str, str]] = {
        **SqlWriteOptions.ignored,
        **_OF_JDBC_DRIVER,
        "isolationLevel": "rows and claim are written in one READ COMMITTED transaction",
    }

    cascade_truncate: bool = Field(
        False, description="overwrite also truncates the tables that reference this one"
    )
    table_comment: str | None = Field(None, description="comment of a new table; default: none")
