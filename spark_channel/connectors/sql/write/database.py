"""The port of a database that rows are written to: what `SqlWriter` asks it for, in the order of a write.

One object for each write, on the driver and in each task. It calls nothing of its callers. `TableDatabase` is the usual
one, of which a connector replaces what its database does in another way.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from spark_channel.connectors.base.contract import Receipt, WriteContext
from spark_channel.connectors.sql.catalog import Table
from spark_channel.connectors.sql.options import FileWriteOptions, LedgerOptions
from spark_channel.connectors.sql.session import S
from spark_channel.connectors.sql.write.claim_tables import Ledger
from spark_channel.connectors.sql.write.loading import Loading
from spark_channel.connectors.sql.write.plan import SqlPlan, WriteTarget
from spark_channel.connectors.sql.write.sessions import Tell, WriteSessions
from spark_channel.connectors.sql.write.task_claim import TaskClaim

if TYPE_CHECKING:
    from spark_channel.connectors.base.definition import TableDefinition
    from spark_channel.connectors.sql.definition import NewTable

__all__ = ["WriteDatabase", "is_there", "ledger_options", "placed"]


class WriteDatabase(WriteSessions[S], Protocol[S]):
    """See the head of this file."""

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

    def read_definition(self, session: S, table: Table) -> "TableDefinition | None":
        """How a table is defined; None = the database says no expressions."""
        ...

    def new_table(
        self,
        session: S | None,
        place: WriteTarget,
        definition: "TableDefinition",
        rows: pa.Schema,
        whole: "TableDefinition",
        *,
        is_full: bool,
    ) -> "NewTable":
        """What a new table for `rows` gets of `definition`, which is a part of the `whole`.

        Without a session the database itself is to be made, too.
        """
        ...

    def altering(
        self, session: S, alone: WriteTarget | None = None
    ) -> AbstractContextManager[None]:
        """Around statements that change a definition, which wait for other sessions for a bounded time.

        No other write of this package, and if possible no other session, changes that of the table `alone` meanwhile.
        """
        ...

    def make_staging(
        self, session: S, plan: SqlPlan, place: WriteTarget, context: WriteContext
    ) -> SqlPlan:
        """`commit=job`: what tasks need before they stage. Safe twice. See `Traits.stages_with_claim`.

        Not called where the one task stages nothing.
        """
        ...

    def staging_names(self, session: S, place: WriteTarget, beginning: str) -> list[str]:
        """The names of staging tables (or directories) that begin so."""
        ...

    def drop_staging(self, session: S, place: WriteTarget, names: Sequence[str]) -> None:
        """Drop some of `names`, each in a separate transaction. Safe twice, and while tasks still write."""
        ...

    def around(
        self, session: S, plan: SqlPlan, tell: Tell, *, publishes: bool
    ) -> AbstractContextManager[None]:
        """Around the transaction of `make_ready`, or of `publish`: for what cannot be in it."""
        ...

    def make_ready(
        self, session: S, plan: SqlPlan, place: WriteTarget, context: WriteContext, *, first: bool
    ) -> tuple[SqlPlan, bool]:
        """`commit=task`: with `first` create or empty the table; else hold it to be there. And what its tasks need.

        Whether this made the table, which is then to be completed.
        """
        ...

    def loading(self, claim: TaskClaim[S], *, stages: bool = True) -> Loading[S]:
        """How the rows of an attempt reach the table. Without `stages`: after a `NoStagingError`."""
        ...

    def publish(
        self, session: S, plan: SqlPlan, receipts: Sequence[Receipt], pre_sql: Callable[[], None]
    ) -> bool:
        """`commit=job`: count the staged rows, then `pre_sql`; then make or empty the table, and bring them in.

        Rows that are staged in files are counted as they are brought in: `pre_sql` of a file commits with them.

        Whether it made the table, which is then to be completed.

        Raises:
            CommitError: the staged rows are not exactly what `receipts` promise. A `pre_sql` that could have committed
                has not run.
        """
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
