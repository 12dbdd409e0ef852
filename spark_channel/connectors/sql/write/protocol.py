"""The protocol of one write: its claim, a COMMIT without an answer, and the sweep."""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Generic, TypeVar

from spark_channel.connectors.base.claims import (
    Claim,
    ClaimDecision,
    HeldClaim,
    Identity,
    StreamNote,
    StreamProgress,
)
from spark_channel.connectors.base.contract import (
    PartialWrite,
    Receipt,
    WriteContext,
    WritePlan,
    Writer,
)
from spark_channel.connectors.base.health import RowCost
from spark_channel.connectors.base.kept_claims import ClaimName, KeptClaim
from spark_channel.connectors.base.session_pool import sessions
from spark_channel.connectors.base.stored import Overlap, Stored, most_overlap
from spark_channel.connectors.sql.dialect import WriteDialect
from spark_channel.connectors.sql.options import LedgerOptions, SqlWriteOptions
from spark_channel.connectors.sql.session import S, transaction
from spark_channel.connectors.sql.statements import parsed_name
from spark_channel.connectors.sql.stored import stored_in, stored_table
from spark_channel.connectors.sql.write.claim_tables import (
    TASKS,
    ClaimDialect,
    Ledger,
)
from spark_channel.connectors.sql.write.claims import Claims, UntrustedClaimsError
from spark_channel.connectors.sql.write.database import Verdict
from spark_channel.connectors.sql.write.in_session import (
    claims_at,
    in_session,
    retry,
    settle,
    show_life,
)
from spark_channel.connectors.sql.write.plan import WAYS, SqlPlan, WriteTarget, own_plan
from spark_channel.connectors.sql.write.rights import lacking_to_stage
from spark_channel.errors import OptionError, TargetError
from spark_channel.options import CommitMode
from spark_channel.plain_text import log_of
from spark_channel.retry import Retry

__all__ = ["WriteProtocol"]

_log = log_of(__name__)
_T = TypeVar("_T")
_AT_ONCE = 100
"""Claims that one transaction forgets."""
_TAKES = 5
"""How often a claim is tried: two that make its table or its row at the same moment fail one of them."""
_OWN = {
    (Overlap.SURE, True): "its source is",
    (Overlap.PERHAPS, True): "its source may be",
    (Overlap.PERHAPS, False): "its source may be, since this application has planned a read of",
}


