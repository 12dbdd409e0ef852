"""`TransferSpec`: a transfer before anything is opened; and the plan that is made from it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

from spark_channel.errors import OptionError
from spark_channel.masking import mask_untyped, mask_url
from spark_channel.planning.tasks import (
    MAX_CHANNELS,
    Split,
    Task,
    TaskGroup,
    assign_fairly,
    channel_count,
    merge_tasks,
    plan_channels,
    split_advice,
)

__all__ = [
    "Endpoint",
    "EndpointOverrides",
    "SaveMode",
    "StreamBatch",
    "Target",
    "TransferPlan",
    "TransferSpec",
    "advise",
    "deal",
    "plan",
    "wanted_channels",
]


SaveMode = Literal["append", "overwrite", "errorIfExists"]
OnFailure = Literal["fail", "leave"]


def _untyped(options: Mapping[str, Any]) -> dict[str, str]:
    return {key: mask_untyped(key, value) for key, value in options.items()}


@dataclass(frozen=True, slots=True, repr=False)
class EndpointOverrides:
    """One of several tables or servers of an end: the options that differ from the end's own.

    `urls` are addresses of one server; the first one that answers is used.
    """

    options: Mapping[str, Any] = field(default_factory=dict)
    urls: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"EndpointOverrides({_untyped(self.options)!r}, urls={[mask_url(url) for url in self.urls]!r})"


@dataclass(frozen=True, slots=True, repr=False)
class Endpoint:
    """One end of a transfer: a connector of spark-channel, or a Spark format if `spark_format` is true.

    `options` are format options in Spark's spelling. `parts`: the endpoint has several tables or servers; a
    reader reads all of them, a writer has one, or as many as the reader has splits. Its `repr` does not
    know the options' types, and shows only options that are no secret in any connector.
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    spark_format: bool = False
    parts: tuple[EndpointOverrides, ...] = ()

    @classmethod
    def parse(cls, half: str, options: Mapping[str, Any]) -> Self:
        """Read `{"name": connector, ...}` or `{"format": Spark format, ...}`; neither: inferred later.

        `half` ("reader" or "writer") names it in errors, and is a synonym of "name".

        Raises:
            OptionError: both `name` and `format`, one that is not a text, or `options` that are not a mapping.
        """
        if not isinstance(options, Mapping):
            raise OptionError(
                f"the {half} is {type(options).__name__}; it takes a dict of options, "
                "such as {'name': 'csv', 'path': 'orders.csv'}",
                option=half,
            )
        remaining = dict(options)
        names = {
            key: remaining.pop(key) for key in list(remaining) if key in ("name", "format", half)
        }
        if len(names) > 1:
            raise OptionError(
                f"{half} has more than one name ({', '.join(map(repr, names))}); "
                "give 'name' for a connector of spark-channel or 'format' for one of Spark's",
                option=half,
            )
        for key, name in names.items():
            if not isinstance(name, str) or not name.strip():
                raise OptionError(
                    f"{half} option {key!r} got {name!r}; it takes a name",
                    option=key,
                    got=str(name),
                    takes="a name",
                )
            return cls(name.strip(), remaining, spark_format=key == "format")
        return cls("", remaining)

    def resolve(self, choose: Callable[[Sequence[str]], str]) -> tuple[Self, ...]:
        """One end without parts for each part, or this one when it has none.

        `choose` gives the address to use of a part that has several.
        """
        if not self.parts:
            return (self,)
        ends = []
        for part in self.parts:
            options = {**self.options, **part.options}
            if part.urls:
                options["url"] = part.urls[0] if len(part.urls) == 1 else choose(part.urls)
            ends.append(replace(self, options=options, parts=()))
        return tuple(ends)

    def __repr__(self) -> str:
        kind = "format" if self.spark_format else "name"
        texts: dict[str, Any] = {kind: self.name, **_untyped(self.options)}
        if self.parts:
            texts["parts"] = self.parts
        return f"Endpoint({', '.join(f'{key}={value!r}' for key, value in texts.items())})"


@dataclass(frozen=True, slots=True)
class Target:
    """One of several targets of a transfer. Each target receives all rows.

    `transformers` run after the transfer's own. `on_failure`: `fail` ends the job, `leave` continues without the
    target.
    """

    writer: Endpoint
    transformers: tuple[Any, ...] = ()
    save_mode: SaveMode = "append"
    on_failure: OnFailure = "fail"


@dataclass(frozen=True, slots=True)
class StreamBatch:
    """The transfer is batch `position` of a stream, as its target records it: positions grow, each is published once.

    `chained`: it is published only if `previous` is the last one that the stream has published; None = none is. That
    one may be `position` itself, which is then written once more.
    """

    name: str
    position: int
    chained: bool = False
    previous: int | None = None

    @property
    def batch(self) -> int | None:
        """The batch as `WriteContext.stream` has it; None = the last one once more."""
        return None if self.chained and self.previous == self.position else self.position


