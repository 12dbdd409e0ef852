"""Temporary credentials of one table's files, as Unity Catalog vends them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Credentials", "credentials_of"]

_LONGEST_MARGIN = 600.0
_KINDS = {
    "s3": (
        "aws_temp_credentials",
        {
            "access_key_id": "aws_access_key_id",
            "secret_access_key": "aws_secret_access_key",
            "session_token": "aws_session_token",
        },
    ),
    "azure_sas": ("azure_user_delegation_sas", {"sas_token": "azure_storage_sas_key"}),
    "azure_token": ("azure_aad", {"aad_token": "azure_storage_token"}),
}
"""Kind -> (the part of the answer, its fields as `object_store` calls them)."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """`settings` has `object_store`'s names. Times are seconds since 1970; `expires` of 0 = never."""

    settings: tuple[tuple[str, str], ...] = field(repr=False)
    received: float
    expires: float

    def get(self, name: str) -> str | None:
        return dict(self.settings).get(name)

    def is_due(self, now: float) -> bool:
        """Whether new ones should be asked for: ten minutes early, or in the last third of a short life."""
        margin = min(_LONGEST_MARGIN, (self.expires - self.received) / 3)
        return bool(self.expires) and now >= self.expires - margin

    def has_expired(self, now: float) -> bool:
        return bool(self.expires) and now >= self.expires


def credentials_of(answer: Mapping[str, Any], scheme: str, now: float) -> Credentials | None:
    """The credentials in an answer for a location of `scheme`; None = it has none.

    Raises:
        KeyError, TypeError, ValueError: the answer has another form.
    """
    wanted = ("s3",) if scheme == "s3" else ("azure_sas", "azure_token")
    for kind in wanted:
        part, names = _KINDS[kind]
        found = answer.get(part)
        if found:
            settings = {known: str(found[name]) for name, known in names.items() if found.get(name)}
            required = [known for name, known in names.items() if name != "session_token"]
            if all(settings.get(name) for name in required):
                expires = float(answer.get("expiration_time") or 0) / 1000
                return Credentials(tuple(sorted(settings.items())), now, expires)
    return None
