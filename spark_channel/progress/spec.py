"""What a job is, as the one who opens it knows it."""

from dataclasses import dataclass, fields
from typing import Any, Literal, Self, get_args

from spark_channel.progress import plain
from spark_channel.progress.dirty import DirtyLimit

__all__ = ["JobKind", "JobSpec", "tighter"]

_SPEEDS = ("rows_per_second", "bytes_per_second", "shared_rows_per_second", "shared_bytes_per_second")

JobKind = Literal["read", "write", "transfer", "throttle", "stream"]


@dataclass(frozen=True, slots=True)
class JobSpec:
    """A job's facts, before it runs. All of it is shown to people: no text here may hold a secret.

    `source` and `target` say what is read and written ("csv /data/flights.csv"); empty where Spark is
    that end. `tasks` (what Spark retries), `splits`, `rows_expected` and `bytes_expected` are totals of one
    pass over the plan, None when unknown. `rows_per_second` and `bytes_per_second` are the job's own limit,
    `shared_...` what the one that it shares with others is set to as the job is planned,
    `per_mark` whether it holds for each resource mark by itself, and `limit_scope` what shares it ("the
    whole job", "each task", "shared limit orders-db"). `max_connections` is how many tasks may hold a
    connection to the target at once, `max_dirty_rows` and `max_dirty_fraction` how many rows may be refused
    (None = no limit). `commit` is "job", "task" or "". `where` says where the rows are once the job is
    done, `rerun` how to run it again. `batch` is the number of a stream's micro-batch, None outside streams,
    `behind` how far it is behind its source ("behind 12.4k rows, 3 s"). `static_tasks`: a Spark task that does not
    reach the service keeps 1/static_tasks of the job's own limit; None = it fails. `at_once`: so many run at a time.
    """

    kind: JobKind
    name: str = ""
    source: str = ""
    target: str = ""
    channels: int | None = None
    tasks: int | None = None
    splits: int | None = None
    rows_expected: int | None = None
    bytes_expected: int | None = None
    commit: str = ""
    rows_per_second: int | None = None
    bytes_per_second: int | None = None
    shared_rows_per_second: int | None = None
    shared_bytes_per_second: int | None = None
    limit_scope: str = "the whole job"
    per_mark: bool = False
    max_connections: int | None = None
    max_dirty_rows: int | None = None
    max_dirty_fraction: float | None = None
    where: str = ""
    rerun: str = ""
    batch: int | None = None
    behind: str = ""
    static_tasks: int | None = None
    at_once: bool = False

    @property
    def speeds(self) -> tuple[int | None, int | None]:
        """Rows and bytes per second: of both limits the tighter one holds."""
        return (
            tighter(self.rows_per_second, self.shared_rows_per_second),
            tighter(self.bytes_per_second, self.shared_bytes_per_second),
        )

    @property
    def limited(self) -> bool:
        return self.rows_per_second is not None or self.bytes_per_second is not None

    @property
    def dirty_limit(self) -> DirtyLimit:
        return DirtyLimit(self.max_dirty_rows, self.max_dirty_fraction)

    def to_json(self) -> dict[str, Any]:
        """Plain data; fields that hold their default are left out."""
        pairs = ((each, getattr(self, each.name)) for each in fields(self))
        return {each.name: value for each, value in pairs if value != each.default}

    @classmethod
    def from_json(cls, data: Any) -> Self:
        """Read what `to_json` made.

        Raises:
            ValueError: an unknown or missing field, or a value that makes no sense.
        """
        data = plain.refuse_unknown(data, _FIELDS, "a job")
        kind = data.get("kind")
        if kind not in get_args(JobKind):
            raise ValueError(f"kind is one of {', '.join(get_args(JobKind))}")
        for name in (*_SPEEDS, "channels", "max_connections", "static_tasks"):
            if data.get(name) == 0:
                raise ValueError(f"{name} is 1 or more, or absent")
        values: dict[str, Any] = {name: plain.text(data, name, default) for name, default in _TEXTS.items()}
        values |= {name: plain.optional_amount(data, name) for name in _AMOUNTS}
        fraction = data.get("max_dirty_fraction")
        if fraction is not None and not (type(fraction) in (int, float) and 0 <= fraction <= 1):
            raise ValueError("max_dirty_fraction is a number from 0 to 1, or absent")
        return cls(
            kind=kind,
            per_mark=data.get("per_mark", False) is True,
            at_once=data.get("at_once", False) is True,
            max_dirty_fraction=fraction,
            **values,
        )


def tighter(one: int | None, other: int | None) -> int | None:
    """The smaller of two limits; None = unlimited."""
    return other if one is None else one if other is None else min(one, other)


_FIELDS = frozenset(each.name for each in fields(JobSpec))
_TEXTS = {each.name: str(each.default) for each in fields(JobSpec) if isinstance(each.default, str)}
_AMOUNTS = tuple(
    each.name for each in fields(JobSpec) if each.default is None and each.name != "max_dirty_fraction"
)
