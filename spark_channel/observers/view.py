"""What the page shows of one service: its jobs and limits as plain data, and the changes of a limit."""

import uuid
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from spark_channel.observers.metrics import JobMetrics
from spark_channel.progress import JobProgress, JobStatus, Phase, Snapshot
from spark_channel.progress.report import plain_end
from spark_channel.progress.speed import SIDES

if TYPE_CHECKING:
    from spark_channel.limits import LimitStatus, Reply, Request

__all__ = ["LocalView", "View", "limit_request"]

_MOST_TASKS = 2_000
_MOST_JOBS = 500
_SETTLED_SECONDS = 10.0
"""The samples of the last seconds still change, since tasks report late."""


class View(Protocol):
    """One service as the page sees it, in this process or another one."""

    def watch(self, job: str | None, since: float) -> dict[str, Any]:
        """Return `jobs`, `limits`, and `detail` of `job`, with its speeds from `since` seconds on."""

    def change(self, request: "Request") -> None:
        """Carry out `SetRates`, `Pause` or `Resume`.

        Raises:
            ValueError: it was refused; the text says why.
        """


class LocalView:
    """The view of a service of this process. `find` returns a job, or raises `KeyError`."""

    def __init__(
        self,
        metrics: JobMetrics,
        find: Callable[[str], JobProgress],
        limits: Callable[[], tuple[str, ...]],
        handle: "Callable[[Request], Reply]",
        watched: Callable[[str], Mapping[str, tuple[float, float]]],
    ) -> None:
        self._metrics, self._find, self._names = metrics, find, limits
        self._handle, self._watched = handle, watched
        self._own = uuid.uuid4().hex[:8]
        """Executions of Spark are counted in each driver."""

    def watch(self, job: str | None, since: float) -> dict[str, Any]:
        return {
            "jobs": _without_past_batches(self._metrics.statuses(), self._own),
            "limits": [limit for name in self._names() if (limit := self._limit(name)) is not None],
            "detail": None if job is None else self._detail(job, since),
        }

    def change(self, request: "Request") -> None:
        from spark_channel.limits import Rejected

        reply = self._asked(request)
        if isinstance(reply, Rejected):
            raise ValueError(reply.message)

    def _asked(self, request: "Request") -> "Reply":
        from spark_channel.errors import ChannelError
        from spark_channel.limits import Rejected

        try:
            return self._handle(request)
        except ChannelError as error:
            return Rejected(str(error))

    def _limit(self, name: str) -> dict[str, Any] | None:
        from spark_channel.limits import LimitStatus, StatusRequest

        status = self._asked(StatusRequest(name))
        return _of_limit(status) if isinstance(status, LimitStatus) else None

    def _detail(self, job: str, since: float) -> dict[str, Any] | None:
        try:
            progress = self._find(job)
        except KeyError:
            return None
        start = max(0.0, since - _SETTLED_SECONDS)
        every, samples = progress.speeds_since(start)
        tasks = progress.tasks()
        tasks.sort(key=lambda task: (task[2].phase.final, task[0], task[2].task))
        return {
            "job": job,
            "every": every,
            "since": start,
            "samples": [
                [
                    sample.seconds,
                    sample.rows_per_second,
                    sample.rows_written_per_second,
                    sample.bytes_per_second,
                    sample.bytes_written_per_second,
                ]
                for sample in samples
            ],
            "changes": [
                [limit.seconds, limit.rows_per_second, limit.bytes_per_second, limit.note]
                for limit in progress.limits_in_force()
            ],
            "tasks": [_of_task(*task) for task in tasks[:_MOST_TASKS]],
            "all_tasks": len(tasks),
            "signals": {name: list(value) for name, value in self._watched(job).items()},
        }


def limit_request(request: Mapping[str, Any]) -> "Request":
    """The request to a limit that a page sends.

    Raises:
        ValueError: it makes no sense.
    """
    from spark_channel.limits import Pause, Resume, SetRates

    name, action = request.get("limit"), request.get("action")
    if not isinstance(name, str) or not name:
        raise ValueError("limit is the name of a limit")
    if action == "pause":
        return Pause(name)
    if action == "resume":
        return Resume(name)
    if action != "set":
        raise ValueError("action is set, pause or resume")
    speeds = (request.get("rows_per_second"), request.get("bytes_per_second"))
    for speed in speeds:
        if speed is not None and (type(speed) is not int or not 1 <= speed < 1 << 53):
            raise ValueError("a speed is a whole number, 1 or more")
    if speeds == (None, None):
        raise ValueError("give rows_per_second, bytes_per_second, or both")
    return SetRates(name, *speeds)


