"""Resolves a job's own limit and its shared limit, and the static shares of tasks that cannot reach the service."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

from spark_channel.connectors import FetchSize
from spark_channel.option_types import protection_aims
from spark_channel.options import CommonOptions
from spark_channel.plain_text import log_of
from spark_channel.planning import TaskGroup
from spark_channel.progress import tighter

if TYPE_CHECKING:
    from spark_channel.connectors import Reader, Writer
    from spark_channel.limits import StaticShare
    from spark_channel.service import SharedLimitAddress

__all__ = [
    "JobLimits",
    "is_limited",
    "limit_scope_of",
    "permit_option",
    "static_of_spec",
    "static_shares",
    "told_static",
]


_log = log_of(__name__)

_UNKNOWN_ROWS, _UNKNOWN_BYTES = 50_000, 16 << 20
"""The largest fetch while the speed is not known yet: half a second at a high speed."""
_Speeds = tuple[int | None, int | None]
_PERMITS = {"numpartitions": "numPartitions", "maxconnections": "maxConnections"}


@dataclass(frozen=True, slots=True)
class JobLimits:
    """The job's own limit and the shared one, when the job is planned; rows and bytes per second, None = unlimited."""

    own: _Speeds
    shared: _Speeds
    scope: str
    address: "SharedLimitAddress | None"
    """Where the shared one is kept; None without it."""
    falls_back: bool = True
    """Option `limitFallback` is `static`."""
    protect: bool = False
    pressure: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def from_options(cls, options: CommonOptions) -> Self:
        """Finds the limit of option `sharedLimit` on the driver's host, before any task runs.

        Raises:
            OptionError: it is not served, or its token is missing. ServiceDeniedError: its token is wrong.
        """
        aims = protection_aims(options.protect)
        protected = (options.is_protected, {**aims, **(options.pressure or {})})
        own_speeds, scope = (
            (options.rows_per_second, options.bytes_per_second),
            limit_scope_of(options),
        )
        if options.shared_limit is None:
            return cls(
                own_speeds,
                (None, None),
                scope,
                None,
                options.limit_fallback == "static",
                *protected,
            )
        from spark_channel.service import find_shared_limit, shared_speed

        token = options.shared_limit_token
        address = find_shared_limit(
            options.shared_limit, None if token is None else token.get_secret_value()
        )
        falls_back = options.limit_fallback == "static"
        return cls(own_speeds, shared_speed(address), scope, address, falls_back, *protected)

    def watching(self, *ends: "Reader | Writer") -> Self:
        """Return the limits without `protect` and `pressure` if none of `ends` reports health signals."""
        if not (self.protect or self.pressure) or any(end.health() is not None for end in ends):
            return self
        named = " and ".join(f"'{name}'" for name in ("protect", "pressure") if getattr(self, name))
        names = ", ".join(sorted({type(end).__name__ for end in ends}))
        _log.warning("option %s has no effect: %s reports no health signals", named, names)
        return replace(self, protect=False, pressure={})

    def static(self, tasks: int | None) -> "StaticShare | None":
        """Return each Spark task's share of the job's own limit without the service, for at most `tasks` at a time.

        None: the job has no such limit, the number of tasks is not known, or option `limitFallback` is `fail`.
        """
        if not self.falls_back or tasks is None or self.own == (None, None):
            return None
        from spark_channel.limits import StaticShare

        return StaticShare(*self.own, max(1, tasks))

    def of_spec(self, *, per_mark: bool = False) -> dict[str, Any]:
        """Return the fields of a `JobSpec` that describe this limit."""
        scope = f"each resource of {self.scope}" if per_mark else self.scope
        return {
            "rows_per_second": self.own[0],
            "bytes_per_second": self.own[1],
            "shared_rows_per_second": self.shared[0],
            "shared_bytes_per_second": self.shared[1],
            "limit_scope": scope + (", in Arrow bytes" if self.own[1] else ""),
            "per_mark": per_mark,
            "protect": self.protect,
            "pressure": self.pressure,
        }

    def fetch_size(self, channels: int, *, reads: int = 1) -> FetchSize:
        """About half a second of the limit over all channels: a fetch is sent before it is paid.

        `reads`: how many reads may spend the limit at the same time, each with so many channels.
        """
        rows, nbytes = (
            tighter(own_speed, shared)
            for own_speed, shared in zip(self.own, self.shared, strict=True)
        )
        if rows is None and nbytes is None:
            guessed = self.protect or self.pressure
            return (
                FetchSize(_UNKNOWN_ROWS, _UNKNOWN_BYTES, guessed=True) if guessed else FetchSize()
            )
        parts = 2 * reads
        row_part, byte_part = (
            None if rate is None else max(1, rate // (parts * channels)) for rate in (rows, nbytes)
        )
        return FetchSize(row_part, byte_part, per_second=parts)


def is_limited(options: CommonOptions) -> bool:
    """Whether a speed must hold over the whole job."""
    return options.is_limited


def limit_scope_of(options: CommonOptions) -> str:
    """Return the scope of the limit as text for people."""
    if options.shared_limit is not None:
        return f"shared limit {options.shared_limit}"
    per_task = options.rows_per_second_per_task or options.bytes_per_second_per_task
    return "each Spark task" if per_task else "the whole job"


def static_shares(
    limits: JobLimits, groups: Sequence[TaskGroup], slots: int | None, *, per_mark: bool = False
) -> "list[StaticShare | None]":
    """Return the share of the limit for each of `groups`: as many parts as can be spent at a time.

    `slots`: how many Spark tasks run at a time, None = not known; then all groups may.
    """
    marks = [group.tasks[0].reader_mark if per_mark else None for group in groups]
    alike = {mark: marks.count(mark) for mark in set(marks)}
    most = len(groups) if slots is None else slots
    return [limits.static(min(alike[mark], most)) for mark in marks]


def static_of_spec(
    share: "StaticShare | None",
    tasks: int | None = None,
    slots: int | None = None,
    *,
    one_host: Callable[[], bool],
) -> dict[str, Any]:
    """Return the fields of a `JobSpec` that describe the static shares; `tasks`: all that ever run, None = unknown.

    Empty on `one_host`: a task that falls silent there was killed, so no share has to be set aside for it.
    """
    if share is None or one_host():
        return {}
    at_once = tasks is not None and slots is not None and tasks <= slots
    return {"static_tasks": share.tasks, "at_once": at_once}


def told_static(static: int, tasks: int, share: "StaticShare | None") -> str:
    """For the log and the report: `static` of `tasks` did not reach the service; empty when all did."""
    if not static or share is None:
        return ""
    return (
        f"static limit: {static} of {tasks} tasks did not reach the service "
        f"and kept 1/{share.tasks} of the limit each"
    )


def permit_option(options: Mapping[str, str]) -> str | None:
    """`maxConnections` as the user spelled it; None where the server bounds the tasks."""
    return next((_PERMITS[key.lower()] for key in options if key.lower() in _PERMITS), None)
