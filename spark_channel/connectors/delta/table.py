"""Options; table opened by deltalake; features refused."""

import json
import os
import posixpath
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, quote, urlsplit

import pyarrow as pa

from spark_channel.connectors.delta.options import Table
from spark_channel.connectors.files.filesystem import (
    Location,
    azure_account,
    azure_key,
    locate,
)
from spark_channel.connectors.lake.table import LENGTH_NOTE, is_length
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
    "check_deletion_vectors",
    "check_readable",
    "check_writable",
    "columns_of",
    "commits_removals",
    "explained",
    "open_table",
    "place_of",
    "settings_of",
    "uri_of",
    "written_columns",
]


# Opens a table with `deltalake`: its uri, its store's settings, and its errors.


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
        if unsupported := _UNSUPPORTED.search(str(error)):
            raise _too_old(label, unsupported[1]) from error
        if earlier := _EARLIER_TYPE.search(str(error)):
            raise UnsupportedError(
                f"{label} has the partition value {earlier[1]}, which deltalake does not read as {earlier[2]}: the "
                f"column may have become {earlier[2]} after that (type widening); {_IN_SPARK}"
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
            f"{label} has the features {features}, to which deltalake {installed} does not commit; {_IN_SPARK}"
        )
    return MissingPackageError(
        f"{label} has the features {features}, to which deltalake {installed} of {sys.executable} does not commit. "
        f"They need deltalake {_COMPLETE} or newer: pip install 'deltalake>={_COMPLETE}', on the driver's host and on "
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
    notes = {field["name"]: field.get("metadata", {}).get(LENGTH_NOTE) for field in _fields(table)}
    return pa.schema(
        [
            field
            if notes[field.name] is None
            else field.with_metadata({LENGTH_NOTE: notes[field.name]})
            for field in columns_of(table)
        ]
    )


# Table features that this connector would read or write wrongly: refused by name.


_READ = {
    "timestampNtz",
    "deletionVectors",
    "columnMapping",
    "v2Checkpoint",
    "vacuumProtocolCheck",
    "appendOnly",
    "typeWidening",
    "typeWidening-preview",
}
_WRITTEN = {
    "timestampNtz",
    "deletionVectors",
    "columnMapping",
    "v2Checkpoint",
    "appendOnly",
    "invariants",
    "checkConstraints",
    "changeDataFeed",
    "generatedColumns",
}
"""Features that deltalake commits to, and whose use is looked for below."""

_COMPLETE = "1.6.6"
"""The first deltalake that commits to all of these."""
_UNSUPPORTED = re.compile(r"Unsupported table features required: \[([^\]]+)\]")
_EARLIER_TYPE = re.compile(r"Failed to parse value ('.*') as '([^']+)'")

_IDENTITY_COLUMNS = 6
"""The writer version that demands them, without a list of features."""
_INNER_CHAR = re.compile(r"\bchar\(")
_IN_SPARK = "use Delta Lake in Spark for this table"


def _fields(table: "DeltaTable") -> list[dict[str, Any]]:
    return list(json.loads(table.schema().to_json())["fields"])


def _features(names: Sequence[str]) -> str:
    return f"feature{'s' * (len(names) > 1)} {', '.join(map(repr, names))}"


def check_readable(table: "DeltaTable", label: str) -> None:
    """
    Raises:
        UnsupportedError: names the feature.
    """
    protocol = table.protocol()
    strange = sorted(set(protocol.reader_features or ()) - _READ)
    if protocol.min_reader_version > 3 or strange:
        needs = f"needs the reader {_features(strange)}" if strange else "needs a newer reader"
        raise UnsupportedError(f"{label} {needs}, which this connector does not have; {_IN_SPARK}")
    mode = table.metadata().configuration.get("delta.columnMapping.mode", "none")
    if mode != "none":
        raise UnsupportedError(
            f"{label} has delta.columnMapping.mode={mode}: its files use other names for columns; {_IN_SPARK}"
        )
    folders = table.metadata().partition_columns
    for field in _fields(table):
        if "date" in _widened_from(field):
            raise UnsupportedError(
                f"column {field['name']!r} of {label} was a date, and is a timestamp now: older files have dates, "
                f"which are not read as timestamps here; {_IN_SPARK}, or write it again there"
            )
        note = str(field.get("metadata", {}).get(LENGTH_NOTE, ""))
        if not is_length(note) and _INNER_CHAR.search(note):
            raise UnsupportedError(
                f"column {field['name']!r} of {label} has a CHAR inside another type ({note}), whose values Spark "
                f"fills up with blanks when it reads them; {_IN_SPARK}"
            )
        if field["name"] in folders and field["type"] == "binary":
            raise UnsupportedError(
                f"{label} is partitioned by {field['name']!r}, which is binary: deltalake gives such values as the log "
                f"spells them; {_IN_SPARK}"
            )


def _widened_from(part: Any) -> set[str]:
    """The earlier types of a column, or of a field inside it."""
    if isinstance(part, list):
        return set().union(*map(_widened_from, part))
    if not isinstance(part, dict):
        return set()
    changes = part.get("delta.typeChanges", ())
    return {change["fromType"] for change in changes}.union(*map(_widened_from, part.values()))


def check_deletion_vectors(table: "DeltaTable", label: str) -> None:
    """
    Raises:
        UnsupportedError: rows of a file are marked as deleted.
    """
    if "deletionVectors" not in (table.protocol().reader_features or ()):
        return
    import pyarrow as pa
    from deltalake.exceptions import DeltaError

    try:
        with pa.RecordBatchReader.from_stream(table.deletion_vectors()) as vectors:
            has_vectors = any(batch.num_rows for batch in vectors)
    except DeltaError:
        has_vectors = True  # and they cannot even be read
    if has_vectors:
        raise UnsupportedError(
            f"{label} has deletion vectors, which mark rows of its files as deleted; "
            "write the files again with REORG TABLE ... APPLY (PURGE) in Spark, and read or overwrite it then"
        )


def check_writable(table: "DeltaTable", label: str, *, removes: bool) -> None:
    """
    Raises:
        UnsupportedError: names the feature.
    """
    check_readable(table, label)
    protocol, settings = table.protocol(), table.metadata().configuration
    needed = set(protocol.writer_features or ())
    if protocol.min_writer_version == _IDENTITY_COLUMNS:
        needed.add("identityColumns")
    strange = sorted(needed - _WRITTEN)
    if protocol.min_writer_version > 7 or strange:
        needs = f"needs the writer {_features(strange)}" if strange else "needs a newer writer"
        raise UnsupportedError(f"{label} {needs}, which this connector does not have; {_IN_SPARK}")
    constraint = next((name for name in settings if name.startswith("delta.constraints.")), None)
    if constraint is not None:
        raise UnsupportedError(
            f"{label} has {constraint}, which only a query engine can check; {_IN_SPARK}"
        )
    for field in _fields(table):
        for name, needs in (
            ("delta.invariants", "an invariant"),
            ("delta.generationExpression", "a generation expression"),
            (LENGTH_NOTE, "a length (CHAR or VARCHAR) inside another type, that only Spark checks"),
        ):
            note = field.get("metadata", {}).get(name)
            if note is not None and not (name == LENGTH_NOTE and is_length(str(note))):
                raise UnsupportedError(
                    f"column {field['name']!r} of {label} has {needs}; {_IN_SPARK}"
                )
    if not removes:
        return
    if settings.get("delta.appendOnly", "").lower() == "true":
        raise UnsupportedError(
            f"{label} has delta.appendOnly=true, and the write replaces rows; append, or unset the property"
        )
    if settings.get("delta.enableChangeDataFeed", "").lower() == "true":
        raise UnsupportedError(
            f"{label} has delta.enableChangeDataFeed=true, and its change files would not name the rows that the "
            f"write replaces; append, or {_IN_SPARK}"
        )
