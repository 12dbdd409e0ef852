"""Writing a database that is one file: rows are staged beside it, and inserted on the driver's host.

A file that is not there yet has nowhere to keep a claim. With `commit=job` it is made whole, with the claim and the
rows in it, under another name, and gets its own by a link, which fails when another job was first: then the rows are
published into that file as into any other. A job that fails leaves no file, and removes none that others use.
"""

import hashlib
import os
import secrets
import shutil
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from spark_channel.connectors.base.claims import HeldClaim, Identity, StreamNote, StreamProgress
from spark_channel.connectors.base.contract import PartialWrite, Receipt, WriteContext, WritePlan
from spark_channel.connectors.base.definition import TableDefinition
from spark_channel.connectors.base.kept_claims import ClaimName, KeptClaim
from spark_channel.connectors.base.stored import Stored
from spark_channel.connectors.sql.catalog import Table
from spark_channel.connectors.sql.definition import NewTable
from spark_channel.connectors.sql.options import FileWriteOptions
from spark_channel.connectors.sql.session import S
from spark_channel.connectors.sql.write.claim_tables import STAGE, stage_prefix
from spark_channel.connectors.sql.write.claims import Claims
from spark_channel.connectors.sql.write.file_loading import FileStaging
from spark_channel.connectors.sql.write.file_staging import (
    StagedFile,
    Staging,
    stages_beside,
    target_errors,
)
from spark_channel.connectors.sql.write.plan import SqlPlan, WriteTarget
from spark_channel.connectors.sql.write.publish import refuse_two_receipts
from spark_channel.connectors.sql.write.task_claim import TaskClaim
from spark_channel.connectors.sql.write.writer import SqlWriter
from spark_channel.errors import CommitError, SupersededError, TargetError
from spark_channel.final_errors import of_input
from spark_channel.plain_text import log_of

__all__ = [
    "FilePlan",
    "FileWriter",
    "file_plan",
]


_log = log_of(__name__)
_NOT_TAKEN = 0
"""The epoch of a claim that is taken when the file is made."""


@dataclass(frozen=True)
class FilePlan(SqlPlan):
    """`token` proves that a task sees `staging`, a directory on the driver's disk."""

    staging: str = ""
    token: str = ""

    @property
    def stage(self) -> str:
        """Before the file exists, no claim distinguishes the runs of one write: their names do."""
        beginning = stage_prefix(self.claim)
        if self.claim.epoch != _NOT_TAKEN:
            return beginning
        return f"{beginning}{hashlib.sha256(self.claim.owner.encode()).hexdigest()[:16]}_"


