"""Options, under the names of Spark's JDBC source, and the address that they give."""

from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import Field

from spark_channel.connectors.sql import Credentials, SqlReadOptions, SqlWriteOptions
from spark_channel.errors import OptionError
from spark_channel.options import Trait

__all__ = ["Address", "FirebirdReadOptions", "FirebirdWriteOptions"]

_Seconds = Annotated[float, Field(ge=0, le=86_400), Trait.SAME_ROWS]


class Address(Credentials):
    """`firebird://host:port/path/of/file.fdb` or `firebird://host:port/alias`, and how long to wait."""

    lock_timeout: _Seconds = Field(
        30.0, description="seconds to wait for a lock of another transaction"
    )
    retry_timeout: _Seconds = Field(
        60.0, description="seconds for which a server that went away is tried again"
    )

    def model_post_init(self, context: Any) -> None:
        super().model_post_init(context)
        url = urlsplit((getattr(self, "url", None) or "").removeprefix("jdbc:"))
        if not url.hostname or not url.path.strip("/"):
            takes = "firebird://host:port/database"
            raise OptionError(
                f"option 'url' names no host and database; it takes {takes}",
                option="url",
                takes=takes,
            )

    @property
    def place(self) -> str:
        """host/port:database, as the driver takes it, and as messages show it."""
        url = urlsplit(str(self.url).removeprefix("jdbc:"))  # type: ignore[attr-defined] # each address has a url
        path = url.path.removeprefix("/")
        return f"{url.hostname}/{url.port or 3050}:{path if path.startswith('/') or '/' not in path else '/' + path}"


class FirebirdReadOptions(Address, SqlReadOptions):
    """What the reader takes."""


class FirebirdWriteOptions(Address, SqlWriteOptions):
    """What the writer takes."""
