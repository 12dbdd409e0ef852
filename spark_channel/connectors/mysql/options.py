"""Options of the MySQL connector, and the server that they name."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal
from urllib.parse import parse_qsl, urlsplit

from pydantic import BeforeValidator, Field

from spark_channel.connectors.base.server_url import (
    check_no_fragment,
    check_no_semicolon,
    contradicted,
    decoded,
    tls_mode,
)
from spark_channel.connectors.sql.jdbc_parameters import WITHOUT_EFFECT
from spark_channel.connectors.sql.options import (
    LedgerOptions,
    OnePassOptions,
    SqlReadOptions,
    SqlWriteOptions,
)
from spark_channel.connectors.sql.options import ServerOptions as AnyServerOptions
from spark_channel.errors import OptionError
from spark_channel.options import DiskPath, Trait

__all__ = [
    "Address",
    "MysqlReadOptions",
    "MysqlWriteOptions",
    "ServerOptions",
    "address_of",
]

_TAKES = "jdbc:mysql://host:3306/database, mysql://host/database or mariadb://host/database"
_IGNORED: Mapping[str, str] = {
    "isolationLevel": "a publish is one transaction, whatever the level",
    "hint": "MySQL takes its hints inside 'query'",
    "cascadeTruncate": "MySQL cascades only where its foreign keys say so",
}
SslMode = Literal["disable", "prefer", "require", "verify-ca", "verify-full"]
_SSL_MODES: Mapping[str, str] = {
    "disabled": "disable",
    "preferred": "prefer",
    "required": "require",
    "verify-identity": "verify-full",
    "verify_ca": "verify-ca",
    "verify_identity": "verify-full",
}
"""MySQL's own words for libpq's."""


def _ssl_mode(value: object) -> object:
    text = str(value).strip().lower()
    return _SSL_MODES.get(text, text)


@dataclass(frozen=True, slots=True)
class Address:
    """The server's address; `database` is "" if the url names none."""

    host: str
    port: int
    database: str


class ServerOptions(AnyServerOptions):
    """The server, how it is reached, and for how long it is tried."""

    sslmode: Annotated[SslMode | None, BeforeValidator(_ssl_mode), Trait.SAME_ROWS] = Field(
        None,
        description="`disable`, `prefer` (TLS if the server has it), `require` (unverified), `verify-ca`, "
        "`verify-full`, or MySQL's names for them; default: `verify-full` with `sslrootcert`, else `prefer`",
    )

    allow_public_key_retrieval: Annotated[bool, Trait.SAME_ROWS] = Field(
        False,
        description="accept the key that a server without TLS sends to encrypt the password (`caching_sha2_password`, "
        "`sha256_password`): an attacker could send another key and read the password",
    )
    enable_cleartext_plugin: Annotated[bool, Trait.SAME_ROWS] = Field(
        False,
        description="send the password as it is, inside TLS, to a server whose certificate is not verified and that "
        "asks for it (`mysql_clear_password`, `dialog`, first logins of `caching_sha2_password`): an attacker in its "
        "place could read it",
    )
    server_rsa_public_key_file: Annotated[DiskPath | None, Trait.SAME_ROWS] = Field(
        None, description="PEM file of that key, from the server's administrator; default: none"
    )
    socket_timeout: Annotated[float | None, Field(gt=0, le=86_400), Trait.SAME_ROWS] = Field(
        None,
        description="seconds without a byte from the server after which a connection fails; default: keepalives only, "
        "60 s",
    )
    session_time_zone: str | None = Field(
        None,
        description="time zone in which `where`, `query` and `now()` are evaluated, such as `+08:00`; "
        "instants stay the same; default: the server's",
    )
    session_variables: str | None = Field(
        None,
        description="`name=value` pairs to set in every session, as in Connector/J; default: none",
    )
    sql_mode: Literal["strict", "session"] = Field(
        "strict",
        description="`strict`: a value that does not fit is an error, whatever the server's mode; `session`: the mode "
        "of the server, `sessionVariables` and `sessionInitStatement`",
    )

    @property
    def tls_mode(self) -> str | None:
        """None: `prefer`.

        Raises:
            OptionError: `sslrootcert` with a mode that does not use it.
        """
        return tls_mode(self.sslmode, "'sslrootcert'" if self.sslrootcert else None)

    @classmethod
    def prepared(cls, raw: Mapping[str, Any]) -> Mapping[str, Any]:
        """Logins in the url become `user` and `password`, so that nothing shows them."""
        return _without_login(super().prepared(raw), cls.ignored)


