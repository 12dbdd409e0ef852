"""What the tests of the file connectors share."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from spark_channel.connectors import Reader, Receipt, WriteContext, load_reader, load_writer
from spark_channel.connectors.files.plan import FilesPlan
from spark_channel.connectors.files.reader import FilesReader
from spark_channel.connectors.files.store import LocalStore, ObjectStore
from spark_channel.connectors.files.writer import FilesWriter

FORMATS = ("parquet", "csv", "json", "arrow", "orc")


def reader_of(form: str, path: object, **options: Any) -> FilesReader:
    found, _ = load_reader({"reader": form, "path": str(path), **options})
    assert isinstance(found, FilesReader)
    return found


def writer_of(form: str, path: object, **options: Any) -> FilesWriter:
    found, _ = load_writer({"writer": form, "path": str(path), **options})
    assert isinstance(found, FilesWriter)
    return found


def read_all(reader: Reader, advice: int = 4) -> pa.Table:
    """Everything, in the order of the splits."""
    schema = reader.schema()
    batches = [batch for split in reader.split(advice) for batch in reader.read(split)]
    return pa.Table.from_batches(batches, schema)


def read(form: str, path: object, advice: int = 4, **options: Any) -> pa.Table:
    return read_all(reader_of(form, path, **options), advice)


def stage(
    writer: FilesWriter, plan: FilesPlan, tables: Sequence[pa.Table], attempt: int = 0
) -> list[Receipt]:
    """One task per table, each with its attempt closed."""
    receipts = []
    for task, table in enumerate(tables):
        opened = writer.open(plan, task, attempt + task)
        try:
            for batch in table.to_batches():
                opened.write(batch)
            receipts.append(opened.close())
        except BaseException:
            opened.rollback()
            raise
    return receipts


def prepare(writer: FilesWriter, schema: pa.Schema, job: str = "job", **context: Any) -> FilesPlan:
    plan = writer.prepare(WriteContext(job, **context), schema)
    assert isinstance(plan, FilesPlan)
    return plan


def write(
    form: str,
    path: object,
    *tables: pa.Table,
    job: str = "job",
    context: dict[str, Any] | None = None,
    **options: Any,
) -> FilesPlan:
    """A whole write, one task per table."""
    writer = writer_of(form, path, **options)
    plan = prepare(writer, tables[0].schema, job, **(context or {}))
    if plan.published_at is None:
        writer.commit(plan, stage(writer, plan, tables))
    return plan


def numbers(*values: int) -> pa.Table:
    return pa.table({"n": pa.array(values, pa.int64())})


def visible(form: str, path: Path) -> list[int]:
    """Return the numbers that this package's reader sees."""
    return sorted(read(form, path).column("n").to_pylist())


def parts_named(path: Path) -> set[str]:
    """The parts of the log that its newest entry names, also as retired."""
    if not any((path / "_spark_channel").glob("*.json")):
        return set()
    found = state(path)
    older = [found["olderJobs"]] if "olderJobs" in found else []
    return {
        *older,
        *(name for name, *_ in found.get("parts", [])),
        *(each if isinstance(each, str) else each[0] for each in found.get("merges", {}).values()),
        *(part[0] for *_, part in found.get("removedParts", [])),
        *(name for name, _ in found.get("retired", [])),
    }


def leftovers(path: Path) -> list[str]:
    """What a write leaves hidden below a directory, but for the log and the files that readers may still need."""
    hidden = [
        p
        for p in path.rglob("*")
        if p.is_file() and p.relative_to(path).parts[0].startswith((".", "_"))
    ]
    log = path / "_spark_channel"
    named = parts_named(path)
    kept = [
        p
        for p in hidden
        if (p.parent == log and p.suffix == ".json")
        or log / "replaced" in p.parents
        or (p.parent == log / "parts" and p.name in named)
    ]
    return sorted(
        str(p.relative_to(path)) for p in hidden if p not in kept and p.name != "_SUCCESS"
    )


class FolderObjects(ObjectStore):
    """A store without renames, which a folder stands for: an object is what is written when its stream is closed."""

    def put_new(self, path: str, data: bytes) -> bool:
        return LocalStore(self.place).put_new(path, data)

    def check_put_new(self, path: str) -> None:
        LocalStore(self.place).check_put_new(path)


def newest(path: Path) -> dict[str, Any]:
    """The newest entry of a directory's log."""
    found = sorted((path / "_spark_channel").glob("*.json"))
    entry: dict[str, Any] = json.loads(found[-1].read_text())
    return entry


def state(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = newest(path)["state"]
    return found
