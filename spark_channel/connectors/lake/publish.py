"""Publishes the data files of a lake table's tasks in one conditional commit, and removes what runs left.

The claim is in the table's own log. Each commit of a write (claim, new columns, publish, release) is the version after
the one that was looked at, or is not written at all: a decision holds when it is written. So a run may take its claim
in the commit that publishes: not if the table's claim is another one than at the run's start, nor if a job has ended
the run, which notes that beside the table, commits a version, and removes files then. A table that is not there has no
log: the first driver that creates it publishes, and the others find that out.
"""

import dataclasses
import posixpath
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq

from spark_channel.clock import utc_now
from spark_channel.connectors.base import claims as protocol
from spark_channel.connectors.base.claims import Claim, HeldClaim, Identity
from spark_channel.connectors.base.compaction import are_few
from spark_channel.connectors.base.contract import (
    Receipt,
    WritePlan,
    Writer,
)
from spark_channel.connectors.files.conditions import Condition
from spark_channel.connectors.files.file_errors import writing
from spark_channel.connectors.lake.columns import conform, holds
from spark_channel.connectors.lake.options import LakeWriteOptions
from spark_channel.connectors.lake.replace import KeyMatch, Replaced, RowMatcher, WhereMatch
from spark_channel.connectors.lake.runs import (
    FoundRun,
    Run,
    all_runs,
    is_own,
    live_runs,
    remove_stray_notes,
)
from spark_channel.connectors.lake.table import (
    NO_NOTES,
    Change,
    LakeTable,
    NewFile,
    Partition,
    TableFile,
    TableNotes,
    TableState,
)
from spark_channel.connectors.lake.task_writer import FileSet, Layout, new_files
from spark_channel.errors import (
    CommitError,
    OptionError,
    SchemaError,
    SupersededError,
    TargetError,
    UnsupportedError,
)
from spark_channel.options import WriteOptions
from spark_channel.plain_text import log_of
from spark_channel.retry import commit_pauses

__all__ = ["LakePlan", "LakePublisher", "check_same", "held_now", "lost_files"]

_log = log_of(__name__)

_PAUSES = 0.005, 1.0
"""Seconds: the first pause after another job was first, at most, and the longest."""


@dataclass(frozen=True)
class LakePlan(WritePlan):
    """`run` names the run's notes and folder; `new` are columns that the table gets before the rows, or that get
    another type.
    """

    run: str = ""
    layout: Layout | None = None
    new: tuple[pa.Field, ...] = ()
    table: str = ""
    """The identity of the table, of a run without a claim in it. See `deferred`."""
    within: Condition | None = None
    key: tuple[str, ...] = ()
    notes: TableNotes = NO_NOTES
    place: Any = dataclasses.field(default=None, repr=False)
    """What a task needs to open the store: the format's own, plain data, with credentials."""

    @property
    def claim(self) -> HeldClaim:
        assert self.held is not None, "a write that was published before has no claim"
        return self.held

    @property
    def deferred(self) -> bool:
        """Whether the commit that publishes takes the claim, too: its epoch here is the one before."""
        return bool(self.table) and self.claim.identity.kind != "job"

    @property
    def rows(self) -> Layout:
        assert self.layout is not None
        return self.layout


