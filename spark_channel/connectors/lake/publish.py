"""Publishes the data files of a lake table's tasks in one conditional commit, and removes what runs left.

The claim is in the table's own log. Each commit of a write (claim, new columns, publish, release) is the version after
the one that was looked at, or is not written at all: a decision holds when it is written. A table that is not
there has no log: the first driver that creates it publishes, and the others find that out.
"""

import dataclasses
import posixpath
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs as pafs

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
from spark_channel.connectors.files.filesystem import writing
from spark_channel.connectors.lake.options import LakeWriteOptions
from spark_channel.connectors.lake.replace import KeyMatch, Replaced, RowMatcher, WhereMatch
from spark_channel.connectors.lake.table import (
    NO_NOTES,
    Change,
    LakeTable,
    NewFile,
    Partition,
    TableFile,
    TableNotes,
    TableState,
    conform,
    holds,
)
from spark_channel.connectors.lake.task_writer import (
    FileSet,
    FoundRun,
    Layout,
    Run,
    all_runs,
    new_files,
    remove_stray_notes,
)
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
    """The identity of the table, of a run without a claim in it."""
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
    def rows(self) -> Layout:
        assert self.layout is not None
        return self.layout


class LakePublisher(Writer):
    """The commits of a write, after its claim is taken."""

    Options: ClassVar[type[WriteOptions]] = LakeWriteOptions
    options: LakeWriteOptions
    gone: pa.Table | None = None
    """Keys, by the columns of `keyColumns` in their order, whose rows a write by key removes, beside those that it
    replaces: of a caller that commits itself.
    """

    def lake(self, place: object = None) -> LakeTable:
        """The table; `place` is a plan's, in a task."""
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
            seen = self._renew(lake, plan)
            try:
                added = self._publish(lake, plan, receipts, seen)
            except SupersededError:
                self.clear(lake, plan)
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
        seen: TableState | None = None,
    ) -> bool:
        """Return False where another run has published the write. `seen`: the table, as it may still be."""
        added = new_files(receipts)
        if self._was_published(lake, plan, added):
            return self._warn_published(lake, plan)
        run = self.run_of(lake, plan)
        if plan.gathers and are_few(
            sum(each.rows for each in receipts), sum(each.nbytes for each in receipts)
        ):
            added = self._gathered(lake, plan, run, added)
        replaced = self._replaced(lake, plan, added)
        done: list[bool] = []

        def change(state: TableState | None) -> Change | None:
            held, found = held_now(
                plan.claim, None if state is None else state.claim(plan.claim.identity, plan.job)
            )
            at = utc_now().isoformat(timespec="seconds")
            rows, nbytes = (
                sum(each.rows for each in receipts),
                sum(each.nbytes for each in receipts),
            )
            claim = protocol.publish(found, held, at=at, rows=rows, nbytes=nbytes)
            done[:] = [claim is not None]
            if claim is None:
                return None
            _check_unclaimed(lake, plan, run, state)
            if held.follows is not None:
                before = 0 if state is None else state.overwrites
                claim = replace(claim, generation=before + bool(plan.overwrite))
            made = Change(
                plan.job,
                claim,
                added,
                operation="overwrite" if plan.overwrite else "append",
                notes=plan.notes,
            )
            if state is not None:
                made = self._on(lake, state, plan, made, replaced)
            run.note_publishing([file.path for file in made.added])
            return made

        def put(state: TableState | None, made: Change) -> bool:
            if state is None:
                return lake.create(plan.rows.columns, plan.rows.partition_by, made)
            return state.commit(made)

        self._evolve(lake, plan)
        try:
            self.commit_loop(lake, change, None if plan.new else seen, put=put)
        except (CommitError, OptionError, SchemaError):
            raise
        except (TargetError, OSError, pa.ArrowException) as error:
            self.settle(lake, plan, error)
        return self._warn_published(lake, plan) if done == [False] else True

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
        made = FileSet(run, plan.rows, self.options, "few", lake.shown)
        try:
            for partition, files in groups.items():
                for file in files:
                    for batch in _rows_of(lake, file, schema):
                        made.write_into(partition, batch)
                made.finish()
                run.heartbeat()
            if not run.is_live():
                made.drop()
                return added
        except BaseException:
            made.drop()
            raise
        alone = [file for file in added if file.partition not in groups]
        return [*alone, *made.files]

    def _evolve(self, lake: LakeTable, plan: LakePlan) -> None:
        """Add the new columns and widen others, in a separate commit that is fenced as the publish is."""
        if not plan.new:
            return
        missing: list[pa.Field] = []

        def change(state: TableState | None) -> Change | None:
            if state is None:
                return None  # the table is created with them
            _check_unclaimed(lake, plan, self.run_of(lake, plan), state)
            held, found = held_now(plan.claim, state.claim(plan.claim.identity, plan.job))
            if found is not None and found.has_published(held.position):
                return None
            protocol.check(found, held)
            assert found is not None
            assert state is not None
            state.check_writable(removes=False)
            missing[:] = [field for field in plan.new if _is_narrow(state.columns, field)]
            return Change(plan.job, found, operation="change columns") if missing else None

        def put(state: TableState | None, made: Change) -> bool:
            assert state is not None
            return state.add_columns(missing, made)

        self.commit_loop(lake, change, put=put)

    def _on(
        self,
        lake: LakeTable,
        state: TableState,
        plan: LakePlan,
        made: Change,
        replaced: "_Replacement | None",
    ) -> Change:
        """The change for this state of the table."""
        check_same(lake, state, plan)
        # As `prepare` did: another tool may have added a constraint, or changed the partitions, since.
        state.check_writable(removes=plan.overwrite or replaced is not None)
        if replaced is not None:
            removed, stay = replaced.on(state)
            operation = "upsert" if plan.key else "replaceWhere"
            return replace(made, removed=removed, added=[*made.added, *stay], operation=operation)
        if plan.overwrite:
            return replace(made, removed=state.files())
        return made

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
        wanted = pa.schema([plan.rows.columns.field(name) for name in plan.key])
        tables = []
        for file in added:
            inside = [name for name in plan.key if name in plan.rows.in_files.names]
            with lake.store.place.fs.open_input_file(f"{lake.base}/{file.path}") as opened:
                rows = pq.ParquetFile(opened).read(columns=inside or plan.rows.in_files.names[:1])
            values = dict(file.partition)
            columns = [
                rows[name].cast(wanted.field(name).type)
                if name in inside
                else pa.repeat(
                    pa.scalar(values[name], pa.string()).cast(wanted.field(name).type),
                    rows.num_rows,
                )
                for name in plan.key
            ]
            tables.append(pa.table(columns, schema=wanted))
        if self.gone is not None:
            gone = self.gone.rename_columns(list(plan.key))
            batches = [conform(part, wanted, plan.key, lake.shown) for part in gone.to_batches()]
            tables.append(pa.Table.from_batches(batches, wanted))
        return pa.concat_tables(tables) if tables else wanted.empty_table()

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
            held, found = held_now(plan.claim, state.claim(plan.claim.identity, plan.job))
            published[:] = [found is not None and found.has_published(held.position)]
            if (
                published == [False]
                and found is not None
                and found.owner
                and found.epoch != held.epoch
            ):
                protocol.check(found, held)
            given = protocol.release(found, held)
            # A version after this one: a request that is still on its way is rejected.
            return None if given is None else Change(plan.job, given, operation="release")

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
        raise CommitError(
            f"publishing into {lake.shown} failed: {error}. The table has the rows that it had "
            "before; run the job again"
        ) from error

    def _was_published(self, lake: LakeTable, plan: LakePlan, added: Sequence[NewFile]) -> bool:
        """Whether files are gone because the write was published before, by this run or another.

        Raises:
            SupersededError: another run took over, and removed them. CommitError: they are gone, or incomplete.
        """
        lost = lost_files(lake, added)
        if not lost:
            return False
        state = lake.open()
        held, found = held_now(
            plan.claim, None if state is None else state.claim(plan.claim.identity, plan.job)
        )
        if found is not None and found.has_published(held.position):
            return True
        protocol.check(found, held)
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
        state = lake.open()
        held, found = held_now(
            plan.claim, None if state is None else state.claim(plan.claim.identity, plan.job)
        )
        return not protocol.is_of_another_run(found, held)

    def abort(self, plan: WritePlan, receipts: Sequence[Receipt | None] | None) -> None:
        assert isinstance(plan, LakePlan)
        if plan.published_at is not None:
            return
        lake = self.lake(plan.place)
        with writing(lake.shown):
            self._give_back(lake, plan)

    def _give_back(self, lake: LakeTable, plan: LakePlan) -> None:
        run = self.run_of(lake, plan)

        def change(state: TableState | None) -> Change | None:
            if state is None:
                return None
            there = state.claim(plan.claim.identity, plan.job)
            if there is None and not run.may_publish():
                return None
            # Of a run that wrote no claim: a commit that is still on its way finds this version before it.
            held, found = held_now(plan.claim, there)
            given = protocol.release(found, held)
            return None if given is None else Change(plan.job, given, operation="release")

        self.commit_loop(lake, change)
        self.clear(lake, plan, aborted=True)

    def clear(
        self, lake: LakeTable, plan: LakePlan, *, aborted: bool = False, published: bool = False
    ) -> None:
        """Remove what the write left, after it has ended one way or the other."""
        own = plan if aborted else None
        if not (published and self._is_tidy(lake, plan)):
            self._tidy(lake, plan.job, own=own, only=plan.claim.identity, last=plan.run)

    def _is_tidy(self, lake: LakeTable, plan: LakePlan) -> bool:
        """Whether a run that has published is the only one of its write, so that no look at the table was needed to
        remove its notes.
        """
        try:
            found, published = all_runs(lake.store, lake.base, lake.data, lake.shown)
            own = [each for each in found if each.held.identity.key == plan.claim.identity.key]
            if [each.run.name for each in own] != [plan.run]:
                return False
            self._remove_run(own[0].run, published)
            remove_stray_notes(lake.store, lake.base)
        except (OSError, pa.ArrowException, TargetError):
            return False
        return True

    def _tidy(self, lake: LakeTable, job: str, **what: Any) -> None:
        """`_remove_ended`, which cannot fail a write that has ended."""
        try:
            self._remove_ended(lake, **what)
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
    ) -> None:
        """Remove the files of runs that can no longer publish, except published files.

        The table is looked at first: a run that its log has ended then cannot publish later. `own`: a run that will
        not publish since it is this one, and it was aborted. `seen`: the table, of a run that has not committed yet.
        """
        state = lake.open() if seen is None else seen
        found, published = all_runs(lake.store, lake.base, lake.data, lake.shown)
        # This run last: it may have published files of another one of its job.
        for each in sorted(found, key=lambda one: one.run.name == last):
            held = each.held
            if only is not None and held.identity.key != only.key:
                continue
            claim = None if state is None else state.claim(held.identity, held.owner)
            given_back = claim is None or not (claim.owner or claim.has_published(held.position))
            if own is not None and each.run.name == own.run and given_back:
                each.run.remove(keep=self._visible(lake, each.publishing))
            elif _has_ended(claim, held):
                self._remove_run(each.run, published if _may_have_published(claim, held) else None)
            elif only is None and each.run.is_dead(held):
                # First: the log may soon forget that the run's claim was taken away.
                each.run.end()
                if self._close(lake, each):
                    _log.info(
                        "%s: removing what run %s left, whose process has ended",
                        lake.shown,
                        held.owner,
                    )
                    each.run.remove(keep=self._visible(lake, each.run.publishing()))
        remove_stray_notes(lake.store, lake.base)

    @staticmethod
    def _remove_run(run: Run, published: Collection[str] | None) -> None:
        """Remove an ended run's files but those that are `published`; None: it has published none.

        The log's history may know a claim that is newer than what was read of the run. So its publications are read
        once more, and it was not removed in between if the run's first note is still there.
        """
        if published is None:
            run.remove()
            return
        keep = {*published, *run.publishing()}
        if run.about() is not None:
            run.remove(keep=keep)

    def _visible(self, lake: LakeTable, paths: Sequence[str]) -> Sequence[str]:
        """Those of an ended run's files that the table has: its log names the claims of jobs for a time alone."""
        state = lake.open() if paths else None
        if state is None:
            return ()
        try:
            there = {file.path for file in state.files()}
        except UnsupportedError:  # another writer has deleted rows of them since
            return paths
        return [path for path in paths if posixpath.join(lake.base, path) in there]

    def _close(self, lake: LakeTable, run: FoundRun) -> bool:
        """Take a dead run's claim away. False = the log says something else by now."""
        held, closed = run.held, list[bool]()

        def change(state: TableState | None) -> Change | None:
            there = None if state is None else state.claim(held.identity, held.owner)
            closed[:] = [state is None or (there is None and held.epoch > 0)]
            if closed == [True]:
                return None
            # A run without a claim gets one that is taken away: if it wakes up, it finds this one.
            holds, found = held_now(held, there)
            if found is None or (found.owner, found.epoch) != (holds.owner, holds.epoch):
                return None
            given = protocol.release(found, holds)
            closed[:] = [given is not None]
            return None if given is None else Change(held.owner, given, operation="release")

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
            made = change(state)
            if made is None:
                return
            if put is not None:
                done = put(state, made)
            else:
                assert state is not None
                done = state.commit(made)
            if done:
                return
            if clock.now() >= deadline:
                raise CommitError(
                    f"other jobs committed to {lake.shown} first for {self.options.commit_timeout:g} s; "
                    f"nothing of job {made.job} was added. Run it again, or raise option commitTimeout"
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
        return self._made.of(state.files())

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
    with lake.store.place.fs.open_input_file(f"{lake.base}/{file.path}") as opened:
        for batch in pq.ParquetFile(opened).iter_batches(use_threads=False):
            rows += batch.num_rows
            yield pa.RecordBatch.from_arrays(batch.columns, schema=schema)
    if rows != file.rows:
        raise CommitError(
            f"{file.path} has {rows} rows, and its task has written {file.rows}: the disk is damaged, or another "
            f"program changes files of {lake.shown}. The table has the rows that it had before; run the job again"
        )


def lost_files(lake: LakeTable, added: Sequence[NewFile]) -> list[str]:
    """Those of staged files that are gone, or incomplete."""
    if not added:
        return []
    infos = lake.store.place.fs.get_file_info([f"{lake.base}/{file.path}" for file in added])
    return [
        file.path
        for file, info in zip(added, infos, strict=True)
        if info.type != pafs.FileType.File or info.size != file.size
    ]


def held_now(held: HeldClaim, found: Claim | None) -> tuple[HeldClaim, Claim | None]:
    """(what the run holds, what the table says) of a write that took no claim: its table was not there when it began,
    or no other run can have its name.

    No other run of the write has come to the table: then this one has the claim, in the commit that publishes.
    """
    if held.epoch == 0 and (found is None or _is_own(found, held)):
        held = replace(held, epoch=1)
        return held, found or Claim(held.identity, held.owner, 1)
    return held, found


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
    if not run.is_live():
        protocol.check(None, plan.claim)


def _is_own(found: Claim, held: HeldClaim) -> bool:
    """Whether a run without a claim has written this one, with the columns that it adds."""
    return held.epoch == 0 and held.identity.kind == "job" and found.owner == held.owner


def _is_narrow(columns: pa.Schema, field: pa.Field) -> bool:
    """Whether the table lacks the column, or has it with a type that does not hold all of its values."""
    place = columns.get_field_index(field.name)
    return place < 0 or not holds(columns.field(place).type, field.type)


def check_same(lake: LakeTable, state: TableState, plan: LakePlan) -> None:
    """Check that the table has the columns that the tasks wrote for.

    Raises:
        CommitError: another job has changed them.
    """
    for field in plan.rows.columns:
        index = state.columns.get_field_index(field.name)
        there = None if index < 0 else state.columns.field(index)
        same = (
            there is not None and there.type.equals(field.type) and there.metadata == field.metadata
        )
        if not same or (there is not None and not there.nullable and field.nullable):
            raise CommitError(
                f"column {field.name!r} of {lake.shown} was changed by another job while this one was writing. Nothing "
                f"of job {plan.job} was added; run it again"
            )
    names = set(plan.rows.columns.names)
    lost = [field.name for field in state.columns if not field.nullable and field.name not in names]
    if lost or tuple(state.partition_columns) != plan.rows.partition_by:
        what = (
            f"column {lost[0]!r} was added to" if lost else "the partition columns were changed of"
        )
        raise CommitError(
            f"{what} {lake.shown} by another job while this one was writing. Nothing of job {plan.job} was added; run "
            "it again"
        )


def _has_ended(claim: Claim | None, held: HeldClaim) -> bool:
    """Whether the log rejects every later publish of the run."""
    if claim is None:
        return False
    if claim.has_published(held.position) or not claim.owner:
        return True
    return claim.epoch > held.epoch and not _is_own(claim, held)


def _may_have_published(claim: Claim | None, held: HeldClaim) -> bool:
    if claim is None or held.epoch == 0 or held.identity.kind == "stream":
        return claim is not None
    return claim.epoch == held.epoch and claim.has_published(held.position)
