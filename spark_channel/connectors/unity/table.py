"""A table of Unity Catalog, as the driver found it: what a task needs to read and write its files, also for hours."""

import logging
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from spark_channel.clock import utc_now
from spark_channel.connectors.unity.azure_blob import remove_blob
from spark_channel.connectors.unity.client import UnityClient
from spark_channel.connectors.unity.credentials import Credentials, credentials_of
from spark_channel.connectors.unity.workspace import Workspace, without_workspace
from spark_channel.errors import (
    ChannelError,
    OptionError,
    SourceError,
    TargetError,
    UnsupportedError,
)

if TYPE_CHECKING:
    from obstore.store import AzureStore, S3Store

__all__ = ["UnityTable", "is_unity", "resolve"]

_log = logging.getLogger(__name__)

_PAUSE = 30.0
"""Seconds after a renewal that failed, while the old credentials hold: each request of the store would ask again."""
_SCHEMES = {"s3": "s3", "s3a": "s3", "abfs": "abfss", "abfss": "abfss"}
_VENDED = (
    "access_key",
    "secret_access",
    "session_token",
    "account_key",
    "sas_key",
    "sas_token",
    "storage_token",
    "bearer_token",
    "service_account",
    "application_credentials",
)
_S3 = {
    "endpoint": "endpoint",
    "endpoint_url": "endpoint",
    "region": "region",
    "default_region": "region",
    "virtual_hosted_style_request": "virtual_hosted_style_request",
}
_AZURE = {"storage_endpoint": "endpoint", "endpoint": "endpoint"}
"""Settings of the store without their prefix -> obstore's names."""


def is_unity(path: str) -> bool:
    return path.lower().startswith("uc:")


@dataclass(frozen=True, slots=True)
class UnityTable:
    """Pickled with a plan, so that tasks ask the catalog only when the driver's credentials expire.

    `settings` are the store's. `first` are the credentials that the driver got.
    """

    name: str
    table_id: str
    location: str
    writes: bool
    workspace: Workspace = field(repr=False)
    settings: tuple[tuple[str, str], ...] = field(repr=False)
    first: Credentials | None = field(default=None, repr=False, compare=False)

    @property
    def scheme(self) -> str:
        return urlsplit(self.location).scheme

    def current(self) -> Credentials:
        """Credentials that hold for a while.

        Raises:
            SourceError, TargetError: the catalog does not vend new ones, and the old ones have expired.
        """
        return _held(self).current(self.first)

    def store(self) -> "S3Store | AzureStore":
        self.current()  # fails here, in the catalog's words, not within a request of obstore
        return _store(self)

    @property
    def removes_one_by_one(self) -> bool:
        return self.scheme != "s3"

    def remove(self, path: str) -> None:
        remove_blob(_blob_address(self), path.partition("/")[2], self.current())

    def delta_settings(self) -> dict[str, str]:
        """For deltalake, which does not renew credentials: they hold for one operation."""
        found = dict(self.settings)
        if self.scheme != "s3":
            found["azure_storage_account_name"] = _account(self.location)
        return {**found, **dict(self.current().settings)}

    def vend(self) -> Credentials:
        failure = TargetError if self.writes else SourceError
        shown, operation = f"uc://{self.name}", "READ_WRITE" if self.writes else "READ"
        answer = UnityClient(self.workspace, shown, failure).credentials(self.table_id, operation)
        try:
            found = credentials_of(answer, self.scheme, utc_now().timestamp())
        except (AttributeError, LookupError, TypeError, ValueError):
            found = None
        if found is None:
            raise failure(
                f"{shown}: the catalog's answer has no credentials for {self.scheme}://; use the table's own "
                "cloud path with credentials of your own"
            )
        return found


def resolve(path: str, settings: Mapping[str, str], *, writes: bool) -> UnityTable:
    """Ask the catalog which location `path` names, and for credentials.

    Raises:
        OptionError: not `uc://catalog.schema.table`, or `settings` lack the catalog. SourceError, TargetError: the
            catalog refuses it, or has no such table. UnsupportedError: not a Delta table, or in another cloud.
    """
    name = path.partition("://")[2].rstrip("/")
    if (
        len(name.split(".")) != 3
        or not all(name.split("."))
        or any(mark in name for mark in "/?#@")
    ):
        raise OptionError(
            "option 'path' has a uc:// address of another form; it takes uc://catalog.schema.table",
            option="path",
            takes="uc://catalog.schema.table",
        )
    own = next(
        (
            each
            for each in sorted(settings)
            if any(part in each.lower() for part in _VENDED)
            and not each.lower().startswith(("unity_", "databricks_"))
        ),
        None,
    )
    if own is not None:
        raise OptionError(
            f"option 'storageOptions' has {own!r}, and the credentials of a uc:// table come from the catalog; "
            "omit it, or use the table's own cloud path",
            option="storageOptions",
            got=own,
        )
    workspace, shown = Workspace.of(settings), f"uc://{name}"
    failure: type[ChannelError] = TargetError if writes else SourceError
    found = UnityClient(workspace, shown, failure).table(name)
    location = _location(found, shown, failure)
    table = UnityTable(
        name,
        str(found.get("table_id") or ""),
        location,
        writes,
        workspace,
        tuple(sorted(_store_settings(location, settings).items())),
    )
    return UnityTable(
        table.name,
        table.table_id,
        table.location,
        writes,
        workspace,
        table.settings,
        table.current(),
    )


