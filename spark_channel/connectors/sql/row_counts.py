"""Holds a target to have stored every row that it was sent: some skip rows and report success."""

from spark_channel.errors import BatchRefusedError

__all__ = ["hold_gone", "hold_stored"]


def hold_stored(table: str, sent: int, stored: int) -> None:
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


def hold_gone(table: str, kept: int) -> None:
    """Raise unless `table` has removed all rows that a change feed deletes.

    Raises:
        BatchRefusedError: it has kept some.
    """
    if kept:
        raise BatchRefusedError(
            f"table {table!r} kept {kept} rows that a change feed deletes, and reported success: a trigger or a rule "
            "of the table keeps them. The transaction is rolled back. Change the trigger or rule"
        )
