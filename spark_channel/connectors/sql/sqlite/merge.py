"""From rows in a temporary table into the target, as `writeMode` says."""

from spark_channel.connectors.sql import statements
from spark_channel.connectors.sql.change_feed import OPERATION
from spark_channel.connectors.sql.merge import PLACE, Merge
from spark_channel.connectors.sql.sqlite.database import Session
from spark_channel.connectors.sql.sqlite.options import SqliteWriteOptions
from spark_channel.connectors.sql.sqlite.target import Target
from spark_channel.connectors.sql.statements import Source

__all__ = ["make_stage", "merge"]

_STAGE = "spark_channel_stage"


def make_stage(session: Session, target: Target) -> Source:
    """A temporary table with the same columns: keys are compared in it before the table sees them."""
    stage = statements.named_table(("temp", _STAGE))
    columns = [(column.target, column.declared, False) for column in target.columns]
    if target.feed:
        columns += [(OPERATION, "TEXT", False), (PLACE, "INTEGER", False)]
    key = (PLACE,) if target.feed else ()
    session.rows(statements.create_table(stage, columns, key, "sqlite"))
    return stage


def merge(session: Session, target: Target, options: SqliteWriteOptions, stage: Source) -> None:
    """Bring the rows of `stage` into the table.

    Raises:
        TargetError: SQLite refused a row, a key holds NULL, two rows have one key, or `_op` says nothing known.
    """
    table, rows = (each.expression.sql("sqlite") for each in (target.source, stage))
    names = [column.target for column in target.columns]
    Merge(session.rows, table, rows, names, target.key, options.write_mode, "sqlite").bring()
