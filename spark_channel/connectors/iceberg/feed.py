"""An Iceberg table as a change feed: the rows that its new snapshots add.

A token is a snapshot of `main`. The first range of a stream is the table as it was at its end. A snapshot that removed
rows ends the stream: rows that were given cannot be taken back. One that only wrote files again passes.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from spark_channel.connectors.contracts import Token
from spark_channel.connectors.feed import ChangeFeed, FeedLag, FeedLimit, FeedOptions
from spark_channel.connectors.files.errors_at import reading
from spark_channel.connectors.iceberg.log import check_files, planned_files
from spark_channel.connectors.iceberg.open import explained
from spark_channel.errors import OptionError, SchemaError, SourceError
from spark_channel.planning import Split

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from spark_channel.connectors.iceberg.reader import IcebergReader

__all__ = ["IcebergFeed"]

_NOTHING = 0
"""The token before the first range: no snapshot has this id."""
_AGAIN = "Begin a new stream, or reset the tunnel, to read the table from its newest snapshot"


class IcebergFeed(ChangeFeed):
    """The changes of one table, in one partition."""

    def __init__(self, reader: "IcebergReader", options: FeedOptions) -> None:
        if options.cursor_column is not None:
            raise OptionError(
                "option 'cursorColumn' is for databases; an Iceberg table is streamed by its snapshots",
                option="cursorColumn",
            )
        if reader.options.as_of is not None:
            raise OptionError(
                "options 'snapshotId' and 'asOfTimestamp' read one state; "
                "a stream reads the snapshots after its start: omit them",
                option="snapshotId",
            )
        self._reader = reader
        self._advice = reader.options.channels or 2
        self._shown = reader.options.dbtable

    def schema(self) -> pa.Schema:
        return self._reader.schema()

    def earliest(self) -> list[Token]:
        return [{"snapshot": _NOTHING}]

    def now(self) -> list[Token]:
        found = self._reader.load().current_snapshot()
        return [{"snapshot": _NOTHING if found is None else found.snapshot_id}]

    def latest(self, after: Token, limit: FeedLimit, upto: Token | None = None) -> Token:
        table = self._reader.load()
        newest = table.current_snapshot()
        end = _snapshot(upto) if upto is not None else _NOTHING if newest is None else newest.snapshot_id
        start = _snapshot(after)
        if start in (end, _NOTHING):
            return {"snapshot": end}
        rows = nbytes = 0
        last = start
        for snapshot in self._between(table, start, end):
            summary = self._checked(table, snapshot)
            rows += int(summary.get("added-records", 0))
            nbytes += int(summary.get("added-files-size", 0))
            over = (limit.rows is not None and rows > limit.rows) or (
                limit.nbytes is not None and nbytes > limit.nbytes
            )
            if over and last != start:
                break
            last = snapshot.snapshot_id
            if over:
                break
        return {"snapshot": last}

    def _between(self, table: "Table", start: int, end: int) -> list[Any]:
        """The snapshots after `start` up to `end`, the oldest first.

        Raises:
            SourceError: `start` is not among the ancestors of `end`.
        """
        found: list[Any] = []
        at = None if end == _NOTHING else table.snapshot_by_id(end)
        while at is not None and at.snapshot_id != start:
            found.append(at)
            at = None if at.parent_snapshot_id is None else table.snapshot_by_id(at.parent_snapshot_id)
        if at is None:
            raise SourceError(
                f"the checkpoint is at snapshot {start}, which is not among those before {end} of {self._shown}: "
                f"it has expired, or the table was rolled back or created again. {_AGAIN}"
            )
        return found[::-1]

    def _checked(self, table: "Table", snapshot: Any) -> Any:
        """
        Raises:
            SourceError: it removed rows. SchemaError: it was written under other columns.
        """
        summary = snapshot.summary
        operation = "" if summary is None else str(summary.operation.value)
        if operation in ("overwrite", "delete"):
            raise SourceError(
                f"snapshot {snapshot.snapshot_id} of {self._shown} removed rows ({operation}), "
                f"which a stream has given and cannot take back. {_AGAIN}"
            )
        if snapshot.schema_id is not None and snapshot.schema_id != self._reader.schema_id:
            raise SchemaError(
                f"snapshot {snapshot.snapshot_id} of {self._shown} has other columns than those with which the stream "
                f"began. {_AGAIN}"
            )
        return {} if summary is None or operation == "replace" else summary.additional_properties

    def changes(self, after: Token, upto: Token) -> list[Split]:
        start, end = _snapshot(after), _snapshot(upto)
        if start == _NOTHING and end != _NOTHING:
            return self.base([upto], self._advice)
        table = self._reader.load()
        files = []
        with reading(self._shown), explained(self._shown, SourceError):
            for snapshot in self._between(table, start, end) if start != end else []:
                self._checked(table, snapshot)
                if snapshot.summary is not None and snapshot.summary.operation.value == "replace":
                    continue
                files += _added(table, snapshot)
        return self._reader.split_files(files, self._advice) if files else []

    def base(self, upto: Sequence[Token], advice: int) -> list[Split]:
        table = self._reader.load()
        files = []
        with reading(self._shown), explained(self._shown, SourceError):
            for token in upto:
                if _snapshot(token) != _NOTHING:
                    tasks = planned_files(table.scan(snapshot_id=_snapshot(token)), self._shown)
                    files += [task.file for task in tasks]
        return self._reader.split_files(files, advice) if files else []

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        return self._reader.read(split)

    def lag(self, token: Token) -> FeedLag:
        table, start = self._reader.load(), _snapshot(token)
        newest = table.current_snapshot()
        if newest is None:
            return FeedLag(0, 0, None)
        if start == _NOTHING:
            summary = {} if newest.summary is None else newest.summary.additional_properties
            return FeedLag(
                int(summary.get("total-records", 0)), int(summary.get("total-files-size", 0)), None
            )
        found = [self._checked(table, each) for each in self._between(table, start, newest.snapshot_id)]
        rows = sum(int(each.get("added-records", 0)) for each in found)
        return FeedLag(rows, sum(int(each.get("added-files-size", 0)) for each in found), None)


def _added(table: "Table", snapshot: Any) -> list[Any]:
    """The data files that the snapshot itself added."""
    from pyiceberg.manifest import ManifestEntryStatus
    from pyiceberg.table import FileScanTask

    found = [
        entry.data_file
        for manifest in snapshot.manifests(table.io)
        if manifest.added_snapshot_id == snapshot.snapshot_id
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True)
        if entry.status == ManifestEntryStatus.ADDED and entry.snapshot_id == snapshot.snapshot_id
    ]
    check_files([FileScanTask(file) for file in found], ".".join(table.name()), table.location())
    return found


def _snapshot(token: Token) -> int:
    found = token.get("snapshot")
    if set(token) != {"snapshot"} or not isinstance(found, int):
        raise SourceError(
            f"the checkpoint {str(dict(token))[:200]} is not a snapshot of an Iceberg table: "
            f"it is damaged, or of another source. {_AGAIN}"
        )
    return found
