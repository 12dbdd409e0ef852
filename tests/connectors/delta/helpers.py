"""Writes and reads of Delta tables, by the connector and by deltalake itself."""

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pytest

pytest.importorskip("deltalake")

from deltalake import DeltaTable

from spark_channel.connectors import (
    Reader,
    WriteContext,
    WritePlan,
    Writer,
    load_reader,
    load_writer,
)

__all__ = [
    "leftovers",
    "numbers",
    "read",
    "reader_of",
    "rows_by_deltalake",
    "stage",
    "write",
    "writer_of",
]

_attempts = itertools.count(1)


def reader_of(path: Path | str, **options: Any) -> Reader:
    return load_reader({"reader": "delta", "path": str(path), **options})[0]


def writer_of(path: Path | str, **options: Any) -> Writer:
    return load_writer({"writer": "delta", "path": str(path), **options})[0]


def numbers(*values: int) -> pa.Table:
    return pa.table({"id": pa.array(values, pa.int64())})


def stage(
    out: Writer, tables: Sequence[pa.Table], context: WriteContext
) -> tuple[WritePlan, list[Any]]:
    plan = out.prepare(context, tables[0].schema)
    receipts = []
    for task, table in enumerate(tables):
        attempt = out.open(plan, task, next(_attempts))
        try:
            for batch in table.to_batches():
                attempt.write(batch)
            receipts.append(attempt.close())
        finally:
            attempt.rollback()
    return plan, receipts


def write(
    path: Path | str, *tables: pa.Table, job: str = "", overwrite: bool = False, **options: Any
) -> None:
    out = writer_of(path, **options)
    context = WriteContext(job or f"job-{next(_attempts)}", overwrite=overwrite)
    plan, receipts = stage(out, tables, context)
    out.commit(plan, receipts)


def read(path: Path | str, **options: Any) -> pa.Table:
    source = reader_of(path, **options)
    schema = source.schema()
    return pa.Table.from_batches(
        [b for split in source.split(2) for b in source.read(split)], schema
    )


def rows_by_deltalake(path: Path | str, **more: Any) -> pa.Table:
    """What the library itself reads: another implementation than the connector's."""
    table = DeltaTable(str(path), **more)
    if not hasattr(table, "scan"):  # deltalake before 1.6.6
        return table.to_pyarrow_table()
    return pa.table(table.scan().read_all())


def leftovers(path: Path | str) -> list[str]:
    """Staging: notes of runs, and data files that no version of the table names."""
    base = Path(path)
    if not base.exists():
        return []
    named: set[str] = set()
    if (base / "_delta_log").exists():
        for commit in (base / "_delta_log").glob("*.json"):
            actions = [json.loads(line) for line in commit.read_text().splitlines()]
            named |= {Path(unquote(each["add"]["path"])).name for each in actions if "add" in each}
    files = [each for each in base.rglob("*") if each.is_file() and "_delta_log" not in each.parts]
    return [str(each) for each in files if each.name not in named]
