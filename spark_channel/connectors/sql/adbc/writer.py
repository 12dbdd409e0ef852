"""Writes a table through an ADBC driver: atomically (`commit=job`), or task by task (`commit=task`)."""

import hashlib
import logging
import secrets
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Any, ClassVar

import pyarrow as pa

from spark_channel.clock import utc_now
from spark_channel.connectors.contracts import (
    Receipt,
    Tally,
    TaskWriter,
    Unfinished,
    WriteContext,
    WritePlan,
    Writer,
)
from spark_channel.connectors.sql.adbc.merge import Merged, hold_unique, make_unique, placed
from spark_channel.connectors.sql.adbc.options import AdbcWriteOptions
from spark_channel.connectors.sql.adbc.plan import AdbcPlan
from spark_channel.connectors.sql.adbc.session import Session
from spark_channel.connectors.sql.adbc.tables import named, quoted, same_name, source_of
from spark_channel.connectors.sql.change_feed import OPERATION, row_fields
from spark_channel.connectors.sql.half_done import refuse_half_done, refuse_two_receipts, unfinished
from spark_channel.connectors.sql.kept import KEPT, KeptPlans
from spark_channel.connectors.sql.keys import merge_key
from spark_channel.connectors.sql.ledger import LEDGER, PREPARED, PUBLISHED, LedgerDialect, TableLedger
from spark_channel.connectors.sql.life import BEAT_SECONDS, ORPHAN_SECONDS, SignOfLife
from spark_channel.connectors.sql.marks import marked
from spark_channel.connectors.sql.nothing import NothingWriter
from spark_channel.connectors.sql.script import split_script
from spark_channel.errors import BatchRefusedError, CommitError, SchemaError, TargetError
from spark_channel.options import CommitMode, WriteOptions

__all__ = ["AdbcWriter"]

_log = logging.getLogger(__name__)
_PREFIX = "spark_channel_stage_"


