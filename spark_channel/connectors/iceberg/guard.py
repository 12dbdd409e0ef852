"""Keeps a catalog's server, and whoever may set a table's properties, from naming code that this process runs.

pyiceberg imports and calls what some properties name, also where a server's configuration or a table says so: such a
server could run any program here. Only what the user gives in `catalogProperties`, or in pyiceberg's configuration,
names code.
"""

import json
from collections.abc import Collection, Mapping
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.rest import RestCatalog
from requests.adapters import HTTPAdapter

from spark_channel.connectors.files.conditions import ValueRange
from spark_channel.connectors.files.literals import exact
from spark_channel.errors import SourceError, UnsupportedError

if TYPE_CHECKING:
    from pyiceberg.schema import Schema

__all__ = ["GuardedRestCatalog", "check_names_no_code", "guard", "value_ranges"]

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
