"""Writers to stores without transactions: a row is visible as soon as the store has it, and is never taken back.

Delivery is at least once: an attempt that fails leaves what it wrote, and the next one writes those rows again. Where
rows have keys and replace one another, that changes nothing.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import pyarrow as pa
from pydantic import Field

from spark_channel.connectors.base.contract import (
    Receipt,
    RowTally,
    TaskWriter,
    WriteContext,
    WritePlan,
    Writer,
)
from spark_channel.connectors.base.overlap import Overlap, Stored, most_overlap
from spark_channel.errors import OptionError, TargetError, UnsupportedError
from spark_channel.options import Amount, CommitMode, WriteOptions
from spark_channel.plain_text import log_of

__all__ = [
    "DirectOptions",
    "DirectPlan",
    "DirectTask",
    "DirectWriter",
    "RecordTask",
    "Rejected",
    "Sink",
]

_log = log_of(__name__)

Rejected = tuple[int, str]
"""A row that the store refused, by its number in the batch, and why."""


class DirectOptions(WriteOptions):
    """Options of a writer to a store without transactions."""

    commit: CommitMode | None = Field(
        None,
        description="`task`, the only mode: rows are visible as soon as they are written; default: `task`",
    )
    batch_size: Amount = Field(1_000, description="most rows in one request")
    stages: ClassVar[bool] = False
    """Whether the store can publish the rows of a job together."""

    def model_post_init(self, context: object) -> None:
        super().model_post_init(context)
        if self.stages:
            return
        if self.commit == "job":
            raise OptionError(
                "option 'commit' got 'job'; it takes task: this target has no transaction "
                "that spans the rows of a job, so they become visible as they are written",
                option="commit",
                got="job",
                takes="task",
            )
        if self.txn_app_id is not None:
            raise OptionError(
                "option 'txn' is not supported by this target: "
                "it has no transaction in which a published write could be recorded. "
                "Write by key, so that a rerun replaces the same rows",
                option="txn",
                got=self.txn_app_id,
            )


@dataclass(frozen=True)
class DirectPlan(WritePlan):
    """`replaces`: a task that is run again leaves the same."""

    replaces: bool = False

    @property
    def at_least_once(self) -> bool:
        return not self.replaces


class Sink(Protocol):
    """An open connection that writes."""

    def send(self, batch: pa.RecordBatch) -> Sequence[Rejected]:
        """Write a batch. Returns the rows that the store refused; it has all others.

        Raises:
            TargetError: not known which rows the store has.
        """

    def close(self) -> None: ...


class DirectWriter(Writer, ABC):
    """Its tasks write through a `Sink` each."""

    Options: ClassVar[type[WriteOptions]] = DirectOptions
    options: DirectOptions

    @abstractmethod
    def check(self, schema: pa.Schema) -> None:
        """Whether the target can hold the rows. Opens nothing.

        Raises:
            SchemaError: a type without an exact equivalent. OptionError: a key that is not a column.
        """

    @abstractmethod
    def connect(self, schema: pa.Schema) -> Sink: ...

    @abstractmethod
    def probe(self, *, empty: bool) -> None:
        """Driver: that the target answers and may be written; with `empty`, remove its rows.

        Raises:
            TargetError: it does not.
        """

    def rehearse(self, context: WriteContext, schema: pa.Schema) -> None:
        self.check(schema)
        self.probe(empty=False)

    def prepare(self, context: WriteContext, schema: pa.Schema) -> WritePlan:
        if context.stream is not None:
            self._check_stream(context)
        self.check(schema)
        own_source = self._own_source(context)
        self.probe(empty=context.overwrite)
        return DirectPlan(
            context.job,
            schema,
            "task",
            context.overwrite,
            context.txn,
            stored=own_source,
            replaces=self.replaces,
        )

    def _own_source(self, context: WriteContext) -> Stored | None:
        """What a task must not read, since it would write those rows again: the target. None = it may.

        By key the same rows are written again, which changes nothing.

        Raises:
            UnsupportedError: it is read, and rows would be removed or added before all of them are.
        """
        first = context.overwrite or any(self.before.values())
        target = self.stored() if context.reads and (first or not self.replaces) else None
        if target is None:
            return None
        sharing = most_overlap(context.reads, target)
        if sharing is Overlap.SURE and context.reads_surely:
            explanation = (
                "they would be removed before they are read"
                if first
                else "those that are written would be read and written again"
            )
            raise UnsupportedError(
                f"the source is the target, which shows rows as they are written: {explanation}. Write them elsewhere"
                f"{'' if first else ', or by key'}, or read them from a copy"
            )
        if sharing is not Overlap.NONE and context.overwrite:
            _log.warning(
                "the target, which this application has planned a read of, is emptied now: rows that come from there "
                "are lost"
            )
        return target if sharing is not Overlap.NONE and not self.replaces else None

    @property
    def replaces(self) -> bool:
        """Whether rows that are written again leave what they left before."""
        return False

    @property
    def before(self) -> Mapping[str, bool]:
        """Options whose work is done before the first row, and whether they are given."""
        return {}

    def _check_stream(self, context: WriteContext) -> None:
        """Each task of a batch prepares it, beside tasks that write already: it may not remove a row.

        Raises:
            UnsupportedError: output mode complete. OptionError: work before the first row.
        """
        if context.overwrite:
            raise UnsupportedError(
                "output mode complete replaces all rows in each batch, and this target shows rows as they are written, "
                "so that rows of the same batch would be removed. Use another output mode, or write with foreachBatch"
            )
        option = next((name for name, is_given in self.before.items() if is_given), None)
        if option is not None:
            raise OptionError(
                f"option {option!r} would run in each task of a stream's batch, beside tasks that write already; omit "
                "it, or write with foreachBatch",
                option=option,
            )

    def open(self, plan: WritePlan, task: int, attempt: int) -> TaskWriter:
        tally = RowTally(task, attempt)
        return DirectTask(self.connect(plan.schema), tally, self.options.batch_size)

    def commit(self, plan: WritePlan, receipts: Sequence[Receipt]) -> bool | None:
        """The tasks have published their rows."""
        return None

    def abort(self, plan: WritePlan, receipts: Sequence[Receipt | None] | None) -> None:
        """Nothing is staged; rows that were written remain."""


class RecordTask(TaskWriter):
    """One attempt, which sends its rows by `batch_size`, and knows of each row whether it was refused."""

    def __init__(self, tally: RowTally, batch_size: int) -> None:
        self._tally, self._batch_size = tally, batch_size

    def write(self, batch: pa.RecordBatch) -> None:
        self._tally.check_open()
        for start in range(0, batch.num_rows, self._batch_size):
            self._send(batch.slice(start, self._batch_size))

    @abstractmethod
    def _send(self, batch: pa.RecordBatch) -> None:
        """Send or keep a batch: `_check_allowed` with the rows that are refused, then `_accept`."""

    def _check_allowed(
        self, batch: pa.RecordBatch, rejected: Sequence[Rejected], message: str, then: str = ""
    ) -> None:
        """Check that rejected rows are allowed. `message` has {} for how many, `then` says what became of the others.

        Raises:
            TargetError: the job allows no refused rows.
        """
        if not rejected or (self.tolerant and self.refused is not None):
            return
        number, reason = rejected[0]
        count = f"{len(rejected)} of {batch.num_rows} rows"
        raise TargetError(
            f"{message.format(count)}, the first of them: {reason}. {then}Correct the rows, or allow refused rows with "
            f"'maxDirtyRows'. The row: {str(batch.slice(number, 1).to_pylist()[0])[:200]}"
        )

    def _accept(self, batch: pa.RecordBatch, rejected: Sequence[Rejected]) -> None:
        """Count the rows of a batch that are not rejected, and hand over the others as refused ones."""
        bad = {number for number, _ in rejected}
        keep = [number for number in range(batch.num_rows) if number not in bad] if bad else None
        self._tally.add(batch if keep is None else batch.take(pa.array(keep, pa.int64())))
        for number, reason in rejected:
            assert self.refused is not None
            self.refused(batch.slice(number, 1), reason)


class DirectTask(RecordTask):
    """Rows go to a `Sink`."""

    def __init__(self, sink: Sink, tally: RowTally, batch_size: int) -> None:
        super().__init__(tally, batch_size)
        self._sink = sink

    def _send(self, batch: pa.RecordBatch) -> None:
        rejected = self._sink.send(batch)
        self._check_allowed(
            batch,
            rejected,
            "the target refused {}",
            "The others of this batch, and those before it, are written. ",
        )
        self._accept(batch, rejected)

    def close(self) -> Receipt:
        receipt = self._tally.receipt()
        self._sink.close()
        return receipt

    def rollback(self) -> None:
        self._tally.ended = True
        self._sink.close()
