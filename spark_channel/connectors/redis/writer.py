"""Writes rows as values of keys: at once (`commit=task`), or all together at the end of the job (`commit=job`)."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import islice
from typing import Any, ClassVar

import pyarrow as pa

from spark_channel.connectors.base.contract import (
    Receipt,
    RowTally,
    TaskWriter,
    WriteContext,
    WritePlan,
)
from spark_channel.connectors.base.kept_claims import ClaimName, KeptClaim
from spark_channel.connectors.base.overlap import MOST_COUNTED, counted
from spark_channel.connectors.files.file_names import new_attempt
from spark_channel.connectors.records.direct_writer import DirectWriter, RecordTask, Rejected, Sink
from spark_channel.connectors.redis.client import connected, explained, is_of_row, is_passing
from spark_channel.connectors.redis.commands import Command, Commands
from spark_channel.connectors.redis.options import RedisWriteOptions
from spark_channel.connectors.redis.staging import OWN_KEYS, PAGE, Stage, Staging
from spark_channel.errors import OptionError, TargetError
from spark_channel.options import WriteOptions
from spark_channel.retry import Retry

__all__ = ["RedisWriter"]


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

    def foreign_content(self, schema: pa.Schema) -> str:
        options = self.options
        if not options.key_prefix:
            return ""  # the write refuses it
        with connected(options, TargetError) as client:
            count = sum(1 for _ in islice(_keys(client, options), MOST_COUNTED + 1))
        keys = f"{counted(count, 'key')} with prefix {options.key_prefix!r}, whoever wrote them"
        return keys if count else ""

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
                    if len(some) == PAGE:
                        _unlink(client, some)
                        some = []
                _unlink(client, some)

    def prepare(self, context: WriteContext, schema: pa.Schema) -> WritePlan:
        if not self._stages(context):
            return super().prepare(context, schema)
        if context.commit == "task":
            raise OptionError(
                "option 'txn' needs commit=job: "
                "a later run does not know which tasks of this one are written",
                option="commit",
                got="task",
                takes="job",
            )
        if context.overwrite:
            raise OptionError(
                "an overwrite takes commit=task: keys are removed one after another, and no script removes them "
                "together with what the job writes. Append, or use 'writeMode' (replace)",
                option="commit",
                got="job",
                takes="task",
            )
        self.check(schema)
        decision = Staging(self.options).take(context)
        plan = WritePlan(context.job, schema, "job", txn=context.txn, held=decision.held)
        return (
            plan
            if decision.held is not None
            else replace(plan, published_at=decision.published_at or "an unknown time")
        )

    def _stages(self, context: WriteContext) -> bool:
        """A batch of a stream asks for it, and is published once. A cluster has no transaction for it."""
        is_asked = self.options.is_staged or context.commit == "job" or context.txn is not None
        return is_asked and not self.options.cluster

    def kept_claims(self, names: Sequence[ClaimName] = ()) -> list[KeptClaim]:
        return Staging(self.options).kept()

    def forget_claims(self, claims: Sequence[KeptClaim]) -> list[KeptClaim]:
        return Staging(self.options).forget(claims)

    def open(self, plan: WritePlan, task: int, attempt: int) -> TaskWriter:
        if plan.commit == "task":
            return super().open(plan, task, attempt)
        return _StagedTask(self.options, plan, RowTally(task, attempt))

    def connect(self, schema: pa.Schema) -> Sink:
        return _Direct(self.options, schema)

    def commit(self, plan: WritePlan, receipts: Sequence[Receipt]) -> bool | None:
        return None if plan.held is None else Staging(self.options).publish(plan.held, receipts)

    def abort(self, plan: WritePlan, receipts: Sequence[Receipt | None] | None) -> None:
        if plan.held is not None:
            Staging(self.options).release(plan.held)


def _keys(client: Any, options: RedisWriteOptions) -> Iterator[bytes]:
    """Those with the prefix, without the claims and the staged rows of jobs."""
    for key in client.scan_iter(match=_pattern(options), count=PAGE):
        if not key.startswith(OWN_KEYS):
            yield key


def _pattern(options: RedisWriteOptions) -> str:
    plain = "".join(
        f"\\{character}" if character in r"*?[]\^-" else character
        for character in options.key_prefix
    )
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
        commands: list[tuple[int, Command]] = []
        for number, row in enumerate(batch.to_pylist()):
            try:
                commands += [(number, command) for command in self._commands.commands(row)]
            except ValueError as error:
                rejected.append((number, str(error)))
        with explained(self._options, TargetError):
            answers = self._retry.call(
                lambda: self._sent([command for _, command in commands]), is_passing
            )
        reasons: dict[int, str] = {}
        for (number, _), answer in zip(commands, answers, strict=True):
            if isinstance(answer, Exception):
                reasons.setdefault(number, str(answer)[:300])
        return sorted([*rejected, *reasons.items()])

    def _sent(self, commands: Sequence[Command]) -> list[Any]:
        if not commands:
            return []
        with self._client.pipeline(transaction=not self._options.cluster) as pipeline:
            for command in commands:
                pipeline.execute_command(command[0].decode(), *command[1:])
            answers: list[Any] = pipeline.execute(raise_on_error=False)
        failed = next(
            (
                answer
                for answer in answers
                if isinstance(answer, Exception) and not is_of_row(answer)
            ),
            None,
        )
        if failed is not None:
            raise failed
        return answers


class _StagedTask(RecordTask):
    """One attempt. For a published transaction it stages nothing."""

    def __init__(self, options: RedisWriteOptions, plan: WritePlan, tally: RowTally) -> None:
        super().__init__(tally, options.batch_size)
        self._commands = Commands(options, plan.schema)
        self._held = ExitStack()
        self._stage: Stage | None = None
        if plan.held is not None:
            client = self._held.enter_context(connected(options, TargetError))
            name = f"{tally.task}-{tally.attempt}-{new_attempt()}"
            self._stage = Stage(options, client, plan.held, name)

    def _send(self, batch: pa.RecordBatch) -> None:
        if self._stage is None:
            return
        commands: list[Command] = []
        rejected: list[Rejected] = []
        for number, row in enumerate(batch.to_pylist()):
            try:
                commands += self._commands.commands(row)
            except ValueError as error:
                rejected.append((number, str(error)))
        self._check_allowed(
            batch, rejected, "{} cannot be written", "No row of this job is visible. "
        )
        self._stage.add(commands)
        self._accept(batch, rejected)

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
