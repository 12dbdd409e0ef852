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
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyiceberg")
pytest.importorskip("sqlalchemy")

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.io import FileIO
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestWriterV2,
    write_manifest_list,
)
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.update import AddSnapshotUpdate, SetSnapshotRefUpdate
from pyiceberg.typedef import Record

from spark_channel.connectors import (
    Reader,
    WriteContext,
    WritePlan,
    Writer,
    load_reader,
    load_writer,
)

__all__ = [
    "create",
    "drop",
    "ids",
    "leftovers",
    "mark_as_deleted",
    "numbers",
    "options_of",
    "read",
    "reader_of",
    "rows_by_pyiceberg",
    "shop",
    "stage",
    "write",
    "writer_of",
]

_attempts = itertools.count(1)


def _properties(path: Path) -> dict[str, str]:
    return {
        "type": "sql",
        "uri": f"sqlite:///{path}/catalog.db",
        "warehouse": f"file://{path}/warehouse",
    }


def options_of(path: Path, table: str) -> dict[str, str]:
    return {
        "dbtable": table,
        "catalog": "tests",
        "catalogProperties": json.dumps(_properties(path)),
    }


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
    that is killed in between leaves them, and docs/lakehouse.md says so.
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
    path: Path, *tables: pa.Table, job: str = "", overwrite: bool = False, **options: Any
) -> None:
    out = writer_of(path, **options)
    plan, receipts = stage(
        out, tables, WriteContext(job or f"job-{next(_attempts)}", overwrite=overwrite)
    )
    out.commit(plan, receipts)


def read(path: Path, **options: Any) -> pa.Table:
    source = reader_of(path, **options)
    schema = source.schema()
    return pa.Table.from_batches(
        [b for split in source.split(2) for b in source.read(split)], schema
    )


def mark_as_deleted(table: Table, content: str) -> None:
    """Commit a snapshot with a delete file for the first row, by parts of pyiceberg, which itself writes none.

    `content`: POSITION_DELETES, or EQUALITY_DELETES by column `id`.
    """
    data = next(iter(table.scan().plan_files())).file
    path = f"{table.location()}/data/deletes-{content.lower()}.parquet"
    rows = pa.table({"file_path": [data.file_path], "pos": pa.array([0], pa.int64())})
    if content == "EQUALITY_DELETES":
        rows = pa.table({"id": pa.array([1], pa.int64())})
    with table.io.new_output(path).create() as sink:
        pq.write_table(rows, sink)
    before = table.current_snapshot()
    assert before is not None
    snapshot, sequence = table.metadata.new_snapshot_id(), (before.sequence_number or 0) + 1
    file = DataFile.from_args(
        content=DataFileContent[content],
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=1,
        file_size_in_bytes=len(table.io.new_input(path)),
        spec_id=0,
        sort_order_id=None,
        equality_ids=[1] if content == "EQUALITY_DELETES" else None,
        key_metadata=None,
    )
    status = ManifestEntryStatus.ADDED
    place = table.io.new_output(f"{table.location()}/metadata/deletes-m0.avro")
    with _DeleteManifest(table.spec(), table.schema(), place, snapshot, "deflate") as manifest:
        manifest.add_entry(
            ManifestEntry.from_args(status=status, snapshot_id=snapshot, data_file=file)
        )
    listing = f"{table.location()}/metadata/snap-{snapshot}.avro"
    output = table.io.new_output(listing)
    with write_manifest_list(
        2, output, snapshot, before.snapshot_id, sequence, "deflate"
    ) as manifests:
        manifests.add_manifests([*before.manifests(table.io), manifest.to_manifest_file()])
    made = Snapshot(
        snapshot_id=snapshot,
        parent_snapshot_id=before.snapshot_id,
        sequence_number=sequence,
        timestamp_ms=before.timestamp_ms + 1,
        manifest_list=listing,
        summary=Summary(Operation.DELETE),
        schema_id=0,
    )
    main: dict[str, Any] = {"ref-name": "main", "type": "branch", "snapshot-id": snapshot}
    updates = (AddSnapshotUpdate(snapshot=made), SetSnapshotRefUpdate.model_validate(main))
    table.catalog.commit_table(table, (), updates)


class _DeleteManifest(ManifestWriterV2):
    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}
