"""The address of Unity Catalog and the token for it: deltalake's own names, in `storageOptions` or the environment."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from spark_channel.errors import OptionError
from spark_channel.masking import without_login

__all__ = ["TOKEN_ADVICE", "Workspace", "without_workspace"]

_PREFIXES = ("unity_", "databricks_")
_URL = ("unity_workspace_url", "databricks_workspace_url", "workspace_url", "databricks_host")
_TOKEN = ("unity_access_token", "databricks_access_token", "access_token", "databricks_token")
_ALLOW_HTTP = ("unity_allow_http_url", "allow_http_url")
_API = "/api/2.1/unity-catalog"
_URL_ADVICE = (
    "unity_workspace_url (or databricks_host) in option 'storageOptions', or DATABRICKS_HOST"
)
TOKEN_ADVICE = (
    "unity_access_token (or databricks_token) in option 'storageOptions', or DATABRICKS_TOKEN"  # noqa: S105
)


@dataclass(frozen=True, slots=True)
class Workspace:
    """The address of the API, and the token for it."""

    url: str
    token: str = field(repr=False)

    @classmethod
    def of(cls, settings: Mapping[str, str]) -> "Workspace":
        """
        Raises:
            OptionError: no address, no token, or another login than a token.
        """
        known = [{name.lower(): value for name, value in settings.items()}, _environment()]
        url, token = _first(known, _URL), _first(known, _TOKEN)
        if not url:
            raise OptionError(
                f"option 'path' has a uc:// address, and nothing says where the catalog is; give {_URL_ADVICE}",
                option="storageOptions",
                takes="unity_workspace_url",
            )
        if not token:
            other = next(
                (
                    name
                    for each in known
                    for name in sorted(each)
                    if name.startswith(_PREFIXES) and "client" in name
                ),
                "",
            )
            why = (
                f"{other} is not a login that this connector knows"
                if other
                else "no token is given"
            )
            raise OptionError(
                f"option 'path' has a uc:// address, and {why}; give {TOKEN_ADVICE}",
                option="storageOptions",
                takes="unity_access_token",
            )
        return cls(_address(url, plain=_first(known, _ALLOW_HTTP).lower() in ("true", "1")), token)


def _environment() -> dict[str, str]:
    """As deltalake reads it."""
    return {
        name.lower(): value
        for name, value in os.environ.items()
        if name.lower().startswith(_PREFIXES) and name.isupper()
    }


def _first(known: Sequence[Mapping[str, str]], names: tuple[str, ...]) -> str:
    found = (each.get(name, "").strip() for each in known for name in names)
    return next(filter(None, found), "")


def _address(url: str, *, plain: bool) -> str:
    full = url if "://" in url else f"https://{url}"
    parts = urlsplit(full)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.query:
        raise OptionError(
            f"the address of Unity Catalog is {without_login(full)!r}; it takes https://host; correct {_URL_ADVICE}",
            option="storageOptions",
            takes="https://host",
        )
    if parts.scheme == "http" and not plain:
        raise OptionError(
            f"the address of Unity Catalog is {full!r}, and http:// would send the token in plain text; use "
            "https://, or set unity_allow_http_url to true in option 'storageOptions'",
            option="storageOptions",
            takes="https://host",
        )
    path = parts.path.rstrip("/").removesuffix(_API)
    return f"{parts.scheme}://{parts.netloc}{path}{_API}"


def without_workspace(settings: Mapping[str, str]) -> dict[str, str]:
    """The settings that are the store's."""
    own = {*_URL, *_TOKEN, *_ALLOW_HTTP}
    return {
        name.lower(): value
        for name, value in settings.items()
        if name.lower() not in own and not name.lower().startswith(_PREFIXES)
    }
