"""The interface of a transformer, and a pipeline of several."""

import difflib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

from spark_channel.errors import OptionError, SchemaError

__all__ = [
    "Column",
    "Flow",
    "Labelled",
    "Pipeline",
    "Refused",
    "TransformResult",
    "Transformer",
    "column_index",
    "prepare",
    "whole_number",
]


Column = int | str
"""A column by its name, or by its number from 0."""


@dataclass(frozen=True, slots=True)
class Refused:
    """Rows that a transformer cannot process, as it received them, with the reason. They count as dirty rows."""

    rows: pa.RecordBatch
    reason: str


@dataclass(frozen=True, slots=True)
class TransformResult:
    """A transformed batch, and the refused rows."""

    batch: pa.RecordBatch
    refused: tuple[Refused, ...] = ()


@dataclass(frozen=True, slots=True)
class Flow:
    """The numbers of the columns that an output column is made of, and how: empty where the values are the same.

    `masked`: the values do not show what they were made of.
    """

    sources: tuple[int, ...] = ()
    how: str = ""
    masked: bool = False

    def after(self, before: "Sequence[Flow]") -> "Flow":
        """The same from the first columns on, where `sources` are numbers of `before`."""
        inputs = [before[number] for number in self.sources]
        how = [text for text in (*(flow.how for flow in inputs), self.how) if text]
        sources = {source: None for flow in inputs for source in flow.sources}
        masked = self.masked or any(flow.masked for flow in inputs)
        return Flow(tuple(sources), ", ".join(dict.fromkeys(how)), masked)


class Transformer(ABC):
    """One step on batches. Picklable plain data; used by several threads of one process at the same time.

    Subclasses are frozen dataclasses whose values were checked when they were made.
    """

    step: ClassVar[str] = "step"
    in_place: ClassVar[bool] = False
    """Whether each column stays where it is, and only changes its type."""

    @abstractmethod
    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        """Driver, before any row moves. The schema of `apply`'s batches for input in `schema`.

        Raises:
            SchemaError: a column is missing, or has a type that this step does not take.
        """

    @abstractmethod
    def apply(self, batch: pa.RecordBatch) -> TransformResult:
        """Executor. Work on a batch that has the schema seen by `output_schema`."""

    def flows(self, schema: pa.Schema) -> tuple[Flow, ...] | None:
        """What each column of `output_schema` is made of; None = not known."""
        if not self.in_place:
            return None
        output = self.output_schema(schema)
        return tuple(
            Flow((number,), "" if output.field(number).type == field.type else self.step)
            for number, field in enumerate(schema)
        )


