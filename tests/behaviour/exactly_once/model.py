"""A target in memory that keeps the write protocol, as the reference for each real target."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from spark_channel.connectors import Receipt, TaskWriter, WriteContext, WritePlan, Writer
from spark_channel.connectors.base import claims as protocol
from spark_channel.connectors.base.claims import Claim, HeldClaim, Identity
from spark_channel.connectors.base.contract import PartialWrite
from spark_channel.options import WriteOptions

__all__ = ["Model", "ModelWriter"]


@dataclass
class Model:
    """`rows` are what readers see: how often each id is there."""

    claims: dict[str, Claim] = field(default_factory=dict)
    tasks: dict[str, dict[int, Receipt]] = field(default_factory=dict)
    rows: Counter[int] = field(default_factory=Counter)
    staging: dict[tuple[str, int], dict[tuple[int, int], Counter[int]]] = field(
        default_factory=dict
    )


class ModelWriter(Writer):
    """Every method is one step, which nothing interrupts."""

    def __init__(self, model: Model) -> None:
        super().__init__(WriteOptions.parse({})[0])
        self.model = model

    def prepare(self, context: WriteContext, schema: pa.Schema) -> WritePlan:
        model, mode = self.model, context.commit or "job"
        identity = Identity.for_write("t", context)
        done = model.tasks.get(identity.key, {})
        taken = protocol.take(
            model.claims.get(identity.key),
            identity,
            context.job,
            position=context.stream[1] if context.stream else None,
            committed=(len(done), sum(each.rows for each in done.values())),
            resume=context.resume,
        )
        plan = WritePlan(context.job, schema, mode, context.overwrite, context.txn)
        if taken.held is None:
            return replace(plan, published_at=taken.published_at)
        if taken.claim is not None:
            model.claims[identity.key] = taken.claim
        if taken.overtaken is not None:
            model.staging.pop((identity.key, taken.overtaken.epoch), None)
        if mode == "job":
            model.staging.setdefault(_stage(taken.held), {})
        return replace(plan, held=taken.held)

    def open(self, plan: WritePlan, task: int, attempt: int) -> TaskWriter:
        return ModelTask(self.model, plan, task, attempt)

    def committed(self, plan: WritePlan, task: int) -> Receipt | None:
        assert plan.held is not None
        return self.model.tasks.get(plan.held.identity.key, {}).get(task)

    def unfinished(self, context: WriteContext) -> PartialWrite | None:
        identity = Identity.for_write("t", context)
        found, done = self.model.claims.get(identity.key), self.model.tasks.get(identity.key)
        if found is None or found.has_published(None) or not done:
            return None
        return PartialWrite(found.owner, None, tuple(done.values()), found.epoch)

    def commit(self, plan: WritePlan, receipts: Sequence[Receipt]) -> None:
        if plan.held is None:
            return
        model, held = self.model, plan.held
        key = held.identity.key
        found = model.claims.get(key)
        done = protocol.publish(
            found, held, at="now", rows=sum(each.rows for each in receipts), nbytes=0
        )
        if done is None:
            return
        if plan.commit == "job":
            staged = model.staging.pop(_stage(held))
            for receipt in receipts:
                model.rows += staged[receipt.task, receipt.attempt]
        model.claims[key] = done
        model.tasks.pop(key, None)

    def abort(self, plan: WritePlan, receipts: Sequence[Receipt | None] | None) -> None:
        if plan.held is None:
            return
        model, key = self.model, plan.held.identity.key
        found = model.claims.get(key)
        given = protocol.release(found, plan.held, tasks=len(model.tasks.get(key, {})))
        if given is not None:
            model.claims[key] = given
        model.staging.pop(_stage(plan.held), None)


class ModelTask(TaskWriter):
    def __init__(self, model: Model, plan: WritePlan, task: int, attempt: int) -> None:
        self._model, self._plan, self._task, self._attempt = model, plan, task, attempt
        self._rows: Counter[int] = Counter()

    def write(self, batch: pa.RecordBatch) -> None:
        self._rows.update(batch.column("id").to_pylist())

    def close(self) -> Receipt:
        model, plan = self._model, self._plan
        receipt = Receipt(self._task, self._attempt, self._rows.total(), 0)
        held = plan.held
        if held is None:
            return Receipt(self._task, self._attempt, 0, 0)
        if plan.commit == "job":
            if _stage(held) not in model.staging:
                from spark_channel.errors import TargetError

                raise TargetError("the staging no longer exists")
            model.staging[_stage(held)][self._task, self._attempt] = self._rows
            return receipt
        protocol.check(model.claims.get(held.identity.key), held)
        done = model.tasks.setdefault(held.identity.key, {})
        if self._task not in done:
            done[self._task] = receipt
            model.rows += self._rows
        return done[self._task]

    def rollback(self) -> None:
        self._rows = Counter()


def _stage(held: HeldClaim) -> tuple[str, int]:
    return held.identity.key, held.epoch
