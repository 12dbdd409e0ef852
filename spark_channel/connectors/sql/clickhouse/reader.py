"""Reads a table, a view or a query."""

from contextlib import AbstractContextManager
from typing import ClassVar

import pyarrow as pa

from spark_channel.connectors.contracts import Reader
from spark_channel.connectors.sql.clickhouse.dialect import ClickhouseDialect, ClickhouseTable
from spark_channel.connectors.sql.clickhouse.options import ClickhouseReadOptions
from spark_channel.connectors.sql.clickhouse.session import ClickhouseSession
from spark_channel.connectors.sql.reader import SqlReader
from spark_channel.connectors.sql.session import Session
from spark_channel.connectors.sql.splits import Quantiles, Splitter, distinct
from spark_channel.errors import SourceError
from spark_channel.options import ReadOptions
from spark_channel.planning import Split

__all__ = ["ClickhouseReader"]

_SAMPLE = 10_000


class _Splitter(Splitter):
    """Ranges of the sorting key, by which the server skips the parts of the others."""

    def ranges(self) -> list[Split] | None:
        table = self.source.table
        assert isinstance(table, ClickhouseTable)
        column = self.source.about(table.sorted_by)
        if column is None or self.source.dialect.key_type(column, None) is None:
            return None
        return self._by_column(column.name)

    def quantiles(self, name: str) -> Quantiles:
        """From a sample that the server takes in one pass, without a sort."""
        column, about = self.source.column(name), self.source.about(name)
        assert about is not None
        # A bound is a number or a text; texts of dates have the order of dates.
        is_date = pa.types.is_date(ClickhouseDialect().arrow_type(about))
        value = f"toString({column})" if is_date else column
        # The client shows other bytes by their digits, which have another order.
        among = (
            f", isValidUTF8({column})" if pa.types.is_string(ClickhouseDialect().arrow_type(about)) else ", 1"
        )
        sample = f"arraySort(groupArraySampleIf({_SAMPLE}, 1)({value}{among}))"
        whole = [f"count({column})", f"count() - count({column})", sample]
        ((present, nulls, found),) = self.session.rows(self.source.sql(whole))
        parts = min(self.advice, len(found))
        places = [len(found) * part // parts for part in range(parts)] if parts > 1 else []
        return Quantiles(distinct([found[place] for place in places]), int(present), int(nulls))


class ClickhouseReader(SqlReader):
    """Splits by ranges of the sorting key. Each split sees its own state: there is no snapshot over statements."""

    Options: ClassVar[type[ReadOptions]] = ClickhouseReadOptions
    Splitter: ClassVar[type[Splitter]] = _Splitter
    options: ClickhouseReadOptions
    feed = Reader.feed  # none: nothing says in which order rows become visible

    def __init__(self, options: ClickhouseReadOptions) -> None:
        super().__init__(options, ClickhouseDialect(local=options.timestamps_as == "local"))

    def resource_mark(self, split: Split) -> str | None:
        host, port = self.options.server
        return f"{host}:{port}"

    def connect(self, purpose: str) -> AbstractContextManager[Session]:
        return ClickhouseSession(self.options, SourceError)
