"""A write whose database is a file that is not there yet, and so has nowhere to keep a claim.

With `commit=job` it is made whole, with the claim and the rows in it, under another name, and gets its own by a link,
which fails when another job was first: then the rows are published into that file as into any other. A job that fails
leaves no file, and removes none that others use.
"""

from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa

from spark_channel.connectors.base.claims import HeldClaim, Identity
from spark_channel.connectors.base.contract import WriteContext
from spark_channel.connectors.sql.session import S
from spark_channel.connectors.sql.write.database import WriteDatabase
from spark_channel.connectors.sql.write.file_database import FileDatabase, file_plan
from spark_channel.connectors.sql.write.in_session import claims_at, in_session, in_transaction
from spark_channel.connectors.sql.write.plan import NOT_TAKEN, SqlPlan, WriteTarget
from spark_channel.connectors.sql.write.source_definition import (
    TableRemarks,
    leave_builds,
    with_definition,
)
from spark_channel.errors import CommitError

__all__ = ["claim_late", "drop_staging", "make", "place", "prepare", "rehearse"]


def place(database: WriteDatabase[S]) -> WriteTarget:
    """The place by the options alone."""
    return _files(database).locate(None)


def rehearse(database: WriteDatabase[S], context: WriteContext, schema: pa.Schema) -> TableRemarks:
    """As `SqlWriter.rehearse`."""
    target = place(database)
    plan = SqlPlan(context.job, schema, "job", place=target)
    plan, remarks = with_definition(database, None, plan, target, context)
    _files(database).match(None, plan, target, context)
    return remarks


def prepare(
    database: WriteDatabase[S], context: WriteContext, schema: pa.Schema
) -> tuple[SqlPlan, TableRemarks]:
    """As `SqlWriter.prepare`: the plan holds a claim that is taken when the file is made."""
    files, target = _files(database), place(database)
    position = context.stream[1] if context.stream else None
    identity = Identity.for_write(target.claimed, context)
    held_claim = HeldClaim(identity, context.job, NOT_TAKEN, position, follows=context.follows)
    plan = SqlPlan(
        context.job, schema, "job", context.overwrite, context.txn, held=held_claim, place=target
    )
    plan, remarks = with_definition(database, None, plan, target, context)
    leave_builds(database, plan, target)
    plan = files.match(None, plan, target, context)
    files.remove_dead_staging()
    return files.make_staging(None, plan, target, context), remarks


def drop_staging(database: WriteDatabase[S], plan: SqlPlan) -> None:
    """As `SqlWriter` with a session: what the run staged is beside the file, which need not be there."""
    files = _files(database)
    files.drop_staging(None, plan.place, files.staging_names(None, plan.place, plan.stage))


def make(
    database: WriteDatabase[S], plan: SqlPlan, publish: Callable[[S, SqlPlan], object]
) -> bool:
    """Make the database with the rows in it; False = another job has made it."""
    files = _files(database)

    def fill(session: S) -> None:
        held_claim = _claim_in(database, session, plan)
        assert held_claim is not None, "a new file has no claim"
        publish(session, replace(plan, held=held_claim))

    return files.make(file_plan(plan), fill)


def claim_late(database: WriteDatabase[S], plan: SqlPlan) -> SqlPlan:
    """The plan with a claim in the file that another job has made meanwhile.

    Raises:
        SupersededError: see `_claim_in`.
    """
    held_claim = in_session(
        database,
        CommitError,
        f"publish {plan.job}",
        lambda session: _claim_in(database, session, plan),
    )
    if held_claim is None:
        return replace(plan, published_at="before")
    return replace(plan, held=held_claim)


def _claim_in(database: WriteDatabase[S], session: S, plan: SqlPlan) -> HeldClaim | None:
    """The claim in a file that is there now; None = the write was published to it.

    Raises:
        SupersededError: a run has claimed the write in it, which began after the file was made, and after this one.
    """
    claims = claims_at(database, session, plan.place)
    with in_transaction(database, session):
        claims.ensure()
        claim = plan.claim
        claims.refuse_later(claim)
        return claims.take(
            claim.identity, claim.owner, position=claim.position, follows=claim.follows
        ).held


def _files(database: WriteDatabase[S]) -> FileDatabase[S]:
    assert isinstance(database, FileDatabase), "a server's database is there"
    return database
