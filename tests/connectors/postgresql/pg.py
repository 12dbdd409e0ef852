"""A schema of a real server for each test, and hands to read and write it: psql is the witness."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from spark_channel.connectors.postgresql import PostgresReader
from tests.connectors.sql.one_database import OneDatabase
from tests.servers.postgres import PostgresServer

_numbers = itertools.count(1)


@dataclass
class Pg(OneDatabase[PostgresReader]):
    """One schema, `schema`, in which names without a schema are looked up."""

    server: PostgresServer
    schema: str
    reader_type = PostgresReader

    def psql(self, statement: str) -> str:
        return self.server.psql(f"SET search_path = {self.schema}; {statement}")

    @property
    def login(self) -> dict[str, str]:
        return {**self.server.login, "currentschema": self.schema}

    @property
    def job_prefix(self) -> str:
        return f"{self.schema}-job"

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


@contextmanager
def own_schema(server: PostgresServer) -> Iterator[Pg]:
    schema = f"s{next(_numbers)}"
    server.psql(f"CREATE SCHEMA {schema}")
    try:
        yield Pg(server, schema)
    finally:
        server.psql(f"SET client_min_messages = error; DROP SCHEMA {schema} CASCADE")
