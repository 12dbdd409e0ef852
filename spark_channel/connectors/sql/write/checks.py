"""Checks of a publish: each task has one receipt, the table is as it was planned, and it has stored all rows."""

from collections import Counter
from collections.abc import Sequence

from spark_channel.connectors.base.contract import Receipt
from spark_channel.connectors.sql.catalog import (
    Declared,
    Table,
    TargetTable,
    declared_columns,
    listed,
)
from spark_channel.connectors.sql.dialect import WriteDialect
from spark_channel.connectors.sql.options import SqlWriteOptions
from spark_channel.connectors.sql.session import BoundSession
from spark_channel.errors import BatchRefusedError, CommitError, TargetError

__all__ = [
    "check_gone",
    "check_planned",
    "check_receipt",
    "check_stored",
    "check_written",
    "dropped",
    "holds_unique",
    "is_ready",
    "make_ready",
    "reached_by_delete",
    "refuse_two_receipts",
]


def refuse_two_receipts(receipts: Sequence[Receipt]) -> None:
    """Check that each task has one receipt.

    Raises:
        CommitError: one has two, so that nothing says which rows are meant.
    """
    counts = Counter(receipt.task for receipt in receipts)
    twice = [task for task, count in counts.items() if count > 1]
    if twice:
        raise CommitError(
            f"two receipts of task {min(twice)}: nothing was published; run the job again"
        )


def reached_by_delete(label: str, key: str, other: str, rule: str) -> TargetError:
    """The error that to delete all rows of a table would change another one, by its foreign key."""
    does = "delete" if rule == "CASCADE" else "change"
    return TargetError(
        f"all rows of {label} are to be replaced, and foreign key {key!r} of {other}, which has rows, is ON DELETE "
        f"{rule}: the server would {does} rows of {other}, too. Drop the foreign key and add it after the run, or "
        "update the rows by their key: writeMode=upsert, or mode incremental with primary_key"
    )


def check_receipt(receipt: Receipt, staged: int) -> None:
    """Check that a task staged as many rows as its receipt says.

    Raises:
        CommitError: it has not.
    """
    if staged != receipt.rows:
        raise CommitError(
            f"{staged} rows of task {receipt.task} are staged, and its receipt says {receipt.rows}: "
            "nothing was published; run the job again"
        )


def make_ready(
    session: BoundSession,
    dialect: WriteDialect,
    target: TargetTable,
    options: SqlWriteOptions,
    *,
    overwrite: bool,
) -> bool:
    """Create the table, or empty it, or hold it to be as the plan found it. Whether it was created.

    Raises:
        TargetError: the table came, went or changed since the plan was made.
    """
    if is_ready(session, dialect, target, options, overwrite=overwrite):
        return False
    assert target.create is not None
    session.execute(target.create)
    return True


def is_ready(
    session: BoundSession,
    dialect: WriteDialect,
    target: TargetTable,
    options: SqlWriteOptions,
    *,
    overwrite: bool,
) -> bool:
    """As `make_ready`, but leaves a table to the caller that is to be made: False."""
    table, stays = dialect.find_table(session, target.sql), dialect.ddl_commits
    if table is not None and overwrite and not options.truncate and not stays:
        session.execute(f"DROP TABLE {target.sql}")
        table = None
    if table is None and target.create is not None and not stays:
        return False
    check_planned(dialect, target, table)
    if overwrite:
        dialect.check_alone(session, target.schema, target.name)
        session.execute(dialect.emptied(target.own_rows, options))
    return True


def check_planned(dialect: WriteDialect, target: TargetTable, table: Table | None) -> None:
    """Check that the table is as the plan found it, or would have made it.

    Raises:
        TargetError: another job has dropped, altered or made it since the plan was made.
    """
    if table is None:
        raise dropped(target)
    again = "Nothing was written to it; run the job again"
    columns = (
        declared_columns(table) if target.create is None else dialect.columns_as_created(table)
    )
    declared_now, planned = dict(columns), dict(target.declared)
    changed = declared_now.keys() != planned.keys() or any(
        not dialect.is_same_type(declared_now[name], declared) for name, declared in planned.items()
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


def check_written(dialect: WriteDialect, target: TargetTable, columns: Declared) -> None:
    """Check that the columns that are written are as the plan found them. Others may come and go in a long job.

    Raises:
        TargetError: the table was dropped, or one of them altered.
    """
    if not columns:
        raise dropped(target)
    declared_now, written = dict(columns), frozenset(target.names)
    for name, planned in target.declared:
        now = declared_now.get(name)
        if name in written and (now is None or not dialect.is_same_type(now, planned)):
            raise TargetError(
                f"table {target.label!r} was altered while its rows were written: column {name!r} was {planned!r} when "
                f"the job began, and is {'not there' if now is None else repr(now)} now. None of this attempt's rows "
                "was stored; run the job again"
            )


def dropped(target: TargetTable) -> TargetError:
    return TargetError(
        f"table {target.label!r} was dropped while its rows were written. Nothing was written; run the job again"
    )


def holds_unique(dialect: WriteDialect, table: Table, key: Sequence[str]) -> bool:
    """Whether the table holds `key` unique, whose columns are spelled as the table's."""
    names = [column.name for column in table.columns]
    return any(
        {dialect.same_name(part, names) or part for part in unique_key} == set(key)
        for unique_key in table.held
    )


def check_stored(table: str, sent: int, stored: int) -> None:
    """Raise unless `table` has stored all rows of a statement, whose transaction the caller then rolls back.

    Raises:
        BatchRefusedError: it has stored fewer, or more.
    """
    if stored == sent:
        return
    raise BatchRefusedError(
        f"table {table!r} stored {stored} of {sent} rows and reported success: a trigger, a rule or a conflict clause "
        "of the table skips rows, or puts them elsewhere. The transaction is rolled back. Leave these rows out of the "
        "source, change the trigger or rule, or name the table that stores them in 'dbtable'; with commit=task, "
        "'maxDirtyRows' counts such rows as refused"
    )


def check_gone(table: str, rows: int) -> None:
    """Raise unless `table` has removed all rows that a change feed deletes.

    Raises:
        BatchRefusedError: it has kept some.
    """
    if rows:
        raise BatchRefusedError(
            f"table {table!r} kept {rows} rows that a change feed deletes, and reported success: a trigger or a rule "
            "of the table keeps them. The transaction is rolled back. Change the trigger or rule"
        )
