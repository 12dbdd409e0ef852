"""Reads records: their schema is given, or inferred from some of them."""

import json
from abc import abstractmethod
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Self, cast
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import pyarrow as pa
from pydantic import BeforeValidator, Field

from spark_channel.connectors.base.contract import Reader
from spark_channel.connectors.records.conversion import Rules
from spark_channel.errors import OptionError
from spark_channel.options import Amount, ReadOptions

__all__ = ["RecordReadOptions", "RecordReader", "Zone", "declared_schema", "texts_by_name"]


def _zone(value: object) -> str:
    try:
        ZoneInfo(str(value))
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError("a zone, such as UTC, Europe/Berlin or Asia/Shanghai") from None
    return str(value)


Zone = Annotated[str, BeforeValidator(_zone)]


def texts_by_name(value: object) -> dict[str, str]:
    """A JSON object of texts."""
    texts: Any = value
    if isinstance(value, str):
        try:
            texts = json.loads(value)
        except (ValueError, RecursionError):
            texts = None
    if not isinstance(texts, Mapping) or any(not isinstance(text, str) for text in texts.values()):
        raise ValueError('a JSON object of columns and texts, such as {"tags": ","}')
    return dict(texts)


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

    def model_post_init(self, context: object) -> None:
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
    from spark_channel.connectors.base.types import (
        arrow_columns,  # a parser of SQL, which takes long to import
    )

    return pa.schema(list(arrow_columns(text, "schema").items()))


class RecordReader(Reader):
    """A reader whose source declares no columns: they are those of option `schema`, or of the first documents."""

    Options: ClassVar[type[ReadOptions]] = RecordReadOptions

    def __init__(self, options: ReadOptions, schema: pa.Schema | None = None) -> None:
        super().__init__(options)
        self._schema = schema

    @property
    @abstractmethod
    def _place(self) -> str:
        """What is read, for messages."""

    @abstractmethod
    def _sampled(self) -> pa.Schema:
        """The columns of the first `sampleRows` documents.

        Raises:
            SourceError: there are none.
        """

    def schema(self) -> pa.Schema:
        if self._schema is None:
            declared = cast(RecordReadOptions, self.options).record_schema
            self._schema = self._picked(
                self._sampled() if declared is None else declared_schema(declared)
            )
        return self._schema

    def with_schema(self, schema: pa.Schema) -> Self:
        reader = type(self)(self.options, schema)
        reader.fetch_size, reader.schema_is_own = self.fetch_size, self.schema_is_own
        return reader

    def _picked(self, schema: pa.Schema) -> pa.Schema:
        names = self.options.columns
        if names is None:
            return schema
        columns = set(schema.names)
        for name in names:
            if name not in columns:
                raise OptionError(
                    f"option 'columns' names {name!r}, which is not a column of {self._place}; it takes "
                    f"{', '.join(schema.names)}. A field that the first documents lack is named in 'schema'",
                    option="columns",
                    got=name,
                    takes=", ".join(schema.names),
                )
        return pa.schema([schema.field(name) for name in names])
