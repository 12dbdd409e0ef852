"""A database that is one file: rows are staged beside it, and inserted on the driver's host.

See `new_file` for one that is not there yet.
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
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa

from spark_channel.connectors.base.contract import Receipt, WriteContext, WritePlan
from spark_channel.connectors.sql.definition import NewTable
from spark_channel.connectors.sql.options import FileWriteOptions
from spark_channel.connectors.sql.session import S
from spark_channel.connectors.sql.write.claim_tables import STAGE, stage_prefix
from spark_channel.connectors.sql.write.claims import Claims
from spark_channel.connectors.sql.write.file_loading import FileStaging
from spark_channel.connectors.sql.write.file_staging import (
    StagedFile,
    StagingDirectory,
    stages_beside,
    target_errors,
)
from spark_channel.connectors.sql.write.in_session import claims_at, in_transaction
from spark_channel.connectors.sql.write.plan import NOT_TAKEN, SqlPlan, WriteTarget
from spark_channel.connectors.sql.write.sessions import Traits
from spark_channel.connectors.sql.write.table_database import (
    TableDatabase,
    target_of,
)
from spark_channel.connectors.sql.write.task_claim import TaskClaim
from spark_channel.errors import CommitError, TargetError
from spark_channel.final_errors import of_input
from spark_channel.plain_text import log_of

if TYPE_CHECKING:
    from spark_channel.connectors.base.definition import TableDefinition

__all__ = ["FileDatabase", "FilePlan", "file_plan"]


_log = log_of(__name__)


@dataclass(frozen=True)
class FilePlan(SqlPlan):
    """`token` proves that a task sees `staging`, a directory on the driver's disk."""

    staging: str = ""
    token: str = ""

    @property
    def stage(self) -> str:
        """Before the file exists, no claim distinguishes the runs of one write: their names do."""
        beginning = stage_prefix(self.claim)
        if self.is_claimed:
            return beginning
        return f"{beginning}{hashlib.sha256(self.claim.owner.encode()).hexdigest()[:16]}_"


