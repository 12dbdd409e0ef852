"""Refused rows of a job: counted against its limit, kept with the reason, and judged before rows are published."""

import base64
import json
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, Self

import pyarrow as pa

from spark_channel.arrow_schema import is_cut_by_python
from spark_channel.clock import utc_now
from spark_channel.connectors import (
    Receipt,
    TaskWriter,
    WriteContext,
    WritePlan,
    Writer,
    load_writer,
)
from spark_channel.connectors.base.contract import DirtyRow
from spark_channel.errors import DirtyRowsError
from spark_channel.final_errors import HeardError
from spark_channel.options import WriteOptions
from spark_channel.plain_text import log_of
from spark_channel.progress import DirtyLimit
from spark_channel.progress.report import told_reasons

if TYPE_CHECKING:
    from spark_channel.progress import Counters

__all__ = [
    "DIRTY_SCHEMA",
    "DirtyBudget",
    "DirtyLog",
    "DirtyStore",
    "TaskDirtyRows",
    "dirty_limit_of",
    "dirty_row_totals",
    "merged_reasons",
    "row_text",
    "tell_refused",
    "too_many",
]

DIRTY_SCHEMA = pa.schema(
    [
        ("job", pa.string()),
        ("task", pa.int32()),
        ("target", pa.string()),
        ("reason", pa.string()),
        ("row", pa.string()),
        ("refused_at", pa.timestamp("us", "UTC")),
    ]
)
"""Columns of the files in `dirtyRowsPath`; `row` is a JSON object."""

_SAMPLES = 10
_OF_A_KIND = 3
"""Samples with reasons of one kind."""
_KINDS = 100
"""Kinds of reasons that a task counts; rows refused for yet another are only in the sum."""
_SAYS = re.compile(r"\A[^'\"]*? says: ")
_LINE_END = re.compile(r"\\n|\n|\.? (?:DETAIL|HINT|CONTEXT): ")
_VALUE = re.compile(
    r"""((?:: |entry |value |holds |got )(['"])).*?(?:\2(?![\w'"])|\Z)"""  # MySQL doubles no quote: 'it's'
)
_NUMBER = re.compile(r"(?<!\w)(?<!\w\()-?\d+(?:\.\d+)?(?:e[-+]?\d+)?", re.IGNORECASE)
"""Neither in a name, as `line1`, nor of a type, as `varchar(3)`."""
_LONGEST_SAMPLE = 2_000
_KEPT_BACK = 1_000
_TOLD = 10
"""Refused rows that the log shows."""
_log = log_of(__name__)


def dirty_limit_of(options: WriteOptions) -> DirtyLimit:
    """How many rows these options allow to be refused."""
    return DirtyLimit(options.most_dirty_rows, options.max_dirty_fraction)


class DirtyBudget:
    """The number of rows that the tasks of one process may still refuse. Thread-safe.

    `stop` gives the reason for which the whole job should stop, as last heard from the service, or
    an empty text: other tasks refuse rows too. `failure` gives the error of another task that this one would meet, too.
    """

    def __init__(
        self,
        limit: DirtyLimit,
        stop: Callable[[], str] = str,
        failure: Callable[[], str] = str,
        *,
        hint: str = "",
    ) -> None:
        self.limit = limit
        self._stop, self._failure = stop, failure
        self._hint = hint
        self._lock = threading.Lock()
        self._dirty = 0

    def spend(self, rows: int, reason: str) -> None:
        """Count `rows` refused rows.

        Raises:
            DirtyRowsError: they are too many.
        """
        with self._lock:
            self._dirty += rows
            reason_to_stop = self.limit.exceeded(self._dirty, 0)
        if reason_to_stop:
            raise DirtyRowsError(f"{reason_to_stop}. The last one: {reason}{self._hint}")
        self.check()

    def check(self) -> None:
        """Between two batches.

        Raises:
            DirtyRowsError: the job as a whole has refused too many rows. HeardError: another task has met an error
            that this one would meet, too.
        """
        if reason := self._failure():
            raise HeardError(reason)
        if self.limit.limited and (reason := self._stop()):
            raise DirtyRowsError(f"{reason}{self._hint}")


