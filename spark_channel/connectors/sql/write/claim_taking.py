"""Takes a claim on the driver, in a short transaction; its tables are made before, and old claims go behind it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from spark_channel.connectors.base.claims import ClaimDecision, HeldClaim, Identity
from spark_channel.connectors.base.contract import WriteContext
from spark_channel.connectors.base.session_pool import sessions
from spark_channel.connectors.sql.session import S
from spark_channel.connectors.sql.write.claims import Claims
from spark_channel.connectors.sql.write.database import WriteDatabase, ledger_options
from spark_channel.connectors.sql.write.in_session import in_transaction
from spark_channel.connectors.sql.write.plan import WAYS, WriteTarget
from spark_channel.connectors.sql.write.sessions import Verdict
from spark_channel.errors import TargetError
from spark_channel.plain_text import log_of

__all__ = ["ensure", "take"]

_log = log_of(__name__)
_TAKES = 5
"""How often a claim is tried: two that make its table or its row at the same moment fail one of them."""


def take(
    database: WriteDatabase[S],
    session: S,
    claims: Claims,
    place: WriteTarget,
    context: WriteContext,
    then: Callable[[HeldClaim], None] | None = None,
) -> ClaimDecision:
    """Take the claim, in a short separate transaction, with what `then` does for a claim that was taken."""
    try:
        ensure(database, session, claims)
    except TargetError as error:
        has_ledger = ledger_options(database.options) is not None
        if has_ledger and Verdict.DENIED in database.verdict(error):
            raise TargetError(f"{error}. {WAYS}") from error.__cause__
        raise
    for tries_left in reversed(range(_TAKES)):
        try:
            with in_transaction(database, session):
                decision = claims.take(
                    Identity.for_write(place.claimed, context),
                    context.job,
                    position=context.stream[1] if context.stream else None,
                    follows=context.follows,
                    resume=context.resume,
                )
                if decision.held is not None and then is not None:
                    then(decision.held)
            if sessions.is_due(("tidy", database.shown, place.schema, place.ledger)):
                _tidy(database, session, claims)
            return decision
        except TargetError as error:
            if not tries_left or Verdict.CONFLICT not in database.verdict(error):
                raise
    raise AssertionError("the last attempt returns or raises")


def ensure(database: WriteDatabase[S], session: S, claims: Claims) -> None:
    """Make the tables of claims, unless they are there."""
    for tries_left in reversed(range(_TAKES)):
        try:
            if not claims.exist():
                with in_transaction(database, session):
                    claims.ensure()
            break
        except TargetError as error:
            if not tries_left or Verdict.CONFLICT not in database.verdict(error):
                raise
    if claims.lacks_index():
        with (
            _optional(database, "its index of claims is not made"),
            in_transaction(database, session),
        ):
            claims.add_index()


def _tidy(database: WriteDatabase[S], session: S, claims: Claims) -> None:
    with (
        _optional(database, "its old claims stay for the next job"),
        in_transaction(database, session),
    ):
        claims.tidy(database.dialect.limited)


@contextmanager
def _optional(database: WriteDatabase[S], otherwise: str) -> Iterator[None]:
    """For what no write needs: another job may hold the rows, or the login lack the right."""
    try:
        yield
    except TargetError as error:
        _log.info("%s: %s: %s", database.shown, otherwise, error)
