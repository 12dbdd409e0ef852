"""What a role whose rights leave no place for claims or staging may still write."""

from dataclasses import replace

from spark_channel.connectors.base.contract import WriteContext
from spark_channel.connectors.sql.session import S
from spark_channel.connectors.sql.write.claim_taking import ensure
from spark_channel.connectors.sql.write.claims import UntrustedClaimsError
from spark_channel.connectors.sql.write.database import WriteDatabase, ledger_options
from spark_channel.connectors.sql.write.in_session import claims_at, in_transaction
from spark_channel.connectors.sql.write.plan import WAYS, WriteTarget
from spark_channel.connectors.sql.write.sessions import Verdict
from spark_channel.errors import TargetError
from spark_channel.plain_text import log_of

__all__ = ["with_ledger"]

_log = log_of(__name__)


def with_ledger(
    database: WriteDatabase[S], session: S, place: WriteTarget, context: WriteContext
) -> WriteTarget:
    """The place without a ledger, where the user or the role's rights leave none.

    Raises:
        TargetError: what the job asks for cannot be kept without one.
    """
    options = ledger_options(database.options)
    if options is None or options.ledger == "required":
        return place
    reason = (
        "option 'ledger' is none"
        if options.ledger == "none"
        else _lack_of_claims(database, session, place)
    )
    if not reason:
        return place
    need = (
        "a stream"
        if context.stream is not None
        else "a transaction id"
        if context.txn is not None
        else "commit=job"
        if context.commit == "job"
        else ""
    )
    if need:
        raise TargetError(f"{need} needs tables that record what was written: {reason}. {WAYS}")
    _log.warning(
        "job %s: rows are written to %s at least once, without a record of what was written: a rerun, a retried "
        "task or a lost answer can add rows twice. The reason: %s. %s",
        context.job,
        place.label,
        reason,
        WAYS,
    )
    assert place.ledger is not None
    return replace(place, ledger=replace(place.ledger, without=reason))


def _lack_of_claims(database: WriteDatabase[S], session: S, place: WriteTarget) -> str:
    """Why the role cannot keep claims; "" = it can."""
    claims = claims_at(database, session, place)
    try:
        ensure(database, session, claims)
        with in_transaction(database, session):
            claims.probe()
    except TargetError as error:
        if isinstance(error, UntrustedClaimsError) or Verdict.DENIED in database.verdict(error):
            return str(error)
        raise
    return ""
