"""What a transformer is: a function on batches that tells its output's schema before any row moves."""

import difflib
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from spark_channel.errors import OptionError, SchemaError

__all__ = ["Column", "Outcome", "Refused", "Transformer", "column_index", "whole_number"]

Column = int | str
"""A column by its name, or by its number from 0."""


@dataclass(frozen=True, slots=True)
class Refused:
    """Rows that a transformer cannot process, as it received them, with the reason. They count as dirty rows."""

    rows: pa.RecordBatch
    reason: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """A transformed batch, and the refused rows."""

    batch: pa.RecordBatch
    refused: tuple[Refused, ...] = ()


class Transformer(ABC):
    """One step on batches. Picklable plain data; used by several threads of one process at once.

    Subclasses are frozen dataclasses whose values were checked when they were made.
    """

    @abstractmethod
    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        """Driver, before any row moves. The schema of `apply`'s batches for input in `schema`.

        Raises:
            SchemaError: a column is missing, or has a type that this step does not take.
        """

    @abstractmethod
    def apply(self, batch: pa.RecordBatch) -> Outcome:
        """Executor. Work on a batch that has the schema seen by `output_schema`."""


def column_index(schema: pa.Schema, column: Column, step: str) -> int:
    """The number of `column` in `schema`.

    Raises:
        SchemaError: a column that does not exist, or a name that occurs twice; names `step` and the columns.
    """
    names = list(schema.names)
    shown = ", ".join(f"{number} {name!r}" for number, name in enumerate(names)) or "none"
    if isinstance(column, str):
        count = names.count(column)
        if count == 1:
            return names.index(column)
        if count:
            raise SchemaError(f"{step}: {count} columns are named {column!r}; give its number: {shown}")
        near = difflib.get_close_matches(column, names, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise SchemaError(f"{step}: no column {column!r}; {hint}The columns are: {shown}")
    if 0 <= column < len(names):
        return column
    raise SchemaError(
        f"{step}: no column {column}; numbers go from 0 to {len(names) - 1}. The columns are: {shown}"
    )


def checked_column(value: Any, step: str) -> Column:
    """`value` if it can name a column: a text, or a whole number from 0.

    Raises:
        OptionError: something else.
    """
    if isinstance(value, str) and value:
        return value
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    takes = "a column's name, or its number from 0"
    raise OptionError(
        f"{step} got column {value!r}; it takes {takes}", option=step, got=str(value), takes=takes
    )


def whole_number(value: Any, what: str, step: str, largest: int) -> int:
    """`value` if it is a whole number from 0 to `largest`.

    Raises:
        OptionError: names `step`, `what`, what it got and what it takes.
    """
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= largest:
        return value
    takes = f"a whole number from 0 to {largest}"
    raise OptionError(
        f"{step} got {what} {value!r}; it takes {takes}", option=step, got=str(value), takes=takes
    )
