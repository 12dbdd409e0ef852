"""Options of the PostgreSQL connector, and the address that they name."""

import math
import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, SecretStr, model_validator

from spark_channel.connectors.postgresql.options.address import (
    Address,
    SslMode,
    conninfo,
    parse_url,
    parsed_url,
)
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
    "PostgresOptions",
    "PostgresReadOptions",
    "PostgresWriteOptions",
]

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
        return parsed_url(str(getattr(self, "url")))  # noqa: B009 - both subclasses have it

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
