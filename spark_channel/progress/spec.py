"""`JobSpec`: the facts about a job before it runs, with its limit of refused rows."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import ConfigDict, Field

from spark_channel.serialization import Count, Limit, Seconds, Strict, Text, from_plain, to_plain

__all__ = [
    "DirtyLimit",
    "JobColumn",
    "JobSpec",
    "tighter",
]

_MOST_COLUMNS = 1_000
_MOST_TEXT = 32 << 10
"""Characters of all columns: each task of a job carries its facts."""
_LONGEST, _LONGEST_NAME = 200, 1_000


@dataclass(frozen=True, slots=True)
class DirtyLimit:
    """The most rows that a job may refuse: a number, a share of all rows (0 to 1), or both; None = no limit.

    Without either, any number of rows may be refused.
    """

    rows: int | None = 0
    fraction: float | None = None

    @property
    def tolerant(self) -> bool:
        """Whether the job continues after one refused row."""
        return self.rows != 0 and self.fraction != 0.0

    @property
    def limited(self) -> bool:
        """Whether any number of refused rows ends the job."""
        return self.rows is not None or self.fraction is not None

    def exceeded(
        self, dirty: int, rows: int, expected: int | None = None, *, final: bool = False
    ) -> str:
        """Return why `dirty` of `rows` (good and dirty) are too many; empty while they are not.

        Before the end, the fraction needs the number of `expected` rows: a few dirty rows at the head of a file
        prove nothing. `final`: there are no more rows.
        """
        if self.rows is not None and dirty > self.rows:
            return f"{_rows(dirty)} refused, and maxDirtyRows is {self.rows}"
        if self.fraction is not None and dirty:
            whole = self._whole(dirty, rows, expected, final)
            if whole is not None and dirty > self.fraction * whole:
                about = "" if final else "about "
                return (
                    f"{_rows(dirty)} refused of {about}{whole} ({100 * dirty / whole:.3g} %), "
                    f"and maxDirtyFraction is {self.fraction:g} ({100 * self.fraction:g} %)"
                )
        return ""

    def _whole(self, dirty: int, rows: int, expected: int | None, final: bool) -> int | None:
        """The number of rows that the share refers to; None = not known yet."""
        if final or self.fraction == 0.0:
            return max(rows, dirty)
        return None if expected is None else max(expected, rows)


def _rows(count: int) -> str:
    return "1 row was" if count == 1 else f"{count} rows were"


@dataclass(frozen=True, slots=True)
class JobColumn:
    """A column of a job's source or target. `origins`: the columns of the source that a target's one is made of, and
    `how`, which is empty where the values are the same; `masked`: they are hidden by it.
    """

    name: Text
    type: Text
    origins: tuple[Text, ...] = ()
    how: Text = ""
    masked: bool = False

    @classmethod
    def from_schema(cls, schema: "Iterable[Any]") -> "tuple[JobColumn, ...]":
        """The columns of an Arrow schema."""
        return cls.bounded(cls(field.name, str(field.type)) for field in schema)

    @staticmethod
    def bounded(columns: "Iterable[JobColumn]") -> "tuple[JobColumn, ...]":
        """The columns, as far as a job's facts have room for them: none of a table that is too wide."""
        shortened = tuple(
            column
            if max(len(column.type), len(column.how)) <= _LONGEST
            else replace(column, type=column.type[:_LONGEST], how=column.how[:_LONGEST])
            for column in columns
        )
        sizes = [
            len(text)
            for column in shortened
            for text in (column.name, column.type, *column.origins)
        ]
        fits = len(shortened) <= _MOST_COLUMNS and sum(sizes) <= _MOST_TEXT
        return shortened if fits and max(sizes, default=0) <= _LONGEST_NAME else ()


JobKind = Literal["read", "write", "transfer", "throttle", "stream", "verify"]


