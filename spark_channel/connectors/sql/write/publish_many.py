"""Publishes small tables together as `SqlWriter` publishes one: claims, rows and notes are in one transaction."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from spark_channel.clock import utc_text
from spark_channel.connectors.base.small_tables import SmallTable
from spark_channel.connectors.sql.session import S
from spark_channel.connectors.sql.write.claim_taking import ensure
from spark_channel.connectors.sql.write.database import WriteDatabase
from spark_channel.connectors.sql.write.group_claims import GroupClaims
from spark_channel.connectors.sql.write.small_tables import RefusedError, by_schema, sweep
from spark_channel.errors import TargetError

__all__ = ["Group", "publish_many"]

_TRIES = 5
"""How often a group is tried, each time without the table that was refused."""


class Group(Protocol[S]):
    """What a database does for the tables of one group."""

    def session(self) -> AbstractContextManager[S]:
        """A session that writes them."""
        ...

    def claims(self, session: S, tables: Sequence[SmallTable]) -> GroupClaims:
        """Those of the tables, which are in one schema."""
        ...

    def prepared(
        self, session: S, claims: GroupClaims, tables: Sequence[SmallTable]
    ) -> AbstractContextManager[None]:
        """Around all tries: for what cannot be in their transaction, and to undo it for tables that were refused."""
        ...

    def transaction(self, session: S) -> AbstractContextManager[None]: ...

    def claiming(self) -> AbstractContextManager[None]:
        """Around statements of claims: raises a `RefusedError` where the group may be tried again."""
        ...

    def write(self, session: S, tables: Sequence[SmallTable], *, at_once: bool) -> list[SmallTable]:
        """Make or empty the tables, and put their rows in. Returns the first of them, if time is over.

        `at_once`: what all tables need may be one statement, of which it is not known which table it fails for.

        Raises:
            RefusedError: a table is refused.
        """
        ...


def publish_many(database: WriteDatabase[S], group: Group[S], tables: Sequence[SmallTable]) -> None:
    """A COMMIT without an answer raises: a table that is copied alone then waits for its claim, and looks at it."""
    for some in by_schema(tables):
        with group.session() as session:
            claims = group.claims(session, some)
            ensure(database, session, claims)
            with group.prepared(session, claims, some):
                _try(database, group, session, claims, some)


def _try(
    database: WriteDatabase[S],
    group: Group[S],
    session: S,
    claims: GroupClaims,
    tables: Sequence[SmallTable],
) -> None:
    tries = _TRIES
    while tries and (left := [table for table in tables if table.is_left]):
        try:
            with group.transaction(session):
                new = _write(group, session, claims, left, at_once=tries == _TRIES)
        except RefusedError as refused:
            tries -= 1
            if refused.table is not None:
                refused.table.why = refused.why
            continue
        at = utc_text()
        for table in new:
            table.published_at, table.is_new = at, True
            if (definition := table.plan.new) is not None:
                definition.remark(table.plan.place.label)
                table.left_out, table.renamed = definition.left_out, definition.renamed
        if new:
            sweep(database, session, new[0])
    for table in tables:
        if table.is_left:
            table.why = TargetError("too many tables of its group were refused")


def _write(
    group: Group[S],
    session: S,
    claims: GroupClaims,
    tables: Sequence[SmallTable],
    *,
    at_once: bool,
) -> list[SmallTable]:
    """All of the transaction. Returns the tables whose rows it publishes."""
    # The claims first: their locks exclude other runs, and a COMMIT that was not answered is seen here.
    with group.claiming():
        decisions = claims.take_all(tables)
    held = [table for table, decision in decisions.items() if decision.held is not None]
    new = group.write(session, held, at_once=at_once)
    # Last: the rows are there with their notes, or neither is.
    with group.claiming():
        claims.publish_all(new, decisions)
    for table, decision in decisions.items():
        if decision.held is None:
            table.published_at = decision.published_at or ""
    return new
