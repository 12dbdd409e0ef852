"""The port of a database that rows are written to: what `SqlWriter` and `TaskAttempt` ask it for."""

from enum import Flag, auto
from typing import Protocol

from spark_channel.connectors.sql.dialect import WriteDialect
from spark_channel.connectors.sql.options import SqlWriteOptions
from spark_channel.connectors.sql.session import S
from spark_channel.connectors.sql.write.claim_tables import ClaimDialect
from spark_channel.connectors.sql.write.plan import SqlPlan, WriteTarget
from spark_channel.errors import TargetError

__all__ = ["Verdict", "WriteDatabase"]


class Verdict(Flag):
    """What an error says of a write. One error may say several things: a deadlock is LOST and CONFLICT, a duplicate key
    CONFLICT and REFUSED_ROW.
    """

    OTHER = 0
    LOST = auto()
    """The connection was lost, or another transaction stood in the way: doing it again may help."""
    CONFLICT = auto()
    """Another transaction was first: a duplicate key or table, a deadlock, a failed serialization."""
    DENIED = auto()
    """The role lacks a right."""
    REFUSED_ROW = auto()
    """A row is the matter of it, and not the target as a whole."""


class WriteDatabase(Protocol[S]):
    """One object for each write, on the driver and in each task. It calls nothing of its callers."""

    @property
    def options(self) -> SqlWriteOptions: ...
    @property
    def dialect(self) -> WriteDialect: ...

    def connect(self, failure: type[TargetError], purpose: str, *, patient: bool) -> S:
        """A new session, which raises `failure` for anything that the database refuses.

        `purpose` describes the session to the server. `patient`: the server was reached before, or may come back, so
        that a connector which waits for it by itself does.
        """
        ...

    def verdict(self, error: BaseException) -> Verdict: ...

    def claim_dialect(self, session: S, place: WriteTarget) -> ClaimDialect:
        """The claims in the schema of `place`."""
        ...

    def count_on(self, session: S, plan: SqlPlan) -> None:
        """Run the plan's `numbers` in the transaction that publishes; one that is refused does not fail it."""
        ...
