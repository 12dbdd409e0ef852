"""The catalog, and pyiceberg's errors."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from spark_channel.connectors.iceberg.options import Table as TableOptions
from spark_channel.errors import ChannelError, OptionError, SourceError, TargetError
from spark_channel.masking import without_login

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.io import FileIO

__all__ = ["explained", "file_io", "open_catalog"]

_FILE_IO = {"py-io-impl": "spark_channel.connectors.iceberg.file_io.ArrowFileIO"}


@contextmanager
def explained(shown: str, failure: type[SourceError] | type[TargetError]) -> Iterator[None]:
    """Turn errors of pyiceberg into `failure`. Our own, and those of the file system, pass unchanged."""
    from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

    try:
        yield
    except (ChannelError, OSError, pa.ArrowException):
        raise
    except NoSuchTableError as error:
        raise failure(f"the catalog has no table {shown}; check option 'dbtable'") from error
    except NoSuchNamespaceError as error:
        raise failure(
            f"the catalog has no namespace for {shown}; create it, or check option 'dbtable'"
        ) from error
    except Exception as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise failure(f"{shown}: pyiceberg says: {type(error).__name__}: {without_login(first)}") from error


@contextmanager
def open_catalog(options: TableOptions) -> Iterator["Catalog"]:
    """The catalog, closed in the end."""
    found = _loaded(options.catalog, {**options.properties(), **_FILE_IO})
    try:
        yield found
    finally:
        found.close()


def _loaded(name: str, given: dict[str, Any]) -> "Catalog":
    from pyiceberg.catalog import infer_catalog_type, load_catalog
    from pyiceberg.utils.config import Config, merge_config

    from spark_channel.connectors.iceberg.guard import GuardedRestCatalog, guard

    if "py-catalog-impl" in given:  # the user's own code, which needs no uri
        return guard(load_catalog(name, **given), _FILE_IO)
    configured: Any = merge_config(Config().get_catalog_config(name) or {}, given)
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
    return guard(load_catalog(name, **given), _FILE_IO)


def file_io(properties: dict[str, Any], location: str) -> "FileIO":
    """Through pyarrow, as everything else here is."""
    from pyiceberg.io import load_file_io

    return load_file_io({**properties, **_FILE_IO}, location)