@dataclass(frozen=True, slots=True)
class JobSpec:
    """A job's facts, before it runs. All of it is shown to people: no text here may hold a secret.

    `source` and `target` say what is read and written ("csv /data/flights.csv"); empty where Spark is
    that end. `tasks` (what Spark retries), `splits`, `rows_expected` and `bytes_expected` are totals of one
    pass over the plan, None when unknown. `rows_per_second` and `bytes_per_second` are the job's own limit,
    `shared_...` what the one that it shares with others is set to as the job is planned,
    `per_mark` whether it holds for each resource mark by itself, and `limit_scope` what shares it ("the
    whole job", "each task", "shared limit orders-db"). `max_connections` is how many tasks may hold a
    connection to the target at the same time, `max_dirty_rows` and `max_dirty_fraction` how many rows may be refused
    (None = no limit). `commit` is "job", "task" or ""; `at_least_once`: nothing keeps the rows of a retried task from
    being added twice. `where` says where the rows are once the job is
    done, `path` how they get there where there are two ways, `rerun` how to run it again.
    `batch` is the number of a stream's micro-batch, None outside streams, `query` the id of the streaming query
    that it is of, `behind` how far it is behind its source ("behind 12.4k rows, 3 s"), `lag` the same as
    numbers. `static_tasks`: a Spark task that does not reach the service keeps 1/static_tasks
    of the job's own limit; None = it fails. `at_once`: so many run at a time.
    `stall_timeout`: seconds without progress after which a task is named. `protect`: the speed follows the health of
    source and target; `pressure`: the user's bounds for it, by the name of a signal. `source_columns` and
    `target_columns` are empty where they are not known. `part_of` is the replication that copies this table.
    """

    __pydantic_config__: ClassVar[ConfigDict] = Strict

    kind: JobKind
    name: Text = ""
    source: Text = ""
    target: Text = ""
    channels: Count | None = None
    tasks: Count | None = None
    splits: Count | None = None
    rows_expected: Count | None = None
    bytes_expected: Count | None = None
    commit: Text = ""
    at_least_once: bool = False
    rows_per_second: Limit | None = None
    bytes_per_second: Limit | None = None
    shared_rows_per_second: Limit | None = None
    shared_bytes_per_second: Limit | None = None
    limit_scope: Text = "the whole job"
    per_mark: bool = False
    max_connections: Limit | None = None
    max_dirty_rows: Count | None = None
    max_dirty_fraction: Annotated[float, Field(ge=0, le=1)] | None = None
    where: Text = ""
    path: Text = ""
    rerun: Text = ""
    batch: Count | None = None
    query: Text = ""
    behind: Text = ""
    lag: Annotated[Mapping[Text, Count | Seconds], Field(max_length=64)] = field(
        default_factory=dict, hash=False
    )
    static_tasks: Limit | None = None
    at_once: bool = False
    stall_timeout: Annotated[float, Field(gt=0)] | None = None
    protect: bool = False
    pressure: Mapping[Text, Annotated[float, Field(ge=0)]] = field(default_factory=dict, hash=False)
    source_columns: Annotated[tuple[JobColumn, ...], Field(max_length=_MOST_COLUMNS)] = ()
    target_columns: Annotated[tuple[JobColumn, ...], Field(max_length=_MOST_COLUMNS)] = ()
    part_of: Text = ""

    @property
    def speeds(self) -> tuple[int | None, int | None]:
        """Rows and bytes per second: of both limits the tighter one holds."""
        return (
            tighter(self.rows_per_second, self.shared_rows_per_second),
            tighter(self.bytes_per_second, self.shared_bytes_per_second),
        )

    @property
    def limited(self) -> bool:
        return (
            self.rows_per_second is not None or self.bytes_per_second is not None or self.protected
        )

    @property
    def protected(self) -> bool:
        """Whether its speed follows what its source and its target say of their health."""
        return self.protect or bool(self.pressure)

    @property
    def dirty_limit(self) -> DirtyLimit:
        return DirtyLimit(self.max_dirty_rows, self.max_dirty_fraction)

    def to_json(self) -> dict[str, Any]:
        """Plain data; fields that hold their default are left out."""
        return to_plain(self, always=("kind",))

    @classmethod
    def from_json(cls, data: object) -> Self:
        """Read what `to_json` made.

        Raises:
            ValueError: an unknown or missing field, or a value that makes no sense.
        """
        return from_plain(cls, data, "a job")


def tighter(one: int | None, other: int | None) -> int | None:
    """The smaller of two limits; None = unlimited."""
    return other if one is None else one if other is None else min(one, other)
