"""Makes tasks of splits and groups them by Spark task, as DataX's split, merge and assign steps do."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, zip_longest
from typing import Any

from spark_channel.errors import OptionError

__all__ = [
    "SPLITS_PER_CHANNEL",
    "Split",
    "Task",
    "TaskGroup",
    "assign_by_mark",
    "assign_fairly",
    "channel_count",
    "merge_tasks",
    "plan_channels",
    "positive",
    "share_channels",
    "split_advice",
]

MAX_CHANNELS = 100_000
"""No cluster runs more at the same time; it also bounds the splits that a tiny channel limit would ask for."""
SPLITS_PER_CHANNEL = 5
"""Several splits a channel, so that a slow one leaves the others work to take."""


@dataclass(frozen=True, slots=True)
class Split:
    """One piece of a source that one `Reader.read` call covers.

    Plain data, picklable, made by `Reader.split` and understood by that reader alone.
    `rows` and `nbytes` are the reader's estimates (None = unknown): they order the work, largest
    first, and are the total of the progress line; reading never stops at them.
    `is_text`: `nbytes` are of plain text, which has about so many rows; compressed ones say nothing of them.
    """

    params: Mapping[str, Any] = field(default_factory=dict)
    rows: int | None = None
    nbytes: int | None = None
    is_text: bool = False


@dataclass(frozen=True, slots=True)
class Task:
    """One split with its writer part. Its `id` identifies it in staging and in committed tasks.

    `reader_mark` and `writer_mark` name the resource (a database host) that each side loads.
    """

    id: int
    split: Split
    writer_part: Any = None
    transformers: tuple[Any, ...] = ()
    reader_mark: str | None = None
    writer_mark: str | None = None


@dataclass(frozen=True, slots=True)
class TaskGroup:
    """The tasks that one Spark task runs over `channels` channels; what Spark retries."""

    id: int
    tasks: tuple[Task, ...]
    channels: int


def merge_tasks(
    splits: Sequence[Split],
    writer_parts: Sequence[object] | None = None,
    transformers: Sequence[object] = (),
    *,
    reader_marks: Sequence[str | None] | None = None,
    writer_marks: Sequence[str | None] | None = None,
) -> list[Task]:
    """Task i = split i + writer part i + the transformers; ids are 0..n-1.

    `writer_parts` None: the writer has one target and needs no parts. Marks, if given, correspond one to one
    to the splits.

    Raises:
        OptionError: parts or marks do not correspond one to one to the splits; names both numbers.
    """
    count = len(splits)
    companions = (
        ("writer part", writer_parts),
        ("reader mark", reader_marks),
        ("writer mark", writer_marks),
    )
    for noun, companion in companions:
        if companion is not None and len(companion) != count:
            raise OptionError(
                f"{_number(count, 'split')} and {_number(len(companion), noun)}: "
                f"every split needs exactly one {noun}. "
                "Give the writer as many targets as the reader has splits, or one target for all",
                option="writer",
                got=str(len(companion)),
                takes=str(count),
            )
    nothing = [None] * count
    parts = zip(
        splits,
        writer_parts or nothing,
        reader_marks or nothing,
        writer_marks or nothing,
        strict=True,
    )
    steps = tuple(transformers)
    return [
        Task(number, split, part, steps, reader_mark, writer_mark)
        for number, (split, part, reader_mark, writer_mark) in enumerate(parts)
    ]


def _number(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def positive(name: str, value: object) -> int:
    """`value` if it is a whole number of 1 or more.

    Raises:
        OptionError: names `name`, what it got and what it takes.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise OptionError(
            f"{name!r} got {value!r}; it takes a whole number of 1 or more",
            option=name,
            got=str(value),
            takes="a whole number of 1 or more",
        )
    return value


