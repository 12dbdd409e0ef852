"""What is needed of a database to work in its sessions: to open one, to judge its errors, to find claims by it."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from enum import Flag, auto
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from spark_channel.connectors.sql.dialect import WriteDialect
from spark_channel.connectors.sql.options import SqlWriteOptions
from spark_channel.connectors.sql.session import BoundSession, S
from spark_channel.connectors.sql.write.claim_tables import ClaimDialect
from spark_channel.connectors.sql.write.plan import SqlPlan, WriteTarget
from spark_channel.errors import TargetError
from spark_channel.retry import Retry

if TYPE_CHECKING:
    from spark_channel.connectors.base.health import Health

__all__ = ["Server", "Tell", "Traits", "Verdict", "WriteSessions", "no_news"]

_S_contra = TypeVar("_S_contra", bound=BoundSession, contravariant=True)
Tell = Callable[[str], object]
"""Is told of each part of a new table that is built, and of the end of the last one by ""."""


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


@dataclass(frozen=True, slots=True)
class Server:
    """What serves a database. See `Writer` for each."""

    resource_mark: str | None = None
    health: Callable[[], "Health"] | None = None
    keeping: Callable[[], AbstractContextManager[None]] = nullcontext


@dataclass(frozen=True, slots=True)
class Traits:
    """What is known of a database, or of its options, without asking it."""

    server: Server | None = Server()
    """None: the database is a file, which one process after another opens."""
    native_system: str = ""
    """See `Writer`."""
    retry: Retry | None = None
    """How work is done again after an error of `passes`; None = for as long as `retryTimeout` says."""
    passes: Verdict = Verdict.LOST
    """Errors after which work is done again on a new session."""
    stages: bool = True
    """Rows can be staged, and published by one transaction: `commit=job`."""
    holds_appends: bool = False
    """A statement of the user may see a part of an append in one pass, which is waited for."""
    ends_sessions: Callable[[str], str | None] | None = None
    """The statement that ends the sessions in which tasks of a run write: one that hangs would keep its locks."""
    stages_with_claim: bool = False
    """Staging is made in the transaction that takes the claim, and dropped in the one that publishes."""
    overwrite_drops: bool = True
    """An overwrite without `truncate` makes the table again."""
    has_numbers: bool = False
    """Sequences number rows, which do not count on by themselves behind rows that bring their numbers."""
    inherits: bool = False
    """Other tables may inherit from one, see `Table.is_inherited`."""
    look_up: Callable[[Any, Sequence[str]], None] | None = None
    """Remembers what the catalog has of these tables, which the session then need not ask for one by one."""
    one_pass_rows: int | None = None
    """See `Writer`."""
    task_seconds: float | None = None
    """See `Writer`."""


class WriteSessions(Protocol[S]):
    """The part of a `WriteDatabase` that its tasks and its claims need."""

    @property
    def options(self) -> SqlWriteOptions: ...
    @property
    def dialect(self) -> WriteDialect: ...
    @property
    def traits(self) -> Traits: ...

    @property
    def shown(self) -> str:
        """The database, for messages."""
        ...

    def connect(self, failure: type[TargetError], purpose: str, *, patient: bool) -> S:
        """A new session, which raises `failure` for anything that the database refuses.

        `purpose` describes the session to the server. `patient`: the server was reached before, or may come back, so
        that a connector which waits for it by itself does.
        """
        ...

    def verdict(self, error: BaseException) -> Verdict:
        """What the error says of the write."""
        ...

    def claim_dialect(self, session: S, place: WriteTarget) -> ClaimDialect:
        """The claims in the schema of `place`."""
        ...

    def complete(self, session: S, plan: SqlPlan, tell: Tell) -> None:
        """What follows the rows, in their transaction: the other parts of the definition of a table that was made, or
        the plan's `numbers` of one that was there. A number that is refused does not fail the transaction.
        """
        ...


def no_news(_what: str) -> None:
    """A `Tell` that tells nobody."""
