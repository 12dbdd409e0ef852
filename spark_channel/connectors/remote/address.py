"""The address of a file server, and the login."""

from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

__all__ = ["SETTINGS", "Address", "is_remote"]

PORTS = {"ftp": 21, "ftps": 21, "sftp": 22}
SETTINGS = (
    "user",
    "password",
    "private_key_file",
    "private_key_password",
    "host_key",
    "timeout",
    "active",
    "sslmode",
    "sslrootcert",
)
"""Names of settings in option `storageOptions`."""
_TIMEOUT = 60.0
_LONGEST = 86_400


def is_remote(root: str) -> bool:
    """Whether a `Location.root` is one of a server of files."""
    scheme, mark, _ = root.partition("://")
    return bool(mark) and scheme.lower() in PORTS


@dataclass(frozen=True, slots=True)
class Address:
    """`settings` are never shown."""

    scheme: str
    host: str
    port: int
    settings: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @classmethod
    def of(cls, root: str, settings: tuple[tuple[str, str], ...] = ()) -> "Address":
        """
        Raises:
            ValueError: no host, or a setting that is malformed.
        """
        parts = urlsplit(root)
        if not parts.hostname:
            raise ValueError("the uri names no host; it takes sftp://host:22/folder")
        own = dict(settings)
        if parts.username and "user" not in own:
            own["user"] = unquote(parts.username)
        made = cls(
            parts.scheme,
            parts.hostname,
            parts.port or PORTS[parts.scheme],
            tuple(sorted(own.items())),
        )
        if not 0 < made.timeout <= _LONGEST:
            raise ValueError(
                f"'timeout' in option 'storageOptions' is not between 0 and {_LONGEST} seconds"
            )
        if made.get("sslmode") not in (None, "verify-full", "require"):
            raise ValueError(
                "'sslmode' in option 'storageOptions' is not verify-full, or require, which checks no certificate"
            )
        return made

    def get(self, name: str) -> str | None:
        return dict(self.settings).get(name)

    @property
    def timeout(self) -> float:
        """Seconds for one answer of the server."""
        given = self.get("timeout")
        try:
            return _TIMEOUT if given is None else float(given)
        except ValueError:
            raise ValueError(
                "'timeout' in option 'storageOptions' is not a number of seconds"
            ) from None

    @property
    def shown(self) -> str:
        return f"{self.scheme}://{self.host}:{self.port}"
