"""Options, guarded catalog, types, data files."""

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date, timedelta
from decimal import Decimal
from functools import cache
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pyarrow as pa
from pydantic import ValidationError
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.io.pyarrow import PyArrowFileIO
from requests.adapters import HTTPAdapter

from spark_channel.arrow_schema import cast_exactly
from spark_channel.connectors.files.conditions import ValueRange, exact
from spark_channel.connectors.files.filesystem import Location
from spark_channel.connectors.files.formats.parquet import ParquetFormat
from spark_channel.connectors.files.formats.types import check_values, map_leaves
from spark_channel.connectors.files.store import LocalStore, ObjectStore, Store
from spark_channel.connectors.iceberg.options import TableOptions
from spark_channel.connectors.lake.table import exact_columns
from spark_channel.errors import (
    ChannelError,
    OptionError,
    SchemaError,
    SourceError,
    TargetError,
    UnsupportedError,
)
from spark_channel.final_errors import of_input
from spark_channel.lazy import compute as pc
from spark_channel.masking import without_login

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.schema import Schema
    from pyiceberg.table.metadata import TableMetadata

__all__ = [
    "ArrowFileIO",
    "GuardedRestCatalog",
    "arrow_columns",
    "check_names_no_code",
    "data_file_of",
    "data_file_rows",
    "explained",
    "file_io",
    "guard",
    "open_catalog",
    "plain_file",
    "planned",
    "store_at",
    "value_ranges",
    "without_ids",
]


# The catalog, and pyiceberg's errors.


_FILE_IO = {"py-io-impl": "spark_channel.connectors.iceberg.table.ArrowFileIO"}


@contextmanager
def explained(label: str, failure: type[SourceError] | type[TargetError]) -> Iterator[None]:
    """Turn errors of pyiceberg into `failure`. Our own, and those of the file system, pass unchanged."""
    from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

    try:
        yield
    except (ChannelError, OSError, pa.ArrowException):
        raise
    except NoSuchTableError as error:
        raise of_input(
            failure(f"the catalog has no table {label}; check option 'dbtable'")
        ) from error
    except NoSuchNamespaceError as error:
        raise of_input(
            failure(
                f"the catalog has no namespace for {label}; create it, or check option 'dbtable'"
            )
        ) from error
    except Exception as error:
        if kinds := _unknown_types(error):
            raise UnsupportedError(
                f"{label} has a column of type {', '.join(kinds)}, which pyiceberg does not read: use Iceberg in "
                "Spark for this table"
            ) from error
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise failure(
            f"{label}: pyiceberg says: {type(error).__name__}: {without_login(first)}"
        ) from error


_UNPARSED = re.compile(r"Could not parse (.+) into an? \w+Type$")


def _unknown_types(error: Exception) -> list[str]:
    """The types of columns that pyiceberg's model of the metadata has refused."""
    if malformed := _UNPARSED.match(str(error)):  # such as a geometry with a coordinate system
        return [repr(malformed[1])]
    # A file's metadata raise pyiceberg's own error of the same name, from pydantic's.
    cause = error if isinstance(error, ValidationError) else error.__cause__
    if not isinstance(cause, ValidationError):
        return []
    refused = [
        fault
        for fault in cause.errors(include_url=False)
        if {"schemas", "type"} <= set(fault["loc"])
    ]
    names = [refusal["input"] for refusal in refused if isinstance(refusal["input"], str)]
    return list(dict.fromkeys(map(repr, names)))


@contextmanager
def open_catalog(options: TableOptions) -> Iterator["Catalog"]:
    """The catalog, closed in the end."""
    catalog = _loaded(options.catalog, {**options.properties(), **_FILE_IO})
    try:
        yield catalog
    finally:
        catalog.close()


def _loaded(name: str, properties: dict[str, Any]) -> "Catalog":
    from pyiceberg.catalog import infer_catalog_type, load_catalog
    from pyiceberg.utils.config import Config, merge_config

    if "py-catalog-impl" in properties:  # the user's own code, which needs no uri
        return guard(load_catalog(name, **properties), _FILE_IO)
    configured: Any = merge_config(Config().get_catalog_config(name) or {}, properties)
    try:
        kind = configured.get("type") or infer_catalog_type(name, configured)
    except ValueError as error:
        # With the uri in it, and the login that may be in that.
        raise OptionError(
            f"option 'catalogProperties': {without_login(str(error))}; give a 'type', such as rest or sql",
            option="catalogProperties",
        ) from None
    if str(getattr(kind, "value", kind)).lower() == "rest" and "uri" in configured:
        return guard(GuardedRestCatalog(name, **configured), _FILE_IO)
    return guard(load_catalog(name, **properties), _FILE_IO)


