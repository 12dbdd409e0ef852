"""Opens, checks and plans the source and target of a transfer, also for a rehearsal."""

import json
import math
import re
import socket
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from spark_channel.arrow_schema import TextLengths, noted, text_lengths, widest, without_notes
from spark_channel.connectors import (
    FetchSize,
    Reader,
    WriteContext,
    WritePlan,
    Writer,
    find_connector,
    load_reader,
    load_writer,
)
from spark_channel.connectors.base.contract import NativeRows
from spark_channel.connectors.base.overlap import Overlap, Stored, most_overlap
from spark_channel.connectors.base.registry import (
    all_connectors,
    describe,
    experiment_remark,
)
from spark_channel.errors import (
    ChannelError,
    OptionError,
    SchemaError,
    SourceError,
    TargetError,
)
from spark_channel.masking import MASK, mask_url, without_login
from spark_channel.options import WriteOptions
from spark_channel.pipeline import TransferSource
from spark_channel.plain_text import log_of
from spark_channel.planning import (
    Endpoint,
    Split,
    Target,
    Task,
    TransferPlan,
    TransferSpec,
    advise,
    deal,
    merge_tasks,
)
from spark_channel.planning.tasks import SPLITS_PER_CHANNEL, assign_by_mark
from spark_channel.planning.transfer import wanted_channels
from spark_channel.transfers.channels import channel_bound
from spark_channel.transfers.conversion import (
    by_shown_floats,
    by_wall_clock,
    is_lenient,
    reader_of,
    target_types,
    with_conversion,
)
from spark_channel.transfers.limits import JobLimits
from spark_channel.transfers.options import JobOptions, job_options, take_schema, target_options
from spark_channel.transfers.resume import PartialTransfer, find_partial_transfer
from spark_channel.transfers.write_job import commit_of
from spark_channel.transform import Pipeline, prepare

if TYPE_CHECKING:
    from spark_channel.connectors.base.definition import Defines

__all__ = [
    "OpenedTransfer",
    "begin_transfer",
    "ends_of_servers",
    "finer_splits",
    "first_reachable",
    "left_out_of",
    "open_reader",
    "open_targets",
    "open_transfer",
    "path_of",
    "refuse_existing",
    "rehearse",
    "renamed_of",
    "server_of",
    "tell_experiments",
]


_SERVER = re.compile(
    r"(?:jdbc:)?([A-Za-z0-9+]+):(?:thin:)?@?(?://)?(\[[^\]]+\]|[^:/;?,\s]+)(?::(\d+))?"
)
_TIMEOUT = 3.0
_log = log_of(__name__)
_ROW_BYTES = 50
"""Of a text file whose rows were not counted."""
_MOST_SPLITS = 2_000
"""However long the job: the driver plans them, and the target notes each."""
_SLOW = 7
"""Where no limit says how fast the job will be, it may be so many times slower than is guessed for a fetch."""
_OTHERWISE = "the columns are read as other types than the source has"
_START = "startsql"
_REMOVES = re.compile(r"\s*(truncate|delete\s+from)\s[^;]*;?\s*", re.IGNORECASE)
_EMPTIES = re.compile(
    r"(?:truncate(?:\s+table)?|delete\s+from)\s+([^\s;]+?)(?=[\s;\]]*$|\s*\"\s*[,\]]|\s+(?:cascade|restart|continue)\b)",
    re.IGNORECASE,
)


def server_of(url: str) -> tuple[str, int] | None:
    """Host and port that `url` names; None when it names no server."""
    match = _SERVER.match(without_login(url))
    if match is None or MASK in match.group(2):  # where a login ends is not clear
        return None
    scheme, host, port = match.groups()
    number = int(port) if port else _default_port(scheme.lower())
    return None if number is None else (host.strip("[]"), number)


def _default_port(scheme: str) -> int | None:
    for connector in all_connectors():
        if scheme in connector.schemes:
            return connector.port
    from spark_channel.datax.plugins.databases import jdbc_port

    return jdbc_port(scheme)


