"""The write of a transaction id that was published before: it takes and writes nothing.

Spark runs a task for each partition all the same. What its tasks unpickle imports nothing, and they answer immediately.
"""

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from spark_channel.plain_text import log_of
from spark_channel.spark.worker import Versioned, portable, without_traceback

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_channel.service import ServiceAddress

__all__ = [
    "AlreadyPublishedWriter",
]

_log = log_of(__name__)


class NothingWritten(WriterCommitMessage):
    """The commit message of each task."""


@portable
class AlreadyPublishedWriter(Versioned, DataSourceArrowWriter):
    """Made in a planner process and pickled; `write` runs in executors, `commit` or `abort` in a planner process."""

    def __init__(
        self, txn: tuple[str, int], published_at: str, job: str, service: "ServiceAddress | None"
    ) -> None:
        self._txn = txn
        self._published_at = published_at
        self._job = job
        self._service = None if service is None else json.dumps(service.to_json())
        """As text: its class would bring pydantic into each task."""

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> NothingWritten:
        return NothingWritten()

    @without_traceback()
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        _log.warning(
            "transaction id '%s:%d' was published at %s: nothing written",
            *self._txn,
            self._published_at,
        )
        self._end(failed=False)

    @without_traceback()
    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._end(failed=True)

    def _end(self, *, failed: bool) -> None:
        from spark_channel.progress import Phase
        from spark_channel.service import ServiceAddress
        from spark_channel.spark.driver import JobReporter

        service = (
            None if self._service is None else ServiceAddress.from_json(json.loads(self._service))
        )
        reporter = JobReporter(service, self._job)
        if failed:
            reporter.enter(Phase.FAILED)
        else:
            reporter.enter(Phase.DONE, rows=0)