def file_io(properties: dict[str, Any], location: str) -> "FileIO":
    """Through pyarrow, as everything else here is."""
    from pyiceberg.io import load_file_io

    return load_file_io({**properties, **_FILE_IO}, location)


# Tables' files through pyarrow, also in Azure's usual locations.


_AZURE = ("abfs", "abfss", "wasb", "wasbs")


class ArrowFileIO(PyArrowFileIO):
    """pyiceberg 0.12 takes the account in `abfss://container@account.dfs.core.windows.net/path` for a folder."""

    @staticmethod
    def parse_location(
        location: str, properties: dict[str, Any] | None = None
    ) -> tuple[str, str, str]:
        """(scheme, netloc, path as pyarrow takes it).

        Raises:
            UnsupportedError: a uri with a character at which Iceberg's libraries cut it off: another table's folder.
        """
        if "://" in location and (strange := re.search(r"[?#\t\r\n]", location)):
            raise UnsupportedError(
                f"the location {location} holds {strange[0]!r}, where pyiceberg would cut it off, and use another "
                "folder; give the table another location or name"
            )
        uri = urlsplit(location)
        if uri.scheme in _AZURE and uri.username:
            return uri.scheme, uri.netloc, f"{uri.username}{uri.path}"
        return PyArrowFileIO.parse_location(location, properties or {})


# Keeps a catalog's server, and whoever may set a table's properties, from naming code that this process runs.
#
# pyiceberg imports and calls what some properties name, also where a server's configuration or a table says so: such a
# server could run any program here. Only what the user gives in `catalogProperties`, or in pyiceberg's configuration,
# names code.


_OF_THE_USER = ("auth", "ssl")
"""Objects that say how the server is logged in to: with `auth.impl`, a class and its arguments."""


def _names_code(name: str) -> bool:
    return name.endswith(("-impl", ".impl")) or name in _OF_THE_USER


class GuardedRestCatalog(RestCatalog):
    """Takes from its server's configuration what names no code."""

    def _fetch_config(self) -> None:
        own_properties = {
            name: value for name, value in self.properties.items() if _names_code(name)
        }
        super()._fetch_config()
        reported = {name: value for name, value in self.properties.items() if not _names_code(name)}
        self.properties = {**reported, **own_properties}

    def _create_legacy_oauth2_auth_manager(self, session: Any) -> Any:
        # Before its first request, which has the credential in its body.
        session.hooks["response"].append(_refuse_redirect)
        return super()._create_legacy_oauth2_auth_manager(session)

    def _create_session(self) -> Any:
        session = super()._create_session()
        if "nessie.is-nessie-catalog" in self.properties:
            session.mount(self.uri, _NessieAdapter())
        return session


class _NessieAdapter(HTTPAdapter):
    """Commits as Nessie 0.99 takes them: each kind of update once, and a field that the protocol asks for no more.

    A schema has the highest id of a column beside it: columns are only added here, so the highest is in the schema.
    """

    def send(self, request: Any, *arguments: Any, **named: Any) -> Any:
        if b'"updates":[' in (request.body or b""):
            body = json.loads(request.body)
            body["updates"] = _for_nessie(body["updates"])
            request.prepare_body(json.dumps(body).encode(), None)
        return super().send(request, *arguments, **named)


def _for_nessie(updates: list[dict[str, Any]]) -> list[dict[str, Any]]:
    from pyiceberg.schema import Schema

    properties: dict[str, str] = {}
    others = []
    for update in updates:
        if update["action"] == "set-properties":
            properties |= update["updates"]
            continue
        if update["action"] == "add-schema":
            update["last-column-id"] = Schema.model_validate(update["schema"]).highest_field_id
        others.append(update)
    return [*others, {"action": "set-properties", "updates": properties}] if properties else others


def _refuse_redirect(response: Any, **_: Any) -> None:
    """A credential that is sent in a body would go to wherever the answer says.

    Raises:
        SourceError: the answer is a redirect.
    """
    if response.is_redirect:
        raise SourceError(
            f"the Iceberg catalog answered {response.status_code}, a redirect, which is not followed with a login: "
            "name the uri that it leads to in option 'catalogProperties'"
        )


