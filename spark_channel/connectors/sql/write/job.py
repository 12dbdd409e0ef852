"""The driver's side of a write to a database: what happens once for a job, in the order of events.

`commit=job`: tasks stage their rows, and one transaction publishes them. `commit=task`: each task writes straight into
the table. Either transaction holds the run's claim, so that a run that was overtaken writes nothing.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar, final

import pyarrow as pa

from spark_channel.connectors.base.claims import Claim, HeldClaim, StreamNote, StreamProgress
from spark_channel.connectors.base.contract import (
    PartialWrite,
    Receipt,
    TaskWriter,
    ValueCheck,
    WriteContext,
    WritePlan,
    Writer,
)
from spark_channel.connectors.base.kept_claims import ClaimName, KeptClaim
from spark_channel.connectors.base.overlap import MOST_COUNTED, FreeConnections, Stored, counted
from spark_channel.connectors.sql.catalog import Table
from spark_channel.connectors.sql.dialect import WriteDialect
from spark_channel.connectors.sql.session import BY_ITSELF, S, split_script
from spark_channel.connectors.sql.stored_tables import stored_in
from spark_channel.connectors.sql.write.attempt import open_attempt
from spark_channel.connectors.sql.write.checks import refuse_two_receipts
from spark_channel.connectors.sql.write.claim_tables import TASKS, is_own_table
from spark_channel.connectors.sql.write.claim_taking import take
from spark_channel.connectors.sql.write.claims import Claims
from spark_channel.connectors.sql.write.commit_mode import commit_mode, stored_at
from spark_channel.connectors.sql.write.database import WriteDatabase, is_there, placed
from spark_channel.connectors.sql.write.evolve import Evolution, with_wider
from spark_channel.connectors.sql.write.in_session import (
    claims_at,
    in_session,
    in_transaction,
    note_published,
)
from spark_channel.connectors.sql.write.ledger import with_ledger
from spark_channel.connectors.sql.write.plan import STAGING_WAYS, SqlPlan, WriteTarget, own_plan
from spark_channel.connectors.sql.write.rights import (
    check_rights,
    check_rights_of_table,
    lacking_to_write,
)
from spark_channel.connectors.sql.write.scripts import hold_appends, run_script
from spark_channel.connectors.sql.write.sessions import Tell, Verdict, no_news
from spark_channel.connectors.sql.write.source_definition import (
    TableRemarks,
    leave_builds,
    numbers_of,
    with_definition,
)
from spark_channel.connectors.sql.write.sweep import sweep
from spark_channel.connectors.sql.write.target_columns import ColumnCheck, old_target
from spark_channel.errors import (
    ChannelError,
    CommitError,
    SchemaError,
    SupersededError,
    TargetError,
)
from spark_channel.final_errors import of_input
from spark_channel.options import CommitMode
from spark_channel.plain_text import log_of

if TYPE_CHECKING:
    from spark_channel.connectors.base.definition import Defines
    from spark_channel.connectors.base.health import Health

__all__ = ["SqlWriter"]

_log = log_of(__name__)
_T = TypeVar("_T")
_EXPLAINS_RIGHTS = ("postgres", "mysql")
"""Databases that check the rights of a statement that they only explain."""
_AT_ONCE = 100
"""Claims that one transaction forgets."""


@final
class SqlWriter(Writer, Generic[S]):
    """Writes to `database`, which it asks for each step, and which asks it for nothing."""

    options: Any
    """Those of the database."""

    def __init__(self, database: WriteDatabase[S]) -> None:
        super().__init__(database.options)
        self.database = database
        self.native_system = database.traits.native_system

    @property
    def dialect(self) -> WriteDialect:
        return self.database.dialect

    def run(
        self,
        failure: type[TargetError],
        purpose: str,
        work: Callable[[S], _T],
        *,
        begins: bool = False,
    ) -> _T:
        """See `in_session`."""
        return in_session(self.database, failure, purpose, work, begins=begins)

    # 1. Before the write: looks that change nothing

    def check(self, context: WriteContext) -> None:
        """Before a session is opened: hold options and scripts to be usable."""
        self.database.check(context)

    def exists(self) -> bool | None:
        if not is_there(self.database):
            return False
        return self._look(lambda session: self.database.locate(session).table is not None)

    def stored(self) -> Stored | None:
        return self._look(
            lambda session: stored_at(self.database, session, self.database.locate(session))
        )

    def stored_in(self) -> Stored:
        """Where the tables of the target's schema are: see `stored_tables.stored_in`."""
        dialect = self.database.dialect
        if not is_there(self.database):
            return Stored(dialect.sql, frozenset(), frozenset())
        return self._look(
            lambda session: stored_in(session, dialect, self.database.locate(session).schema)
        )

    def asks_reads(self, commit: CommitMode | None) -> bool:
        return commit != "job"  # staged rows are not read again

    def is_parent(self) -> bool:
        return self.database.traits.inherits and self._look(
            lambda session: getattr(self.database.locate(session).table, "is_inherited", False)
        )

    def look_up(self, names: Sequence[str]) -> None:
        """As that of a reader."""
        look_up = self.database.traits.look_up
        if look_up is not None and is_there(self.database):
            self._look(lambda session: look_up(session, names))

    def free_connections(self) -> FreeConnections | None:
        if self.database.traits.server is None:
            return None
        return self._look(lambda session: session.free_connections())

    def value_check(self, schema: pa.Schema) -> ValueCheck | None:
        changes = {"write_mode": "insert", "on_schema_change": "ignore"}
        options, dialect = self.options.model_copy(update=changes), self.dialect

        def look(session: S) -> ValueCheck | None:
            table = placed(self.database, session).table
            if table is None:
                return None
            try:
                columns = old_target(dialect, table, schema, options).columns
            except SchemaError:
                return None  # the write says why
            members = dialect.members(session, table)
            return ColumnCheck(dialect, {column.name: column for column in columns}, members)

        return self._look(look)

    def existing_rows(self) -> int | None:
        def look(session: S) -> int | None:
            place = placed(self.database, session)
            return 0 if place.table is None else self._counted(session, place)

        return self._look(look) if is_there(self.database) else 0

    def foreign_content(self, schema: pa.Schema) -> str:
        def look(session: S) -> str:
            place = placed(self.database, session)
            table = place.table
            if table is None or getattr(table, "is_view", False):
                return ""
            with in_transaction(self.database, session):
                if claims_at(self.database, session, place).knows(place.claimed):
                    return ""
            rows = self._counted(session, place)
            if rows == 0:
                return ""
            names = getattr(table, "names", None) or [column.name for column in table.columns]
            lost = [name for name in names if self.dialect.same_name(name, schema.names) is None]
            columns = ", which has columns that the rows lack: " + ", ".join(lost) if lost else ""
            size = "all rows" if rows is None else counted(rows, "row")
            return f"{size} of a table that no job of spark-channel has claimed{columns}"

        return self._look(look) if is_there(self.database) else ""

    def _counted(self, session: S, place: WriteTarget) -> int | None:
        """None: the role may not read the table."""
        rows = f"SELECT 1 AS one FROM {self.dialect.place(place.schema, place.name)}"  # noqa: S608 - a quoted name
        first = self.dialect.limited(rows, MOST_COUNTED + 1)
        try:
            with in_transaction(self.database, session):
                return int(session.rows(f"SELECT COUNT(*) FROM ({first}) first_rows")[0][0])  # noqa: S608 - made here
        except TargetError:
            return None

    def deletes_all(self) -> str:
        """The statement that deletes all rows of the table, and of no other, for `preSql`.

        Raises:
            TargetError: it would reach other tables.
        """

        def look(session: S) -> str:
            place = placed(self.database, session)
            self.dialect.check_deletes(session, place.schema, place.name)
            only = getattr(place.table, "only", "")
            return f"DELETE FROM {only}{self.dialect.place(place.schema, place.name)}"  # noqa: S608 - a quoted name

        return self._look(look)

    def rehearse(self, context: WriteContext, schema: pa.Schema) -> WritePlan | None:
        database = self.database
        database.check(context)
        if not is_there(database):
            from spark_channel.connectors.sql.write import new_file

            self._check_place(new_file.place(database))
            self._say(new_file.rehearse(database, context, schema))
            return None

        def look(session: S) -> SqlPlan | None:
            place, over = placed(database, session), context.overwrite
            self._check_place(place)
            commit, _ = commit_mode(database, session, place, context)
            plan = SqlPlan(
                job=context.job,
                schema=schema,
                commit=commit,
                overwrite=over,
                place=replace(place, table=None),
            )
            evolution = Evolution(database, context, schema)
            fields, wider = evolution.new_fields(place), evolution.wider(place)
            plan, remarks = with_definition(database, session, plan, place, context)
            self._say(remarks)
            plan = evolution.match_without(session, plan, with_wider(place, wider), fields)
            stages, alters = commit == "job", bool(fields or wider)
            check_rights(database, session, place, overwrite=over, stages=stages, alters=alters)
            matches = place.table is not None and plan.target.sql and plan.target.names
            if matches and database.dialect.sql in _EXPLAINS_RIGHTS:
                session.execute(self._explained(plan))
            return plan if matches and database.traits.server is not None else None

        return self._look(look)

    def _explained(self, plan: SqlPlan) -> str:
        """The server checks the right to insert, and plans to insert no row."""
        columns = ", ".join(self.dialect.quoted(name) for name in plan.target.names)
        nulls = ", ".join("NULL" for _ in plan.target.names)
        nothing = f"SELECT {nulls} FROM (SELECT 1) AS nothing WHERE 1 = 0"  # noqa: S608 - no value in it
        is_postgres = self.database.dialect.sql == "postgres"
        override = "OVERRIDING SYSTEM VALUE " if is_postgres else ""
        return f"EXPLAIN INSERT INTO {plan.target.sql} ({columns}) {override}{nothing}"

    def _look(self, work: Callable[[S], _T]) -> _T:
        return self.run(TargetError, "look", work, begins=True)

    # 2. Before the source is read

    def begin(self) -> None:
        texts = self.options.start_sql
        if not texts:
            return
        dialect = self.database.dialect.sql
        statements, sent = split_script(texts, "startSql", dialect, why=BY_ITSELF), list[str]()

        def send(session: S) -> None:
            if sent:
                raise TargetError(
                    f"the connection was lost while 'startSql' ran {sent[-1]!r}, so it may or may not have run: "
                    "check the database, and run the job again"
                )
            for statement in statements:
                sent.append(statement)
                session.execute(statement)

        self._look(send)

    # 3. Prepare: the claim, and what tasks need

    def prepare(self, context: WriteContext, schema: pa.Schema) -> WritePlan:
        self.database.check(context)
        if not is_there(self.database) and context.commit != "task":
            from spark_channel.connectors.sql.write import new_file

            self._check_place(new_file.place(self.database))
            plan, remarks = new_file.prepare(self.database, context, schema)
            self._say(remarks)
            return plan
        overtaken_runs: list[str] = []
        try:
            return self.run(
                TargetError,
                f"prepare {context.job}",
                lambda session: self._prepare(session, context, schema, overtaken_runs),
                begins=context.stream is None,
            )
        except TargetError as error:
            if Verdict.DENIED not in self.database.verdict(error):
                raise
            raise of_input(TargetError(f"{error}{self._grants(context)}")) from error.__cause__

    def _prepare(
        self, session: S, context: WriteContext, schema: pa.Schema, overtaken_runs: list[str]
    ) -> SqlPlan:
        """`overtaken_runs`: from these, tries whose sessions were lost took the claim; this one adds to it."""
        database = self.database
        # The place by the catalog's name: one table has one claim, however the user spells it.
        place = placed(database, session)
        self._check_place(place)
        place = with_ledger(database, session, place, context)
        claims = claims_at(database, session, place)
        commit, stored = commit_mode(database, session, place, context)
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
        # First of all: a write that was published is not refused for what has become of the table since.
        published_at = claims.published_at(place.claimed, context)
        if published_at is not None:
            return replace(plan, published_at=published_at)
        if context.stream is None:  # whose batches are small: the server refuses them soon
            check_rights_of_table(database, session, place, overwrite=context.overwrite)
        # The plan before the claim: rows that do not fit are refused while nothing has to be given back.
        plan, remarks = with_definition(database, session, plan, place, context)
        self._say(remarks)
        leave_builds(database, plan, place)
        # New columns before the match that counts on them, each in a transaction of its own, see `Evolution`.
        place = Evolution(database, context, schema).evolved(session, plan, place)
        plan = database.match(session, plan, place, context)
        stages_with_claim = plan.commit == "job" and database.traits.stages_with_claim

        def stage(held: HeldClaim) -> None:
            nonlocal plan
            plan = self._with_staging(session, replace(plan, held=held), place, context)

        # The claim before staging: by its epoch, which names the staging, a sweep tells it from that of dead runs.
        # In the claim's transaction where the database makes tables in one, else in the next.
        decision = take(
            database, session, claims, place, context, stage if stages_with_claim else None
        )
        if decision.held is None:
            return replace(plan, published_at=decision.published_at or "")
        held_claim, overtaken = decision.held, decision.overtaken
        if overtaken is not None and overtaken.owner not in overtaken_runs:
            overtaken_runs.append(overtaken.owner)
        plan = replace(plan, held=held_claim)
        try:
            if plan.commit == "job":
                if not stages_with_claim:
                    plan = self._with_staging(session, plan, place, context)
                # After the claim, which fences them: their sessions are ended for the locks that they still hold.
                self._end_overtaken(session, overtaken_runs, place, context)
            else:
                # Before the table is made ready, on which their locks are.
                self._end_overtaken(session, overtaken_runs, place, context)
                # The claim is fenced, and notes that the table is ready, in the transaction that makes it so: a run
                # that continues this one, or is overtaken by another, empties it no second time.
                around = database.around(session, plan, no_news, publishes=False)
                with around, in_transaction(database, session):
                    held_claim, first = claims.make_ready(held_claim, overwrite=plan.overwrite)
                    if first:
                        hold_appends(database, plan, claims)
                        run_script(database, session, self.options.pre_sql, "preSql")
                    plan, is_made = database.make_ready(
                        session, replace(plan, held=held_claim), place, context, first=first
                    )
                    if is_made:
                        database.complete(session, plan, no_news)
            overtaken = None  # from here on what it staged is removed
            # Last: this run's claim is there, so that a sweep beside this one keeps its staging.
            sweep(database, session, plan, claims)
            return plan
        except BaseException:
            self._give_back(session, plan, overtaken)
            raise

    def _with_staging(
        self, session: S, plan: SqlPlan, place: WriteTarget, context: WriteContext
    ) -> SqlPlan:
        if plan.one_pass:
            return plan
        try:
            return self.database.make_staging(session, plan, place, context)
        except TargetError as error:
            is_denied = Verdict.DENIED in self.database.verdict(error)
            if not is_denied or context.stream is not None:
                raise
            raise TargetError(f"{error}. {STAGING_WAYS}") from error.__cause__

    def _end_overtaken(
        self, session: S, runs: Sequence[str], place: WriteTarget, context: WriteContext
    ) -> None:
        for run in runs:
            _log.warning(
                "job %s takes the claim on %s over from run %s", context.job, place.label, run
            )
            ends_sessions = self.database.traits.ends_sessions
            if ends_sessions is not None and (statement := ends_sessions(run)):
                session.rows(statement)

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
                f"table {self.options.dbtable!r} does not exist in {self.database.shown}, and 'createTable' is false; "
                "create it, or omit the option. A DataX job creates no table, except in preSql"
            )
            raise of_input(missing)

    def _grants(self, context: WriteContext) -> str:
        """The statements that grant what is missing, behind the server's words."""
        try:
            advice = lacking_to_write(
                self.database, overwrite=context.overwrite, stages=context.commit != "task"
            )
        except ChannelError:  # the server's words are left
            return ""
        return f". That is: {advice}" if advice else ""

    def _say(self, remarks: TableRemarks) -> None:
        self.left_out, self.renamed = remarks.left_out, remarks.renamed
        self.builds = remarks.builds

    def keep(self, plan: WritePlan, text: str) -> None:
        sql_plan = own_plan(plan)

        def keep(session: S) -> None:
            claims = claims_at(self.database, session, sql_plan.place)
            with in_transaction(self.database, session):
                claims.plans.make()
            with in_transaction(self.database, session):
                claims.fence(sql_plan.claim, exclusive=True)
                claims.plans.keep(sql_plan.claim.identity.key, text)

        self.run(TargetError, f"prepare {sql_plan.job}", keep)

    # 4. The tasks

    def writing(self) -> AbstractContextManager[None]:
        server = self.database.traits.server
        return nullcontext() if server is None else server.keeping()

    def open(self, plan: WritePlan, task: int, attempt: int) -> TaskWriter:
        return open_attempt(self.database, own_plan(plan), task, attempt)

    def is_refusal(self, error: BaseException) -> bool:
        return super().is_refusal(error) or Verdict.REFUSED_ROW in self.database.verdict(error)

    def health(self) -> "Health | None":
        server = self.database.traits.server
        return None if server is None or server.health is None else server.health()

    def resource_mark(self) -> str | None:
        server = self.database.traits.server
        return None if server is None else server.resource_mark

    @property
    def task_seconds(self) -> float | None:
        return self.database.traits.task_seconds

    @property
    def one_pass_rows(self) -> int | None:
        return self.database.traits.one_pass_rows

    # 5. Commit: publish all rows, or note that they are there

    def commit(self, plan: WritePlan, receipts: Sequence[Receipt]) -> bool | None:
        if plan.published_at is not None:
            return False
        sql_plan = own_plan(plan)
        refuse_two_receipts(receipts)
        if not sql_plan.is_claimed:
            return self._commit_new_file(sql_plan, receipts)
        return self._commit(sql_plan, receipts)

    def _commit(self, plan: SqlPlan, receipts: Sequence[Receipt]) -> bool:
        try:
            return self.run(
                CommitError,
                f"publish {plan.job}",
                lambda session: self._publish_and_drop(session, plan, receipts),
            )
        except SupersededError:
            self._drop_quietly(plan)
            raise
        except _NotPublishedError:
            raise
        except TargetError as error:
            raise CommitError(f"{error}. {self._what_is_there(plan)}") from error

    def _publish_and_drop(self, session: S, plan: SqlPlan, receipts: Sequence[Receipt]) -> bool:
        """Return False where another run has published the write."""
        lost = self._publish(session, plan, receipts)
        if lost is None and plan.commit == "job" and self.database.traits.stages_with_claim:
            return True  # the transaction that published has dropped it
        # After COMMIT: whoever asks again finds the write published, and needs no staging.
        try:
            self._drop_staging(session, plan)
        except TargetError as error:  # the rows are published all the same
            self._warn_of_staging(plan, error)
        return not lost

    def _publish(self, session: S, plan: SqlPlan, receipts: Sequence[Receipt]) -> bool | None:
        """None: this call has published the rows. Else they were published before: True = by another run."""
        database = self.database
        claims = claims_at(database, session, plan.place)
        tell: Tell = self.on_build or no_news
        around = (
            nullcontext() if plan.one_pass else database.around(session, plan, tell, publishes=True)
        )
        # One transaction for all that follows: after it every row is in the table and the claim says so, or none is.
        with around, in_transaction(database, session):
            # The claim first: its lock excludes other runs, and a COMMIT that was not answered is seen here.
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
            # Then the table's lock, in the order of all other runs, so that two of them never wait in a circle.
            hold_appends(database, plan, claims)
            if plan.commit == "job":
                if (
                    plan.overwrite
                ):  # fences off the tasks of jobs with commit=task before their rows are deleted
                    claims.overwrite(plan.claim)
                # Counted under the claim's lock, which a task that stages has to share: none is added afterwards. And
                # before preSql, which may commit: it does not empty a table for rows that are gone.
                pre_sql = partial(run_script, database, session, self.options.pre_sql, "preSql")
                if database.publish(session, plan, receipts, pre_sql):
                    database.complete(session, plan, tell)
            else:
                claims.check_committed(plan.claim, receipts)
            note_published(database, session, plan, claims, receipts)
            # Last: where a procedure commits inside, the rows are not there without the note that they are published.
            run_script(database, session, self.options.post_sql, "postSql", written=True)
        return None

    def _commit_new_file(self, plan: SqlPlan, receipts: Sequence[Receipt]) -> bool:
        """Make the file with all rows in it; if another job has made it meanwhile, publish into that one."""
        from spark_channel.connectors.sql.write import new_file

        database = self.database
        if new_file.make(
            database, plan, lambda session, claimed: self._publish(session, claimed, receipts)
        ):
            new_file.drop_staging(database, plan)
            return True
        late = plan
        try:
            late = new_file.claim_late(database, plan)
            is_added = late.published_at is None and self._commit(late, receipts)
        except SupersededError:
            new_file.drop_staging(database, plan)
            raise
        except TargetError:
            if late is not plan:  # `abort` is given a plan that holds no claim
                self._abort_late(late)
            raise
        new_file.drop_staging(database, plan)
        return is_added

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

    def _drop_staging(self, session: S, plan: SqlPlan) -> None:
        """Remove what the run staged. Safe twice, and while tasks still write."""
        if names := self.database.staging_names(session, plan.place, plan.stage):
            self.database.drop_staging(session, plan.place, names)

    def _drop_quietly(self, plan: SqlPlan) -> None:
        """After the write was overtaken."""
        try:
            self.run(
                TargetError,
                f"publish {plan.job}",
                lambda session: self._drop_staging(session, plan),
            )
        except TargetError as error:  # a later job removes it
            self._warn_of_staging(plan, error)

    def _warn_of_staging(self, plan: SqlPlan, error: TargetError) -> None:
        _log.warning("the staging %s* of job %s stays for now: %s", plan.stage, plan.job, error)

    # 6. Abort: give the claim back, and remove what was staged

    def abort(
        self, plan: WritePlan, receipts: Sequence[Receipt | None] | None
    ) -> Sequence[Receipt] | None:
        if plan.published_at is not None:
            return None
        sql_plan = own_plan(plan)
        if not (sql_plan.is_claimed and is_there(self.database)):
            from spark_channel.connectors.sql.write import new_file

            new_file.drop_staging(self.database, sql_plan)
            return []
        return self.run(
            TargetError,
            f"abort {plan.job}",
            lambda session: self._give_back(session, sql_plan),
        )

    def _give_back(
        self, session: S, plan: SqlPlan, overtaken: Claim | None = None
    ) -> list[Receipt]:
        if overtaken is not None:
            # Before the claim goes back with the epoch that it had: the next run to take it gets this one's epoch, and
            # names its staging so.
            self._drop_staging(session, plan)
        # The claim before the staging: a run that begins now finds it free, and never without its rows.
        with in_transaction(self.database, session):
            claims = claims_at(self.database, session, plan.place)
            receipts = claims.release(plan.claim, overtaken)
        if receipts:
            _log.warning(
                "job %s was aborted after %d of its tasks had committed their rows (commit=task): they stay in table "
                "%s, and %s lists them",
                plan.job,
                len(receipts),
                plan.place.label,
                TASKS,
            )
        if overtaken is None:
            self._drop_staging(session, plan)
        return receipts

    def _abort_late(self, late: SqlPlan) -> None:
        try:
            self.abort(late, None)
        except TargetError as error:  # why the commit failed is what counts
            _log.warning(
                "job %s keeps its claim on %s for now: %s", late.job, late.place.label, error
            )

    # 7. Resume: what the claims know of runs before this one

    def unfinished(self, context: WriteContext) -> PartialWrite | None:
        def ask(session: S) -> PartialWrite | None:
            place = placed(self.database, session)
            return claims_at(self.database, session, place).unfinished(place.claimed, context)

        if not is_there(self.database):
            return None
        return self.run(TargetError, f"prepare {context.job}", ask, begins=True)

    def committed(self, plan: WritePlan, task: int) -> Receipt | None:
        sql_plan = own_plan(plan)

        def ask(session: S) -> Receipt | None:
            claims = claims_at(self.database, session, sql_plan.place)
            return claims.task(sql_plan.claim, task)

        return self.run(TargetError, f"write {plan.job}", ask)

    def stream_progress(self, stream: str) -> StreamProgress | None:
        return self.stream_or_target(stream)[0]

    def stream_or_target(self, stream: str) -> tuple[StreamProgress | None, bool | None]:
        def ask(session: S) -> tuple[StreamProgress | None, bool]:
            place = placed(self.database, session)
            progress = claims_at(self.database, session, place).progress(place.claimed, stream)
            return progress, place.table is not None

        return self._look(ask) if is_there(self.database) else (None, False)

    def stream_note(self, stream: str) -> StreamNote | None:
        def ask(session: S) -> StreamNote | None:
            place = placed(self.database, session)
            return claims_at(self.database, session, place).noted(place.claimed, stream)

        return self._look(ask) if is_there(self.database) else None

    def note_stream(self, stream: str, text: str) -> bool:
        self._forget(lambda claims, target: claims.note(target, stream, text))
        return True

    def forget_stream(self, stream: str) -> None:
        if is_there(self.database):
            self._forget(lambda claims, target: claims.forget(target, stream))

    def end_stream(self, stream: str) -> None:
        if is_there(self.database):
            self._forget(lambda claims, target: claims.drop(target, stream))

    def _forget(self, forget: Callable[[Claims, str], None]) -> None:
        def work(session: S) -> None:
            place = placed(self.database, session)
            with in_transaction(self.database, session):
                forget(claims_at(self.database, session, place), place.claimed)

        self.run(TargetError, "forget", work, begins=True)

    def kept_claims(self, names: Sequence[ClaimName] = ()) -> list[KeptClaim]:
        def ask(session: S) -> list[KeptClaim]:
            place = placed(self.database, session)
            return claims_at(self.database, session, place).kept(place.claimed)

        return self._look(ask) if is_there(self.database) else []

    def forget_claims(self, claims: Sequence[KeptClaim]) -> list[KeptClaim]:
        if not is_there(self.database):
            return []
        # In one order of keys: two of these, or one beside `tidy`, wait for each other and never in a circle.
        ordered = sorted(claims, key=lambda claim: claim.key)

        def forget(session: S) -> list[KeptClaim]:
            place = placed(self.database, session)
            stored, forgotten = claims_at(self.database, session, place), list[KeptClaim | None]()
            if not stored.exist():
                return []
            for start in range(0, len(ordered), _AT_ONCE):
                with in_transaction(self.database, session):
                    batch = ordered[start : start + _AT_ONCE]
                    forgotten += [stored.forget_kept(claim) for claim in batch]
            return [claim for claim in forgotten if claim is not None]

        return self.run(TargetError, "forget", forget, begins=True)

    # 8. After the write: what a table lacks of its source's definition

    def continue_numbers(self, source: "Defines") -> None:
        """Let identity and serial columns of the table count on behind its rows, and its source's numbers.

        Raises:
            ChannelError: an end cannot be reached.
        """
        database = self.database

        def work(session: S) -> None:
            place = database.locate(session)
            if place.table is None or place.table.is_view or not database.traits.has_numbers:
                return
            table = database.read_definition(session, place.table)
            numbers = () if table is None else numbers_of(database, table, source)
            if numbers:
                plan = SqlPlan("numbers", pa.schema([]), "job", numbers=numbers, place=place)
                with in_transaction(database, session):
                    database.complete(session, plan, no_news)

        self.run(TargetError, "continue numbers", work)

    def build(self, statement: str) -> None:
        """Build what the table lacks, by a statement that `lacking` returned."""
        self.run(TargetError, "build", lambda session: session.execute(statement))

    def clear_builds(self, names: Sequence[str]) -> None:
        """See `WriteDialect.half_built`."""

        def work(session: S) -> None:
            table = self.database.locate(session).table
            if isinstance(table, Table):
                for statement in self.dialect.half_built(session, table, names):
                    session.execute(statement)

        self.run(TargetError, "clear builds", work)


class _NotPublishedError(CommitError):
    """The task of a job in one pass has a receipt, and nothing of it is in the table."""
