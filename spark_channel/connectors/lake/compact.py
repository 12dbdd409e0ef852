"""Merges the small data files of a lake table: writes that change no row, each of about a GiB, in commits of its log.

Neither library does this under the promises of a write here: pyiceberg has no such operation, and deltalake's
`optimize.compact` removes files by paths that it spells in its own way, so that rows of partitions such as `ü` would
stay beside the new ones (findings/delta-remove-is-spelled-anew.sh).
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from uuid import uuid4

import pyarrow as pa

from spark_channel.clock import utc_text
from spark_channel.connectors.base import claims as protocol
from spark_channel.connectors.base.compaction import Compaction, in_steps, published, small_groups
from spark_channel.connectors.base.contract import WriteContext
from spark_channel.connectors.files.file_errors import writing
from spark_channel.connectors.lake.publish import (
    LakePlan,
    LakePublisher,
    check_same,
    held_now,
    lost_files,
)
from spark_channel.connectors.lake.table import Change, LakeTable, NewFile, TableFile, TableState
from spark_channel.connectors.lake.task_writer import FileSet
from spark_channel.errors import ChannelError, CommitError, SourceError, TargetError

__all__ = ["LakeMerger"]


@dataclass(frozen=True)
class _Merged:
    """`file` None: the sources have no rows."""

    file: NewFile | None
    sources: Sequence[TableFile]


class LakeMerger(LakePublisher):
    """Writers of lake tables merge their files."""

    def compact(self, target_bytes: int, *, dry_run: bool = False) -> Compaction:
        lake = self.lake()
        with writing(lake.shown):
            table = _opened(lake)
            files = table.files()
            groups = small_groups(files, table.kind, lambda file: file.size, target_bytes)
            sources = [file for group in groups for file in group]
            result = Compaction(
                len(files),
                len(sources),
                sum(file.size for file in sources),
                len(groups),
                None if dry_run else 0,
                None,
                lake.merged_files,
            )
            if dry_run or not groups:
                return result
            run = _Run(self, lake, table.columns)
            merges = published(
                in_steps(groups, lambda file: file.size),
                run.merge,
                lambda merge: len(merge.sources),
            )
        files_made = [merge.file for merge in merges if merge.file is not None]
        replaced = [source for merge in merges for source in merge.sources]
        return replace(
            result,
            merged=len(replaced),
            merged_bytes=sum(file.size for file in replaced),
            made=len(files_made),
            made_bytes=sum(file.size for file in files_made),
            rows=sum(file.rows for file in files_made),
            left=tuple(run.left),
            dropped=len(sources) - len(replaced) - run.left_files,
        )


def _opened(lake: LakeTable) -> TableState:
    table = lake.open()
    if table is None:
        raise TargetError(f"{lake.shown} does not exist, so there is nothing to merge")
    table.check_writable(removes=False)  # of rows: those of removed files stay
    return table


@dataclass
class _Run:
    writer: LakePublisher
    lake: LakeTable
    columns: pa.Schema
    left: list[str] = field(default_factory=list)
    left_files: int = 0

    def merge(self, groups: Sequence[Sequence[TableFile]]) -> list[_Merged]:
        """Returns what was committed."""
        with writing(self.lake.shown):
            return self._merge(groups)

    def _merge(self, groups: Sequence[Sequence[TableFile]]) -> list[_Merged]:
        context = WriteContext(f"compact-{uuid4().hex[:12]}")
        plan = self.writer.prepare(context, self.columns)
        assert isinstance(plan, LakePlan)
        try:
            table = _opened(self.lake)
            check_same(self.lake, table, plan)
            merges = [self._merged(plan, table, group) for group in groups]
            committed = self._commit(plan, [merge for merge in merges if merge is not None])
        except BaseException:
            self.writer.abort(plan, None)
            raise
        if committed:
            self.writer.clear(self.lake, plan)
        else:
            self.writer.abort(plan, None)
        return committed

    def _merged(
        self, plan: LakePlan, table: TableState, group: Sequence[TableFile]
    ) -> _Merged | None:
        """None: the files stay, and `left` says why."""
        # Their size in memory is not what decides: the group is one file.
        options = self.writer.options.model_copy(update={"max_bytes_per_file": sys.maxsize})
        layout = replace(plan.rows, columns=table.columns, names=tuple(table.columns.names))
        run = self.writer.run_of(self.lake, plan)
        files = FileSet(run, layout, options, "merged", self.lake.shown)
        try:
            for source in group:
                rows = 0
                for batch in self.writer.read_file(self.lake, table, source, as_stored=True):
                    rows += batch.num_rows
                    files.write(batch)
                if source.rows not in (None, rows):
                    raise SourceError(
                        f"{source.path} has {rows} rows, and the log of {self.lake.shown} says {source.rows}: the file "
                        "is damaged, or was replaced; restore it"
                    )
            files.finish()
        except TargetError as error:  # a value that the table's columns do not hold
            files.drop()
            self._leave(group, f"{error}. Merge them in Spark")
            return None
        except SourceError as error:
            files.drop()
            there = {file.path for file in _opened(self.lake).files()}
            if all(source.path in there for source in group):
                self._leave(group, str(error))
            return None
        except BaseException:
            files.drop()
            raise
        if not files.files:
            return _Merged(None, group)
        if len(files.files) > 1 or not table.is_of(group[0], files.files[0]):
            files.drop()
            self._leave(
                group,
                "the value of their partition would be spelled in another way. Merge them in Spark",
            )
            return None
        return _Merged(table.with_bounds(files.files[0], group), group)

    def _leave(self, group: Sequence[TableFile], reason: str) -> None:
        self.left_files += len(group)
        self.left.append(f"{len(group)} files from {group[0].path} on: {reason}")

    def _commit(self, plan: LakePlan, merges: Sequence[_Merged]) -> list[_Merged]:
        """Without those of which another job has removed a source."""
        run, committed = self.writer.run_of(self.lake, plan), list[_Merged]()

        def change(state: TableState | None) -> Change | None:
            if state is None:
                raise TargetError(f"{self.lake.shown} was dropped while its files were merged")
            own_claim, current = held_now(plan.claim, state.claim(plan.claim.identity, plan.job))
            claim = protocol.publish(current, own_claim, at=utc_text(), rows=0, nbytes=0)
            if claim is None:
                return None
            state.check_writable(removes=False)
            check_same(self.lake, state, plan)
            by_path = {file.path: file for file in state.files()}
            committed[:] = [
                merge for merge in merges if all(one.path in by_path for one in merge.sources)
            ]
            if not committed:
                return None
            files = [merge.file for merge in committed if merge.file is not None]
            if lost := lost_files(self.lake, files):
                raise CommitError(
                    f"{lost[0]}, which was merged from files of {self.lake.shown}, is missing or incomplete: the table "
                    "was vacuumed without retention meanwhile. This step changed nothing; run it again"
                )
            run.note_publishing([file.path for file in files])
            return Change(
                plan.job,
                claim,
                files,
                [by_path[one.path] for merge in committed for one in merge.sources],
                operation="compact",
            )

        try:
            self.writer.commit_loop(self.lake, change)
        except CommitError:
            raise
        except (ChannelError, OSError, pa.ArrowException) as error:
            self.writer.settle(self.lake, plan, error)
        return committed
