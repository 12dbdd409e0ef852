"""The port of a database that rows are written to: what `SqlWriter` asks it for, in the order of a write.

One object for each write, on the driver and in each task. It calls nothing of its callers. `TableDatabase` is the usual
one, of which a connector replaces what its database does in another way.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from spark_channel.connectors.base.contract import Receipt, WriteContext
from spark_channel.connectors.sql.options import FileWriteOptions, LedgerOptions
from spark_channel.connectors.sql.session import BoundSession, S
from spark_channel.connectors.sql.write.claim_tables import Ledger
from spark_channel.connectors.sql.write.plan import SqlPlan, WriteTarget
from spark_channel.connectors.sql.write.sessions import Tell, WriteSessions
from spark_channel.connectors.sql.write.task_claim import TaskClaim
from spark_channel.connectors.sql.write.way import Way

__all__ = [
    "NO_SESSION",
    "Publisher",
    "Stages",
    "WriteDatabase",
    "is_there",
    "ledger_options",
    "placed",
]

NO_SESSION: Any = None
"""In place of a session on a file that is not there: what a file's staging needs is beside it."""

_S_contra = TypeVar("_S_contra", bound=BoundSession, contravariant=True)


class Stages(Protocol[_S_contra]):
    """Where the rows of a run are until they are published."""

    def make(
        self, session: _S_contra, plan: SqlPlan, place: WriteTarget, context: WriteContext
    ) -> SqlPlan:
        """What tasks need before they stage, by the plan's `commit`. Safe twice. See `Traits.stages_with_claim`.

        Not called where the one task stages nothing.
        """
        ...

    def names(self, session: _S_contra, place: WriteTarget, beginning: str) -> list[str]:
        """The names of staging tables (or directories) that begin so."""
        ...

    def drop(self, session: _S_contra, place: WriteTarget, names: Sequence[str]) -> None:
        """Drop some of `names`, each in a separate transaction. Safe twice, and while tasks still write."""
        ...

    def check(self, session: _S_contra, plan: SqlPlan, receipts: Sequence[Receipt]) -> Any:
        """`commit=job`, first in the transaction that publishes: what `Publisher.publish` brings in.

        Raises:
            CommitError: it is not exactly what `receipts` promise.
        """
        ...


class Publisher(Protocol[_S_contra]):
    """What happens to the table in the transaction that makes it ready, or that publishes."""

    def around(
        self, session: _S_contra, plan: SqlPlan, tell: Tell, *, publishes: bool
    ) -> AbstractContextManager[None]:
        """Around that transaction: for what cannot be in it."""
        ...

    def make_ready(
        self,
        session: _S_contra,
        plan: SqlPlan,
        place: WriteTarget,
        context: WriteContext,
        *,
        first: bool,
    ) -> tuple[SqlPlan, bool]:
        """`commit=task`: with `first` create or empty the table; else hold it to be there.

        Whether this made the table, which `Definition.complete` then completes.
        """
        ...

    def publish(self, session: _S_contra, plan: SqlPlan, staged: Any) -> bool:
        """`commit=job`: the table made or emptied, and what `Stages.check` returned brought in. Whether it was made."""
        ...


class WriteDatabase(WriteSessions[S], Protocol[S]):
    """See the head of this file."""

    @property
    def stages(self) -> Stages[S]: ...
    @property
    def publisher(self) -> Publisher[S]: ...

    def check(self, context: WriteContext) -> None:
        """Before a session is opened: hold options and scripts to be usable."""
        ...

    def locate(self, session: S) -> WriteTarget:
        """The place that `dbtable` names, by the database's catalog in this session. Changes nothing."""
        ...

    def match(
        self, session: S, plan: SqlPlan, place: WriteTarget, context: WriteContext
    ) -> SqlPlan:
        """The database's own plan: how the columns meet the table's. Changes nothing.

        Raises:
            SchemaError, TargetError, OptionError: the rows do not fit.
        """
        ...

    def way(self, claim: TaskClaim[S], *, stages: bool = True) -> Way[S]:
        """How the rows of an attempt reach the table. Without `stages`: after a `NoStagingError`."""
        ...


def is_there(database: WriteDatabase[S]) -> bool:
    """Whether there is a database; a file may still have to be made."""
    options = database.options
    return not isinstance(options, FileWriteOptions) or options.file.exists()


def ledger_options(options: object) -> LedgerOptions | None:
    """The options that say where claims and staging are, if the database has such."""
    return options if isinstance(options, LedgerOptions) else None


def placed(database: WriteDatabase[S], session: S) -> WriteTarget:
    """The place of the table, and where its claims and staging are."""
    place, options = database.locate(session), ledger_options(database.options)
    if options is None:
        return place
    staging, table = options.staging_schema or place.schema, options.ledger_table
    if table is None:
        return replace(place, ledger=Ledger(staging, staging))
    schema, name = database.dialect.name_parts(table)
    return replace(place, ledger=Ledger(staging, schema or staging, name))
