"""Runs task groups beside each other in this process, a thread for each."""

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from spark_channel.errors import ChannelError, JobCancelledError
from spark_channel.final_errors import HeardError
from spark_channel.planning import TaskGroup
from spark_channel.transfers.task import Runner, TaskGroupAttempt

__all__ = [
    "Cancel",
    "TaskGroupThreads",
]

Cancel = Callable[[], None]


class TaskGroupThreads:
    """Some task groups of one job, each tried once. `run` is called once; `cancel` ends it from any thread.

    The first that fails ends the others. `first` is the number of the first attempt: unique in the job.
    """

    def __init__(self, runner: Runner[Any], groups: Sequence[TaskGroup], first: int = 0) -> None:
        self._runner = runner
        self._groups = groups
        self._first = first
        self._lock = threading.Lock()
        self._cancels: dict[int, Cancel] = {}
        self._cancelled = False
        self._ended: queue.SimpleQueue[tuple[int, Any, BaseException | None]] = queue.SimpleQueue()

    def run(self) -> list[Any]:
        """The outcome of each group, in their order.

        Raises:
            ChannelError: the error of the first group that failed.
        """
        threads = [
            threading.Thread(
                target=self._run, args=(index,), name=f"spark-channel-group-{group.id}", daemon=True
            )
            for index, group in enumerate(self._groups)
        ]
        outcomes: list[Any] = [None] * len(threads)
        failed: BaseException | None = None
        started = 0
        try:
            for thread in threads:
                thread.start()
                started += 1
            for _ in threads:
                index, outcomes[index], error = self._ended.get()
                if error is not None and failed is None:
                    failed = error
                    self.cancel()
                elif isinstance(failed, HeardError) and isinstance(error, ChannelError):
                    # What the others met after the cancel is not final.
                    failed = error if error.is_final else failed
        except BaseException:
            self.cancel()
            raise
        finally:
            for thread in threads[:started]:
                thread.join()  # bounded by the group, which leaves behind what is stuck in its source or target
        if failed is not None:
            raise failed
        return outcomes

    def cancel(self) -> None:
        """No more rows are wanted: those that run end soon, and others do not begin."""
        with self._lock:
            self._cancelled = True
            cancels = list(self._cancels.values())
        for cancel in cancels:
            cancel()

    def _run(self, index: int) -> None:
        outcome: Any = None
        failed: BaseException | None = None
        try:
            outcome = self._runner.run(
                self._groups[index],
                TaskGroupAttempt(
                    self._first + index, cancelling=lambda cancel: self._cancelling(index, cancel)
                ),
            )
        except BaseException as error:
            failed = error
        self._ended.put((index, outcome, failed))

    @contextlib.contextmanager
    def _cancelling(self, index: int, cancel: Cancel) -> Iterator[None]:
        with self._lock:
            if self._cancelled:
                raise JobCancelledError("the job ended before this task group had begun")
            self._cancels[index] = cancel
        try:
            yield
        finally:
            with self._lock:
                del self._cancels[index]
