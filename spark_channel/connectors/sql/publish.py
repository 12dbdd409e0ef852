"""Prepares a table, and publishes its rows in one transaction."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from spark_channel.connectors.contracts import Receipt
from spark_channel.connectors.sql.catalog import Table
from spark_channel.connectors.sql.options import SqlWriteOptions
from spark_channel.connectors.sql.target import TargetTable, declared_columns, listed
from spark_channel.connectors.sql.write_dialect import WriteDialect
from spark_channel.errors import CommitError, TargetError

__all__ = ["dropped", "hold_planned", "holds_unique", "is_ready", "make_ready", "refuse_two_receipts"]


def refuse_two_receipts(receipts: Sequence[Receipt]) -> None:
    """Hold each task to have one receipt.

    Raises:
        CommitError: one has two, so that nothing says which rows are meant.
    """
    counts = Counter(receipt.task for receipt in receipts)
    twice = [task for task, count in counts.items() if count > 1]
    if twice:
        raise CommitError(f"two receipts of task {min(twice)}: nothing was published")


def make_ready(
    session: Any, dialect: WriteDialect, target: TargetTable, options: SqlWriteOptions, *, overwrite: bool
) -> None:
    """Create the table, or empty it, or hold it to be as the plan found it.

    Raises:
        TargetError: the table came, went or changed since the plan was made.
    """
    if not is_ready(session, dialect, target, options, overwrite=overwrite):
        assert target.create is not None
        session.rows(target.create)


def is_ready(
    session: Any, dialect: WriteDialect, target: TargetTable, options: SqlWriteOptions, *, overwrite: bool
) -> bool:
    """As `make_ready`, but leaves a table to the caller that is to be made: False."""
    table = dialect.find_table(session, target.sql)
    if table is not None and overwrite and not options.truncate:
        session.rows(f"DROP TABLE {target.sql}")
        table = None
    if table is None and target.create is not None:
        return False
    hold_planned(dialect, target, table)
    if overwrite:
        session.rows(dialect.emptied(target.sql, options))
    return True


def hold_planned(dialect: WriteDialect, target: TargetTable, table: Table | None) -> None:
    """Hold the table to be as the plan found it, or would have made it.

    Raises:
        TargetError: another job has dropped, altered or made it since the plan was made.
    """
    if table is None:
        raise dropped(target)
    again = "Nothing was written to it; run the job again"
    columns = declared_columns(table)
    found, planned = dict(columns), dict(target.declared)
    changed = found.keys() != planned.keys() or any(
        not dialect.is_same_type(found[name], declared) for name, declared in planned.items()
    )
    if changed and target.create is None:
        raise TargetError(
            f"table {target.label!r} was altered while its rows were written: "
            f"it had {listed(target.declared)} when the job began, and has {listed(columns)} now. {again}"
        )
    again += ", and its rows are held against the table that is there now"
    if changed:
        raise TargetError(
            f"another job created table {target.label!r} while this one wrote its rows, with other columns: "
            f"it has {listed(columns)}, and this job would have created {listed(target.declared)}. {again}"
        )
    if target.key and not holds_unique(dialect, table, target.key):
        raise TargetError(
            f"another job created or altered table {target.label!r} while this one wrote its rows, "
            f"and it does not hold ({', '.join(target.key)}) unique, as this job needs. {again}"
        )


def dropped(target: TargetTable) -> TargetError:
    return TargetError(
        f"table {target.label!r} was dropped while its rows were written. Nothing was written; run the job again"
    )


def holds_unique(dialect: WriteDialect, table: Table, key: Sequence[str]) -> bool:
    """Whether the table tells rows apart by `key`, whose columns are spelled as the table's."""
    names = [column.name for column in table.columns]
    return any({dialect.same_name(part, names) or part for part in held} == set(key) for held in table.held)
