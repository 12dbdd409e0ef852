"""Random histories of tables that a server's log follows: runs are killed, two run at a time, and tables change."""

import itertools
import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import spark_channel
from spark_channel.replication import ReplicationReport
from spark_channel.replication.config import load_replication
from spark_channel.replication.status import resume_tables
from tests.replication.server_histories import (
    SCHEMA,
    TARGET,
    MariadbSource,
    PostgresSource,
    connect,
)
from tests.servers.mariadb import MariadbServer
from tests.servers.postgres import PostgresServer

TABLES = ("plain", "Odd.Name", "late")
NAME = "rep_history"
_TUNNEL = ["notes", "clients", "channels"]
_CLEAN = (
    f"DROP SCHEMA IF EXISTS {TARGET} CASCADE; DROP PUBLICATION IF EXISTS {NAME}; "
    "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots "
    f"WHERE slot_name = '{NAME}' AND active; SELECT pg_drop_replication_slot(slot_name) FROM "
    f"pg_replication_slots WHERE slot_name = '{NAME}'; DROP TABLE IF EXISTS "
    + "".join(f"spark_channel_tunnel_{each}, " for each in _TUNNEL)
    + "spark_channel_tunnels CASCADE"
)


class LoggedHistory:
    """Three tables with keys in a source, and their copies in PostgreSQL."""

    def __init__(
        self, source: PostgresSource | MariadbSource, target: PostgresServer, chance: random.Random
    ) -> None:
        self.source, self.target, self.chance = source, target, chance
        self.there = connect(target)
        self.numbers = itertools.count(1)
        self.followed = list(TABLES[:2])
        self.names = itertools.count(1)
        self.is_postgres = isinstance(source, PostgresSource)
        for table in TABLES:
            self._create(table)
        if self.is_postgres:
            self._sql(f"CREATE PUBLICATION {NAME} FOR TABLES IN SCHEMA {SCHEMA}")

    def _sql(self, statement: str) -> None:
        self.source.sql(statement)

    def _create(self, table: str) -> None:
        self._sql(f'CREATE TABLE "{table}" (id int PRIMARY KEY, v varchar(40), n int)')

    def file(self) -> dict[str, Any]:
        source = {**self.source.login, "heartbeatInterval": "5", "maxRetryInterval": "0.2"}
        if self.is_postgres:
            source |= {"publication": NAME, "slot": NAME}
        return {
            "source": source,
            "target": {**self.target.login, "currentSchema": TARGET},
            "defaults": {
                "mode": "full_then_changes",
                "object": "{table}",
                "contract": {"data_type": "evolve"},
            },
            "streams": {f"{SCHEMA}.{table}": {} for table in self.followed},
        }

    def run(self) -> ReplicationReport:
        return spark_channel.replicate(None, self.file(), once=True)

    def change(self) -> None:
        """A transaction over several tables, which may be rolled back, or another definition of a table."""
        chance = self.chance
        self._sql("BEGIN")
        for _ in range(chance.randint(1, 6)):
            self._change_rows(chance.choice(TABLES))
        self._sql(chance.choice(["COMMIT", "COMMIT", "COMMIT", "ROLLBACK"]))
        if chance.random() < 0.25:
            self._change_table(chance.choice(TABLES))

    def _change_rows(self, table: str) -> None:
        chance, number = self.chance, next(self.numbers)
        some = f"id % 3 = {chance.randint(0, 2)}"
        what = chance.choice(["insert", "insert", "insert", "update", "key", "delete", "empty"])
        kinds = dict(self.source.columns(table))
        values = {
            name: f"'u{number}'" if kind.startswith(("char", "var", "text")) else str(number % 5)
            for name, kind in kinds.items()
            if name != "id"
        }
        if what == "insert":
            names = ", ".join(["id", *(f'"{name}"' for name in values)])
            given = ", ".join([str(number), *values.values()])
            self._sql(f'INSERT INTO "{table}" ({names}) VALUES ({given})')
        elif what == "update":
            for name, value in values.items():
                new = chance.choice([value, value, "NULL"])
                self._sql(f'UPDATE "{table}" SET "{name}" = {new} WHERE {some}')
        elif what == "key":
            self._sql(f'UPDATE "{table}" SET id = id + 100000 WHERE {some} AND id < 100000')
        elif what == "delete":
            self._sql(f'DELETE FROM "{table}" WHERE {some}')
        elif chance.random() < 0.2 and self.is_postgres:
            self._sql(f'TRUNCATE "{table}"')

    def _change_table(self, table: str) -> None:
        """Add, drop, rename or widen a column, or make the table again."""
        chance, name = self.chance, f"c{next(self.names)}"
        kinds = dict(self.source.columns(table))
        column = chance.choice([*kinds][1:] or [""])
        what = chance.choice(["add", "add", "default", "drop", "rename", "widen", "again"])
        if what in ("add", "default"):
            # Without a default: the log has no word of the rows that are there, which get it.
            default = " DEFAULT 5" if what == "default" else ""
            self._sql(f'ALTER TABLE "{table}" ADD COLUMN {name} int{default}')
            self._sql(f'UPDATE "{table}" SET {name} = 7 WHERE id % 2 = 0')
        elif what == "again":
            self._sql(f'DROP TABLE "{table}"')
            self._create(table)
            self._change_rows(table)
        elif what == "drop" and column:
            self._sql(f'ALTER TABLE "{table}" DROP COLUMN "{column}"')
        elif what == "rename" and column:
            self._sql(f'ALTER TABLE "{table}" RENAME COLUMN "{column}" TO {name}')
        elif what == "widen" and kinds.get(column) in ("int", "integer"):
            self.source.retype(table, column, "INTEGER")

    def step(self) -> str:
        """Some changes and a run; return what kind of run it was."""
        for _ in range(self.chance.randint(1, 3)):
            self.change()
        if self.chance.random() < 0.2 and len(self.followed) == 2:
            self.followed.append(TABLES[2])
        what = self.chance.choice(["whole", "killed", "killed", "two"])
        if what == "whole":
            parked = [each.why for each in self.run().parked]
            assert not parked, parked
            return what
        seconds = self.chance.uniform(0.05, 1.5)
        with beside(self.run, seconds if what == "killed" else 30.0):
            if what == "two":
                self.change()
                self.run()  # one of the two may end with an error: the next run says whether all is there
        return what

    def hold(self) -> int:
        """Check that the target has what the source has; return how many tables were parked before."""
        parked = [each.stream for each in self.run().parked]
        if parked:
            resume_tables(load_replication(self.file()), parked)
        report = self.run()
        assert report.exit_code == 0, [each.why for each in report.parked]
        for table in self.followed:
            here = _rows(self.source.sql(f'SELECT * FROM "{table}"'), self.source.columns(table))
            cursor = self.there.execute(f'SELECT * FROM {TARGET}."{table}"'.encode())
            there = _rows(cursor.fetchall(), [(each.name,) for each in cursor.description or ()])
            names = {each.name for each in cursor.description or ()}
            for row in here:  # the target gets a column with its first row
                assert not {name for name in row if row[name] is not None} - names, (table, row)
            shared = [name for name, _ in self.source.columns(table) if name in names]
            wanted, found = (
                Counter(tuple(row[name] for name in shared) for row in each)
                for each in (here, there)
            )
            assert found == wanted, (table, shared, found - wanted, wanted - found)
        return len(parked)

    def close(self) -> None:
        self.there.close()
        self.source.close()


