import pytest

from spark_channel.errors import OptionError
from spark_channel.planning import Split, merge_tasks

SPLITS = [Split({"file": name}) for name in "abc"]


def test_task_i_is_split_i_and_part_i_and_the_transformers() -> None:
    tasks = merge_tasks(SPLITS, ["x", "y", "z"], ["upper"], reader_marks=["h", None, "h"])
    assert [task.id for task in tasks] == [0, 1, 2]
    assert [task.split for task in tasks] == SPLITS
    assert [task.writer_part for task in tasks] == ["x", "y", "z"]
    assert [task.reader_mark for task in tasks] == ["h", None, "h"]
    assert [task.writer_mark for task in tasks] == [None, None, None]
    assert {task.transformers for task in tasks} == {("upper",)}


def test_a_writer_with_one_target_needs_no_parts() -> None:
    assert [task.writer_part for task in merge_tasks(SPLITS)] == [None, None, None]


def test_an_empty_source_has_no_tasks_and_no_error() -> None:
    assert merge_tasks([], []) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"writer_parts": ["x", "y"]}, "3 splits and 2 writer parts"),
        ({"writer_parts": []}, "3 splits and 0 writer parts"),
        ({"reader_marks": ["h"]}, "3 splits and 1 reader mark:"),
        ({"writer_marks": ["h"] * 4}, "3 splits and 4 writer marks"),
    ],
)
def test_what_does_not_go_one_to_one_names_both_numbers(
    arguments: dict[str, list[str]], message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        merge_tasks(SPLITS, **arguments)