def first_reachable(urls: Sequence[str]) -> str:
    """The first url whose server takes a connection within 3 s; one that names no server counts as there.

    Raises:
        SourceError: none does; names each with its reason.
    """
    reasons = []
    for url in urls:
        server = server_of(url)
        if server is None:
            return url
        try:
            socket.create_connection(server, timeout=_TIMEOUT).close()
        except OSError as error:
            reasons.append(f"{mask_url(url)}: {error.strerror or error}")
        else:
            return url
    raise SourceError("no server answers: " + "; ".join(reasons))


@dataclass(frozen=True, slots=True)
class OpenedTransfer:
    """Readers with their steps, writers not yet prepared, and which task does what."""

    spec: TransferSpec
    sources: tuple[TransferSource, ...]
    writers: tuple[Writer, ...]
    plan: TransferPlan
    source: str
    target: str
    per_mark: bool
    limits: JobLimits
    begun: PartialTransfer | None = None
    steps: Pipeline | None = None
    """The steps of one of several targets, after the steps that all share."""
    own_lengths: TextLengths | None = None
    """The lengths that texts may have after the steps of such a target."""
    one_pass: bool = False
    """Whether one task may write and publish all rows in one transaction."""
    path: str = ""
    """Of a transfer that was rehearsed: see `path_of`."""
    left_out: tuple[str, ...] = ()
    """Of a transfer that was rehearsed: see `Writer.left_out`."""

    @property
    def renamed(self) -> tuple[str, ...]:
        """Of a transfer that was rehearsed: see `Writer.renamed`."""
        return renamed_of(self.writers)

    @property
    def builds(self) -> tuple[str, ...]:
        """Of a transfer that was rehearsed: see `Writer.builds`."""
        return tuple(dict.fromkeys(part for writer in self.writers for part in writer.builds))

    @property
    def options(self) -> WriteOptions:
        """The writer's options, which hold those of the whole job."""
        options: WriteOptions = self.writers[0].options
        return options

    @property
    def schema(self) -> pa.Schema:
        """The columns that arrive at the target."""
        if self.steps is not None:
            return self.steps.output_schema
        return self.sources[0].pipeline.output_schema

    @property
    def text_lengths(self) -> TextLengths:
        """The lengths that the texts of the target's columns may have, where all sources report them."""
        if self.own_lengths is not None:
            return self.own_lengths
        return widest([source.text_lengths for source in self.sources])

    def reads(self) -> tuple[Stored, ...]:
        """Where the rows come from, as far as the readers know, for a writer that asks."""
        has_asked = any(writer.asks_reads(writer.options.commit) for writer in self.writers)
        return _stored(self.sources) if has_asked else ()

    def native_rows(self) -> tuple[NativeRows | None, str]:
        """The native rows that all sources could send to the one target instead of Arrow values, or None and why not.

        Steps, and rows that are refused one by one, need values that can be read. No reason: the two ends have no
        native rows in common.
        """
        system = self.writers[0].native_system
        if not system or any(source.reader.native_system != system for source in self.sources):
            return None, ""
        if len(self.writers) > 1:
            return None, "there are several targets"
        if self.steps is not None or any(source.pipeline.steps for source in self.sources):
            return None, "a transformer needs values"
        if self.options.tolerates_dirty_rows:
            return None, "rows that are refused one by one need values"
        rows_by_source = [
            self._native_of(number, source) for number, source in enumerate(self.sources)
        ]
        if None in rows_by_source:
            reasons = (source.reader.no_native for source in self.sources)
            return None, next(filter(None, reasons), _OTHERWISE)
        return (
            (rows_by_source[0], "")
            if all(rows == rows_by_source[0] for rows in rows_by_source)
            else (None, _OTHERWISE)
        )

    @property
    def definition(self) -> "Defines | None":
        """How the table is defined whose rows arrive unchanged; None = they come from several, or are changed."""
        if len(self.sources) > 1 or self.sources[0].pipeline.steps or self.steps is not None:
            return None
        return self.sources[0].reader.definition

    def _native_of(self, number: int, source: TransferSource) -> NativeRows | None:
        splits = [task.split.params for task in self.plan.tasks]
        splits_of_source = [params["split"] for params in splits if params["source"] == number]
        native = source.reader.native_rows(splits_of_source)
        return (
            native if native is not None and native.schema.equals(source.pipeline.schema) else None
        )

    def target_of(self, task: int) -> int:
        """The number of the writer that takes the task's rows."""
        return task if len(self.writers) > 1 else 0  # 1:1, see `planning.merge_tasks`

    def without(self, published: Collection[int]) -> "OpenedTransfer":
        """The tasks of targets that are published are not run again."""
        tasks = [task for task in self.plan.tasks if self.target_of(task.id) not in published]
        channels = max(1, self.plan.channels)
        return replace(
            self, plan=_dealt(self.spec, tasks, channels, channels, per_mark=self.per_mark)
        )


