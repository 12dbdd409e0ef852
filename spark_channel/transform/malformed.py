"""Lines of a text file that are no rows of it: a reader marks them, and the first step of a job refuses them."""

from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from spark_channel.transform.contract import Outcome, Refused, Transformer

__all__ = ["RefuseMalformed", "marked"]

_MARK = "\0spark-channel 6f0c1d3e-malformed\0"
"""Prefix of the first column's value for such a line: the mark, the reason, another mark, and the line."""


def marked(reason: str, line: str) -> str:
    """The value of the first column in place of the line."""
    return f"{_MARK}{reason}{_MARK}{line}"


@dataclass(frozen=True, slots=True)
class RefuseMalformed(Transformer):
    """Each marked line is one refused row, with its text and why."""

    step: ClassVar[str] = "line"

    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        return schema

    def apply(self, batch: pa.RecordBatch) -> Outcome:
        if not batch.num_columns or not pa.types.is_string(batch.schema.field(0).type):
            return Outcome(batch)
        bad = pc.fill_null(pc.starts_with(batch.column(0), _MARK), False)
        if not pc.any(bad, min_count=0).as_py():
            return Outcome(batch)
        refused = []
        for text in batch.column(0).filter(bad).to_pylist():
            reason, line = text.removeprefix(_MARK).split(_MARK, 1)
            refused.append(Refused(pa.record_batch({"line": [line]}), reason))
        return Outcome(batch.filter(pc.invert(bad)), tuple(refused))
