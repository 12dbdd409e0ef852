"""What a writer and its tasks both do with a database: work that outlives a session, transactions, and claims."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar

from spark_channel.connectors.base.contract import Receipt
from spark_channel.connectors.sql.session import S, transaction
from spark_channel.connectors.sql.write.claims import Claims
from spark_channel.connectors.sql.write.no_claims import NoClaims
from spark_channel.connectors.sql.write.plan import SqlPlan, WriteTarget
from spark_channel.connectors.sql.write.sessions import Verdict, WriteSessions, no_news
from spark_channel.errors import ChannelError, SupersededError, TargetError
from spark_channel.retry import Retry

__all__ = [
    "claims_at",
    "in_session",
    "in_transaction",
    "note_published",
    "retry",
    "settle",
    "show_life",
]

_T = TypeVar("_T")
_RETRY_SECONDS = 60.0


def in_session(
    database: WriteSessions[S],
    failure: type[TargetError],
    purpose: str,
    work: Callable[[S], _T],
    *,
    begins: bool = False,
) -> _T:
    """`work` on a session; again on a new one when the connection is lost, for `retryTimeout` seconds.

    So `work` begins by asking what is there: it may have been done without an answer. With `begins` a server that is
    not there is a mistake in the url, and is reported immediately.
    """
    is_reached = not begins

    def attempt() -> _T:
        nonlocal is_reached
        with database.connect(failure, purpose, patient=is_reached) as session:
            is_reached = True
            return work(session)

    def may_pass(error: BaseException) -> bool:
        return is_reached and database.traits.passes in database.verdict(error)

    try:
        return retry(database, purpose).call(attempt, may_pass)
    except ChannelError:
        raise
    except Exception as error:  # what a lost connection raises need not be a TargetError
        if Verdict.LOST in database.verdict(error):
            raise failure(str(error)) from error
        raise


def retry(database: WriteSessions[S], activity: str) -> Retry:
    """For as long as `retryTimeout` says, unless the database says otherwise."""
    retries = database.traits.retry
    if retries is None:
        return Retry(getattr(database.options, "retry_timeout", _RETRY_SECONDS), what=activity)
    return replace(retries, what=activity)


@contextmanager
def in_transaction(database: WriteSessions[S], session: S) -> Iterator[None]:
    """Commits in the end; any exception rolls back."""
    with transaction(session, database.dialect.begin):
        yield


def claims_at(database: WriteSessions[S], session: S, place: WriteTarget) -> Claims:
    """The claims of writes to `place`, as the session sees them."""
    if not place.has_ledger:
        return NoClaims()
    return Claims(session, database.claim_dialect(session, place))


def show_life(database: WriteSessions[S], plan: SqlPlan) -> None:
    """Record that the run is alive, on a separate connection."""

    def beat(session: S) -> None:
        with in_transaction(database, session):
            claims_at(database, session, plan.place).heartbeat(plan.claim)

    in_session(database, TargetError, f"write {plan.job}", beat)


def settle(database: WriteSessions[S], plan: SqlPlan, task: int) -> Receipt | None:
    """The outcome of a task's COMMIT without an answer: the receipt with which the task committed.

    In a new session, with the claim locked: the old session's transaction holds the claim until it has ended.

    Raises:
        SupersededError: the task did not commit, and another run took over.
    """

    def ask(session: S) -> Receipt | None:
        claims = claims_at(database, session, plan.place)
        with in_transaction(database, session):
            if plan.one_pass:
                is_open = claims.begin_publish(plan.claim)
                return None if is_open else claims.own_publication(plan.claim, task)
            try:
                claims.fence(plan.claim, exclusive=True)
            except SupersededError:
                if (receipt := claims.task(plan.claim, task)) is not None:
                    return receipt
                raise
            return claims.task(plan.claim, task)

    return in_session(database, TargetError, f"settle {plan.job}", ask)


def note_published(
    database: WriteSessions[S],
    session: S,
    plan: SqlPlan,
    claims: Claims,
    receipts: Sequence[Receipt],
) -> None:
    """The rows are in the transaction, and `begin_publish` holds the claim: publish them with its COMMIT."""
    if plan.numbers:
        database.complete(session, plan, no_news)
    rows = sum(receipt.rows for receipt in receipts)
    nbytes = sum(receipt.nbytes for receipt in receipts)
    claims.publish(plan.claim, rows=rows, nbytes=nbytes)