class AdbcWriter(Writer):
    """Rows are ingested by the driver. A database must have transactions, also for CREATE TABLE of staging."""

    Options: ClassVar[type[WriteOptions]] = AdbcWriteOptions
    options: AdbcWriteOptions

    def __init__(self, options: AdbcWriteOptions) -> None:
        super().__init__(options)
        self._dialect = options.sql_dialect()

    def prepare(self, context: WriteContext, schema: pa.Schema) -> AdbcPlan:
        split_script(self.options.pre_sql, "preSql", self._dialect)
        split_script(self.options.post_sql, "postSql", self._dialect)
        table_schema, table = named(self.options.dbtable, self._dialect)
        if table == LEDGER:
            raise TargetError(f"{LEDGER} is the ledger; name another table")
        with self.session(TargetError) as session:
            _hold_own(session.table_schema(table_schema, LEDGER), self.options.driver)
            there = session.table_schema(table_schema, table)
            names = self._names(there, schema)
            plan = AdbcPlan(
                job=context.job,
                schema=schema,
                commit=context.commit or self._default_commit(there is not None, context),
                overwrite=context.overwrite,
                batch=context.batch,
                txn=context.txn,
                table_schema=table_schema,
                table=table,
                names=names,
                key=self._key(there is not None, names),
                staging=_staging(context.job, context.batch),
            )
            ledger = self.ledger(session, plan)
            published_at = ledger.published_at(context)
            if published_at is not None:
                return AdbcPlan(**{**vars(plan), "published_at": published_at})
            refuse_half_done(ledger, context)
            if plan.key and there is not None:
                hold_unique(session, plan, self._dialect)
            ledger.create()
            self._clear_orphans(session, plan)
            if ledger.entry(plan, PREPARED) is None:
                if plan.commit == "task" and not ledger.tasks(plan):  # an abort takes back the row alone
                    self._make_ready(session, plan)
                ledger.add(plan, PREPARED)
            else:
                self._note_life(session, plan)
            session.commit()
        return plan

    def open(self, plan: WritePlan, task: int, attempt: int) -> TaskWriter:
        own = _own(plan)
        if own.published_at is not None:
            return NothingWriter(Receipt(task, attempt, rows=0, nbytes=0))
        return _Attempt(self, own, task, attempt)

    def committed(self, plan: WritePlan, task: int) -> Receipt | None:
        own = _own(plan)
        with self.session(TargetError) as session:
            done = self.ledger(session, own).entry(own, task)
        return None if done is None else Receipt(task, done.attempt, done.rows, done.nbytes)

    def unfinished(self, context: WriteContext) -> Unfinished | None:
        table_schema, table = named(self.options.dbtable, self._dialect)
        empty = pa.schema([])
        place = AdbcPlan(context.job, empty, "task", table_schema=table_schema, table=table)
        with self.session(TargetError) as session:
            return unfinished(self.ledger(session, place), context)

    def keep(self, plan: WritePlan, text: str) -> None:
        with self.session(TargetError) as session:
            self.ledger(session, _own(plan)).plans.keep(plan.job, text)
            session.commit()

    def commit(self, plan: WritePlan, receipts: Sequence[Receipt]) -> None:
        own = _own(plan)
        if own.published_at is not None:
            return
        refuse_two_receipts(receipts)
        try:
            with self.session(CommitError) as session:
                self._publish(session, own, receipts)
                self._drop(session, own.table_schema, own.staging)
        except TargetError as error:
            raise CommitError(f"{error}. {_standing(own)}") from error

    def abort(self, plan: WritePlan, receipts: Sequence[Receipt | None] | None) -> None:
        own = _own(plan)
        if own.published_at is not None:
            return
        with self.session(TargetError) as session:
            ledger = self.ledger(session, own)
            if ledger.entry(own, PUBLISHED) is None and ledger.exists():
                # a task that still runs finds its job gone
                keys = self._marks(
                    f"DELETE FROM {ledger_table(own, self._dialect)} WHERE job = ? AND batch = ? AND task = ?"  # noqa: S608
                )
                session.rows(keys, (own.job, -1 if own.batch is None else own.batch, PREPARED))
                session.commit()
                done = ledger.tasks(own)
                if not done:
                    ledger.plans.drop(own.job)
                    session.commit()
                else:
                    _log.warning(
                        "job %s was aborted after %d of its tasks had committed their rows (commit=task): they stay "
                        "in table %s, and ledger %s names them",
                        own.job, len(done), own.label, LEDGER,
                    )  # fmt: skip
            session.rollback()
            self._drop(session, own.table_schema, own.staging)

    def show_life(self, plan: AdbcPlan) -> None:
        """On a connection of its own: the time in the row of the job, by which its staging is told from an orphan's."""
        with self.session(TargetError) as session:
            self._note_life(session, plan)
            session.commit()

    def _note_life(self, session: Session, plan: AdbcPlan) -> None:
        update = self._marks(
            f"UPDATE {ledger_table(plan, self._dialect)} SET published_at = ? WHERE job = ? AND batch = ? AND task = ?"  # noqa: S608
        )
        session.rows(update, (_moment(), plan.job, -1 if plan.batch is None else plan.batch, PREPARED))

    def session(self, failure: type[TargetError]) -> Session:
        return Session(self.options, failure)

    def _default_commit(self, there: bool, context: WriteContext) -> CommitMode:
        append = there and not context.overwrite and self.options.write_mode == "insert"
        return "task" if append or self.options.tolerates_dirty_rows else "job"

    def _names(self, there: pa.Schema | None, schema: pa.Schema) -> tuple[str, ...]:
        feed = self.options.write_mode == "apply"
        if feed:
            row_fields(schema)
        if there is None:
            if not self.options.create_table:
                raise TargetError(f"there is no table {self.options.dbtable!r}, and 'createTable' is false")
            return tuple(schema.names)
        found = []
        for name in schema.names:
            known = name if feed and name == OPERATION else same_name(name, there.names)
            if known is None:
                raise SchemaError(
                    f"column {name!r} is not in table {self.options.dbtable!r}, which has {', '.join(there.names)}"
                )
            found.append(known)
        return tuple(found)

    def _key(self, there: bool, names: tuple[str, ...]) -> tuple[str, ...]:
        rows = [name for name in names if self.options.write_mode != "apply" or name != OPERATION]
        return merge_key(self.options, rows, same_name, self.options.dbtable, () if there else None)

    def ledger(self, session: Session, plan: AdbcPlan) -> "AdbcLedger":
        return AdbcLedger(session, plan, self._dialect)

    def _marks(self, sql: str) -> str:
        return marked(sql, lambda number: _mark(number, self._dialect))

    def place(self, plan: AdbcPlan, name: str | None = None) -> str:
        return source_of(plan.table_schema, name or plan.table).expression.sql(self._dialect or None)

    def _make_ready(self, session: Session, plan: AdbcPlan) -> None:
        """The table is there, and empty for an overwrite; `preSql` has run."""
        for statement in split_script(self.options.pre_sql, "preSql", self._dialect):
            session.rows(statement)
        there = self._exists(session, plan.table_schema, plan.table)
        if not there:
            fields = [f.with_name(n) for f, n in zip(plan.schema, plan.names, strict=True)]
            if self.options.write_mode == "apply":
                fields = [field for field in fields if field.name != OPERATION]
            session.ingest(plan.table_schema, plan.table, pa.schema(fields).empty_table(), "create")
            if plan.key:
                make_unique(session, plan, self._dialect)
        elif plan.overwrite:
            session.rows(f"DELETE FROM {self.place(plan)}")  # noqa: S608 - a quoted name

    def _exists(self, session: Session, schema: str | None, name: str) -> bool:
        """Without ending the transaction."""
        return name in session.tables(schema, name)

    def _publish(self, session: Session, plan: AdbcPlan, receipts: Sequence[Receipt]) -> None:
        ledger = self.ledger(session, plan)
        if ledger.published_at(plan) is not None:
            session.rollback()
            return
        if plan.commit == "job":
            self._make_ready(session, plan)
            self._insert_staged(session, plan, receipts)
        else:
            missing = {receipt.task for receipt in receipts} - ledger.tasks(plan)
            if missing:
                raise CommitError(f"the ledger has no row of task {min(missing)}, which has a receipt")
        for statement in split_script(self.options.post_sql, "postSql", self._dialect):
            session.rows(statement)
        rows, nbytes = sum(each.rows for each in receipts), sum(each.nbytes for each in receipts)
        ledger.prune()
        ledger.add(plan, PUBLISHED, rows=rows, nbytes=nbytes)
        if plan.commit == "task":
            ledger.plans.drop(plan.job)
        session.commit()

    def _insert_staged(self, session: Session, plan: AdbcPlan, receipts: Sequence[Receipt]) -> None:
        listed = ", ".join(quoted(name, self._dialect) for name in plan.names)
        merged = self.merged(session, plan) if plan.key else None
        before = 0
        for receipt in sorted(receipts, key=lambda each: each.task):
            stage = receipt.details.get("table")
            if stage is None:
                continue
            place = self.place(plan, stage)
            staged = int(session.value(f"SELECT COUNT(*) FROM {place}"))  # noqa: S608 - a quoted name
            if staged != receipt.rows:
                raise CommitError(
                    f"{staged} rows of task {receipt.task} are staged instead of {receipt.rows}"
                )
            if merged is not None:
                merged.add(place, before)
            else:
                session.rows(f"INSERT INTO {self.place(plan)} ({listed}) SELECT {listed} FROM {place}")  # noqa: S608
            before += staged
        if merged is not None:
            merged.merge()

    def merged(self, session: Session, plan: AdbcPlan, rows: pa.Table | None = None) -> Merged:
        """A staging table for the rows of all tasks, or of one."""
        name = f"{plan.staging}merged_{secrets.token_hex(2)}"
        if rows is None:
            fields = [f.with_name(n) for f, n in zip(plan.schema, plan.names, strict=True)]
            rows = pa.schema(fields).empty_table()
        session.ingest(plan.table_schema, name, placed(rows, 0), "create")
        return Merged(session, plan, self.options, name, self._dialect)

    def _clear_orphans(self, session: Session, plan: AdbcPlan) -> None:
        """Staging of jobs that showed no life for long, or that the ledger does not know."""
        names = session.tables(plan.table_schema, _PREFIX)
        if not names:
            return
        live = session.rows(
            self._marks(
                f"SELECT job, batch FROM {ledger_table(plan, self._dialect)} WHERE published_at >= ?"  # noqa: S608 - a quoted name
            ),
            (_moment(ORPHAN_SECONDS),),
        )
        kept = {_staging(str(job), None if int(batch) == -1 else int(batch)) for job, batch in live} | {
            plan.staging
        }
        for name in names:
            if name[: len(plan.staging)] not in kept:
                session.rows(f"DROP TABLE {self.place(plan, name)}")
                _log.warning("removed %s, which a job that is gone left behind", name)

    def _drop(self, session: Session, schema: str | None, beginning: str) -> None:
        for name in session.tables(schema, beginning):
            session.rows(
                f"DROP TABLE IF EXISTS {source_of(schema, name).expression.sql(self._dialect or None)}"
            )
        session.commit()


