"""Writes and reads of Iceberg tables, by the connector and by pyiceberg itself, in a SQL catalog on a disk."""

import itertools
import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pytest

pytest.importorskip("pyiceberg")
pytest.importorskip("sqlalchemy")

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.io import FileIO
from pyiceberg.table.snapshots import Snapshot

from spark_channel.connectors import Reader, WriteContext, WritePlan, Writer, load_reader, load_writer

__all__ = [
    "create", "drop", "ids", "leftovers", "numbers", "options_of", "read", "reader_of", "rows_by_pyiceberg", "shop",
    "stage", "write", "writer_of",
]  # fmt: skip

_attempts = itertools.count(1)


def _properties(path: Path) -> dict[str, str]:
    return {"type": "sql", "uri": f"sqlite:///{path}/catalog.db", "warehouse": f"file://{path}/warehouse"}


def options_of(path: Path, table: str) -> dict[str, str]:
    return {"dbtable": table, "catalog": "tests", "catalogProperties": json.dumps(_properties(path))}


@contextmanager
def shop(path: Path) -> Iterator[Catalog]:
    """A catalog with the namespace `shop`."""
    (path / "warehouse").mkdir(exist_ok=True)
    catalog = load_catalog("tests", **_properties(path))
    try:
        catalog.create_namespace_if_not_exists("shop")
        yield catalog
    finally:
        catalog.close()


def create(catalog: Catalog, name: str, schema: pa.Schema) -> None:
    catalog.create_table(name, schema)


def _folder(catalog: Catalog, name: str) -> Path:
    return Path(urlsplit(str(catalog.properties["warehouse"])).path).joinpath(*name.split("."))


def drop(catalog: Catalog, name: str) -> None:
    if catalog.table_exists(name):
        catalog.drop_table(name)
    shutil.rmtree(_folder(catalog, name), ignore_errors=True)


def rows_by_pyiceberg(catalog: Catalog, name: str) -> pa.Table:
    """What the library itself reads."""
    return catalog.load_table(name).scan().to_arrow()


def ids(catalog: Catalog, name: str) -> list[int]:
    return [int(each) for each in rows_by_pyiceberg(catalog, name)["id"].to_pylist()]


_named: dict[str, frozenset[str]] = {}


def _named_by(snapshot: Snapshot, io: FileIO) -> frozenset[str]:
    """The files of a snapshot, which never change: a table of some hundred of them is looked at after every fault."""
    if snapshot.manifest_list not in _named:
        found = {snapshot.manifest_list}
        for manifest in snapshot.manifests(io):
            found.add(manifest.manifest_path)
            found |= {entry.data_file.file_path for entry in manifest.fetch_manifest_entry(io)}
        _named[snapshot.manifest_list] = frozenset(found)
    return _named[snapshot.manifest_list]


def leftovers(catalog: Catalog, name: str, *, killed: bool = False) -> list[str]:
    """Staging: notes of runs, and files that no snapshot names.

    `killed`: without manifests, which pyiceberg writes just before a commit, as any writer of Iceberg does: a driver
    that is killed in between leaves them, and docs/iceberg.md says so.
    """
    named: set[str] = set()
    if catalog.table_exists(name):
        table = catalog.load_table(name)
        for snapshot in table.snapshots():
            named |= _named_by(snapshot, table.io)
    files = [each for each in _folder(catalog, name).rglob("*") if each.is_file()]
    return [
        str(each)
        for each in files
        if f"file://{each}" not in named
        and not each.name.endswith(".metadata.json")
        and not (killed and each.suffix == ".avro" and each.parent.name == "metadata")
    ]


def reader_of(path: Path, table: str = "shop.t", **options: Any) -> Reader:
    return load_reader({"reader": "iceberg", **options_of(path, table), **options})[0]


def writer_of(path: Path, table: str = "shop.t", **options: Any) -> Writer:
    return load_writer({"writer": "iceberg", **options_of(path, table), **options})[0]


def numbers(*values: int) -> pa.Table:
    return pa.table({"id": pa.array(values, pa.int64())})


def stage(out: Writer, tables: Sequence[pa.Table], context: WriteContext) -> tuple[WritePlan, list[Any]]:
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


def write(path: Path, *tables: pa.Table, job: str = "", overwrite: bool = False, **options: Any) -> None:
    out = writer_of(path, **options)
    plan, receipts = stage(out, tables, WriteContext(job or f"job-{next(_attempts)}", overwrite=overwrite))
    out.commit(plan, receipts)


def read(path: Path, **options: Any) -> pa.Table:
    source = reader_of(path, **options)
    schema = source.schema()
    return pa.Table.from_batches([b for split in source.split(2) for b in source.read(split)], schema)