def _without_past_batches(statuses: list[JobStatus], own_id: str) -> list[dict[str, Any]]:
    """A stream's micro-batches are jobs: the page shows the last one of each stream."""
    jobs: dict[object, dict[str, Any]] = {}
    for status in statuses:
        spec = status.spec
        streams = spec.batch is not None
        key = (
            (spec.query or spec.name, spec.kind, spec.source, spec.target)
            if streams
            else status.job
        )
        jobs.pop(key, None)
        jobs[key] = _of_job(status, own_id)
    return list(jobs.values())[-_MOST_JOBS:]


def _of_job(status: JobStatus, own_id: str) -> dict[str, Any]:
    spec = status.spec
    return {
        "job": status.job,
        "name": spec.name,
        "kind": spec.kind,
        "source": spec.source,
        "target": spec.target,
        "ends": [_of_end(spec.source), _of_end(spec.target)],
        "execution": f"{own_id}-{status.execution}" if status.execution else "",
        "started": None if status.started_at is None else round(status.started_at.timestamp(), 1),
        "phase": str(status.phase),
        "seconds": round(status.seconds, 1),
        "percent": None if status.percent is None else round(status.percent, 1),
        "eta_seconds": None if status.eta_seconds is None else round(status.eta_seconds),
        "rows": status.rows,
        "bytes": status.bytes,
        "rows_per_second": round(status.rows_per_second, 1),
        "rows_written_per_second": round(status.rows_written_per_second, 1),
        "bytes_per_second": round(status.bytes_per_second),
        "bytes_written_per_second": round(status.bytes_written_per_second),
        "limit_rows": spec.rows_per_second,
        "limit_bytes": spec.bytes_per_second,
        "limit_scope": spec.limit_scope,
        "note": status.note,
        "waits": {side: round(status.wait_shares.get(side, 0.0), 3) for side in SIDES}
        if status.wait_shares
        else None,
        "refused": status.dirty_rows,
        "tasks_done": status.tasks_done,
        "tasks": status.tasks,
        "retries": max(0, status.attempts - status.tasks),
        "commit": spec.commit,
        "publish_seconds": round(status.publish_seconds, 3),
        "where": status.where if status.phase in (Phase.DONE, Phase.ENDED) else "",
        "error": status.error,
        "batch": spec.batch,
        "part_of": spec.part_of,
        "behind": spec.behind,
        "lag": dict(spec.lag),
        "held": {name: round(spent, 1) for name, spent in status.held.items()},
    }


def _of_end(text: str) -> list[str]:
    """A source or target as [table, address]: the table is what people look for."""
    plain = plain_end(text.strip())
    name, bracket, address = plain.partition(" (")
    if bracket and plain.endswith(")"):
        return [name, address[:-1]]
    table_path, _, table = plain.rpartition("#")
    if table_path:
        return [table, table_path]
    if text.startswith(("sqlite ", "duckdb ")) and " " in plain:
        file, _, table = plain.rpartition(" ")
        return [table, file]
    folder, _, file = plain.rstrip("/").rpartition("/")
    return [file, folder] if folder else [plain, ""]


def _of_limit(status: "LimitStatus") -> dict[str, Any]:
    return {
        "name": status.limit,
        "job": status.limit.removeprefix("job:") if status.limit.startswith("job:") else "",
        "rows_per_second": status.rows_per_second,
        "bytes_per_second": status.bytes_per_second,
        "effective_rows_per_second": status.effective_rows_per_second,
        "effective_bytes_per_second": status.effective_bytes_per_second,
        "paused": status.paused,
        "pressure": status.pressure,
        "jobs": status.jobs,
        "clients": status.client_count,
        "waiting": status.waiting_count,
    }


def _of_task(key: str, attempts: int, counters: Snapshot) -> list[Any]:
    """[key, task, attempts, phase, rows read, rows written, refused rows, seconds, waits by side]"""
    waits = dict.fromkeys(SIDES, 0.0)
    for reason, spent in counters.waits.items():
        side = reason.partition(":")[0]
        if side in waits:
            waits[side] += spent
    return [
        key,
        counters.task,
        attempts,
        str(counters.phase),
        max(counters.rows_read, counters.rows_pushed),
        counters.rows_written,
        counters.dirty_rows,
        round(counters.seconds, 1),
        [round(spent, 1) for spent in waits.values()],
    ]
