"""What carries out the task groups of a transfer: Spark, or processes of this machine."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

from spark_channel.errors import ChannelError
from spark_channel.planning import TaskGroup
from spark_channel.service import ServiceAddress

__all__ = ["Attempt", "Engine", "Runner"]

_T = TypeVar("_T")
_T_co = TypeVar("_T_co", covariant=True)


class Attempt:
    """One try of a task group. `number` is unique in the job; `again`: it was tried before.

    `cancelling` calls back, while a `with` block runs, when the rows are not wanted any more.
    """

    def __init__(
        self,
        number: int,
        *,
        again: bool = False,
        cancelling: Callable[[Callable[[], None]], AbstractContextManager[None]],
    ) -> None:
        self.number = number
        self.again = again
        self.cancelling = cancelling


class Runner(Protocol[_T_co]):
    """Runs a task group in whatever process the engine gives it. Picklable."""

    def run(self, group: TaskGroup, attempt: Attempt) -> _T_co: ...


class Engine(Protocol):
    """Where a transfer's task groups run. Used by the process that plans and commits."""

    def parallelism(self) -> int:
        """How many channels a job has that does not say."""

    def slots(self) -> int | None:
        """How many task groups run at a time; None when it is not known."""

    def one_host(self) -> bool:
        """Whether they run on this process's host."""

    def service(self) -> ServiceAddress:
        """Where jobs are counted and their limits are kept.

        Raises:
            LimitError: nowhere.
        """

    def named(self, source: str, target: str) -> AbstractContextManager[None]:
        """What runs in the `with` block is shown under these names."""

    def run(self, runner: Runner[_T], groups: Sequence[TaskGroup], job: str) -> list[_T]:
        """Run each group; of several attempts the outcome of the first that succeeds counts.

        Raises:
            ChannelError: what a group met; the other groups have ended then.
        """

    def own_error(self, error: BaseException) -> ChannelError | None:
        """The error of this package that made `run` fail; None = another one."""