class LakePublisher(Writer):
    """The commits of a write, after its run has begun."""

    Options: ClassVar[type[WriteOptions]] = LakeWriteOptions
    options: LakeWriteOptions
    gone: pa.Table | None = None
    """Keys, by the columns of `keyColumns` in their order, whose rows a write by key removes, beside those that it
    replaces: of a caller that commits itself.
    """

    def lake(self, location: object = None) -> LakeTable:
        """The table; `location` is a plan's, in a task."""
        raise NotImplementedError

    def read_file(
        self, lake: LakeTable, table: TableState, file: TableFile, *, as_stored: bool = False
    ) -> Any:
        """The rows of one data file, in the table's columns: batches. `as_stored`: not as Spark shows a CHAR."""
        raise NotImplementedError

    def commit(self, plan: WritePlan, receipts: Sequence[Receipt]) -> bool | None:
        assert isinstance(plan, LakePlan)
        if plan.published_at is not None:
            return False
        lake = self.lake(plan.place)
        with writing(lake.shown):
            table = self._renew(lake, plan)
            try:
                added = self._publish(lake, plan, receipts, table)
            except SupersededError:
                self.clear(lake, plan, aborted=True)
                raise
            self.clear(lake, plan, published=added)
        return added

    def _renew(self, lake: LakeTable, plan: LakePlan) -> TableState | None:
        """The table, if this needs a look at it."""
        try:
            return lake.renew(plan.rows.columns)
        except (TargetError, OSError, pa.ArrowException) as error:
            _log.debug(
                "job %s: credentials for %s are those of its start: %s", plan.job, lake.shown, error
            )
            return None

    def _publish(
        self,
        lake: LakeTable,
        plan: LakePlan,
        receipts: Sequence[Receipt],
        table: TableState | None = None,
    ) -> bool:
        """Return False where another run has published the write. `table`: the table, as it may still be."""
        added = new_files(receipts)
        if self._was_published(lake, plan, added):
            return self._warn_published(lake, plan)
        run = self.run_of(lake, plan)
        if plan.gathers and are_few(
            sum(receipt.rows for receipt in receipts), sum(receipt.nbytes for receipt in receipts)
        ):
            added = self._gathered(lake, plan, run, added)
        replaced = self._replaced(lake, plan, added)
        published: list[bool] = []
        sent: list[Change] = []

        def change(state: TableState | None) -> Change | None:
            own_claim, current = _held(
                plan, None if state is None else state.claim(plan.claim.identity, plan.job)
            )
            at = utc_now().isoformat(timespec="seconds")
            rows, nbytes = (
                sum(receipt.rows for receipt in receipts),
                sum(receipt.nbytes for receipt in receipts),
            )
            claim = protocol.publish(current, own_claim, at=at, rows=rows, nbytes=nbytes)
            published[:] = [claim is not None]
            if claim is None:
                return None
            _check_unclaimed(lake, plan, run, state)
            _check_staged(lake, state, plan, added)
            if own_claim.follows is not None:
                before = 0 if state is None else state.overwrites
                claim = replace(claim, generation=before + bool(plan.overwrite))
            change_now = Change(
                plan.job,
                claim,
                added,
                operation="overwrite" if plan.overwrite else "append",
                notes=plan.notes,
            )
            if state is not None:
                change_now = self._on(lake, state, plan, change_now, replaced)
            run.note_publishing([file.path for file in change_now.added])
            return change_now

        def put(state: TableState | None, new_change: Change) -> bool:
            sent.append(new_change)
            if state is None:
                return lake.create(plan.rows.columns, plan.rows.partition_by, new_change)
            return state.commit(new_change)

        self._evolve(lake, plan)
        try:
            self.commit_loop(lake, change, None if plan.new else table, put=put)
        except (CommitError, OptionError, SchemaError):
            raise
        except (TargetError, OSError, pa.ArrowException) as error:
            if plan.deferred and not sent:  # nothing can be written later
                raise _failed(lake, error) from error
            self.settle(lake, plan, error)
            return self._is_by_this_run(lake, plan)
        return self._warn_published(lake, plan) if published == [False] else True

    def _gathered(
        self, lake: LakeTable, plan: LakePlan, run: Run, added: list[NewFile]
    ) -> list[NewFile]:
        """The same rows in one file for each partition value, as far as the options allow. The tasks' files go with
        what the run leaves.
        """
        by_partition: dict[Partition, list[NewFile]] = {}
        for file in added:
            by_partition.setdefault(file.partition, []).append(file)
        groups = {part: files for part, files in by_partition.items() if len(files) > 1}
        schema = plan.rows.in_files
        if not groups or not schema.names or not run.is_live():
            return added  # of a run that has ended, the commit says why
        merged_files = FileSet(run, plan.rows, self.options, "few", lake.shown)
        try:
            for partition, files in groups.items():
                for file in files:
                    for batch in _rows_of(lake, file, schema):
                        merged_files.write_into(partition, batch)
                merged_files.finish()
                run.heartbeat()
            if not run.is_live():
                merged_files.drop()
                return added
        except BaseException:
            merged_files.drop()
            raise
        alone = [file for file in added if file.partition not in groups]
        return [*alone, *merged_files.files]

    def _evolve(self, lake: LakeTable, plan: LakePlan) -> None:
        """Add the new columns and widen others, in a separate commit that is fenced as the publish is."""
        if not plan.new:
            return
        missing: list[pa.Field] = []

        def change(state: TableState | None) -> Change | None:
            if state is None:
                return None  # the table is created with them
            _check_unclaimed(lake, plan, self.run_of(lake, plan), state)
            own_claim, current = _held(plan, state.claim(plan.claim.identity, plan.job))
            if current is not None and current.has_published(own_claim.position):
                return None
            protocol.check(current, own_claim)
            assert current is not None
            assert state is not None
            state.check_writable(removes=False)
            missing[:] = [field for field in plan.new if _is_narrow(state.columns, field)]
            return Change(plan.job, current, operation="change columns") if missing else None

        def put(state: TableState | None, new_change: Change) -> bool:
            assert state is not None
            return state.add_columns(missing, new_change)

        self.commit_loop(lake, change, put=put)

    def _on(
        self,
        lake: LakeTable,
        state: TableState,
        plan: LakePlan,
        made_change: Change,
        replaced: "_Replacement | None",
    ) -> Change:
        """The change for this state of the table."""
        check_same(lake, state, plan)
        # As `prepare` did: another tool may have added a constraint, or changed the partitions, since.
        state.check_writable(removes=plan.overwrite or replaced is not None)
        if replaced is not None:
            removed, stay = replaced.on(state)
            operation = "upsert" if plan.key else "replaceWhere"
            return replace(
                made_change, removed=removed, added=[*made_change.added, *stay], operation=operation
            )
        if plan.overwrite:
            return replace(made_change, removed=state.files())
        return made_change

    def _replaced(
        self, lake: LakeTable, plan: LakePlan, added: Sequence[NewFile]
    ) -> "_Replacement | None":
        run = self.run_of(lake, plan)
        if plan.key:
            return _Replacement(
                self, lake, plan, run, KeyMatch(self._keys(lake, plan, added), plan.key)
            )
        if plan.within is not None:
            return _Replacement(self, lake, plan, run, WhereMatch(plan.within))
        return None

    def _keys(self, lake: LakeTable, plan: LakePlan, added: Sequence[NewFile]) -> pa.Table:
        """The keys of all rows that were written."""
        key_columns = pa.schema([plan.rows.columns.field(name) for name in plan.key])
        tables = []
        for file in added:
            inside = [name for name in plan.key if name in plan.rows.in_files.names]
            with lake.store.place.fs.open_input_file(f"{lake.base}/{file.path}") as stream:
                rows = pq.ParquetFile(stream).read(columns=inside or plan.rows.in_files.names[:1])
            values = dict(file.partition)
            columns = [
                rows[name].cast(key_columns.field(name).type)
                if name in inside
                else pa.repeat(
                    pa.scalar(values[name], pa.string()).cast(key_columns.field(name).type),
                    rows.num_rows,
                )
                for name in plan.key
            ]
            tables.append(pa.table(columns, schema=key_columns))
        if self.gone is not None:
            gone = self.gone.rename_columns(list(plan.key))
            batches = [
                conform(part, key_columns, plan.key, lake.shown) for part in gone.to_batches()
            ]
            tables.append(pa.Table.from_batches(batches, key_columns))
        return pa.concat_tables(tables) if tables else key_columns.empty_table()

    def settle(self, lake: LakeTable, plan: LakePlan, error: Exception) -> None:
        """Find out whether a commit whose answer was an error was written; if not, make sure that it never will be.

        Raises:
            SupersededError: another run took over, and removed files of this one. CommitError: it was not, and will
            not be; or the table does not answer.
        """
        published: list[bool] = []

        def change(state: TableState | None) -> Change | None:
            if state is None:
                published[:] = [False]
                return None
            written = state.own_claim(plan.claim.identity, plan.job)
            own_claim, current = _held(plan, written)
            published[:] = [current is not None and current.has_published(own_claim.position)]
            if (
                published == [False]
                and current is not None
                and current.owner
                and current.epoch != own_claim.epoch
            ):
                protocol.check(current, own_claim)
            return _given_back(lake, plan, written)

        try:
            self.commit_loop(lake, change)
        except SupersededError as second:
            raise second from error
        except (TargetError, OSError, pa.ArrowException) as second:
            raise CommitError(
                f"publishing into {lake.shown} failed: {error}; and whether it was published is unknown: "
                f"{second}. Run it again with the same transaction id: published rows are not added again"
            ) from error
        if published == [True]:
            _log.warning(
                "job %s is published to %s; its commit reported: %s", plan.job, lake.shown, error
            )
            return
        raise _failed(lake, error) from error

    def _was_published(self, lake: LakeTable, plan: LakePlan, added: Sequence[NewFile]) -> bool:
        """Whether files are gone because the write was published before, by this run or another.

        Raises:
            SupersededError: another run took over, and removed them. CommitError: they are gone, or incomplete.
        """
        lost = lost_files(lake, added)
        if not lost:
            return False
        own_claim, current = _held(plan, self._written(lake, plan))
        if current is not None and current.has_published(own_claim.position):
            return True
        protocol.check(current, own_claim)
        if plan.deferred and not self.run_of(lake, plan).is_live():
            protocol.check(None, plan.claim)
        raise CommitError(
            f"{len(lost)} data files of job {plan.job}, such as {lost[0]}, "
            f"are missing or incomplete in {lake.shown}: the table was vacuumed without retention, "
            "or its directory is not shared by all executors and the driver. The table has the rows "
            "that it had before; run the job again"
        )

    def _warn_published(self, lake: LakeTable, plan: LakePlan) -> bool:
        """Return whether it was this run that has published the write."""
        _log.warning(
            "%s was published before: nothing is added by job %s",
            plan.claim.identity.shown,
            plan.job,
        )
        return self._is_by_this_run(lake, plan)

    def _is_by_this_run(self, lake: LakeTable, plan: LakePlan) -> bool:
        if plan.claim.identity.kind != "txn":
            return True
        return not protocol.is_of_another_run(self._written(lake, plan), plan.claim)

    @staticmethod
    def _written(lake: LakeTable, plan: LakePlan) -> Claim | None:
        """The write's claim in the newest version, as jobs have written it."""
        state = lake.open()
        return None if state is None else state.own_claim(plan.claim.identity, plan.job)

    def abort(self, plan: WritePlan, receipts: Sequence[Receipt | None] | None) -> None:
        assert isinstance(plan, LakePlan)
        if plan.published_at is not None:
            return
        lake = self.lake(plan.place)
        with writing(lake.shown):
            self._give_back(lake, plan)

    def _give_back(self, lake: LakeTable, plan: LakePlan) -> None:
        may_publish = self.run_of(lake, plan).may_publish()
        is_shared = plan.deferred and _has_other_tasks(lake, plan)

        def change(state: TableState | None) -> Change | None:
            if state is None:
                return None
            written = state.own_claim(plan.claim.identity, plan.job)
            if (written is None or plan.deferred) and not (may_publish or is_shared):
                return None
            return _given_back(lake, plan, written)

        self.commit_loop(lake, change)
        self.clear(lake, plan, aborted=True)

    def clear(
        self, lake: LakeTable, plan: LakePlan, *, aborted: bool = False, published: bool = False
    ) -> None:
        """Remove what the write left, after it has ended one way or the other."""
        own_plan = plan if aborted else None
        if not (published and self._is_tidy(lake, plan)):
            self._tidy(lake, plan.job, own=own_plan, only=plan.claim.identity, last=plan.run)

    def _is_tidy(self, lake: LakeTable, plan: LakePlan) -> bool:
        """Whether a run that has published is the only one of its write, so that no look at the table was needed to
        remove its notes.
        """
        try:
            runs, published = all_runs(lake.store, lake.base, lake.data, lake.shown)
            runs_of_write = [
                run for run in runs if run.held.identity.key == plan.claim.identity.key
            ]
            if [run.run.name for run in runs_of_write] != [plan.run]:
                return False
            self._remove_run(runs_of_write[0].run, published)
            remove_stray_notes(lake.store, lake.base)
        except (OSError, pa.ArrowException, TargetError):
            return False
        return True

    def _tidy(self, lake: LakeTable, job: str, **scope: Any) -> None:
        """`_remove_ended`, which cannot fail a write that has ended."""
        try:
            self._remove_ended(lake, **scope)
        except (OSError, pa.ArrowException, TargetError) as error:
            _log.warning(
                "job %s: what is staged in %s stays until the next job: %s", job, lake.shown, error
            )

    def _remove_ended(
        self,
        lake: LakeTable,
        *,
        own: LakePlan | None = None,
        only: Identity | None = None,
        last: str = "",
        seen: TableState | None = None,
    ) -> list[FoundRun]:
        """Remove the files of runs that can no longer publish, except published files. Return the other runs.

        The table is looked at first: a run that its log has ended then cannot publish later. `own`: a run that will
        not publish since it is this one, and it was aborted. `seen`: the table, of a run that has not committed yet.
        """
        state = lake.open() if seen is None else seen
        runs, published = all_runs(lake.store, lake.base, lake.data, lake.shown)
        remaining = []
        # Those that noted files last, since these may be other runs'; of them this run: whoever comes after one that
        # was killed here must find the note as long as there are files.
        for run in sorted(runs, key=lambda one: (bool(one.publishing), one.run.name == last)):
            if only is not None and run.held.identity.key != only.key:
                continue
            is_own = own is not None and run.run.name == own.run
            try:
                is_removed = self._remove(lake, run, state, published, is_own=is_own, ends=not only)
            except (OSError, pa.ArrowException, TargetError) as error:
                if is_own or only is not None:
                    raise
                _log.warning(
                    "%s: what run %s left stays until the next job: %s",
                    lake.shown,
                    run.held.owner,
                    error,
                )
                is_removed = False
            if not is_removed:
                remaining.append(run)
        remove_stray_notes(lake.store, lake.base)
        return remaining

    def _remove(
        self,
        lake: LakeTable,
        run: FoundRun,
        state: TableState | None,
        published: Collection[str],
        *,
        is_own: bool,
        ends: bool,
    ) -> bool:
        """Remove what the run left, if it cannot publish in later versions than `state`. `ends`: a dead run is made to
        be one of these.
        """
        run_claim = run.held
        claim = None if state is None else state.own_claim(run_claim.identity, run_claim.owner)
        given_back = claim is None or not (claim.owner or claim.has_published(run_claim.position))
        published_here = (
            claim is not None
            and claim.has_published(run_claim.position)
            and run.may_have_published(claim)
        )
        if is_own and (given_back or (run.deferred and not published_here)):
            run.run.remove(keep=self._visible(lake, run.publishing))
            return True
        if run.has_ended(claim):
            if run.may_have_published(claim):
                self._remove_run(run.run, published)
            elif not run.deferred or self._is_over(lake, run):
                # Or its claim was forgotten, and the table has its files.
                run.run.remove(keep=self._visible(lake, run.run.publishing()))
            return True
        if not (ends and run.run.is_dead(run_claim)):
            return False
        # First: the log may soon forget that the run's claim was taken away.
        run.run.end()
        if self._close(lake, run):
            _log.info(
                "%s: removing what run %s left, whose process has ended",
                lake.shown,
                run_claim.owner,
            )
            # Another run's note names what is published of a batch's task, and the table may have no claim of the
            # stream under the name that this job has for it.
            is_task = run_claim.identity.kind == "stream"
            paths = run.run.files() if is_task else run.run.publishing()
            run.run.remove(keep=self._visible(lake, paths))
        return True

    @staticmethod
    def _is_over(lake: LakeTable, run: FoundRun) -> bool:
        """Whether a run that comes with its claim, and has met another one of its write, publishes nothing later.

        The log may forget a claim that was given back. So the run is ended first, and the table is looked at then: a
        commit on a later version finds out that the run has ended.
        """
        run.run.end()
        state = lake.open()
        return state is None or run.has_ended(state.own_claim(run.held.identity, run.held.owner))

    @staticmethod
    def _remove_run(run: Run, published: Collection[str]) -> None:
        """Remove an ended run's files but those that are `published`.

        The log's history may know a claim that is newer than what was read of the run. So its publications are read
        once more, and it was not removed in between if the run's first note is still there.
        """
        keep = {*published, *run.publishing()}
        if run.about() is not None:
            run.remove(keep=keep)

    def _visible(self, lake: LakeTable, paths: Sequence[str]) -> Sequence[str]:
        """Those of an ended run's files that the table has: its log names the claims of jobs for a time alone."""
        state = lake.open() if paths else None
        if state is None:
            return ()
        try:
            paths_there = {file.path for file in state.files()}
        except UnsupportedError:  # another writer has deleted rows of them since
            return paths
        return [path for path in paths if lake.full(path) in paths_there]

    def _close(self, lake: LakeTable, run: FoundRun) -> bool:
        """Take a dead run's claim away. False = the log says something else by now."""
        run_claim, closed = run.held, list[bool]()

        def change(state: TableState | None) -> Change | None:
            claim_there = (
                None if state is None else state.own_claim(run_claim.identity, run_claim.owner)
            )
            if run.deferred and state is not None:
                closed[:] = [not run.has_ended(claim_there)]
                # Any version after `Run.end`: a commit that is on its way is rejected, and not tried again. The
                # write's own claim stays unchanged, for runs that live.
                return _end(lake, run.run.name, run_claim.owner) if closed == [True] else None
            closed[:] = [state is None or (claim_there is None and run_claim.epoch > 0)]
            if closed == [True]:
                return None
            # A run without a claim gets one that is taken away: if it wakes up, it finds this one.
            holds, current = held_now(run_claim, claim_there)
            if current is None or (current.owner, current.epoch) != (holds.owner, holds.epoch):
                return None
            released = protocol.release(current, holds)
            closed[:] = [released is not None]
            return (
                None if released is None else Change(run_claim.owner, released, operation="release")
            )

        self.commit_loop(lake, change)
        return closed == [True]

    def run_of(self, lake: LakeTable, plan: LakePlan) -> Run:
        """The notes and files of a plan's run."""
        return Run(lake.store, lake.base, lake.data, plan.run)

    def commit_loop(
        self,
        lake: LakeTable,
        change: Callable[[TableState | None], Change | None],
        table: TableState | None = None,
        *,
        put: Callable[[TableState | None, Change], bool] | None = None,
    ) -> None:
        """Commit what `change` decides on the newest state, and decide again when another job was first."""
        clock = lake.store.clock
        deadline, pauses = clock.now() + self.options.commit_timeout, commit_pauses(*_PAUSES)
        state = table if table is not None else lake.open()
        while True:
            new_change = change(state)
            if new_change is None:
                return
            if put is not None:
                is_committed = put(state, new_change)
            else:
                assert state is not None
                is_committed = state.commit(new_change)
            if is_committed:
                return
            if clock.now() >= deadline:
                raise CommitError(
                    f"other jobs committed to {lake.shown} first for {self.options.commit_timeout:g} s; "
                    f"nothing of job {new_change.job} was added. Run it again, or raise option commitTimeout"
                )
            clock.sleep(next(pauses))
            state = lake.open()


