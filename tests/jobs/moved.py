"""Carries a job out with the connectors and without Spark: one task after the other, in this thread."""

from contextlib import ExitStack
from typing import Any

from spark_channel.connectors import WriteContext
from spark_channel.jobs import load_job
from spark_channel.spark.transfer_options import job_options
from spark_channel.spark.transfer_plan import begin_transfer, open_transfer
from spark_channel.transform import Refused


def move(job: dict[str, Any], variables: dict[str, Any] | None = None, name: str = "job") -> list[Refused]:
    """Run the job's first content; returns the rows that its steps refused."""
    (spec, *_) = load_job(job, variables).specs
    refused: list[Refused] = []
    with ExitStack() as held:
        opened = open_transfer(begin_transfer(job_options(spec, {})), 2, held)
        (writer,) = opened.writers
        context = WriteContext(name, overwrite=spec.save_mode == "overwrite")
        plan = writer.prepare(context, opened.schema)
        receipts = []
        try:
            for task in opened.plan.tasks:
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
            writer.commit(plan, receipts)
        except BaseException:
            writer.abort(plan, receipts)
            raise
    return refused
