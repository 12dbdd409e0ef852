"""An empty database on the session's server, and hands to read and write it: `Shop.sql` is the server's client."""

import time
import uuid
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
from spark_channel.connectors.mysql import MysqlReader
from spark_channel.connectors.sql import SqlWriter
from spark_channel.options import CommitMode
from tests.servers.mariadb import MariadbServer


@dataclass
class Shop:
    server: MariadbServer
    database: str
    jobs: int = 0

    @property
    def login(self) -> dict[str, str]:
        url = f"mysql://127.0.0.1:{self.server.port}/{self.database}"
        login = {"url": url, "user": self.server.user, "password": self.server.password}
        return {**login, **self.server.trust}

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

    def writer(self, dbtable: str = "t", **options: Any) -> SqlWriter[Any]:
        writer, _ = load_writer({**self.login, "dbtable": dbtable, **lowered(options)})
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


def transactions(shop: Shop) -> list[tuple[str, ...]]:
    """(State, statement) of each open transaction, as of now: findings/mariadb-polled-lock-tables-stand-still.sh."""
    time.sleep(0.12)
    return shop.rows("SELECT trx_state, trx_query FROM information_schema.innodb_trx")


def until_a_lock_waits(shop: Shop, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not any(state == "LOCK WAIT" for state, _ in transactions(shop)):
        assert time.monotonic() < end, "no session waits for a lock"


def lowered(options: dict[str, Any]) -> dict[str, Any]:
    return {name.lower(): value for name, value in options.items()}


@contextmanager
def own_shop(server: MariadbServer) -> Iterator[Shop]:
    database = f"shop_{uuid.uuid4().hex[:12]}"
    server.sql(f"CREATE DATABASE {database} CHARACTER SET utf8mb4")
    try:
        yield Shop(server, database)
    finally:
        server.sql(f"DROP DATABASE {database}")
