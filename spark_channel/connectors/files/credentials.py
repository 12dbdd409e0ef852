"""The credentials of an object store from option `storageOptions`, in place of the environment's."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import BeforeValidator, SecretStr

from spark_channel.connectors.remote.client import SETTINGS
from spark_channel.errors import OptionError
from spark_channel.options import resolve_secret
from spark_channel.working_directory import absolute_path

__all__ = ["StorageCredentials", "StorageSettings", "login_of", "read_settings"]

_NAMES = {
    "aws_access_key_id": "aws_access_key_id",
    "access_key_id": "aws_access_key_id",
    "aws_secret_access_key": "aws_secret_access_key",
    "secret_access_key": "aws_secret_access_key",
    "aws_session_token": "aws_session_token",
    "session_token": "aws_session_token",
    "aws_virtual_hosted_style_request": "aws_virtual_hosted_style_request",
    "virtual_hosted_style_request": "aws_virtual_hosted_style_request",
    "azure_storage_account_key": "azure_storage_account_key",
    "account_key": "azure_storage_account_key",
    **{name: name for name in SETTINGS},
}
"""`object_store`'s names of settings, with its aliases, and those of servers of files."""
_FILES = {"private_key_file", "sslrootcert"}
_PAIR = ("aws_access_key_id", "aws_secret_access_key")


@dataclass(frozen=True, slots=True)
class StorageCredentials:
    """Credentials of one store. Clients are kept by it, so it can be hashed; it is never shown."""

    settings: tuple[tuple[str, str], ...] = field(repr=False)

    def get(self, name: str) -> str | None:
        return dict(self.settings).get(name)

    @property
    def virtual_hosted(self) -> bool:
        """Whether the bucket is a part of the host's name, as some stores demand."""
        return (self.get("aws_virtual_hosted_style_request") or "").lower() == "true"

    @classmethod
    def from_settings(
        cls, settings: Mapping[str, str], *, strict: bool = False
    ) -> "StorageCredentials | None":
        """
        Raises:
            OptionError: half of a pair of keys, or (`strict`) a name that is not known.
        """
        credentials = {
            _NAMES[name.lower()]: value
            for name, value in settings.items()
            if name.lower() in _NAMES
        }
        strange = sorted(name for name in settings if name.lower() not in _NAMES)
        if strict and strange:
            takes = ", ".join(dict.fromkeys(_NAMES.values()))
            raise OptionError(
                f"option 'storageOptions' has {strange[0]!r}; for files it takes {takes}",
                option="storageOptions",
                got=strange[0],
                takes=takes,
            )
        half = [name for name in _PAIR if name in credentials]
        if len(half) == 1:
            (lost,) = set(_PAIR) - set(half)
            raise OptionError(
                f"option 'storageOptions' has {half[0]} without {lost}; give both, or neither",
                option="storageOptions",
                takes=lost,
            )
        return cls(tuple(sorted(credentials.items()))) if credentials else None


def _settings(value: object) -> SecretStr:
    """A JSON object of texts, its references (`${env:NAME}`) resolved: on the driver, as those of other secrets."""
    text = resolve_secret(value).get_secret_value()
    try:
        settings = json.loads(text)
    except (ValueError, RecursionError):
        settings = None
    if not isinstance(settings, dict) or any(
        isinstance(setting, dict | list) for setting in settings.values()
    ):
        raise ValueError("a JSON object of texts")
    texts = {name: _plain(setting) for name, setting in settings.items() if setting is not None}
    for name in texts.keys() & _FILES:
        texts[name] = absolute_path(texts[name], uri=False)
    return SecretStr(json.dumps(texts))


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return resolve_secret(value).get_secret_value()


StorageSettings = Annotated[SecretStr, BeforeValidator(_settings)]
"""Settings of a store, secret as a whole."""


def read_settings(secret: SecretStr | None) -> dict[str, str]:
    return {} if secret is None else json.loads(secret.get_secret_value())


def login_of(options: Mapping[str, Any]) -> StorageCredentials | None:
    """The credentials in options of a connector that is not known yet, whose other settings are left out.

    Raises:
        OptionError: the settings are no JSON object.
    """
    for name, value in options.items():
        if name.lower() == "storageoptions":
            try:
                return StorageCredentials.from_settings(read_settings(_settings(value)))
            except ValueError as error:
                raise OptionError(
                    f"option 'storageOptions' takes {error}", option="storageOptions"
                ) from None
    return None
