from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_channel.errors import OptionError
from spark_channel.planning import Split, Task, TaskGroup, assign_fairly
from spark_channel.planning.tasks import share_channels

MARKS = st.sampled_from(["a", "b", "c", None])
SIZES = st.none() | st.integers(0, 1000)


def tasks_of(marks: str, sizes: list[int | None] | None = None) -> list[Task]:
    """One task per letter, read from the host of that letter ("-" = no mark)."""
    return [
        Task(
            number,
            Split(rows=sizes[number] if sizes else None),
            reader_mark=None if mark == "-" else mark,
        )
        for number, mark in enumerate(marks)
    ]


def ids(groups: list[TaskGroup]) -> list[list[int]]:
    return [[task.id for task in group.tasks] for group in groups]


@st.composite
def any_tasks(draw: st.DrawFn) -> list[Task]:
    drawn = draw(st.lists(st.tuples(MARKS, MARKS, SIZES, SIZES), max_size=60))
    return [
        Task(number, Split(rows=rows, nbytes=size), reader_mark=reader, writer_mark=writer)
        for number, (reader, writer, rows, size) in enumerate(drawn)
    ]


@given(any_tasks(), st.integers(1, 40), st.integers(1, 8))
def test_every_task_runs_exactly_once(tasks: list[Task], channels: int, per_group: int) -> None:
    groups = assign_fairly(tasks, channels, per_group)
    assert sorted(task.id for group in groups for task in group.tasks) == [
        task.id for task in tasks
    ]
    assert [group.id for group in groups] == list(range(len(groups)))


