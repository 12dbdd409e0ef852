"""Reads a table, a view or a query of a DuckDB file as Arrow."""

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from spark_channel.connectors.contracts import Reader
from spark_channel.connectors.feed import ChangeFeed, FeedOptions
from spark_channel.connectors.sql.duckdb.column_types import OutOfRangeError, check_range, read_as
from spark_channel.connectors.sql.duckdb.database import Session, check_file
from spark_channel.connectors.sql.duckdb.options import DuckdbReadOptions, database_path
from spark_channel.connectors.sql.duckdb.source import ReadColumn, ReadSource, read_source
from spark_channel.connectors.sql.duckdb.splits import make_splits, split_conditions
from spark_channel.connectors.sql.script import session_script
from spark_channel.errors import SourceError
from spark_channel.options import ReadOptions
from spark_channel.planning import Split

__all__ = ["DuckdbReader"]

_BATCH_ROWS = 65_536
_BATCH_BYTES = 8 << 20


class DuckdbReader(Reader):
    """Splits by row numbers; all splits of a read see one state of the file, or the read ends.

    DuckDB moves rows to other numbers when it is written, so splits by row number carry the file's state, and a
    file that has changed since is refused.
    """

    Options: ClassVar[type[ReadOptions]] = DuckdbReadOptions
    options: DuckdbReadOptions

    def __init__(self, options: DuckdbReadOptions) -> None:
        super().__init__(options)
        self._path = database_path(options.url, options.path)
        self._source: ReadSource | None = None

    def schema(self) -> pa.Schema:
        with self.session() as session:
            self._source = read_source(session, self.options)
        return self._source.schema

    def split(self, advice: int) -> list[Split]:
        with self.session() as session:
            state = _state(self._path)
            splits = make_splits(session, self._known(session), self.options, max(1, advice))
        return [
            Split({**split.params, "state": state}, split.rows, split.nbytes)
            if split.params.get("key") == "rowid"
            else split
            for split in splits
        ]

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        import duckdb

        with self.session() as session:
            source = self._known(session)
            self._expect_unchanged(split)
            if split.params["kind"] != "all":
                session.rows("SET threads = 1")  # the other splits are the other threads
            expressions = [
                read_as(column.name, column.declared, source.column(column.name).sql("duckdb"))
                for column in source.columns
            ]
            try:
                batches = session.stream(
                    source.sql(expressions, split_conditions(source, split)), self._batch_rows(split)
                )
                for raw in batches:
                    if raw.num_rows:
                        yield _decode(raw, source, self._path)
            except (duckdb.Error, pa.ArrowException, OSError) as error:
                raise session.explain(error) from error

    def feed(self, options: FeedOptions) -> ChangeFeed:
        from spark_channel.connectors.sql.duckdb.feed import DuckdbFeed

        return DuckdbFeed(self, options)

    def session(self) -> Session:
        """The file, opened for reading."""
        check_file(self._path, SourceError)
        return Session(
            self._path,
            read_only=True,
            lock_timeout=self.options.lock_timeout,
            failure=SourceError,
            init=session_script(self.options, "duckdb"),
        )

    def _known(self, session: Session) -> ReadSource:
        if self._source is None:
            self._source = read_source(session, self.options)
        return self._source

    def _expect_unchanged(self, split: Split) -> None:
        state = split.params.get("state")
        if state is not None and list(state) != _state(self._path):
            raise SourceError(
                f"{self._path} was written since this read was planned, and DuckDB moves rows then: a split by "
                "row number may miss rows. load() it again; or name a 'partitionColumn', whose ranges stay true"
            )

    def _batch_rows(self, split: Split) -> int:
        row_bytes = int(split.params["row_bytes"])
        rows = [_BATCH_ROWS, _BATCH_BYTES // row_bytes]
        if self.options.fetch_size is not None:
            rows = [self.options.fetch_size]
        if self.fetch_size.rows is not None:
            rows.append(self.fetch_size.rows)
        if self.fetch_size.nbytes is not None:
            rows.append(self.fetch_size.nbytes // row_bytes)
        return max(1, min(rows))


def _state(path: Path) -> list[int]:
    """What changes when anybody writes the file: size and time of it and of its log."""
    state = []
    for each in (path, path.with_name(path.name + ".wal")):
        try:
            found = each.stat()
            state += [found.st_size, found.st_mtime_ns, found.st_ino]
        except FileNotFoundError:
            state += [-1, -1, -1]
    return state


def _decode(raw: pa.RecordBatch, source: ReadSource, path: Path) -> pa.RecordBatch:
    arrays = [
        _cast(array, column, source, path) for array, column in zip(raw.columns, source.columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=source.schema)


def _cast(array: pa.Array, column: ReadColumn, source: ReadSource, path: Path) -> pa.Array:
    where = f"column {column.name!r}, declared {column.declared}, of {source.label} in {path}"
    try:
        if isinstance(array, pa.ExtensionArray):
            array = array.storage
        if pa.types.is_timestamp(array.type) and array.type.unit != column.kind.unit:
            check_range(array)
        if not array.type.equals(column.kind):
            array = pc.cast(array, column.kind)
        check_range(array)
    except OutOfRangeError:
        raise SourceError(
            f"{where} holds an infinity, a date outside the years 1 to 9999, or the time 24:00:00, which Spark "
            "cannot hold: leave those rows out with 'where', or convert the column with 'query'"
        ) from None
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise SourceError(f"{where} holds a value that is not {column.kind}: {error}") from error
    return array