def _rows(rows: Any, columns: Any) -> list[dict[str, Any]]:
    return [dict(zip((each[0] for each in columns), row, strict=True)) for row in rows]


@contextmanager
def beside(run: Callable[[], object], seconds: float) -> Iterator[None]:
    """`run` in a process that is killed after so many seconds."""
    child = os.fork()
    if not child:
        code = 1
        try:
            timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGKILL))
            timer.daemon = True
            timer.start()
            run()
            code = 0
        finally:
            os._exit(code)
    try:
        yield
    finally:
        os.waitpid(child, 0)


@pytest.mark.parametrize("system", ["postgresql", "mariadb"])
@pytest.mark.parametrize(
    "seeds",
    [
        pytest.param(range(1), id="quick"),
        pytest.param(range(1, 201), id="long", marks=[pytest.mark.soak, pytest.mark.timeout(7200)]),
    ],
)
def test_the_target_holds_what_the_log_says(
    postgres_server: PostgresServer, logging_server: MariadbServer, system: str, seeds: range
) -> None:
    for seed in seeds:
        postgres_server.psql(f"{_CLEAN}; CREATE SCHEMA {TARGET}")
        source = (
            PostgresSource(postgres_server)
            if system == "postgresql"
            else MariadbSource(logging_server)
        )
        history = LoggedHistory(source, postgres_server, random.Random(seed))
        try:
            steps = [history.step() for _ in range(4)]
            parked = history.hold()
            print(f"seed {seed}: {' '.join(steps)}, {parked} parked", flush=True)
        finally:
            history.close()
            postgres_server.psql(_CLEAN)
