"""A schema of a real server for each test, and hands to read and write it: psql is the witness."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from spark_channel.connectors import (
    Receipt,
    WriteContext,
    WritePlan,
    Writer,
    load_reader,
    load_writer,
)
from spark_channel.connectors.postgresql import PostgresReader
from spark_channel.connectors.sql import SqlWriter
from spark_channel.options import CommitMode
from tests.servers.postgres import PostgresServer

_numbers = itertools.count(1)


@dataclass
class Pg:
    """One schema, `schema`, in which names without a schema are looked up."""

    server: PostgresServer
    schema: str
    jobs: int = 0

    def psql(self, statement: str) -> str:
        return self.server.psql(f"SET search_path = {self.schema}; {statement}")

    def options(self, **options: Any) -> dict[str, Any]:
        return {**self.server.login, "currentschema": self.schema, **_lowered(options)}

    def reader(self, dbtable: str | None = "t", **options: Any) -> PostgresReader:
        named = {} if dbtable is None else {"dbtable": dbtable}
        reader, _ = load_reader(self.options(**named, **options))
        assert isinstance(reader, PostgresReader)
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
    ) -> WriteContext:
        self.jobs += 1
        name = job or f"{self.schema}-job-{self.jobs}"
        return WriteContext(job=name, overwrite=overwrite, commit=commit, txn=txn, stream=stream)

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

    def staged(self) -> list[str]:
        """Staging tables that there are."""
        found = self.psql(
            f"SELECT tablename FROM pg_tables WHERE schemaname = '{self.schema}' "
            "AND tablename LIKE 'spark\\_channel\\_stage\\_%'"
        )
        return found.split("\n") if found else []

    def kill_sessions(self, like: str = "spark-channel%") -> int:
        """End every session of this project, as an administrator does."""
        return int(
            self.psql(
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
                f"WHERE application_name LIKE '{like}'"
            )
        )


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


def _lowered(options: dict[str, Any]) -> dict[str, Any]:
    return {name.lower(): value for name, value in options.items()}


@contextmanager
def own_schema(server: PostgresServer) -> Iterator[Pg]:
    schema = f"s{next(_numbers)}"
    server.psql(f"CREATE SCHEMA {schema}")
    try:
        yield Pg(server, schema)
    finally:
        server.psql(f"SET client_min_messages = error; DROP SCHEMA {schema} CASCADE")
