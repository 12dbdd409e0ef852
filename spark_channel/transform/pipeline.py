"""Several steps as one: checked against the reader's schema on the driver, run on batches in the tasks."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

from spark_channel.errors import OptionError, SchemaError
from spark_channel.transform.contract import Outcome, Refused, Transformer

__all__ = ["Apply", "Labelled", "Pipeline", "as_transformers", "prepare"]

BatchFunction = Callable[[pa.RecordBatch], pa.RecordBatch]


@dataclass(frozen=True, slots=True)
class Apply(Transformer):
    """Any function from batch to batch. It is called once without rows to determine its output's schema.

    It may change columns and drop or add rows; its schema must not depend on the rows. It runs in
    several threads at once, and must be picklable.
    """

    function: BatchFunction
    step: ClassVar[str] = "function"

    @property
    def name(self) -> str:
        return getattr(self.function, "__qualname__", type(self.function).__name__)

    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        nothing = pa.RecordBatch.from_arrays([pa.array([], part.type) for part in schema], schema=schema)
        try:
            made = self.function(nothing)
        except Exception as error:
            raise SchemaError(
                f"transformer {self.name} failed on a batch without rows, which tells its output's columns: "
                f"{type(error).__name__}: {error}"
            ) from error
        return self._checked(made).schema

    def apply(self, batch: pa.RecordBatch) -> Outcome:
        return Outcome(self._checked(self.function(batch)))

    def _checked(self, made: Any) -> pa.RecordBatch:
        if not isinstance(made, pa.RecordBatch):
            raise OptionError(
                f"transformer {self.name} gave {type(made).__name__}; "
                "it takes a function that gives a pyarrow.RecordBatch",
                option="transformers", got=type(made).__name__, takes="a function that gives a RecordBatch",
            )  # fmt: skip
        return made


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

    def apply(self, batch: pa.RecordBatch) -> Outcome:
        return self.inner.apply(batch)


def as_transformers(steps: Iterable[Any]) -> tuple[Transformer, ...]:
    """Transformers unchanged, and functions wrapped in `Apply`.

    Raises:
        OptionError: something that is neither.
    """
    made: list[Transformer] = []
    for number, step in enumerate(steps):
        if isinstance(step, Transformer):
            made.append(step)
        elif callable(step) and not isinstance(step, type):
            made.append(Apply(step))
        else:
            takes = "a transformer, or a function from RecordBatch to RecordBatch"
            raise OptionError(
                f"transformers[{number}] got {step!r}; it takes {takes}",
                option="transformers", got=repr(step), takes=takes,
            )  # fmt: skip
    return tuple(made)


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Prepared steps: `schema` is the input's schema, `output_schema` the result's."""

    steps: tuple[Transformer, ...]
    schema: pa.Schema
    output_schema: pa.Schema

    def run(self, batch: pa.RecordBatch, dropped: Callable[[str, int], object] | None = None) -> Outcome:
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
                gone -= sum(each.rows.num_rows for each in outcome.refused)
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
        return Outcome(batch, tuple(refused))


def _label(step: Transformer, number: int) -> str:
    if isinstance(step, Labelled):
        return step.label
    name = step.name if isinstance(step, Apply) else type(step).__name__
    return f"transformers[{number}] {name}"


def prepare(steps: Iterable[Any], schema: pa.Schema) -> Pipeline:
    """Check every step against the columns that reach it.

    Raises:
        SchemaError: a missing column, or a type that a step does not take; names the step's number.
        OptionError: something that is not a transformer.
    """
    made = as_transformers(steps)
    current = schema
    for number, step in enumerate(made):
        try:
            current = step.output_schema(current)
        except SchemaError as error:
            if isinstance(step, Labelled):
                raise
            raise SchemaError(f"transformers[{number}]: {error}") from error
    return Pipeline(made, schema, current)


def _shown(schema: pa.Schema) -> str:
    return ", ".join(f"{part.name} {part.type}{'' if part.nullable else ' not null'}" for part in schema)