def _location(found: Mapping[str, Any], shown: str, failure: type[ChannelError]) -> str:
    kind = str(found.get("data_source_format") or "")
    location = str(found.get("storage_location") or "").rstrip("/")
    if kind.upper() != "DELTA" or not location:
        what = kind if kind.upper() != "DELTA" else str(found.get("table_type") or "without files")
        raise UnsupportedError(
            f"{shown} is not a Delta table: the catalog says {what or 'nothing of its format'}. Read it by its own "
            "connector, or with Spark"
        )
    parts = urlsplit(location)
    if parts.scheme not in _SCHEMES:
        why = (
            "deltalake takes no token for gs://, which is what the catalog vends"
            if parts.scheme == "gs"
            else "the catalog's credentials are used for S3 and Azure"
        )
        raise UnsupportedError(
            f"{shown} is at {parts.scheme or 'file'}://{parts.netloc}{parts.path}; {why}. Use that path, with "
            "credentials of your own"
        )
    if not found.get("table_id"):
        raise failure(
            f"{shown}: the catalog's answer has no table_id; check unity_workspace_url in 'storageOptions'"
        )
    return f"{_SCHEMES[parts.scheme]}://{parts.netloc}{parts.path}"


def _store_settings(location: str, settings: Mapping[str, str]) -> dict[str, str]:
    found = without_workspace(settings)
    if urlsplit(location).scheme != "s3":
        return found
    named = {_S3.get(name.removeprefix("aws_")) for name in found}
    if "region" not in named:
        region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
        at_aws = "endpoint" not in named and not any(
            name in os.environ
            for name in ("AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3")
        )
        if not region and at_aws:
            from pyarrow import fs as pafs

            region = pafs.resolve_s3_region(urlsplit(location).netloc)
        found["aws_region"] = region or "us-east-1"
    return found


def _blob_address(table: UnityTable) -> str:
    """Of the container."""
    parts, account = urlsplit(table.location), _account(table.location)
    given = _config(dict(table.settings), "azure_", _AZURE).get("endpoint")
    host = (parts.hostname or "").replace(".dfs.", ".blob.", 1)
    return f"{given or f'https://{host}'}/{parts.username or ''}" if account else ""


def _account(location: str) -> str:
    return (urlsplit(location).hostname or "").partition(".")[0]


class _Held:
    """The newest credentials of one table in this process."""

    def __init__(self, vend: Callable[[], Credentials], shown: str) -> None:
        self._vend, self._shown = vend, shown
        self._lock = threading.Lock()
        self._credentials: Credentials | None = None
        self._not_before = 0.0

    def current(self, first: Credentials | None) -> Credentials:
        with self._lock:
            now = utc_now().timestamp()
            held = self._credentials
            if first is not None and (held is None or held.expires < first.expires):
                held = first
            if (
                held is None
                or held.has_expired(now)
                or (held.is_due(now) and now >= self._not_before)
            ):
                held = self._renewed(held, now)
            self._credentials = held
            return held

    def _renewed(self, held: Credentials | None, now: float) -> Credentials:
        try:
            return self._vend()
        except ChannelError as error:
            if held is None or held.has_expired(now):
                raise
            self._not_before = now + _PAUSE
            _log.warning(
                "%s: credentials were not renewed, and hold until they expire: %s",
                self._shown,
                error,
            )
            return held


@lru_cache(maxsize=128)
def _held(table: UnityTable) -> _Held:
    return _Held(table.vend, f"uc://{table.name}")


def _expiry(found: Credentials) -> datetime | None:
    return datetime.fromtimestamp(found.expires, UTC) if found.expires else None


@lru_cache(maxsize=32)
def _store(table: UnityTable) -> "S3Store | AzureStore":
    from obstore.store import AzureStore, S3Store

    parts, settings = urlsplit(table.location), dict(table.settings)
    client: Any = (
        {"allow_http": True} if settings.get("allow_http", "").lower() in ("true", "1") else {}
    )
    if table.scheme == "s3":

        def s3() -> Any:
            found = table.current()
            return {
                "access_key_id": found.get("aws_access_key_id"),
                "secret_access_key": found.get("aws_secret_access_key"),
                "token": found.get("aws_session_token"),
                "expires_at": _expiry(found),
            }

        config: Any = _config(settings, "aws_", _S3)
        return S3Store(parts.netloc, config=config, client_options=client, credential_provider=s3)

    def azure() -> Any:
        found = table.current()
        sas = found.get("azure_storage_sas_key")
        login = {"sas_token": sas} if sas else {"token": found.get("azure_storage_token")}
        return {**login, "expires_at": _expiry(found)}

    config = {"account_name": _account(table.location), **_config(settings, "azure_", _AZURE)}
    return AzureStore(
        parts.username or "", config=config, client_options=client, credential_provider=azure
    )


def _config(settings: Mapping[str, str], prefix: str, names: Mapping[str, str]) -> dict[str, Any]:
    found = {
        names[name.removeprefix(prefix)]: value
        for name, value in settings.items()
        if name.removeprefix(prefix) in names
    }
    return {
        name: value == "true" if value in ("true", "false") else value
        for name, value in found.items()
    }
