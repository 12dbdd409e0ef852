"""What a job is called."""

import uuid

__all__ = ["new_job_id", "run_id"]


def new_job_id() -> str:
    """Unique among all runs."""
    return uuid.uuid4().hex[:12]


def run_id(plan: str, execution: str | None, stage: int) -> str:
    """The job that a task of a lazily read plan belongs to; every task of a run computes the same.

    `plan` is unique per `load()`. One SQL execution (Spark's local property `spark.sql.execution.id`) is
    one run: an action on the DataFrame. Its stages, retried stages, retried and speculative tasks
    share the id, and with it the limit, also when a self-join reads the plan in two stages at
    once. Without an execution (`df.rdd`) each stage is a run.
    """
    return f"{plan}-{execution}" if execution else f"{plan}-stage{stage}"