class FileWriter(SqlWriter[S]):
    """The writer that SQLite and DuckDB share. `path` is the database, `beside` its other files during a write."""

    beside: ClassVar[str]

    options: FileWriteOptions

    def __init__(self, options: FileWriteOptions) -> None:
        super().__init__(options)
        self.path: Path = options.file

    def check(self, context: WriteContext) -> None:
        super().check(context)
        if self.path.exists():
            self.check_file()
        _check_writable(self.path, self.dialect.product, self.beside)

    def free_connections(self) -> None:
        """A file has no bound, and is not made to ask."""

    def place(self, schema: str, name: str, table: Table | None = None) -> WriteTarget:
        label = name if schema.lower() == "main" else f"{schema}.{name}"
        return WriteTarget(schema, name, label, table, folds=True)

    def make_ready(
        self, session: S, plan: SqlPlan, place: WriteTarget, context: WriteContext, *, first: bool
    ) -> SqlPlan:
        return self._staged(super().make_ready(session, plan, place, context, first=first))

    def new_table(
        self,
        session: S | None,
        place: WriteTarget,
        definition: TableDefinition,
        rows: pa.Schema,
        *,
        is_full: bool,
    ) -> NewTable:
        plain = partial(super().new_table, session, place, definition, rows)
        if not (is_full and definition.statement and definition.system == self.dialect.sql):
            return plain(is_full=is_full)
        found = self.tried(session, place, definition, rows)
        if isinstance(found, NewTable):
            return found
        made = plain(is_full=True)
        return replace(made, left_out=(f"what only CREATE TABLE says: {found}", *made.left_out))

    @abstractmethod
    def tried(
        self, session: S | None, place: WriteTarget, definition: TableDefinition, rows: pa.Schema
    ) -> NewTable | str:
        """The new table by its source's own CREATE TABLE, which was tried elsewhere; or why it cannot be used."""

    @property
    def shown(self) -> str:
        return str(self.path)

    def exists(self) -> bool | None:
        return self.path.exists() and super().exists()

    def stored_in(self) -> Stored:
        if self.path.exists():
            return super().stored_in()
        return Stored(self.dialect.sql, frozenset(), frozenset())  # a look would make the file

    def foreign_content(self, schema: pa.Schema) -> str:
        return super().foreign_content(schema) if self.path.exists() else ""

    def existing_rows(self) -> int | None:
        return super().existing_rows() if self.path.exists() else 0

    def rehearse(self, context: WriteContext, schema: pa.Schema) -> None:
        if self.path.exists():
            super().rehearse(context, schema)
            return
        self.check(context)
        place = self.place(*self.new_place(None))
        self._check_place(place)
        plan = SqlPlan(context.job, schema, "job", place=place)
        self.plan(None, self.with_definition(None, plan, place, context), place, context)

    def prepare(self, context: WriteContext, schema: pa.Schema) -> WritePlan:
        self.check(context)
        if self.path.exists() or context.commit == "task":
            return super().prepare(context, schema)
        place = self.place(*self.new_place(None))
        self._check_place(place)
        position = context.stream[1] if context.stream else None
        identity = Identity.for_write(place.claimed, context)
        held = HeldClaim(identity, context.job, _NOT_TAKEN, position, follows=context.follows)
        plan = SqlPlan(
            context.job, schema, "job", context.overwrite, context.txn, held=held, place=place
        )
        plan = self.with_definition(None, plan, place, context)
        self.leave_builds(plan, place)
        own = self.plan(None, plan, place, context)
        for name in stages_beside(self.path):
            self._remove_if_dead(name)
        return self._staged(own)

    def commit(self, plan: WritePlan, receipts: Sequence[Receipt]) -> bool | None:
        if plan.held is not None and plan.held.epoch == _NOT_TAKEN and plan.published_at is None:
            own = file_plan(plan)
            refuse_two_receipts(receipts)
            if self._make_file(own, receipts):
                self._drop_quietly(own)
                return True
            return self._commit_late(own, receipts)
        return super().commit(plan, receipts)

    def _commit_late(self, plan: FilePlan, receipts: Sequence[Receipt]) -> bool | None:
        """Publish into the file that another job has made meanwhile; the rows are staged as before there was one."""
        late = plan
        try:
            late = self._take_late(plan)
            added = super().commit(late, receipts)
        except SupersededError:
            self._drop_quietly(plan)
            raise
        except TargetError:
            if late is not plan:
                self._abort_late(late)  # `abort` is given a plan that holds no claim
            raise
        self._drop_quietly(plan)
        return added

    def _abort_late(self, late: FilePlan) -> None:
        try:
            super().abort(late, None)
        except TargetError as error:  # why the commit failed is what counts
            _log.warning(
                "job %s keeps its claim on %s for now: %s", late.job, late.place.label, error
            )

    def unfinished(self, context: WriteContext) -> PartialWrite | None:
        return super().unfinished(context) if self.path.exists() else None

    def stream_or_target(self, stream: str) -> tuple[StreamProgress | None, bool | None]:
        return super().stream_or_target(stream) if self.path.exists() else (None, False)

    def stream_note(self, stream: str) -> StreamNote | None:
        return super().stream_note(stream) if self.path.exists() else None

    def forget_stream(self, stream: str) -> None:
        if self.path.exists():
            super().forget_stream(stream)

    def kept_claims(self, names: Sequence[ClaimName] = ()) -> list[KeptClaim]:
        return super().kept_claims(names) if self.path.exists() else []

    def forget_claims(self, claims: Sequence[KeptClaim]) -> list[KeptClaim]:
        return super().forget_claims(claims) if self.path.exists() else []

    def end_stream(self, stream: str) -> None:
        if self.path.exists():
            super().end_stream(stream)

    def staging_of(
        self, claim: TaskClaim[S], encode: Callable[[pa.RecordBatch, int], pa.RecordBatch]
    ) -> FileStaging:
        """Where an attempt stages its rows, as `encode` makes them."""
        plan = file_plan(claim.plan)
        when_gone = partial(self.check_claim, plan)
        return FileStaging(
            StagedFile(plan.staging, plan.token, claim.task, claim.attempt, when_gone=when_gone),
            encode,
        )

    def check_claim(self, plan: FilePlan) -> None:
        """Raise the reason why the staging of a task was removed, if the database knows it.

        Raises:
            SupersededError: another run took over, or has published.
        """
        if plan.claim.epoch == _NOT_TAKEN or not self.path.exists():
            return
        with self.open_file(self.path, TargetError) as session, self.transaction(session):
            self.claims(session, plan.place).fence(plan.claim)

    def sweep(self, session: S, plan: SqlPlan) -> None:
        names = stages_beside(self.path)
        orphans = names
        if names:
            with self.transaction(session):
                orphans = self.claims(session, plan.place).orphans(
                    names, plan.claim, beat_of=self._beat
                )
        for name in orphans:
            if name.startswith(STAGE) and f"_{_NOT_TAKEN}_" not in name.removeprefix(STAGE):
                self._remove(name)
            else:  # without a claim: the directory itself shows whether its run lives
                self._remove_if_dead(name)

    def plan(
        self, session: S | None, plan: SqlPlan, place: WriteTarget, context: WriteContext
    ) -> SqlPlan:
        return FilePlan(**{**vars(plan), "target": self.target(plan, place)})

    def make_staging(
        self, session: S, plan: SqlPlan, place: WriteTarget, context: WriteContext
    ) -> SqlPlan:
        return self._staged(plan)

    def stages(self, session: S | None, place: WriteTarget, beginning: str) -> list[str]:
        return [name for name in stages_beside(self.path) if name.startswith(beginning)]

    def drop_staging(self, session: S | None, plan: SqlPlan) -> None:
        for name in self.stages(session, plan.place, plan.stage):
            self.drop_stage(session, plan.place, name)

    def drop_stage(self, session: S | None, place: WriteTarget, name: str) -> None:
        Staging.beside(self.path, name).remove()

    def _drop_quietly(self, plan: SqlPlan) -> None:
        self.drop_staging(None, plan)

    def abort(
        self, plan: WritePlan, receipts: Sequence[Receipt | None] | None
    ) -> Sequence[Receipt] | None:
        if plan.published_at is None and (
            plan.held is None or plan.held.epoch == _NOT_TAKEN or not self.path.exists()
        ):
            self.drop_staging(None, file_plan(plan))
            return []
        return super().abort(plan, receipts)

    def publish_staged(self, session: S, plan: SqlPlan, staged: Any) -> None:
        files, promised = staged
        is_made = self.ready(session, plan, empty=plan.overwrite)
        pa.default_memory_pool().release_unused()  # Arrow keeps what the tasks' batches took
        inserted = self.insert_files(session, plan, files)
        if inserted != promised:
            raise CommitError(
                f"{inserted} rows are staged, and the receipts say {promised}: "
                "nothing was published; run the job again"
            )
        if is_made:
            self.complete(session, plan.target)

    def staged(
        self, session: S, plan: SqlPlan, receipts: Sequence[Receipt]
    ) -> tuple[list[Path], int]:
        """The files that `receipts` name, in the order of their tasks, and how many rows are promised.

        Raises:
            CommitError: one no longer exists.
        """
        files, staging = [], Path(file_plan(plan).staging)
        for receipt in sorted(receipts, key=lambda each: each.task):
            name = receipt.details.get("file")
            if name is not None:
                files.append(staging / name)
                if not files[-1].is_file():
                    raise CommitError(
                        f"the staged file {files[-1]} of task {receipt.task} no longer exists: "
                        "nothing was published; run the job again"
                    )
        return files, sum(receipt.rows for receipt in receipts)

    def _staged(self, plan: SqlPlan) -> FilePlan:
        staging = Staging.beside(self.path, plan.stage)
        return replace(file_plan(plan), staging=str(staging.directory), token=staging.make())

    def _make_file(self, plan: FilePlan, receipts: Sequence[Receipt]) -> bool:
        """Make the database with the rows in it; False = another job has made it."""
        if self.path.exists():
            return False
        # In a separate directory: another run of the same job must not open, or link, a file that is half made.
        made = Path(plan.staging) / secrets.token_hex(4) / self.path.name
        try:
            self._make_directory(made.parent, plan)
            with self.open_file(made, CommitError, new=True) as session:
                held = self._claim_in(session, plan)
                assert held is not None, "a new file has no claim"
                self._publish(session, replace(plan, held=held), receipts)
        except TargetError as error:
            shutil.rmtree(made.parent, ignore_errors=True)
            raise CommitError(
                f"{error}. Nothing of this job was written: no file {self.path} was made"
            ) from error
        with target_errors(self.path):
            _sync(made)
            try:
                os.link(made, self.path)
            except FileExistsError:
                return False
            _sync(self.path.absolute().parent)
        return True

    def _make_directory(self, directory: Path, plan: FilePlan) -> None:
        with target_errors(directory):
            try:
                directory.mkdir(mode=0o700)
            except FileNotFoundError:
                raise CommitError(
                    f"the staging {plan.staging} of job {plan.job} was removed: "
                    "the job was aborted, or was taken for dead. Run it again"
                ) from None

    def _take_late(self, plan: FilePlan) -> FilePlan:
        held = self.run(
            CommitError, f"publish {plan.job}", lambda session: self._claim_in(session, plan)
        )
        if held is None:
            return replace(plan, published_at="before")
        return replace(plan, held=held)

    def _claim_in(self, session: S, plan: FilePlan) -> HeldClaim | None:
        """The claim in a file that is there now; None = the write was published to it.

        Raises:
            SupersededError: a run has claimed the write in it, which began after the file was made, and after this one.
        """
        claims: Claims = self.claims(session, plan.place)
        with self.transaction(session):
            claims.ensure()
            wanted = plan.claim
            claims.refuse_later(wanted)
            return claims.take(
                wanted.identity, wanted.owner, position=wanted.position, follows=wanted.follows
            ).held

    def _beat(self, name: str) -> str:
        return Staging.beside(self.path, name).last_beat() or ""

    def _remove_if_dead(self, name: str) -> None:
        if Staging.beside(self.path, name).is_dead():
            self._remove(name)

    def _remove(self, name: str) -> None:
        Staging.beside(self.path, name).remove()
        _log.warning("removed orphaned staging %s", name)

    def session(self, failure: type[TargetError], purpose: str, *, patient: bool) -> S:
        return self.open_file(self.path, failure)

    def is_lost(self, error: BaseException) -> bool:
        return False

    @abstractmethod
    def new_place(self, session: S | None) -> tuple[str, str]:
        """By the options alone: the file may not be there yet."""

    @abstractmethod
    def open_file(self, path: Path, failure: type[TargetError], *, new: bool = False) -> S:
        """A session on `path`, which is made when it is not there."""

    @abstractmethod
    def insert_files(self, session: S, plan: SqlPlan, files: Sequence[Path]) -> int:
        """Insert the rows of staged files as `writeMode` says; returns how many rows the files held.

        Raises:
            TargetError: the database refused a row, or two rows have one key.
        """

    @abstractmethod
    def check_file(self) -> None:
        """Check that the file is a database that can be read."""


def file_plan(plan: WritePlan) -> FilePlan:
    assert isinstance(plan, FilePlan)
    return plan


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _check_writable(path: Path, product: str, beside: str) -> None:
    """Check that this user can write the file, which may not be there yet, and its directory.

    `beside` is what `product` keeps in the directory while it writes.

    Raises:
        TargetError: no directory, or no right; says what to do.
    """
    directory = path.absolute().parent
    if not directory.is_dir():
        raise of_input(
            TargetError(
                f"directory {directory} does not exist; make it, or name the database in another one"
            )
        )
    for each in (directory, *([path] if path.exists() else [])):
        if not os.access(each, os.W_OK, effective_ids=os.access in os.supports_effective_ids):
            refused = TargetError(
                f"this user may not write {each}; {product} needs the file and its directory, "
                f"where it keeps its {beside}, to be writable"
            )
            raise of_input(refused)