@dataclass(frozen=True)
class DirtyStore:
    """Keeps refused rows in a directory of Parquet files, published like any other write. Picklable."""

    writer: Writer
    plan: WritePlan
    path: str
    target: str

    @classmethod
    def prepare(cls, path: str, job: str, target: str) -> Self:
        """Driver, once, before any task.

        Raises:
            TargetError: the directory cannot be written.
        """
        writer, _ = load_writer({"writer": "parquet", "path": path})
        context = WriteContext(job=f"{job}-dirty", commit="job")
        return cls(writer, writer.prepare(context, DIRTY_SCHEMA), path, target)

    def publish(self, parts: Sequence["TaskDirtyRows"]) -> None:
        """Driver: make the rows of these parts visible, and drop all others."""
        receipts = [part.receipt for part in parts if part.receipt is not None]
        self.writer.commit(self.plan, receipts)

    def drop(self) -> None:
        """Driver: remove what was kept and not published. Safe after `publish`, and twice."""
        self.writer.abort(self.plan, None)


@dataclass(frozen=True, slots=True)
class TaskDirtyRows:
    """The rows that one attempt of one task refused. Sent to the driver."""

    rows: int = 0
    samples: tuple[DirtyRow, ...] = ()
    receipt: Receipt | None = None
    reasons: Mapping[str, int] = field(default_factory=dict)

    def into(self, receipt: Receipt) -> Receipt:
        """The task's own receipt, with these figures."""
        return replace(
            receipt,
            dirty_rows=receipt.dirty_rows + self.rows,
            dirty_samples=(*receipt.dirty_samples, *self.samples)[:_SAMPLES],
            dirty_reasons=self.reasons,
        )


class DirtyLog:
    """The refused rows of one attempt of one task. Used by one thread; ends with `finish` or `rollback`."""

    def __init__(
        self,
        budget: DirtyBudget,
        task: int,
        attempt: int,
        *,
        store: DirtyStore | None = None,
        job: str = "",
        counters: "Counters | None" = None,
    ) -> None:
        self.budget = budget
        self._task = task
        self._attempt = attempt
        self._store = store
        self._job = job
        self._counters = counters
        self._writer: TaskWriter | None = None
        self._kept: list[tuple[str, str]] = []
        self._rows = 0
        self._samples: list[DirtyRow] = []
        self._reasons: dict[str, str] = {}
        """The first reason of each kind."""
        self._of_kind: dict[str, int] = {}

    @property
    def tolerant(self) -> bool:
        return self.budget.limit.tolerant

    @property
    def rows(self) -> int:
        """Rows that this target refused so far."""
        return self._rows

    def refuse(self, rows: pa.RecordBatch, reason: str) -> None:
        """Keep and count `rows`, all of them refused for `reason`.

        Raises:
            DirtyRowsError: the job may refuse no more. `finish` still keeps these rows.
            TargetError: they cannot be kept.
        """
        count = rows.num_rows
        if count == 0:
            return
        self._rows += count
        if self._counters is not None:
            self._counters.dirty(count)
        samples_wanted = min(self._count_kind(count, reason), _SAMPLES - len(self._samples))
        if self._store is not None or samples_wanted > 0:
            for number, text in enumerate(row_texts(rows)):
                if number < samples_wanted:
                    self._samples.append(DirtyRow(text[:_LONGEST_SAMPLE], reason[:_LONGEST_SAMPLE]))
                elif self._store is None:
                    break
                if self._store is None:
                    continue
                self._kept.append((text, reason))
                if len(self._kept) >= _KEPT_BACK:
                    self._write_out()
        self.budget.spend(count, reason)

    def _count_kind(self, rows: int, reason: str) -> int:
        """Count `rows` by the kind of their reason. Returns of how many more rows of this kind samples are wanted."""
        words = first_words(reason)
        kind = kind_of(words)
        before = self._of_kind.get(kind, 0)
        if before or len(self._of_kind) < _KINDS:
            self._reasons.setdefault(kind, words[:_LONGEST_SAMPLE])
            self._of_kind[kind] = before + rows
        return max(0, _OF_A_KIND - before)

    def finish(self) -> TaskDirtyRows:
        """All refused rows, durable."""
        self._write_out()
        receipt = None
        if self._writer is not None:
            receipt, self._writer = self._writer.close(), None
        reasons = {self._reasons[kind]: rows for kind, rows in self._of_kind.items()}
        return TaskDirtyRows(self._rows, tuple(self._samples), receipt, reasons)

    def rollback(self) -> None:
        """Drop the rows, since the attempt failed: another attempt refuses the same rows again."""
        self._kept.clear()
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.rollback()

    def _write_out(self) -> None:
        if self._store is None or not self._kept:
            return
        if self._writer is None:
            self._writer = self._store.writer.open(self._store.plan, self._task, self._attempt)
        count = len(self._kept)
        columns = [
            pa.array([self._job] * count),
            pa.array([self._task] * count, pa.int32()),
            pa.array([self._store.target] * count),
            pa.array([reason for _, reason in self._kept]),
            pa.array([text for text, _ in self._kept]),
            pa.array([utc_now()] * count, pa.timestamp("us", "UTC")),
        ]
        self._writer.write(pa.RecordBatch.from_arrays(columns, schema=DIRTY_SCHEMA))
        self._kept.clear()