def channel_count(
    *,
    rows_per_second: int | None = None,
    bytes_per_second: int | None = None,
    channel_rows_per_second: int | None = None,
    channel_bytes_per_second: int | None = None,
    channels: int | None = None,
) -> int | None:
    """Channels that the limits or the user ask for; None = not given: the session's parallelism.

    A job limit divided by the channel limit of the same dimension, at least 1; the smaller of rows
    and bytes wins, and either wins over `channels`. A job limit without a channel limit does not determine the
    number: the channels share it.

    ```python
    from spark_channel.planning import channel_count

    assert channel_count(rows_per_second=1000, channel_rows_per_second=300) == 3
    assert channel_count(bytes_per_second=10, channel_bytes_per_second=1000) == 1
    assert channel_count(rows_per_second=1000, channels=4) == 4
    assert channel_count(rows_per_second=1000) is None      # none given: the session's parallelism
    ```

    Raises:
        OptionError: a value that is not a whole number of 1 or more.
    """
    counts = {
        "rowsPerSecond": rows_per_second,
        "bytesPerSecond": bytes_per_second,
        "channelRowsPerSecond": channel_rows_per_second,
        "channelBytesPerSecond": channel_bytes_per_second,
        "channels": channels,
    }
    for name, value in counts.items():
        if value is not None:
            positive(name, value)
    quotients = [
        max(1, job // channel)
        for job, channel in (
            (rows_per_second, channel_rows_per_second),
            (bytes_per_second, channel_bytes_per_second),
        )
        if job is not None and channel is not None
    ]
    return min(quotients) if quotients else channels


def plan_channels(count_asked: int | None, parallelism: int, tasks: int | None = None) -> int:
    """Channels to open: `count_asked`, else `parallelism`; at most `tasks`, once they are known.

    At least 1, so that a job without tasks still has a plan; at most `MAX_CHANNELS`.
    """
    channels = (
        positive("parallelism", parallelism)
        if count_asked is None
        else positive("channels", count_asked)
    )
    limits = [MAX_CHANNELS] if tasks is None else [MAX_CHANNELS, tasks]
    return max(1, min(channels, *limits))


def split_advice(channels: int, per_channel: int = SPLITS_PER_CHANNEL) -> int:
    """The number of splits to request from a reader; at most 5 for each of `MAX_CHANNELS`."""
    channels_wanted = positive("channels", channels) * positive("splitsPerChannel", per_channel)
    return min(channels_wanted, MAX_CHANNELS * SPLITS_PER_CHANNEL)


def assign_fairly(
    tasks: Sequence[Task], channels: int, channels_per_group: int = 5
) -> list[TaskGroup]:
    """Assign `tasks` to ceil(channels / channels_per_group) groups. Equal input makes equal groups.

    Group sizes differ by at most one task and one channel, the first groups get the remainder. Tasks that
    load one resource are spread over the groups as evenly as possible; the resource is the mark of the side
    that has more of them (the reader's on ties). Inside a group the largest task comes first. No tasks,
    no groups; channels above the number of tasks would idle and are not opened.

    ```python
    from spark_channel.planning import Split, Task, assign_fairly

    tasks = [Task(n, Split(rows=100), reader_mark="db-1" if n < 6 else "db-2") for n in range(12)]
    groups = assign_fairly(tasks, channels=4, channels_per_group=2)
    for group in groups:
        hosts = [task.reader_mark for task in group.tasks]
        assert (hosts.count("db-1"), hosts.count("db-2"), group.channels) == (3, 3, 2)
    ```

    Raises:
        OptionError: `channels` or `channels_per_group` is not a whole number of 1 or more.
    """
    channels = min(positive("channels", channels), len(tasks))
    per_group = positive("channelsPerTask", channels_per_group)
    if not tasks:
        return []
    mark, order = _mark_of_richer_side(tasks), _size_order(tasks)
    groups = _distribute(sorted(tasks, key=order), -(-channels // per_group), mark)
    fewest, one_more = divmod(channels, len(groups))
    return [
        TaskGroup(number, tuple(sorted(dealt, key=order)), fewest + (number < one_more))
        for number, dealt in enumerate(groups)
    ]


def share_channels(channels: int, splits: Sequence[int]) -> list[int]:
    """Channels of each of several ranges of so many `splits`, which no task may join: at least one.

    What a range with few splits leaves of its equal part, the others have.
    """
    shares, left = [1] * len(splits), channels
    by_splits = sorted(range(len(splits)), key=splits.__getitem__)
    for number, of_range in enumerate(by_splits):
        shares[of_range] = max(1, min(splits[of_range], left // (len(splits) - number)))
        left -= shares[of_range]
    return shares


def _size_order(tasks: Sequence[Task]) -> Callable[[Task], float]:
    """A sort key that puts the largest first and keeps the order of equals.

    Bytes and rows do not compare: the estimate that more tasks have counts for all (bytes on ties). A task
    without it comes first, since it may be the largest.
    """
    by_bytes = sum(task.split.nbytes is not None for task in tasks)
    by_rows = sum(task.split.rows is not None for task in tasks)
    if by_bytes >= by_rows:
        return lambda task: -math.inf if (size := task.split.nbytes) is None else -size
    return lambda task: -math.inf if (size := task.split.rows) is None else -size


def _mark_of_richer_side(tasks: Sequence[Task]) -> Callable[[Task], str | None]:
    readers = {task.reader_mark for task in tasks} - {None}
    writers = {task.writer_mark for task in tasks} - {None}
    if len(writers) > len(readers):
        return lambda task: task.writer_mark
    return lambda task: task.reader_mark


def _distribute(
    tasks: Sequence[Task], groups: int, mark: Callable[[Task], str | None]
) -> list[list[Task]]:
    by_mark: dict[str | None, list[Task]] = {}
    for task in tasks:
        by_mark.setdefault(mark(task), []).append(task)
    # Sizes must not change which mark is dealt first: marks go in the order of their first task.
    hands = sorted(by_mark.values(), key=lambda hand: min(task.id for task in hand))
    rounds = (task for turn in zip_longest(*hands) for task in turn if task is not None)
    dealt = _in_turn(rounds, groups)
    if _is_even(dealt, mark):
        return dealt
    # Rounds repeat: with two marks and two groups each group would get one mark whole. Mark after mark
    # cannot: a run of neighbours meets every group equally often.
    return _in_turn(chain.from_iterable(hands), groups)


def _in_turn(tasks: Iterable[Task], groups: int) -> list[list[Task]]:
    ordered = list(tasks)
    return [ordered[number::groups] for number in range(groups)]


def _is_even(dealt: Sequence[Sequence[Task]], mark: Callable[[Task], str | None]) -> bool:
    total = Counter(mark(task) for group in dealt for task in group)
    floor = {name: count // len(dealt) for name, count in total.items()}
    ceiling = {name: -(-count // len(dealt)) for name, count in total.items()}
    reached = dict.fromkeys(total, 0)
    for group in dealt:
        for name, count in Counter(map(mark, group)).items():
            if not floor[name] <= count <= ceiling[name]:
                return False
            reached[name] += 1
    return all(reached[name] == len(dealt) or floor[name] == 0 for name in total)


def assign_by_mark(
    tasks: Sequence[Task], channels: int, channels_per_group: int
) -> list[TaskGroup]:
    """Groups whose tasks load one resource each, so that a group pays one limit."""
    marks: dict[str | None, list[Task]] = {}
    for task in tasks:
        marks.setdefault(task.reader_mark, []).append(task)
    groups: list[TaskGroup] = []
    for number, alike in enumerate(marks.values()):
        share = max(1, channels // len(marks) + (number < channels % len(marks)))
        for group in assign_fairly(alike, share, channels_per_group):
            groups.append(replace(group, id=len(groups)))
    return groups
