"""Reads a table, a view or a query of a DuckDB file as Arrow."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

import pyarrow as pa

from spark_channel.connectors.sql.duckdb.database import DuckdbSession, check_file
from spark_channel.connectors.sql.duckdb.dialect import DuckdbDialect
from spark_channel.connectors.sql.duckdb.options import DuckdbReadOptions
from spark_channel.connectors.sql.duckdb.splits import DuckdbSplitter
from spark_channel.connectors.sql.reader import SqlReader
from spark_channel.connectors.sql.script import session_script
from spark_channel.connectors.sql.session import Session
from spark_channel.errors import SourceError
from spark_channel.options import ReadOptions
from spark_channel.planning import Split

__all__ = ["DuckdbReader"]


class DuckdbReader(SqlReader):
    """Splits by row numbers; all splits of a read see one state of the file, or the read ends.

    DuckDB moves rows to other numbers when it is written, so splits by row number carry the file's state, and a
    file that has changed since is refused.
    """

    Options: ClassVar[type[ReadOptions]] = DuckdbReadOptions
    Splitter = DuckdbSplitter
    options: DuckdbReadOptions

    def __init__(self, options: DuckdbReadOptions) -> None:
        super().__init__(options, DuckdbDialect())
        self._path = options.file

    @contextmanager
    def connect(self, purpose: str) -> Iterator[Session]:
        check_file(self._path, SourceError)
        with DuckdbSession(
            self._path, read_only=True, lock_timeout=self.options.lock_timeout, failure=SourceError,
            init=session_script(self.options, "duckdb"),
        ) as session:  # fmt: skip
            yield session

    def splits(self, session: Session, advice: int) -> list[Split]:
        state = _state(self._path)
        return [
            Split({**split.params, "state": state}, split.rows, split.nbytes)
            if split.params.get("key") == ["rowid"]
            else split
            for split in super().splits(session, advice)
        ]

    def rows(self, session: Session, split: Split) -> Iterator[pa.RecordBatch]:
        state = split.params.get("state")
        if state is not None and list(state) != _state(self._path):
            raise SourceError(
                f"{self._path} was written since this read was planned, and DuckDB moves rows then: "
                "a split by row number may miss rows. load() it again; "
                "or name a 'partitionColumn', whose ranges stay true"
            )
        if split.params["kind"] != "all":
            session.rows("SET threads = 1")  # the other splits are the other threads
        yield from super().rows(session, split)


def _state(path: Path) -> list[int]:
    """The state of the file, which every write changes: size and time of the file and of its log."""
    state = []
    for each in (path, path.with_name(path.name + ".wal")):
        try:
            found = each.stat()
            state += [found.st_size, found.st_mtime_ns, found.st_ino]
        except FileNotFoundError:
            state += [-1, -1, -1]
    return state
