"""One snapshot read; feed of new snapshots."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from spark_channel.arrow_schema import check_columns, find_column
from spark_channel.connectors.base.contract import Reader, Token
from spark_channel.connectors.base.feed import ChangeFeed, FeedLag, FeedLimit, FeedOptions
from spark_channel.connectors.files.conditions import Condition
from spark_channel.connectors.files.file_errors import reading
from spark_channel.connectors.files.formats.base import batch_rows
from spark_channel.connectors.iceberg.catalog import explained, file_io, open_catalog
from spark_channel.connectors.iceberg.columns import arrow_columns, without_ids
from spark_channel.connectors.iceberg.data_files import data_file_of, data_file_rows, plain_file
from spark_channel.connectors.iceberg.lake_table import check_files, planned_files
from spark_channel.connectors.iceberg.options import IcebergReadOptions
from spark_channel.connectors.iceberg.outside_files import check_inside
from spark_channel.errors import OptionError, SchemaError, SourceError
from spark_channel.planning import Split

if TYPE_CHECKING:
    from pyiceberg.table import Table

__all__ = [
    "IcebergFeed",
    "IcebergReader",
]


_SMALLEST = 32 << 10

_NOTHING = 0
"""The token before the first range: no snapshot has this id."""
_AGAIN = "Begin a new stream, or reset the tunnel, to read the table from its newest snapshot"


class IcebergReader(Reader):
    """The data files of one snapshot, the one that `schema` found, some to each split."""

    Options = IcebergReadOptions
    options: IcebergReadOptions

    def __init__(self, options: IcebergReadOptions) -> None:
        super().__init__(options)
        self._metadata: Any = None
        self._settings: dict[str, Any] = {}
        self._location = ""
        self._schema_id = 0
        self._columns: pa.Schema | None = None
        self._result: pa.Schema | None = None
        self._condition: Condition | None = None
        self.snapshot: int | None = None

    @property
    def schema_id(self) -> int:
        """The columns that are read."""
        self._plan()
        return self._schema_id

    def load(self) -> "Table":
        """The newest state of the table.

        Raises:
            SourceError: there is none.
        """
        with explained(self.options.dbtable, SourceError), open_catalog(self.options) as catalog:
            return catalog.load_table(self.options.dbtable)

    def _plan(self) -> pa.Schema:
        if self._result is not None:
            return self._result
        table, label = self.load(), self.options.dbtable
        with explained(label, SourceError):
            snapshot = self._as_of(table)
            self.snapshot = None if snapshot is None else snapshot.snapshot_id
            schema_id = (
                None if snapshot is None or self.options.as_of is None else snapshot.schema_id
            )
            self._schema_id = table.metadata.current_schema_id if schema_id is None else schema_id
            schema = next(
                schema for schema in table.metadata.schemas if schema.schema_id == self._schema_id
            )
            self._columns = without_ids(arrow_columns(schema, label))
            self._metadata, self._location = table.metadata, table.location()
            self._settings = dict(table.io.properties)
        check_columns(self._columns)
        names = self.options.columns
        result = self._columns
        if names is not None:
            result = pa.schema([find_column(self._columns, name, "columns") for name in names])
        if self.options.where is not None:
            from spark_channel.connectors.files.where import parse_where

            self._condition = parse_where(self.options.where, self._columns)
        self._result = result
        return result

    def _as_of(self, table: "Table") -> Any:
        as_of = self.options.as_of
        if as_of is None:
            return table.current_snapshot()
        if isinstance(as_of, int):
            snapshot = table.snapshot_by_id(as_of)
            noun = f"snapshot {as_of}; check option 'snapshotId'"
        else:
            snapshot = table.snapshot_as_of_timestamp(int(as_of.timestamp() * 1000))
            noun = f"snapshot as old as {as_of.isoformat()}; check option 'asOfTimestamp'"
        if snapshot is None:
            raise SourceError(f"{self.options.dbtable} has no {noun}")
        return snapshot

    def schema(self) -> pa.Schema:
        return self._plan()

    def with_schema(self, schema: pa.Schema) -> Self:
        return self

    def split(self, advice: int) -> list[Split]:
        self._plan()
        if self.snapshot is None:
            return []
        table, label = self.load(), self.options.dbtable
        with reading(label), explained(label, SourceError):
            tasks = planned_files(
                table,
                table.scan(snapshot_id=self.snapshot),
                label,
                outside=self.options.external_access,
            )
        return self.split_files([task.file for task in tasks], advice)

    def split_files(self, files: Sequence[Any], advice: int) -> list[Split]:
        """Splits of whole files, of about equal bytes."""
        files = sorted(
            (file for file in files if file.record_count and self._may_match(file)),
            key=lambda file: str(file.file_path),
        )
        total = sum(file.file_size_in_bytes for file in files)
        target = self.options.split_bytes or max(_SMALLEST, -(-total // max(1, advice)))
        splits: list[Split] = []
        group: list[Any] = []
        size = 0
        for file in files:
            if group and size + file.file_size_in_bytes / 2 >= target:
                splits.append(_split(group))
                group, size = [], 0
            group.append(file)
            size += file.file_size_in_bytes
        return [*splits, _split(group)] if group else splits

    def _may_match(self, file: Any) -> bool:
        if self._condition is None:
            return True
        from spark_channel.connectors.iceberg.guard import value_ranges

        schema = next(
            schema for schema in self._metadata.schemas if schema.schema_id == self._schema_id
        )
        ranges = value_ranges(file, schema, self._columns, self._condition.columns)
        return self._condition.may_match(ranges)

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        result = self._plan()
        assert self._columns is not None
        names = set(result.names) | (self._condition.columns if self._condition else set())
        needed = pa.schema([field for field in self._columns if field.name in names])
        label = self.options.dbtable
        with explained(label, SourceError):
            io = file_io(self._settings, self._location)
        for raw in split.params["files"]:
            file = data_file_of(raw)
            with reading(label), explained(label, SourceError):
                batches = data_file_rows(io, self._metadata, self._schema_id, file, needed)
            try:
                while True:
                    with reading(f"{label}: {file.file_path}"), explained(label, SourceError):
                        batch = next(batches, None)
                    if batch is None:
                        break
                    yield from self._sliced(batch, result)
            finally:
                batches.close()  # type: ignore[attr-defined] # a generator

    def _sliced(self, batch: pa.RecordBatch, result: pa.Schema) -> Iterator[pa.RecordBatch]:
        if self._condition is not None:
            batch = batch.filter(self._condition.mask(batch))
        projected = (
            batch.select(result.names).cast(result) if batch.schema.names != result.names else batch
        )
        if not projected.num_rows:
            return
        rows = batch_rows(self.fetch_size, projected.num_rows, projected.nbytes)
        for start in range(0, projected.num_rows, rows):
            yield projected.slice(start, rows)

    def feed(self, options: FeedOptions) -> ChangeFeed:
        return IcebergFeed(self, options)


def _split(files: Sequence[Any]) -> Split:
    return Split(
        {"files": [plain_file(file) for file in files]},
        rows=sum(file.record_count for file in files),
        nbytes=sum(file.file_size_in_bytes for file in files),
    )


class IcebergFeed(ChangeFeed):
    """The rows that new snapshots of a table add, in one partition.

    A token is a snapshot of `main`. The first range of a stream is the table as it was at its end. A snapshot that
    removed rows ends the stream: rows that were delivered cannot be taken back. One that only wrote files again passes.
    """

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
        self._outside = reader.options.external_access

    def schema(self) -> pa.Schema:
        return self._reader.schema()

    def earliest(self) -> list[Token]:
        return [{"snapshot": _NOTHING}]

    def now(self) -> list[Token]:
        snapshot = self._reader.load().current_snapshot()
        return [{"snapshot": _NOTHING if snapshot is None else snapshot.snapshot_id}]

    def latest(self, after: Token, limit: FeedLimit, upto: Token | None = None) -> Token:
        table = self._reader.load()
        newest = table.current_snapshot()
        end = (
            _snapshot(upto)
            if upto is not None
            else _NOTHING
            if newest is None
            else newest.snapshot_id
        )
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
        snapshots: list[Any] = []
        at = None if end == _NOTHING else table.snapshot_by_id(end)
        while at is not None and at.snapshot_id != start:
            snapshots.append(at)
            at = (
                None
                if at.parent_snapshot_id is None
                else table.snapshot_by_id(at.parent_snapshot_id)
            )
        if at is None and len(table.metadata.snapshots) == 1:
            raise SourceError(
                f"the checkpoint is at snapshot {start}, and the catalog shows one snapshot of {self._shown}, {end}: "
                "the older ones have expired, or the catalog shows no others, as Project Nessie does. Such a table "
                f"cannot be streamed: read it whole at each run. Where snapshots have expired: {_AGAIN}"
            )
        if at is None:
            raise SourceError(
                f"the checkpoint is at snapshot {start}, which is not among those before {end} of {self._shown}: "
                f"it has expired, or the table was rolled back or created again. {_AGAIN}"
            )
        return snapshots[::-1]

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
                files += _added(table, snapshot, outside=self._outside)
        return self._reader.split_files(files, self._advice) if files else []

    def base(self, upto: Sequence[Token], advice: int) -> list[Split]:
        table = self._reader.load()
        files = []
        with reading(self._shown), explained(self._shown, SourceError):
            for token in upto:
                if _snapshot(token) != _NOTHING:
                    scan = table.scan(snapshot_id=_snapshot(token))
                    tasks = planned_files(table, scan, self._shown, outside=self._outside)
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
        summaries = [
            self._checked(table, snapshot)
            for snapshot in self._between(table, start, newest.snapshot_id)
        ]
        rows = sum(int(summary.get("added-records", 0)) for summary in summaries)
        return FeedLag(
            rows, sum(int(summary.get("added-files-size", 0)) for summary in summaries), None
        )


def _added(table: "Table", snapshot: Any, *, outside: bool) -> list[Any]:
    """The data files that the snapshot itself added."""
    from pyiceberg.manifest import ManifestEntryStatus
    from pyiceberg.table import FileScanTask

    files = [
        entry.data_file
        for manifest in snapshot.manifests(table.io)
        if manifest.added_snapshot_id == snapshot.snapshot_id
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True)
        if entry.status == ManifestEntryStatus.ADDED and entry.snapshot_id == snapshot.snapshot_id
    ]
    location = None if outside else table.location()
    label = ".".join(table.name())
    if location is not None:
        check_inside([table.metadata_location], label, location)
    check_files([FileScanTask(file) for file in files], label, location)
    return files


def _snapshot(token: Token) -> int:
    snapshot_id = token.get("snapshot")
    if set(token) != {"snapshot"} or not isinstance(snapshot_id, int):
        raise SourceError(
            f"the checkpoint {str(dict(token))[:200]} is not a snapshot of an Iceberg table: "
            f"it is damaged, or of another source. {_AGAIN}"
        )
    return snapshot_id
