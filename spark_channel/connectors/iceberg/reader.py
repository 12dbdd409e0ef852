"""The reader of Iceberg tables: the data files of one snapshot, some to each split."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from spark_channel.connectors.contracts import Reader
from spark_channel.connectors.feed import ChangeFeed, FeedOptions
from spark_channel.connectors.files.columns import check_columns, find_column
from spark_channel.connectors.files.conditions import Condition
from spark_channel.connectors.files.errors_at import reading
from spark_channel.connectors.files.formats.base import batch_rows
from spark_channel.connectors.iceberg.log import planned_files
from spark_channel.connectors.iceberg.open import explained, file_io, open_catalog
from spark_channel.connectors.iceberg.options import IcebergReadOptions
from spark_channel.connectors.iceberg.rows import data_file_of, data_file_rows, plain_file
from spark_channel.connectors.iceberg.types import arrow_columns, without_ids
from spark_channel.errors import SourceError
from spark_channel.planning import Split

if TYPE_CHECKING:
    from pyiceberg.table import Table

__all__ = ["IcebergReader"]

_SMALLEST = 32 << 10


class IcebergReader(Reader):
    """The snapshot that `schema` found is the one that is split and read."""

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
        """Of the columns that are read."""
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
        table, shown = self.load(), self.options.dbtable
        with explained(shown, SourceError):
            found = self._as_of(table)
            self.snapshot = None if found is None else found.snapshot_id
            own = None if found is None or self.options.as_of is None else found.schema_id
            self._schema_id = table.metadata.current_schema_id if own is None else own
            schema = next(each for each in table.metadata.schemas if each.schema_id == self._schema_id)
            self._columns = without_ids(arrow_columns(schema, shown))
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
            found = table.snapshot_by_id(as_of)
            what = f"snapshot {as_of}; check option 'snapshotId'"
        else:
            found = table.snapshot_as_of_timestamp(int(as_of.timestamp() * 1000))
            what = f"snapshot as old as {as_of.isoformat()}; check option 'asOfTimestamp'"
        if found is None:
            raise SourceError(f"{self.options.dbtable} has no {what}")
        return found

    def schema(self) -> pa.Schema:
        return self._plan()

    def with_schema(self, schema: pa.Schema) -> Self:
        return self

    def split(self, advice: int) -> list[Split]:
        self._plan()
        if self.snapshot is None:
            return []
        table, shown = self.load(), self.options.dbtable
        with reading(shown), explained(shown, SourceError):
            tasks = planned_files(table.scan(snapshot_id=self.snapshot), self.options.dbtable)
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
        held: list[Any] = []
        size = 0
        for file in files:
            if held and size + file.file_size_in_bytes / 2 >= target:
                splits.append(_split(held))
                held, size = [], 0
            held.append(file)
            size += file.file_size_in_bytes
        return [*splits, _split(held)] if held else splits

    def _may_match(self, file: Any) -> bool:
        if self._condition is None:
            return True
        from spark_channel.connectors.iceberg.prune import value_ranges

        schema = next(each for each in self._metadata.schemas if each.schema_id == self._schema_id)
        ranges = value_ranges(file, schema, self._columns, self._condition.columns)
        return self._condition.may_match(ranges)

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        result = self._plan()
        assert self._columns is not None
        names = set(result.names) | (self._condition.columns if self._condition else set())
        needed = pa.schema([field for field in self._columns if field.name in names])
        shown = self.options.dbtable
        with explained(shown, SourceError):
            io = file_io(self._settings, self._location)
        for raw in split.params["files"]:
            file = data_file_of(raw)
            with reading(shown), explained(shown, SourceError):
                batches = data_file_rows(io, self._metadata, self._schema_id, file, needed)
            try:
                while True:
                    with reading(f"{shown}: {file.file_path}"), explained(shown, SourceError):
                        batch = next(batches, None)
                    if batch is None:
                        break
                    yield from self._sliced(batch, result)
            finally:
                batches.close()  # type: ignore[attr-defined]

    def _sliced(self, batch: pa.RecordBatch, result: pa.Schema) -> Iterator[pa.RecordBatch]:
        if self._condition is not None:
            batch = batch.filter(self._condition.mask(batch))
        made = batch.select(result.names).cast(result) if batch.schema.names != result.names else batch
        if not made.num_rows:
            return
        rows = batch_rows(self.fetch_size, made.num_rows, made.nbytes)
        for start in range(0, made.num_rows, rows):
            yield made.slice(start, rows)

    def feed(self, options: FeedOptions) -> ChangeFeed:
        from spark_channel.connectors.iceberg.feed import IcebergFeed

        return IcebergFeed(self, options)


def _split(files: Sequence[Any]) -> Split:
    return Split(
        {"files": [plain_file(file) for file in files]},
        rows=sum(file.record_count for file in files),
        nbytes=sum(file.file_size_in_bytes for file in files),
    )
