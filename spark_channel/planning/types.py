"""The plan's plain data: what is read, by which task, in which Spark task."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Split", "Task", "TaskGroup"]


@dataclass(frozen=True, slots=True)
class Split:
    """One piece of a source that one `Reader.read` call covers.

    Plain data, picklable, made by `Reader.split` and understood by that reader alone.
    `rows` and `nbytes` are the reader's estimates (None = unknown): they order the work, largest
    first, and are the total of the progress line; reading never stops at them.
    """

    params: Mapping[str, Any] = field(default_factory=dict)
    rows: int | None = None
    nbytes: int | None = None


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
