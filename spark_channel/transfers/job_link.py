"""What the tasks of a job know of the service, and the client that each of them makes of it."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from spark_channel.errors import ServiceUnavailableError
from spark_channel.options import CommonOptions, WriteOptions
from spark_channel.pipeline.dirty import DirtyBudget, dirty_limit_of
from spark_channel.plain_text import log_of
from spark_channel.processes import keep_loaded
from spark_channel.progress import Counters, JobSpec
from spark_channel.service import ServiceAddress
from spark_channel.transfers.limits import is_limited

if TYPE_CHECKING:
    from spark_channel.channel import Limiter
    from spark_channel.connectors import Health
    from spark_channel.limits import StaticShare
    from spark_channel.service import ServiceClient, SharedLimitAddress

__all__ = ["JobLink", "TaskServiceClient"]

_log = log_of(__name__)


@dataclass(frozen=True)
class JobLink:
    """One job as its tasks report it to the service. Picklable, made where the job is planned.

    `service` None: each task counts for itself. `shares`: of the limit without the service, one for each task group.
    """

    job: str
    spec: JobSpec
    service: ServiceAddress | None
    shared_limit: "SharedLimitAddress | None" = None
    shares: "Sequence[StaticShare | None]" = ()
    permit_option: str | None = "maxConnections"
    """As the user spelled it; None = the server bounds the tasks: without the service they are not counted."""

    def connect(
        self,
        options: CommonOptions,
        task_name: str,
        *,
        share: int = 0,
        mark: str | None = None,
        healths: "Mapping[str, Callable[[], Health | None]] | None" = None,
    ) -> "TaskServiceClient":
        """The client of one task, for a `with` block: `share` is the number of its share, `mark` its reader's.

        `healths`: the health checks of source and target, by side.
        """
        static = self.shares[share] if self.shares else None
        return TaskServiceClient(self, options, task_name, static, mark, healths or {})


class TaskServiceClient:
    """The link of one Spark task to the service; without a service, it counts for itself alone.

    `limiter` is None for an unlimited job, a `RateLimiter` of this process for a limit per task, and otherwise spends
    the grants of the job's coordinator, or `static` where the coordinator cannot be reached. The end of the `with`
    block sends the last counters and gives back the unspent rest.
    """

    def __init__(
        self,
        link: JobLink,
        options: CommonOptions,
        task_name: str,
        static: "StaticShare | None",
        mark: str | None,
        healths: "Mapping[str, Callable[[], Health | None]]",
    ) -> None:
        spec = link.spec
        self._client = _client(link, static)
        self._permit_option = link.permit_option
        self._static_alone = False
        if self._client is not None and healths and spec.protected:
            self._client.watch_health(healths)
        self.limiter: Limiter | None = None
        if self._client is not None and is_limited(options):
            self.limiter = self._client.limiter(task_name, mark=mark if spec.per_mark else None)
        elif options.rows_per_second_per_task or options.bytes_per_second_per_task:
            from spark_channel.limits import RateLimiter

            self.limiter = RateLimiter(
                options.rows_per_second_per_task, options.bytes_per_second_per_task
            )
        elif static is not None:
            from spark_channel.limits import RateLimiter

            self.limiter = RateLimiter(*static.paces)
            self._static_alone = True

    def counters(
        self,
        task: int,
        attempt: int,
        *,
        scan: int = 0,
        opening: int = 0,
        rows_expected: int | None = None,
        bytes_expected: int | None = None,
        execution: str = "",
    ) -> Counters:
        """Counters of this attempt, reported twice a second when there is a service."""
        make = Counters if self._client is None else self._client.counters
        return make(
            task,
            attempt,
            scan=scan,
            opening=opening,
            rows_expected=rows_expected,
            bytes_expected=bytes_expected,
            execution=execution,
        )

    @property
    def is_static(self) -> bool:
        """Whether this task keeps its static share of the limit, since the service is out of reach."""
        return self._static_alone or (self._client is not None and self._client.is_static)

    def check_stop(self) -> None:
        """Ask the service now whether the job should stop: a task that begins late has heard nothing yet.

        Without an answer the task continues: too many refused rows are found when the job is to be published.
        """
        if self._client is not None:
            try:
                self._client.introduce()
            except ServiceUnavailableError as error:
                _log.warning("refused rows are counted at the end of the job only: %s", error)

    def stop_reason(self) -> str:
        """Why the whole job should stop, as last heard; empty while it should not."""
        return "" if self._client is None else self._client.stop_reason

    def failure(self) -> str:
        """The error of another task that this one would meet, too, as last heard; else empty."""
        return "" if self._client is None else self._client.failure

    def dirty_budget(self, options: WriteOptions) -> DirtyBudget:
        """What the task's attempts may refuse; its first `check` knows what the job has refused before."""
        limit = dirty_limit_of(options)
        path = options.dirty_rows_path
        budget = DirtyBudget(
            limit,
            self.stop_reason,
            self.failure,
            hint=f". The refused rows are in {path}" if path else "",
        )
        if limit.tolerant and limit.limited:
            self.check_stop()
        return budget

    def permit(self) -> AbstractContextManager[object]:
        """One of the job's `maxConnections`, for a `with` block; waits while others hold them all."""
        return nullcontext() if self._client is None else self._client.permit(self._permit_option)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        if self._client is not None:
            self._client.close()
        keep_loaded()


def _client(link: JobLink, static: "StaticShare | None") -> "ServiceClient | None":
    if link.service is None:
        return None
    from spark_channel.service import ServiceClient

    return ServiceClient(
        link.service, link.job, link.spec, shared_limit=link.shared_limit, static=static
    )
