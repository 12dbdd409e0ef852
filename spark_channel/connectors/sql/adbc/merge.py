"""Staged rows in the shape that a merge takes, and the unique key that it needs."""

import hashlib

import pyarrow as pa

from spark_channel.connectors.sql.adbc.dialect import AdbcDialect
from spark_channel.connectors.sql.adbc.session import AdbcSession
from spark_channel.connectors.sql.merge import PLACE
from spark_channel.connectors.sql.target import TargetTable
from spark_channel.errors import TargetError

__all__ = ["arranged", "hold_unique", "make_unique", "placed"]


def arranged(rows: pa.Table, target: TargetTable) -> pa.Table:
    """The columns of `rows` as they are staged: by the table's names."""
    given = [column.name for column in target.columns] + ([target.operation] if target.operation else [])
    return pa.table([rows.column(name) for name in given], names=list(target.staged_names))


def placed(rows: pa.Table, before: int) -> pa.Table:
    """`rows` with `PLACE`, when `before` rows came before them."""
    return rows.append_column(PLACE, pa.array(range(before, before + rows.num_rows), pa.int64()))


def make_unique(session: AdbcSession, target: TargetTable, dialect: AdbcDialect) -> None:
    """Give a table that was just made its key, which ON CONFLICT asks for."""
    digest = hashlib.sha256(target.name.encode()).hexdigest()[:12]
    index, on = dialect.quoted(f"spark_channel_key_{digest}"), target.sql
    if dialect.sql == "sqlite":  # an index is named with its schema, and its table without
        index, on = dialect.place(target.schema, f"spark_channel_key_{digest}"), dialect.quoted(target.name)
    session.rows(f"CREATE UNIQUE INDEX {index} ON {on} ({', '.join(map(dialect.quoted, target.key))})")


def hold_unique(session: AdbcSession, target: TargetTable, dialect: AdbcDialect) -> None:
    """Hold the table to keep the key unique: a statement that needs it, for no rows. Ends the transaction.

    Raises:
        TargetError: it does not, or it is a view.
    """
    listed = ", ".join(map(dialect.quoted, target.key))
    try:
        session.rows(
            f"INSERT INTO {target.sql} ({listed}) SELECT {listed} FROM {target.sql} WHERE 1 = 0 "  # noqa: S608 - quoted names
            f"ON CONFLICT ({listed}) DO NOTHING"
        )
    except TargetError as error:
        raise TargetError(
            f"table {target.name!r} does not hold ({', '.join(target.key)}) unique, "
            f"so rows with the same key cannot be told; create a unique index on these columns. {error}"
        ) from error
    finally:
        session.rollback()