def left_out_of(writers: Sequence[Writer]) -> tuple[str, ...]:
    """What new tables lack of their source's definition: those of a job are of one definition."""
    return tuple(dict.fromkeys(part for writer in writers for part in writer.left_out))


def renamed_of(writers: Sequence[Writer]) -> tuple[str, ...]:
    """The names in new tables that are not the source's."""
    return tuple(dict.fromkeys(part for writer in writers for part in writer.renamed))


def path_of(native: NativeRows | None, reason: str, plan: WritePlan | None) -> str:
    """How the rows get from one system to another of its kind, for people; "" = there is one way only.

    `native` and `reason` are those of `OpenedTransfer.native_rows`; `plan` is what the writer made of them, None = its
    table is not there yet.
    """
    if native is not None and plan is None:
        return "rows pass as the source's bytes, where the new table takes its types"
    straight = "straight into the table, in one transaction"
    ending = f", {straight}" if plan is not None and plan.one_pass else ""
    if plan is not None and plan.native:
        return f"rows pass as the source's bytes{ending}"
    if native is not None:
        reason = "the target's columns take other types, or its options need values"
    if reason:
        return f"rows pass through Arrow: {reason}{ending}"
    return f"rows pass {straight}" if ending else ""


def begin_transfer(job: JobOptions) -> JobOptions:
    """Run `startSql` at the writer's end, before the source is looked at; returns the job without it.

    Where it only removes rows, both ends are looked at first: what would be refused later removes none.

    Raises:
        ChannelError: an option, or what the target says of it.
    """
    writer = job.spec.writer
    ends_options = [writer.options, *(part.options for part in writer.parts)]
    if writer.spark_format or not any(
        key.lower() == _START for options in ends_options for key in options
    ):
        return job

    def rest(options: Mapping[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in options.items() if key.lower() != _START}

    parts = tuple(replace(part, options=rest(part.options)) for part in writer.parts)
    rest_of_job = replace(
        job,
        spec=replace(job.spec, writer=replace(writer, options=rest(writer.options), parts=parts)),
    )
    texts = [
        str(value)
        for options in ends_options
        for key, value in options.items()
        if key.lower() == _START
    ]
    spec = job.spec
    plain = not spec.targets and not spec.reader.spark_format
    if plain and all(_only_removes_rows(text) for text in texts):
        _check_possible(rest_of_job, texts)
    for end in writer.resolve(first_reachable):
        _writer(end, job.job).begin()
    return rest_of_job


def _only_removes_rows(script: str) -> bool:
    """Whether a `startSql` neither makes nor changes what the ends of the transfer consist of."""
    try:
        texts = json.loads(script) if script.lstrip().startswith("[") else [script]
    except ValueError:
        return False
    return all(_REMOVES.fullmatch(str(text)) is not None for text in texts)


def _check_possible(job: JobOptions, scripts: Sequence[str]) -> None:
    """Check that the source is there, and its rows fit the targets; `scripts` remove rows before they are read.

    Raises:
        ChannelError: as `open_transfer`. OptionError: the rows are those that would be read.
    """
    sources, writers = _ends(job, alone=True, warn=False)
    options = writers[0].options
    context = WriteContext(
        "rehearsal",
        commit_of(options),
        overwrite=job.spec.save_mode == "overwrite",
        text_lengths=widest([source.text_lengths for source in sources]),
    )
    reads = _stored(sources)
    for writer in writers:
        writer.rehearse(context, sources[0].pipeline.output_schema)
        name = str(getattr(writer.options, "dbtable", ""))
        emptied = any(_empties(text, name) for text in scripts)
        target = writer.stored() if emptied and reads else None
        if target is not None and most_overlap(reads, target) is Overlap.SURE:
            raise OptionError(
                f"the source is the target, table {name!r}, and 'startSql' empties it before its rows are read: "
                "use mode overwrite, which replaces the rows when all of them are read",
                option="startSql",
            )


def _empties(script: str, table: str) -> bool:
    """Whether a script that only removes rows removes all of `table`."""
    match = _EMPTIES.search(script)
    return match is not None and _last_name(match[1]) == _last_name(table)


def _last_name(text: str) -> str:
    return text.rpartition(".")[2].strip("`\"[]' ").lower()


def _stored(sources: Sequence[TransferSource]) -> tuple[Stored, ...]:
    """Where the rows come from, as far as the readers know."""
    places = [source.reader.stored() for source in sources]
    return tuple(place_read for place_read in places if place_read is not None)


def open_transfer(
    job: JobOptions,
    parallelism: int,
    stack: ExitStack,
    *,
    alone: bool = True,
    here: bool = False,
) -> OpenedTransfer:
    """Read the source's schema, cut it into splits, and deal them out; a run that is continued keeps its splits.

    `stack` keeps open what a reader's splits share, such as a snapshot: until all is read. `alone`: the target is the
    only one, so that a partially committed version may be continued. `here`: the rows pass through this process alone.

    Raises:
        ChannelError: an option, the source, a step that does not fit its columns, or splits and targets that
            do not go 1:1.
    """
    spec = job.spec
    sources, writers = _ends(job, alone=alone)
    readers = [source.reader for source in sources]
    _refuse_other_columns(sources)
    limits = JobLimits.from_options(writers[0].options).watching(*readers[:1], writers[0])
    channels_wanted = wanted_channels(spec, parallelism)
    bound = channel_bound(
        (*readers[:1], writers[0]),
        channels_wanted=channels_wanted,
        cores=parallelism,
        most=spec.max_channels,
    )
    if remark := bound.remark(channels_wanted):
        _log.warning(remark)
    for source in sources:
        source.reader.fetch_size = limits.fetch_size(min(channels_wanted, bound.channels))
        source.reader.stored_is_asked = writers[0].asks_reads(writers[0].options.commit)
    begun = (
        find_partial_transfer(writers, spec, sources[0].pipeline.output_schema) if alone else None
    )
    if begun is None:
        advice = advise(spec, parallelism, bound.channels)
        tasks = _cut(spec, sources, writers, advice, stack, here=here)
    else:
        # Rows that were refused are found only by reading all of them again.
        again = writers[0].options.tolerates_dirty_rows
        tasks = _marked(begun.tasks if again else begun.left, sources, writers)
    per_mark = any(source.reader.options.limit_per_mark for source in sources)
    plan = _dealt(spec, tasks, parallelism, bound.channels, per_mark=per_mark)
    return OpenedTransfer(
        spec,
        sources,
        writers,
        plan,
        _shown("reader", spec.reader, [reader.options for reader in readers]),
        _shown("writer", spec.writer, [writer.options for writer in writers]),
        per_mark,
        limits,
        begun,
        one_pass=alone
        and begun is None
        and is_one_pass(spec, writers[0], [task.split for task in plan.tasks], here=here),
    )


def open_targets(
    spec: TransferSpec, jobs: Sequence[JobOptions], parallelism: int, stack: ExitStack
) -> tuple[OpenedTransfer, ...]:
    """As `open_transfer`, for several targets that each get all rows; `jobs` are theirs, in their order."""
    shared = replace(jobs[0].spec, transformers=spec.transformers)
    first = open_transfer(replace(jobs[0], spec=shared), parallelism, stack, alone=False)
    targets: list[OpenedTransfer] = []
    for target, job in zip(spec.targets, jobs, strict=True):
        writers = (
            first.writers
            if not targets
            else tuple(_writer(end, job.job) for end in job.spec.writer.resolve(first_reachable))
        )
        if len(writers) > 1:
            raise OptionError(
                f"a transfer to several targets takes targets of one table each; this one has {len(writers)} "
                f"tables: {_shown('writer', job.spec.writer, [writer.options for writer in writers])}",
                option="writer",
            )
        limits = JobLimits.from_options(writers[0].options).watching(
            first.sources[0].reader, writers[0]
        )
        arriving = noted(first.sources[0].pipeline.output_schema, first.text_lengths)
        steps, lengths = _prepared(target.transformers, arriving)
        targets.append(
            replace(
                first,
                spec=job.spec,
                writers=writers,
                target=_shown("writer", job.spec.writer, [writers[0].options]),
                limits=limits,
                steps=steps,
                own_lengths=lengths,
            )
        )
    sizes = [target.limits.fetch_size(max(1, first.plan.channels)) for target in targets]
    for source in first.sources:
        source.reader.fetch_size = FetchSize(
            min((size.rows for size in sizes if size.rows is not None), default=None),
            min((size.nbytes for size in sizes if size.nbytes is not None), default=None),
        )
    return tuple(targets)


def _cut(
    spec: TransferSpec,
    sources: Sequence[TransferSource],
    writers: Sequence[Writer],
    splits_wanted: int,
    stack: ExitStack,
    *,
    here: bool,
) -> list[Task]:
    targets = len(writers)
    advice = splits_wanted if targets == 1 else targets
    splits: list[Split] = []
    for number, source in enumerate(sources):
        stack.enter_context(source.reader.hold())
        splits_of_source = source.reader.split(max(1, -(-advice // len(sources))))
        if targets == 1 and spec.splits_per_channel == SPLITS_PER_CHANNEL:
            finer = finer_splits(source.reader, writers[0], splits_of_source)
            splits_of_source = splits_of_source if finer is None else source.reader.split(finer)
            if len(splits_of_source) > 1 and len(sources) == 1:
                is_one = is_one_file(spec, writers[0], splits_of_source)
                if not is_one and is_one_pass(spec, writers[0], splits_of_source, here=here):
                    # The staging of a new table becomes the table: several tasks may read for it.
                    is_one = writers[0].exists() is True
                splits_of_source = source.reader.split(1) if is_one else splits_of_source
        for remark in source.reader.remarks(splits_of_source):
            _log.warning(remark)
        splits.extend(TransferSource.wrap(number, split) for split in splits_of_source)
    return _marked(
        merge_tasks(splits, None if targets == 1 else list(range(targets))), sources, writers
    )


def is_one_file(spec: TransferSpec, writer: Writer, splits: Sequence[Split]) -> bool:
    """Whether the rows of all splits are so few that they go into one file for each partition value.

    Files of a few rows cost each later reader more than a second channel saves here. Several channels that the user
    asked for are opened all the same.
    """
    if not writer.makes_files or (spec.channels or 1) > 1 or len(splits) < 2:
        return False
    from spark_channel.connectors.base.compaction import FEW_BYTES, FEW_ROWS

    rows, nbytes = [split.rows for split in splits], [split.nbytes for split in splits]
    amounts_known = (
        (most, sum(amount or 0 for amount in amounts))
        for most, amounts in ((FEW_ROWS, rows), (FEW_BYTES, nbytes))
        if None not in amounts
    )
    return bool(sums := list(amounts_known)) and all(0 < amount <= most for most, amount in sums)


def is_one_pass(spec: TransferSpec, writer: Writer, splits: Sequence[Split], *, here: bool) -> bool:
    """Whether one task may write all rows straight into the table, and publish them in the same transaction.

    Staging costs the server twice what the rows cost; the price of one transaction is that it holds a lock and a
    snapshot for as long as the rows take. Where Spark could read with many tasks, one is taken if it is asked for.
    """
    most, channels = writer.one_pass_rows, spec.channels
    if most is None or spec.save_mode != "append" or spec.stream is not None:
        return False
    if len(splits) > 1 and not (channels == 1 or (here and channels is None)):
        return False
    rows = [_rows_of(split) for split in splits]
    return None not in rows and sum(filter(None, rows)) <= most


def _rows_of(split: Split) -> int | None:
    """Its rows, if need be by the bytes of its text."""
    if split.rows is None and split.nbytes is not None and split.is_text:
        return split.nbytes // _ROW_BYTES
    return split.rows


def finer_splits(reader: Reader, writer: Writer, splits: Sequence[Split]) -> int | None:
    """How many splits there should be for tasks that last no longer than the writer asks; None = no more than these."""
    most, fetch = writer.task_seconds, reader.fetch_size
    lasts = [fetch.lasts(split) for split in splits]
    seconds_known = [seconds for seconds in lasts if seconds is not None]
    if most is None or not seconds_known or len(seconds_known) < len(lasts):
        return None
    splits_wanted = min(
        _MOST_SPLITS, math.ceil(sum(seconds_known) * (_SLOW if fetch.guessed else 1) / most)
    )
    return splits_wanted if splits_wanted > len(splits) and reader.may_be_finer(splits) else None


def _marked(
    tasks: Sequence[Task], sources: Sequence[TransferSource], writers: Sequence[Writer]
) -> list[Task]:
    """With the host that each task's reader loads, and the one that its writer does."""
    targets = [writer.resource_mark() for writer in writers]

    def mark(split: Split) -> str | None:
        reader: Reader = sources[split.params["source"]].reader
        return reader.resource_mark(split.params["split"])

    return [
        replace(
            task,
            reader_mark=mark(task.split),
            writer_mark=targets[task.id if len(writers) > 1 else 0],
        )
        for task in tasks
    ]


def _dealt(
    spec: TransferSpec, tasks: Sequence[Task], parallelism: int, most: int, *, per_mark: bool
) -> TransferPlan:
    plan = deal(spec, tasks, parallelism=parallelism, most=most)
    if not per_mark:
        return plan
    groups = assign_by_mark(plan.tasks, plan.channels, spec.channels_per_task)
    return TransferPlan(sum(group.channels for group in groups), tuple(groups))


def refuse_existing(writer: Writer, transfer: OpenedTransfer) -> None:
    """Check that the target is not there, as `errorIfExists` asks.

    Raises:
        TargetError: its catalog has it; or, where the writer cannot ask one, it can be read.
    """
    exists = writer.exists()
    if exists or (exists is None and _can_be_read(writer, transfer)):
        raise TargetError(
            f"{transfer.target} exists, and the mode is errorIfExists: append, overwrite, or name another"
        )


def _can_be_read(writer: Writer, transfer: OpenedTransfer) -> bool:
    end = transfer.spec.writer.resolve(lambda urls: urls[0])[transfer.writers.index(writer)]
    reader = reader_of(writer, end)
    try:
        return reader is not None and reader.schema() is not None
    except SourceError:
        return False


def _writer(end: Endpoint, job: Mapping[str, Any], *, warn: bool = True) -> Writer:
    writer, warnings = load_writer(_named("writer", end, job))
    for warning in warnings if warn else ():
        _log.warning(warning)
    return writer


def open_reader(
    end: Endpoint, limits: Mapping[str, Any], *, warn: bool
) -> tuple[Reader, pa.Schema | None]:
    """The reader of an end, and the schema that the user gave for it; None = the reader finds its own."""
    named = _named("reader", end, limits)
    text = take_schema(named)
    reader, warnings = load_reader(named)
    for warning in warnings if warn else ():
        _log.warning(warning)
    if text is None:
        return reader, None
    from spark_channel.connectors.base.types import arrow_columns

    return reader, pa.schema(list(arrow_columns(text, "schema").items()))


def ends_of_servers(specs: Iterable[TransferSpec]) -> tuple[list[Reader], list[Writer]]:
    """A reader and a writer, not opened yet, of each server and login that transfers name."""
    readers: dict[tuple[Any, ...], Reader] = {}
    writers: dict[tuple[Any, ...], Writer] = {}
    for spec in specs:
        for half, end in (("reader", spec.reader), ("writer", spec.writer)):
            for each in () if end.spark_format else end.resolve(lambda urls: urls[0]):
                key = each.name, each.options.get("url"), each.options.get("user")
                if not key[1] or key in (readers if half == "reader" else writers):
                    continue
                with suppress(ChannelError):  # which its job reports
                    if half == "reader":
                        readers[key] = open_reader(each, {}, warn=False)[0]
                    else:
                        writers[key] = _writer(each, {}, warn=False)
    return list(readers.values()), list(writers.values())


def _first_open(end: Endpoint, urls: Sequence[str]) -> str:
    """The first url at which the reader can log in, and finds the database.

    Raises:
        SourceError: there is none; names each url with its reason.
    """
    from spark_channel.connectors.sql.read.reader import SqlReader

    reasons = []
    part = end.parts[0].options if end.parts else {}
    for url in urls:
        try:
            first_reachable([url])
            reader, _ = load_reader(
                _named("reader", replace(end, options={**end.options, **part, "url": url}), {})
            )
            if isinstance(reader, SqlReader):
                with reader.connect("plan"):
                    pass
        except SourceError as error:
            reasons.append(str(error))
        else:
            return url
    raise SourceError(f"none of {len(urls)} urls can be read: {'; '.join(reasons)}")


def tell_experiments(spec: TransferSpec) -> None:
    """Log a line if an end of the transfer has an experimental connector."""
    ends = [
        ("reader", spec.reader),
        *(("writer", target.writer) for target in spec.targets or (Target(spec.writer),)),
    ]
    named = [
        (half, _named(half, end.resolve(lambda urls: urls[0])[0], {}))
        for half, end in ends
        if not end.spark_format
    ]
    if remark := experiment_remark(
        (find_connector(options, half), options) for half, options in named
    ):
        _log.warning(remark)


def _named(half: str, end: Endpoint, job_settings: Mapping[str, Any]) -> dict[str, Any]:
    named = {half: end.name} if end.name else {}
    # As Spark hands options over: texts, `True` as "true"; lists and None stay.
    texts = {
        key: str(value).lower() if isinstance(value, bool) else value
        for key, value in end.options.items()
    }
    return {**named, **texts, **job_settings}


def _ends(
    job: JobOptions, *, alone: bool, warn: bool = True
) -> tuple[tuple[TransferSource, ...], tuple[Writer, ...]]:
    """Open the sources and the writers; `warn`: log their warnings."""
    spec = job.spec
    writers = tuple(
        _writer(end, job.job, warn=warn) for end in spec.writer.resolve(first_reachable)
    )
    ends = spec.reader.resolve(partial(_first_open, spec.reader))
    sources = _opened(ends, job, warn=warn)
    if alone and is_lenient(writers[0]):
        types = target_types(writers[0], spec)
        local = by_wall_clock(ends, sources, types, warn=warn)
        by_float = by_shown_floats(local or ends, sources, types)
        if local is not None or by_float is not None:
            sources = _opened(by_float or local or ends, job, warn=False)
        sources = with_conversion(sources, types, spec)
    return sources, writers


def _opened(ends: Sequence[Endpoint], job: JobOptions, *, warn: bool) -> tuple[TransferSource, ...]:
    readers = [open_reader(end, job.limits, warn=warn) for end in ends]
    return tuple(_source(reader, schema, job.spec) for reader, schema in readers)


def _source(reader: Reader, declared: pa.Schema | None, spec: TransferSpec) -> TransferSource:
    schema = reader.schema() if declared is None else declared
    steps, lengths = _prepared(spec.transformers, schema)
    return TransferSource(reader.with_schema(steps.schema), steps, lengths)


def _prepared(steps: Sequence[object], schema: pa.Schema) -> tuple[Pipeline, TextLengths]:
    """The steps for `schema`, and how long the texts may be behind them."""
    pipeline = prepare(steps, schema)
    lengths = text_lengths(pipeline.output_schema)
    return Pipeline(
        pipeline.steps, without_notes(pipeline.schema), without_notes(pipeline.output_schema)
    ), lengths


def _refuse_other_columns(sources: tuple[TransferSource, ...]) -> None:
    first = sources[0].pipeline.output_schema
    for number, source in enumerate(sources[1:], 1):
        names = source.pipeline.output_schema.names
        if names != first.names:
            raise SchemaError(
                f"part {number} of the reader has columns {', '.join(names)}, "
                f"and part 0 has {', '.join(first.names)}; a transfer's parts have the same columns"
            )


def _shown(half: str, end: Endpoint, options: list[Any]) -> str:
    name = (
        end.name
        or find_connector(options[0].model_dump(by_alias=True, exclude_none=True), half).name
    )
    others = f" and {len(options) - 1} more" if len(options) > 1 else ""
    return f"{name} {describe(options[0])}{others}".strip()


def rehearse(
    spec: TransferSpec, parallelism: int, stack: ExitStack, *, here: bool = False
) -> tuple[OpenedTransfer, ...]:
    """Log in at both ends, read the source's schema, plan, and hold the rows against the targets' columns and rights.

    Scripts are not run: a table that `preSql` or `startSql` would make does not exist.

    Raises:
        ChannelError: what a run would be refused for.
    """
    if spec.targets:
        jobs = [target_options(spec, number, {}) for number in range(len(spec.targets))]
        every = open_targets(spec, jobs, parallelism, stack)
    else:
        job = _without_script(job_options(spec, {}))
        every = (open_transfer(job, parallelism, stack, here=here),)
    rehearsed = []
    for transfer in every:
        options, (native, reason) = transfer.options, transfer.native_rows()
        context = WriteContext(
            job="rehearsal",
            commit=commit_of(options),
            overwrite=transfer.spec.save_mode == "overwrite",
            text_lengths=transfer.text_lengths,
            reads=transfer.reads(),
            definition=transfer.definition,
            leaves_builds=transfer.spec.leaves_builds,
            native=native,
            one_pass=transfer.one_pass,
        )
        plans = []
        for writer in transfer.writers:
            if transfer.spec.save_mode == "errorIfExists":
                refuse_existing(writer, transfer)
            plans.append(writer.rehearse(context, transfer.schema))
        path, left_out = path_of(native, reason, plans[0]), left_out_of(transfer.writers)
        rehearsed.append(replace(transfer, path=path, left_out=left_out))
    return tuple(rehearsed)


def _without_script(job: JobOptions) -> JobOptions:
    """`startSql` is for those who run the job."""
    writer = job.spec.writer
    options = {key: value for key, value in writer.options.items() if key.lower() != "startsql"}
    parts = tuple(
        replace(
            part,
            options={
                key: value for key, value in part.options.items() if key.lower() != "startsql"
            },
        )
        for part in writer.parts
    )
    return replace(
        job, spec=replace(job.spec, writer=replace(writer, options=options, parts=parts))
    )