class AdbcLedger(TableLedger):
    """The ledger in the target's schema; whether it is there is asked of the driver."""

    def __init__(self, session: Session, plan: AdbcPlan, dialect: str) -> None:
        table = ledger_table(plan, dialect)
        types = (
            "job VARCHAR(200) NOT NULL, batch BIGINT NOT NULL, task BIGINT NOT NULL, attempt BIGINT NOT NULL, "
            "table_name VARCHAR(200) NOT NULL, txn_app_id VARCHAR(500), txn_version BIGINT, row_count BIGINT NOT NULL, "
            "byte_count BIGINT NOT NULL, published_at VARCHAR(32) NOT NULL, PRIMARY KEY (job, batch, task)"
        )
        before = _moment(30 * 86_400.0)
        super().__init__(
            session,
            plan.label,
            LedgerDialect(
                table=table,
                create=(f"CREATE TABLE IF NOT EXISTS {table} ({types})",),
                exists="",
                kept=source_of(plan.table_schema, KEPT).expression.sql(dialect or None),
                kept_exists="",
                prune=f"DELETE FROM {table} WHERE txn_app_id IS NULL AND published_at < '{before}'",  # noqa: S608
                mark=lambda number: _mark(number, dialect),
            ),
        )
        self._plan, self._adbc = plan, session

    @property
    def plans(self) -> KeptPlans:
        def exists() -> bool:
            return KEPT in self._adbc.tables(self._plan.table_schema, KEPT)

        return KeptPlans(self._dialect.kept, self._run, exists)

    def exists(self) -> bool:
        self._there = self._there or LEDGER in self._adbc.tables(self._plan.table_schema, LEDGER)
        return self._there


