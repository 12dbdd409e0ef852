"""A split, its writer part and the transformers become a task."""

from collections.abc import Sequence
from typing import Any

from spark_channel.errors import OptionError
from spark_channel.planning.types import Split, Task

__all__ = ["merge_tasks"]


def merge_tasks(
    splits: Sequence[Split],
    writer_parts: Sequence[Any] | None = None,
    transformers: Sequence[Any] = (),
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
    for what, given in companions:
        if given is not None and len(given) != count:
            raise OptionError(
                f"{_number(count, 'split')} and {_number(len(given), what)}: "
                f"every split needs exactly one {what}. "
                "Give the writer as many targets as the reader has splits, or one target for all",
                option="writer",
                got=str(len(given)),
                takes=str(count),
            )
    nothing = [None] * count
    parts = zip(
        splits, writer_parts or nothing, reader_marks or nothing, writer_marks or nothing, strict=True
    )
    steps = tuple(transformers)
    return [
        Task(number, split, part, steps, reader_mark, writer_mark)
        for number, (split, part, reader_mark, writer_mark) in enumerate(parts)
    ]


def _number(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