@dataclass
class _Replacement:
    """`Replaced`, made for the first state of the table that is published to."""

    writer: LakePublisher
    lake: LakeTable
    plan: LakePlan
    run: Run
    rows: RowMatcher
    _made: Replaced | None = None
    _state: TableState | None = None

    def on(self, state: TableState) -> tuple[list[TableFile], list[NewFile]]:
        self._state = state
        if self._made is None:
            layout = replace(
                self.plan.rows, columns=state.columns, names=tuple(state.columns.names)
            )
            files = partial(
                FileSet,
                self.run,
                layout,
                self.writer.options,
                "kept",
                self.lake.shown,
            )
            self._made = Replaced(self.rows, self._ranges, self._read, files)
        return self._made.changes(state.files())

    def _ranges(self, file: TableFile) -> Any:
        assert self._state is not None
        return self._state.ranges(file, self.rows.columns)

    def _read(self, file: TableFile) -> Any:
        assert self._state is not None
        return self.writer.read_file(self.lake, self._state, file)


def _rows_of(lake: LakeTable, file: NewFile, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """
    Raises:
        CommitError: other rows than a task has written.
    """
    rows = 0
    with lake.store.place.fs.open_input_file(f"{lake.base}/{file.path}") as stream:
        for batch in pq.ParquetFile(stream).iter_batches(use_threads=False):
            rows += batch.num_rows
            yield pa.RecordBatch.from_arrays(batch.columns, schema=schema)
    if rows != file.rows:
        raise CommitError(
            f"{file.path} has {rows} rows, and its task has written {file.rows}: the disk is damaged, or another "
            f"program changes files of {lake.shown}. The table has the rows that it had before; run the job again"
        )


def lost_files(lake: LakeTable, added: Sequence[NewFile]) -> list[str]:
    """Those of staged files that are gone, or incomplete."""
    folders = {posixpath.dirname(file.path) for file in added}
    sizes = {
        info.path: info.size
        for folder in sorted(folders)
        for info in lake.store.entries(f"{lake.base}/{folder}")
        if info.is_file
    }
    return [file.path for file in added if sizes.get(f"{lake.base}/{file.path}") != file.size]


def held_now(own_claim: HeldClaim, current: Claim | None) -> tuple[HeldClaim, Claim | None]:
    """(what the run holds, what the table says) of a write that took no claim: its table was not there when it began,
    or no other run can have its name.

    No other run of the write has come to the table: then this one has the claim, in the commit that publishes.
    """
    if own_claim.epoch == 0 and (current is None or is_own(current, own_claim)):
        own_claim = replace(own_claim, epoch=1)
        return own_claim, current or Claim(own_claim.identity, own_claim.owner, 1)
    return own_claim, current


def _held(plan: LakePlan, current: Claim | None) -> tuple[HeldClaim, Claim | None]:
    """(what the run holds, what the table says). A deferred claim is taken here, unless the table's is another one
    than when the run began.
    """
    claim = plan.claim
    if not plan.deferred:
        return held_now(claim, current)
    before = current or Claim(claim.identity, "", 0)
    if before.owner or before.epoch != claim.epoch or before.has_published(claim.position):
        return claim, current
    taken = replace(claim, epoch=claim.epoch + 1)
    return taken, replace(before, owner=taken.owner, epoch=taken.epoch)


def _given_back(lake: LakeTable, plan: LakePlan, written: Claim | None) -> Change | None:
    """The version that ends a run which has published nothing: a commit that is still on its way finds it before
    itself. None = there is one. `written` is the write's claim.
    """
    if plan.deferred and plan.claim.identity.kind == "txn":
        # The claim is left to other runs; the table has had none when this one began.
        return _end(lake, plan.run, plan.job) if written is None else None
    own_claim, current = _held(plan, written)
    released = protocol.release(current, own_claim)
    return None if released is None else Change(plan.job, released, operation="release")


def _end(lake: LakeTable, run: str, job: str) -> Change:
    """A version that adds nothing: the claim of a run's name, which no run holds."""
    return Change(job, Claim(_name_of(lake, run), ""), operation="release")


def _name_of(lake: LakeTable, run: str) -> Identity:
    return Identity(lake.shown, "job", run)


def _failed(lake: LakeTable, error: Exception) -> CommitError:
    return CommitError(
        f"publishing into {lake.shown} failed: {error}. The table has the rows that it had before; run the job again"
    )


def _has_other_tasks(lake: LakeTable, plan: LakePlan) -> bool:
    """Whether other tasks of a stream's batch have begun, which end with this one."""
    if plan.claim.identity.kind != "stream":
        return False
    runs, _ = all_runs(lake.store, lake.base, lake.data, lake.shown)
    return any(run.is_of(plan.claim) and run.run.name != plan.run for run in runs)


def _check_staged(
    lake: LakeTable, state: TableState | None, plan: LakePlan, added: Sequence[NewFile]
) -> None:
    """Check that no job has ended one of the runs that have written the files, nor is removing what they wrote.

    Whoever ends a run notes that, and commits a version which says so, before it removes files. The log may forget what
    it says in time, and the notes are looked at after it.

    Raises:
        SupersededError: it has.
    """
    if plan.deferred and state is not None:
        ended = state.own_claim(_name_of(lake, plan.run), plan.job, brief=True)
        if ended is not None:
            protocol.check(None, plan.claim)
    prefix = f"{lake.data}/"
    names = {file.path.removeprefix(prefix).partition("/")[0] for file in added} | {plan.run}
    if not plan.deferred and names == {plan.run}:
        return
    if names - live_runs(lake.store, lake.base) or lost_files(lake, added):
        protocol.check(None, plan.claim)


def _check_unclaimed(lake: LakeTable, plan: LakePlan, run: Run, state: TableState | None) -> None:
    """Check that the table of a run without a claim is the one that it began with, and that no job has ended the run.

    Raises:
        SupersededError: it is another one, or none, or its notes were removed.
    """
    if not plan.table:
        return
    if state is None or state.identity != plan.table:
        raise SupersededError(
            f"{lake.shown} was dropped, or created again, while run {plan.job!r} was writing to it. Nothing of this "
            "run was added; run it again",
            owner=plan.job,
        )
    if not plan.deferred and not run.is_live():
        protocol.check(None, plan.claim)


def _is_narrow(columns: pa.Schema, field: pa.Field) -> bool:
    """Whether the table lacks the column, or has it with a type that does not hold all of its values."""
    index = columns.get_field_index(field.name)
    return index < 0 or not holds(columns.field(index).type, field.type)


def check_same(lake: LakeTable, state: TableState, plan: LakePlan) -> None:
    """Check that the table has the columns that the tasks wrote for.

    Raises:
        CommitError: another job has changed them.
    """
    for field in plan.rows.columns:
        index = state.columns.get_field_index(field.name)
        existing = None if index < 0 else state.columns.field(index)
        same = (
            existing is not None
            and existing.type.equals(field.type)
            and existing.metadata == field.metadata
        )
        if not same or (existing is not None and not existing.nullable and field.nullable):
            raise CommitError(
                f"column {field.name!r} of {lake.shown} was changed by another job while this one was writing. Nothing "
                f"of job {plan.job} was added; run it again"
            )
    names = set(plan.rows.columns.names)
    lost = [field.name for field in state.columns if not field.nullable and field.name not in names]
    if lost or tuple(state.partition_columns) != plan.rows.partition_by:
        event = (
            f"column {lost[0]!r} was added to" if lost else "the partition columns were changed of"
        )
        raise CommitError(
            f"{event} {lake.shown} by another job while this one was writing. Nothing of job {plan.job} was added; run "
            "it again"
        )
