"""`LocalEngine`: task groups on this machine, without Spark."""

import atexit
import contextlib
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Self, TypeVar

from spark_channel.errors import ChannelError
from spark_channel.local.groups import Groups
from spark_channel.planning import TaskGroup
from spark_channel.service import ProgressDisplay, ServiceAddress, ServiceServer
from spark_channel.transfers.engine import Runner

__all__ = ["LocalEngine", "cores"]

_T = TypeVar("_T")


def cores() -> int:
    """How many cores this process may use."""
    try:
        return len(os.sched_getaffinity(0)) or 1
    except AttributeError:  # not Linux
        return os.cpu_count() or 1


class LocalEngine:
    """See `Engine`. All channels of a job run beside each other, whatever number of cores there is.

    Used in a `with` block, whose end shows what was not shown yet and ends the service. With `served`, the limits
    of its jobs can be looked at and changed by `spark-channel limits`.
    """

    def __init__(self, *, served: bool = False) -> None:
        self._served = served
        self._ends = contextlib.ExitStack()
        self._server: ServiceServer | None = None

    def parallelism(self) -> int:
        return cores()

    def slots(self) -> int | None:
        return None

    def one_host(self) -> bool:
        return True

    def service(self) -> ServiceAddress:
        if self._server is None:
            server = ServiceServer()
            display = self._ends.enter_context(ProgressDisplay())
            server.jobs.subscribe(display)
            address = server.start()
            self._ends.callback(server.stop)
            self._server = server
            if self._served:
                self._advertise(address)
            atexit.register(self._ends.close)
        return self._server.address

    def named(self, source: str, target: str) -> AbstractContextManager[None]:
        del source, target
        return contextlib.nullcontext()

    def run(self, runner: Runner[_T], groups: Sequence[TaskGroup], job: str) -> list[_T]:
        del job
        return Groups(runner, groups).run()

    def own_error(self, error: BaseException) -> ChannelError | None:
        return error if isinstance(error, ChannelError) else None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        atexit.unregister(self._ends.close)
        self._server = None
        self._ends.close()

    def _advertise(self, address: ServiceAddress) -> None:
        from spark_channel.service import advertise

        take_back = advertise(address, os.getpid())

        def withdraw() -> None:
            with contextlib.suppress(OSError):  # the runtime directory went before this process
                take_back()

        self._ends.callback(withdraw)
