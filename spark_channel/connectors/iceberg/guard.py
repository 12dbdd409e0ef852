"""Keeps a catalog's server, and whoever may set a table's properties, from naming code that this process runs.

pyiceberg imports and calls what some properties name, also where a server's configuration or a table says so: such a
server could run any program here. Only what the user gives in `catalogProperties`, or in pyiceberg's configuration,
names code.
"""

from collections.abc import Mapping
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.rest import RestCatalog

from spark_channel.errors import UnsupportedError

__all__ = ["GuardedRestCatalog", "check_names_no_code", "guard"]

_OF_THE_USER = ("auth", "ssl")
"""Objects that say how the server is logged in to: with `auth.impl`, a class and its arguments."""


def _names_code(name: str) -> bool:
    return name.endswith(("-impl", ".impl")) or name in _OF_THE_USER


class GuardedRestCatalog(RestCatalog):
    """Takes from its server's configuration what names no code."""

    def _fetch_config(self) -> None:
        own = {name: value for name, value in self.properties.items() if _names_code(name)}
        super()._fetch_config()
        told = {name: value for name, value in self.properties.items() if not _names_code(name)}
        self.properties = {**told, **own}


def guard(catalog: Catalog, file_io: Mapping[str, str]) -> Catalog:
    """The catalog, whose tables' files are opened by `file_io`, whatever the server and the table say."""
    made: Any = catalog
    load: Any = made._load_file_io  # noqa: SLF001
    stage: Any = getattr(made, "_update_and_stage_table", None)

    def load_file_io(properties: Mapping[str, Any] | None = None, location: str | None = None) -> Any:
        plain = {name: value for name, value in (properties or {}).items() if not _names_code(name)}
        return load({**plain, **file_io}, location)

    def update_and_stage(current: Any, *arguments: Any) -> Any:
        if current is not None:
            check_names_no_code(current.metadata.properties, ".".join(current.name()))
        return stage(current, *arguments)

    made._load_file_io = load_file_io  # noqa: SLF001 - pyiceberg has no hook for it
    if stage is not None:
        made._update_and_stage_table = update_and_stage  # noqa: SLF001
    return catalog


def check_names_no_code(properties: Mapping[str, Any], shown: str) -> None:
    """
    Raises:
        UnsupportedError: a property of the table names a class.
    """
    for name in sorted(properties):
        if _names_code(name):
            raise UnsupportedError(
                f"{shown} has the table property {name!r}, which names a Python class: code that a table "
                "names is not run here. Remove the property, or write the table with Iceberg in Spark"
            )
