"""The staging of `commit=job`: one table per run, beside its target or in `stagingSchema`.

Each task adds its rows in chunks, a transaction each, whose number every row carries (`xmin`). A receipt names the
numbers of its attempt, so that a publish takes exactly those rows, whatever other attempts have left. The table is
unlogged, or, where the target is to be created, is the target under another name. Its name begins with the run's claim,
which distinguishes the staging of a live run from that of a run that was overtaken or has ended.
"""

import re

from spark_channel.connectors.postgresql.catalog import table_sql
from spark_channel.connectors.postgresql.session import PgSession, literal_sql
from spark_channel.connectors.postgresql.write.dialect import written_columns
from spark_channel.connectors.sql.catalog import TargetTable
from spark_channel.connectors.sql.statements import quoted_name
from spark_channel.connectors.sql.write.merge import PLACE

__all__ = [
    "create_stage",
    "drop_stage",
    "stage_columns",
    "stages",
]

_FIND = """
SELECT c.relname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind = 'r' AND n.nspname = {schema} AND c.relname LIKE 'spark\\_channel\\_st%'
  AND pg_has_role(c.relowner, 'USAGE') ORDER BY c.relname
"""
_NAME = re.compile(r"spark_channel_(?:stage|st_[0-9a-f]{6})_[0-9a-f]{16}_\d+_")
"""A table of a user may have a name that begins with only the words."""


def stage_columns(target: TargetTable) -> list[str]:
    """The columns of a staging or temporary table for rows of `target`, as CREATE TABLE has them."""
    columns = [f"{quoted_name(c.target)} {c.staged}" for c in written_columns(target)]
    if target.operation is not None:
        operation = quoted_name(target.operation)
        columns += [f"{operation} text", f"{PLACE} bigint GENERATED ALWAYS AS IDENTITY"]
    return columns


def create_stage(session: PgSession, target: TargetTable, schema: str, name: str) -> None:
    """Make the unlogged table that takes rows for a target that is there, unless it is there."""
    columns = ", ".join(stage_columns(target))
    session.execute(f"CREATE UNLOGGED TABLE IF NOT EXISTS {table_sql(schema, name)} ({columns})")


def drop_stage(session: PgSession, schema: str, name: str) -> None:
    session.execute(f"DROP TABLE IF EXISTS {table_sql(schema, name)}")


def stages(session: PgSession, schema: str, beginning: str) -> list[str]:
    """The staging tables in `schema` that this role may drop, and whose names begin so."""
    names = [str(name) for (name,) in session.rows(_FIND.format(schema=literal_sql(schema)))]
    return [name for name in names if name.startswith(beginning) and _NAME.match(name)]
