"""COMMIT of a staged chunk, and the outcome of one without an answer: the server knows its transaction number."""

from spark_channel.connectors.postgresql.failures import is_gone
from spark_channel.connectors.postgresql.options import PostgresOptions
from spark_channel.connectors.postgresql.session import PgSession, PgWriteSession
from spark_channel.errors import ChannelError
from spark_channel.retry import Retry

__all__ = ["commit", "reach", "transaction_number"]


class _StillRunningError(Exception):
    """The server has not noticed yet that its client is gone."""


def transaction_number(session: PgSession) -> int:
    """The number of the open transaction; asking gives it one."""
    return int(session.value("SELECT pg_current_xact_id()::text"))


def commit(
    session: PgSession, options: PostgresOptions, number: int, failure: type[ChannelError]
) -> None:
    """End the transaction `number` of `session`. When the answer does not come, ask another session for it.

    The server's own record of the transaction counts. `session` is closed when its answer did not come.

    Raises:
        failure: it was not committed, and nothing of it was stored.
    """
    try:
        session.execute("COMMIT")
    except failure as error:
        if not is_gone(error):
            raise
        session.close()
        if not _is_committed(options, number, failure):
            raise


def _is_committed(options: PostgresOptions, number: int, failure: type[ChannelError]) -> bool:
    def ask() -> bool:
        with reach(options, failure=failure, purpose="settle") as session:
            # After a crash, a number that was never written down lies ahead of those given since, until it is given
            # again: findings/postgresql-transaction-number-again.sh
            status = session.value(
                f"SELECT CASE WHEN '{int(number)}'::xid8 < pg_current_xact_id() "
                f"THEN pg_xact_status('{int(number)}'::xid8) ELSE 'aborted' END"
            )
            if status == "in progress":
                raise _StillRunningError(f"transaction {number} is still running")
            return bool(status == "committed")

    return Retry(
        max(options.retry_timeout, 1.0), longest=2.0, what="asking for a commit's outcome"
    ).call(ask, lambda error: isinstance(error, _StillRunningError))


def reach(options: PostgresOptions, *, failure: type[ChannelError], purpose: str) -> PgWriteSession:
    """A new session, tried for `retryTimeout` with growing pauses while the server cannot be reached."""
    return Retry(options.retry_timeout, what=f"reaching {options.address.shown}").call(
        lambda: PgWriteSession.lent(options, failure=failure, purpose=purpose),
        lambda error: isinstance(error, failure) and is_gone(error),
    )