class WriteProtocol(Writer, Generic[S]):
    """What holds for each write to a database, whatever rows it brings: sessions, claims, staging that is removed."""

    options: SqlWriteOptions
    dialect: WriteDialect

    def __init__(self, options: SqlWriteOptions) -> None:
        super().__init__(options)
        self.row_cost = RowCost()

    @property
    def script_dialect(self) -> str:
        """sqlglot's name of the dialect of the user's scripts."""
        return self.dialect.sql

    def run(
        self,
        failure: type[TargetError],
        purpose: str,
        work: Callable[[S], _T],
        *,
        begins: bool = False,
    ) -> _T:
        """See `in_session`."""
        return in_session(self, failure, purpose, work, begins=begins)

    def retry(self, what: str) -> Retry:
        """For as long as `retryTimeout` says."""
        return retry(self, what)

    @contextmanager
    def transaction(self, session: S) -> Iterator[None]:
        """Commits in the end; any exception rolls back."""
        with transaction(session, self.dialect.begin):
            yield

    def claims(self, session: S, place: WriteTarget) -> Claims:
        return claims_at(self, session, place)

    def placed(self, session: S) -> WriteTarget:
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

    def _with_ledger(self, session: S, place: WriteTarget, context: WriteContext) -> WriteTarget:
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
            raise TargetError(f"{asks} needs tables that record what was written: {why}. {WAYS}")
        _log.warning(
            "job %s: rows are written to %s at least once, without a record of what was written: a rerun, a retried "
            "task or a lost answer can add rows twice. The reason: %s. %s",
            context.job,
            place.label,
            why,
            WAYS,
        )
        assert place.ledger is not None
        return replace(place, ledger=replace(place.ledger, without=why))

    def _lacks(self, session: S, place: WriteTarget) -> str:
        """Why the role cannot keep claims; "" = it can."""
        claims = self.claims(session, place)
        try:
            self.ensure(session, claims)
            with self.transaction(session):
                claims.probe()
        except TargetError as error:
            if isinstance(error, UntrustedClaimsError) or self.is_denied(error):
                return str(error)
            raise
        return ""

    def stored(self) -> Stored | None:
        return self.run(
            TargetError,
            "look",
            lambda session: self._stored_at(session, self.look(session)),
            begins=True,
        )

    def look_up(self, names: Sequence[str]) -> None:
        """As that of a reader."""

    def stored_in(self) -> Stored:
        """Where the tables of the target's schema are: see `stored.stored_in`."""
        return self.run(
            TargetError,
            "look",
            lambda session: stored_in(session, self.dialect, self.look(session).schema),
            begins=True,
        )

    def asks_reads(self, commit: CommitMode | None) -> bool:
        return commit != "job"  # staged rows are not read again

    def _stored_at(self, session: S, place: WriteTarget) -> Stored | None:
        table = place.table
        if table is None:
            return None
        is_view = getattr(table, "is_view", False)
        return stored_table(session, self.dialect, place.schema, place.name, is_view=is_view)

    def _commit_apart(
        self, session: S, place: WriteTarget, context: WriteContext
    ) -> tuple[CommitMode, Stored | None]:
        """The commit mode, which keeps the write's rows from its own source; and what a task must not read.

        Raises:
            OptionError: the source is the target, and the user or the role's rights leave only `task`.
        """
        commit = context.commit or self._usual_commit(session, place, context)
        target = self._stored_at(session, place) if commit == "task" and context.reads else None
        if target is None:
            return commit, None
        found = most_overlap(context.reads, target)
        if not context.reads_surely:
            found = min(found, Overlap.PERHAPS)
        if found is Overlap.NONE:
            return commit, None
        self._refuse_own_source(place, context, found)
        return commit, target

    def _refuse_own_source(self, place: WriteTarget, context: WriteContext, found: Overlap) -> None:
        """Refuse also a source that may be the target, if the write empties it. Tasks detect only rows they add."""
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
            else f"give the job what commit=job needs ({WAYS})"
            if not place.has_ledger
            else "set 'commit' to job, or omit it"
            if context.commit is not None
            else "omit what needs commit=task"
        )
        raise OptionError(
            f"{_OWN[found, context.reads_surely]} the target, table {place.label!r}: {why}. "
            f"To write into the table that is read, {asked}; or write into another table",
            option="commit",
            got="task",
            takes="job",
        )

    def _usual_commit(self, session: S, place: WriteTarget, context: WriteContext) -> CommitMode:
        """`default_commit`, as far as the role's rights allow it where the ledger is optional."""
        if not place.has_ledger:
            return "task"
        commit, options = self.default_commit(place, context), _ledger_options(self.options)
        if commit == "task" or context.stream is not None or options is None:
            return commit
        said = options.ledger == "optional" and lacking_to_stage(self.dialect, session, place)
        if not said:
            return commit
        _log.warning(
            "job %s: each task's rows stay in %s when the job fails (commit=task): for all rows or none, %s",
            context.job,
            place.label,
            said,
        )
        return "task"

    def default_commit(self, place: WriteTarget, context: WriteContext) -> CommitMode:
        """`job`, whatever the target holds; `task` only where it judges refused rows one by one."""
        tolerant = context.stream is None and self.options.tolerates_dirty_rows
        return "task" if tolerant else "job"

    def _take(
        self,
        session: S,
        claims: Claims,
        place: WriteTarget,
        context: WriteContext,
        then: Callable[[HeldClaim], None] | None = None,
    ) -> ClaimDecision:
        """Take the claim, in a short separate transaction, with what `then` does for a claim that was taken."""
        try:
            self.ensure(session, claims)
        except TargetError as error:
            if _ledger_options(self.options) is not None and self.is_denied(error):
                raise TargetError(f"{error}. {WAYS}") from error.__cause__
            raise
        for left in reversed(range(_TAKES)):
            try:
                with self.transaction(session):
                    taken = claims.take(
                        Identity.for_write(place.claimed, context),
                        context.job,
                        position=context.stream[1] if context.stream else None,
                        follows=context.follows,
                        resume=context.resume,
                    )
                    if taken.held is not None and then is not None:
                        then(taken.held)
                if sessions.is_due(("tidy", self.shown, place.schema, place.ledger)):
                    self._tidy(session, claims)
                return taken
            except TargetError as error:
                if not left or not self.is_conflict(error):
                    raise
        raise AssertionError("the last attempt returns or raises")

    def ensure(self, session: S, claims: Claims) -> None:
        """Make the tables of claims, unless they are there."""
        for left in reversed(range(_TAKES)):
            try:
                if not claims.exist():
                    with self.transaction(session):
                        claims.ensure()
                break
            except TargetError as error:
                if not left or not self.is_conflict(error):
                    raise
        if claims.lacks_index():
            with self._optional("its index of claims is not made"), self.transaction(session):
                claims.add_index()

    def _tidy(self, session: S, claims: Claims) -> None:
        with self._optional("its old claims stay for the next job"), self.transaction(session):
            claims.tidy(self.dialect.limited)

    @contextmanager
    def _optional(self, otherwise: str) -> Iterator[None]:
        """For what no write needs: another job may hold the rows, or the login lack the right."""
        try:
            yield
        except TargetError as error:
            _log.info("%s: %s: %s", self.shown, otherwise, error)

    def _end_overtaken(
        self, session: S, taken: ClaimDecision, place: WriteTarget, context: WriteContext
    ) -> None:
        if taken.overtaken is not None:
            owner = taken.overtaken.owner
            _log.warning(
                "job %s takes the claim on %s over from run %s", context.job, place.label, owner
            )
            self.end_sessions(session, owner)

    def committed(self, plan: WritePlan, task: int) -> Receipt | None:
        own = own_plan(plan)
        return self.run(
            TargetError,
            f"write {own.job}",
            lambda session: self.claims(session, own.place).task(own.claim, task),
        )

    def unfinished(self, context: WriteContext) -> PartialWrite | None:
        def ask(session: S) -> PartialWrite | None:
            place = self.placed(session)
            return self.claims(session, place).unfinished(place.claimed, context)

        return self.run(TargetError, f"prepare {context.job}", ask, begins=True)

    def stream_progress(self, stream: str) -> StreamProgress | None:
        return self.stream_or_target(stream)[0]

    def stream_or_target(self, stream: str) -> tuple[StreamProgress | None, bool | None]:
        def ask(session: S) -> tuple[StreamProgress | None, bool]:
            place = self.placed(session)
            known = self.claims(session, place).progress(place.claimed, stream)
            return known, place.table is not None

        return self.run(TargetError, "look", ask, begins=True)

    def forget_stream(self, stream: str) -> None:
        self._forget(stream, Claims.forget)

    def end_stream(self, stream: str) -> None:
        self._forget(stream, Claims.drop)

    def note_stream(self, stream: str, text: str) -> bool:
        self._forget(stream, lambda kept, target, name: kept.note(target, name, text))
        return True

    def stream_note(self, stream: str) -> StreamNote | None:
        def ask(session: S) -> StreamNote | None:
            place = self.placed(session)
            return self.claims(session, place).noted(place.claimed, stream)

        return self.run(TargetError, "look", ask, begins=True)

    def _forget(self, stream: str, forget: Callable[[Claims, str, str], None]) -> None:
        def forgotten(session: S) -> None:
            place = self.placed(session)
            with self.transaction(session):
                forget(self.claims(session, place), place.claimed, stream)

        self.run(TargetError, "forget", forgotten, begins=True)

    def kept_claims(self, names: Sequence[ClaimName] = ()) -> list[KeptClaim]:
        def ask(session: S) -> list[KeptClaim]:
            place = self.placed(session)
            return self.claims(session, place).kept(place.claimed)

        return self.run(TargetError, "look", ask, begins=True)

    def forget_claims(self, claims: Sequence[KeptClaim]) -> list[KeptClaim]:
        # In one order of keys: two of these, or one beside `tidy`, wait for each other and never in a circle.
        ordered = sorted(claims, key=lambda claim: claim.key)

        def forget(session: S) -> list[KeptClaim]:
            kept, done = self.claims(session, self.placed(session)), []
            if not kept.exist():
                return []
            for start in range(0, len(ordered), _AT_ONCE):
                with self.transaction(session):
                    done += [kept.forget_kept(each) for each in ordered[start : start + _AT_ONCE]]
            return [each for each in done if each is not None]

        return self.run(TargetError, "forget", forget, begins=True)

    def keep(self, plan: WritePlan, text: str) -> None:
        own = own_plan(plan)

        def keep(session: S) -> None:
            claims = self.claims(session, own.place)
            with self.transaction(session):
                claims.plans.make()
            with self.transaction(session):
                claims.fence(own.claim, exclusive=True)
                claims.plans.keep(own.claim.identity.key, text)

        self.run(TargetError, f"prepare {own.job}", keep)

    def heartbeat(self, plan: SqlPlan) -> None:
        show_life(self, plan)

    def settle(self, plan: SqlPlan, task: int) -> Receipt | None:
        return settle(self, plan, task)

    def abort(
        self, plan: WritePlan, receipts: Sequence[Receipt | None] | None
    ) -> Sequence[Receipt] | None:
        if plan.published_at is not None:
            return None
        own = own_plan(plan)
        return self.run(
            TargetError, f"abort {own.job}", lambda session: self._give_back(session, own)
        )

    def _give_back(
        self, session: S, plan: SqlPlan, overtaken: Claim | None = None
    ) -> list[Receipt]:
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
        return left

    def _drop_quietly(self, plan: SqlPlan) -> None:
        """After the write was overtaken."""
        try:
            self.run(
                TargetError, f"publish {plan.job}", lambda session: self.drop_staging(session, plan)
            )
        except TargetError as error:  # the rows are published all the same
            _log.warning("the staging %s* of job %s stays for now: %s", plan.stage, plan.job, error)

    def drop_staging(self, session: S, plan: SqlPlan) -> None:
        """Remove what the run staged. Safe twice, and while tasks still write."""
        for name in self.stages(session, plan.place, plan.stage):
            self.drop_stage(session, plan.place, name)

    def sweep(self, session: S, plan: SqlPlan) -> None:
        """Remove the staging of runs that were overtaken, have ended, or are known to be dead.

        It is in one place for all tables of a schema, so one table of a run does it for those that follow.
        """
        if not sessions.is_due(("sweep", self.shown, plan.place.staging)):
            return
        stages = self.stages(session, plan.place, plan.place.stage) if plan.place.has_ledger else []
        if not stages:
            return
        with self.transaction(session):
            orphans = self.claims(session, plan.place).orphans(stages, plan.claim)
        if orphans:  # a run that has just published removes its own
            there = self.stages(session, plan.place, plan.place.stage)
            orphans = [name for name in orphans if name in there]
        for name in orphans:
            _log.warning("removing orphaned staging %s", name)
            self.drop_stage(session, plan.place, name)

    # --- the port, by what a database implements ---

    def connect(self, failure: type[TargetError], purpose: str, *, patient: bool) -> S:
        return self.session(failure, purpose, patient=patient)

    def verdict(self, error: BaseException) -> Verdict:
        verdict = Verdict.OTHER
        if self.is_lost(error):
            verdict |= Verdict.LOST
        if self.is_conflict(error):
            verdict |= Verdict.CONFLICT
        if isinstance(error, TargetError) and self.is_denied(error):
            verdict |= Verdict.DENIED
        if self.is_refusal(error):
            verdict |= Verdict.REFUSED_ROW
        return verdict

    def count_on(self, session: S, plan: SqlPlan) -> None:
        """Run the plan's `numbers` in the transaction that publishes; one that is refused does not fail it."""

    # --- what a database implements ---

    @property
    @abstractmethod
    def shown(self) -> str:
        """The database, for messages."""

    @abstractmethod
    def session(self, failure: type[TargetError], purpose: str, *, patient: bool) -> S:
        """A new session, which raises `failure` for anything that the database refuses.

        `purpose` describes the session to the server. `patient`: the server was reached before, or may come back, so
        that a connector which waits for it by itself does.
        """

    @abstractmethod
    def is_lost(self, error: BaseException) -> bool:
        """Whether the connection was lost, or another transaction stood in the way: doing it again may help."""

    @abstractmethod
    def is_conflict(self, error: BaseException) -> bool:
        """Whether another transaction was first: a duplicate key or table, a deadlock, a failed serialization."""

    def is_denied(self, error: TargetError) -> bool:
        """Whether the role lacks a right."""
        return False

    @abstractmethod
    def look(self, session: S) -> WriteTarget:
        """The place that `dbtable` names, by the database's catalog in this session."""

    @abstractmethod
    def claim_dialect(self, session: S, place: WriteTarget) -> ClaimDialect:
        """The claims in the schema of `place`."""

    def end_sessions(self, session: S, run: str) -> None:
        """End the sessions in which tasks of an overtaken run write: one that hangs would keep its locks."""

    @abstractmethod
    def stages(self, session: S, place: WriteTarget, beginning: str) -> list[str]:
        """The names of staging tables (or directories) that begin so."""

    @abstractmethod
    def drop_stage(self, session: S, place: WriteTarget, name: str) -> None:
        """Drop one of `stages`, in a separate transaction. Safe twice."""


def _ledger_options(options: object) -> LedgerOptions | None:
    return options if isinstance(options, LedgerOptions) else None
