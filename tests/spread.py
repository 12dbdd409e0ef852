"""How the files of a run are handed to its processes: those with Spark to some, and the others to the rest."""

from collections.abc import Callable

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

__all__ = ["Spread"]


class Spread(LoadFileScheduling):  # type: ignore[misc] # xdist has no types
    """Files as a whole, in the order of collection.

    Tests without Spark mostly wait, and tests with it mostly compute: together they use two cores better than one after
    the other. Spark's session keeps its own threads, which tests of threads must not meet: a process that had a file
    with Spark gets no more files without it.

    Args:
        has_spark: whether a file has tests with Spark.
        begin_with_spark: how many processes begin with such files. One more takes them when no other file is left: more
            would compute at once than two cores can. 0: each process takes the next file.
    """

    def __init__(
        self,
        config: pytest.Config,
        log: Producer,
        *,
        has_spark: Callable[[str], bool],
        begin_with_spark: int,
    ) -> None:
        super().__init__(config, log)
        self._has_spark = has_spark
        # One is left for the others.
        self._begin_with_spark = min(begin_with_spark, self.numnodes - 1)
        self._prefers_spark: set[WorkerController] = set()
        self._had_spark: set[WorkerController] = set()

    def add_node(self, node: WorkerController) -> None:
        super().add_node(node)
        if len(self._prefers_spark) < self._begin_with_spark:
            self._prefers_spark.add(node)

    def _next_file(self, node: WorkerController) -> str | None:
        with_spark = next((name for name in self.workqueue if self._has_spark(name)), None)
        without = next((name for name in self.workqueue if not self._has_spark(name)), None)
        if node in self._had_spark:
            return with_spark
        if node in self._prefers_spark:
            return with_spark or without
        enough = (
            self._begin_with_spark
            and len(self._had_spark.intersection(self.nodes)) > self._begin_with_spark
        )
        return without or (None if enough else with_spark)

    def _assign_work_unit(self, node: WorkerController) -> None:
        name = self._next_file(node)
        if name is None:  # as when a run has few files, or only such with Spark
            node.shutdown()
            return
        if self._has_spark(name):
            self._had_spark.add(node)
        self.workqueue.move_to_end(name, last=False)
        super()._assign_work_unit(node)

    def _reschedule(self, node: WorkerController) -> None:
        # A test begins when the next one is known; this is asked after each test.
        if not node.shutting_down and self._pending_of(self.assigned_work[node]) < 2:
            self._assign_work_unit(node)
