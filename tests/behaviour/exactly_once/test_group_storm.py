"""Groups of small tables that real processes replicate, while these are killed, stopped, doubled, cut off and refused.

The same file is run again, at once, until a run succeeds. Then each table has the rows of its source, each of them
once, nothing is staged, and what was refused was named.
"""

import multiprocessing
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import pytest

import spark_channel
from spark_channel.connectors.sql.write.group_claims import GroupClaims
from spark_channel.transfers import small_tables
from tests.servers.mariadb import MariadbServer, MysqlServer
from tests.servers.postgres import PostgresServer

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="sends signals")

_TABLES = 6
_MOST_RUNS = 8
_SECONDS = 120.0
_STEPS = ("looked", "claims", "claimed", "noting", "noted")
"""A group's tables were read, its claims are taken, were taken, rows are noted as published, were noted."""


@dataclass(frozen=True)
class Shop:
    """A server with a schema (or database) `src`, and its copy `dw`. `sql` runs statements as an independent client."""

    login: dict[str, Any]
    sql: Callable[[str], str]
    end_groups: Callable[[], object]
    """Ends the sessions that write."""
    ends: Callable[[], tuple[dict[str, Any], dict[str, Any]]]
    reset: str
    staged: str

    def file(self, mode: str) -> dict[str, Any]:
        source, target = self.ends()
        defaults: dict[str, Any] = {"object": "{table}"}
        if mode == "incremental":
            defaults |= {"mode": mode, "update_key": "id", "late_seconds": 0}
        return {
            "source": source,
            "target": target,
            "defaults": defaults,
            "streams": {"src.*": {}},
            "parallel": 1,
        }


def _postgresql(server: PostgresServer) -> Shop:
    def end() -> None:
        server.psql(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
            "WHERE application_name LIKE 'spark-channel%' AND application_name NOT LIKE '% read'"
        )

    return Shop(
        server.login,
        server.psql,
        end,
        lambda: (server.login, {**server.login, "currentSchema": "dw"}),
        "SET client_min_messages = error; DROP SCHEMA IF EXISTS src CASCADE; DROP SCHEMA IF EXISTS dw CASCADE; "
        "CREATE SCHEMA src; CREATE SCHEMA dw;",
        "SELECT tablename FROM pg_tables WHERE tablename LIKE 'spark\\_channel\\_st%' AND schemaname = 'dw'",
    )


def _mysql(server: MariadbServer) -> Shop:
    url = server.url.rpartition("/")[0]

    def end() -> None:
        sessions = f"SELECT id FROM information_schema.processlist WHERE user = '{server.user}' AND db = 'dw'"
        for session in server.sql(sessions).split():
            with suppress(RuntimeError):  # it has ended meanwhile
                server.sql(f"KILL {session}")

    return Shop(
        server.login,
        server.sql,
        end,
        lambda: ({**server.login, "url": f"{url}/src"}, {**server.login, "url": f"{url}/dw"}),
        "DROP DATABASE IF EXISTS src; DROP DATABASE IF EXISTS dw; CREATE DATABASE src; CREATE DATABASE dw;",
        "SELECT table_name FROM information_schema.tables WHERE table_schema = 'dw' "
        "AND table_name LIKE 'spark\\_channel\\_st%'",
    )


@pytest.fixture(
    params=[
        "postgresql",
        "mariadb",
        pytest.param("mysql", marks=pytest.mark.soak),
    ]
)
def shop(request: pytest.FixtureRequest) -> Iterator[Shop]:
    if request.param == "mysql":
        with closing(MysqlServer.create()) as mysql:
            yield _mysql(mysql)
        return
    if request.param == "mariadb":
        made = _mysql(request.getfixturevalue("mariadb_server"))
        gone = "DROP DATABASE IF EXISTS src; DROP DATABASE IF EXISTS dw"
    else:
        made = _postgresql(request.getfixturevalue("postgres_server"))
        gone = "DROP SCHEMA IF EXISTS src CASCADE; DROP SCHEMA IF EXISTS dw CASCADE"
    yield made
    made.sql(gone)


class _Run:
    """A process that replicates the file, and says where its groups are."""

    def __init__(self, file: dict[str, Any]) -> None:
        context = multiprocessing.get_context("forkserver")
        self._reports, theirs = context.Pipe(duplex=False)
        self.process = context.Process(target=_replicate, args=(file, theirs), daemon=False)
        self.process.start()
        theirs.close()
        self.steps: list[str] = []
        self.parked: list[tuple[str, str]] | None = None
        """Names of the tables that were parked, and why; None = it has not ended, or by an error."""

    def reach(self, step: str) -> bool:
        return self._listen(lambda: step in self.steps)

    def send(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):  # it has ended
            os.kill(self.process.pid or 0, number)

    def end(self) -> list[tuple[str, str]] | None:
        self._listen(lambda: False)
        self.process.join(_SECONDS)
        assert self.process.exitcode is not None, f"a run hangs: {self.steps}"
        return self.parked

    def _listen(self, until: Callable[[], bool]) -> bool:
        end = time.monotonic() + _SECONDS
        while not until():
            if not self._reports.poll(max(0.0, end - time.monotonic())):
                return False
            try:
                report = self._reports.recv()
            except (EOFError, OSError):
                return until()
            if isinstance(report, str):
                self.steps.append(report)
            else:
                self.parked = report
        return True


