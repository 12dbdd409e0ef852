"""A table's existing rows as chunks by ranges of its primary key, which are read beside its log. Pure."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from spark_channel.connectors.sql.catalog import Column
from spark_channel.connectors.sql.feed.incremental_snapshot import ChunkWindow, Key
from spark_channel.connectors.sql.read.keyset import Keyset, keyset_of
from spark_channel.connectors.sql.read.reader import SqlReader
from spark_channel.connectors.sql.read.source import ReadSource
from spark_channel.errors import SourceError
from spark_channel.lazy import compute as pc
from spark_channel.planning import Split

__all__ = [
    "READ",
    "BaseChunk",
    "as_inserts",
    "base_keyset",
    "base_splits",
    "between",
    "check_order",
    "chunk_rows",
    "count_of",
    "key_of",
    "last_key",
    "order_of",
    "texts_of",
]


READ = "read"
"""`_op` of an existing row: no event of the log."""
_CHUNK_ROWS, _CHUNK_BYTES = 50_000, 16 << 20
_WIDTH = 200
"""Bytes of a row, where the server does not know how many rows there are."""


@dataclass(frozen=True)
class BaseChunk:
    """Rows of one statement; see `Chunk`. `batches` have the columns of `keyset`, and `schema` is that of the feed.

    `at` is the position for `_lsn`. `seen` says whether the statement saw a transaction. `places` says where each
    column of the feed is in the batches; None = the table has lost it.
    """

    batches: Sequence[pa.RecordBatch]
    keyset: Keyset
    last: Key | None
    seen: Callable[[Any], bool]
    schema: pa.Schema
    at: str
    places: Sequence[int | None]

    @property
    def nbytes(self) -> int:
        return sum(batch.nbytes for batch in self.batches)

    def sees(self, transaction: Any) -> bool:
        return self.seen(transaction)

    def kept(self, window: ChunkWindow) -> Iterator[pa.RecordBatch]:
        if window.is_emptied:
            return
        for batch in self.batches:
            unchanged = self._left(batch, window)
            rows = unchanged.num_rows
            if rows:
                marks = [
                    pa.repeat(pa.scalar(READ), rows),
                    pa.repeat(pa.scalar(self.at), rows),
                    pa.nulls(rows, self.schema[-1].type),
                ]
                columns = [
                    pa.nulls(rows, field.type) if index is None else unchanged.column(index)
                    for index, field in zip(self.places, self.schema, strict=False)
                ]
                yield pa.RecordBatch.from_arrays([*columns, *marks], schema=self.schema)

    def _left(self, batch: pa.RecordBatch, window: ChunkWindow) -> pa.RecordBatch:
        if not window.keys:
            return batch
        texts = texts_of([batch.column(index) for index in self.keyset.places])
        firsts = pa.array({key[0] for key in window.keys}, pa.string())
        dropped = pc.is_in(texts[0], firsts)
        if len(texts) > 1:
            keys = zip(*(text.to_pylist() for text in texts), strict=True)
            dropped = pa.array([key in window.keys for key in keys], pa.bool_())
        return batch.filter(pc.invert(dropped))


def base_splits(reader: SqlReader, advice: int, at: str | int) -> list[Split]:
    """Splits of the existing rows that are read before the changes, as of position `at`."""
    return [
        Split({**split.params, "at": at}, split.rows, split.nbytes)
        for split in reader.split(advice)
    ]


def as_inserts(batch: pa.RecordBatch, schema: pa.Schema, at: str) -> pa.RecordBatch:
    """Existing rows that are read before the changes, as of position `at`. `schema`: that of the feed."""
    rows = batch.num_rows
    marks = [
        pa.repeat(pa.scalar("insert"), rows),
        pa.repeat(pa.scalar(at), rows),
        pa.nulls(rows, schema[-1].type),
    ]
    return pa.RecordBatch.from_arrays([*batch.columns, *marks], schema=schema)


def texts_of(columns: Sequence[pa.Array]) -> list[pa.Array]:
    """The columns of a key as a window has them."""
    return [pc.cast(column, pa.string()) for column in columns]


def base_keyset(source: ReadSource) -> Keyset:
    """
    Raises:
        SourceError: the table no longer has a key by which its chunks are found.
    """
    keyset = keyset_of(source, Split({"kind": "all"}))
    if keyset is None:
        raise SourceError(
            f"{source.label} has lost the primary key by which its base is read: reset the tunnel, or begin with a new "
            "checkpoint directory"
        )
    return keyset


def order_of(keyset: Keyset, sorted_as: Callable[[Column], str]) -> tuple[str, ...]:
    """The columns of the key, each with what decides which of two values is first."""
    order = []
    for column in keyset.key:
        about = keyset.source.about(column.name)
        assert about is not None
        order.append(
            f"{column.name} {sorted_as(about)}{' descending' if column.descending else ''}"
        )
    return tuple(order)


def check_order(keyset: Keyset, sorted_as: Callable[[Column], str], order: Sequence[str]) -> None:
    """
    Raises:
        SourceError: keys are in another order than `order`, in which the reading of the base began, so that no key
            shows which rows are left.
    """
    now = order_of(keyset, sorted_as)
    # A name in another case is the same column, or the statement that names it fails.
    if order and [entry.lower() for entry in now] != [entry.lower() for entry in order]:
        raise SourceError(
            f"{keyset.source.label} is ordered by its primary key ({', '.join(now)}), "
            f"and was by ({', '.join(order)}) when the reading of its existing rows began: which of them "
            "are left to read is not known. Reset the tunnel, or begin with a new checkpoint directory"
        )


def between(keyset: Keyset, lower: Key | None, upper: Key) -> list[str]:
    """The conditions of the rows behind `lower`, up to and with `upper`."""
    return [
        *([] if lower is None else [_compared(keyset, ">", lower)]),
        _compared(keyset, "<=", upper),
    ]


def _compared(keyset: Keyset, sign: str, key: Key) -> str:
    """Steps, where a database finds no range of an index for a comparison of rows."""
    source = keyset.source
    columns = [source.column(column.name) for column in keyset.key]
    values = [
        source.dialect.key_literal(value, source.about(column.name))
        for value, column in zip(key, keyset.key, strict=True)
    ]
    if len(columns) == 1 or source.dialect.row_values:
        return f"({', '.join(columns)}) {sign} ({', '.join(values)})"
    steps = []
    for depth, (column, value) in enumerate(zip(columns, values, strict=True)):
        equal = [f"{columns[index]} = {values[index]}" for index in range(depth)]
        sign_here = sign if depth + 1 == len(columns) else sign[0]
        steps.append(f"({' AND '.join([*equal, f'{column} {sign_here} {value}'])})")
    return f"({' OR '.join(steps)})"


def key_of(keyset: Keyset, conditions: Sequence[str], skipped: int, *, last: bool = False) -> str:
    """The statement for the key of row number `skipped`, from 0; `last`: counted from the end."""
    source = keyset.source
    columns = [keyset.columns[index].expression for index in keyset.places]
    order = ", ".join(
        source.column(column.name) + (" DESC" if last else "") for column in keyset.key
    )
    return f"{source.sql(columns, conditions)} ORDER BY {order} LIMIT 1 OFFSET {skipped}"


def count_of(keyset: Keyset, conditions: Sequence[str], most: int) -> str:
    """The statement for the number of rows, up to `most`."""
    inner = keyset.source.sql(["1 AS one"], conditions)
    return f"SELECT COUNT(*) FROM ({inner} LIMIT {most}) counted"  # noqa: S608 - quoted names and literals


def last_key(batch: pa.RecordBatch, keyset: Keyset) -> Key:
    return tuple(batch.column(index)[-1].as_py() for index in keyset.places)


def chunk_rows(rows: int | None, nbytes: int, most: Callable[[int], int]) -> int:
    """How many rows are held at once, and read by one statement, of a table of `rows` rows and `nbytes` bytes.

    `most`: how many of a width a fetch may bring.
    """
    width = _WIDTH if not rows else max(1, nbytes // rows)
    return max(100, min(_CHUNK_ROWS, _CHUNK_BYTES // width, most(width)))
