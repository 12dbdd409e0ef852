"""Options of the Iceberg connector, and the table that they name."""

import json
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, ClassVar

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr

from spark_channel.connectors.lake.options import LakeWriteOptions
from spark_channel.errors import OptionError
from spark_channel.option_types import Instant
from spark_channel.options import ByteAmount, Options, ReadOptions, Secret, Trait
from spark_channel.working_directory import absolute_path

__all__ = ["IcebergReadOptions", "IcebergWriteOptions", "TableOptions"]


def _absolute(text: SecretStr) -> SecretStr:
    """The properties of a catalog in SQL, whose database and warehouse may be relative paths."""
    try:
        properties = json.loads(text.get_secret_value())
    except (ValueError, RecursionError):
        return text  # refused below
    uri = str(properties.get("uri", "")) if isinstance(properties, dict) else ""
    if not uri.startswith("sqlite:") and not (uri and properties.get("type") == "sql"):
        return text  # another catalog's warehouse may be a name
    absolute = dict(properties)
    if file := re.fullmatch(r"(sqlite(?:\+\w+)?:///)([^/:?].*)", uri):
        absolute["uri"] = file.group(1) + absolute_path(file.group(2), uri=False)
    warehouse = str(properties.get("warehouse", ""))
    if warehouse.startswith("file:") or "://" not in warehouse:
        absolute["warehouse"] = absolute_path(warehouse, uri=warehouse.startswith("file:"))
    return SecretStr(
        json.dumps({name: value for name, value in absolute.items() if name in properties})
    )


def _instant(value: object) -> object:
    return str(value).strip().replace(" ", "T", 1)


CatalogProperties = Annotated[Secret, AfterValidator(_absolute)]


class TableOptions(Options):
    """Which table of which catalog."""

    dbtable: str = Field(description="the table, with its namespace: `shop.orders`")
    catalog: str = Field("default", description="the catalog's name in pyiceberg's configuration")
    catalog_properties: Annotated[CatalogProperties | None, Trait.NAMES_SOURCE] = Field(
        None,
        description="a JSON object of pyiceberg's catalog properties; default: pyiceberg's configuration",
    )

    external_access: bool = Field(
        False,
        description="whether the table's metadata may name files in other buckets, or on a disk outside its "
        "folder; set it for tables that you trust",
    )

    def properties(self) -> dict[str, str]:
        if self.catalog_properties is None:
            return {}
        try:
            properties = json.loads(self.catalog_properties.get_secret_value())
        except (ValueError, RecursionError):
            properties = None
        if not isinstance(properties, dict):
            raise OptionError(
                "option 'catalogProperties' takes a JSON object", option="catalogProperties"
            )
        return {str(name): str(value) for name, value in properties.items()}

    def model_post_init(self, context: object) -> None:
        super().model_post_init(context)
        self.properties()
        if "." not in self.dbtable.strip("."):
            raise OptionError(
                f"option 'dbtable' got {self.dbtable!r}; it takes a table with its namespace, such as shop.orders",
                option="dbtable",
                got=self.dbtable,
                takes="namespace.table",
            )


class IcebergReadOptions(TableOptions, ReadOptions):
    """Options of the Iceberg reader."""

    aliases: ClassVar[Mapping[str, str]] = {
        **ReadOptions.aliases,
        "table": "dbtable",
        "snapshot-id": "snapshotId",
        "as-of-timestamp": "asOfTimestamp",
    }

    snapshot_id: int | None = Field(
        None, description="read the table as of this snapshot; default: the newest"
    )
    as_of_timestamp: Annotated[Instant, BeforeValidator(_instant)] | None = Field(
        None, description="read the table as of this time, UTC unless it has a zone; default: now"
    )
    split_bytes: ByteAmount | None = Field(
        None,
        description="approximate bytes of one split, in whole files; default: all bytes over the splits for `channels`",
    )

    def model_post_init(self, context: object) -> None:
        super().model_post_init(context)
        if self.snapshot_id is not None and self.as_of_timestamp is not None:
            raise OptionError(
                "options 'snapshotId' and 'asOfTimestamp' both say which state to read; give one",
                option="asOfTimestamp",
            )

    @property
    def as_of(self) -> int | datetime | None:
        return self.as_of_timestamp if self.snapshot_id is None else self.snapshot_id


class IcebergWriteOptions(TableOptions, LakeWriteOptions):
    """Options of the Iceberg writer."""

    aliases: ClassVar[Mapping[str, str]] = {**LakeWriteOptions.aliases, "table": "dbtable"}