@dataclass(frozen=True, slots=True)
class TransferSpec:
    """Reader, writer, and how the rows go from one to the other. `targets`: the rows go to each of them, once read;
    `writer` is the first one's.

    Speeds are per second and over the whole job; `bytes` are Arrow bytes. The `channel_` speeds only
    divide the job's limit into a number of channels (see `channel_count`). `channels` None = the
    session's parallelism; `max_channels` None = as many as cores and servers bear. `max_dirty_rows` None =
    unlimited, unless `max_dirty_fraction` (0..1 of all rows) is set. `time_patterns` (strptime's letters) read text
    as a time where the writer's option `convert` is `lenient`, and `time_texts` write timestamps, dates and times of
    day as texts; () = as ISO 8601 has them, to the second. `part_of` is the name of the replication that copies
    this table, and `leaves_builds` its later step makes the indexes and constraints of a new table.
    """

    reader: Endpoint
    writer: Endpoint
    transformers: tuple[Any, ...] = ()
    channels: int | None = None
    max_channels: int | None = None
    channels_per_task: int = 1
    splits_per_channel: int = 5
    rows_per_second: int | None = None
    bytes_per_second: int | None = None
    channel_rows_per_second: int | None = None
    channel_bytes_per_second: int | None = None
    shared_limit: str | None = None
    capacity_rows: int | None = None
    capacity_bytes: int | None = None
    max_dirty_rows: int | None = 0
    max_dirty_fraction: float | None = None
    save_mode: SaveMode = "append"
    job_id: str | None = None
    targets: tuple[Target, ...] = ()
    time_patterns: tuple[str, ...] = ()
    time_texts: tuple[str, ...] = ()
    stream: StreamBatch | None = None
    part_of: str = ""
    leaves_builds: bool = False

    @property
    def ends(self) -> tuple[Endpoint, ...]:
        """The reader and all writers; the first writer may be there twice."""
        return self.reader, self.writer, *(target.writer for target in self.targets)

    @property
    def spark_format(self) -> str:
        """The first format that Spark alone reads or writes; empty = Spark is not needed."""
        return next((end.name for end in self.ends if end.spark_format), "")


@dataclass(frozen=True, slots=True)
class TransferPlan:
    """Channels and task groups. `channels` is how many run at the same time; 0 groups = an empty source."""

    channels: int
    groups: tuple[TaskGroup, ...]

    @property
    def tasks(self) -> list[Task]:
        """All tasks by id."""
        return sorted(
            (task for group in self.groups for task in group.tasks), key=lambda task: task.id
        )

    @property
    def rows(self) -> int | None:
        """The readers' estimate of all rows; None when one split has none."""
        counts = [task.split.rows for group in self.groups for task in group.tasks]
        return None if None in counts else sum(count for count in counts if count is not None)

    @property
    def nbytes(self) -> int | None:
        """The readers' estimate of all bytes; None when one split has none."""
        sizes = [task.split.nbytes for group in self.groups for task in group.tasks]
        return None if None in sizes else sum(size for size in sizes if size is not None)


def _wanted(spec: TransferSpec) -> int | None:
    return channel_count(
        rows_per_second=spec.rows_per_second,
        bytes_per_second=spec.bytes_per_second,
        channel_rows_per_second=spec.channel_rows_per_second,
        channel_bytes_per_second=spec.channel_bytes_per_second,
        channels=spec.channels,
    )


def wanted_channels(spec: TransferSpec, parallelism: int) -> int:
    """The channels that the limits or the user ask for, or the session's parallelism.

    Raises:
        OptionError: an invalid limit or number of channels.
    """
    return plan_channels(_wanted(spec), parallelism)


def advise(spec: TransferSpec, parallelism: int, most: int = MAX_CHANNELS) -> int:
    """The number of splits to request from the reader, before `plan`. `most`: channels that run at the same time.

    Where more are asked for, they are splits that wait.
    """
    channels = wanted_channels(spec, parallelism)
    return max(channels, split_advice(min(channels, most), spec.splits_per_channel))


def plan(
    spec: TransferSpec,
    splits: Sequence[Split],
    *,
    parallelism: int,
    writer_parts: Sequence[object] | None = None,
    reader_marks: Sequence[str | None] | None = None,
    writer_marks: Sequence[str | None] | None = None,
) -> TransferPlan:
    """Merge, limit the channels to the number of tasks, and assign. Opens nothing and moves nothing.

    `parallelism` is the session's: it is used if neither limits nor `channels` determine the number.

    Raises:
        OptionError: an invalid limit or number of channels, or parts that do not correspond 1:1.
    """
    tasks = merge_tasks(
        splits,
        writer_parts,
        spec.transformers,
        reader_marks=reader_marks,
        writer_marks=writer_marks,
    )
    return deal(spec, tasks, parallelism=parallelism)


def deal(
    spec: TransferSpec, tasks: Sequence[Task], *, parallelism: int, most: int = MAX_CHANNELS
) -> TransferPlan:
    """Limit the channels to the number of tasks and to `most`, and assign: the last part of `plan`, for given tasks.

    Raises:
        OptionError: an invalid limit or number of channels.
    """
    channels = min(plan_channels(_wanted(spec), parallelism, len(tasks)), most)
    groups = tuple(assign_fairly(tasks, channels, spec.channels_per_task))
    return TransferPlan(channels if groups else 0, groups)
