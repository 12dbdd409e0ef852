"""From rows in a temporary table into the target, as `writeMode` says."""

from spark_channel.connectors.sql.catalog import Column
from spark_channel.connectors.sql.change_feed import OPERATION
from spark_channel.connectors.sql.merge import PLACE, Merge
from spark_channel.connectors.sql.sqlite.database import Session
from spark_channel.connectors.sql.sqlite.options import SqliteWriteOptions
from spark_channel.connectors.sql.sqlite.target import SqliteWriteDialect
from spark_channel.connectors.sql.target import Target

__all__ = ["make_stage", "merge"]

_STAGE = "temp.spark_channel_stage"


def make_stage(session: Session, target: Target) -> str:
    """A temporary table with the same columns, as SQL: keys are compared in it before the table sees them."""
    columns = [Column(column.target, column.declared) for column in target.columns]
    key: tuple[str, ...] = ()
    if target.operation is not None:
        columns += [Column(OPERATION, "TEXT"), Column(PLACE, "INTEGER")]
        key = (PLACE,)
    session.rows(SqliteWriteDialect().created(_STAGE, columns, key))
    return _STAGE


def merge(session: Session, target: Target, options: SqliteWriteOptions, stage: str) -> None:
    """Bring the rows of `stage` (SQL) into the table.

    Raises:
        TargetError: SQLite refused a row, a key holds NULL, two rows have one key, or `_op` says nothing known.
    """
    Merge(session.rows, target.sql, stage, target.names, target.key, options.write_mode, "sqlite").bring()