def guard(catalog: Catalog, file_io: Mapping[str, str]) -> Catalog:
    """The catalog, whose tables' files are opened by `file_io`, whatever the server and the table say."""
    guarded: Any = catalog
    load: Any = guarded._load_file_io  # noqa: SLF001 - pyiceberg has no public way
    stage: Any = getattr(guarded, "_update_and_stage_table", None)

    def load_file_io(
        properties: Mapping[str, Any] | None = None, location: str | None = None
    ) -> Any:
        plain = {name: value for name, value in (properties or {}).items() if not _names_code(name)}
        return load({**plain, **file_io}, location)

    def update_and_stage(current: Any, *arguments: Any) -> Any:
        if current is not None:
            check_names_no_code(current.metadata.properties, ".".join(current.name()))
        return stage(current, *arguments)

    guarded._load_file_io = load_file_io  # noqa: SLF001 - pyiceberg has no hook for it
    if stage is not None:
        guarded._update_and_stage_table = update_and_stage  # noqa: SLF001 - pyiceberg has no public way
    return catalog


def check_names_no_code(properties: Mapping[str, Any], label: str) -> None:
    """
    Raises:
        UnsupportedError: a property of the table names a class.
    """
    for name in sorted(properties):
        if _names_code(name):
            raise UnsupportedError(
                f"{label} has the table property {name!r}, which names a Python class: code that a table "
                "names is not run here. Remove the property, or write the table with Iceberg in Spark"
            )


def value_ranges(
    file: Any, schema: "Schema", columns: Any, names: Collection[str]
) -> dict[str, ValueRange]:
    """The known ranges of the columns `names` in a data file; a column without bounds is omitted."""
    from pyiceberg.conversions import from_bytes
    from pyiceberg.types import DateType, IntegerType, LongType

    ranges = {}
    for name in names:
        field = schema.find_field(name)
        low = (file.lower_bounds or {}).get(field.field_id)
        high = (file.upper_bounds or {}).get(field.field_id)
        nulls = (file.null_value_counts or {}).get(field.field_id)
        if (
            low is None
            or high is None
            or not isinstance(field.field_type, IntegerType | LongType | DateType)
        ):
            continue
        bounds: list[Any] = [from_bytes(field.field_type, raw) for raw in (low, high)]
        if isinstance(field.field_type, DateType):
            bounds = [date(1970, 1, 1) + timedelta(days=int(bound)) for bound in bounds]
        kind = columns.field(name).type
        ranges[name] = ValueRange(
            exact(bounds[0], kind), exact(bounds[1], kind), nulls, file.record_count
        )
    return ranges


# The rows of one data file of an Iceberg table, found by the columns' ids.


_PARQUET = ParquetFormat()
_PLAIN = (bool, int, float, str, bytes, Decimal)


def plain_file(file: Any) -> dict[str, Any]:
    """The data file of a split, as plain data, because tunnels store splits, too."""
    values = [file.partition[number] for number in range(len(file.partition))]
    return {
        "path": str(file.file_path),
        "rows": int(file.record_count),
        "size": int(file.file_size_in_bytes),
        "spec": int(file.spec_id),
        "partition": [value if isinstance(value, _PLAIN) else None for value in values],
    }


def data_file_of(plain: Mapping[str, Any]) -> Any:
    """The data file that `plain_file` was given. It is Parquet, and has no delete files: see `check_files`."""
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
    from pyiceberg.typedef import Record

    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=plain["path"],
        file_format=FileFormat.PARQUET,
        partition=Record(*plain["partition"]),
        record_count=plain["rows"],
        file_size_in_bytes=plain["size"],
    )
    file.spec_id = plain["spec"]
    return file


