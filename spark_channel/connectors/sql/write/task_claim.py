"""The run's claim, as one attempt of a task sees it: whether another attempt was first, the fence, the note, COMMIT."""

import secrets
from typing import Generic

from spark_channel.connectors.base.contract import Receipt, RowTally
from spark_channel.connectors.sql.catalog import Declared, Table
from spark_channel.connectors.sql.session import S
from spark_channel.connectors.sql.write.checks import check_planned, check_written
from spark_channel.connectors.sql.write.claims import Claims
from spark_channel.connectors.sql.write.in_session import (
    claims_at,
    in_session,
    note_published,
    settle,
)
from spark_channel.connectors.sql.write.plan import SqlPlan
from spark_channel.connectors.sql.write.sessions import Verdict, WriteSessions
from spark_channel.errors import TargetError

__all__ = ["TaskClaim"]


class TaskClaim(Generic[S]):
    """What an attempt asks and notes beside the claim, each in the session that it is given."""

    def __init__(self, database: WriteSessions[S], plan: SqlPlan, task: int, attempt: int) -> None:
        self._database = database
        self.plan, self.task, self.attempt = plan, task, attempt
        self.tally = RowTally(task, attempt)
        self.mark = secrets.randbits(62)
        """Says which staged rows are this attempt's: a driver that begins a job again counts attempts anew."""
        self.done: Receipt | None = None
        """The receipt of the attempt that has committed the task's rows: this one's are then dropped."""

    def new_stage(self) -> str:
        """The name of a staging table of this attempt alone."""
        return f"{self.plan.stage}{self.task}_{self.attempt}_{secrets.token_hex(2)}"

    def is_done(self, session: S) -> bool:
        """Whether an attempt has committed these rows; `done` is its receipt.

        A job in one pass has them when its write is published.
        """
        claims = self._claims(session)
        plan, task = self.plan, self.task
        self.done = (
            claims.own_publication(plan.claim, task)
            if plan.one_pass
            else claims.task(plan.claim, task)
        )
        return self.done is not None

    def check(self, session: S) -> None:
        """Check that the claim is this run's: one that was overtaken need not go on.

        Raises:
            SupersededError: it is another run's.
        """
        self._claims(session).peek(self.plan.claim)

    def show_life(self, session: S) -> None:
        """`check`, and say that the run lives."""
        claims = self._claims(session)
        claims.show_life(self.plan.claim, claims.peek(self.plan.claim))

    def fence(self, session: S, *, shows_life: bool = False) -> None:
        """Hold the claim until the transaction ends: no run takes over before.

        Raises:
            SupersededError: another run has.
        """
        claims = self._claims(session)
        claim = claims.fence(self.plan.claim)
        if shows_life:
            claims.show_life(self.plan.claim, claim)

    def hold_table(self, session: S) -> None:
        """In one pass: what empties the table waits for this transaction."""
        self._claims(session).keep_table(self.plan.claim)

    def planned_table(self, session: S) -> Table:
        """The table, which is as the plan found it: rows that are in it keep its definition until the transaction ends.

        Raises:
            TargetError: it was dropped, altered or made again.
        """
        target, dialect = self.plan.target, self._database.dialect
        table = dialect.find_table(session, target.sql)
        check_planned(dialect, target, table)
        assert table is not None
        return table

    def columns(self, session: S) -> Declared:
        """The table's columns as they are now, for `check_columns`."""
        target = self.plan.target
        # Of those that are not declared nothing is known.
        return self._database.dialect.find_columns(session, target) if target.declared else ()

    def check_columns(self, columns: Declared) -> None:
        """Check that the columns that are written are as the plan found them.

        Raises:
            TargetError: the table was dropped, or one of them altered.
        """
        if self.plan.target.declared:
            check_written(self._database.dialect, self.plan.target, columns)

    def note(self, session: S, *, asks_again: bool = False) -> bool:
        """Fence, and note the task beside the claim, before COMMIT. False: another attempt has committed, see `done`.

        The task's rows are in the table, and hold its definition, which is looked at here: before them, an ALTER that
        they wait for is not seen, and the server would round values to the new type.

        `asks_again`: the database may take a second note of one task.

        Raises:
            SupersededError: the claim is another run's. TargetError: the table was dropped or altered.
        """
        if self.plan.one_pass:
            return self._publish(session)
        claims, query = self._claims(session), ""
        if self.tally.rows and self.plan.place.has_ledger:
            query = self._database.dialect.columns_query(self.plan.target)
        try:
            # First: from here on no run takes over, so that what is noted is this run's.
            claims.fence(self.plan.claim)
            if asks_again and self.is_done(session):
                session.undo()
                return False
            columns = tuple(claims.add_task(self.plan.claim, self._receipt, then=query))
        except TargetError as error:
            if Verdict.CONFLICT not in self._database.verdict(error):
                raise
            session.undo()
            if not self.is_done(session):
                raise
            return False
        if self.tally.rows:
            self.check_columns(columns if query else self.columns(session))
        return True

    def _publish(self, session: S) -> bool:
        """In one pass the note of the task is that of the whole write."""
        # First: the rows are in a table that is still as planned, and stays so until COMMIT.
        self.planned_table(session)
        claims = self._claims(session)
        if not claims.begin_publish(self.plan.claim):
            session.undo()
            if not self.is_done(session):
                self.check(session)  # raises: another run has published
            return False
        note_published(self._database, session, self.plan, claims, [self._receipt])
        return True

    def commit(self, session: S) -> None:
        """COMMIT. Without an answer: `done` is the receipt with which the task committed.

        Raises:
            TargetError: it did not commit.
        """
        try:
            session.commit()
        except Exception as error:  # what a lost connection raises need not be a TargetError
            verdict = self._database.verdict(error)
            if Verdict.LOST not in verdict or Verdict.CONFLICT in verdict:
                raise
            session.close()
            if not self.settle():
                raise

    def settle(self) -> bool:
        """Ask another session, after the connection was lost; whether the task has committed, see `done`.

        Raises:
            SupersededError: it has not, and another run took over.
        """
        self.done = settle(self._database, self.plan, self.task)
        return self.done is not None

    def settle_lost_rows(self) -> bool:
        """Ask another session, after the connection was lost before COMMIT; whether another attempt has committed.

        Raises:
            SupersededError: another run took over: what its attempts committed is not this run's.
        """
        if self.plan.one_pass:
            return self.settle()

        def ask(session: S) -> None:
            self.fence(session, shows_life=True)
            self.is_done(session)

        in_session(self._database, TargetError, f"write {self.plan.job}", ask)
        return self.done is not None

    @property
    def _receipt(self) -> Receipt:
        tally = self.tally
        return Receipt(tally.task, tally.attempt, tally.rows, tally.nbytes)

    def _claims(self, session: S) -> Claims:
        return claims_at(self._database, session, self.plan.place)
