"""The writer of every database: one write protocol, with the statements of each database behind a few methods.

`commit=job`: tasks stage their rows, and one transaction publishes them. `commit=task`: each task writes straight into
the table. Either transaction holds the run's claim, so that a run that was overtaken writes nothing.
"""

import re
import secrets
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from spark_channel.connectors.base.claims import HeldClaim
from spark_channel.connectors.base.contract import (
    Receipt,
    TaskWriter,
    ValueCheck,
    WriteContext,
    WritePlan,
)
from spark_channel.connectors.base.definition import Defines, TableDefinition
from spark_channel.connectors.base.feed import row_fields
from spark_channel.connectors.base.stored import MOST_COUNTED, FreeConnections, counted
from spark_channel.connectors.sql.catalog import TABLE, Column, Table, TargetTable
from spark_channel.connectors.sql.definition import (
    NewTable,
    free_names,
    is_build,
    parts_of_both,
    plain_new_table,
    with_safe_key,
)
from spark_channel.connectors.sql.options import SqlWriteOptions
from spark_channel.connectors.sql.session import BY_ITSELF, S, run_in_transaction, split_script
from spark_channel.connectors.sql.write.attempt import open_attempt
from spark_channel.connectors.sql.write.claim_tables import is_own_table
from spark_channel.connectors.sql.write.claims import Claims
from spark_channel.connectors.sql.write.in_session import note_published
from spark_channel.connectors.sql.write.plan import STAGING_WAYS, SqlPlan, WriteTarget, own_plan
from spark_channel.connectors.sql.write.protocol import WriteProtocol
from spark_channel.connectors.sql.write.publish import (
    PLACE,
    Merge,
    check_receipt,
    dropped,
    make_ready,
    refuse_two_receipts,
)
from spark_channel.connectors.sql.write.rights import (
    check_rights,
    check_rights_of_table,
    lacking_to_write,
)
from spark_channel.connectors.sql.write.table_loading import ATTEMPT, table_way
from spark_channel.connectors.sql.write.target_columns import (
    ColumnCheck,
    added_columns,
    new_target,
    old_target,
    wider_columns,
)
from spark_channel.connectors.sql.write.task_claim import TaskClaim
from spark_channel.connectors.sql.write.way import Way
from spark_channel.errors import (
    ChannelError,
    CommitError,
    OptionError,
    SchemaError,
    SupersededError,
    TargetError,
)
from spark_channel.final_errors import of_input
from spark_channel.options import WriteOptions
from spark_channel.plain_text import log_of

__all__ = ["SqlWriter"]


_log = log_of(__name__)

_EXPLAINS_RIGHTS = ("postgres", "mysql")
"""Databases that check the rights of a statement that they only explain."""


