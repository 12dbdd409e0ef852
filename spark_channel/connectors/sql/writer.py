"""The writer of every database: one write protocol, with the statements of each database behind a few methods.

`commit=job`: tasks stage their rows, and one transaction publishes them. `commit=task`: each task writes straight into
the table. Either transaction holds the run's claim, so that a run that was overtaken writes nothing.
"""

import logging
import string
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeVar

import pyarrow as pa

from spark_channel.connectors.base.claims import Claim, ClaimDecision, HeldClaim, Identity
from spark_channel.connectors.base.contract import (
    PartialWrite,
    Receipt,
    TaskWriter,
    WriteContext,
    WritePlan,
    Writer,
)
from spark_channel.connectors.base.feed import row_fields
from spark_channel.connectors.base.health import RowCost
from spark_channel.connectors.base.stored import Overlap, Stored, most_overlap
from spark_channel.connectors.sql.catalog import NOWHERE, Column, TargetTable
from spark_channel.connectors.sql.claims import (
    STAGE,
    TASKS,
    ClaimDialect,
    Claims,
    Ledger,
    NoClaims,
    UntrustedClaimsError,
    is_own_table,
    stage_prefix,
)
from spark_channel.connectors.sql.options import LedgerOptions, SqlWriteOptions
from spark_channel.connectors.sql.publish import refuse_two_receipts
from spark_channel.connectors.sql.session import (
    BY_ITSELF,
    run_in_transaction,
    split_script,
    transaction,
)
from spark_channel.connectors.sql.statements import parsed_name
from spark_channel.connectors.sql.stored import stored_table
from spark_channel.connectors.sql.target_columns import (
    added_columns,
    new_target,
    old_target,
    wider_columns,
)
from spark_channel.errors import (
    ChannelError,
    CommitError,
    OptionError,
    SupersededError,
    TargetError,
)
from spark_channel.options import CommitMode, WriteOptions
from spark_channel.retry import Retry

__all__ = [
    "NothingWriter",
    "SqlPlan",
    "SqlWriter",
    "WriteTarget",
]


# The writer of a task that has nothing to write.


class NothingWriter(TaskWriter):
    """For a task, or a job, that was committed before: takes rows, keeps none, and gives `receipt`."""

    def __init__(self, receipt: Receipt) -> None:
        self._receipt = receipt

    def write(self, batch: pa.RecordBatch) -> None:
        pass

    def close(self) -> Receipt:
        return self._receipt

    def rollback(self) -> None:
        pass


_log = logging.getLogger(__name__)
_T = TypeVar("_T")
_RETRY_SECONDS = 60.0
_FOLDED = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)
_EXPLAINS_RIGHTS = ("postgres", "mysql")
"""Databases that check the rights of a statement that they only explain."""
_WAYS = (
    "Grant the right, or name another schema with 'stagingSchema' or a table with 'ledgerTable'; 'ledger' none writes "
    "without them, at least once"
)
_OWN = {
    (Overlap.SURE, True): "its source is",
    (Overlap.PERHAPS, True): "its source may be",
    (Overlap.PERHAPS, False): "its source may be, since this application has planned a read of",
}
_TAKES = 5
"""How often a claim is tried: two that make its table or its row at the same moment fail one of them."""


@dataclass(frozen=True, slots=True)
class WriteTarget:
    """The place of a write. `label` names the table in messages and claims; `table` is its entry in the catalog, None
    if the write creates it. `schema` contains the table.
    """

    schema: str
    name: str
    label: str
    table: Any = None
    folds: bool = False
    """The database takes names that differ in the case of A to Z for one."""
    ledger: Ledger | None = None
    """None: claims and staging are beside the table."""

    @property
    def staging(self) -> str:
        """The schema of staging tables."""
        return self.schema if self.ledger is None else self.ledger.staging

    @property
    def stage(self) -> str:
        """How the names of staging tables begin."""
        return STAGE if self.ledger is None else self.ledger.stage

    @property
    def has_ledger(self) -> bool:
        return self.ledger is None or not self.ledger.without

    @property
    def claimed(self) -> str:
        """The table as claims know it: one name for all its spellings."""
        return self.label.translate(_FOLDED) if self.folds else self.label


