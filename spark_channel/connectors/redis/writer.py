"""Writes rows as values of keys: at once (`commit=task`), or all together at the end of the job (`commit=job`)."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, ClassVar

import pyarrow as pa

from spark_channel.connectors.contracts import Receipt, Tally, TaskWriter, WriteContext, WritePlan
from spark_channel.connectors.direct import DirectWriter, Rejected, Sink
from spark_channel.connectors.files.names import new_attempt
from spark_channel.connectors.redis.client import connected, explained, is_of_row, is_passing
from spark_channel.connectors.redis.commands import Command, Commands
from spark_channel.connectors.redis.options import RedisWriteOptions
from spark_channel.connectors.redis.staging import OWN_KEYS, Stage, Staging
from spark_channel.errors import OptionError, TargetError
from spark_channel.options import WriteOptions
from spark_channel.retry import Retry

__all__ = ["RedisWriter"]

_PAGE = 1_000


class RedisWriter(DirectWriter):
    """See `RedisWriteOptions`."""

    Options: ClassVar[type[WriteOptions]] = RedisWriteOptions
    options: RedisWriteOptions

    @property
    def replaces(self) -> bool:
        return self.options.is_repeatable

    def exists(self) -> bool | None:
        with connected(self.options, TargetError) as client:
            return next(_keys(client, self.options), None) is not None

    def resource_mark(self) -> str | None:
        return self.options.host

    def check(self, schema: pa.Schema) -> None:
        Commands(self.options, schema)

    def probe(self, *, empty: bool) -> None:
        options = self.options
        if empty and not options.key_prefix:
            raise OptionError(
                "an overwrite removes the keys that begin with 'keyPrefix', which is empty: set it, or append",
                option="keyPrefix",
            )
        with connected(options, TargetError) as client:
            client.ping()
            if empty:
                some: list[bytes] = []
                for key in _keys(client, options):
                    some.append(key)
                    if len(some) == _PAGE:
                        _unlink(client, some)
                        some = []
                _unlink(client, some)

    def prepare(self, context: WriteContext, schema: pa.Schema) -> WritePlan:
        if not self._stages(context):
            return super().prepare(context, schema)
        if context.commit == "task":
            raise OptionError(
                "options 'txnAppId' and 'txnVersion' need commit=job: "
                "a later run cannot tell which tasks of this one are written",
                option="commit", got="task", takes="job",
            )  # fmt: skip
        if context.overwrite:
            raise OptionError(
                "an overwrite takes commit=task: keys are removed one after another, and no script removes them "
                "together with what the job writes. Append, or use 'writeMode' (replace)",
                option="commit", got="job", takes="task",
            )  # fmt: skip
        self.check(schema)
        taken = Staging(self.options).take(context)
        plan = WritePlan(context.job, schema, "job", txn=context.txn, held=taken.held)
        return (
            plan
            if taken.held is not None
            else replace(plan, published_at=taken.published_at or "an unknown time")
        )

    def _stages(self, context: WriteContext) -> bool:
        """A batch of a stream asks for it, and is published once. A cluster has no transaction for it."""
        asked = self.options.is_staged or context.commit == "job" or context.txn is not None
        return asked and not self.options.cluster

    def open(self, plan: WritePlan, task: int, attempt: int) -> TaskWriter:
        if plan.commit == "task":
            return super().open(plan, task, attempt)
        return _StagedTask(self.options, plan, Tally(task, attempt))

    def connect(self, schema: pa.Schema) -> Sink:
        return _Direct(self.options, schema)

    def commit(self, plan: WritePlan, receipts: Sequence[Receipt]) -> None:
        if plan.held is not None:
            Staging(self.options).publish(plan.held, receipts)

    def abort(self, plan: WritePlan, receipts: Sequence[Receipt | None] | None) -> None:
        if plan.held is not None:
            Staging(self.options).release(plan.held)


def _keys(client: Any, options: RedisWriteOptions) -> Iterator[bytes]:
    """Those with the prefix, without the claims and the staged rows of jobs."""
    for key in client.scan_iter(match=_pattern(options), count=_PAGE):
        if not key.startswith(OWN_KEYS):
            yield key


def _pattern(options: RedisWriteOptions) -> str:
    plain = "".join(f"\\{each}" if each in r"*?[]\^-" else each for each in options.key_prefix)
    return f"{plain}*"


def _unlink(client: Any, keys: Sequence[bytes]) -> None:
    with client.pipeline(transaction=False) as pipeline:
        for key in keys:
            pipeline.unlink(key)
        pipeline.execute()


class _Direct:
    """Sends each batch as one transaction, so that no reader sees a key between its removal and its new value."""

    def __init__(self, options: RedisWriteOptions, schema: pa.Schema) -> None:
        self._options, self._commands = options, Commands(options, schema)
        self._held = ExitStack()
        self._client: Any = self._held.enter_context(connected(options, TargetError))
        timeout = options.retry_timeout if options.is_repeatable else 0.0
        self._retry = Retry(timeout, what=f"writing {options.address}")

    def close(self) -> None:
        self._held.close()

    def send(self, batch: pa.RecordBatch) -> Sequence[Rejected]:
        rejected: list[Rejected] = []
        made: list[tuple[int, Command]] = []
        for number, row in enumerate(batch.to_pylist()):
            try:
                made += [(number, command) for command in self._commands.of(row)]
            except ValueError as error:
                rejected.append((number, str(error)))
        with explained(self._options, TargetError):
            answers = self._retry.call(lambda: self._sent([command for _, command in made]), is_passing)
        reasons: dict[int, str] = {}
        for (number, _), answer in zip(made, answers, strict=True):
            if isinstance(answer, Exception):
                reasons.setdefault(number, str(answer)[:300])
        return sorted([*rejected, *reasons.items()])

    def _sent(self, commands: Sequence[Command]) -> list[Any]:
        if not commands:
            return []
        with self._client.pipeline(transaction=not self._options.cluster) as pipeline:
            for command in commands:
                pipeline.execute_command(command[0].decode(), *command[1:])
            found: list[Any] = pipeline.execute(raise_on_error=False)
        failed = next((each for each in found if isinstance(each, Exception) and not is_of_row(each)), None)
        if failed is not None:
            raise failed
        return found


class _StagedTask(TaskWriter):
    """One attempt. For a published transaction it stages nothing."""

    def __init__(self, options: RedisWriteOptions, plan: WritePlan, tally: Tally) -> None:
        self._options, self._plan, self._tally = options, plan, tally
        self._commands = Commands(options, plan.schema)
        self._held = ExitStack()
        self._stage: Stage | None = None
        if plan.held is not None:
            client = self._held.enter_context(connected(options, TargetError))
            name = f"{tally.task}-{tally.attempt}-{new_attempt()}"
            self._stage = Stage(options, client, plan.held, name)

    def write(self, batch: pa.RecordBatch) -> None:
        self._tally.hold_open()
        if self._stage is None:
            return
        for start in range(0, batch.num_rows, self._options.batch_size):
            self._write(self._stage, batch.slice(start, self._options.batch_size))

    def _write(self, stage: Stage, batch: pa.RecordBatch) -> None:
        made: list[Command] = []
        rejected: list[Rejected] = []
        for number, row in enumerate(batch.to_pylist()):
            try:
                made += self._commands.of(row)
            except ValueError as error:
                rejected.append((number, str(error)))
        if rejected and (not self.tolerant or self.refused is None):
            number, reason = rejected[0]
            raise TargetError(
                f"{len(rejected)} of {batch.num_rows} rows cannot be written, the first of them: {reason}. "
                "No row of this job is visible. Correct the rows, or allow refused rows with 'maxDirtyRows'. "
                f"The row: {str(batch.slice(number, 1).to_pylist()[0])[:200]}"
            )
        stage.add(made)
        bad = {number for number, _ in rejected}
        good = (
            batch.take(pa.array([n for n in range(batch.num_rows) if n not in bad], pa.int64()))
            if bad
            else batch
        )
        self._tally.add(good)
        for number, reason in rejected:
            assert self.refused is not None
            self.refused(batch.slice(number, 1), reason)

    def close(self) -> Receipt:
        key, items = ("", 0) if self._stage is None else (self._stage.key, self._stage.items)
        receipt = self._tally.receipt(stage=key, items=items)
        self._held.close()
        return receipt

    def rollback(self) -> None:
        if self._tally.ended:
            return
        self._tally.ended = True
        try:
            if self._stage is not None:
                self._stage.remove()
        finally:
            self._held.close()
