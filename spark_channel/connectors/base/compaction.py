"""Merging small files: which ones, and what became of them. No I/O."""

from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from spark_channel.errors import ChannelError

__all__ = [
    "FEW_BYTES",
    "FEW_ROWS",
    "Compaction",
    "are_few",
    "in_steps",
    "published",
    "small_groups",
]

FEW_ROWS, FEW_BYTES = 1_000_000, 64 << 20
"""Rows and Arrow bytes of a job that become one file for each partition value."""

_File = TypeVar("_File")
_Made = TypeVar("_Made")
_TIMES = 4
_STEP_BYTES, _STEP_FILES = 1 << 30, 20_000
"""Of the files that one step merges, about."""


@dataclass(frozen=True, slots=True)
class Compaction:
    """What `Writer.compact` did, or would do.

    `merged`: files that were merged, of `merged_bytes`; they became `made` files of `made_bytes` (None: a dry run does
    not know). `before`: the files of the target at the start. `kept`: who removes the merged files, for people. `left`:
    which files stay since they do not fit into one, and why, for people. `dropped`: files that stay, or are gone, since
    another job took some of those that would be one file.
    """

    before: int
    merged: int = 0
    merged_bytes: int = 0
    made: int = 0
    made_bytes: int | None = 0
    rows: int | None = 0
    kept: str = ""
    left: tuple[str, ...] = ()
    dropped: int = 0

    @property
    def after(self) -> int:
        return self.before - self.merged + self.made


def are_few(rows: int, nbytes: int) -> bool:
    """Whether the rows of a job become one file for each partition value: more cost each later reader too much."""
    return rows <= FEW_ROWS and nbytes <= FEW_BYTES


def small_groups(
    files: Iterable[_File],
    key: Callable[[_File], Hashable],
    nbytes: Callable[[_File], int],
    target: int,
) -> list[list[_File]]:
    """Files to merge, each list into one file of about `target` bytes, in their order.

    Small is a file below half of `target`; so what a merge made is merged again only while it is small itself. Files of
    different keys stay apart, and those whose key is None stay as they are. So does one that is more than four times as
    large as all others of its list: its rows would be written again for each few new ones.
    """
    groups: list[list[_File]] = []
    open_groups: dict[Hashable, tuple[list[_File], int]] = {}
    for file in files:
        size, of = nbytes(file), key(file)
        if of is None or size >= target / 2:
            continue
        group, group_bytes = open_groups.get(of, ([], 0))
        if not group:
            groups.append(group)
        group.append(file)
        open_groups[of] = (group, group_bytes + size) if group_bytes + size < target else ([], 0)
    all_groups = [_alike(group, nbytes) for group in groups]
    return [group for group in all_groups if len(group) > 1]


def in_steps(
    groups: Iterable[list[_File]], nbytes: Callable[[_File], int]
) -> Iterator[list[list[_File]]]:
    """The groups that are merged under one claim, and published together: a kill, or another job, undoes one step."""
    step, step_bytes, files = list[list[_File]](), 0, 0
    for group in groups:
        step.append(group)
        step_bytes, files = step_bytes + sum(map(nbytes, group)), files + len(group)
        if step_bytes >= _STEP_BYTES or files >= _STEP_FILES:
            yield step
            step, step_bytes, files = [], 0, 0
    if step:
        yield step


def published(
    steps: Iterable[list[list[_File]]],
    merge: Callable[[list[list[_File]]], list[_Made]],
    count: Callable[[_Made], int],
) -> list[_Made]:
    """What all steps made. The error of a later one says how many files (`count`) those before have merged."""
    results: list[_Made] = []
    for step in steps:
        try:
            results += merge(step)
        except ChannelError as error:
            if results:
                files = sum(map(count, results))
                error.args = (
                    f"{error}. {files} files were merged before, in steps of their own, and stay merged",
                    *error.args[1:],
                )
            raise
    return results


def _alike(group: list[_File], nbytes: Callable[[_File], int]) -> list[_File]:
    order = sorted(range(len(group)), key=lambda index: nbytes(group[index]))
    remaining = sum(map(nbytes, group))
    while len(order) > 1:
        largest = nbytes(group[order[-1]])
        remaining -= largest
        if largest <= _TIMES * remaining:
            break
        order.pop()
    return [group[index] for index in sorted(order)]
