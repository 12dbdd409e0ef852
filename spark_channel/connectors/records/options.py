"""Options of readers whose source declares no columns."""

import json
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import pyarrow as pa
from pydantic import BeforeValidator, Field

from spark_channel.connectors.records.values import Rules
from spark_channel.errors import OptionError
from spark_channel.options import Amount, ReadOptions

__all__ = ["RecordReadOptions", "Zone", "declared_schema", "texts_by_name"]


def _zone(value: object) -> str:
    try:
        ZoneInfo(str(value))
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError("a zone, such as UTC, Europe/Berlin or Asia/Shanghai") from None
    return str(value)


Zone = Annotated[str, BeforeValidator(_zone)]


def texts_by_name(value: object) -> dict[str, str]:
    """A JSON object of texts."""
    found: Any = value
    if isinstance(value, str):
        try:
            found = json.loads(value)
        except (ValueError, RecursionError):
            found = None
    if not isinstance(found, Mapping) or any(not isinstance(each, str) for each in found.values()):
        raise ValueError('a JSON object of columns and texts, such as {"tags": ","}')
    return dict(found)


class RecordReadOptions(ReadOptions):
    """How records become rows."""

    no_where: ClassVar[str] = "the source understands no SQL"
    """Why `where` is refused, and what to use."""

    record_schema: str | None = Field(
        None,
        alias="schema",
        description="columns in Spark's syntax; a name with dots, such as `address.city`, reads a nested value; "
        "default: from the first `sampleRows` records",
    )
    sample_rows: Amount = Field(
        1_000, description="records from which the columns are found without `schema`"
    )
    time_zone: Zone = Field(
        "UTC",
        description="zone in which instants are shown in columns of type STRING, DATE and TIMESTAMP_NTZ",
    )
    array_separators: Annotated[Mapping[str, str], BeforeValidator(texts_by_name)] = Field(
        default_factory=dict,
        description='JSON object of columns and separators, such as `{"tags": ","}`: these arrays become joined texts; '
        "default: arrays become JSON",
    )

    def model_post_init(self, context: Any) -> None:
        super().model_post_init(context)
        if self.where is not None:
            raise OptionError(
                f"option 'where' is not supported: {self.no_where}", option="where", got=self.where
            )
        if self.record_schema is not None:
            declared_schema(self.record_schema)

    @property
    def rules(self) -> Rules:
        return Rules(self.time_zone, tuple(self.array_separators.items()))


def declared_schema(text: str) -> pa.Schema:
    """
    Raises:
        OptionError: not such a list, or a type that holds no single value.
    """
    from spark_channel.connectors.sql.ddl import arrow_columns  # a parser of SQL, which takes long to import

    return pa.schema(list(arrow_columns(text, "schema").items()))
