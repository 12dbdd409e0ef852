"""One verification: checksums of all rows, the rows of buckets that differ, and looks at them again."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from itertools import count, islice
from typing import Any, cast

import numpy as np
import pyarrow as pa

from spark_channel.clock import utc_now, utc_text
from spark_channel.errors import ChannelError, LimitError, SourceError
from spark_channel.plain_text import log_of
from spark_channel.planning import Endpoint, Split, Task, TaskGroup, TransferSpec, advise
from spark_channel.planning.tasks import assign_fairly
from spark_channel.planning.transfer import wanted_channels
from spark_channel.progress import JobSpec, Phase
from spark_channel.progress.report import many, plain_end
from spark_channel.service import ServiceAddress
from spark_channel.service.launch import JobReporter, reason_of
from spark_channel.transfers.channels import channel_bound
from spark_channel.transfers.job_link import JobLink
from spark_channel.transfers.job_spec import read_spec
from spark_channel.transfers.limits import JobLimits, is_limited
from spark_channel.transfers.options import JobOptions
from spark_channel.transfers.task import Engine
from spark_channel.transfers.write_job import job_name
from spark_channel.verification.compare import (
    Buckets,
    Checksums,
    Differences,
    Entries,
    Mask,
    Places,
    among,
    find_differences,
    parts_of,
    rounds,
    rows_of,
)
from spark_channel.verification.compared_columns import bucket_edges, match_columns
from spark_channel.verification.compared_tables import MOST_KEYS, ROWS_PER_KEY, open_sides
from spark_channel.verification.differing_rows import DifferingKeys, differing_rows
from spark_channel.verification.hashes import Hashes
from spark_channel.verification.in_database import (
    DatabaseSums,
    Run,
    Summed,
    run_splits,
    same_hashes,
    sums_of_runs,
)
from spark_channel.verification.report import VerifyReport, VerifySettings
from spark_channel.verification.tasks import (
    Details,
    PassRunner,
    ReadWork,
    Selection,
    SideWork,
    changed_columns,
)

__all__ = ["Verification"]

_log = log_of(__name__)

_ROWS_PER_BUCKET = 128
_MOST_RANGES, _MOST_BITS = 65_536, 18
_MOST_ROWS = 2_000_000
"""Rows of both sides whose hashes are in memory at the same time: so many, or those of one key."""
_MOST_CANDIDATES = 1_000_000
"""Keys that are looked at again, if they have no more than `_MOST_ROWS`; of more, the first ones are."""
_MOST_DETAILED = 200_000
"""Rows of both sides of which each value's hash is in memory at the same time: so many, or those of one key."""
_LISTED_ROWS = 100_000
"""Fewer rows are read at once, rather than listed with their hashes and read where these differ."""
_NONE = np.zeros(0, np.uint64)
_SAMPLES = 1_000
_BINS = 40
_FIRST_WAIT, _LONGER, _LONGEST_WAIT = 1.0, 4.0, 64.0