def data_file_rows(
    io: "FileIO", metadata: "TableMetadata", schema_id: int, file: Any, columns: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Rows in `columns`, those of the schema that the table had under `schema_id`, or some of them."""
    from pyiceberg.expressions import AlwaysTrue
    from pyiceberg.io.pyarrow import ArrowScan
    from pyiceberg.table import FileScanTask

    _keep_nulls()
    schema = next(schema for schema in metadata.schemas if schema.schema_id == schema_id)
    chosen = schema.select(*columns.names) if columns.names else schema
    at = metadata.model_copy(update={"current_schema_id": schema_id})
    scan = ArrowScan(at, io, chosen, AlwaysTrue())
    path = str(file.file_path)
    with io.new_input(path).open() as stream:
        _PARQUET.check_times(stream, path)
    rows = 0
    # The public method holds all rows of a file in memory.
    for batch in scan._record_batches_from_scan_tasks_and_deletes([FileScanTask(file)], {}):  # noqa: SLF001 - pyiceberg has no public way
        rows += batch.num_rows
        check_values(batch, columns, path, decoded=True)
        yield _in_columns(batch, columns)
    if rows != file.record_count:
        raise SourceError(
            f"{path} has {rows} rows, and the table's log says {file.record_count}. The file is damaged, or was "
            "replaced; restore it"
        )


@cache
def _keep_nulls() -> None:
    """Have pyiceberg read a NULL list or map of structs as NULL. It copies them without their NULLs: as empty ones
    (findings/iceberg-null-list-of-structs.sh).
    """
    from pyiceberg.io.pyarrow import ArrowProjectionVisitor

    def kept(project: Callable[..., pa.Array | None]) -> Callable[..., pa.Array | None]:
        def projected(
            visitor: Any, kind: Any, array: pa.Array | None, *parts: pa.Array | None
        ) -> pa.Array | None:
            result = project(visitor, kind, array, *parts)
            if result is None or array is None or result.null_count == array.null_count:
                return result
            return pc.if_else(array.is_valid(), result, pa.scalar(None, result.type))

        return projected

    for name in ("list", "map"):
        setattr(ArrowProjectionVisitor, name, kept(getattr(ArrowProjectionVisitor, name)))


def _in_columns(batch: pa.RecordBatch, columns: pa.Schema) -> pa.RecordBatch:
    arrays = []
    for field in columns:
        values = batch.column(batch.schema.get_field_index(field.name))
        arrays.append(cast_exactly(values, field.type, declared=True))
    return pa.RecordBatch.from_arrays(arrays, schema=columns)


class _ArrowStore(ObjectStore):
    """Writes and removes by `pyarrow.fs`, which has the table's credentials."""

    def put(self, path: str, data: bytes) -> None:
        self._put_by_arrow(path, data)

    def remove(self, path: str) -> None:
        self._remove_by_arrow(path)

    def remove_many(self, paths: Sequence[str]) -> None:
        for path in paths:
            self.remove(path)


def store_at(io: "FileIO", location: str) -> tuple[Store, str]:
    """(the store, the path of `location` in it)."""
    from pyiceberg.io.pyarrow import PyArrowFileIO

    if not isinstance(io, PyArrowFileIO):
        raise UnsupportedError(
            f"{location} is opened by {type(io).__name__}; set py-io-impl to PyArrowFileIO"
        )
    scheme, netloc, path = io.parse_location(location, io.properties)
    fs: Any = io.fs_by_scheme(scheme, netloc)
    if scheme == "file":
        return LocalStore(Location(fs, path, "")), path
    return _ArrowStore(Location(fs, path, f"{scheme}://{netloc}")), path


# Arrow's types to Iceberg's and back: only where every value is kept.


_WIDER = {
    pa.int8(): pa.int32(),
    pa.int16(): pa.int32(),
    pa.uint8(): pa.int32(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
}


def _own_type(kind: pa.DataType) -> pa.DataType | None:
    if pa.types.is_fixed_size_binary(kind):
        return kind
    return pa.time64("us") if pa.types.is_time(kind) else _WIDER.get(kind)


def planned(schema: pa.Schema) -> pa.Schema:
    """The columns of a new Iceberg table for rows of `schema`, without ids.

    Raises:
        SchemaError: Iceberg has no type for a column.
    """
    return exact_columns(schema, _own_type, "Iceberg")


def arrow_columns(schema: "Schema", label: str) -> pa.Schema:
    """The table's columns. Their metadata are the ids by which files know them.

    Raises:
        SchemaError: a type that this connector does not carry.
    """
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    try:
        arrow_schema = schema_to_pyarrow(schema)
    except (NotImplementedError, ValueError, TypeError) as error:
        raise SchemaError(f"{label} has a column that Arrow has no type for: {error}") from error
    return pa.schema([_plain(field) for field in arrow_schema])


def _plain(field: pa.Field) -> pa.Field:
    """With types of 32-bit offsets, as Spark's are."""
    return field.with_type(_plain_type(field.type))


def _plain_type(kind: pa.DataType) -> pa.DataType:
    types = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        return kind.storage_type
    if types.is_large_string(kind):
        return pa.string()
    if types.is_large_binary(kind):
        return pa.binary()
    if types.is_list(kind) or types.is_large_list(kind):
        return pa.list_(_plain(kind.value_field))
    if types.is_struct(kind):
        return pa.struct([_plain(kind.field(i)) for i in range(kind.num_fields)])
    if types.is_map(kind):
        return pa.map_(_plain(kind.key_field), _plain(kind.item_field))
    return kind


def without_ids(schema: pa.Schema) -> pa.Schema:
    """As readers give it: the same columns without their ids."""
    return pa.schema([map_leaves(field, lambda kind, _ids: kind) for field in schema])
