"""Times as text, for targets that are text files."""

from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from spark_channel.transform.contract import Outcome, Transformer

__all__ = ["TimesAsText", "formatted"]


@dataclass(frozen=True, slots=True)
class TimesAsText(Transformer):
    """Format every timestamp, date and time as text by its pattern (strftime's letters), cut to the second.

    `only`: the columns of these positions; None = all.
    """

    timestamps: str = "%Y-%m-%d %H:%M:%S"
    dates: str = "%Y-%m-%d"
    times: str = "%H:%M:%S"
    only: frozenset[int] | None = None
    step: ClassVar[str] = "times as text"

    def _pattern(self, position: int, kind: pa.DataType) -> str | None:
        if self.only is not None and position not in self.only:
            return None
        if pa.types.is_timestamp(kind):
            return self.timestamps
        if pa.types.is_date(kind):
            return self.dates
        return self.times if pa.types.is_time(kind) else None

    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        return pa.schema(
            [
                part if self._pattern(position, part.type) is None else part.with_type(pa.string())
                for position, part in enumerate(schema)
            ]
        )

    def apply(self, batch: pa.RecordBatch) -> Outcome:
        columns = []
        for position, column in enumerate(batch.columns):
            pattern = self._pattern(position, column.type)
            columns.append(column if pattern is None else formatted(column, pattern))
        schema = self.output_schema(batch.schema)
        return Outcome(pa.RecordBatch.from_arrays(columns, schema=schema))


def formatted(column: pa.Array, pattern: str) -> pa.Array:
    if pa.types.is_timestamp(column.type):
        local = pc.local_timestamp(column) if column.type.tz else column
        column = pc.cast(pc.floor_temporal(local, unit="second"), pa.timestamp("s"))
    elif pa.types.is_time(column.type):
        column = pc.cast(pc.cast(column, pa.time32("s"), safe=False), pa.int32())
        column = pc.cast(pc.cast(column, pa.int64()), pa.timestamp("s"))
    return pc.strftime(column, format=pattern)