class Verification:
    """One run, without repair. `run` is called once; then `differences` has the keys that differ."""

    def __init__(self, engine: Engine, job: JobOptions, settings: VerifySettings) -> None:
        self.engine, self._settings = engine, settings
        self.job_options = job
        self._spec: TransferSpec = job.spec
        self._clock = settings.clock
        self._began, self._started = self._clock.now(), utc_now()
        self._numbers = count()
        self.sides = open_sides(
            job.spec.reader,
            job.spec.writer,
            job.limits,
            exclude=settings.exclude,
            steps=job.spec.transformers,
        )
        self.columns = match_columns(
            *self.sides,
            key=settings.key,
            exclude=settings.exclude,
            json=settings.json,
            text=settings.text,
            copied_only=settings.copied_only,
        )
        self._options = self.sides[0].reader.options
        self._limits = JobLimits.from_options(self._options).watching(
            *(side.reader for side in self.sides)
        )
        channels = wanted_channels(job.spec, engine.parallelism())
        bound = channel_bound(
            [side.reader for side in self.sides],
            channels_wanted=channels,
            cores=engine.parallelism(),
            most=job.spec.max_channels,
        )
        if remark := bound.remark(channels):
            _log.warning(remark)
        self._channels = min(channels, bound.channels)
        fetch = self._limits.fetch_size(2 * self._channels)
        for side in self.sides:
            side.reader.fetch_size = fetch
        self.job = job_name(self._options.job_id or "verify")
        self._whole: list[list[Split] | None] = [None, None]
        self.differences = Differences.joined([])
        self.beyond = 0
        """How many more keys differ than are in memory: they were looked at once, and are not in `found`."""
        self.keys = DifferingKeys(())
        self._held: tuple[Hashes, Places] = _NONE, _NONE.astype(np.int64)
        """The keys that differed at first, ascending, and the number of rows of both sides with each of them."""
        self._by_database: DatabaseSums | None = None
        """How the databases hash rows; None = they do not, or so many rows differ that they need not."""
        self._sample_keys, self._samples = _NONE, list[pa.Table]()
        self.report = VerifyReport(
            self.sides[0].label,
            self.sides[1].label,
            compared={
                self._pair(pair): str(form)
                for pair, form in zip(self.columns.names, self.columns.forms, strict=True)
            },
            excluded=self.columns.excluded,
            where=str(getattr(self._options, "where", None) or ""),
            key=self.columns.key_names(0),
            notes=self.columns.notes,
            job=self.job,
            started_at=utc_text(self._started),
        )

    @staticmethod
    def _pair(pair: tuple[str, str]) -> str:
        return pair[0] if pair[0] == pair[1] else f"{pair[0]} ({pair[1]})"

    def run(self, afterwards: Callable[[], None] = lambda: None) -> VerifyReport:
        """Compare the sides, look at what differs again, and call `afterwards`, which may repair it.

        If that fails, the report says so.

        Raises:
            ChannelError: a side cannot be read.
        """
        self._service = self._reach_service()
        self._reporter = JobReporter(self._service, self.job)
        self._job_spec = self._plan_spec()
        failed, compared = "", False
        try:
            self._run()
            compared = True
            afterwards()
        except BaseException as error:
            cause = self.engine.own_error(error) or error
            failed = reason_of(cause)
            if not (compared and isinstance(cause, ChannelError)):
                self._reporter.enter(Phase.FAILED, error=failed)
                if cause is error:
                    raise
                raise cause from error
            _log.error("the repair failed: %s", failed)
            self.note(f"the repair failed: {failed}")
        rows = self.report.source_rows + self.report.target_rows
        self._reporter.enter(Phase.FAILED if failed else Phase.DONE, error=failed, rows=rows)
        self.report.seconds = round(self._clock.now() - self._began, 3)
        return self.report

    def look_again(self, differences: Differences) -> tuple[Differences, bool]:
        """Those of the keys that differ now, and whether the source has several rows with one of them."""
        with self._opened_again():
            selection, splits = (
                Selection(keys=differences.keys),
                self.splits_of_keys(differences.keys),
            )
            differ, (source, _) = self._entries(selection, splits)
            return differences.seen_again(differ), len(np.unique(source.keys)) < len(source.keys)

    def has_outside(self, keys: Hashes) -> Mask:
        """Which of the keys the source has now, whatever option `where` says."""
        with self._opened_again("where"):
            _, (source, _) = self._entries(Selection(keys=keys), self.splits_of_keys(keys))
            return among(keys, np.unique(source.keys))

    def alike(self, keys: Hashes) -> int:
        """How many rows with other keys the target's database finds by `keys`: an upsert would change them.

        There are some where the collation of the key ignores case, accents or trailing blanks.
        """
        if not any(self.columns.forms[position].name == "text" for position in self.columns.key):
            return 0
        with self._opened_again("where"):
            names, key_values = self.columns.key_names(1), self.keys.values(keys)
            splits = self.sides[1].of_keys(names, key_values)
            if splits is None:
                return 0
            every = Selection(np.ones(self._used.count, np.bool_))
            _, (_, target) = self._entries(every, [[], splits])
            return int(np.count_nonzero(~among(target.keys, keys)))

    def _reach_service(self) -> ServiceAddress | None:
        try:
            return self.engine.service()
        except LimitError:
            if is_limited(self._options):
                raise
            _log.warning("progress is not shown", exc_info=True)
            return None

    def _plan_spec(self) -> JobSpec:
        return read_spec(
            "verify",
            self._limits,
            name=self._options.job_id or "",
            source=self.sides[0].label,
            target=self.sides[1].label,
            channels=self._channels,
        )

    # The passes

    def _run(self) -> None:
        with ExitStack() as stack:
            stack.enter_context(self.engine.named(self.sides[0].label, self.sides[1].label))
            for side in self.sides:
                stack.enter_context(side.reader.hold())
            rows = [self._rows(self._splits(number)) for number in (0, 1)]
            self._job_spec = replace(
                self._job_spec,
                rows_expected=None if None in rows else sum(filter(None, rows)),
            )
            self._reporter.open(self._job_spec)
            self._note_positions()
            most = max((row_count for row_count in rows if row_count is not None), default=None)
            source, target = self._checksums(self._buckets(most), most)
            self._chosen = source.differ(target)
            self.report.source_rows = int(source.rows.sum())
            self.report.target_rows = int(target.rows.sum())
            finer, chosen = self._used, self._chosen
            if self._is_read_often((source.rows + target.rows)[chosen]):
                finer, source, target = self._finer(source, target)
                chosen = source.differ(target)
            self.report.equal = self.report.source_rows - int(source.rows[chosen].sum())
            if not self._chosen.any():
                return
            differences = self._candidates(finer, chosen, source, target)
            if not len(differences):
                return
            live = any(side.reader.has_other_writers for side in self.sides)
            if not live or len(self.report.positions) == 2:  # neither side can change
                self._settle(differences, self._last_look(differences))
                return
        with self._opened_again():
            self._confirm(differences)

    def _splits(self, number: int) -> list[Split]:
        """The splits of all rows of a side."""
        splits = self._whole[number]
        if splits is None:
            side = self.sides[number]
            splits = side.split(max(1, advise(self._spec, self._channels)))
            for remark in side.reader.remarks(splits):
                _log.warning(remark)
            self._whole[number] = splits
        return splits

    @contextmanager
    def _opened_again(self, *left_out: str) -> Iterator[None]:
        """Open both sides again, to see their newest rows; `left_out`: without these options, until the block ends."""
        source, target = (
            _without(end, "snapshot", *left_out) for end in (self._spec.reader, self._spec.writer)
        )
        before, whole, excluded = self.sides, self._whole, self._settings.exclude
        self.sides = open_sides(
            source,
            target,
            self.job_options.limits,
            exclude=excluded,
            steps=self._spec.transformers,
        )
        for old, new in zip(before, self.sides, strict=True):
            if old.schema != new.schema:
                label = f"{new.role} {plain_end(new.label)}"
                raise SourceError(
                    f"the columns of the {label} changed during the comparison: verify it again"
                )
            new.reader.fetch_size = old.reader.fetch_size
            new.shared = {name: value for name, value in old.shared.items() if name != "snapshot"}
        self._whole = [None, None]
        try:
            with self.engine.named(self.sides[0].label, self.sides[1].label):
                yield
        finally:
            if left_out:
                self.sides, self._whole = before, whole

    def _rows(self, splits: Sequence[Split]) -> int | None:
        counts = [split.rows for split in splits]
        return None if None in counts else sum(filter(None, counts))

    def _note_positions(self) -> None:
        for number, side in enumerate(self.sides):
            for name in ("version", "snapshot"):  # a Delta table's, an Iceberg table's
                if (position := getattr(side.reader, name, None)) is not None:
                    self.report.positions[side.role] = f"{name} {position}"
            if self._splits(number) and "snapshot" in self._splits(number)[0].params:
                self.report.positions[side.role] = "one snapshot"

    def _buckets(self, rows: int | None) -> Buckets:
        bucket_count = max(1, (rows or 1_000_000) // _ROWS_PER_BUCKET)
        splits = [self._splits(number) for number in (0, 1)]
        ranges = bucket_edges(self.sides, self.columns, splits, min(_MOST_RANGES, bucket_count))
        if ranges is not None:
            edges, self.report.key_range = ranges
            self.report.method = f"checksums of {len(edges) + 1} ranges of the key"
            self._used = Buckets(edges)
            return self._used
        bits = min(_MOST_BITS, max(4, (bucket_count * 8).bit_length()))
        unit = "keys" if self.columns.key else "rows"
        self.report.method = f"checksums of {1 << bits} groups of {unit} by their hash"
        self._used = Buckets(bits=bits)
        return self._used

    def _checksums(self, buckets: Buckets, rows: int | None) -> tuple[Checksums, Checksums]:
        work = ReadWork(self._sides(), self.columns, buckets)
        by_database = same_hashes(self.sides, self.columns, buckets)
        if by_database is None:
            return self._sums(work, [self._splits(0), self._splits(1)])
        self.report.method += ", computed in the databases"
        count = advise(self._spec, self._channels)

        def summed(runs: Sequence[Run], unit: Summed) -> tuple[Checksums, Checksums]:
            how = replace(work, by_database=by_database.summing(unit))
            return self._sums(how, [run_splits(runs, count)] * 2)

        self._by_database = by_database
        return sums_of_runs(buckets, rows or buckets.count * _ROWS_PER_BUCKET, summed)

    def _sums(
        self, work: ReadWork, splits: Sequence[Sequence[Split]]
    ) -> tuple[Checksums, Checksums]:
        sums = Checksums.none(work.buckets.count), Checksums.none(work.buckets.count)
        for number, _, checksums in self._pass(work, splits):
            sums[number].merge(cast(Checksums, checksums))
        return sums

    def _is_read_often(self, rows: Places) -> bool:
        """Whether rounds over buckets of so many rows read rows again and again that they do not return.

        Rounds over ranges that an index finds read each row once, unless a range has more rows than a round.
        """
        if int(rows.sum()) <= _MOST_ROWS:
            return False
        if self._used.edges is None or int(rows.max()) > _MOST_ROWS:
            return True
        names = [self.columns.key_names(number)[0] for number in (0, 1)]
        return not all(side.finds(name) for side, name in zip(self.sides, names, strict=True))

    def _finer(self, source: Checksums, target: Checksums) -> tuple[Buckets, Checksums, Checksums]:
        """Checksums of smaller groups of the chosen ranges' rows: a range of a skewed key may have all rows."""
        finer = Buckets(bits=_MOST_BITS)
        if self._used.edges is None and self._used.bits >= _MOST_BITS:
            return self._used, source, target
        return finer, *self._sums(self._work(finer), self._splits_of(self._chosen))

    def _work(self, buckets: Buckets, selection: Selection | None = None) -> ReadWork:
        """`buckets` that are smaller than the chosen ranges have the rows of these alone."""
        within = None if buckets is self._used else (self._used, self._chosen)
        return ReadWork(self._sides(), self.columns, buckets, selection, within=within)

    def _candidates(
        self, finer: Buckets, chosen: Mask, source: Checksums, target: Checksums
    ) -> Differences:
        """The keys that differ in the chosen buckets, a bounded number of rows at a time."""
        parts: list[Differences] = []
        self.keys = DifferingKeys([self._key_schema(number) for number in (0, 1)])
        key_count = 0
        row_counts: Places = _NONE.astype(np.int64)
        rows_read = [0, 0]
        for part, share, shares in rounds(chosen, source.rows + target.rows, _MOST_ROWS):
            selection = Selection(part, share, shares)
            listing = None
            if finer is self._used and shares == 1:
                listing = self._listed(selection, int(source.rows[part].sum()))
            if listing is None:
                splits = self._splits_of(part if finer is self._used else self._chosen)
                differ, sides = self._entries(selection, splits, finer)
                rows = [len(side.keys) for side in sides]
            else:
                differ, sides, rows = listing
            self.report.equal += differ.equal
            counts = rows_of(differ.keys, sides)
            fit = int(np.searchsorted(np.cumsum(counts), _MOST_ROWS - row_counts.sum(), "right"))
            room = min(_MOST_CANDIDATES - key_count, fit if key_count else max(1, fit))
            if len(differ) > room:
                self._count(differ.take(np.arange(room, len(differ))))
                self.beyond += len(differ) - room
                differ = differ.take(np.arange(room))
            key_count += len(differ)
            row_counts = np.concatenate((row_counts, counts[:room]))
            parts.append(differ)
            self.keys.add(sides, differ)
            rows_read = [total + here for total, here in zip(rows_read, rows, strict=True)]
        if self.beyond:
            self.note(
                f"{key_count + self.beyond} keys differ: the {key_count} whose rows fit in memory are looked at again "
                "and counted by column, and the others were looked at once"
            )
        before = [int(checksums.rows[chosen].sum()) for checksums in (source, target)]
        if not key_count and (rows_read[0] < before[0] or rows_read[1] < before[1]):
            self.report.outcome = "unknown"
            self.note(
                f"the checksums differed for {before[0]} rows of the source and {before[1]} of the target, of which "
                f"{rows_read[0]} and {rows_read[1]} were there when they were read again, and equal: verify again"
            )
        keys = np.concatenate([_NONE, *(part.keys for part in parts)])
        order = np.argsort(keys)
        self._held = keys[order], row_counts[order]
        return Differences.joined(parts)

    def _listed(
        self, selection: Selection, rows: int
    ) -> tuple[Differences, list[Entries], list[int]] | None:
        """What differs of about so many rows, those rows, and how many were looked at. None = read them all.

        The databases return keys and hashes of all rows. Rows are read whose hashes differ: they may be equal.
        """
        by_database = self._by_database
        if by_database is None or rows < _LISTED_ROWS or not self.columns.has_one_spelling:
            return None
        assert selection.chosen is not None
        work = self._work(self._used, selection).listing(by_database)
        differ, sides = self._found(work, self._splits_of(selection.chosen))
        if len(differ) * ROWS_PER_KEY > rows:
            self._by_database = None  # nor are there so few of the other rows
            return None
        again, read = differ, [Entries.joined([], self._key_schema(number)) for number in (0, 1)]
        if len(differ):
            keys = DifferingKeys([self._key_schema(number) for number in (0, 1)])
            keys.add(sides, differ)
            splits = self.splits_of_keys(differ.keys, keys, selection.chosen)
            again, read = self._entries(Selection(keys=differ.keys), splits)
            again.equal += _settled(sides[0].keys, differ)
        return again, read, [len(side.keys) for side in sides]

    def _entries(
        self,
        selection: Selection,
        splits: Sequence[Sequence[Split]],
        buckets: Buckets | None = None,
    ) -> tuple[Differences, list[Entries]]:
        """What differs of the selected rows, and the rows."""
        return self._found(self._work(buckets or self._used, selection), splits)

    def _found(
        self, work: ReadWork, splits: Sequence[Sequence[Split]]
    ) -> tuple[Differences, list[Entries]]:
        parts: list[list[Entries]] = [[], []]
        for number, _, entries in self._pass(work, splits):
            parts[number].append(cast(Entries, entries))
        sides = [
            Entries.joined(side_parts, self._key_schema(n)) for n, side_parts in enumerate(parts)
        ]
        one, other = sides
        return find_differences(one.keys, one.rows, other.keys, other.rows), sides

    def _splits_of(self, chosen: Mask) -> list[list[Split]]:
        names = [self.columns.key_names(number) or ("",) for number in (0, 1)]
        return [
            side.of_buckets(names[number][0], self._used, chosen, partial(self._splits, number))
            for number, side in enumerate(self.sides)
        ]

    def _key_schema(self, side: int) -> pa.Schema:
        names = self.columns.key_names(side)
        return pa.schema([self.sides[side].schema.field(name) for name in names])

    def _sides(self) -> tuple[SideWork, SideWork]:
        works = [
            SideWork(side.reader, side.steps, tuple(pair[number] for pair in self.columns.names))
            for number, side in enumerate(self.sides)
        ]
        return works[0], works[1]

    def _pass(
        self, work: ReadWork, splits: Sequence[Sequence[Split]]
    ) -> list[tuple[int, int, object]]:
        """Read splits of both sides at the same time."""
        groups: list[TaskGroup] = []
        for number, side_splits in enumerate(splits):
            tasks = [Task(next(self._numbers), split, number) for split in side_splits]
            for group in assign_fairly(tasks, self._channels, self._spec.channels_per_task):
                groups.append(replace(group, id=len(groups)))
        if not groups:
            return []
        link = JobLink(self.job, self._job_spec, self._service, self._limits.address)
        runner = PassRunner(work, link, self._options)
        return self.engine.run(runner, groups, self.job)

    # Looking again

    def _confirm(self, differences: Differences) -> None:
        """Look at differing keys again, after growing waits: a replica or a stream may lag."""
        before, wait = differences, _FIRST_WAIT
        for _ in range(self._settings.confirm - 1):
            self._pause(wait, before)
            wait = min(_LONGEST_WAIT, wait * _LONGER)
            before = before.seen_again(self._look(before))
            if not len(before):
                self.report.settled = len(differences)
                return
        if self._settings.confirm:
            self._pause(wait, before)
        now = self._last_look(before)
        self.report.settled = len(differences) - len(before)
        self._settle(before, now, live=self._settings.confirm > 0)

    def _pause(self, seconds: float, before: Differences) -> None:
        _log.info(
            "job %s: %d keys differ; they are looked at again in %g s",
            self.job,
            len(before),
            seconds,
        )
        message = (
            f"pause of {seconds:g} s before another look at {many(len(before), 'differing key')}"
        )
        self._reporter.enter(Phase.RUNNING, building=message)
        self._clock.sleep(seconds)
        self._reporter.enter(Phase.RUNNING)
        self.report.pauses += seconds

    def _settle(self, before: Differences, now: Differences, *, live: bool = False) -> None:
        """Count what still differs; a row that `live` tables changed since the look before is not known."""
        remaining = before.seen_again(now)
        self.report.settled += len(before) - len(remaining)
        self.differences = remaining.take(remaining.as_before(before)) if live else remaining
        self.report.changing = len(remaining) - len(self.differences)
        self._count(self.differences)
        self._describe()

    def _count(self, differences: Differences) -> None:
        report, different = self.report, int(differences.different.sum())
        report.different += different
        report.missing += int(differences.source_rows.sum()) - different
        report.extra += int(differences.target_rows.sum()) - different
        if len(differences):
            report.outcome = "different"
        elif report.changing and report.outcome == "equal":
            report.outcome = "unknown"

    def note(self, text: str) -> None:
        if text not in self.report.notes:
            self.report.notes = (*self.report.notes, text)

    def _look(self, differences: Differences) -> Differences:
        """What differs now of these keys."""
        self.report.looks += 1
        differ, (one, _) = self._entries(
            Selection(keys=differences.keys), self.splits_of_keys(differences.keys)
        )
        self.report.equal += _settled(one.keys, differ)
        return differ

    def _last_look(self, differences: Differences) -> Differences:
        """As `_look`; counts the columns that differ, and keeps the first rows."""
        self.report.looks += 1
        self._sample_keys = samples = np.sort(self.keys.in_order(differences.keys)[:_SAMPLES])
        parts, changed = [], np.zeros(len(self.columns.forms), np.int64)
        values: list[list[pa.Table]] = [[], []]
        row_counts = self._held[1][np.searchsorted(self._held[0], differences.keys)]
        for first, last, _ in parts_of(row_counts, _MOST_DETAILED):
            keys = differences.keys[first:last]
            selection = Selection(keys=keys, values_of=samples)
            work = ReadWork(self._sides(), self.columns, self._used, selection, detailed=True)
            details: list[list[Details]] = [[], []]
            for number, _, part in self._pass(work, self.splits_of_keys(keys)):
                details[number].append(cast(Details, part))
            width = len(self.columns.forms)
            one, other = (Details.joined(side_parts, width) for side_parts in details)
            differ = find_differences(one.keys, one.rows, other.keys, other.rows)
            changed += changed_columns(differ, one, other)
            self.report.equal += _settled(one.keys, differ)
            parts.append(differ)
            for number, side in enumerate((one, other)):
                values[number] += side.values
        differ = Differences.joined(parts)
        self.report.columns = {
            self._pair(pair): int(changes)
            for pair, changes in zip(self.columns.names, changed, strict=True)
            if changes
        }
        self._samples = [
            pa.concat_tables(tables) if tables else self.sides[n].schema.empty_table()
            for n, tables in enumerate(values)
        ]
        return differ

    def splits_of_keys(
        self, keys: Hashes, differing_keys: DifferingKeys | None = None, chosen: Mask | None = None
    ) -> list[list[Split]]:
        """Splits that have all rows with these keys: by the keys' values, or else the buckets that differed.

        `differing_keys`: what has the keys' values. `chosen`: the buckets that have them.
        """
        most = max(MOST_KEYS, self.report.source_rows // ROWS_PER_KEY)
        is_short = self.columns.has_one_spelling and len(keys) <= most
        key_values = (differing_keys or self.keys).values(keys) if is_short else []
        by_range = None
        splits = []
        for number, side in enumerate(self.sides):
            side_splits = side.of_keys(self.columns.key_names(number), key_values)
            if side_splits is None:
                by_range = by_range or self._splits_of(self._chosen if chosen is None else chosen)
                side_splits = by_range[number]
            splits.append(side_splits)
        return splits

    @property
    def parallelism(self) -> int:
        """How many splits are read at the same time."""
        return self._channels

    def _describe(self) -> None:
        """Put the first rows and the histogram into the report."""
        report = self.report
        if self.columns.has_ranges and len(self.differences):
            every = self.keys.numbers(self.differences.keys).tolist()
            ends = [*(report.key_range or ()), *every[:1], *every[-1:]]
            if every:  # else all keys are NULL
                report.key_range = least, most = min(ends), max(ends)
                places = [(number - least) * _BINS // (most - least + 1) for number in every]
                report.histogram = tuple(map(int, np.bincount(places, minlength=_BINS)))
        sampled = self.differences.take(among(self.differences.keys, self._sample_keys))
        left_out = partial(
            self.note, "differing rows whose values take much memory are counted, and not shown"
        )
        rows = differing_rows(
            self._samples, self.columns, sampled, self.keys.in_order(sampled.keys), left_out
        )
        report.differences = tuple(islice(rows, _SAMPLES))


def _without(end: Endpoint, *names: str) -> Endpoint:
    """The end without some options."""

    def rest(options: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in options.items() if name.lower() not in names}

    parts = tuple(replace(part, options=rest(part.options)) for part in end.parts)
    return replace(end, options=rest(end.options), parts=parts)


def _settled(keys: Hashes, differ: Differences) -> int:
    """The number of rows whose key no longer differs."""
    return int(np.count_nonzero(~among(keys, differ.keys)))
