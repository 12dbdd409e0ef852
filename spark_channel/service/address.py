"""Where a service is, and the token that opens it."""

from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Self

from pydantic import ConfigDict, Field

from spark_channel.plain_data import from_plain, to_plain

__all__ = ["ServiceAddress"]


@dataclass(frozen=True, slots=True)
class ServiceAddress:
    """Host, port and bearer token of one service; plain data that travels to the executors.

    `tls_root` is the PEM certificate that the service's is checked against; None = no TLS. Neither it
    nor the token is in the `repr`.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(
        extra="ignore", strict=True, hide_input_in_errors=True
    )

    host: Annotated[str, Field(min_length=1)]
    port: Annotated[int, Field(gt=0, lt=65536)]
    token: Annotated[str, Field(min_length=1)] = field(repr=False)
    tls_root: str | None = field(default=None, repr=False)

    @property
    def location(self) -> str:
        """As a url."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http{'s' if self.tls_root else ''}://{host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    def to_json(self) -> dict[str, Any]:
        """Plain data, token included: for a 0600 file, or a pickled reader."""
        return to_plain(self)

    @classmethod
    def from_json(cls, data: Any) -> Self:
        """Read what `to_json` made.

        Raises:
            ValueError: not such data.
        """
        return from_plain(cls, data, "an address")