@dataclass(frozen=True)
class SqlPlan(WritePlan):
    """Databases subclass it with their own fields. `target` is the table as the plan expects it."""

    place: WriteTarget = WriteTarget("", "", "")
    target: TargetTable = NOWHERE
    longest_name: int = 63

    @property
    def stage(self) -> str:
        """The prefix of this run's staging tables, or its only name if names must be short."""
        return stage_prefix(self.claim, longest=self.longest_name, beginning=self.place.stage)

    @property
    def at_least_once(self) -> bool:
        return not self.place.has_ledger

    @property
    def claim(self) -> HeldClaim:
        assert self.held is not None, "a published write holds no claim"
        return self.held


class SqlWriter(Writer):
    """A database implements the methods below the line; what it does not stage in tables it stages in files."""

    Options: ClassVar[type[WriteOptions]] = SqlWriteOptions
    options: SqlWriteOptions
    dialect: Any
    """A `WriteDialect`, where `transaction`, `script` and `target` are not overridden."""

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self.row_cost = RowCost()

    def exists(self) -> bool | None:
        return self.run(
            TargetError, "look", lambda session: self.look(session).table is not None, begins=True
        )

    def begin(self) -> None:
        texts = self.options.start_sql
        if texts:
            statements = split_script(texts, "startSql", self.script_dialect, why=BY_ITSELF)

            sent: list[str] = []

            def run(session: Any) -> None:
                if sent:
                    raise TargetError(
                        f"the connection was lost while 'startSql' ran {sent[-1]!r}, "
                        "so whether that was done is not known: look, and run the job again"
                    )
                for statement in statements:
                    sent.append(statement)
                    session.rows(statement)

            self.run(TargetError, "look", run, begins=True)

    @property
    def script_dialect(self) -> str:
        """sqlglot's name of the dialect of the user's scripts."""
        return str(self.dialect.sql)

    def rehearse(self, context: WriteContext, schema: pa.Schema) -> None:
        self.check(context)

        def look(session: Any) -> None:
            place = self.look(session)
            self._check_place(place)
            commit, _ = self._commit_apart(session, place, context)
            plan = SqlPlan(
                job=context.job,
                schema=schema,
                commit=commit,
                overwrite=context.overwrite,
                place=replace(place, table=None),
            )
            new = self._new_fields(place, context, schema)
            wide = _with_wider(place, self._wider(place, context, schema))
            plan = self._plan_without(session, plan, wide, context, new)
            is_there = place.table is not None and plan.target.sql and plan.target.names
            if is_there and self.script_dialect in _EXPLAINS_RIGHTS:
                columns = ", ".join(self.dialect.quoted(name) for name in plan.target.names)
                nulls = ", ".join("NULL" for _ in plan.target.names)
                # The server checks the right to insert, and plans to insert no row.
                nothing = f"SELECT {nulls} FROM (SELECT 1) AS nothing WHERE 1 = 0"  # noqa: S608 - no value in it
                session.rows(f"EXPLAIN INSERT INTO {plan.target.sql} ({columns}) {nothing}")

        self.run(TargetError, "look", look, begins=True)

    def prepare(self, context: WriteContext, schema: pa.Schema) -> WritePlan:
        self.check(context)
        return self.run(
            TargetError,
            f"prepare {context.job}",
            lambda session: self._prepare(session, context, schema),
            begins=context.stream is None,
        )

    def _prepare(self, session: Any, context: WriteContext, schema: pa.Schema) -> SqlPlan:
        place = self._placed(session)
        self._check_place(place)
        place = self._with_ledger(session, place, context)
        claims = self.claims(session, place)
        commit, stored = self._commit_apart(session, place, context)
        plan = SqlPlan(
            job=context.job,
            schema=schema,
            commit=commit,
            overwrite=context.overwrite,
            txn=context.txn,
            stored=stored,
            place=replace(place, table=None),
            longest_name=claims.longest_name,
        )
        published_at = claims.published_at(place.claimed, context)
        if published_at is not None:  # whatever has become of the table since
            return replace(plan, published_at=published_at)
        place = self._evolved(session, plan, place, context)
        plan = self.plan(session, plan, place, context)
        taken = self._take(session, claims, place, context)
        if taken.held is None:
            return replace(plan, published_at=taken.published_at or "")
        held, overtaken = taken.held, taken.overtaken
        plan = replace(plan, held=held)
        try:
            if plan.commit == "job":
                plan = self.make_staging(session, plan, place, context)
                self._end_overtaken(session, taken, place, context)
            else:
                self._end_overtaken(
                    session, taken, place, context
                )  # their locks are on what is made ready
                with self.preparing(session, plan), self.transaction(session):
                    held, first = claims.make_ready(held, overwrite=plan.overwrite)
                    plan = self.make_ready(
                        session, replace(plan, held=held), place, context, first=first
                    )
            overtaken = None  # from here on what it staged is removed
            self.sweep(session, plan)
            return plan
        except BaseException:
            self._give_back(session, plan, overtaken)
            raise

    def stored(self) -> Stored | None:
        return self.run(
            TargetError,
            "look",
            lambda session: self._stored_at(session, self.look(session)),
            begins=True,
        )

    def _stored_at(self, session: Any, place: WriteTarget) -> Stored | None:
        table = place.table
        if table is None:
            return None
        is_view = getattr(table, "is_view", False)
        return stored_table(session, self.dialect, place.schema, place.name, is_view=is_view)

    def _commit_apart(
        self, session: Any, place: WriteTarget, context: WriteContext
    ) -> tuple[CommitMode, Stored | None]:
        """The commit mode, which keeps the write's rows from its own source; and what a task must not read.

        Raises:
            OptionError: the source is the target, and the user or the role's rights leave only `task`.
        """
        commit: CommitMode = context.commit or self.default_commit(place, context)
        commit = commit if place.has_ledger else "task"
        target = self._stored_at(session, place) if commit == "task" and context.reads else None
        if target is None:
            return commit, None
        found = most_overlap(context.reads, target)
        if not context.reads_surely:
            found = min(found, Overlap.PERHAPS)
        if found is Overlap.NONE:
            return commit, None
        if context.commit is None and place.has_ledger and not self.options.tolerates_dirty_rows:
            hint = (
                ""
                if found is Overlap.SURE
                else ". If the rows come from elsewhere, set 'commit' to task"
            )
            _log.info(
                "job %s stages its rows (commit=job): %s table %s, and would read the rows that tasks commit%s",
                context.job,
                _OWN[found, context.reads_surely],
                place.label,
                hint,
            )
            return "job", None
        self._refuse_own_source(place, context, found)
        return commit, target

    def _refuse_own_source(self, place: WriteTarget, context: WriteContext, found: Overlap) -> None:
        """What may have been emptied cannot be told from what was; rows that tasks add are found by the tasks."""
        first = (
            "an overwrite with commit=task empties it"
            if context.overwrite
            else "with commit=task, 'preSql' changes it"
            if self.options.pre_sql
            else ""
        )
        if found is Overlap.PERHAPS and not first:
            return
        why = (
            f"{first} before its rows are read"
            if first
            else "with commit=task, rows that its tasks commit would be read and written again"
        )
        asked = (
            "omit 'maxDirtyRows' and 'maxDirtyFraction', which need commit=task"
            if self.options.tolerates_dirty_rows
            else "set 'commit' to job, or omit it"
            if place.has_ledger
            else f"give the job what commit=job needs ({_WAYS})"
        )
        raise OptionError(
            f"{_OWN[found, context.reads_surely]} the target, table {place.label!r}: {why}. "
            f"To write into the table that is read, {asked}; or write into another table",
            option="commit",
            got="task",
            takes="job",
        )

    def _new_fields(
        self, place: WriteTarget, context: WriteContext, schema: pa.Schema
    ) -> list[pa.Field]:
        """The columns that `onSchemaChange=evolve` adds to the table."""
        if not self._evolves(place, context):
            return []
        names = [each.name for each in place.table.columns]
        own = row_fields(schema) if self.options.write_mode == "apply" else schema
        return [field for field in own if self.dialect.same_name(field.name, names) is None]

    def _wider(
        self, place: WriteTarget, context: WriteContext, schema: pa.Schema
    ) -> list[tuple[Column, Column]]:
        """The columns that `onSchemaChange=evolve` widens: (now, afterwards)."""
        if not self._evolves(place, context):
            return []
        return wider_columns(self.dialect, place.table, schema, self.options, context.text_lengths)

    def _evolves(self, place: WriteTarget, context: WriteContext) -> bool:
        """Whether the table's definition may change for the rows."""
        if self.options.on_schema_change != "evolve" or place.table is None:
            return False
        is_replaced = context.overwrite and not self.options.truncate
        return not place.table.is_view and not is_replaced

    def _plan_without(
        self,
        session: Any,
        plan: SqlPlan,
        place: WriteTarget,
        context: WriteContext,
        new: Sequence[pa.Field],
    ) -> SqlPlan:
        """The plan for the columns that the table has. Changes nothing.

        Raises:
            SchemaError, TargetError, OptionError: the rows do not fit, or the table cannot get the columns `new`.
        """
        if not new:
            return self.plan(session, plan, place, context)
        added_columns(self.dialect, plan.schema, new, self.options)
        names = {field.name for field in new}
        left = pa.schema([field for field in plan.schema if field.name not in names])
        native = context.native
        if native is not None:
            kept = [number for number, name in enumerate(native.schema.names) if name not in names]
            native = replace(
                native,
                schema=pa.schema([native.schema.field(each) for each in kept]),
                types=tuple(native.types[each] for each in kept),
            )
        return self.plan(
            session, replace(plan, schema=left), place, replace(context, native=native)
        )

    def _evolved(
        self, session: Any, plan: SqlPlan, place: WriteTarget, context: WriteContext
    ) -> WriteTarget:
        """The place, whose table has all columns of the rows, wide enough.

        One nullable column more changes no row, and a wider type no value, so no claim guards it: whoever does it, and
        whether its rows follow, each run finds it there. Before the rows, because some databases commit with DDL; and
        only if all else of the rows fits.
        """
        fields, wider = (
            self._new_fields(place, context, plan.schema),
            self._wider(place, context, plan.schema),
        )
        if not fields and not wider:
            return place
        self._plan_without(session, plan, _with_wider(place, wider), context, fields)
        table = self.dialect.place(place.schema, place.name)
        for column in added_columns(self.dialect, plan.schema, fields, self.options):
            name = column.name
            statement = f"ALTER TABLE {table} ADD COLUMN {self.dialect.definition(column)}"

            def lacks(now: WriteTarget, name: str = name) -> bool:
                return any(
                    each.name == name for each in self._new_fields(now, context, plan.schema)
                )

            why = f"Column {name!r} of the rows is not in table {place.label!r}, and option 'onSchemaChange' adds it"
            self._change(session, statement, lacks, why)
        for column, _ in wider:
            self._widen(session, plan, place, context, column.name)
        return replace(place, table=self.look(session).table)

    def _widen(
        self, session: Any, plan: SqlPlan, place: WriteTarget, context: WriteContext, name: str
    ) -> None:
        """Widen one column. It is looked at again, where no other run can change it meanwhile: of two that widen it
        to different types, the later one could undo what the earlier one did, and round values.
        """
        table, why = self.dialect.place(place.schema, place.name), ""
        column, declared = Column(name, ""), ""

        def narrow(now: WriteTarget) -> tuple[Column, Column] | None:
            found = self._wider(now, context, plan.schema)
            return next((each for each in found if each[0].name == name), None)

        try:
            with self.altering(session, place):
                found = narrow(self.look(session))
                if found is None:
                    return
                column, declared = found[0], found[1].declared
                why = (
                    f"Column {name!r} of table {place.label!r} is {column.declared}, "
                    f"the rows need {declared}, and option 'onSchemaChange' widens it"
                )
                made = self.dialect.retype(session, table, column, declared)
                if made is None:
                    raise TargetError(
                        "the server shows its definition in a form that cannot be repeated without loss"
                    )
                session.rows(made)
        except TargetError as error:
            if not why or self.is_lost(error):
                raise
            advice = (
                "grant the right, or have the table's owner run"
                if self.is_denied(error)
                else "take away what is in its way, or make the table again, or run"
            )
            statement = self.dialect.retyped(table, column, self.dialect.instead(error, declared))
            keeps = ""
            if name in context.text_lengths:
                _, _, size = column.declared.partition("(")
                keeps = f". To keep its type, set option 'createTableColumnTypes' to {name} VARCHAR({size}"
            raise TargetError(f"{error}. {why}: {advice} {statement}{keeps}") from error.__cause__

    def _change(
        self, session: Any, statement: str, is_left: Callable[[WriteTarget], bool], why: str
    ) -> None:
        """Run a statement that another run may have run meanwhile."""
        try:
            self.alter(session, statement)
        except ChannelError as error:
            if self.is_lost(error):
                raise
            if not is_left(self.look(session)):
                return
            if not isinstance(error, TargetError) or not self.is_denied(error):
                raise
            raise TargetError(
                f"{error}. {why}: grant the right, or have the table's owner run {statement}"
            ) from error.__cause__

    @contextmanager
    def altering(self, session: Any, place: WriteTarget) -> Iterator[None]:
        """No other write of this package, and if possible no other session, changes the definition meanwhile."""
        with self.transaction(session):
            yield

    def alter(self, session: Any, statement: str) -> None:
        """Run a statement that changes the table's definition, and wait for other sessions for a bounded time."""
        session.rows(statement)

    def _placed(self, session: Any) -> WriteTarget:
        """The place of the table, and where its claims and staging are."""
        place, options = self.look(session), _ledger_options(self.options)
        if options is None:
            return place
        staging, table = options.staging_schema or place.schema, options.ledger_table
        if table is None:
            return replace(place, ledger=Ledger(staging, staging))
        schema, name = self.ledger_names(table)
        return replace(place, ledger=Ledger(staging, schema or staging, name))

    def ledger_names(self, text: str) -> tuple[str | None, str]:
        """The schema and name that option `ledgerTable` names."""
        tree = parsed_name(text, self.script_dialect)
        return (None, text) if tree is None else (tree.db or None, tree.name)

    def _with_ledger(self, session: Any, place: WriteTarget, context: WriteContext) -> WriteTarget:
        """The place without a ledger, where the user or the role's rights leave none.

        Raises:
            TargetError: what the job asks for cannot be kept without one.
        """
        options = _ledger_options(self.options)
        if options is None or options.ledger == "required":
            return place
        why = "option 'ledger' is none" if options.ledger == "none" else self._lacks(session, place)
        if not why:
            return place
        asks = (
            "a stream"
            if context.stream is not None
            else "a transaction id"
            if context.txn is not None
            else "commit=job"
            if context.commit == "job"
            else ""
        )
        if asks:
            raise TargetError(f"{asks} needs tables that record what was written: {why}. {_WAYS}")
        _log.warning(
            "job %s: rows are written to %s at least once, without a record of what was written: a rerun, a retried "
            "task or a lost answer can add rows twice. The reason: %s. %s",
            context.job,
            place.label,
            why,
            _WAYS,
        )
        assert place.ledger is not None
        return replace(place, ledger=replace(place.ledger, without=why))

    def _lacks(self, session: Any, place: WriteTarget) -> str:
        """Why the role cannot keep claims; "" = it can."""
        claims = self.claims(session, place)
        try:
            self._ensure(session, claims)
            with self.transaction(session):
                claims.probe()
        except TargetError as error:
            if isinstance(error, UntrustedClaimsError) or self.is_denied(error):
                return str(error)
            raise
        return ""

    def _end_overtaken(
        self, session: Any, taken: ClaimDecision, place: WriteTarget, context: WriteContext
    ) -> None:
        if taken.overtaken is not None:
            owner = taken.overtaken.owner
            _log.warning(
                "job %s takes the claim on %s over from run %s", context.job, place.label, owner
            )
            self.end_sessions(session, owner)

    def _take(
        self, session: Any, claims: Claims, place: WriteTarget, context: WriteContext
    ) -> ClaimDecision:
        """Take the claim, in a short separate transaction."""
        try:
            self._ensure(session, claims)
        except TargetError as error:
            if _ledger_options(self.options) is not None and self.is_denied(error):
                raise TargetError(f"{error}. {_WAYS}") from error.__cause__
            raise
        for left in reversed(range(_TAKES)):
            try:
                with self.transaction(session):
                    claims.prune()
                    return claims.take(
                        Identity.of(place.claimed, context),
                        context.job,
                        position=context.stream[1] if context.stream else None,
                        resume=context.resume,
                    )
            except TargetError as error:
                if not left or not self.is_conflict(error):
                    raise
        raise AssertionError("the last attempt returns or raises")

    def _ensure(self, session: Any, claims: Claims) -> None:
        """Make the tables of claims, unless they are there."""
        for left in reversed(range(_TAKES)):
            try:
                if not claims.exist():
                    with self.transaction(session):
                        claims.ensure()
                return
            except TargetError as error:
                if not left or not self.is_conflict(error):
                    raise

    def open(self, plan: WritePlan, task: int, attempt: int) -> TaskWriter:
        if plan.published_at is not None:
            return NothingWriter(Receipt(task, attempt, rows=0, nbytes=0))
        return self.open_task(plan, task, attempt)

    def committed(self, plan: WritePlan, task: int) -> Receipt | None:
        own = _own(plan)
        return self.run(
            TargetError,
            f"write {own.job}",
            lambda session: self.claims(session, own.place).task(own.claim, task),
        )

    def unfinished(self, context: WriteContext) -> PartialWrite | None:
        def ask(session: Any) -> PartialWrite | None:
            place = self._placed(session)
            return self.claims(session, place).unfinished(place.claimed, context)

        return self.run(TargetError, f"prepare {context.job}", ask, begins=True)

    def keep(self, plan: WritePlan, text: str) -> None:
        own = _own(plan)

        def keep(session: Any) -> None:
            claims = self.claims(session, own.place)
            with self.transaction(session):
                claims.plans.make()
            with self.transaction(session):
                claims.fence(own.claim, exclusive=True)
                claims.plans.keep(own.claim.identity.key, text)

        self.run(TargetError, f"prepare {own.job}", keep)

    def commit(self, plan: WritePlan, receipts: Sequence[Receipt]) -> None:
        if plan.published_at is not None:
            return
        own = _own(plan)
        refuse_two_receipts(receipts)
        try:
            self.run(
                CommitError,
                f"publish {own.job}",
                lambda session: self._publish_and_drop(session, own, receipts),
            )
        except SupersededError:
            self._drop_quietly(own)
            raise
        except TargetError as error:
            raise CommitError(f"{error}. {self._what_is_there(own)}") from error

    def _publish_and_drop(self, session: Any, plan: SqlPlan, receipts: Sequence[Receipt]) -> None:
        self._publish(session, plan, receipts)
        try:
            self.drop_staging(session, plan)
        except TargetError as error:  # what is published is published
            _log.warning("the staging %s* of job %s stays for now: %s", plan.stage, plan.job, error)

    def settle(self, plan: SqlPlan, task: int) -> Receipt | None:
        """The outcome of a task's COMMIT without an answer: the receipt with which the task committed.

        In a new session, with the claim locked: the old session's transaction holds the claim until it has ended.

        Raises:
            SupersededError: the task did not commit, and another run took over.
        """

        def ask(session: Any) -> Receipt | None:
            claims = self.claims(session, plan.place)
            with self.transaction(session):
                try:
                    claims.fence(plan.claim, exclusive=True)
                except SupersededError:
                    if (receipt := claims.task(plan.claim, task)) is not None:
                        return receipt
                    raise
                return claims.task(plan.claim, task)

        return self.run(TargetError, f"settle {plan.job}", ask)

    def _publish(self, session: Any, plan: SqlPlan, receipts: Sequence[Receipt]) -> None:
        claims = self.claims(session, plan.place)
        with self.publishing(session, plan), self.transaction(session):
            if not claims.begin_publish(plan.claim):
                _log.warning(
                    "%s was published before: nothing written by job %s",
                    plan.claim.identity.shown,
                    plan.job,
                )
                return
            if plan.commit == "job":
                if plan.overwrite:
                    claims.overwrite(plan.claim)
                self.publish_staged(session, plan, receipts)
            else:
                claims.hold_committed(plan.claim, receipts)
            rows, nbytes = (
                sum(each.rows for each in receipts),
                sum(each.nbytes for each in receipts),
            )
            claims.publish(plan.claim, rows=rows, nbytes=nbytes)
            # Last: where a procedure commits inside, the rows are not there without the note that they are published.
            self.script(session, self.options.post_sql, "postSql", written=True)

    def abort(self, plan: WritePlan, receipts: Sequence[Receipt | None] | None) -> None:
        if plan.published_at is not None:
            return
        own = _own(plan)
        self.run(TargetError, f"abort {own.job}", lambda session: self._give_back(session, own))

    def _give_back(self, session: Any, plan: SqlPlan, overtaken: Claim | None = None) -> None:
        with self.transaction(session):
            left = self.claims(session, plan.place).release(plan.claim, overtaken)
        if left:
            _log.warning(
                "job %s was aborted after %d of its tasks had committed their rows (commit=task): they stay in table "
                "%s, and %s lists them",
                plan.job,
                len(left),
                plan.place.label,
                TASKS,
            )
        self.drop_staging(session, plan)

    def beat(self, plan: SqlPlan) -> None:
        """Record that the run is alive, on a separate connection."""

        def show(session: Any) -> None:
            with self.transaction(session):
                self.claims(session, plan.place).beat(plan.claim)

        self.run(TargetError, f"write {plan.job}", show)

    def claims(self, session: Any, place: WriteTarget) -> Claims:
        return (
            Claims(session, self.claim_dialect(session, place)) if place.has_ledger else NoClaims()
        )

    def sweep(self, session: Any, plan: SqlPlan) -> None:
        """Remove the staging of runs that were overtaken, have ended, or are known to be dead."""
        stages = self.stages(session, plan.place, plan.place.stage) if plan.place.has_ledger else []
        if not stages:
            return
        with self.transaction(session):
            orphans = self.claims(session, plan.place).orphans(stages, plan.claim)
        for name in orphans:
            _log.warning("removing orphaned staging %s", name)
            self.drop_stage(session, plan.place, name)

    def drop_staging(self, session: Any, plan: SqlPlan) -> None:
        """Remove what the run staged. Safe twice, and while tasks still write."""
        for name in self.stages(session, plan.place, plan.stage):
            self.drop_stage(session, plan.place, name)

    def default_commit(self, place: WriteTarget, context: WriteContext) -> CommitMode:
        """`task` writes an append once instead of twice; keys are told apart only within one transaction."""
        if context.stream is not None:
            return "job"
        append = place.table is not None and not context.overwrite
        return "task" if append and self.options.write_mode == "insert" else "job"

    def _check_place(self, place: WriteTarget) -> None:
        if is_own_table(place.name):
            raise TargetError(f"table {place.label!r} belongs to spark-channel; name another table")
        if place.table is None and not self.options.create_table:
            raise TargetError(
                f"there is no table {self.options.dbtable!r} in {self.shown}, and 'createTable' is false; create it, "
                "or omit the option. A DataX job creates no table, except in preSql"
            )

    def _drop_quietly(self, plan: SqlPlan) -> None:
        """After the write was overtaken."""
        try:
            self.run(
                TargetError, f"publish {plan.job}", lambda session: self.drop_staging(session, plan)
            )
        except TargetError as error:  # what is published is published
            _log.warning("the staging %s* of job %s stays for now: %s", plan.stage, plan.job, error)

    def _what_is_there(self, plan: SqlPlan) -> str:
        if plan.commit == "task":
            return f"The rows of the tasks that committed are in table {plan.place.label!r}"
        return (
            f"Nothing of this job is in table {plan.place.label!r}: its transaction was rolled back"
        )

    # --- what a database implements ---

    @property
    @abstractmethod
    def shown(self) -> str:
        """The database, for messages."""

    @abstractmethod
    def check(self, context: WriteContext) -> None:
        """Before a session is opened: hold options and scripts to be usable."""

    @abstractmethod
    def session(
        self, failure: type[TargetError], purpose: str, *, patient: bool
    ) -> AbstractContextManager[Any]:
        """A new session, which raises `failure` for anything that the database refuses.

        `purpose` is what the server is told of it. `patient`: the server was reached before, or may come back, so that
        a connector which waits for it by itself does.
        """

    @abstractmethod
    def is_lost(self, error: BaseException) -> bool:
        """Whether the connection was lost, or another transaction stood in the way: doing it again may help."""

    def run(
        self,
        failure: type[TargetError],
        purpose: str,
        work: Callable[[Any], _T],
        *,
        begins: bool = False,
    ) -> _T:
        """`work` on a session; again on a new one when the connection is lost, for `retryTimeout` seconds.

        So `work` begins by asking what is there: it may have been done without an answer. With `begins` a server that
        is not there is a mistake in the url, and is reported immediately.
        """
        reached = not begins

        def attempt() -> _T:
            nonlocal reached
            with self.session(failure, purpose, patient=reached) as session:
                reached = True
                return work(session)

        seconds = getattr(self.options, "retry_timeout", _RETRY_SECONDS)
        return Retry(seconds, what=purpose).call(
            attempt, lambda error: reached and self.is_lost(error)
        )

    @contextmanager
    def transaction(self, session: Any) -> Iterator[None]:
        """Commits in the end; any exception rolls back."""
        with transaction(session, self.dialect.begin):
            yield

    def undo(self, session: Any) -> None:
        """End a transaction without its changes."""
        session.rows("ROLLBACK")

    @abstractmethod
    def is_conflict(self, error: TargetError) -> bool:
        """Whether another transaction was first: a duplicate key or table, a deadlock, a failed serialization."""

    def is_denied(self, error: TargetError) -> bool:
        """Whether the role lacks a right."""
        return False

    @abstractmethod
    def claim_dialect(self, session: Any, place: WriteTarget) -> ClaimDialect:
        """The claims in the schema of `place`."""

    @abstractmethod
    def look(self, session: Any) -> WriteTarget:
        """The place that `dbtable` names, by the database's catalog in this session."""

    def plan(
        self, session: Any, plan: SqlPlan, place: WriteTarget, context: WriteContext
    ) -> SqlPlan:
        """The database's own plan: how the columns meet the table's. Changes nothing.

        Raises:
            SchemaError, TargetError, OptionError: the rows do not fit.
        """
        return replace(plan, target=self.target(plan, place))

    @abstractmethod
    def make_staging(
        self, session: Any, plan: SqlPlan, place: WriteTarget, context: WriteContext
    ) -> SqlPlan:
        """`commit=job`: what tasks need before they stage. Safe twice."""

    @abstractmethod
    def make_ready(
        self, session: Any, plan: SqlPlan, place: WriteTarget, context: WriteContext, *, first: bool
    ) -> SqlPlan:
        """`commit=task`, inside a transaction: with `first` run preSql, create or empty the table; else check it."""

    @abstractmethod
    def open_task(self, plan: Any, task: int, attempt: int) -> TaskWriter: ...

    @contextmanager
    def preparing(self, session: Any, plan: SqlPlan) -> Iterator[None]:
        """Around the transaction of `make_ready`: for what cannot be in it."""
        yield

    def end_sessions(self, session: Any, run: str) -> None:
        """End the sessions in which tasks of an overtaken run write: one that hangs would keep its locks."""

    @contextmanager
    def publishing(self, session: Any, plan: SqlPlan) -> Iterator[None]:
        """Around the transaction that publishes: for what cannot be in it."""
        yield

    @abstractmethod
    def publish_staged(self, session: Any, plan: Any, receipts: Sequence[Receipt]) -> None:
        """`commit=job`, inside the transaction that publishes: preSql, the table made or emptied, exactly the rows of
        `receipts` brought in.
        """

    def script(
        self, session: Any, texts: Sequence[str], option: str, *, written: bool = False
    ) -> None:
        """Run what the user gave as `preSql` or `postSql`, inside the transaction; see `run_in_transaction`."""
        statements = self.dialect.script(texts, option)
        if self.dialect.has_savepoints:
            run_in_transaction(session, statements, option, written=written)
            return
        for statement in statements:
            session.rows(statement)

    def check_scripts(self) -> None:
        """Hold `preSql` and `postSql` to be statements that stay in the transaction."""
        self.dialect.script(self.options.pre_sql, "preSql")
        self.dialect.script(self.options.post_sql, "postSql")

    @staticmethod
    def staged_tables(
        session: Any, receipts: Sequence[Receipt], sql: Callable[[str], str]
    ) -> Iterator[tuple[str, int]]:
        """The staging tables that `receipts` name, as `sql` writes them, in the order of their tasks, with their rows.

        Raises:
            CommitError: one holds more rows than its receipt says, or fewer.
        """
        for receipt in sorted(receipts, key=lambda each: each.task):
            if (name := receipt.details.get("table")) is None:
                continue
            staged = int(session.value(f"SELECT COUNT(*) FROM {sql(name)}"))  # noqa: S608 - a quoted name
            if staged != receipt.rows:
                raise CommitError(
                    f"{staged} rows of task {receipt.task} are staged, and its receipt says {receipt.rows}"
                )
            yield sql(name), staged

    def target(self, plan: SqlPlan, place: WriteTarget) -> TargetTable:
        """The match of the rows' columns to the table's, or to a new table's."""
        if place.table is not None and not (plan.overwrite and not self.options.truncate):
            return old_target(self.dialect, place.table, plan.schema, self.options)
        return new_target(
            self.dialect, place.schema, place.name, place.label, plan.schema, self.options
        )

    @abstractmethod
    def stages(self, session: Any, place: WriteTarget, beginning: str) -> list[str]:
        """The names of staging tables (or directories) that begin so."""

    @abstractmethod
    def drop_stage(self, session: Any, place: WriteTarget, name: str) -> None:
        """Drop one of `stages`, in a separate transaction. Safe twice."""


def _with_wider(place: WriteTarget, wider: Sequence[tuple[Column, Column]]) -> WriteTarget:
    """The place as if its columns had been widened."""
    if not wider:
        return place
    made = {old.name: new for old, new in wider}
    columns = tuple(made.get(each.name, each) for each in place.table.columns)
    return replace(place, table=replace(place.table, columns=columns))


def _ledger_options(options: Any) -> LedgerOptions | None:
    return options if isinstance(options, LedgerOptions) else None


def _own(plan: WritePlan) -> SqlPlan:
    assert isinstance(plan, SqlPlan)
    return plan
