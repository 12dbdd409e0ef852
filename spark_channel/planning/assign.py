"""Which task runs in which Spark task, so that no host is hit by one group alone."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, zip_longest

from spark_channel.planning.channels import positive
from spark_channel.planning.types import Task, TaskGroup

__all__ = ["assign_fairly"]


def assign_fairly(tasks: Sequence[Task], channels: int, channels_per_group: int = 5) -> list[TaskGroup]:
    """Assign `tasks` to ceil(channels / channels_per_group) groups. Equal input makes equal groups.

    Group sizes differ by at most one task and one channel, the first groups get the remainder. Tasks that
    load one resource are spread over the groups as evenly as possible; the resource is the mark of the side
    that has more of them (the reader's on ties). Inside a group the largest task comes first. No tasks,
    no groups; channels above the number of tasks would idle and are not opened.

    Raises:
        OptionError: `channels` or `channels_per_group` is not a whole number of 1 or more.
    """
    channels = min(positive("channels", channels), len(tasks))
    per_group = positive("channelsPerTask", channels_per_group)
    if not tasks:
        return []
    mark, order = _mark_of_richer_side(tasks), _size_order(tasks)
    groups = _deal(sorted(tasks, key=order), -(-channels // per_group), mark)
    fewest, more = divmod(channels, len(groups))
    return [
        TaskGroup(number, tuple(sorted(dealt, key=order)), fewest + (number < more))
        for number, dealt in enumerate(groups)
    ]


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


def _deal(tasks: Sequence[Task], groups: int, mark: Callable[[Task], str | None]) -> list[list[Task]]:
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
