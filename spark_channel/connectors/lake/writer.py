"""The writer of lakehouse tables: tasks write data files, the driver commits them in one conditional commit.

The claim is in the table's own log. Each commit of a write (claim, new columns, publish, release) is the version after
the one that was looked at, or is not written at all: what was decided holds when it is written. A table that is not
there has no log: the first driver that creates it publishes, and the others find that out.
"""

import dataclasses
import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs as pafs

from spark_channel.clock import utc_now
from spark_channel.connectors.base import claims as protocol
from spark_channel.connectors.base.claims import Claim, HeldClaim, Identity, own_process
from spark_channel.connectors.base.contract import (
    Receipt,
    TaskWriter,
    WriteContext,
    WritePlan,
    Writer,
)
from spark_channel.connectors.files.conditions import Condition
from spark_channel.connectors.files.filesystem import writing
from spark_channel.connectors.lake.replace import KeyMatch, Replaced, RowMatcher, WhereMatch
from spark_channel.connectors.lake.table import (
    Change,
    LakeTable,
    LakeWriteOptions,
    NewFile,
    TableFile,
    TableState,
    find_names,
    holds,
    match,
)
from spark_channel.connectors.lake.task_writer import (
    FileSet,
    LakeTask,
    Layout,
    Run,
    all_runs,
    new_files,
    new_run_name,
    remove_stray_notes,
)
from spark_channel.errors import CommitError, OptionError, SchemaError, SupersededError, TargetError
from spark_channel.options import WriteOptions

__all__ = ["LakePlan", "LakeWriter"]

_log = logging.getLogger(__name__)

_FIRST_WAIT, _LONGEST_WAIT = 0.005, 1.0


@dataclass(frozen=True)
class LakePlan(WritePlan):
    """`run` names the run's notes and folder; `new` are columns that the table gets before the rows, or that get
    another type.
    """

    run: str = ""
    layout: Layout | None = None
    new: tuple[pa.Field, ...] = ()
    within: Condition | None = None
    key: tuple[str, ...] = ()
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


