"""Opens a table with `deltalake`: its uri, its store's settings, and its errors."""

import os
import posixpath
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, quote, urlsplit

import pyarrow as pa

from spark_channel.connectors.delta.options import Table
from spark_channel.connectors.files.paths import Location, azure_account, azure_key, locate
from spark_channel.errors import ChannelError, OptionError, SourceError, TargetError, UnsupportedError
from spark_channel.masking import without_login

if TYPE_CHECKING:
    from deltalake import DeltaTable

__all__ = ["columns_of", "explained", "open_table", "place_of", "settings_of", "uri_of"]

_SCHEMES = ("", "s3", "gs", "abfs", "abfss")
_CATALOG_MANAGED = "catalog-managed table"
"""What deltalake says of such a table, which it does not open."""


def place_of(options: Table) -> Location:
    """
    Raises:
        OptionError: a store without conditional puts, or a path that deltalake takes for another one.
    """
    unity = options.unity()
    place = locate(options.path if unity is None else unity.location, login=options.login)
    scheme = place.root.split(":", 1)[0]
    if scheme not in _SCHEMES:
        raise OptionError(
            f"option 'path' got a {scheme}:// uri; a Delta table needs a local disk, s3, gs or abfs, where two jobs "
            "cannot commit one version",
            option="path", got=scheme, takes="a local path, or an s3, gs or abfs uri",
        )  # fmt: skip
    strange = next(
        (each for each in ("%", "\\") if each in place.path and (each == "%" or place.local)), None
    )
    if strange is not None:
        raise OptionError(
            f"option 'path' holds {strange!r}, which deltalake decodes: it would use another folder; name another one",
            option="path",
        )
    if scheme == "s3" and os.environ.get("AWS_S3_ALLOW_UNSAFE_RENAME", "").lower() in ("true", "1"):
        raise OptionError(
            "the environment sets AWS_S3_ALLOW_UNSAFE_RENAME: two jobs could then commit one version, "
            "and lose each other's rows. Remove it: S3 supports conditional puts",
            option="path",
        )
    return place


def uri_of(place: Location) -> str:
    """As deltalake decodes it."""
    if place.local:
        return place.path
    scheme = place.root.split(":", 1)[0]
    bucket, _, inside = place.path.partition("/")
    if scheme in ("abfs", "abfss"):
        bucket = f"{bucket}@{azure_account(place.root)}.dfs.core.windows.net"
        scheme = "abfss"
    return f"{scheme}://{bucket}/{quote(inside)}"


def settings_of(place: Location, options: Table) -> dict[str, str] | None:
    """The settings of the uri and the environment, under `object_store`'s names."""
    unity = options.unity()
    if unity is not None:
        return unity.delta_settings()
    found: dict[str, str] = {}
    if not place.local:
        parts = urlsplit(place.root)
        query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        plain = query.get("scheme") == "http" or query.get("enable_tls") == "false"
        if plain:
            found["allow_http"] = "true"
        found |= {"s3": _s3, "gs": _gcs}.get(parts.scheme, _azure)(place, query, plain=plain)
    return {**found, **options.more_storage()} or None


def _address(address: str, *, plain: bool) -> str:
    return address if "://" in address else f"http{'' if plain else 's'}://{address}"


def _s3(place: Location, query: Mapping[str, str], *, plain: bool) -> dict[str, str]:
    found = {"aws_region": str(getattr(place.fs, "region", "") or "") or "us-east-1"}
    if "endpoint_override" in query:
        found["aws_endpoint"] = _address(query["endpoint_override"], plain=plain)
    return found


def _gcs(place: Location, query: Mapping[str, str], *, plain: bool) -> dict[str, str]:
    import json

    if "endpoint_override" in query:
        key = {
            "gcs_base_url": _address(query["endpoint_override"], plain=plain),
            "disable_oauth": True,
            "client_email": "",
            "private_key": "",
            "private_key_id": "",
        }
        return {"google_service_account_key": json.dumps(key)}
    return {"google_skip_signature": "true"} if urlsplit(place.root).username == "anonymous" else {}


def _azure(place: Location, query: Mapping[str, str], *, plain: bool) -> dict[str, str]:
    account = azure_account(place.root)
    found = {"azure_storage_account_name": account}
    address = query.get("blob_storage_authority", ".")
    if not address.startswith("."):
        found["azure_storage_endpoint"] = f"{_address(address, plain=plain)}/{account}"
    key = azure_key(place.login)
    return {**found, "azure_storage_account_key": key} if key else found


@contextmanager
def explained(shown: str, failure: type[SourceError] | type[TargetError]) -> Iterator[None]:
    """Turn errors of deltalake into `failure`. Our own, and those of the file system, pass unchanged."""
    from deltalake.exceptions import DeltaError, TableNotFoundError

    try:
        yield
    except (ChannelError, pa.ArrowException):
        raise
    except TableNotFoundError as error:
        raise failure(f"{shown} is not a Delta table: {shown}/_delta_log does not exist") from error
    except (DeltaError, OSError, ValueError) as error:
        if _CATALOG_MANAGED in str(error):
            raise UnsupportedError(
                f"{shown} has the feature 'catalogManaged': its catalog commits, and files of the log may be "
                "elsewhere; use Delta Lake in Spark for this table"
            ) from error
        if isinstance(error, OSError):
            raise
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise failure(f"{shown}: deltalake says: {without_login(first)}") from error


def open_table(
    options: Table, place: Location, as_of: int | datetime | None = None, *, files: bool = True
) -> "DeltaTable":
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    settings = settings_of(place, options)
    if isinstance(as_of, int):
        try:
            return DeltaTable(uri_of(place), version=as_of, storage_options=settings, without_files=not files)
        except DeltaError:
            newest = int(DeltaTable(uri_of(place), storage_options=settings).version())
            if as_of <= newest:
                raise
            raise SourceError(
                f"{place.show()} has no version {as_of}, its newest one is {newest}; check option 'version'"
            ) from None
    table = DeltaTable(uri_of(place), storage_options=settings, without_files=not files)
    if as_of is not None:
        table.load_as_version(as_of)
        _check_as_old(place, int(table.version()), as_of)
    return table


def _check_as_old(place: Location, version: int, as_of: datetime) -> None:
    """deltalake finds a version by the times of the log's files, and gives the oldest one for every time before it.

    Raises:
        SourceError: the table has no version as old as `as_of`.
    """
    info = place.fs.get_file_info(posixpath.join(place.path, "_delta_log", f"{version:020d}.json"))
    if info.mtime is not None and info.mtime_ns // 10**6 > as_of.timestamp() * 1000:
        raise SourceError(
            f"{place.show()} has no version as old as {as_of.isoformat()}: its oldest one, {version}, is of "
            f"{info.mtime.astimezone(UTC).isoformat()}; check option 'timestamp'"
        )


def columns_of(table: "DeltaTable") -> pa.Schema:
    """The table's columns as Arrow's. What only the log says of them is in `DeltaTable.schema`."""
    found = pa.schema(table.schema().to_arrow())
    return pa.schema([pa.field(field.name, field.type, field.nullable) for field in found])
