"""The catalog of Iceberg tables, and pyiceberg's errors."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pydantic import ValidationError
from pyiceberg.catalog import Catalog

from spark_channel.connectors.iceberg.guard import GuardedRestCatalog, guard
from spark_channel.connectors.iceberg.options import TableOptions
from spark_channel.errors import (
    ChannelError,
    OptionError,
    SourceError,
    TargetError,
    UnsupportedError,
)
from spark_channel.final_errors import of_input
from spark_channel.masking import without_login

if TYPE_CHECKING:
    from pyiceberg.io import FileIO

__all__ = ["explained", "file_io", "open_catalog"]


_FILE_IO = {"py-io-impl": "spark_channel.connectors.iceberg.file_io.ArrowFileIO"}

_UNPARSED = re.compile(r"Could not parse (.+) into an? \w+Type$")


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
