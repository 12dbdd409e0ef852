"""Indexes and constraints that are built at the times that `limit.builds` names, and not with the rows of their tables.

Nothing is kept of what is left: a target lacks it against its source, which each run sees. So a run that is killed
while it builds, or that ends before its time comes, leaves the rest to the next one.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime

from spark_channel.clock import utc_now
from spark_channel.connectors.sql.write.job import SqlWriter
from spark_channel.errors import ChannelError
from spark_channel.plain_text import log_of
from spark_channel.replication.config import Limit
from spark_channel.replication.report import TableOutcome
from spark_channel.replication.table_run import reader_of, why_of, writer_of
from spark_channel.replication.tables import TableCopy, lacks_of
from spark_channel.service.windows import zone_of

__all__ = ["build_left"]

_log = log_of(__name__)


def build_left(
    copies: Sequence[TableCopy],
    outcomes: Mapping[str, TableOutcome],
    limit: Limit,
    now: Callable[[], datetime] = utc_now,
) -> None:
    """Build what the targets of copies lack, one after the other, while a time of `limit` lasts; report the rest."""
    if not limit.builds:
        return
    zone, times = zone_of(limit.timezone), limit.build_times

    def is_time() -> bool:
        local = now().astimezone(zone)
        return any(window.holds(local) for window in times)

    for copy in copies:
        outcome = outcomes[copy.stream]
        if not copy.leaves_builds or outcome.state not in ("done", "unchanged"):
            continue
        try:
            unbuilt = list(_built(copy, is_time))
        except ChannelError as error:
            unbuilt = [why_of(error)]
        if unbuilt:
            reason = f"left to limit.builds ({', '.join(limit.builds)}): {'; '.join(unbuilt)}"
            outcome.add_why(reason)
            _log.warning("%s: %s", copy.stream, reason)


def _built(copy: TableCopy, is_time: Callable[[], bool]) -> Iterator[str]:
    """Build what the target lacks. Yields the statements for which it is not the time, or that the target refuses."""
    reader, writer = reader_of(copy), writer_of(copy)
    assert isinstance(writer, SqlWriter)
    source = reader.definition()
    if source is not None and is_time():
        writer.clear_builds([part.name for part in source.constraints])
    for lack in lacks_of(copy, reader, writer):
        if not lack.is_build:
            continue
        if not is_time():
            yield lack.text
            continue
        _log.info("%s: no limit slows down what is built now: %s", copy.stream, lack.text)
        try:
            writer.build(lack.text)
        except ChannelError as error:
            yield f"{lack.text} ({why_of(error)})"
