"""The port of a database that rows are written to: what `SqlWriter` asks it for, in the order of a write.

One object for each write, on the driver and in each task. It calls nothing of its callers. `TableDatabase` is the usual
one, of which a connector replaces what its database does in another way.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from spark_channel.connectors.base.contract import Receipt, WriteContext
from spark_channel.connectors.base.health import Health
from spark_channel.connectors.sql.options import LedgerOptions
from spark_channel.connectors.sql.session import BoundSession, S
from spark_channel.connectors.sql.write.claim_tables import Ledger
from spark_channel.connectors.sql.write.claims import Claims
from spark_channel.connectors.sql.write.plan import SqlPlan, WriteTarget
from spark_channel.connectors.sql.write.sessions import Tell, WriteSessions
from spark_channel.connectors.sql.write.task_claim import TaskClaim
from spark_channel.connectors.sql.write.way import Way
from spark_channel.options import CommitMode

__all__ = [
    "Catalog",
    "Planning",
    "Publisher",
    "Stages",
    "WriteDatabase",
    "ledger_options",
    "placed",
]

_S_contra = TypeVar("_S_contra", bound=BoundSession, contravariant=True)


class Catalog(Protocol[_S_contra]):
    """Where the table is that `dbtable` names. Changes nothing."""

    def is_there(self) -> bool:
        """Whether there is a database; a file may still have to be made."""
        ...

    def locate(self, session: _S_contra) -> WriteTarget:
        """The place that `dbtable` names, by the database's catalog in this session."""
        ...

    def ledger_names(self, text: str) -> tuple[str | None, str]:
        """The schema and name that option `ledgerTable` names."""
        ...

    def look_up(self, session: _S_contra, names: Sequence[str]) -> None:
        """Remember what the catalog has of these tables, which the session then need not ask for one by one."""
        ...

    def is_parent(self, table: Any) -> bool:
        """Whether other tables inherit from it, which keep their rows."""
        ...


class Planning(Protocol[_S_contra]):
    """How rows and options meet the table. Changes nothing."""

    @property
    def script_dialect(self) -> str:
        """sqlglot's name of the dialect of the user's scripts."""
        ...

    def check(self, context: WriteContext) -> None:
        """Before a session is opened: hold options and scripts to be usable."""
        ...

    def default_commit(self, place: WriteTarget, context: WriteContext) -> CommitMode:
        """`job`, whatever the target holds; `task` only where it judges refused rows one by one."""
        ...

    def match(
        self, session: _S_contra, plan: SqlPlan, place: WriteTarget, context: WriteContext
    ) -> SqlPlan:
        """The database's own plan: how the columns meet the table's.

        Raises:
            SchemaError, TargetError, OptionError: the rows do not fit.
        """
        ...


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

    def sweep(self, session: _S_contra, plan: SqlPlan, claims: Claims) -> None:
        """Remove the staging of runs that were overtaken, have ended, or are known to be dead."""
        ...

    def end_sessions(self, session: _S_contra, run: str) -> None:
        """End the sessions in which tasks of an overtaken run write: one that hangs would keep its locks."""
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

    def hold(self, session: _S_contra, plan: SqlPlan, claims: Claims) -> None:
        """In that transaction: wait for appends in one pass, if its statements may see half of one."""
        ...

    def script(
        self, session: _S_contra, texts: Sequence[str], option: str, *, written: bool = False
    ) -> None:
        """Run what the user gave as `preSql` or `postSql`, inside the transaction; see `run_in_transaction`."""
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
    def catalog(self) -> Catalog[S]: ...
    @property
    def planning(self) -> Planning[S]: ...
    @property
    def stages(self) -> Stages[S]: ...
    @property
    def publisher(self) -> Publisher[S]: ...

    def way(self, claim: TaskClaim[S], *, stages: bool = True) -> Way[S]:
        """How the rows of an attempt reach the table. Without `stages`: after a `NoStagingError`."""
        ...

    def keeping(self) -> AbstractContextManager[None]:
        """See `Writer.writing`."""
        ...

    def resource_mark(self) -> str | None:
        """See `Writer`."""
        ...

    def health(self) -> Health | None:
        """See `Writer`."""
        ...


def ledger_options(options: object) -> LedgerOptions | None:
    """The options that say where claims and staging are, if the database has such."""
    return options if isinstance(options, LedgerOptions) else None


def placed(database: WriteDatabase[S], session: S) -> WriteTarget:
    """The place of the table, and where its claims and staging are."""
    place, options = database.catalog.locate(session), ledger_options(database.options)
    if options is None:
        return place
    staging, table = options.staging_schema or place.schema, options.ledger_table
    if table is None:
        return replace(place, ledger=Ledger(staging, staging))
    schema, name = database.catalog.ledger_names(table)
    return replace(place, ledger=Ledger(staging, schema or staging, name))
