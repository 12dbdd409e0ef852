"""Carries a job out with the connectors and without Spark: one task after the other, in this thread."""

from contextlib import ExitStack
from typing import Any

from spark_channel.connectors import Receipt, WriteContext
from spark_channel.datax import load_job
from spark_channel.transfers.options import job_options
from spark_channel.transfers.plan import begin_transfer, open_transfer
from spark_channel.transfers.resume import plan_text
from spark_channel.transfers.write_job import transaction_of
from spark_channel.transform import Refused


def move(
    job: dict[str, Any],
    variables: dict[str, Any] | None = None,
    name: str = "job",
    *,
    die_after: int = -1,
    **more: Any,
) -> list[Refused]:
    """Run the job's first content; returns the rows that its steps refused.

    `die_after` tasks it ends as a killed process does: nothing is given back. `more` is for `load_job`.
    """
    (spec, *_) = load_job(job, variables, **more).specs
    refused: list[Refused] = []
    with ExitStack() as held:
        opened = open_transfer(begin_transfer(job_options(spec, {})), 2, held)
        (writer,) = opened.writers
        begun = opened.begun
        context = WriteContext(
            name,
            commit=opened.options.commit if begun is None else "task",
            overwrite=spec.save_mode == "overwrite",
            txn=transaction_of(opened.options),
            resume=None if begun is None else begun.epochs.get(0),
        )
        plan = writer.prepare(context, opened.schema)
        if plan.commit == "task" and context.txn and plan.published_at is None and begun is None:
            writer.keep(plan, plan_text(opened.spec, opened.sources, opened.plan.tasks) or "")
        again = {task.id for task in opened.plan.tasks}
        earlier = (
            [] if begun is None else [each for each in begun.receipts if each.task not in again]
        )
        receipts: list[Receipt] = []
        try:
            for task in opened.plan.tasks:
                if len(receipts) == die_after:
                    return refused
                source = opened.sources[task.split.params["source"]]
                target = writer.open(plan, task.id, task.id)
                try:
                    for batch in source.reader.read(task.split.params["split"]):
                        outcome = source.pipeline.run(batch)
                        refused.extend(outcome.refused)
                        target.write(outcome.batch)
                    receipts.append(target.close())
                except BaseException:
                    target.rollback()
                    raise
            writer.commit(plan, [*earlier, *receipts])
        except BaseException:
            writer.abort(plan, receipts)
            raise
    return refused
