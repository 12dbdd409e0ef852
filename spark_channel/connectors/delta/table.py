"""Opens a table with `deltalake`: its uri, its store's settings, and its errors."""

import os
import posixpath
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, quote, urlsplit

import pyarrow as pa

from spark_channel.connectors.delta.features import (
    COMPLETE,
    EARLIER_TYPE,
    IN_SPARK,
    UNSUPPORTED,
    schema_fields,
)
from spark_channel.connectors.delta.options import Table
from spark_channel.connectors.files.filesystem import Location, azure_account, azure_key, locate
from spark_channel.connectors.lake.columns import LENGTH_NOTE
from spark_channel.errors import (
    ChannelError,
    MissingPackageError,
    OptionError,
    SourceError,
    TargetError,
    UnsupportedError,
)
from spark_channel.final_errors import of_input
from spark_channel.masking import without_login

if TYPE_CHECKING:
    from deltalake import DeltaTable

__all__ = [
    "columns_of",
    "commits_removals",
    "explained",
    "open_table",
    "place_of",
    "settings_of",
    "uri_of",
    "written_columns",
]


_SCHEMES = ("", "s3", "gs", "abfs", "abfss")
_CATALOG_MANAGED = "catalog-managed table"
"""What deltalake says of such a table, which it does not open."""


