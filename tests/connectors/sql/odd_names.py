"""Names that would be more than names if a statement were put together of texts."""

import json
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

import pyarrow as pa
import pytest

from spark_channel.connectors import Reader
from spark_channel.connectors.base.feed import FeedLimit, FeedOptions
from spark_channel.errors import SourceError

__all__ = ["COLUMNS", "TABLES", "hold_to_names"]

EVIL = 'x"; drop table y; --'
TABLES = [EVIL, "x`; drop table y; -- '", "what? %s 50% %(a)s :name $1 @a {0}"]
COLUMNS = [
    EVIL,
    "x`; drop table y; -- '",
    "what? %s 50% %(a)s :name $1 @a {0}",
    "new\nline\ttab",
    "[a].b /* # \\ */",
    "select",
]
KEY, KEPT = COLUMNS[:-1], COLUMNS[-1]


def _rows(kept: int) -> pa.Table:
    numbers = {name: pa.array([1, 2, 3], pa.int64()) for name in KEY}
    return pa.table({**numbers, KEPT: pa.array([kept] * 3, pa.int64())})


def hold_to_names(
    make_reader: Callable[..., Reader],
    write: Callable[..., object],
    quoted: Callable[[str], str],
    modes: Sequence[str] = (),
    commits: Sequence[str] = ("job", "task"),
    *,
    streams: bool = True,
) -> None:
    """Write tables of odd names with odd columns, also as keys of each of `modes`, and read them in every way.

    `write(rows, dbtable=, commit=, txn=, **options)` is one job; `quoted` says how `where` spells a name. `streams`:
    a table is a stream too, by a cursor column.
    """

    def read(table: str, **options: Any) -> pa.Table:
        reader = make_reader(table, **options)
        schema = reader.schema()
        batches = [batch for split in reader.split(2) for batch in reader.read(split)]
        return pa.Table.from_batches(batches, schema).sort_by(KEY[0])

    for table in TABLES:
        with pytest.raises(SourceError, match=r"does not exist|no such table"):
            read(table)
    first, *others = TABLES
    key = json.dumps(KEY)
    created = {"writeMode": modes[0], "keyColumns": key} if modes else {}
    write(_rows(0), dbtable=first, commit="job", txn=(EVIL, 1), **created)
    assert read(first) == _rows(0)
    for kept, mode in enumerate(modes, 1):
        rows = _rows(kept)
        if mode == "apply":
            rows = rows.append_column("_op", pa.array(["update"] * 3))
        write(
            rows, dbtable=first, commit=commits[kept % len(commits)], writeMode=mode, keyColumns=key
        )
        assert read(first) == _rows(kept - 1 if mode == "skipExisting" else kept), mode
    last = read(first)
    assert read(first, columns=json.dumps([KEPT, EVIL])) == last.select([KEPT, EVIL])
    condition = " AND ".join(f"{quoted(name)} > 1" for name in KEY)
    assert read(first, where=condition) == last.slice(1)
    for name in KEY[::2]:
        assert read(first, partitionColumn=name) == last, name
    assert read(first, partitionColumn=EVIL, lowerBound="1", upperBound="3") == last
    for name in KEY[1::2] if streams else ():
        with closing(
            make_reader(first).feed(FeedOptions(cursor_column=name, late_seconds=0))
        ) as feed:
            start = feed.earliest()[0]
            parts = feed.changes(start, feed.latest(start, FeedLimit(rows=2)))
            found = [
                row[name]
                for part in parts
                for batch in feed.read(part)
                for row in batch.to_pylist()
            ]
            assert sorted(found) == [1, 2], (name, found)
    for number, table in enumerate(others):
        write(_rows(number), dbtable=table, commit=commits[-1], txn=(table, 1))
        assert read(table) == _rows(number)
