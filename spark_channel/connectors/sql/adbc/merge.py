"""From staged rows into the target as `writeMode` says, in SQL that databases with ON CONFLICT share."""

import hashlib
from collections.abc import Sequence

import pyarrow as pa

from spark_channel.connectors.sql.adbc.options import AdbcWriteOptions
from spark_channel.connectors.sql.adbc.plan import AdbcPlan
from spark_channel.connectors.sql.adbc.session import Session
from spark_channel.connectors.sql.adbc.tables import quoted, source_of
from spark_channel.connectors.sql.change_feed import OPERATION
from spark_channel.connectors.sql.merge import PLACE, Merge
from spark_channel.errors import TargetError

__all__ = ["Merged", "hold_unique", "make_unique", "placed"]


def placed(rows: pa.Table, before: int) -> pa.Table:
    """`rows` with `PLACE`, when `before` rows came before them."""
    return rows.append_column(PLACE, pa.array(range(before, before + rows.num_rows), pa.int64()))


def make_unique(session: Session, plan: AdbcPlan, dialect: str) -> None:
    """Give a table that was just made its key, which ON CONFLICT asks for."""
    digest = hashlib.sha256(plan.table.encode()).hexdigest()[:12]
    name, table = f"spark_channel_key_{digest}", source_of(plan.table_schema, plan.table)
    if dialect == "sqlite":  # an index is named with its schema, and its table without
        index, on = source_of(plan.table_schema, name).expression.sql(dialect), quoted(plan.table, dialect)
    else:
        index, on = quoted(name, dialect), table.expression.sql(dialect)
    session.rows(f"CREATE UNIQUE INDEX {index} ON {on} ({_listed(plan.key, dialect)})")


def hold_unique(session: Session, plan: AdbcPlan, dialect: str) -> None:
    """Hold the table to keep the key unique: a statement that needs it, for no rows. Ends the transaction.

    Raises:
        TargetError: it does not, or it is a view.
    """
    table = source_of(plan.table_schema, plan.table)
    place, listed = table.expression.sql(dialect), _listed(plan.key, dialect)
    try:
        session.rows(
            f"INSERT INTO {place} ({listed}) SELECT {listed} FROM {place} WHERE 1 = 0 "  # noqa: S608 - quoted names
            f"ON CONFLICT ({listed}) DO NOTHING"
        )
    except TargetError as error:
        raise TargetError(
            f"table {plan.table!r} does not hold ({', '.join(plan.key)}) unique, so rows with the same key cannot be "
            f"told; create a unique index on these columns. {error}"
        ) from error
    finally:
        session.rollback()


class Merged:
    """The rows of a job, or of a task, in one staging table `name`, inside a transaction that the caller ends."""

    def __init__(
        self, session: Session, plan: AdbcPlan, options: AdbcWriteOptions, name: str, dialect: str
    ) -> None:
        self._session, self._plan, self._mode, self._dialect = session, plan, options.write_mode, dialect
        self._rows = source_of(plan.table_schema, name).expression.sql(dialect)

    def add(self, stage: str, before: int) -> None:
        """The rows of another staging table, which come after `before` rows."""
        listed = _listed(self._plan.names, self._dialect)
        self._session.rows(
            f"INSERT INTO {self._rows} ({listed}, {PLACE}) SELECT {listed}, {PLACE} + {before:d} FROM {stage}"  # noqa: S608
        )

    def merge(self) -> None:
        """Bring them into the target, and drop the staging table.

        Raises:
            TargetError: a key holds NULL, two rows have one key, `_op` says nothing known, or a row is refused.
        """
        target = source_of(self._plan.table_schema, self._plan.table).expression.sql(self._dialect)
        names = [name for name in self._plan.names if self._mode != "apply" or name != OPERATION]
        Merge(
            self._session.rows, target, self._rows, names, self._plan.key, self._mode, self._dialect
        ).bring()
        self._session.rows(f"DROP TABLE {self._rows}")


def _listed(names: Sequence[str], dialect: str) -> str:
    return ", ".join(quoted(name, dialect) for name in names)
