"""A DuckDB file, and hands to read and write it: `Duck.sql` is DuckDB's own client, the witness."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
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
from spark_channel.connectors.duckdb import DuckdbReader
from spark_channel.connectors.sql import SqlWriter


@dataclass
class Duck:
    path: Path
    jobs: int = 0

    def sql(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        connection = duckdb.connect(str(self.path))
        try:
            connection.execute("SET TimeZone = 'UTC'")
            found: list[tuple[Any, ...]] = connection.execute(
                statement, list(parameters)
            ).fetchall()
            return found
        finally:
            connection.close()

    def reader(self, dbtable: str | None = "t", **options: Any) -> DuckdbReader:
        named = {} if dbtable is None else {"dbtable": dbtable}
        reader, _ = load_reader({"path": str(self.path), **named, **lowered(options)})
        assert isinstance(reader, DuckdbReader)
        return reader

    def read(self, dbtable: str | None = "t", *, advice: int = 1, **options: Any) -> pa.Table:
        reader = self.reader(dbtable, **options)
        schema = reader.schema()
        return pa.Table.from_batches(
            [batch for split in reader.split(advice) for batch in reader.read(split)], schema
        )

    def writer(self, dbtable: str = "t", **options: Any) -> SqlWriter[Any]:
        writer, _ = load_writer({"path": str(self.path), "dbtable": dbtable, **lowered(options)})
        assert isinstance(writer, SqlWriter)
        return writer

    def context(
        self, *, job: str | None = None, overwrite: bool = False, txn: tuple[str, int] | None = None
    ) -> WriteContext:
        self.jobs += 1
        return WriteContext(job=job or f"job-{self.jobs}", overwrite=overwrite, txn=txn)

    def write(
        self,
        *tables: pa.Table,
        dbtable: str = "t",
        overwrite: bool = False,
        txn: tuple[str, int] | None = None,
        **options: Any,
    ) -> WritePlan:
        """One job; each table is a task."""
        writer = self.writer(dbtable, **options)
        plan = writer.prepare(self.context(overwrite=overwrite, txn=txn), tables[0].schema)
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
        return [path for path in self.path.parent.rglob("*") if ".spark-channel" in str(path)]


def run_task(
    writer: Writer, plan: WritePlan, task: int, table: pa.Table, attempt: int | None = None
) -> Receipt:
    """One attempt, as a Spark task runs it."""
    task_writer = writer.open(plan, task, task if attempt is None else attempt)
    try:
        for batch in table.to_batches():
            task_writer.write(batch)
        return task_writer.close()
    except BaseException:
        task_writer.rollback()
        raise


def lowered(options: dict[str, Any]) -> dict[str, Any]:
    return {name.lower(): value for name, value in options.items()}


@pytest.fixture
def duck(tmp_path: Path) -> Duck:
    return Duck(tmp_path / "orders.duckdb")