class LakeWriter(Writer):
    """One subclass per table format."""

    Options: ClassVar[type[WriteOptions]] = LakeWriteOptions
    partitions_outside: ClassVar[bool]
    """Whether data files leave partition columns out."""
    empty_text_is_null: ClassVar[bool] = False

    def lake(self, place: Any = None) -> LakeTable:
        """The table; `place` is a plan's, in a task."""
        raise NotImplementedError

    def place(self, lake: LakeTable) -> Any:
        """The plain data with which a task opens `lake`."""
        return None

    def read_file(self, lake: LakeTable, table: TableState, file: TableFile) -> Any:
        """The rows of one data file, in the table's columns: batches."""
        raise NotImplementedError

    def exists(self) -> bool | None:
        return self.lake().open() is not None

    def prepare(self, context: WriteContext, schema: pa.Schema) -> WritePlan:
        options: LakeWriteOptions = self.options
        if context.commit == "task":
            raise OptionError(
                "option 'commit' got 'task'; a table's log takes one commit for all tasks. "
                "It takes 'job', which is the default",
                option="commit",
                got="task",
                takes="job",
            )
        if options.replace_where is not None and not context.overwrite:
            raise OptionError(
                "option 'replaceWhere' says which rows an overwrite replaces, and this write appends; use mode "
                "overwrite, or omit the option",
                option="replaceWhere",
                got=options.replace_where,
            )
        if options.write_mode == "upsert" and context.overwrite:
            raise OptionError(
                "option 'writeMode' got 'upsert', and the write's mode is overwrite; use mode append",
                option="writeMode",
                got="upsert",
            )
        lake = self.lake()
        with writing(lake.shown):
            table = lake.open()
            plan = self._planned(lake, table, context, schema)
            identity = Identity.of(lake.shown, context)
            position = context.stream[1] if context.stream else None
            process = "" if context.stream is not None else own_process()
            if table is None:
                held = HeldClaim(identity, context.job, 0, position)
            else:
                taken = self._take(lake, table, context, identity, process)
                if taken.held is None:
                    self._tidy(
                        lake, context.job
                    )  # the driver that published may have died right after
                    return replace(plan, published_at=taken.published_at or "an unknown time")
                held = taken.held
            plan = replace(
                plan, held=held, run=new_run_name(context.job, held.epoch), place=self.place(lake)
            )
            try:
                self._run(lake, plan).begin(held, process)
                self._remove_ended(lake)
            except BaseException:
                self._give_back(lake, plan)
                raise
        return plan

    def _planned(
        self, lake: LakeTable, table: TableState | None, context: WriteContext, schema: pa.Schema
    ) -> LakePlan:
        options: LakeWriteOptions = self.options
        new: list[pa.Field] = []
        wider: list[pa.Field] = []
        if table is None:
            columns = lake.planned_columns(schema, ())
            partition_by = find_names(options.partition_by or (), columns, "partitionBy")
            columns = lake.planned_columns(schema, partition_by)
            names = {field.name: given.name for field, given in zip(columns, schema, strict=True)}
        else:
            removes = context.overwrite or options.write_mode == "upsert"
            table.check_writable(removes=removes)
            columns = table.columns
            names, new, wider = self._matched(lake, table, schema)
            new = self._check_new(lake, table, new)
            partition_by = self._check_partitions(table, lake.shown)
            wide = {field.name: field for field in wider}
            columns = pa.schema([*(wide.get(name, columns.field(name)) for name in names), *new])
            names |= {field.name: field.name for field in new}
            lost = [name for name in partition_by if name not in names]
            if lost:
                raise SchemaError(
                    f"the rows lack {lost[0]!r}, by which {lake.shown} is partitioned; add the column"
                )
        key = find_names(options.key_columns or (), columns, "keyColumns")
        _check_keys(key, columns)
        if key and table is not None and len(names) < len(table.columns):
            lost = [name for name in table.columns.names if name not in names]
            raise SchemaError(
                f"writeMode=upsert replaces whole rows of {lake.shown}, and the rows lack column {lost[0]!r}; add it"
            )
        layout = Layout(
            columns,
            tuple(names[name] for name in columns.names),
            partition_by,
            self.partitions_outside,
            self.empty_text_is_null,
        )
        within = self._within(columns)
        return LakePlan(
            context.job,
            schema,
            "job",
            context.overwrite,
            context.txn,
            layout=layout,
            new=(*wider, *new),
            within=within,
            key=key,
        )

    def _matched(
        self, lake: LakeTable, table: TableState, schema: pa.Schema
    ) -> tuple[dict[str, str], list[pa.Field], list[pa.Field]]:
        """See `match`; with onSchemaChange=ignore, the rows' columns that the table lacks are none."""
        mode = self.options.on_schema_change

        def widen(column: pa.Field, kind: pa.DataType) -> pa.Field | None:
            found = (
                table.wider(column, kind) if column.name not in table.partition_columns else None
            )
            if mode == "evolve" and found is not None:
                return found
            advice = (
                "onSchemaChange=evolve widens the column"
                if found is not None
                else table.retyped(column, kind)
            )
            told.append(advice)
            return None

        told: list[str] = []
        try:
            names, new, wider = match(schema, table.columns, lake.shown, widen)
        except SchemaError as error:
            raise SchemaError(f"{error}{''.join(f', or: {each}' for each in told)}") from None
        if not names and mode == "ignore":
            raise SchemaError(
                f"{lake.shown} has none of the rows' columns, which are {', '.join(schema.names)}: is it the right "
                "table?"
            )
        return names, [] if mode == "ignore" else new, wider

    def _check_new(
        self, lake: LakeTable, table: TableState, new: Sequence[pa.Field]
    ) -> list[pa.Field]:
        if new and self.options.on_schema_change == "fail":
            names = ", ".join(repr(field.name) for field in new)
            raise SchemaError(
                f"{lake.shown} has no column {names}; omit it from the rows, or let the write add "
                "it with onSchemaChange=evolve, or leave it out with onSchemaChange=ignore"
            )
        return table.planned_new([field.with_nullable(True) for field in new]) if new else []

    def _check_partitions(self, table: TableState, shown: str) -> tuple[str, ...]:
        asked = self.options.partition_by
        there = table.partition_columns
        if asked is not None and [name.lower() for name in asked] != [
            name.lower() for name in there
        ]:
            raise OptionError(
                f"option 'partitionBy' got {', '.join(asked)!r}, and {shown} is partitioned "
                f"by {', '.join(there) or 'nothing'}; omit the option, which is for new tables",
                option="partitionBy",
                got=", ".join(asked),
                takes=", ".join(there),
            )
        return there

    def _within(self, columns: pa.Schema) -> Condition | None:
        if self.options.replace_where is None:
            return None
        from spark_channel.connectors.files.where import parse_where

        try:
            return parse_where(self.options.replace_where, columns)
        except OptionError as error:
            raise OptionError(
                str(error).replace("'where'", "'replaceWhere'"),
                option="replaceWhere",
                got=error.got,
                takes=error.takes,
            ) from None

    def _take(
        self,
        lake: LakeTable,
        table: TableState,
        context: WriteContext,
        identity: Identity,
        process: str,
    ) -> protocol.ClaimDecision:
        position = context.stream[1] if context.stream else None
        taken: list[protocol.ClaimDecision] = []

        def change(state: TableState | None) -> Change | None:
            if state is None:
                raise TargetError(
                    f"{lake.shown} was dropped while a write to it began; run it again"
                )
            found = state.claim(identity, context.job)
            now = utc_now().isoformat(timespec="seconds")
            taken[:] = [
                protocol.take(
                    found, identity, context.job, position=position, process=process, now=now
                )
            ]
            claim = taken[0].claim
            return None if claim is None else Change(context.job, claim, operation="claim")

        self._commit_loop(lake, change, table)
        if taken[0].overtaken is not None:
            _log.warning(
                "job %s takes the claim on %s over from run %s",
                context.job,
                lake.shown,
                taken[0].overtaken.owner,
            )
        return taken[0]

    def _commit_loop(
        self,
        lake: LakeTable,
        change: Callable[[TableState | None], Change | None],
        table: TableState | None = None,
        *,
        put: Callable[[TableState | None, Change], bool] | None = None,
    ) -> None:
        """Commit what `change` decides on the newest state, and decide again when another job was first."""
        clock = lake.store.clock
        deadline, wait = clock.now() + self.options.commit_timeout, _FIRST_WAIT
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
            clock.sleep(wait * random.uniform(0.0, 1.0))  # noqa: S311 - spreads the tries of several jobs
            wait = min(wait * 1.5, _LONGEST_WAIT)
            state = lake.open()

    def open(self, plan: WritePlan, task: int, attempt: int) -> TaskWriter:
        assert isinstance(plan, LakePlan)
        run, shown = None, ""
        if plan.published_at is None:
            lake = self.lake(plan.place)
            run, shown = self._run(lake, plan), lake.shown
        return LakeTask(
            run,
            plan.rows,
            self.options,
            task,
            attempt,
            shown=shown,
            key=plan.key,
            within=plan.within,
        )

    def commit(self, plan: WritePlan, receipts: Sequence[Receipt]) -> None:
        assert isinstance(plan, LakePlan)
        if plan.published_at is not None:
            return
        lake = self.lake(plan.place)
        with writing(lake.shown):
            self._renew(lake, plan)
            try:
                self._publish(lake, plan, receipts)
            except SupersededError:
                self._clear(lake, plan)
                raise
            self._clear(lake, plan)

    def _renew(self, lake: LakeTable, plan: LakePlan) -> None:
        try:
            lake.renew(plan.rows.columns)
        except (TargetError, OSError, pa.ArrowException) as error:
            _log.debug(
                "job %s: credentials for %s are those of its start: %s", plan.job, lake.shown, error
            )

    def _publish(self, lake: LakeTable, plan: LakePlan, receipts: Sequence[Receipt]) -> None:
        added = new_files(receipts)
        if self._was_published(lake, plan, added):
            self._warn_published(plan)
            return
        run = self._run(lake, plan)
        replaced = self._replaced(lake, plan, added)
        done: list[bool] = []

        def change(state: TableState | None) -> Change | None:
            held, found = _held_now(
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
            made = Change(
                plan.job, claim, added, operation="overwrite" if plan.overwrite else "append"
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
            self._commit_loop(lake, change, put=put)
        except (CommitError, OptionError, SchemaError):
            raise
        except (TargetError, OSError, pa.ArrowException) as error:
            self._settle(lake, plan, error)
        if done == [False]:
            self._warn_published(plan)

    def _warn_published(self, plan: LakePlan) -> None:
        _log.warning(
            "%s was published before: nothing is added by job %s",
            plan.claim.identity.shown,
            plan.job,
        )

    def _on(
        self,
        lake: LakeTable,
        state: TableState,
        plan: LakePlan,
        made: Change,
        replaced: "_Replacement | None",
    ) -> Change:
        """The change for this state of the table."""
        _check_same(lake, state, plan)
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
        run = self._run(lake, plan)
        if plan.key:
            return _Replacement(
                self, lake, plan, run, KeyMatch(self._keys(lake, plan, added), plan.key)
            )
        if plan.within is not None:
            return _Replacement(self, lake, plan, run, WhereMatch(plan.within))
        return None

    def _keys(self, lake: LakeTable, plan: LakePlan, added: Sequence[NewFile]) -> pa.Table:
        """The keys of all rows that were written."""
        wanted = pa.schema([pa.field(n, plan.rows.columns.field(n).type) for n in plan.key])
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
        return pa.concat_tables(tables) if tables else wanted.empty_table()

    def _evolve(self, lake: LakeTable, plan: LakePlan) -> None:
        """Add the new columns and widen others, in a separate commit that is fenced as the publish is."""
        if not plan.new:
            return
        missing: list[pa.Field] = []

        def change(state: TableState | None) -> Change | None:
            if state is None:
                return None  # the table is created with them
            held, found = _held_now(plan.claim, state.claim(plan.claim.identity, plan.job))
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

        self._commit_loop(lake, change, put=put)

    def _settle(self, lake: LakeTable, plan: LakePlan, error: Exception) -> None:
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
            held, found = _held_now(plan.claim, state.claim(plan.claim.identity, plan.job))
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
            self._commit_loop(lake, change)
        except SupersededError as second:
            raise second from error
        except (TargetError, OSError, pa.ArrowException) as second:
            raise CommitError(
                f"publishing into {lake.shown} failed: {error}; and whether it was published is unknown: "
                f"{second}. Run it again with the same txnAppId and txnVersion: what was published is not added again"
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
        if not added:
            return False
        paths = [f"{lake.base}/{file.path}" for file in added]
        infos = lake.store.place.fs.get_file_info(paths)
        lost = [
            f.path
            for f, info in zip(added, infos, strict=True)
            if info.type != pafs.FileType.File or info.size != f.size
        ]
        if not lost:
            return False
        state = lake.open()
        held, found = _held_now(
            plan.claim, None if state is None else state.claim(plan.claim.identity, plan.job)
        )
        if found is not None and found.has_published(held.position):
            return True
        protocol.check(found, held)
        raise CommitError(
            f"{len(lost)} data files of job {plan.job}, such as {lost[0]}, "
            f"are missing or incomplete in {lake.shown}: was the table vacuumed without retention, "
            "or is its directory not shared by all executors and the driver? The table has the rows "
            "that it had before"
        )

    def abort(self, plan: WritePlan, receipts: Sequence[Receipt | None] | None) -> None:
        assert isinstance(plan, LakePlan)
        if plan.published_at is not None:
            return
        lake = self.lake(plan.place)
        with writing(lake.shown):
            self._give_back(lake, plan)

    def _give_back(self, lake: LakeTable, plan: LakePlan) -> None:
        def change(state: TableState | None) -> Change | None:
            if state is None or plan.claim.epoch == 0:
                return None
            given = protocol.release(state.claim(plan.claim.identity, plan.job), plan.claim)
            return None if given is None else Change(plan.job, given, operation="release")

        self._commit_loop(lake, change)
        self._clear(lake, plan, aborted=True)

    def _run(self, lake: LakeTable, plan: LakePlan) -> Run:
        return Run(lake.store, lake.base, lake.data, plan.run)

    def _clear(self, lake: LakeTable, plan: LakePlan, *, aborted: bool = False) -> None:
        """Remove what the write left, after it has ended one way or the other."""
        self._tidy(
            lake, plan.job, own=plan if aborted else None, only=plan.claim.identity, last=plan.run
        )

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
    ) -> None:
        """Remove the files of runs that cannot publish any more, but those that were published.

        The table is looked at first: a run that its log has ended then cannot publish later. `own`: a run that will
        not publish since it is this one, and it was aborted.
        """
        state = lake.open()
        found, published = all_runs(lake.store, lake.base, lake.data, lake.shown)
        # This run last: it may have published files of another one of its job.
        for each in sorted(found, key=lambda one: one.run.name == last):
            held = each.held
            if only is not None and held.identity.key != only.key:
                continue
            claim = None if state is None else state.claim(held.identity, held.owner)
            if _has_ended(claim, held):
                each.run.remove(keep=published if _may_have_published(claim, held) else ())
            elif own is not None and each.run.name == own.run and claim is None:
                each.run.remove()
            elif only is None and each.run.is_dead(held) and self._close(lake, held):
                _log.info(
                    "%s: removing what run %s left, whose process has ended", lake.shown, held.owner
                )
                each.run.remove()
        remove_stray_notes(lake.store, lake.base)

    def _close(self, lake: LakeTable, held: HeldClaim) -> bool:
        """Take a dead run's claim away. False = the log says something else by now."""
        closed: list[bool] = []

        def change(state: TableState | None) -> Change | None:
            found = None if state is None else state.claim(held.identity, held.owner)
            closed[:] = [found is None]
            if found is None or (found.owner, found.epoch) != (held.owner, held.epoch):
                return None
            given = protocol.release(found, held)
            closed[:] = [given is not None]
            return None if given is None else Change(held.owner, given, operation="release")

        self._commit_loop(lake, change)
        return closed == [True]


@dataclass
class _Replacement:
    """`Replaced`, made for the first state of the table that is published to."""

    writer: LakeWriter
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


def _held_now(held: HeldClaim, found: Claim | None) -> tuple[HeldClaim, Claim | None]:
    """(what the run holds, what the table says) of a write whose table was not there when it began.

    No other run of the write has come to the table: then this one has the claim, in the commit that publishes.
    """
    if held.epoch == 0 and found is None:
        held = replace(held, epoch=1)
        return held, Claim(held.identity, held.owner, 1)
    return held, found


def _has_ended(claim: Claim | None, held: HeldClaim) -> bool:
    """Whether the log rejects every later publish of the run."""
    if claim is None:
        return False
    return claim.has_published(held.position) or claim.epoch > held.epoch or not claim.owner


def _may_have_published(claim: Claim | None, held: HeldClaim) -> bool:
    if claim is None or held.epoch == 0 or held.identity.kind == "stream":
        return claim is not None
    return claim.epoch == held.epoch and claim.has_published(held.position)


def _check_keys(key: Sequence[str], columns: pa.Schema) -> None:
    """
    Raises:
        OptionError: a column whose values have no order and no equality here.
    """
    for name in key:
        kind = columns.field(name).type
        if pa.types.is_nested(kind):
            raise OptionError(
                f"option 'keyColumns' names {name!r}, which is {kind}: a key is a plain value; name other columns",
                option="keyColumns",
                got=name,
            )


def _is_narrow(columns: pa.Schema, field: pa.Field) -> bool:
    """Whether the table lacks the column, or has it with a type that does not hold all of its values."""
    place = columns.get_field_index(field.name)
    return place < 0 or not holds(columns.field(place).type, field.type)


def _check_same(lake: LakeTable, state: TableState, plan: LakePlan) -> None:
    """Hold the table to have the columns that the tasks wrote for.

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
