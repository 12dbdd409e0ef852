"""An empty database on the session's server, and hands to read and write it: `Shop.sql` is the server's client."""

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from spark_channel.connectors.mysql import MysqlReader
from spark_channel.connectors.mysql.dialect import state_of, table_named
from tests.connectors.sql.one_database import OneDatabase
from tests.servers.mariadb import MariadbServer


@dataclass
class Shop(OneDatabase[MysqlReader]):
    server: MariadbServer
    database: str
    reader_type = MysqlReader

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

    def state(self, name: str = "t") -> str:
        """What tells the table from another one of its name."""
        with self.reader(None, query="SELECT 1").connect("plan") as session:
            table = table_named(session, self.database, name)
            assert table is not None
            return state_of(session, table)

    def staged(self) -> list[str]:
        found = self.rows(f"SHOW TABLES FROM {self.database} LIKE 'spark\\_channel\\_stage%'")
        return [name for (name,) in found]


def transactions(shop: Shop) -> list[tuple[str, ...]]:
    """(State, statement) of each open transaction, as of now: findings/mariadb-polled-lock-tables-stand-still.sh."""
    time.sleep(0.12)
    return shop.rows("SELECT trx_state, trx_query FROM information_schema.innodb_trx")


def until_a_lock_waits(shop: Shop, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not any(state == "LOCK WAIT" for state, _ in transactions(shop)):
        assert time.monotonic() < end, "no session waits for a lock"


@contextmanager
def own_shop(server: MariadbServer) -> Iterator[Shop]:
    database = f"shop_{uuid.uuid4().hex[:12]}"
    server.sql(f"CREATE DATABASE {database} CHARACTER SET utf8mb4")
    try:
        yield Shop(server, database)
    finally:
        server.sql(f"DROP DATABASE {database}")
