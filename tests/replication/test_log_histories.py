"""Random histories of tables that PostgreSQL's log follows: runs are killed, and two run at a time."""

import itertools
import os
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import spark_channel
from spark_channel.replication import ReplicationReport
from tests.servers.postgres import PostgresServer

TABLES = ("plain", '"Odd.Name"', "late")
NAME = "rep_history"


class LoggedHistory:
    """Three tables with keys in schema `rep_h`, and their copies in `rep_hd`."""

    def __init__(self, server: PostgresServer, chance: random.Random) -> None:
        self.server, self.chance = server, chance
        self.numbers = itertools.count(1)
        self.followed = list(TABLES[:2])
        self.columns = itertools.count(1)
        for table in TABLES:
            self._sql(f"CREATE TABLE rep_h.{table} (id int PRIMARY KEY, v text, n int)")
        self._sql(f"CREATE PUBLICATION {NAME} FOR TABLES IN SCHEMA rep_h")

    def _sql(self, statement: str) -> None:
        self.server.psql(statement)

    def file(self) -> dict[str, Any]:
        source = {**self.server.login, "publication": NAME, "slot": NAME}
        source |= {"heartbeatInterval": "5", "maxRetryInterval": "0.2"}
        streams: dict[str, Any] = {f"rep_h.{table.strip(chr(34))}": {} for table in self.followed}
        return {
            "source": source,
            "target": {**self.server.login, "currentSchema": "rep_hd"},
            "defaults": {"mode": "full_then_changes", "object": "{table}"},
            "streams": streams,
        }

    def run(self) -> ReplicationReport:
        return spark_channel.replicate(None, self.file(), once=True)

    def change(self) -> None:
        """A transaction over several tables, which may be rolled back, or a new column."""
        chance, said = self.chance, ["BEGIN"]
        for _ in range(chance.randint(1, 6)):
            table, number = chance.choice(TABLES), next(self.numbers)
            some = f"id % 3 = {chance.randint(0, 2)}"
            what = chance.choice(["insert", "insert", "insert", "update", "key", "delete", "empty"])
            if what == "insert":
                said.append(
                    f"INSERT INTO rep_h.{table} VALUES ({number}, 'v{number}', {number % 5})"
                )
            elif what == "update":
                said.append(f"UPDATE rep_h.{table} SET v = 'u{number}', n = NULL WHERE {some}")
            elif what == "key":
                said.append(
                    f"UPDATE rep_h.{table} SET id = id + 100000 WHERE {some} AND id < 100000"
                )
            elif what == "delete":
                said.append(f"DELETE FROM rep_h.{table} WHERE {some}")
            elif chance.random() < 0.2:
                said.append(f"TRUNCATE rep_h.{table}")
        said.append(chance.choice(["COMMIT", "COMMIT", "COMMIT", "ROLLBACK"]))
        if chance.random() < 0.15:
            # Without a default: the log has no word of the rows that are there, which get it.
            name, table = f"c{next(self.columns)}", chance.choice(TABLES)
            said.append(f"ALTER TABLE rep_h.{table} ADD COLUMN {name} int")
            said.append(f"UPDATE rep_h.{table} SET {name} = 7 WHERE id % 2 = 0")
        self._sql("; ".join(said))

    def step(self) -> None:
        for _ in range(self.chance.randint(1, 3)):
            self.change()
        if self.chance.random() < 0.2 and len(self.followed) == 2:
            self.followed.append(TABLES[2])
        what = self.chance.choice(["whole", "killed", "killed", "two"])
        if what == "whole":
            assert self.run().exit_code == 0
            return
        seconds = self.chance.uniform(0.05, 1.5)
        with beside(self.run, seconds if what == "killed" else 30.0):
            if what == "two":
                self.change()
                self.run()  # one of the two may end with an error: the next run says whether all is there

    def columns_of(self, schema: str, table: str) -> set[str]:
        of = f"table_schema = '{schema}' AND table_name = '{table.strip(chr(34))}'"
        found = f"SELECT column_name FROM information_schema.columns WHERE {of}"
        return set(self.server.psql(found).split())

    def hold(self) -> None:
        report = self.run()
        assert report.exit_code == 0, [each.why for each in report.parked]
        for table in self.followed:
            columns = [self.columns_of(schema, table) for schema in ("rep_h", "rep_hd")]
            for name in columns[0] - columns[1]:  # the target gets a column with its first row
                found = self.server.psql(f"SELECT count({name}) FROM rep_h.{table}").strip()
                assert found == "0", (table, name)
            names = ", ".join(sorted(columns[0] & columns[1]))
            here, there = (f"SELECT {names} FROM {each}.{table}" for each in ("rep_h", "rep_hd"))
            for one, other in ((here, there), (there, here)):
                left = self.server.psql(f"{one} EXCEPT ALL {other}").strip()
                assert not left, (table, left)


@contextmanager
def beside(run: Callable[[], object], seconds: float) -> Iterator[None]:
    """`run` in a process that is killed after so many seconds."""
    child = os.fork()
    if not child:
        code = 1
        try:
            timer = threading.Timer(seconds, os._exit, (9,))
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


@pytest.mark.parametrize(
    "seeds",
    [
        pytest.param(range(1), id="quick"),
        pytest.param(range(1, 201), id="long", marks=pytest.mark.soak),
    ],
)
def test_the_target_holds_what_the_log_says(postgres_server: PostgresServer, seeds: range) -> None:
    clean = (
        "DROP SCHEMA IF EXISTS rep_h CASCADE; DROP SCHEMA IF EXISTS rep_hd CASCADE; "
        f"DROP PUBLICATION IF EXISTS {NAME}; SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots "
        f"WHERE slot_name = '{NAME}' AND active; SELECT pg_drop_replication_slot(slot_name) FROM "
        f"pg_replication_slots WHERE slot_name = '{NAME}'; DROP TABLE IF EXISTS spark_channel_tunnel_clients, "
        "spark_channel_tunnel_channels, spark_channel_tunnels CASCADE"
    )
    for seed in seeds:
        postgres_server.psql(f"{clean}; CREATE SCHEMA rep_h; CREATE SCHEMA rep_hd")
        try:
            history = LoggedHistory(postgres_server, random.Random(seed))
            for _ in range(4):
                history.step()
            history.hold()
        finally:
            postgres_server.psql(clean)