def place_of(options: Table) -> Location:
    """
    Raises:
        OptionError: a store without conditional puts, or a path that deltalake takes for another one.
    """
    location = locate(options.path, login=options.login)
    scheme = location.root.split(":", 1)[0]
    if scheme not in _SCHEMES:
        raise OptionError(
            f"option 'path' got a {scheme}:// uri; a Delta table needs a local disk, s3, gs or abfs, where two jobs "
            "cannot commit one version",
            option="path",
            got=scheme,
            takes="a local path, or an s3, gs or abfs uri",
        )
    strange = next(
        (
            character
            for character in ("%", "\\")
            if character in location.path and (character == "%" or location.local)
        ),
        None,
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
    return location


def uri_of(location: Location) -> str:
    """As deltalake decodes it."""
    if location.local:
        return location.path
    scheme = location.root.split(":", 1)[0]
    bucket, _, inside = location.path.partition("/")
    if scheme in ("abfs", "abfss"):
        bucket = f"{bucket}@{azure_account(location.root)}.dfs.core.windows.net"
        scheme = "abfss"
    return f"{scheme}://{bucket}/{quote(inside)}"


def settings_of(location: Location, options: Table) -> dict[str, str] | None:
    """The settings of the uri and the environment, under `object_store`'s names."""
    settings: dict[str, str] = {}
    if not location.local:
        parts = urlsplit(location.root)
        query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        plain = query.get("scheme") == "http" or query.get("enable_tls") == "false"
        if plain:
            settings["allow_http"] = "true"
        settings |= {"s3": _s3, "gs": _gcs}.get(parts.scheme, _azure)(location, query, plain=plain)
    return {**settings, **options.more_storage()} or None


def _address(address: str, *, plain: bool) -> str:
    return address if "://" in address else f"http{'' if plain else 's'}://{address}"


def _s3(location: Location, query: Mapping[str, str], *, plain: bool) -> dict[str, str]:
    settings = {"aws_region": str(getattr(location.fs, "region", "") or "") or "us-east-1"}
    if "endpoint_override" in query:
        settings["aws_endpoint"] = _address(query["endpoint_override"], plain=plain)
    return settings


def _gcs(location: Location, query: Mapping[str, str], *, plain: bool) -> dict[str, str]:
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
    return (
        {"google_skip_signature": "true"} if urlsplit(location.root).username == "anonymous" else {}
    )


def _azure(location: Location, query: Mapping[str, str], *, plain: bool) -> dict[str, str]:
    account = azure_account(location.root)
    settings = {"azure_storage_account_name": account}
    address = query.get("blob_storage_authority", ".")
    if not address.startswith("."):
        settings["azure_storage_endpoint"] = f"{_address(address, plain=plain)}/{account}"
    key = azure_key(location.login)
    return {**settings, "azure_storage_account_key": key} if key else settings


@contextmanager
def explained(label: str, failure: type[SourceError] | type[TargetError]) -> Iterator[None]:
    """Turn errors of deltalake into `failure`. Our own, and those of the file system, pass unchanged."""
    from deltalake.exceptions import DeltaError, TableNotFoundError

    try:
        yield
    except (ChannelError, pa.ArrowException):
        raise
    except TableNotFoundError as error:
        raise of_input(
            failure(f"{label} is not a Delta table: {label}/_delta_log does not exist")
        ) from error
    except (DeltaError, OSError, ValueError) as error:
        if _CATALOG_MANAGED in str(error):
            raise UnsupportedError(
                f"{label} has the feature 'catalogManaged': its catalog commits, and files of the log may be "
                "elsewhere; use Delta Lake in Spark for this table"
            ) from error
        if unsupported := UNSUPPORTED.search(str(error)):
            raise _too_old(label, unsupported[1]) from error
        if earlier := EARLIER_TYPE.search(str(error)):
            raise UnsupportedError(
                f"{label} has the partition value {earlier[1]}, which deltalake does not read as {earlier[2]}: the "
                f"column may have become {earlier[2]} after that (type widening); {IN_SPARK}"
            ) from error
        if isinstance(error, OSError):
            raise
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise failure(f"{label}: deltalake says: {without_login(first)}") from error


def commits_removals() -> bool:
    """Whether deltalake takes a list of the files that a commit removes: from 1.6.6 on."""
    from deltalake import transaction

    return hasattr(transaction, "RemoveAction")


def _too_old(label: str, features: str) -> ChannelError:
    """The error for features of a table to which this deltalake does not commit."""
    from importlib.metadata import version

    installed = version("deltalake")
    if commits_removals():
        return UnsupportedError(
            f"{label} has the features {features}, to which deltalake {installed} does not commit; {IN_SPARK}"
        )
    return MissingPackageError(
        f"{label} has the features {features}, to which deltalake {installed} of {sys.executable} does not commit. "
        f"They need deltalake {COMPLETE} or newer: pip install 'deltalake>={COMPLETE}', on the driver's host and on "
        "the workers",
        name="deltalake",
    )


def open_table(
    options: Table, location: Location, as_of: int | datetime | None = None, *, files: bool = True
) -> "DeltaTable":
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    settings = settings_of(location, options)
    if isinstance(as_of, int):
        try:
            return DeltaTable(
                uri_of(location), version=as_of, storage_options=settings, without_files=not files
            )
        except DeltaError:
            newest = int(DeltaTable(uri_of(location), storage_options=settings).version())
            if as_of <= newest:
                raise
            raise SourceError(
                f"{location.show()} has no version {as_of}, its newest one is {newest}; check option 'version'"
            ) from None
    table = DeltaTable(uri_of(location), storage_options=settings, without_files=not files)
    if as_of is not None:
        table.load_as_version(as_of)
        _check_as_old(location, int(table.version()), as_of)
    return table


def _check_as_old(location: Location, version: int, as_of: datetime) -> None:
    """deltalake finds a version by the times of the log's files, and gives the oldest one for every time before it
    (findings/delta-as-of-before-the-first.sh).

    Raises:
        SourceError: the table has no version as old as `as_of`.
    """
    info = location.fs.get_file_info(
        posixpath.join(location.path, "_delta_log", f"{version:020d}.json")
    )
    if info.mtime is not None and info.mtime_ns // 10**6 > as_of.timestamp() * 1000:
        raise SourceError(
            f"{location.show()} has no version as old as {as_of.isoformat()}: its oldest one, {version}, is of "
            f"{info.mtime.astimezone(UTC).isoformat()}; check option 'timestamp'"
        )


def columns_of(table: "DeltaTable") -> pa.Schema:
    """The table's columns as Arrow's. `DeltaTable.schema` has what only the log says of them."""
    schema = pa.schema(table.schema().to_arrow())
    return pa.schema([pa.field(field.name, field.type, field.nullable) for field in schema])


def written_columns(table: "DeltaTable") -> pa.Schema:
    """The same, with the notes of which a write takes care: the lengths of CHAR and VARCHAR."""
    notes = {
        field["name"]: field.get("metadata", {}).get(LENGTH_NOTE) for field in schema_fields(table)
    }
    return pa.schema(
        [
            field
            if notes[field.name] is None
            else field.with_metadata({LENGTH_NOTE: notes[field.name]})
            for field in columns_of(table)
        ]
    )
