"""The address of a database: urls of JDBC and libpq, parsed to libpq's parameters. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import unquote

from spark_channel.connectors.sql.jdbc_parameters import WITHOUT_EFFECT
from spark_channel.errors import OptionError

__all__ = ["Address", "conninfo", "parse_url"]

_TAKES = "jdbc:postgresql://host:5432/database or postgresql://host:5432/database"
_LIBPQ = frozenset(
    {
        "application_name", "channel_binding", "connect_timeout", "gssencmode", "hostaddr", "keepalives",
        "keepalives_count", "keepalives_idle", "keepalives_interval", "krbsrvname", "load_balance_hosts",
        "options", "passfile", "requirepeer", "service", "ssl_max_protocol_version",
        "ssl_min_protocol_version", "sslcert", "sslcompression", "sslcrl", "sslcrldir", "sslkey", "sslmode",
        "sslpassword", "sslrootcert", "sslsni", "target_session_attrs", "tcp_user_timeout", "host", "port",
        "dbname", "user", "password",
    }
)  # fmt: skip
_OF_JDBC = {"applicationname": "application_name", "connecttimeout": "connect_timeout",
            "logintimeout": "connect_timeout"}  # fmt: skip
_SERVER_TYPES = {
    "any": "any", "primary": "primary", "master": "primary", "secondary": "standby", "slave": "standby",
    "preferslave": "prefer-standby", "prefersecondary": "prefer-standby",
}  # fmt: skip
_NO_MEANING = WITHOUT_EFFECT | {"loadbalancehosts", "prefermode"}
"""Parameters of the JDBC driver about itself."""
_NUMBER = re.compile(r"[0-9]{1,5}")


@dataclass(frozen=True, slots=True)
class Address:
    """A parsed url: libpq's parameters without the login, the login, and the first schema of the search path."""

    parameters: Mapping[str, str]
    user: str | None = None
    password: str | None = None
    current_schema: str | None = None

    @property
    def shown(self) -> str:
        """For people: the url without any login."""
        host, port = self.parameters.get("host", ""), self.parameters.get("port", "")
        hosts, ports = host.split(","), port.split(",") if port else []
        places = [
            (f"[{name}]" if ":" in name else name) + (f":{ports[number]}" if number < len(ports) else "")
            for number, name in enumerate(hosts)
        ]
        return f"postgresql://{','.join(places)}/{self.parameters.get('dbname', '')}"


def parse_url(url: str) -> Address:
    """Read `jdbc:postgresql://h:1/db?...`, `jdbc:postgresql:db`, `postgresql://...` or `postgres://...`.

    Raises:
        OptionError: another scheme, or a parameter that neither libpq nor JDBC knows; never shows a value.
    """
    text = url.strip()
    jdbc = text.lower().startswith("jdbc:")
    text = text[5:] if jdbc else text
    scheme, colon, rest = text.partition(":")
    if scheme.lower() not in ("postgresql", "postgres") or not colon:
        raise _wrong(f"has scheme {scheme!r}", scheme)
    rest, _, query = rest.partition("?")
    parameters: dict[str, str] = {}
    user = password = None
    if rest.startswith("//"):
        authority, _, name = rest[2:].partition("/")
        login, at, places = authority.rpartition("@")
        if at:
            name_of_user, has_password, secret = login.partition(":")
            user = unquote(name_of_user) or None
            password = unquote(secret) if has_password else None
        parameters |= _hosts(places)
    else:
        name = rest.lstrip("/")
    if "/" in name:
        raise _wrong("names more than a database after its host", None)
    if name:
        parameters["dbname"] = unquote(name)
    extra, schema = _parameters(query)
    user, password = extra.pop("user", user), extra.pop("password", password)
    parameters |= extra
    parameters.setdefault("host", "localhost")
    if "dbname" not in parameters and user is not None:
        parameters["dbname"] = user
    return Address(parameters, user, password, schema)


def _hosts(text: str) -> dict[str, str]:
    hosts, ports = [], []
    for place in text.split(",") if text else []:
        match = re.fullmatch(r"(\[[^\]]*\]|[^:\[\]]*)(?::(.*))?", place)
        if match is None or (match.group(2) and not _NUMBER.fullmatch(match.group(2))):
            raise _wrong("names a host or port that cannot be read", None)
        hosts.append(unquote(match.group(1).strip("[]")))
        ports.append(match.group(2) or "5432")
    return {"host": ",".join(hosts), "port": ",".join(ports)} if hosts and any(hosts) else {}


def _parameters(query: str) -> tuple[dict[str, str], str | None]:
    found: dict[str, str] = {}
    schema = None
    for part in query.split("&") if query else []:
        name, _, raw = part.partition("=")
        value, lowered = unquote(raw), name.lower()
        if lowered == "currentschema":
            schema = value
        elif lowered == "ssl":
            if value.lower() != "false":
                found.setdefault("sslmode", "verify-full")
        elif lowered == "tcpkeepalive":
            found["keepalives"] = "1" if value.lower() == "true" else "0"
        elif lowered == "targetservertype":
            if value.lower() not in _SERVER_TYPES:
                raise _wrong(f"has a targetServerType other than {', '.join(sorted(_SERVER_TYPES))}", None)
            found["target_session_attrs"] = _SERVER_TYPES[value.lower()]
        elif (known := _OF_JDBC.get(lowered, lowered)) in _LIBPQ:
            found[known] = value
        elif lowered not in _NO_MEANING:
            raise _wrong(f"has parameter {name!r}, which neither libpq nor the JDBC driver knows", None)
    return found, schema


def _wrong(why: str, got: str | None) -> OptionError:
    return OptionError(f"option 'url' {why}; it takes {_TAKES}", option="url", got=got, takes=_TAKES)


def conninfo(parameters: Mapping[str, str]) -> str:
    """libpq's connection string."""
    return " ".join(f"{name}='{_escaped(value)}'" for name, value in parameters.items())


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("'", "\\'")
