"""A table before its rows arrive, and the transaction in which they do."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from spark_channel.connectors.sql.options import SqlWriteOptions
from spark_channel.connectors.sql.target import Target, declared_columns, listed
from spark_channel.connectors.sql.write_dialect import WriteDialect
from spark_channel.errors import TargetError

__all__ = ["is_ready", "make_ready", "transaction"]


@contextmanager
def transaction(session: Any, begin: str) -> Iterator[None]:
    """Commits in the end; any exception rolls back."""
    session.rows(begin)
    try:
        yield
        session.rows("COMMIT")
    except BaseException:
        with suppress(Exception):  # else the database, or the end of its connection, has rolled back
            session.rows("ROLLBACK")
        raise


def make_ready(
    session: Any, dialect: WriteDialect, target: Target, options: SqlWriteOptions, *, overwrite: bool
) -> None:
    """Create the table, or empty it, or hold it to be as the plan found it.

    Raises:
        TargetError: the table came, went or changed since the plan was made.
    """
    if not is_ready(session, dialect, target, options, overwrite=overwrite):
        assert target.create is not None
        session.rows(target.create)


def is_ready(
    session: Any, dialect: WriteDialect, target: Target, options: SqlWriteOptions, *, overwrite: bool
) -> bool:
    """As `make_ready`, but leaves a table to the caller that is to be made: False."""
    table = dialect.find_table(session, target.sql)
    if table is not None and overwrite and not options.truncate:
        session.rows(f"DROP TABLE {target.sql}")
        table = None
    if table is None:
        if target.create is None:
            raise TargetError(
                f"table {target.label!r} in {session.place} was dropped while its rows were written"
            )
        return False
    found = declared_columns(table)
    if len(found) != len(target.declared) or any(
        name != planned or not dialect.is_same_type(declared, wanted)
        for (name, declared), (planned, wanted) in zip(found, target.declared, strict=True)
    ):
        raise TargetError(
            f"table {target.label!r} in {session.place} was altered or created while its rows were written: "
            f"it has {listed(found)}, and the plan has {listed(target.declared)}"
        )
    if overwrite:
        session.rows(dialect.emptied(target.sql, options))
    return True
