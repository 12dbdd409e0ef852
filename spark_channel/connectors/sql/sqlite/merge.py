"""From rows in a temporary table into the target, as `writeMode` says."""

from spark_channel.connectors.sql import statements
from spark_channel.connectors.sql.change_feed import OPERATION
from spark_channel.connectors.sql.merge import PLACE, Merge
from spark_channel.connectors.sql.sqlite.database import Session
from spark_channel.connectors.sql.sqlite.options import SqliteWriteOptions
from spark_channel.connectors.sql.target import Target

__all__ = ["make_stage", "merge"]

_STAGE = "spark_channel_stage"


def make_stage(session: Session, target: Target) -> str:
    """A temporary table with the same columns, as SQL: keys are compared in it before the table sees them."""
    stage = statements.named_table(("temp", _STAGE))
    columns = [(column.target, column.declared, False) for column in target.columns]
    key: tuple[str, ...] = ()
    if target.operation is not None:
        columns += [(OPERATION, "TEXT", False), (PLACE, "INTEGER", False)]
        key = (PLACE,)
    session.rows(statements.create_table(stage, columns, key, "sqlite"))
    return stage.expression.sql("sqlite")


def merge(session: Session, target: Target, options: SqliteWriteOptions, stage: str) -> None:
    """Bring the rows of `stage` (SQL) into the table.

    Raises:
        TargetError: SQLite refused a row, a key holds NULL, two rows have one key, or `_op` says nothing known.
    """
    Merge(session.rows, target.sql, stage, target.names, target.key, options.write_mode, "sqlite").bring()
