"""The link of a Spark task to its job: the counters that it reports, and the limit that it pays."""

import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Self

from spark_channel.channel import Limiter
from spark_channel.errors import ServiceUnavailableError
from spark_channel.options import CommonOptions
from spark_channel.progress import Counters, JobSpec
from spark_channel.transfers.job_limits import is_limited
from spark_channel.transfers.worker import keep_loaded

if TYPE_CHECKING:
    from spark_channel.connectors import Health
    from spark_channel.limits import StaticShare
    from spark_channel.service import ServiceAddress, ServiceClient, SharedLimitAddress

__all__ = ["TaskLink"]

_log = logging.getLogger(__name__)


class TaskLink:
    """The link of one Spark task to the service; without a service, it counts for itself alone.

    `limiter` is None for an unlimited job, a `Meter` of this process for a limit per task, and what the
    job's coordinator leases otherwise, or `static` where that cannot be asked. `healths`: what tells how the source and
    the target are, by side. Ends with its `with` block: the
    last counters are sent and what was not spent goes back.
    """

    def __init__(
        self,
        address: "ServiceAddress | None",
        job: str,
        spec: JobSpec,
        options: CommonOptions,
        task_name: str,
        shared_limit: "SharedLimitAddress | None" = None,
        mark: str | None = None,
        static: "StaticShare | None" = None,
        permit_option: str = "maxConnections",
        healths: "Mapping[str, Callable[[], Health | None]] | None" = None,
    ) -> None:
        self._client = None if address is None else _client(address, job, spec, shared_limit, static)
        self._permit_option = permit_option
        self._static_alone = False
        if self._client is not None and healths and spec.protected:
            self._client.watch_health(healths)
        self.limiter: Limiter | None = None
        if self._client is not None and is_limited(options):
            self.limiter = self._client.limiter(task_name, mark=mark)
        elif options.rows_per_second_per_task or options.bytes_per_second_per_task:
            from spark_channel.limits import Meter

            self.limiter = Meter(options.rows_per_second_per_task, options.bytes_per_second_per_task)
        elif static is not None:
            from spark_channel.limits import Meter

            self.limiter = Meter(*static.paces)
            self._static_alone = True

    def counters(
        self,
        task: int,
        attempt: int,
        *,
        scan: int = 0,
        rows_expected: int | None = None,
        bytes_expected: int | None = None,
    ) -> Counters:
        """Counters of this attempt, reported twice a second when there is a service."""
        make = Counters if self._client is None else self._client.counters
        return make(task, attempt, scan=scan, rows_expected=rows_expected, bytes_expected=bytes_expected)

    @property
    def is_static(self) -> bool:
        """Whether this task keeps its static share of the limit, since the service is out of reach."""
        return self._static_alone or (self._client is not None and self._client.is_static)

    def hear(self) -> None:
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

    def permit(self) -> AbstractContextManager[object]:
        """One of the job's `maxConnections`, for a `with` block; waits while others hold them all."""
        return nullcontext() if self._client is None else self._client.permit(self._permit_option)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        if self._client is not None:
            self._client.close()
        keep_loaded()


def _client(
    address: "ServiceAddress",
    job: str,
    spec: JobSpec,
    shared_limit: "SharedLimitAddress | None",
    static: "StaticShare | None",
) -> "ServiceClient":
    from spark_channel.service import ServiceClient

    return ServiceClient(address, job, spec, shared_limit=shared_limit, static=static)