def _without_login(raw: Mapping[str, Any], ignored: Collection[str]) -> dict[str, Any]:
    """What the url says becomes options; of one that is `ignored`, the user has not typed the name."""
    by_name = {key.lower(): key for key in raw}
    key = by_name.get("url")
    if key is None or raw[key] is None:
        return dict(raw)
    text = str(raw[key]).strip()
    bare = text[len("jdbc:") :] if text.lower().startswith("jdbc:") else text
    scheme, separator, address = bare.partition("://")
    if not separator:
        return dict(raw)
    address_part, _, query = address.partition("?")
    check_no_fragment(address_part)
    check_no_semicolon(address_part.rpartition("@")[2])
    authority, slash, path = address_part.partition("/")
    login, at, host = authority.rpartition("@")
    logins: dict[str, str] = {}
    if at:
        user, colon, password = login.partition(":")
        logins["user"] = decoded(user, "user")
        if colon:
            logins["password"] = decoded(password, "password")
    unread = []
    twice = contradicted(query)
    if twice is not None:
        raise OptionError(
            f"option 'url' has parameter {twice!r} twice, with two values: omit one of them",
            option="url",
        )
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name.lower() in ("user", "password"):
            logins[name.lower()] = value
        else:
            unread.append((name, value))
    url = f"{scheme}://{host}{slash}{path}"
    options: dict[str, Any] = {name: value for name, value in raw.items() if name != key}
    for name, value in unread:
        option = _parameter(name, value)
        if option is not None and option[0].lower() not in by_name and option[0] not in ignored:
            options[option[0]] = option[1]
    properties = {name.lower(): value for name, value in unread}
    zone = properties.get("connectiontimezone", properties.get("servertimezone"))
    forced = properties.get("forceconnectiontimezonetosession", "").lower() == "true"
    if forced and zone is not None and "sessiontimezone" not in by_name:
        options["sessionTimeZone"] = zone
    if properties.get("verifyservercertificate", "").lower() == "true" and "sslmode" not in by_name:
        options["sslmode"] = {
            None: "verify-full",
            "prefer": "verify-full",
            "require": "verify-ca",
        }.get(options.get("sslmode"), options.get("sslmode"))
    options |= {name: value for name, value in logins.items() if name not in by_name}
    options[key] = url
    return options