class _Attempt(TaskWriter):
    """`commit=job` commits batches into a staging table; `commit=task` buffers, and ingests everything with the
    ledger's row in one transaction at the end, so that no lock is held meanwhile. With `tolerant` that transaction
    is open from the first row on, and each batch is judged by the target under a savepoint.
    """

    def __init__(self, writer: AdbcWriter, plan: AdbcPlan, task: int, attempt: int) -> None:
        self._writer, self._plan, self._task, self._attempt = writer, plan, task, attempt
        self._stage: str | None = None
        self._buffer: list[pa.RecordBatch] = []
        self._tally = Tally(task, attempt)
        self._judging = False
        self._life: SignOfLife | None = None
        self._session: Any = writer.session(TargetError)
        try:
            self._check()
            if plan.commit == "job":
                self._life = SignOfLife(partial(writer.show_life, plan))
        except BaseException:
            self.rollback()
            raise

    def write(self, batch: pa.RecordBatch) -> None:
        self._tally.hold_open()
        if batch.num_rows:
            renamed = batch.rename_columns(list(self._plan.names))
            if self.tolerant:
                self._judge(renamed)
            else:
                self._buffer.append(renamed)
        self._tally.add(batch)
        if (
            self._plan.commit == "job"
            and sum(each.num_rows for each in self._buffer) >= self._writer.options.batch_size
        ):
            self._send()

    def flush(self) -> None:
        self._tally.hold_open()
        if self._plan.commit == "job":
            self._send()

    def close(self) -> Receipt:
        self._tally.hold_open()
        if self._plan.commit == "job":
            self._send()
            self._check()
            self._end()
            return Receipt(
                self._task, self._attempt, self._tally.rows, self._tally.nbytes, {"table": self._stage}
            )
        receipt = self._publish()
        self._end()
        return receipt

    def rollback(self) -> None:
        self._tally.ended = True
        if self._life is not None:
            self._life.end()
        session, self._session = self._session, None
        if session is None:
            return
        try:
            session.rollback()
            if self._stage is not None and self._stage in session.tables(
                self._plan.table_schema, self._stage
            ):
                session.rows(f"DROP TABLE {self._writer.place(self._plan, self._stage)}")
                session.commit()
        except TargetError:
            pass  # the database is away: the job's end removes the table
        finally:
            session.close()

    def _end(self) -> None:
        self._tally.ended = True
        if self._life is not None:
            self._life.end()
        self._session.close()
        self._session = None

    def _check(self) -> None:
        """The job lives: its row in the ledger is there, and it is not published."""
        ledger = self._writer.ledger(self._session, self._plan)
        prepared = ledger.entry(self._plan, PREPARED)
        gone = prepared is None or ledger.entry(self._plan, PUBLISHED) is not None
        if not self._judging:
            self._session.rollback()
        if prepared is None or gone:
            raise TargetError(f"job {self._plan.job!r} was published or aborted without this attempt")
        if self._plan.commit == "job" and prepared.published_at < _moment(BEAT_SECONDS):
            self._show_life()

    def _show_life(self) -> None:
        try:
            self._writer.show_life(self._plan)
        except TargetError as error:
            _log.warning("task %d could not note that its job lives: %s", self._task, error)

    def _send(self) -> None:
        if not self._buffer:
            return
        rows = pa.Table.from_batches(self._buffer)
        self._buffer = []
        if self._plan.key:
            rows = placed(rows, self._tally.rows - rows.num_rows)
        new = self._stage is None
        if self._stage is None:
            self._check()
            self._stage = f"{self._plan.staging}{self._task}_{self._attempt}_{secrets.token_hex(2)}"
        self._session.ingest(self._plan.table_schema, self._stage, rows, "create" if new else "append")
        self._session.commit()

    def _judge(self, batch: pa.RecordBatch) -> None:
        self._judging = True
        self._session.rows("SAVEPOINT spark_channel_batch")
        try:
            self._session.ingest(self._plan.table_schema, self._plan.table, batch, "append")
        except TargetError as error:
            try:
                self._session.rows("ROLLBACK TO SAVEPOINT spark_channel_batch")
            except TargetError:
                raise TargetError(
                    f"{error}. ADBC driver {self._session.name} cannot take back a refused batch, so option "
                    "'maxDirtyRows' cannot be kept with it: use the database's own connector"
                ) from None
            raise BatchRefusedError(str(error)) from None

    def _publish(self) -> Receipt:
        plan, session = self._plan, self._session
        ledger = self._writer.ledger(session, plan)
        done = ledger.entry(plan, self._task)
        if done is not None:
            session.rollback()
            return Receipt(self._task, done.attempt, done.rows, done.nbytes)
        self._check()
        if self._buffer:
            rows = pa.Table.from_batches(self._buffer)
            if plan.key:
                self._writer.merged(session, plan, rows).merge()
            else:
                session.ingest(plan.table_schema, plan.table, rows, "append")
        ledger.add(plan, self._task, attempt=self._attempt, rows=self._tally.rows, nbytes=self._tally.nbytes)
        session.commit()
        return Receipt(self._task, self._attempt, self._tally.rows, self._tally.nbytes)


