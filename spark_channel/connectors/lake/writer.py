"""The writer of lakehouse tables: tasks write data files, the driver commits them in one conditional commit."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar
from uuid import uuid4

import pyarrow as pa

from spark_channel.clock import utc_now
from spark_channel.connectors.base import claims as protocol
from spark_channel.connectors.base.claims import (
    Claim,
    HeldClaim,
    Identity,
    StreamProgress,
    own_process,
)
from spark_channel.connectors.base.contract import (
    TaskWriter,
    WriteContext,
    WritePlan,
)
from spark_channel.connectors.base.definition import notes_of, with_not_null
from spark_channel.connectors.base.kept_claims import ClaimName, KeptClaim, overlap
from spark_channel.connectors.base.overlap import counted
from spark_channel.connectors.files.conditions import Condition
from spark_channel.connectors.files.file_errors import writing
from spark_channel.connectors.lake.columns import check_no_char, find_names, match
from spark_channel.connectors.lake.compact import LakeMerger
from spark_channel.connectors.lake.options import LakeWriteOptions
from spark_channel.connectors.lake.publish import LakePlan
from spark_channel.connectors.lake.runs import FoundRun, all_runs, new_run_name
from spark_channel.connectors.lake.table import (
    NO_NOTES,
    Change,
    CreatedMeanwhileError,
    LakeTable,
    TableNotes,
    TableState,
)
from spark_channel.connectors.lake.task_writer import LakeTask, Layout
from spark_channel.errors import OptionError, SchemaError, TargetError
from spark_channel.plain_text import log_of

__all__ = ["LakeWriter"]

_log = log_of(__name__)


class LakeWriter(LakeMerger):
    """One subclass per table format."""

    makes_files = True
    partitions_outside: ClassVar[bool]
    """Whether data files leave partition columns out."""
    empty_text_is_null: ClassVar[bool] = False

    def place(self, lake: LakeTable) -> Any:
        """The plain data with which a task opens `lake`."""
        return None

    def exists(self) -> bool | None:
        return self.lake().open() is not None

    def foreign_content(self, schema: pa.Schema) -> str:
        lake = self.lake()
        with writing(lake.shown):
            table = lake.open()
            if table is None or table.overwrites:
                return ""
            files = len(table.files())
        if not files:
            return ""
        part = "rows in up to " if self.options.replace_where is not None else ""
        content = f"{part}{counted(files, 'file')}"
        return f"{content} of a table that spark-channel has not overwritten before"

    def stream_progress(self, stream: str) -> StreamProgress | None:
        lake = self.lake()
        with writing(lake.shown):
            table = lake.open()
            identity = Identity(lake.shown, "stream", stream)
            return None if table is None else protocol.progress_of(table.claim(identity, ""))

    def forget_stream(self, stream: str) -> None:
        lake = self.lake()

        def change(state: TableState | None) -> Change | None:
            identity = Identity(lake.shown, "stream", stream)
            claim = None if state is None else state.claim(identity, "")
            if claim is None:
                return None
            return Change("reset", protocol.forget(claim), operation="release")

        with writing(lake.shown):
            if (table := lake.open()) is not None:
                self.commit_loop(lake, change, table)

    def kept_claims(self, names: Sequence[ClaimName] = ()) -> list[KeptClaim]:
        lake = self.lake()
        with writing(lake.shown):
            table = lake.open()
            return [] if table is None else _kept(lake, table, names)

    def forget_claims(self, claims: Sequence[KeptClaim]) -> list[KeptClaim]:
        lake, job = self.lake(), f"forget-{uuid4().hex[:12]}"
        forgotten: list[KeptClaim] = []

        def change(state: TableState | None) -> Change | None:
            if state is None:
                return None
            names = [ClaimName(claim.kind, claim.name, claim.versions) for claim in claims]
            by_key = {claim.key: claim for claim in claims}
            forgotten[:] = []
            for existing in _kept(lake, state, names):
                if existing.is_held or existing.key not in by_key:
                    continue
                versions = overlap(existing.versions, by_key[existing.key].versions)
                if bool(versions) == bool(existing.versions):
                    forgotten.append(replace(existing, versions=versions))
            if not forgotten:
                return None
            identity = Identity(lake.shown, "job", job)
            at = utc_now().isoformat(timespec="seconds")
            claim = Claim(identity, job, state="published", published_at=at)
            return Change(job, claim, operation="forget", forgotten=tuple(forgotten))

        with writing(lake.shown):
            if (table := lake.open()) is not None:
                # Of runs that have ended by these claims: a log without them would let one publish that sleeps.
                self._remove_ended(lake, seen=table)
                self.commit_loop(lake, change, table)
        return forgotten

    def rehearse(self, context: WriteContext, schema: pa.Schema) -> None:
        self._check_mode(context)
        lake = self.lake()
        with writing(lake.shown):
            lake.check_may_write()
            self._planned(lake, lake.open(), context, schema)

    def _check_mode(self, context: WriteContext) -> None:
        """
        Raises:
            OptionError: the options and the write's mode contradict each other.
        """
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

    def prepare(self, context: WriteContext, schema: pa.Schema) -> WritePlan:
        self._check_mode(context)
        lake = self.lake()
        with writing(lake.shown):
            lake.check_commits()
            try:
                table = lake.open()
                plan = self._planned(lake, table, context, schema)
            except CreatedMeanwhileError:
                lake = self.lake()
                table = lake.open()
                plan = self._planned(lake, table, context, schema)
            identity = Identity.for_write(lake.shown, context)
            process = "" if context.stream is not None else own_process()
            plan = replace(plan, place=self.place(lake))
            claim = _unclaimed(table, plan, context, identity)
            if claim is not None:
                begun, others = self._begun(lake, plan, claim, process, table)
                rivals = [run for run in others if run.is_rival(claim)] if begun.deferred else []
                if not rivals:
                    return begun
                self.run_of(lake, begun).remove()
                _warn_overtaken(lake, context.job, rivals[-1].held.owner)
            assert table is not None
            decision = self._take(lake, table, context, identity, process)
            if decision.held is None:
                # The driver that published may have died right after.
                self._tidy(lake, context.job)
                return replace(plan, published_at=decision.published_at or "an unknown time")
            return self._begun(lake, plan, decision.held, process)[0]

    def _begun(
        self,
        lake: LakeTable,
        plan: LakePlan,
        claim: HeldClaim,
        process: str,
        unclaimed: TableState | None = None,
    ) -> tuple[LakePlan, list[FoundRun]]:
        """The plan of a run that has begun, and the runs that are beside it. `unclaimed`: the table, which has no claim
        of the run.
        """
        plan = replace(
            plan,
            held=claim,
            run=new_run_name(plan.job, claim.epoch),
            table="" if unclaimed is None else unclaimed.identity,
        )
        try:
            self.run_of(lake, plan).begin(claim, process, deferred=plan.deferred)
            return plan, self._remove_ended(lake, seen=unclaimed)
        except BaseException:
            self._give_back(lake, plan)
            raise

    def _planned(
        self, lake: LakeTable, table: TableState | None, context: WriteContext, schema: pa.Schema
    ) -> LakePlan:
        options: LakeWriteOptions = self.options
        new: list[pa.Field] = []
        wider: list[pa.Field] = []
        notes = NO_NOTES
        if table is None:
            defined, notes = self._defined(lake, context, schema)
            columns = lake.planned_columns(defined, ())
            partition_by = find_names(options.partition_by or (), columns, "partitionBy")
            columns = lake.planned_columns(defined, partition_by)
            names = {
                field.name: field_given.name
                for field, field_given in zip(columns, schema, strict=True)
            }
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
            notes=notes,
            gathers=context.gathers,
        )

    def _defined(
        self, lake: LakeTable, context: WriteContext, schema: pa.Schema
    ) -> tuple[pa.Schema, TableNotes]:
        """The columns of a new table and its notes, with what `createTable` asks for of its source's definition.

        Raises:
            OptionError: the rows do not come from one table.
        """
        self.left_out = ()
        level = self.options.create_table
        if level == "columns":
            return schema, NO_NOTES
        keys_only = level == "keys"
        definition = None if context.definition is None else context.definition(keys_only=keys_only)
        if definition is None:
            raise OptionError(
                f"option 'createTable' got {level!r}, and the rows of {lake.shown} are not those of one table, "
                "unchanged, of a database that says how it is defined: omit it",
                option="createTable",
                got=level,
                takes="columns",
            )
        schema = with_not_null(schema, definition)
        names, comments, left_out = notes_of(definition, schema, is_full=not keys_only)
        comment = None if keys_only else definition.comment
        notes = TableNotes(names, comment, tuple(comments.items()))
        if left_out:
            _log.warning(
                "%s is made without %s: the format has none", lake.shown, "; ".join(left_out)
            )
        self.left_out = tuple(left_out)
        return schema, notes

    def _matched(
        self, lake: LakeTable, table: TableState, schema: pa.Schema
    ) -> tuple[dict[str, str], list[pa.Field], list[pa.Field]]:
        """See `match`; with onSchemaChange=ignore, the rows' columns that the table lacks are none."""
        mode = self.options.on_schema_change

        def widen(column: pa.Field, kind: pa.DataType) -> pa.Field | None:
            matched = (
                table.wider(column, kind) if column.name not in table.partition_columns else None
            )
            if mode == "evolve" and matched is not None:
                return matched
            advice = (
                "onSchemaChange=evolve widens the column"
                if matched is not None
                else table.retyped(column, kind)
            )
            advices.append(advice)
            return None

        advices: list[str] = []
        try:
            names, new, wider = match(schema, table.columns, lake.shown, widen)
        except SchemaError as error:
            raise SchemaError(
                f"{error}{''.join(f', or: {advice}' for advice in advices)}"
            ) from None
        if not names and mode == "ignore":
            raise SchemaError(
                f"{lake.shown} has none of the rows' columns, which are {', '.join(schema.names)}: name another table, "
                "or rename the columns"
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

    def _check_partitions(self, table: TableState, label: str) -> tuple[str, ...]:
        columns_asked = self.options.partition_by
        columns = table.partition_columns
        if columns_asked is not None and [name.lower() for name in columns_asked] != [
            name.lower() for name in columns
        ]:
            raise OptionError(
                f"option 'partitionBy' got {', '.join(columns_asked)!r}, and {label} is partitioned "
                f"by {', '.join(columns) or 'nothing'}; omit the option, which is for new tables",
                option="partitionBy",
                got=", ".join(columns_asked),
                takes=", ".join(columns),
            )
        return columns

    def _within(self, columns: pa.Schema) -> Condition | None:
        if self.options.replace_where is None:
            return None
        from spark_channel.connectors.files.where import parse_where

        try:
            condition = parse_where(self.options.replace_where, columns)
        except OptionError as error:
            raise OptionError(
                str(error).replace("'where'", "'replaceWhere'"),
                option="replaceWhere",
                got=error.got,
                takes=error.takes,
            ) from None
        check_no_char(condition.columns, columns, "replaceWhere")
        return condition

    def _take(
        self,
        lake: LakeTable,
        table: TableState,
        context: WriteContext,
        identity: Identity,
        process: str,
    ) -> protocol.ClaimDecision:
        position = context.stream[1] if context.stream else None
        decisions: list[protocol.ClaimDecision] = []

        def change(state: TableState | None) -> Change | None:
            if state is None:
                raise TargetError(
                    f"{lake.shown} was dropped while a write to it began; run it again"
                )
            current = state.claim(identity, context.job)
            now = utc_now().isoformat(timespec="seconds")
            decisions[:] = [
                protocol.take(
                    current,
                    identity,
                    context.job,
                    position=position,
                    follows=context.follows,
                    process=process,
                    now=now,
                )
            ]
            claim = decisions[0].claim
            return None if claim is None else Change(context.job, claim, operation="claim")

        self.commit_loop(lake, change, table)
        if decisions[0].overtaken is not None:
            _warn_overtaken(lake, context.job, decisions[0].overtaken.owner)
        return decisions[0]

    def open(self, plan: WritePlan, task: int, attempt: int) -> TaskWriter:
        assert isinstance(plan, LakePlan)
        run, label = None, ""
        if plan.published_at is None:
            lake = self.lake(plan.place)
            run, label = self.run_of(lake, plan), lake.shown
        return LakeTask(
            run,
            plan.rows,
            self.options,
            task,
            attempt,
            shown=label,
            key=plan.key,
            within=plan.within,
        )


def _unclaimed(
    table: TableState | None, plan: LakePlan, context: WriteContext, identity: Identity
) -> HeldClaim | None:
    """The claim of a write whose first commit may be the one that publishes; None = it takes its claim before.

    Its epoch is that of the table's claim, which must be the same then. A run that meets another one of its write, or
    adds columns before its rows, takes its claim before: so the later of two runs wins, and the other one stops early.
    """
    position = context.stream[1] if context.stream else None
    held_by_run = HeldClaim(identity, context.job, 0, position, follows=context.follows)
    if table is None:
        return held_by_run
    current = table.claim(identity, context.job)
    if identity.kind == "job":
        # Another run of a job has another name, so that none needs to be kept out before the publish.
        return held_by_run if current is None else None
    if plan.new:
        return None
    if current is None:
        return held_by_run
    # A log may forget the claim of a version that was given back, and its epoch then.
    if identity.kind == "txn" or current.owner or current.has_published(position):
        return None
    return replace(held_by_run, epoch=current.epoch)


def _kept(lake: LakeTable, table: TableState, names: Sequence[ClaimName]) -> list[KeptClaim]:
    """The claims that the log keeps. That of a stream is held while a run of its next batch has begun, which notes that
    beside the table alone.
    """
    kept_claims = table.kept(lake.shown, names)
    if all(claim.is_held for claim in kept_claims if claim.kind == "stream"):
        return kept_claims
    runs, _ = all_runs(lake.store, lake.base, lake.data, lake.shown)
    live = {
        run.held.identity.name: run.held.owner
        for run in runs
        if run.held.identity.kind == "stream"
        and run.run.is_live()
        and not run.has_ended(table.own_claim(run.held.identity, run.held.owner))
    }
    return [
        replace(claim, is_held=True, run=live[claim.name])
        if claim.kind == "stream" and claim.name in live
        else claim
        for claim in kept_claims
    ]


def _warn_overtaken(lake: LakeTable, job: str, owner: str) -> None:
    _log.warning("job %s takes the claim on %s over from run %s", job, lake.shown, owner)


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