@given(any_tasks(), st.integers(1, 40), st.integers(1, 8))
def test_groups_differ_by_one_task_and_one_channel_and_no_channel_is_without_a_task(
    tasks: list[Task], channels: int, per_group: int
) -> None:
    groups = assign_fairly(tasks, channels, per_group)
    if not tasks:
        assert groups == []
        return
    capped = min(channels, len(tasks))
    assert len(groups) == -(-capped // per_group)
    assert sum(group.channels for group in groups) == capped
    sizes = [len(group.tasks) for group in groups]
    widths = [group.channels for group in groups]
    assert max(sizes) - min(sizes) <= 1
    assert max(widths) - min(widths) <= 1
    assert max(widths) <= per_group
    assert widths == sorted(widths, reverse=True)
    assert all(group.channels <= len(group.tasks) for group in groups)


@given(any_tasks(), st.integers(1, 40), st.integers(1, 8))
def test_tasks_of_one_mark_are_spread_as_evenly_as_can_be(
    tasks: list[Task], channels: int, per_group: int
) -> None:
    readers = {task.reader_mark for task in tasks} - {None}
    writers = {task.writer_mark for task in tasks} - {None}
    side = "writer_mark" if len(writers) > len(readers) else "reader_mark"
    groups = assign_fairly(tasks, channels, per_group)
    for mark in {getattr(task, side) for task in tasks}:
        loads = [sum(getattr(task, side) == mark for task in group.tasks) for group in groups]
        assert max(loads) - min(loads) <= 1


@given(any_tasks(), st.integers(1, 40), st.integers(1, 8))
def test_the_same_input_gives_the_same_plan(
    tasks: list[Task], channels: int, per_group: int
) -> None:
    assert assign_fairly(tasks, channels, per_group) == assign_fairly(
        list(tasks), channels, per_group
    )


def test_thirteen_channels_over_five_groups() -> None:
    groups = assign_fairly(tasks_of("-" * 20), 13, channels_per_group=3)
    assert [group.channels for group in groups] == [3, 3, 3, 2, 2]
    assert [len(group.tasks) for group in groups] == [4, 4, 4, 4, 4]


def test_one_task_per_mark_and_round_to_the_groups_in_turn() -> None:
    groups = assign_fairly(tasks_of("aaabbccc"), 4, channels_per_group=1)
    assert ids(groups) == [[0, 4], [3, 6], [5, 2], [1, 7]]


def test_two_hosts_over_two_groups_do_not_give_each_group_one_host() -> None:
    groups = assign_fairly(tasks_of("abababab"), 2, channels_per_group=1)
    assert [Counter(task.reader_mark for task in group.tasks) for group in groups] == [
        {"a": 2, "b": 2}
    ] * 2


def test_the_side_with_more_marks_counts() -> None:
    tasks = [
        Task(number, Split(), reader_mark="only", writer_mark=mark)
        for number, mark in enumerate("aabb")
    ]
    groups = assign_fairly(tasks, 2, channels_per_group=1)
    assert [sorted(task.writer_mark or "" for task in group.tasks) for group in groups] == [
        ["a", "b"]
    ] * 2


def test_on_a_tie_the_reader_counts() -> None:
    tasks = [
        Task(0, Split(), reader_mark="a", writer_mark="x"),
        Task(1, Split(), reader_mark="a", writer_mark="y"),
        Task(2, Split(), reader_mark="b", writer_mark="x"),
        Task(3, Split(), reader_mark="b", writer_mark="y"),
    ]
    groups = assign_fairly(tasks, 2, channels_per_group=1)
    assert [sorted(task.reader_mark or "" for task in group.tasks) for group in groups] == [
        ["a", "b"]
    ] * 2


def test_the_largest_task_of_a_group_comes_first() -> None:
    groups = assign_fairly(tasks_of("-----", sizes=[3, 9, 1, 7, 5]), 1)
    assert ids(groups) == [[1, 3, 4, 0, 2]]


def test_a_task_of_unknown_size_may_be_the_largest() -> None:
    assert ids(assign_fairly(tasks_of("---", sizes=[3, None, 9]), 1)) == [[1, 2, 0]]


def test_bytes_order_the_tasks_when_they_are_as_well_known_as_rows() -> None:
    tasks = [Task(0, Split(rows=9, nbytes=1)), Task(1, Split(rows=1, nbytes=9))]
    assert ids(assign_fairly(tasks, 1)) == [[1, 0]]


def test_rows_order_the_tasks_when_more_of_them_are_known() -> None:
    tasks = [Task(0, Split(rows=1, nbytes=9)), Task(1, Split(rows=9))]
    assert ids(assign_fairly(tasks, 1)) == [[1, 0]]


def test_large_and_small_by_turns_still_give_groups_of_equal_work() -> None:
    groups = assign_fairly(tasks_of("-" * 8, sizes=[100, 1] * 4), 2, channels_per_group=1)
    assert [sum(task.split.rows or 0 for task in group.tasks) for group in groups] == [202, 202]


def test_channels_above_the_tasks_are_not_opened() -> None:
    groups = assign_fairly(tasks_of("--"), 50, channels_per_group=5)
    assert [(len(group.tasks), group.channels) for group in groups] == [(2, 2)]


@pytest.mark.parametrize(("channels", "per_group"), [(0, 5), (-1, 5), (3, 0), (3, -5)])
def test_a_number_below_one_is_refused(channels: int, per_group: int) -> None:
    with pytest.raises(OptionError, match="whole number of 1 or more"):
        assign_fairly(tasks_of("---"), channels, per_group)


@given(st.integers(1, 100), st.lists(st.integers(0, 50), max_size=20))
def test_ranges_share_all_channels_that_have_a_split(channels: int, splits: list[int]) -> None:
    shares = share_channels(channels, splits)
    assert all(1 <= share <= max(1, most) for share, most in zip(shares, splits, strict=True))
    useful = max(len(splits), min(channels, sum(max(1, most) for most in splits)))
    assert sum(shares) == useful


def test_a_range_of_one_split_leaves_its_part_to_the_others() -> None:
    assert share_channels(4, [9, 1]) == [3, 1]
    assert share_channels(12, [50, 2, 50, 1]) == [4, 2, 5, 1]
    assert share_channels(2, [5, 5, 5]) == [1, 1, 1]