def _parameter(name: str, value: str) -> tuple[str, str] | None:
    """A parameter of the JDBC drivers as an option; None = it changes nothing here."""
    lowered, text = name.lower(), value.strip().lower()
    if lowered == "sslmode":
        modes = {"trust": "require"}
        return "sslmode", modes.get(text, text)
    if lowered in ("usessl", "requiressl"):
        return "sslmode", "require" if text == "true" else "disable"
    if lowered == "allowpublickeyretrieval":
        return "allowPublicKeyRetrieval", text
    if lowered == "enablecleartextplugin":
        return "enableCleartextPlugin", text
    if lowered == "serverrsapublickeyfile":
        return "serverRsaPublicKeyFile", value
    if lowered == "zerodatetimebehavior":
        return "zeroDates", "null" if text in ("converttonull", "convert_to_null") else "error"
    if lowered == "connecttimeout":
        return (
            ("connectTimeout", str(max(1, int(text) // 1000)))
            if text.isdigit() and int(text)
            else None
        )
    if lowered == "sockettimeout":
        return ("socketTimeout", str(int(text) / 1000)) if text.isdigit() and int(text) else None
    if lowered == "sessionvariables":
        return "sessionVariables", value
    if lowered == "tinyint1isbit":
        return "tinyInt1IsBit", text
    if lowered == "verifyservercertificate" or lowered in WITHOUT_EFFECT:
        return None
    raise OptionError(
        f"option 'url' carries parameter {name!r}, which this connector does not know; omit it, or set "
        "the option that means it (such as sslmode, zeroDates, connectTimeout)",
        option="url",
        takes=_TAKES,
    )


class MysqlReadOptions(ServerOptions, SqlReadOptions):
    """Options of the MySQL reader."""

    ignored: ClassVar[Mapping[str, str]] = {**SqlReadOptions.ignored, **_IGNORED}

    zero_dates: Literal["error", "null"] = Field(
        "error",
        description="how `0000-00-00` is read: `error` names the column, `null` returns NULL",
    )
    tiny_int1_is_bit: bool = Field(
        True, description="read TINYINT(1) as boolean; false: as a number from -128 to 127"
    )
    binlog: bool = Field(
        False,
        description="streams and tunnels: follow the table by the server's binary log; default: by `cursorColumn`",
    )
    timestamps_as: Literal["instant", "local"] = Field(
        "instant",
        description="read TIMESTAMP as an `instant`, or as `local` time of the session without a zone",
    )
    floats_as: Literal["number", "text"] = Field(
        "number",
        description="read floats as a `number`, or as the `text` that the server shows: `100`, `1e20`, `1.50`",
    )

    wide_decimals: Literal["refuse", "text"] = Field(
        "refuse",
        description="a DECIMAL of more than 38 digits: `refuse` it by name, or read it as `text`",
    )

    @property
    def is_plain_table(self) -> bool:
        """Whether nothing of the user's is worked out in the session."""
        of_user = (
            self.query,
            self.where,
            self.session_init_statement,
            self.session_variables,
            self.session_time_zone,
        )
        bracket = (self.dbtable or "").lstrip().startswith("(")
        return (
            self.timestamps_as == "instant"
            and not bracket
            and all(setting is None for setting in of_user)
        )

    def model_post_init(self, context: object) -> None:
        super().model_post_init(context)
        address_of(self)


class MysqlWriteOptions(ServerOptions, LedgerOptions, OnePassOptions, SqlWriteOptions):
    """Options of the MySQL writer."""

    keeps_table: ClassVar[str] = (
        "a table cannot be dropped and made again in one transaction here (DDL commits by itself)"
    )
    ignored: ClassVar[Mapping[str, str]] = {
        **SqlWriteOptions.ignored,
        **_IGNORED,
        "zeroDates": "it applies to reading",
        "tinyInt1IsBit": "it applies to reading",
        "timestampsAs": "it applies to reading",
        "floatsAs": "it applies to reading",
        "wideDecimals": "it applies to reading",
    }

    table_comment: str | None = Field(None, description="comment of a new table; default: none")
    duplicates: Literal["error", "update", "replace", "ignore"] = Field(
        "error",
        description="with `writeMode=insert`, a row that violates a unique key: `error`, or MySQL's ON DUPLICATE KEY "
        "UPDATE, REPLACE or INSERT IGNORE; the last of several rows wins",
    )
    local_infile: bool | None = Field(
        None,
        description="false: INSERT instead of LOAD DATA LOCAL; default: LOAD DATA if the server allows it",
    )

    def model_post_init(self, context: object) -> None:
        super().model_post_init(context)
        address_of(self)
        if self.duplicates != "error" and self.write_mode != "insert":
            raise OptionError(
                f"option 'duplicates' got {self.duplicates!r} with writeMode {self.write_mode}; "
                "it works with writeMode insert only, since the other modes use 'keyColumns': "
                "give one of the two",
                option="duplicates",
                got=self.duplicates,
                takes="error",
            )


def address_of(options: Any) -> Address:
    """The server that `options.url` names.

    Raises:
        OptionError: no url, another scheme, or an address that is none.
    """
    url = options.url
    if url is None:
        raise OptionError(
            f"nothing names the server: give 'url' as {_TAKES}", option="url", takes=_TAKES
        )
    options.tls_mode  # noqa: B018 - it is checked here
    text = url.strip()
    bare = text[len("jdbc:") :] if text.lower().startswith("jdbc:") else text
    scheme = bare.partition("://")[0].lower()
    if scheme not in ("mysql", "mariadb") or "://" not in bare:
        raise OptionError(
            f"option 'url' has scheme {scheme[:40]!r}; it takes {_TAKES}",
            option="url",
            got=scheme[:40],
            takes=_TAKES,
        )
    try:
        parts = urlsplit(bare)
        host, port = parts.hostname or "localhost", parts.port or 3306
    except ValueError:
        raise OptionError(
            f"option 'url' names no host and port; it takes {_TAKES}", option="url"
        ) from None
    if "," in parts.netloc:
        raise OptionError("option 'url' names several hosts; name one", option="url", takes=_TAKES)
    return Address(host, port, decoded(parts.path.removeprefix("/"), "database"))