def column_index(schema: pa.Schema, column: Column, step: str) -> int:
    """The number of `column` in `schema`.

    Raises:
        SchemaError: a column that does not exist, or a name that occurs twice; names `step` and the columns.
    """
    names = list(schema.names)
    listing = ", ".join(f"{number} {name!r}" for number, name in enumerate(names)) or "none"
    if isinstance(column, str):
        count = names.count(column)
        if count == 1:
            return names.index(column)
        if count:
            raise SchemaError(
                f"{step}: {count} columns are named {column!r}; give its number: {listing}"
            )
        near = difflib.get_close_matches(column, names, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise SchemaError(f"{step}: no column {column!r}; {hint}The columns are: {listing}")
    if 0 <= column < len(names):
        return column
    raise SchemaError(
        f"{step}: no column {column}; numbers go from 0 to {len(names) - 1}. The columns are: {listing}"
    )


def checked_column(value: object, step: str) -> Column:
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


def whole_number(value: object, noun: str, step: str, largest: int) -> int:
    """`value` if it is a whole number from 0 to `largest`.

    Raises:
        OptionError: names `step`, `noun`, what it got and what it takes.
    """
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= largest:
        return value
    takes = f"a whole number from 0 to {largest}"
    raise OptionError(
        f"{step} got {noun} {value!r}; it takes {takes}", option=step, got=str(value), takes=takes
    )


BatchFunction = Callable[[pa.RecordBatch], pa.RecordBatch]


@dataclass(frozen=True, slots=True)
class Apply(Transformer):
    """Any function from batch to batch. It is called once without rows to determine its output's schema.

    It may change columns and drop or add rows; its schema must not depend on the rows. It runs in
    several threads at the same time, and must be picklable.
    """

    function: BatchFunction
    step: ClassVar[str] = "function"

    @property
    def name(self) -> str:
        return getattr(self.function, "__qualname__", type(self.function).__name__)

    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        nothing = pa.RecordBatch.from_arrays(
            [pa.array([], part.type) for part in schema], schema=schema
        )
        try:
            result = self.function(nothing)
        except Exception as error:
            raise SchemaError(
                f"transformer {self.name} failed on an empty batch, which is used to find its output's columns: "
                f"{type(error).__name__}: {error}"
            ) from error
        return self._checked(result).schema

    def apply(self, batch: pa.RecordBatch) -> TransformResult:
        return TransformResult(self._checked(self.function(batch)))

    def _checked(self, result: object) -> pa.RecordBatch:
        if not isinstance(result, pa.RecordBatch):
            raise OptionError(
                f"transformer {self.name} gave {type(result).__name__}; "
                "it takes a function that gives a pyarrow.RecordBatch",
                option="transformers",
                got=type(result).__name__,
                takes="a function that gives a RecordBatch",
            )
        return result


@dataclass(frozen=True, slots=True)
class Labelled(Transformer):
    """A step with a name for its errors, such as its position in a job file."""

    inner: Transformer
    label: str

    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        try:
            return self.inner.output_schema(schema)
        except SchemaError as error:
            raise SchemaError(f"{self.label}: {error}") from error

    def apply(self, batch: pa.RecordBatch) -> TransformResult:
        return self.inner.apply(batch)

    def flows(self, schema: pa.Schema) -> tuple[Flow, ...] | None:
        return self.inner.flows(schema)


def as_transformers(steps: Iterable[object]) -> tuple[Transformer, ...]:
    """Transformers unchanged, and functions wrapped in `Apply`.

    Raises:
        OptionError: something that is neither.
    """
    transformers: list[Transformer] = []
    for number, step in enumerate(steps):
        if isinstance(step, Transformer):
            transformers.append(step)
        elif callable(step) and not isinstance(step, type):
            transformers.append(Apply(step))
        else:
            takes = "a transformer, or a function from RecordBatch to RecordBatch"
            raise OptionError(
                f"transformers[{number}] got {step!r}; it takes {takes}",
                option="transformers",
                got=repr(step),
                takes=takes,
            )
    return tuple(transformers)


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Prepared steps: `schema` is the input's schema, `output_schema` the result's."""

    steps: tuple[Transformer, ...]
    schema: pa.Schema
    output_schema: pa.Schema

    def run(
        self, batch: pa.RecordBatch, dropped: Callable[[str, int], object] | None = None
    ) -> TransformResult:
        """Run all steps on one batch. Refused rows do not reach later steps. `dropped` is called for a step that
        returns fewer rows than it received, without refusing them.

        Raises:
            SchemaError: a step's batch has another schema than it declared.
        """
        refused: list[Refused] = []
        for number, step in enumerate(self.steps):
            outcome = step.apply(batch)
            if dropped is not None:
                gone = batch.num_rows - outcome.batch.num_rows
                gone -= sum(refusal.rows.num_rows for refusal in outcome.refused)
                if gone > 0:
                    dropped(_label(step, number), gone)
            batch = outcome.batch
            refused.extend(outcome.refused)
        if self.steps and not batch.schema.equals(self.output_schema):
            raise SchemaError(
                f"the transformers gave a batch with columns [{_shown(batch.schema)}] "
                f"where [{_shown(self.output_schema)}] was planned; "
                "the columns of a function must not depend on its rows"
            )
        return TransformResult(batch, tuple(refused))

    def flows(self) -> tuple[Flow, ...] | None:
        """What each column of `output_schema` is made of; None = a step is a function, which cannot say."""
        current, flows = self.schema, tuple(Flow((number,)) for number in range(len(self.schema)))
        for step in self.steps:
            step_flows = step.flows(current)
            if step_flows is None:
                return None
            flows = tuple(flow.after(flows) for flow in step_flows)
            current = step.output_schema(current)
        return flows


def _label(step: Transformer, number: int) -> str:
    if isinstance(step, Labelled):
        return step.label
    name = step.name if isinstance(step, Apply) else type(step).__name__
    return f"transformers[{number}] {name}"


def prepare(steps: Iterable[object], schema: pa.Schema) -> Pipeline:
    """Check every step against the columns that reach it.

    Raises:
        SchemaError: a missing column, or a type that a step does not take; names the step's number.
        OptionError: something that is not a transformer.
    """
    transformers = as_transformers(steps)
    current = schema
    for number, step in enumerate(transformers):
        try:
            current = step.output_schema(current)
        except SchemaError as error:
            if isinstance(step, Labelled):
                raise
            raise SchemaError(f"transformers[{number}]: {error}") from error
    return Pipeline(transformers, schema, current)


def _shown(schema: pa.Schema) -> str:
    return ", ".join(
        f"{part.name} {part.type}{'' if part.nullable else ' not null'}" for part in schema
    )