class SqlWriter(WriteProtocol[S]):
    """A database implements what `WriteProtocol` leaves to it: a session, what its errors mean, and its claims.

    Rows are staged in one table by `WriteSession.load`, or loaded into the table itself, and merged by `Merge`.
    """

    Options: ClassVar[type[WriteOptions]] = SqlWriteOptions
    Merge: ClassVar[type[Merge]] = Merge
    stages_with_claim: ClassVar[bool] = False
    """Whether `make_staging` runs in the transaction that takes the claim, and `publish_staged` drops the staging."""
    overwrite_drops: ClassVar[bool] = True
    """Whether an overwrite without `truncate` makes the table again."""
    has_numbers: ClassVar[bool] = False
    """Whether `numbers` returns statements for some tables."""

    @property
    def one_pass_rows(self) -> int | None:
        options = self.options
        is_plain = options.write_mode == "insert" and not (options.pre_sql or options.post_sql)
        is_limited = (
            options.is_limited
            or options.rows_per_second_per_task
            or options.bytes_per_second_per_task
        )
        by_task = options.commit == "task" or options.tolerates_dirty_rows
        if not is_plain or is_limited or by_task or getattr(options, "ledger", "") == "none":
            return None
        return getattr(options, "max_direct_rows", 0) or None

    def is_one_pass(self, plan: SqlPlan, table: Table | None, context: WriteContext) -> bool:
        """Whether the one task of an append to `table` publishes its rows."""
        is_there = table is not None and not table.is_view and not plan.overwrite
        may = context.one_pass and self.one_pass_rows is not None
        return is_there and may and plan.commit == "job"

    def free_connections(self) -> FreeConnections | None:
        return self.run(
            TargetError, "look", lambda session: session.free_connections(), begins=True
        )

    def exists(self) -> bool | None:
        return self.run(
            TargetError, "look", lambda session: self.look(session).table is not None, begins=True
        )

    def value_check(self, schema: pa.Schema) -> ValueCheck | None:
        given = {"write_mode": "insert", "on_schema_change": "ignore"}
        options = self.options.model_copy(update=given)

        def look(session: S) -> ValueCheck | None:
            table = self.placed(session).table
            if table is None:
                return None
            try:
                columns = old_target(self.dialect, table, schema, options).columns
            except SchemaError:
                return None  # the write says why
            members = self.dialect.members(session, table)
            return ColumnCheck(self.dialect, {each.name: each for each in columns}, members)

        return self.run(TargetError, "look", look, begins=True)

    def deletes_all(self) -> str:
        """The statement that deletes all rows of the table, and of no other, for `preSql`.

        Raises:
            TargetError: it would reach other tables.
        """

        def look(session: S) -> str:
            place = self.placed(session)
            self.dialect.check_deletes(session, place.schema, place.name)
            only = getattr(place.table, "only", "")
            return f"DELETE FROM {only}{self.dialect.place(place.schema, place.name)}"  # noqa: S608 - a quoted name

        return self.run(TargetError, "look", look, begins=True)

    def begin(self) -> None:
        texts = self.options.start_sql
        if texts:
            statements = split_script(texts, "startSql", self.script_dialect, why=BY_ITSELF)

            sent: list[str] = []

            def run(session: S) -> None:
                if sent:
                    raise TargetError(
                        f"the connection was lost while 'startSql' ran {sent[-1]!r}, so it may or may not have run: "
                        "check the database, and run the job again"
                    )
                for statement in statements:
                    sent.append(statement)
                    session.rows(statement)

            self.run(TargetError, "look", run, begins=True)

    def foreign_content(self, schema: pa.Schema) -> str:
        def look(session: S) -> str:
            place = self.placed(session)
            table = place.table
            if table is None or getattr(table, "is_view", False):
                return ""
            with self.transaction(session):
                if self.claims(session, place).knows(place.claimed):
                    return ""
            rows = self._counted(session, place)
            if rows == 0:
                return ""
            names = getattr(table, "names", None) or [column.name for column in table.columns]
            lost = [name for name in names if self.dialect.same_name(name, schema.names) is None]
            of = ", which has columns that the rows lack: " + ", ".join(lost) if lost else ""
            what = "all rows" if rows is None else counted(rows, "row")
            return f"{what} of a table that no job of spark-channel has claimed{of}"

        return self.run(TargetError, "look", look, begins=True)

    def existing_rows(self) -> int | None:
        def look(session: S) -> int | None:
            place = self.placed(session)
            return 0 if place.table is None else self._counted(session, place)

        return self.run(TargetError, "look", look, begins=True)

    def _counted(self, session: S, place: WriteTarget) -> int | None:
        """None: the role may not read the table."""
        rows = f"SELECT 1 AS one FROM {self.dialect.place(place.schema, place.name)}"  # noqa: S608 - a quoted name
        query = f"SELECT COUNT(*) FROM ({self.dialect.limited(rows, MOST_COUNTED + 1)}) first_rows"  # noqa: S608 - made here
        try:
            with self.transaction(session):
                return int(session.rows(query)[0][0])
        except TargetError:
            return None

    def rehearse(self, context: WriteContext, schema: pa.Schema) -> WritePlan | None:
        self.check(context)

        def look(session: S) -> SqlPlan | None:
            place, over = self.placed(session), context.overwrite
            self._check_place(place)
            commit, _ = self._commit_apart(session, place, context)
            kept = replace(place, table=None)
            plan = SqlPlan(
                job=context.job, schema=schema, commit=commit, overwrite=over, place=kept
            )
            new = self._new_fields(place, context, schema)
            wider = self._wider(place, context, schema)
            plan = self.with_definition(session, plan, place, context)
            plan = self._plan_without(session, plan, _with_wider(place, wider), context, new)
            stages, alters = commit == "job", bool(new or wider)
            check_rights(self, session, place, overwrite=over, stages=stages, alters=alters)
            is_there = place.table is not None and plan.target.sql and plan.target.names
            if is_there and self.script_dialect in _EXPLAINS_RIGHTS:
                columns = ", ".join(self.dialect.quoted(name) for name in plan.target.names)
                nulls = ", ".join("NULL" for _ in plan.target.names)
                # The server checks the right to insert, and plans to insert no row.
                nothing = f"SELECT {nulls} FROM (SELECT 1) AS nothing WHERE 1 = 0"  # noqa: S608 - no value in it
                override = "OVERRIDING SYSTEM VALUE " if self.script_dialect == "postgres" else ""
                into = f"INSERT INTO {plan.target.sql} ({columns}) {override}"
                session.rows(f"EXPLAIN {into}{nothing}")
            return plan if is_there else None

        return self.run(TargetError, "look", look, begins=True)

    def prepare(self, context: WriteContext, schema: pa.Schema) -> WritePlan:
        self.check(context)
        try:
            return self.run(
                TargetError,
                f"prepare {context.job}",
                lambda session: self._prepare(session, context, schema),
                begins=context.stream is None,
            )
        except TargetError as error:
            if not self.is_denied(error):
                raise
            said = f"{error}{self._grants(context)}"
            raise of_input(TargetError(said)) from error.__cause__

    def _grants(self, context: WriteContext) -> str:
        """The statements that grant what is missing, behind the server's words."""
        try:
            said = lacking_to_write(
                self, overwrite=context.overwrite, stages=context.commit != "task"
            )
        except ChannelError:  # the server's words are left
            return ""
        return f". That is: {said}" if said else ""

    def _prepare(self, session: S, context: WriteContext, schema: pa.Schema) -> SqlPlan:
        place = self.placed(session)
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
        if context.stream is None:  # whose batches are small: the server refuses them soon
            check_rights_of_table(self, session, place, overwrite=context.overwrite)
        plan = self.with_definition(session, plan, place, context)
        self.leave_builds(plan, place)
        place = self._evolved(session, plan, place, context)
        plan = self.plan(session, plan, place, context)
        staged = plan.commit == "job" and self.stages_with_claim

        def stage(held: HeldClaim) -> None:
            nonlocal plan
            plan = self._with_staging(session, replace(plan, held=held), place, context)

        taken = self._take(session, claims, place, context, stage if staged else None)
        if taken.held is None:
            return replace(plan, published_at=taken.published_at or "")
        held, overtaken = taken.held, taken.overtaken
        plan = replace(plan, held=held)
        try:
            if plan.commit == "job":
                if not staged:
                    plan = self._with_staging(session, plan, place, context)
                self._end_overtaken(session, taken, place, context)
            else:
                # Before the table is made ready, on which their locks are.
                self._end_overtaken(session, taken, place, context)
                with self.preparing(session, plan), self.transaction(session):
                    held, first = claims.make_ready(held, overwrite=plan.overwrite)
                    if first:
                        self.hold_table(session, plan)
                        self.script(session, self.options.pre_sql, "preSql")
                    plan = self.make_ready(
                        session, replace(plan, held=held), place, context, first=first
                    )
            overtaken = None  # from here on what it staged is removed
            self.sweep(session, plan)
            return plan
        except BaseException:
            self._give_back(session, plan, overtaken)
            raise

    def with_definition(
        self, session: S | None, plan: SqlPlan, place: WriteTarget, context: WriteContext
    ) -> SqlPlan:
        """The plan, with what the table that is to be made gets of its source's definition. Changes nothing.

        Raises:
            OptionError: the rows do not come from one table.
        """
        self.left_out = self.renamed = self.builds = ()
        level = self.options.create_table
        is_dropped = context.overwrite and not self.options.truncate and self.overwrite_drops
        if level not in ("auto", "keys", "full"):
            return plan
        if place.table is not None and not is_dropped:
            if level != "full":
                return plan
            computed = self._computed(session, place.table, context)
            return replace(
                plan, computed=computed, numbers=self.numbers(session, place.table, context)
            )
        keys_only = level != "full"
        definition = None if context.definition is None else context.definition(keys_only=keys_only)
        if definition is None and level == "auto":
            return plan
        if definition is None:
            raise OptionError(
                f"option 'createTable' got {level!r}, and the rows of {place.label} are not those of one table, "
                "unchanged, of a database that says how it is defined: set it to columns, or create the table yourself",
                option="createTable",
                got=level,
                takes="true, columns, false",
            )
        if level == "full" and plan.commit == "task":
            raise OptionError(
                f"option 'commit' got 'task', and with createTable=full {place.label} is not seen before it has "
                "its rows and indexes: omit 'commit', 'maxDirtyRows', 'maxDirtyFraction', or set createTable to keys",
                option="commit",
                got="task",
                takes="job",
            )
        if self.options.key_columns:  # they are the new table's primary key
            definition = definition.without_primary()
        whole = definition
        if (
            context.stream is not None
        ):  # its run adds keys to other tables when these have their rows
            definition = definition.with_keys_to_itself()
        left: tuple[str, ...] = ()
        had: set[str] = set()
        if level == "auto":
            lengths = context.text_lengths
            definition, left = with_safe_key(self.dialect, definition, plan.schema, lengths)
        new = self.new_table(session, place, definition, plan.schema, is_full=level == "full")
        new = self.without_refused(new, whole)
        if is_dropped and place.table is not None and session is not None:
            had, own = self._replaced(session, place, definition)
            left += own
        left += new.left_out
        if context.stream is not None:
            left = tuple(each for each in left if not each.startswith("foreign key "))
        new = replace(new, left_out=left)
        new.remark(place.label)
        self.left_out, self.renamed = new.left_out, new.renamed
        if self.options.schema_after is not None or context.leaves_builds:
            if new.create and self.dialect.ddl_commits:
                raise OptionError(
                    f"option 'schemaAfter' got {self.options.schema_after!r}, and {self.dialect.product} makes "
                    f"{place.label} with all of its indexes, before its rows: omit the option",
                    option="schemaAfter",
                    got=self.options.schema_after,
                )
            new = new.without_builds(had)
        self.builds = new.builds
        if self.options.schema_after is None:
            self.builds += tuple(step.what for step in new.later)
        if self.options.is_limited or new.later:
            in_file = self.options.schema_after is not None
            new.announce(place.label, "by a file of statements" if in_file else "by limit.builds")
        return replace(plan, new_table=new)

    def _replaced(
        self, session: S, place: WriteTarget, source: TableDefinition
    ) -> tuple[set[str], tuple[str, ...]]:
        """Of the table that is dropped: the steps of a new one like `source` that it had, and what is lost with it."""
        assert place.table is not None
        old = None if place.table.is_view else self.definition_of(session, place.table)
        if old is None:
            return set(), ()
        had, _ = parts_of_both(source, old)
        if any(label.startswith("primary key ") for label in had):
            had.add("primary key")
        _, own = parts_of_both(old, source)
        table = self.dialect.place(place.schema, place.name)
        on = self.dialect.indexed_table(place.name).replace(TABLE, table)
        lost = []
        for part in own:
            made = self.dialect.stated(part, part.name, table, on)
            lost.append(
                f"{part.label}, which the table that is dropped had{': ' if made else ''}{made}"
            )
        return had, tuple(lost)

    def leave_builds(self, plan: SqlPlan, place: WriteTarget) -> None:
        """Write the statements that a user runs after this job into the file that `schemaAfter` names.

        Before a row moves, since a job that dies after it has published its rows could not do so.

        Raises:
            OptionError: the file cannot be written.
        """
        if self.options.schema_after is None or plan.new_table is None:
            return
        path = Path(self.options.schema_after)
        if path.is_dir():
            path /= f"{re.sub(r'[^A-Za-z0-9_.-]', '_', place.label)}.sql"
        table = self.dialect.place(place.schema, place.name)
        lines = [
            f"-- {place.label}: run when it has its rows, each statement in a transaction of its own"
        ]
        for step in plan.new_table.later:
            lines += [f"{self.dialect.beside_writers(each)};" for each in step.on(table)]
        try:
            written = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
            written.write_text("\n".join(lines) + "\n", encoding="utf-8")
            written.replace(path)
        except OSError as error:
            raise OptionError(
                f"option 'schemaAfter' got {str(path)!r}, which cannot be written: {error.strerror}. Name a file of a "
                "folder that is there",
                option="schemaAfter",
                got=str(path),
            ) from error

    def _computed(self, session: S | None, table: Table, context: WriteContext) -> tuple[str, ...]:
        """The generated columns of a table that an earlier write made as its source is: of the same expressions."""
        names = [column.name for column in table.columns if column.generated]
        source = None if context.definition is None or not names else context.definition()
        if source is None or session is None or source.system != self.dialect.sql:
            return ()
        target = self.definition_of(session, table)
        if target is None:
            return ()
        both = [(name, source.column(name), target.column(name)) for name in names]
        return tuple(
            name
            for name, theirs, own in both
            if theirs is not None
            and own is not None
            and (theirs.declared, theirs.generated) == (own.declared, own.generated)
        )

    def numbers(self, session: S | None, table: Table, context: WriteContext) -> tuple[str, ...]:
        """Statements that let identity and serial columns of the table count on behind its rows, and its source's
        numbers; () = the database does so by itself. A writer that has such sets `has_numbers`.
        """
        return ()

    def continue_numbers(self, source: Defines) -> None:
        """Let identity and serial columns of the table count on behind its rows, and its source's numbers.

        Raises:
            ChannelError: an end cannot be reached.
        """

        def work(session: S) -> None:
            place = self.look(session)
            context = WriteContext("numbers", definition=source)
            numbers = () if place.table is None else self.numbers(session, place.table, context)
            if numbers:
                plan = SqlPlan(context.job, pa.schema([]), "job", numbers=numbers, place=place)
                with self.transaction(session):
                    self.count_on(session, plan)

        self.run(TargetError, "continue numbers", work)

    def build(self, statement: str) -> None:
        """Build what the table lacks, by a statement that `lacking` returned."""
        self.run(TargetError, "build", lambda session: session.rows(statement))

    def clear_builds(self, names: Collection[str]) -> None:
        """Drop indexes of the table with these names, also numbered ones, that a build left which was killed."""

    def definition_of(self, session: S, table: Table) -> TableDefinition | None:
        """The definition of a table of the target; None = the database says no expressions."""
        return None

    def new_table(
        self,
        session: S | None,
        place: WriteTarget,
        definition: TableDefinition,
        rows: pa.Schema,
        *,
        is_full: bool,
    ) -> NewTable:
        """What a new table for `rows` gets of the definition. `session`: None = the database is to be made, too."""
        return plain_new_table(
            self.dialect,
            definition,
            rows,
            is_full=is_full,
            name_of=self.free_names(session, place.schema),
            table=self.dialect.indexed_table(place.name),
            is_typed=self.options.create_table_column_types is not None,
        )

    def without_refused(self, new: NewTable, definition: TableDefinition) -> NewTable:
        """`new` without the checks that the database refuses for what else `definition` has, which it names."""
        return new

    def free_names(self, session: S | None, schema: str) -> Callable[[str], str]:
        """What gives new indexes in `schema` names that are free."""
        taken = () if session is None else self.dialect.index_names(session, schema)
        longest, folds = self.dialect.index_name_bytes, self.dialect.folds_names
        return free_names(set(taken), longest, folds=folds)

    def complete(self, session: S, target: TargetTable) -> None:
        """Give the table that was made the parts of its definition that follow its rows."""
        tell = self.on_build or (lambda _what: None)
        for step in target.steps:
            _log.info("table %s gets %s, which no limit slows down", target.label, step.what)
            tell(step.what if is_build(step) else "")
            for statement in step.on(target.sql):
                session.rows(statement)
        tell("")

    def _with_staging(
        self, session: S, plan: SqlPlan, place: WriteTarget, context: WriteContext
    ) -> SqlPlan:
        if plan.one_pass:
            return plan
        try:
            return self.make_staging(session, plan, place, context)
        except TargetError as error:
            if not self.is_denied(error) or context.stream is not None:
                raise
            raise TargetError(f"{error}. {STAGING_WAYS}") from error.__cause__

    def _new_fields(
        self, place: WriteTarget, context: WriteContext, schema: pa.Schema
    ) -> list[pa.Field]:
        """The columns that `onSchemaChange=evolve` adds to the table."""
        table = self._evolving(place, context)
        if table is None:
            return []
        names = [each.name for each in table.columns]
        own = row_fields(schema) if self.options.write_mode == "apply" else schema
        return [field for field in own if self.dialect.same_name(field.name, names) is None]

    def _wider(
        self, place: WriteTarget, context: WriteContext, schema: pa.Schema
    ) -> list[tuple[Column, Column]]:
        """The columns that `onSchemaChange=evolve` widens: (now, afterwards)."""
        table = self._evolving(place, context)
        if table is None:
            return []
        return wider_columns(self.dialect, table, schema, self.options, context.text_lengths)

    def _looser(self, place: WriteTarget, context: WriteContext, schema: pa.Schema) -> list[str]:
        """The columns that `onSchemaChange=evolve` lets be NULL: the rows lack them, or their source has NULL there.

        Only of a table that takes its definition from the source: NOT NULL of others is not the source's.
        """
        follows = self.options.create_table in ("auto", "keys", "full")
        table = self._evolving(place, context) if follows else None
        kept = {*(self.options.key_columns or ()), *(() if table is None else table.primary)}
        strict = [
            column
            for column in (() if table is None else table.columns)
            if column.not_null and column.name not in kept and not column.generated
        ]
        if table is None or not strict:
            return []
        own = row_fields(schema) if self.options.write_mode == "apply" else schema
        names = [each.name for each in table.columns]
        sources = {self.dialect.same_name(field.name, names): field.name for field in own}
        source = None if context.definition is None else context.definition(keys_only=True)
        looser = []
        for column in strict:
            if column.name not in sources:
                if not self.dialect.is_filled(table, column):
                    looser.append(column.name)
                continue
            theirs = None if source is None else source.column(sources[column.name])
            if theirs is not None and not theirs.not_null:
                looser.append(column.name)
        return looser

    def _evolving(self, place: WriteTarget, context: WriteContext) -> Table | None:
        """The table, if its definition may change for the rows."""
        table, is_replaced = place.table, context.overwrite and not self.options.truncate
        if self.options.on_schema_change != "evolve" or table is None or is_replaced:
            return None
        return None if table.is_view else table

    def _plan_without(
        self,
        session: S,
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
        self, session: S, plan: SqlPlan, place: WriteTarget, context: WriteContext
    ) -> WriteTarget:
        """The place, whose table has all columns of the rows, wide enough.

        One nullable column more changes no row, and a wider type no value, so no claim guards it: whoever does it, and
        whether its rows follow, each run finds it there. Before the rows, because some databases commit with DDL; and
        only if all else of the rows fits.
        """
        fields, wider, looser = (
            self._new_fields(place, context, plan.schema),
            self._wider(place, context, plan.schema),
            self._looser(place, context, plan.schema),
        )
        if not fields and not wider and not looser:
            return place
        fitting = _without_not_null(_with_wider(place, wider), looser)
        self._plan_without(session, plan, fitting, context, fields)
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
        for name in looser:
            self._loosen(session, plan, place, context, name)
        return replace(place, table=self.look(session).table)

    def _widen(
        self, session: S, plan: SqlPlan, place: WriteTarget, context: WriteContext, name: str
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

    def _loosen(
        self, session: S, plan: SqlPlan, place: WriteTarget, context: WriteContext, name: str
    ) -> None:
        """Let one column be NULL, as its source does; not if another run has done it meanwhile."""
        table = self.dialect.place(place.schema, place.name)
        assert place.table is not None
        column = next(each for each in place.table.columns if each.name == name)
        why = (
            f"Column {name!r} of table {place.label!r} is NOT NULL, its source has NULL there or no such column, "
            "and option 'onSchemaChange' follows it"
        )
        try:
            with self.altering(session, place):
                if name in self._looser(self.look(session), context, plan.schema):
                    for statement in self.dialect.loosen(session, table, column):
                        session.rows(statement)
        except TargetError as error:
            if self.is_lost(error):
                raise
            advice = "grant the right, or have the table's owner run"
            if not self.is_denied(error):
                advice = "take away what is in its way, or run"
            statement = self.dialect.nullable(table, column)
            raise TargetError(f"{error}. {why}: {advice} {statement}") from error.__cause__

    def _change(
        self, session: S, statement: str, is_left: Callable[[WriteTarget], bool], why: str
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
    def altering(self, session: S, place: WriteTarget) -> Iterator[None]:
        """No other write of this package, and if possible no other session, changes the definition meanwhile."""
        with self.transaction(session):
            yield

    def alter(self, session: S, statement: str) -> None:
        """Run a statement that changes the table's definition, and wait for other sessions for a bounded time."""
        session.rows(statement)

    def open(self, plan: WritePlan, task: int, attempt: int) -> TaskWriter:
        return open_attempt(self, own_plan(plan), task, attempt)

    def commit(self, plan: WritePlan, receipts: Sequence[Receipt]) -> bool | None:
        if plan.published_at is not None:
            return False
        own = own_plan(plan)
        refuse_two_receipts(receipts)
        try:
            return self.run(
                CommitError,
                f"publish {own.job}",
                lambda session: self._publish_and_drop(session, own, receipts),
            )
        except SupersededError:
            self._drop_quietly(own)
            raise
        except _NotPublishedError:
            raise
        except TargetError as error:
            raise CommitError(f"{error}. {self._what_is_there(own)}") from error

    def _publish_and_drop(self, session: S, plan: SqlPlan, receipts: Sequence[Receipt]) -> bool:
        """Return False where another run has published the write."""
        lost = self._publish(session, plan, receipts)
        if lost is None and plan.commit == "job" and self.stages_with_claim:
            return True
        try:
            self.drop_staging(session, plan)
        except TargetError as error:  # the rows are published all the same
            _log.warning("the staging %s* of job %s stays for now: %s", plan.stage, plan.job, error)
        return not lost

    def _publish(self, session: S, plan: SqlPlan, receipts: Sequence[Receipt]) -> bool | None:
        """None: this call has published the rows. Else they were published before: True = by another run."""
        claims = self.claims(session, plan.place)
        around = nullcontext() if plan.one_pass else self.publishing(session, plan)
        with around, self.transaction(session):
            if not claims.begin_publish(plan.claim):
                lost = claims.lost(plan.claim)
                if lost or not plan.one_pass:
                    _log.warning(
                        "%s was published before: nothing written by job %s",
                        plan.claim.identity.shown,
                        plan.job,
                    )
                return lost
            if plan.one_pass:
                raise _NotPublishedError(
                    f"the task of job {plan.job} has a receipt, and has not published its rows: run the job again"
                )
            self.hold_table(session, plan)
            if plan.commit == "job":
                if plan.overwrite:
                    claims.overwrite(plan.claim)
                staged = self.staged(session, plan, receipts)
                self.script(session, self.options.pre_sql, "preSql")
                self.publish_staged(session, plan, staged)
            else:
                claims.check_committed(plan.claim, receipts)
            self.note_published(session, plan, claims, receipts)
            # Last: where a procedure commits inside, the rows are not there without the note that they are published.
            self.script(session, self.options.post_sql, "postSql", written=True)
        return None

    def note_published(
        self, session: S, plan: SqlPlan, claims: Claims, receipts: Sequence[Receipt]
    ) -> None:
        note_published(self, session, plan, claims, receipts)

    def _check_place(self, place: WriteTarget) -> None:
        if is_own_table(place.name):
            raise TargetError(f"table {place.label!r} belongs to spark-channel; name another table")
        longest = self.dialect.cuts_names_at
        if place.table is None and longest is not None and len(place.name.encode()) > longest:
            raise TargetError(
                f"table {place.name!r} does not exist, and {self.dialect.product} would cut its name after "
                f"{longest} bytes: choose a shorter name"
            )
        if place.table is None and self.options.create_table == "false":
            missing = TargetError(
                f"table {self.options.dbtable!r} does not exist in {self.shown}, and 'createTable' is false; create "
                "it, or omit the option. A DataX job creates no table, except in preSql"
            )
            raise of_input(missing)

    def _what_is_there(self, plan: SqlPlan) -> str:
        if plan.commit == "task":
            return f"The rows of the tasks that committed are in table {plan.place.label!r}"
        if plan.one_pass:
            return (
                f"The task has committed all rows of this job, which are in table {plan.place.label!r}: "
                "run again, the job adds them again, unless option 'txn' names it"
            )
        return (
            f"Nothing of this job is in table {plan.place.label!r}: its transaction was rolled back"
        )

    # --- the steps of a write that stages rows in one table: a database with a faster way has its own ---

    def check(self, context: WriteContext) -> None:
        """Before a session is opened: hold options and scripts to be usable."""
        if self.dialect.ddl_commits and context.overwrite and not self.options.truncate:
            raise OptionError(
                f"option 'truncate' got false; {self.dialect.product} cannot drop a table, "
                "make it again and fill it in one transaction. Omit it, or drop the table first",
                option="truncate",
                got="false",
                takes="true",
            )
        self.check_scripts()

    def look(self, session: S) -> WriteTarget:
        table = self.dialect.find_table(session, self.options.dbtable)
        if table is not None:
            return self.place(table.schema, table.name, table)
        return self.place(*self.new_place(session))

    def new_place(self, session: S) -> tuple[str, str]:
        """The schema and the name of the table that `dbtable` names and the write creates."""
        return "", self.options.dbtable

    def place(self, schema: str, name: str, table: Table | None = None) -> WriteTarget:
        """Return the target of a write; `table`: as the catalog has it, None = it is not there."""
        return WriteTarget(schema, name, f"{schema}.{name}" if schema else name, table)

    def plan(self, session: S, plan: SqlPlan, place: WriteTarget, context: WriteContext) -> SqlPlan:
        """The database's own plan: how the columns meet the table's. Changes nothing.

        Raises:
            SchemaError, TargetError, OptionError: the rows do not fit.
        """
        return replace(plan, target=self.target(plan, place))

    def make_staging(
        self, session: S, plan: SqlPlan, place: WriteTarget, context: WriteContext
    ) -> SqlPlan:
        """`commit=job`: what tasks need before they stage. Safe twice. See `stages_with_claim`.

        Not called where the one task stages nothing.
        """
        if not self.stages(session, place, plan.stage):
            own = [f"{ATTEMPT} BIGINT NOT NULL", f"{PLACE} BIGINT NOT NULL"]
            own += [
                self.dialect.definition(replace(each.column, not_null=False))
                for each in plan.target.columns
            ]
            if plan.target.operation is not None:
                own.append(f"{self.dialect.quoted(plan.target.operation)} VARCHAR(20)")
            listed = f"{', '.join(own)}, PRIMARY KEY ({ATTEMPT}, {PLACE})"
            session.rows(f"CREATE TABLE {self.staging(plan)} ({listed})")
        return plan

    @contextmanager
    def preparing(self, session: S, plan: SqlPlan) -> Iterator[None]:
        """Around the transaction of `make_ready`: for what cannot be in it."""
        if self.dialect.ddl_commits:
            if self.make_table(session, plan.target):
                self.complete(session, plan.target)
            if plan.target.key:
                self.make_staging(session, plan, plan.place, WriteContext(plan.job))
        yield

    def make_ready(
        self, session: S, plan: SqlPlan, place: WriteTarget, context: WriteContext, *, first: bool
    ) -> SqlPlan:
        """`commit=task`, inside a transaction: with `first` create or empty the table; else hold it to be there."""
        if self.ready(session, plan, empty=first and plan.overwrite):
            self.complete(session, plan.target)
        makes_stage = plan.target.key and not self.dialect.ddl_commits
        return self.make_staging(session, plan, place, context) if makes_stage else plan

    def ready(self, session: S, plan: SqlPlan, *, empty: bool) -> bool:
        """Inside a transaction: the table is there as it was planned, and `empty` if that is asked for.

        True: this made it, and `complete` is still to be called.
        """
        return make_ready(session, self.dialect, plan.target, self.options, overwrite=empty)

    def way(self, claim: TaskClaim[S], *, stages: bool = True) -> Way[S]:
        return table_way(self, claim)

    @contextmanager
    def publishing(self, session: S, plan: SqlPlan) -> Iterator[None]:
        """Around the transaction that publishes: for what cannot be in it."""
        if self.dialect.ddl_commits and self.make_table(session, plan.target):
            self.complete(session, plan.target)
        yield

    def hold_table(self, session: S, plan: SqlPlan) -> None:
        """In the transaction that publishes: wait for appends in one pass, if its statements may see half of one."""

    def staged(self, session: S, plan: SqlPlan, receipts: Sequence[Receipt]) -> object:
        """`commit=job`, first in the transaction that publishes: what `publish_staged` brings in.

        Raises:
            CommitError: it is not exactly what `receipts` promise.
        """
        counts = f"SELECT {ATTEMPT}, COUNT(*) FROM {self.staging(plan)} GROUP BY {ATTEMPT}"  # noqa: S608 - a quoted name
        found = dict(session.rows(counts))
        for receipt in receipts:
            check_receipt(receipt, found.pop(receipt.details["mark"], 0))
        for mark in found:
            session.rows(self.forgets(plan, mark))
        return sum(receipt.rows for receipt in receipts)

    def publish_staged(self, session: S, plan: SqlPlan, staged: Any) -> None:
        """After `preSql`: the table made or emptied, and what `staged` returned brought in."""
        is_made = self.ready(session, plan, empty=plan.overwrite)
        self.bring(session, plan, staged)
        if is_made:
            self.complete(session, plan.target)

    def bring(self, session: S, plan: SqlPlan, count: int) -> None:
        """All rows of the staging table that this transaction sees, into the table. There are `count`."""
        rows, mode = self.staging(plan), self.options.write_mode
        self.Merge(session, self.dialect, plan.target, rows, mode, count).bring()

    def staging(self, plan: SqlPlan) -> str:
        """The staging table, in a statement: one for all attempts of the run."""
        return self.dialect.place(plan.place.staging, plan.stage)

    def forgets(self, plan: SqlPlan, mark: int) -> str:
        """The statement that removes what an attempt staged."""
        return f"DELETE FROM {self.staging(plan)} WHERE {ATTEMPT} = {int(mark)}"  # noqa: S608 - a quoted name

    def stages(self, session: S, place: WriteTarget, beginning: str) -> list[str]:
        """By `Dialect.table_names`, for a database without schemas."""
        return [each for each in self.dialect.table_names(session) if each.startswith(beginning)]

    def drop_stage(self, session: S, place: WriteTarget, name: str) -> None:
        try:
            session.rows(f"DROP TABLE {self.dialect.place(place.staging, name)}")
        except TargetError as error:
            if self.stages(session, place, name) and not self.is_lost(error):
                raise
            _log.warning(
                "staging %s is gone, or stays until a later job removes it: %s", name, error
            )

    def make_table(self, session: S, target: TargetTable) -> bool:
        """Outside a transaction: make the table when it is not there. Whether this session made it."""
        if self.dialect.find_table(session, target.sql) is not None:
            return False
        if target.create is None:
            raise dropped(target)
        try:
            session.rows(target.create)
        except TargetError as error:
            if not self.is_conflict(error) or self.dialect.find_table(session, target.sql) is None:
                raise
            return False  # another job made it at the same moment
        return True

    def script(
        self, session: S, texts: Sequence[str], option: str, *, written: bool = False
    ) -> None:
        """Run what the user gave as `preSql` or `postSql`, inside the transaction; see `run_in_transaction`."""
        statements = self.dialect.script(texts, option)
        if self.dialect.has_savepoints:
            run_in_transaction(session, statements, option, written=written)
            return
        for statement in statements:
            session.rows(statement)

    def check_scripts(self) -> None:
        """Check that the statements of `preSql` and `postSql` stay in the transaction."""
        self.dialect.script(self.options.pre_sql, "preSql")
        self.dialect.script(self.options.post_sql, "postSql")

    @staticmethod
    def staged_tables(
        session: S, receipts: Sequence[Receipt], sql: Callable[[str], str]
    ) -> list[tuple[str, int]]:
        """The staging tables that `receipts` name, as `sql` writes them, in the order of their tasks, with their rows.

        Raises:
            CommitError: one holds more rows than its receipt says, or fewer.
        """
        tables = []
        for receipt in sorted(receipts, key=lambda each: each.task):
            if (name := receipt.details.get("table")) is not None:
                check_receipt(receipt, int(session.value(f"SELECT COUNT(*) FROM {sql(name)}")))  # noqa: S608 - names are quoted
                tables.append((sql(name), receipt.rows))
        return tables

    def target(self, plan: SqlPlan, place: WriteTarget) -> TargetTable:
        """The match of the rows' columns to the table's, or to a new table's."""
        if place.table is not None and not (plan.overwrite and not self.options.truncate):
            return old_target(
                self.dialect, place.table, plan.schema, self.options, computed=plan.computed
            )
        new = plan.new_table
        if new is not None and new.table is not None:
            made = old_target(
                self.dialect, new.table, plan.schema, self.options, made_as=place.label
            )
            sql = self.dialect.place(place.schema, place.name)
            create = new.create.replace(TABLE, sql)
            made = replace(made, schema=place.schema, name=place.name, label=place.label)
            return replace(made, sql=sql, create=create, steps=new.steps)
        return new_target(
            self.dialect,
            place.schema,
            place.name,
            place.label,
            plan.schema,
            self.options,
            new,
        )


class _NotPublishedError(CommitError):
    """The task of a job in one pass has a receipt, and nothing of it is in the table."""


def _without_not_null(place: WriteTarget, names: Collection[str]) -> WriteTarget:
    """The place as if these of its columns took NULL."""
    table = place.table
    if not names or table is None:
        return place
    columns = tuple(
        replace(each, not_null=False) if each.name in names else each for each in table.columns
    )
    return replace(place, table=replace(table, columns=columns))


def _with_wider(place: WriteTarget, wider: Sequence[tuple[Column, Column]]) -> WriteTarget:
    """The place as if its columns had been widened."""
    table = place.table
    if not wider or table is None:
        return place
    made = {old.name: new for old, new in wider}
    columns = tuple(made.get(each.name, each) for each in table.columns)
    return replace(place, table=replace(table, columns=columns))