def ledger_table(plan: AdbcPlan, dialect: str) -> str:
    return source_of(plan.table_schema, LEDGER).expression.sql(dialect or None)


def _hold_own(ledger: pa.Schema | None, driver: str) -> None:
    """Hold the ledger that is there to be one of this connector's.

    Raises:
        TargetError: a database's own connector made it, with types of its own.
    """
    if ledger is not None and pa.types.is_timestamp(ledger.field("published_at").type):
        raise TargetError(
            f"{LEDGER} beside the table was made by the database's own connector, and keeps its times in another type "
            f"than those of ADBC driver {driver}: write with that connector, or into another schema"
        )


def _moment(seconds_ago: float = 0.0) -> str:
    return (utc_now() - timedelta(seconds=seconds_ago)).isoformat(timespec="seconds").replace("+00:00", "Z")


def _mark(number: int, dialect: str) -> str:
    return f"${number}" if dialect in ("postgres", "redshift") else "?"


def _staging(job: str, batch: int | None) -> str:
    digest = hashlib.sha256(f"{job}\0{batch}".encode()).hexdigest()
    return f"{_PREFIX}{digest[:16]}_"


def _standing(plan: AdbcPlan) -> str:
    if plan.commit == "task":
        return f"The rows of the tasks that committed stand in table {plan.label!r}"
    return f"Nothing of this job stands in table {plan.label!r}: its transaction was rolled back"


def _own(plan: WritePlan) -> AdbcPlan:
    assert isinstance(plan, AdbcPlan)
    return plan
