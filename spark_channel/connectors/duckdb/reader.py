"""Reads a table, a view or a query of a DuckDB file, in splits by row number."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from spark_channel.connectors.base.definition import TableDefinition
from spark_channel.connectors.duckdb.definition import read_definition
from spark_channel.connectors.duckdb.dialect import DuckdbDialect, DuckdbTable
from spark_channel.connectors.duckdb.options import DuckdbReadOptions
from spark_channel.connectors.duckdb.session import DuckdbSession, check_file
from spark_channel.connectors.sql.catalog import Table
from spark_channel.connectors.sql.read.quantiles import places_of, quantiles_of
from spark_channel.connectors.sql.read.reader import SqlReader
from spark_channel.connectors.sql.read.splits import Quantiles, Splitter, distinct
from spark_channel.connectors.sql.session import Session, session_script
from spark_channel.errors import SourceError
from spark_channel.options import ReadOptions
from spark_channel.planning import Split

__all__ = [
    "DuckdbReader",
]


_BUCKETS = 64
"""Ranges of row numbers that are counted for each split: boundaries are this fine."""
_EVEN = 1.2


class DuckdbSplitter(Splitter):
    """One column is scanned at most; its row numbers twice, where most rows have few of them."""

    def ranges(self) -> list[Split] | None:
        source, session = self.source, self.session
        rowid = source.column("rowid")
        count, least, most = session.rows(
            source.sql(["count(*)", f"min({rowid})", f"max({rowid})"])
        )[0]
        parts = min(self.advice, count)
        if parts <= 1:
            return [self.whole(count)]
        step = max(1, (most - least + 1) // (parts * _BUCKETS))
        buckets = session.rows(
            source.sql([f"({rowid} - {least}) // {step}", "count(*)"]) + " GROUP BY 1 ORDER BY 1"
        )
        edges, counts = _merge(buckets, count, parts)
        starts: list[Any] = [[least + edge * step] for edge in edges]
        if len(counts) < parts or max(counts) > _EVEN * min(counts):  # most rows are in few buckets
            starts = self._boundaries(rowid)
            counts = [count // (len(starts) + 1)] * (len(starts) + 1)
        return self.cut(["rowid"], starts, counts)

    def quantiles(self, name: str) -> Quantiles:
        column = self.source.column(name)
        total, present = self.session.rows(self.source.sql(["count(*)", f"count({column})"]))[0]
        places = places_of(self.advice)
        before, starts = 0, []
        for text, count in self._values(column, places) if present and self.advice > 1 else ():
            starts.append((text, before * present / places))
            before += count
        return quantiles_of(starts, present, total - present, self.advice)

    def divider(self) -> tuple[str, ...]:
        """A key stays true when the file is written; rows by number are refused then."""
        table = self.source.table
        numbered = table is not None and "rowid" in self.source.dialect.hidden_columns(table)
        return super().divider() or (("rowid",) if numbered else ())

    def bound_text(self, text: str) -> str:
        return f"CAST({text} AS VARCHAR)"

    def _boundaries(self, column: str) -> list[Any]:
        """Texts of the boundaries of ranges of about equal rows."""
        if self.advice < 2:
            return []
        return distinct([text for text, _ in self._values(column, self.advice)])

    def _values(self, column: str, count: int) -> list[tuple[str, int]]:
        """The values at 0, 1/n, 2/n, ... of a column as texts, each with the number of these places where it is."""
        places = ", ".join(str(place / count) for place in range(count))
        values = self.source.sql(
            [f"unnest(quantile_disc({column}, [{places}])) AS k"], [f"{column} IS NOT NULL"]
        )
        rows = self.session.rows(
            f"SELECT CAST(k AS VARCHAR), count(*) FROM ({values}) GROUP BY k ORDER BY k"  # noqa: S608 - quoted
        )
        return [(str(text), int(places)) for text, places in rows]


def _merge(buckets: list[tuple[Any, ...]], count: int, parts: int) -> tuple[list[int], list[int]]:
    """The boundaries in ascending (bucket, rows) that make at most `parts` parts of about equal rows."""
    edges: list[int] = []
    counts: list[int] = []
    group_rows = passed = 0
    for bucket, rows in buckets:
        if (
            group_rows
            and passed + rows / 2 > count * (len(edges) + 1) / parts
            and len(edges) < parts - 1
        ):
            edges.append(int(bucket))
            counts.append(group_rows)
            group_rows = 0
        group_rows += rows
        passed += rows
    return edges, [*counts, group_rows]


class DuckdbReader(SqlReader):
    """Splits by row numbers; all splits of a read see one state of the file, or the read ends.

    DuckDB moves rows to other numbers when it is written (findings/duckdb-rowid-moves.sh), so splits by row number
    carry the file's state, and a file that has changed since is refused.
    """

    Options: ClassVar[type[ReadOptions]] = DuckdbReadOptions
    Splitter = DuckdbSplitter
    has_other_writers = False  # a process that reads the file keeps those that write it out
    options: DuckdbReadOptions

    def __init__(self, options: DuckdbReadOptions) -> None:
        super().__init__(options, DuckdbDialect())
        self._path = options.file

    @contextmanager
    def connect(self, purpose: str) -> Iterator[Session]:
        check_file(self._path, SourceError)
        with DuckdbSession.kept(
            self._path,
            lock_timeout=self.options.lock_timeout,
            failure=SourceError,
            init=session_script(self.options, "duckdb"),
            external_access=self.options.external_access,
            hides=self.options.hide_values,
        ) as session:
            yield session

    def defined(self, session: Session, table: Table) -> TableDefinition:
        assert isinstance(table, DuckdbTable)
        return read_definition(session, table)

    def splits(self, session: Session, advice: int) -> list[Split]:
        state = _state(self._path)
        return [
            Split({**split.params, "state": state}, split.rows, split.nbytes)
            if _is_by_number(split)
            else split
            for split in super().splits(session, advice)
        ]

    def rows(self, session: Session, split: Split) -> Iterator[pa.RecordBatch]:
        state = split.params.get("state")
        if state is not None and list(state) != _state(self._path):
            raise SourceError(
                f"{self._path} was written since this read was planned, and DuckDB moves rows then: "
                "a split by row number may miss rows. load() it again; "
                "or name a 'partitionColumn', whose ranges stay true, of a table with a primary key"
            )
        if split.params["kind"] != "all":
            session.execute("SET threads = 1")  # the other splits are the other threads
        yield from super().rows(session, split)


def _is_by_number(split: Split) -> bool:
    return ["rowid"] in (split.params.get("key"), split.params.get("part", {}).get("key"))


def _state(path: Path) -> list[int]:
    """The state of the file, which every write changes: size and time of the file and of its log."""
    state = []
    for file in (path, path.with_name(path.name + ".wal")):
        try:
            status = file.stat()
            state += [status.st_size, status.st_mtime_ns, status.st_ino]
        except FileNotFoundError:
            state += [-1, -1, -1]
    return state
