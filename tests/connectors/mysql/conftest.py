"""An empty database on the session's server, and hands to read and write it: `Shop.sql` is the server's client."""

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
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
from spark_channel.connectors.mysql import MysqlReader, MysqlWriter
from spark_channel.options import CommitMode
from tests.servers.go_mysql import GoMysqlServer
from tests.servers.mariadb import BINLOG, MariadbServer


@dataclass
class Shop:
    server: MariadbServer | GoMysqlServer
    database: str
    jobs: int = 0

    @property
    def login(self) -> dict[str, str]:
        url = f"mysql://127.0.0.1:{self.server.port}/{self.database}"
        return {"url": url, "user": self.server.user, "password": self.server.password}

    def sql(self, statement: str) -> str:
        return self.server.sql(statement, database=self.database)

    def rows(self, statement: str) -> list[tuple[str, ...]]:
        text = self.sql(statement)
        return [tuple(line.split("\t")) for line in text.split("\n")] if text else []

    def reader(self, dbtable: str | None = "t", **options: Any) -> MysqlReader:
        named = {} if dbtable is None else {"dbtable": dbtable}
        reader, _ = load_reader({**self.login, **named, **lowered(options)})
        assert isinstance(reader, MysqlReader)
        return reader

    def read(self, dbtable: str | None = "t", *, advice: int = 1, **options: Any) -> pa.Table:
        reader = self.reader(dbtable, **options)
        schema = reader.schema()
        return pa.Table.from_batches(
            [batch for split in reader.split(advice) for batch in reader.read(split)], schema
        )

    def writer(self, dbtable: str = "t", **options: Any) -> MysqlWriter:
        writer, _ = load_writer({**self.login, "dbtable": dbtable, **lowered(options)})
        assert isinstance(writer, MysqlWriter)
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
        job = job or f"job-{self.jobs}"
        return WriteContext(
            job, commit=commit, overwrite=overwrite, txn=txn, stream=stream, resume=resume
        )

    def write(
        self,
        *tables: pa.Table,
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
        found = self.rows(f"SHOW TABLES FROM {self.database} LIKE 'spark\\_channel\\_stage%'")
        return [name for (name,) in found]


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
def shop(mariadb_server: MariadbServer) -> Iterator[Shop]:
    database = f"shop_{uuid.uuid4().hex[:12]}"
    mariadb_server.sql(f"CREATE DATABASE {database} CHARACTER SET utf8mb4")
    yield Shop(mariadb_server, database)
    mariadb_server.sql(f"DROP DATABASE {database}")


@pytest.fixture(scope="session")
def logging_server() -> Iterator[MariadbServer]:
    """A server with a binary log from which tables can be followed."""
    server = MariadbServer.create(**BINLOG)
    yield server
    server.close()


@pytest.fixture
def logged(logging_server: MariadbServer) -> Iterator[Shop]:
    """A `Shop` on that server."""
    database = f"shop_{uuid.uuid4().hex[:12]}"
    logging_server.sql(f"CREATE DATABASE {database} CHARACTER SET utf8mb4")
    yield Shop(logging_server, database)
    logging_server.sql(f"DROP DATABASE {database}")
