"""What readers of documents share: the columns are those of option `schema`, or of the first documents."""

from abc import abstractmethod
from typing import ClassVar, Self, cast

import pyarrow as pa

from spark_channel.connectors.contracts import Reader
from spark_channel.connectors.records.options import RecordReadOptions, declared_schema
from spark_channel.errors import OptionError
from spark_channel.options import ReadOptions

__all__ = ["RecordReader"]


class RecordReader(Reader):
    """A reader whose source declares no columns."""

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
            self._schema = self._picked(self._sampled() if declared is None else declared_schema(declared))
        return self._schema

    def with_schema(self, schema: pa.Schema) -> Self:
        made = type(self)(self.options, schema)
        made.fetch_size, made.schema_is_own = self.fetch_size, self.schema_is_own
        return made

    def _picked(self, schema: pa.Schema) -> pa.Schema:
        wanted = self.options.columns
        if wanted is None:
            return schema
        for name in wanted:
            if name not in schema.names:
                raise OptionError(
                    f"option 'columns' names {name!r}, which is not a column of {self._place}; it takes "
                    f"{', '.join(schema.names)}. A field that the first documents lack is named in 'schema'",
                    option="columns", got=name, takes=", ".join(schema.names),
                )  # fmt: skip
        return pa.schema([schema.field(name) for name in wanted])