class FileDatabase(TableDatabase[S]):
    """What SQLite and DuckDB share. `path` is the database, `beside` its other files during a write."""

    beside: ClassVar[str]
    options: FileWriteOptions

    def __init__(self, options: FileWriteOptions, traits: Traits) -> None:
        super().__init__(options, traits)
        self.path: Path = options.file

    @property
    def shown(self) -> str:
        return str(self.path)

    def connect(self, failure: type[TargetError], purpose: str, *, patient: bool) -> S:
        return self.open_file(self.path, failure)

    def check(self, context: WriteContext) -> None:
        super().check(context)
        if self.path.exists():
            self.check_file()
        _check_writable(self.path, self.dialect.product, self.beside)

    def locate(self, session: S | None) -> WriteTarget:
        """Without a session: before there is a file."""
        table = None if session is None else self.dialect.find_table(session, self.options.dbtable)
        schema, name = self.new_place(session) if table is None else (table.schema, table.name)
        label = name if schema.lower() == "main" else f"{schema}.{name}"
        return WriteTarget(schema, name, label, table, folds=True)

    def match(
        self, session: S | None, plan: SqlPlan, place: WriteTarget, context: WriteContext
    ) -> SqlPlan:
        return FilePlan(**{**vars(plan), "target": target_of(self, plan, place)})

    @abstractmethod
    def tried(
        self,
        session: S | None,
        place: WriteTarget,
        definition: "TableDefinition",
        rows: pa.Schema,
    ) -> NewTable | str:
        """The new table by its source's own CREATE TABLE, which was tried elsewhere; or why it cannot be used."""

    def new_table(
        self,
        session: S | None,
        place: WriteTarget,
        definition: "TableDefinition",
        rows: pa.Schema,
        whole: "TableDefinition",
        *,
        is_full: bool,
    ) -> NewTable:
        plain = partial(super().new_table, session, place, definition, rows, whole)
        if not (is_full and definition.statement and definition.system == self.dialect.sql):
            return plain(is_full=is_full)
        tried = self.tried(session, place, definition, rows)
        if isinstance(tried, NewTable):
            return tried
        new = plain(is_full=True)
        return replace(new, left_out=(f"what only CREATE TABLE says: {tried}", *new.left_out))

    # Directories beside the file

    def make_staging(
        self, session: S | None, plan: SqlPlan, place: WriteTarget, context: WriteContext
    ) -> FilePlan:
        staging = StagingDirectory.beside(self.path, plan.stage)
        return replace(file_plan(plan), staging=str(staging.directory), token=staging.make())

    def staging_names(self, session: S | None, place: WriteTarget, beginning: str) -> list[str]:
        return [name for name in stages_beside(self.path) if name.startswith(beginning)]

    def drop_staging(self, session: S | None, place: WriteTarget, names: Sequence[str]) -> None:
        for name in names:
            StagingDirectory.beside(self.path, name).remove()

    def make_ready(
        self, session: S, plan: SqlPlan, place: WriteTarget, context: WriteContext, *, first: bool
    ) -> tuple[SqlPlan, bool]:
        is_made = self.ready(session, plan, empty=first and plan.overwrite)
        return self.make_staging(session, plan, place, context), is_made

    def publish(
        self, session: S, plan: SqlPlan, receipts: Sequence[Receipt], pre_sql: Callable[[], None]
    ) -> bool:
        files, promised = _staged_files(plan, receipts), sum(receipt.rows for receipt in receipts)
        pre_sql()
        is_made = self.ready(session, plan, empty=plan.overwrite)
        pa.default_memory_pool().release_unused()  # Arrow keeps what the tasks' batches took
        inserted = self.insert_files(session, plan, files)
        if inserted != promised:
            raise CommitError(
                f"{inserted} rows are staged, and the receipts say {promised}: "
                "nothing was published; run the job again"
            )
        return is_made

    @abstractmethod
    def open_file(self, path: Path, failure: type[TargetError], *, new: bool = False) -> S:
        """A session on `path`, which is made when it is not there."""

    @abstractmethod
    def check_file(self) -> None:
        """Check that the file is a database that can be read."""

    @abstractmethod
    def new_place(self, session: S | None) -> tuple[str, str]:
        """By the options alone: the file may not be there yet."""

    @abstractmethod
    def insert_files(self, session: S, plan: SqlPlan, files: Sequence[Path]) -> int:
        """Insert the rows of staged files as `writeMode` says; returns how many rows the files held.

        Raises:
            TargetError: the database refused a row, or two rows have one key.
        """

    def staging_of(
        self, claim: TaskClaim[S], encode: Callable[[pa.RecordBatch, int], pa.RecordBatch]
    ) -> FileStaging:
        """Where an attempt stages its rows, as `encode` makes them."""
        plan = file_plan(claim.plan)
        when_gone = partial(self._check_claim, plan)
        file = StagedFile(plan.staging, plan.token, claim.task, claim.attempt, when_gone=when_gone)
        file.open()
        return FileStaging(file, encode)

    def _check_claim(self, plan: FilePlan) -> None:
        """Raise the reason why the staging of a task was removed, if the database knows it.

        Raises:
            SupersededError: another run took over, or has published.
        """
        if plan.is_claimed and self.path.exists():
            with (
                self.open_file(self.path, TargetError) as session,
                in_transaction(self, session),
            ):
                claims_at(self, session, plan.place).fence(plan.claim)

    def sweep(self, session: S, plan: SqlPlan, claims: Claims) -> None:
        """See `sweep.sweep`."""
        names = stages_beside(self.path)
        orphans = names
        if names:
            with in_transaction(self, session):
                orphans = claims.orphans(names, plan.claim, beat_of=self._beat)
        for name in orphans:
            if name.startswith(STAGE) and f"_{NOT_TAKEN}_" not in name.removeprefix(STAGE):
                _remove(self.path, name)
            else:  # without a claim: the directory itself shows whether its run lives
                _remove_if_dead(self.path, name)

    def _beat(self, name: str) -> str:
        return StagingDirectory.beside(self.path, name).last_beat() or ""

    def remove_dead_staging(self) -> None:
        """Remove the staging of runs that are known to be dead."""
        for name in stages_beside(self.path):
            _remove_if_dead(self.path, name)

    def make(self, plan: FilePlan, fill: Callable[[S], None]) -> bool:
        """Make the database, filled by `fill`, and give it its name; False = another job has made it."""
        if self.path.exists():
            return False
        # In a separate directory: another run of the same job must not open, or link, a file that is half made.
        new_path = Path(plan.staging) / secrets.token_hex(4) / self.path.name
        try:
            self._make_directory(new_path.parent, plan)
            with self.open_file(new_path, CommitError, new=True) as session:
                fill(session)
        except TargetError as error:
            shutil.rmtree(new_path.parent, ignore_errors=True)
            raise CommitError(
                f"{error}. Nothing of this job was written: no file {self.path} was made"
            ) from error
        with target_errors(self.path):
            _sync(new_path)
            try:
                os.link(new_path, self.path)
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


def _staged_files(plan: SqlPlan, receipts: Sequence[Receipt]) -> list[Path]:
    """The files that `receipts` name, in the order of their tasks.

    Raises:
        CommitError: one no longer exists.
    """
    files, staging = [], Path(file_plan(plan).staging)
    for receipt in sorted(receipts, key=lambda receipt: receipt.task):
        name = receipt.details.get("file")
        if name is not None:
            files.append(staging / name)
            if not files[-1].is_file():
                raise CommitError(
                    f"the staged file {files[-1]} of task {receipt.task} no longer exists: "
                    "nothing was published; run the job again"
                )
    return files


def _remove_if_dead(path: Path, name: str) -> None:
    if StagingDirectory.beside(path, name).is_dead():
        _remove(path, name)


def _remove(path: Path, name: str) -> None:
    StagingDirectory.beside(path, name).remove()
    _log.warning("removed orphaned staging %s", name)


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
    for entry in (directory, *([path] if path.exists() else [])):
        if not os.access(entry, os.W_OK, effective_ids=os.access in os.supports_effective_ids):
            refused = TargetError(
                f"this user may not write {entry}; {product} needs the file and its directory, "
                f"where it keeps its {beside}, to be writable"
            )
            raise of_input(refused)
