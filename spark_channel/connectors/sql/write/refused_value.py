"""The error for a value that a column cannot store, with the statement that widens the column."""

from spark_channel.connectors.sql.catalog import Column
from spark_channel.connectors.sql.dialect import WriteDialect
from spark_channel.connectors.sql.session import S
from spark_channel.connectors.sql.write.encode import BadValueError
from spark_channel.connectors.sql.write.plan import SqlPlan
from spark_channel.connectors.sql.write.task_claim import TaskClaim
from spark_channel.errors import BatchRefusedError

__all__ = ["refused_value", "widening"]


def refused_value(
    dialect: WriteDialect, claim: TaskClaim[S], error: BadValueError, before: int | None = None
) -> BatchRefusedError:
    """`before` rows were accepted before its batch; None = which row it was says nothing."""
    row = "" if before is None else f", row {before + error.index + 1} of task {claim.task}"
    column = error.column.column
    cure = widening(dialect, claim.plan, column, error.wider)
    return BatchRefusedError(
        f"column {error.column.name!r}{row}: {error.value!r} cannot be stored in table "
        f"{claim.plan.target.label!r}: {error.why}{cure}"
    )


def widening(dialect: WriteDialect, plan: SqlPlan, column: Column, wider: str) -> str:
    """How to give a column the type `wider`, for people; "" = it is in an index, which may not take that type."""
    if not wider or column.name in plan.target.indexed:
        return ""
    return f". To widen the column, run {dialect.retyped(plan.target.sql, column, wider)}"
