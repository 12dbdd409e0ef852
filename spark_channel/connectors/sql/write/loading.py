"""How the rows of one attempt reach the table: what a database gives `TaskAttempt`."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, Literal, Protocol, TypeAlias, TypeVar

import pyarrow as pa

from spark_channel.connectors.sql.options import SqlWriteOptions
from spark_channel.connectors.sql.pacing import Spread
from spark_channel.connectors.sql.session import BoundSession, S
from spark_channel.connectors.sql.write.plan import SqlPlan
from spark_channel.errors import ChannelError, TargetError

__all__ = [
    "LOCKED_SECONDS",
    "DirectLoader",
    "HeldLoader",
    "Loader",
    "Loading",
    "NoStagingError",
    "RefuseRow",
    "Rows",
    "Staging",
    "may_last",
    "most_held",
]

Rows: TypeAlias = pa.RecordBatch | pa.Table
RefuseRow = Callable[[pa.RecordBatch, str], None]


LOCKED_SECONDS = 3_600
"""How long a server keeps the locks of an append in one pass whose client is silent, such as one whose host is lost.

The client is so also while its source brings no rows, as the scan of a large table may for long.
"""
_HELD_BYTES = 64 << 20
_S_contra = TypeVar("_S_contra", bound=BoundSession, contravariant=True)


class NoStagingError(Exception):
    """Rows cannot be staged, for a reason that is for people: those of the attempt go straight into the table."""


class Loader(Protocol[_S_contra]):
    """Brings rows into the table, in the transaction that ends an attempt."""

    @property
    def opens(self) -> Literal["session", "transaction", "nothing"]:
        """What is opened with the attempt, before its first rows."""
        ...

    @property
    def asks_again(self) -> bool:
        """See `TaskClaim.note`."""
        ...

    def ready(self, session: _S_contra) -> None:
        """Outside a transaction, in each new session.

        Raises:
            NoStagingError: a task that lasts for long cannot stage its rows.
        """
        ...

    def begin(self, session: _S_contra) -> None:
        """Begin the transaction, unless the task is done: `TaskClaim.is_done`."""
        ...

    def repeated(self, work: Callable[[], None]) -> None:
        """`work`, and again where an error of it left nothing of the transaction, and another try may help."""
        ...


class DirectLoader(Loader[_S_contra], Protocol[_S_contra]):
    """Its transaction is open from the first row on."""

    def insert(self, session: _S_contra, rows: Rows, before: int, spread: float) -> None:
        """Put rows into the open transaction. The attempt accepted `before` rows before them.

        Raises:
            BatchRefusedError: the database would change a value, or has not stored a row.
        """
        ...

    def judge(self, session: _S_contra, rows: Rows, before: int) -> None:
        """Put rows into the table, all of them or none.

        Raises:
            BatchRefusedError: the database refuses a row, and holds none; the transaction goes on.
        """
        ...

    def complete(self, session: _S_contra, *, judged: bool) -> None:
        """All rows were inserted, or judged: whatever is left to bring them into the table."""
        ...


class HeldLoader(Loader[_S_contra], Protocol[_S_contra]):
    """Its transaction begins when all rows have come."""

    def bring(
        self, session: _S_contra, rows: list[pa.Table], spread: Spread, refuse: RefuseRow | None
    ) -> None:
        """Bring the rows that were held in memory, or staged, into the table.

        `refuse`: refused rows are allowed, and are given to it one by one.
        """
        ...

    def clear(self, session: _S_contra) -> None:
        """Behind the fence: remove what `bring` made, as far as the transaction does not."""
        ...


class Staging(Protocol[_S_contra]):
    """Keeps the rows of an attempt until they are published, or brought into the table by a `HeldLoader`."""

    @property
    def has_session(self) -> bool:
        """Rows are staged by the attempt's session."""
        ...

    @property
    def opens_first(self) -> bool:
        """The session is opened with the attempt, before its first rows."""
        ...

    @property
    def fences_last(self) -> bool:
        """The attempt looks at its claim at the end, which ends early what the publish would refuse."""
        ...

    def ready(self, session: _S_contra) -> None:
        """In each new session: check that what is staged is there.

        Raises:
            NoStagingError: none can be made.
        """
        ...

    def add(self, session: _S_contra | None, rows: Rows, before: int, spread: float) -> bool:
        """Stage rows, durably where the loading has `holds`. The attempt staged `before` rows before them.

        Whether the session can be used for the next ones.
        """
        ...

    def finish(self) -> dict[str, Any]:
        """All rows are staged: the receipt's details."""
        ...

    def forget(self, session: _S_contra | None) -> None:
        """Remove what is staged, if anything is; None = in a new session."""
        ...


def contiguous(rows: pa.Table) -> Iterable[Rows]:
    yield from rows.combine_chunks().to_batches()


def _nothing() -> None:
    pass


def _as_it_is(error: TargetError) -> TargetError:
    return error


def _closed(session: Any) -> None:
    session.close()


def _answers(session: Any) -> bool:
    try:
        session.ping()
    except (ChannelError, OSError):
        return False
    return True


@dataclass(frozen=True)
class Loading(Generic[S]):
    """With staging alone rows are staged for the publish (`commit=job`); with a loader they are in the table when the
    attempt ends: by a direct one in one transaction from the first row on, else in a short one at the end.
    """

    connect: Callable[[], S]
    direct: DirectLoader[S] | None = None
    held: HeldLoader[S] | None = None
    staging: Staging[S] | None = None
    holds: Callable[[S, int, int], bool] | None = None
    """What is staged survives its session; after a lost one, this says whether rows whose COMMIT was not answered are
    there: those behind the first so many of the attempt, up to so many. None = it does not survive.
    """
    carried: Callable[[list[pa.Table]], dict[str, Any] | None] | None = None
    """The receipt's details that carry all rows of an attempt which are few; None = they are too many."""
    flush: Callable[[], None] = _nothing
    """Has the rows that are staged leave this process."""
    held_bytes: int = 0
    """So many bytes of rows wait in memory; those of a larger attempt are staged, with all that come behind."""
    is_paced: bool = False
    """Held rows are moved over a part of the time in which they came, for a limit."""
    seconds: float = 0.5
    """How long rows may be gathered before they are sent; 0.0 = each batch is sent by itself."""
    sent_bytes: int = 16 << 20
    """So many bytes of them are sent at once."""
    shows_life: bool = True
    """A thread of the attempt shows that the run lives."""
    judges_last: bool = False
    """Rows are judged by `HeldLoader.bring`, at the end."""
    chunks: Callable[[pa.Table], Iterable[Rows]] = contiguous
    """Divides rows into pieces that are loaded by one call."""
    release: Callable[[S], None] = _closed
    """Takes the session that the attempt needs no more."""
    answers: Callable[[S], bool] = _answers
    """Whether the session's server is there."""
    explain: Callable[[TargetError], TargetError] = _as_it_is
    """Says of an error that ends the transaction what it means for the task."""


def may_last(options: SqlWriteOptions, plan: SqlPlan) -> bool:
    """Whether a limit may make a task of `commit=task` last for hours: no transaction is open for as long.

    Where some rows may be refused, the table itself judges each batch, in a transaction that is open.
    """
    is_limited = (
        options.is_limited or options.rows_per_second_per_task or options.bytes_per_second_per_task
    )
    return bool(is_limited) and plan.place.has_ledger and not options.tolerates_dirty_rows


def most_held(options: SqlWriteOptions) -> int:
    """How many bytes of rows of such a task wait in memory: `capacityBytes`, at most 64 MiB."""
    return min(options.capacity_bytes, _HELD_BYTES)