def first_words(reason: str) -> str:
    """The first line of what a target says, without the target's name."""
    line = _LINE_END.split(reason, maxsplit=1)[0]
    return _SAYS.sub("", line) or line


def kind_of(words: str) -> str:
    """What the target says, without the row's values: rows that are refused for one cause have one kind."""
    if "CHECK constraint failed" in words:  # SQLite's: the condition, without a value
        return words
    return _NUMBER.sub("0", _VALUE.sub(r"\1\2", words))


def merged_reasons(parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """The refused rows of all parts by reason, the most frequent kind first, each by the first reason of its kind."""
    firsts: dict[str, str] = {}
    rows: dict[str, int] = {}
    for part in parts:
        for words, count in part.items():
            kind = kind_of(words)
            firsts.setdefault(kind, words)
            rows[kind] = rows.get(kind, 0) + count
    ordered = sorted(rows, key=lambda kind: -rows[kind])
    return {firsts[kind]: rows[kind] for kind in ordered[:_KINDS]}


def row_texts(rows: pa.RecordBatch) -> Iterator[str]:
    """Each row as a JSON object: numbers and flags as such, times as ISO 8601, bytes as base64."""
    for number in range(rows.num_rows):
        yield row_text(rows.slice(number, 1))


def row_text(row: pa.RecordBatch) -> str:
    """The one row of `row` as a JSON object; a name that occurs twice keeps its last value."""
    values = {
        name: _value(column) for name, column in zip(row.schema.names, row.columns, strict=True)
    }
    return json.dumps(values, ensure_ascii=False, default=_as_text)


def _value(column: pa.Array) -> object:
    if is_cut_by_python(column.type):
        return column[0].cast(pa.string()).as_py()
    try:
        value = column[0].as_py()
        json.dumps(value, allow_nan=False, default=_as_text)
    except (ValueError, OverflowError, TypeError):  # NaN, or a time that Python cannot hold
        return str(column.cast(pa.string())[0].as_py())
    return value


def _as_text(value: object) -> str:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return base64.b64encode(bytes(value)).decode("ascii")
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def too_many(options: WriteOptions, dirty: int, receipts: Sequence[Receipt]) -> str:
    """Driver, at the end: why `dirty` refused rows are too many; empty when they are not."""
    rows = sum(receipt.rows for receipt in receipts)
    return dirty_limit_of(options).exceeded(dirty, dirty + rows, final=True)


def tell_refused(
    job: str,
    samples: Iterable[DirtyRow],
    rows: int,
    path: str,
    reasons: Mapping[str, int] | None = None,
) -> None:
    """Driver: log the first refused rows, each with its reason, and how many there are; nothing without any."""
    if not rows:
        return
    samples_shown = list(islice(samples, _TOLD))
    for sample in samples_shown:
        _log.warning("job %s: refused row %s: %s", job, sample.row, sample.reason)
    where = f"they are in {path}" if path else "option dirtyRowsPath (--dirty-rows-path) keeps them"
    shown_text = (
        f", of which {len(samples_shown)} are shown above" if rows > len(samples_shown) else ""
    )
    reasons_text = f": {told_reasons(reasons, rows)}" if shown_text and reasons else ""
    _log.warning("job %s: %d rows were refused%s; %s%s", job, rows, shown_text, where, reasons_text)


def dirty_row_totals(plan: WritePlan, target: str, receipts: Sequence[Receipt]) -> str:
    """Return the state of the target of a job that refused too many rows."""
    rows = sum(receipt.rows for receipt in receipts)
    if plan.commit == "task" and rows:
        return f"{rows} rows of the tasks that had committed (commit=task) stay in {target}"
    return f"{target} contains nothing of this job"
