"""A database file, and hands to read and write it: `Db.sql` is Python's own sqlite3, the witness."""

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_channel.connectors import (
    Receipt,
    WriteContext,
    WritePlan,
    Writer,
    load_reader,
    load_writer,
)
from spark_channel.connectors.sql import SqlWriter
from spark_channel.connectors.sqlite import SqliteReader
from spark_channel.options import CommitMode


@dataclass
class Db:
    path: Path
    jobs: int = 0

    def sql(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.path)) as connection, connection:
            return connection.execute(statement, parameters).fetchall()

    def many(self, statement: str, rows: Iterator[tuple[Any, ...]] | list[tuple[Any, ...]]) -> None:
        with closing(sqlite3.connect(self.path)) as connection, connection:
            connection.executemany(statement, rows)

    def reader(self, dbtable: str | None = "t", **options: Any) -> SqliteReader:
        named = {} if dbtable is None else {"dbtable": dbtable}
        reader, _ = load_reader({"path": str(self.path), **named, **_lowered(options)})
        assert isinstance(reader, SqliteReader)
        return reader

    def read(self, dbtable: str | None = "t", *, advice: int = 1, **options: Any) -> pa.Table:
        reader = self.reader(dbtable, **options)
        schema = reader.schema()
        return pa.Table.from_batches(
            [batch for split in reader.split(advice) for batch in reader.read(split)], schema
        )

    def writer(self, dbtable: str = "t", **options: Any) -> SqlWriter[Any]:
        writer, _ = load_writer({"path": str(self.path), "dbtable": dbtable, **_lowered(options)})
        assert isinstance(writer, SqlWriter)
        return writer

    def context(
        self,
        *,
        job: str | None = None,
        overwrite: bool = False,
        commit: CommitMode | None = None,
        txn: tuple[str, int] | None = None,
        stream: tuple[str, int] | None = None,
    ) -> WriteContext:
        self.jobs += 1
        return WriteContext(
            job=job or f"job-{self.jobs}",
            overwrite=overwrite,
            commit=commit,
            txn=txn,
            stream=stream,
        )

    def write(
        self,
        *tables: pa.Table | pa.RecordBatch,
        dbtable: str = "t",
        overwrite: bool = False,
        commit: CommitMode | None = None,
        txn: tuple[str, int] | None = None,
        **options: Any,
    ) -> WritePlan:
        """One job; each table is a task."""
        writer = self.writer(dbtable, **options)
        plan = writer.prepare(
            self.context(overwrite=overwrite, commit=commit, txn=txn), tables[0].schema
        )
        try:
            receipts = [
                run_task(writer, plan, number, table) for number, table in enumerate(tables)
            ]
            writer.commit(plan, receipts)
        except BaseException:
            writer.abort(plan, None)
            raise
        return plan

    def staged(self) -> list[Path]:
        return [
            path
            for path in self.path.parent.rglob("*")
            if ".spark-channel" in str(path.relative_to(self.path.parent))
        ]


def run_task(
    writer: Writer,
    plan: WritePlan,
    task: int,
    table: pa.Table | pa.RecordBatch,
    attempt: int | None = None,
) -> Receipt:
    """One attempt, as a Spark task runs it."""
    task_writer = writer.open(plan, task, task if attempt is None else attempt)
    try:
        for batch in table.to_batches() if isinstance(table, pa.Table) else [table]:
            task_writer.write(batch)
        return task_writer.close()
    except BaseException:
        task_writer.rollback()
        raise


AsNobody = Callable[[], AbstractContextManager[None]]


@pytest.fixture
def as_nobody(tmp_path: Path) -> AsNobody:
    """Run as a user without rights: root may do everything, so it gives up its rights for a while."""

    @contextmanager
    def become() -> Iterator[None]:
        if os.geteuid() != 0:
            yield
            return
        for directory in (tmp_path, *tmp_path.parents[:-2]):
            directory.chmod(directory.stat().st_mode | 0o011)
        os.seteuid(65534)
        try:
            yield
        finally:
            os.seteuid(0)

    return become


def _lowered(options: dict[str, Any]) -> dict[str, Any]:
    return {name.lower(): value for name, value in options.items()}


@pytest.fixture
def db(tmp_path: Path) -> Db:
    return Db(tmp_path / "orders.db")
