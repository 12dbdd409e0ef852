"""A transfer's plan as text, kept in its target: a transfer that failed continues by the same plan.

Another cut of the source would give other rows to the tasks that have committed.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa
from pydantic import BaseModel

from spark_channel import serialization
from spark_channel.connectors import PartialWrite, Receipt, WriteContext, Writer, find_connector
from spark_channel.errors import TargetError
from spark_channel.masking import MASK
from spark_channel.options import Options, Trait, WriteOptions
from spark_channel.pipeline import TransferSource
from spark_channel.plain_text import log_of
from spark_channel.planning import Endpoint, Split, Task, TransferSpec
from spark_channel.transfers.write_job import transaction_of

__all__ = ["PartialTransfer", "find_partial_transfer", "job_of", "plan_text"]

_log = log_of(__name__)

_VERSION: Literal[2] = 2
_PASSWORD = re.compile(r"(?<=//)([^/@\s:]*):([^/\s]*)@")
_PARAMETER = re.compile(r"(?i)\b((?:password|passwd|pwd|token|secret|sslpassword)=)[^&;\s]*")
"""Secrets in a url, which its digest omits, so that a new password is not another source. Kept digests use it: they are
compared with, and never shown.
"""


class _StoredPlan(BaseModel):
    """The text that the target keeps. A task: its number, its source's, the writer's part, and its split."""

    version: Literal[2]
    outline: dict[str, str]
    tasks: list[tuple[int, int, Any, dict[str, Any], int | None, int | None]]


@dataclass(frozen=True, slots=True)
class PartialTransfer:
    """A transfer that committed some of its tasks, and how it continues.

    `tasks` is the whole plan, `receipts` are of the tasks that committed, `epochs` what `WriteContext.resume` takes,
    by the number of the target.
    """

    job: str
    tasks: tuple[Task, ...]
    receipts: tuple[Receipt, ...]
    epochs: Mapping[int, int]

    @property
    def left(self) -> list[Task]:
        finished = {receipt.task for receipt in self.receipts}
        return [task for task in self.tasks if task.id not in finished]


def job_of(job: str, target: int) -> str:
    """The name of a job at one of its targets, by the target's number."""
    return f"{job}-{target}" if target else job


def find_partial_transfer(
    writers: Sequence[Writer], spec: TransferSpec, schema: pa.Schema
) -> PartialTransfer | None:
    """The `commit=task` transfer of the same transaction pair that failed; None = there is none, or none with a plan.

    Raises:
        TargetError: there is one of other rows; says what differs.
    """
    options: WriteOptions = writers[0].options
    txn = transaction_of(options)
    if txn is None or options.commit == "job":
        return None
    partial_writes = [writer.unfinished(WriteContext(job="", txn=txn)) for writer in writers]
    ours = {
        number: one
        for number, one in enumerate(partial_writes)
        if one is not None and _is_ours(one, number)
    }
    names = {one.job.removesuffix(job_of("", number)) for number, one in ours.items()}
    text = next((one.plan for one in ours.values() if one.plan is not None), None)
    if len(names) != 1 or text is None:
        return None
    (job,) = names
    tasks = _tasks(text, job, txn, _outline(spec, schema))
    receipts = tuple(receipt for one in ours.values() for receipt in one.receipts)
    rows = sum(receipt.rows for receipt in receipts)
    _log.warning(
        "transaction id '%s:%d' is partially committed: "
        "this run continues job %s, of which %d of %d tasks with %d rows are committed",
        *txn,
        job,
        len(receipts),
        len(tasks),
        rows,
    )
    epochs = {number: one.epoch for number, one in ours.items() if one.epoch is not None}
    return PartialTransfer(job, tasks, receipts, epochs)


def plan_text(
    spec: TransferSpec, sources: Sequence[TransferSource], tasks: Sequence[Task]
) -> str | None:
    """The plan as `find_partial_transfer` reads it; None when a split would say something else in a later run."""
    plain_tasks = []
    for task in tasks:
        source, split = task.split.params["source"], task.split.params["split"]
        if not sources[source].reader.lasts(split):
            return None
        plain_tasks.append(
            (task.id, source, task.writer_part, split.params, split.rows, split.nbytes)
        )
    outline = _outline(spec, sources[0].pipeline.output_schema)
    try:
        return serialization.dump_tagged(
            {"version": _VERSION, "outline": outline, "tasks": plain_tasks}
        )
    except TypeError as error:
        _log.info("the plan is not kept: %s", error)
        return None


def _is_ours(partial: PartialWrite, number: int) -> bool:
    return partial.job.endswith(job_of("", number))


def _tasks(
    text: str, job: str, txn: tuple[str, int], outline: Mapping[str, str]
) -> tuple[Task, ...]:
    begun = f"transaction id '{txn[0]}:{txn[1]}' is partially committed by job {job!r}"
    try:
        stored = _StoredPlan.model_validate(serialization.load_tagged(text))
    except ValueError:
        raise TargetError(
            f"{begun}, whose plan another version of spark-channel has made: run it with that one"
        ) from None
    other = [
        name for name, earlier_value in stored.outline.items() if outline.get(name) != earlier_value
    ]
    if other:
        raise TargetError(
            f"{begun}, and this run has other {' and '.join(other)}: "
            "its rows would not be those that are missing. Run it as it was; "
            "or delete the rows that it wrote, and its rows in spark_channel_claims and spark_channel_tasks "
            "(files: overwrite the directory), and run the job again"
        )
    return tuple(
        Task(task, TransferSource.wrap(source, Split(params, rows, nbytes)), writer_part)
        for task, source, writer_part, params, rows, nbytes in stored.tasks
    )


def _outline(spec: TransferSpec, schema: pa.Schema) -> dict[str, str]:
    """Return digests of all that determines the rows: the target keeps no text of a user."""
    return {
        "options of the reader": _digest(_end(spec.reader)),
        "transformers": _digest([_named(step) for step in spec.transformers]),
        "columns": _digest([f"{field.name} {field.type}" for field in schema]),
    }


def _end(end: Endpoint) -> object:
    first = end.resolve(lambda urls: urls[0])[0]
    named = {key.lower(): value for key, value in first.options.items()}
    connector = find_connector({**named, **({"reader": end.name} if end.name else {})}, "reader")
    model = connector.options_class("reader")
    parts = [
        f"EndpointPart({_said(part.options, model)!r}, urls={[_without_password(url) for url in part.urls]!r})"
        for part in end.parts
    ]
    faster = model.with_trait(Trait.SAME_ROWS)
    options = {key.lower(): value for key, value in _said(end.options, model).items()}
    return [end.name, {key: value for key, value in options.items() if key not in faster}, parts]


def _said(options: Mapping[str, Any], model: type[Options]) -> dict[str, str]:
    """Return the options that determine the rows, as text; secrets are masked unless they name the source."""
    secret = model.secrets() - model.with_trait(Trait.NAMES_SOURCE)
    return {
        key: MASK if key.lower() in secret else _without_password(str(value))
        for key, value in options.items()
    }


def _without_password(text: str) -> str:
    return _PARAMETER.sub(rf"\1{MASK}", _PASSWORD.sub(rf"\1:{MASK}@", text))


def _named(step: object) -> str:
    name = getattr(step, "__qualname__", None)
    text = repr(step) if name is None else f"{step.__module__}.{name}"
    return re.sub(r" at 0x[0-9a-fA-F]+", "", text)


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()
