"""Where a service is, and the token that opens it."""

from dataclasses import dataclass, field
from typing import Any, Self

__all__ = ["ServiceAddress"]


@dataclass(frozen=True, slots=True)
class ServiceAddress:
    """Host, port and bearer token of one service; plain data that travels to the executors.

    `tls_root` is the PEM certificate that the service's is checked against; None = no TLS. Neither it
    nor the token is in the `repr`.
    """

    host: str
    port: int
    token: str = field(repr=False)
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
        return {"host": self.host, "port": self.port, "token": self.token, "tls_root": self.tls_root}

    @classmethod
    def from_json(cls, data: Any) -> Self:
        """Read what `to_json` made.

        Raises:
            ValueError: not such data.
        """
        if not isinstance(data, dict):
            raise ValueError("an address is a JSON object")
        host, port, token, root = (data.get(name) for name in ("host", "port", "token", "tls_root"))
        if not (isinstance(host, str) and host and isinstance(token, str) and token):
            raise ValueError("an address has a host and a token")
        if type(port) is not int or not 0 < port < 65536:
            raise ValueError("an address has a port from 1 to 65535")
        if root is not None and not isinstance(root, str):
            raise ValueError("tls_root is PEM text or null")
        return cls(host, port, token, root)
