"""Reads and writes of one database, as a job makes them, for the tests of each system."""

from abc import ABC, abstractmethod
from typing import Any, Generic, TypeVar

import pyarrow as pa

from spark_channel.connectors import (
    Reader,
    Receipt,
    WriteContext,
    WritePlan,
    Writer,
    load_reader,
    load_writer,
)
from spark_channel.connectors.sql import SqlWriter
from spark_channel.options import CommitMode

_R = TypeVar("_R", bound=Reader)


class OneDatabase(ABC, Generic[_R]):
    reader_type: type[_R]
    jobs = 0

    @property
    @abstractmethod
    def login(self) -> dict[str, str]:
        """The options that name the database."""

    @property
    def job_prefix(self) -> str:
        return "job"

    def options(self, **options: Any) -> dict[str, Any]:
        return {**self.login, **{name.lower(): value for name, value in options.items()}}

    def reader(self, dbtable: str | None = "t", **options: Any) -> _R:
        named = {} if dbtable is None else {"dbtable": dbtable}
        reader, _ = load_reader(self.options(**named, **options))
        assert isinstance(reader, self.reader_type)
        return reader

    def read(self, dbtable: str | None = "t", *, advice: int = 1, **options: Any) -> pa.Table:
        reader = self.reader(dbtable, **options)
        schema = reader.schema()
        return pa.Table.from_batches(
            [batch for split in reader.split(advice) for batch in reader.read(split)], schema
        )

    def writer(self, dbtable: str = "t", **options: Any) -> SqlWriter[Any]:
        writer, _ = load_writer(self.options(dbtable=dbtable, **options))
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
        resume: int | None = None,
    ) -> WriteContext:
        self.jobs += 1
        return WriteContext(
            job or f"{self.job_prefix}-{self.jobs}",
            overwrite=overwrite,
            commit=commit,
            txn=txn,
            stream=stream,
            resume=resume,
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