def _replicate(file: dict[str, Any], reports: Connection) -> None:
    def told(owner: Any, name: str, before: str, after: str = "") -> None:
        method = getattr(owner, name)

        def telling(*arguments: Any, **more: Any) -> Any:
            reports.send(before)
            result = method(*arguments, **more)
            if after:
                reports.send(after)
            return result

        setattr(owner, name, telling)

    told(small_tables, "_pay", "looked")
    told(GroupClaims, "take_all", "claims", "claimed")
    told(GroupClaims, "publish_all", "noting", "noted")
    report = spark_channel.replicate(None, file)
    reports.send([(table.object, str(table.why)) for table in report.parked])
    os._exit(0)


@dataclass
class _Storm:
    shop: Shop
    chance: random.Random
    mode: str = "full"
    last: int = 20
    happened: Counter[str] = field(default_factory=Counter)
    runs: list[_Run] = field(default_factory=list)

    @property
    def kinds(self) -> list[Callable[[], None]]:
        return [
            self.killed,
            self.stopped,
            self.twice_at_once,
            self.sessions_ended,
            self.one_is_refused,
        ]

    def begin(self) -> _Run:
        run = _Run(self.shop.file(self.mode))
        self.runs.append(run)
        return run

    def later(self, run: _Run) -> None:
        run.reach(self.chance.choice(_STEPS))
        time.sleep(self.chance.choice([0.0, self.chance.uniform(0, 0.03)]))

    def finish(self) -> None:
        for _ in range(_MOST_RUNS):
            if self.begin().end() == []:
                return
        raise AssertionError(f"not replicated in {_MOST_RUNS} runs: {self.runs[-1].parked}")

    # What goes wrong.

    def killed(self) -> None:
        run = self.begin()
        self.later(run)
        run.send(signal.SIGKILL)
        self.finish()

    def stopped(self) -> None:
        """It goes on while another run publishes rows that were added, or has published them: its own are older."""
        run = self.begin()
        self.later(run)
        run.send(signal.SIGSTOP)
        self.add()
        other = self.begin()
        if is_later := self.chance.random() < 0.5:
            is_later = other.end() == []
        run.send(signal.SIGCONT)
        for each in (run, other):
            each.end()
        assert not is_later or self.differing() == [], "older rows have replaced newer ones"
        self.finish()

    def twice_at_once(self) -> None:
        first = self.begin()
        self.later(first)
        second = self.begin()
        for each in (first, second):
            each.end()
        self.finish()

    def sessions_ended(self) -> None:
        run = self.begin()
        self.later(run)
        self.shop.end_groups()
        run.end()
        self.finish()

    def one_is_refused(self) -> None:
        """By a rule of the target that the rows break."""
        table = self.chance.choice(self.names)
        self.finish()
        self.add()
        before = self.rows("dw", table)
        self.shop.sql(f"ALTER TABLE dw.{table} ADD CONSTRAINT never CHECK (id <= {before[-1]})")
        parked = self.begin().end()
        assert parked is not None
        assert [name for name, _ in parked] == [table], parked
        assert all(table in why for _, why in parked), parked
        assert self.rows("dw", table) == before
        assert self.differing() == [table]
        self.shop.sql(f"ALTER TABLE dw.{table} DROP CONSTRAINT never")
        self.finish()

    # The tables.

    @property
    def names(self) -> list[str]:
        return [f"t{number}" for number in range(_TABLES)]

    def new(self) -> None:
        self.last = 20
        values = ", ".join(f"({number}, 'row')" for number in range(1, self.last + 1))
        self.shop.sql(
            self.shop.reset
            + "".join(
                f"CREATE TABLE src.{name} (id INT PRIMARY KEY, note VARCHAR(20));"
                f"INSERT INTO src.{name} VALUES {values};"
                for name in self.names
            )
        )

    def add(self) -> None:
        self.last += 1
        new = [f"INSERT INTO src.{name} VALUES ({self.last}, 'new')" for name in self.names]
        self.shop.sql("; ".join(new))

    def rows(self, schema: str, table: str) -> Sequence[int]:
        return [
            int(line)
            for line in self.shop.sql(f"SELECT id FROM {schema}.{table} ORDER BY id").split()
        ]

    def differing(self) -> list[str]:
        return [name for name in self.names if self.rows("dw", name) != self.rows("src", name)]

    def strike(self, kind: Callable[[], None]) -> None:
        """First into new tables, or into those that are there."""
        self.runs = []
        if self.chance.random() < 0.5:
            self.mode = self.chance.choice(["full", "incremental"])
            self.new()
        else:
            self.add()
        kind()
        for run in self.runs:
            run.end()
        story = f"{kind.__name__} {self.mode} {[(run.steps, run.parked) for run in self.runs]}"
        assert self.differing() == [], story
        assert self.shop.sql(self.shop.staged).split() == [], story
        self.happened[kind.__name__] += 1


def _rage(shop: Shop, faults: int, seed: int) -> Counter[str]:
    storm = _Storm(shop, random.Random(seed))
    storm.new()
    left: list[Callable[[], None]] = []
    for _ in range(faults):
        left = left or storm.chance.sample(storm.kinds, len(storm.kinds))
        storm.strike(left.pop())
    return storm.happened


@pytest.mark.full
@pytest.mark.timeout(600)
def test_each_fault_of_a_group_once(shop: Shop) -> None:
    assert _rage(shop, 5, seed=1).total() == 5


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_two_hundred_faults_of_groups(shop: Shop) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    assert _rage(shop, 200, seed).total() == 200
