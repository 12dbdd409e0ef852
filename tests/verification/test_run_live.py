"""A source that is written to while a tunnel follows it into the target: no row is reported for its lag."""

import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

import pytest

import spark_channel
from spark_channel.clock import SystemClock
from spark_channel.local import local_engine
from spark_channel.planning import Endpoint, TransferSpec
from spark_channel.verification import verify_with
from spark_channel.verification.report import VerifyReport, VerifySettings
from tests.cli.test_run import environment
from tests.servers.postgres import PostgresServer, programs

PER_SECOND = 500
ROWS = 4_000
NAME = "ver_live"
PLANTED = """UPDATE ver_dw.orders SET v = 'planted' WHERE id = -1; DELETE FROM ver_dw.orders WHERE id = -2;
 INSERT INTO ver_dw.orders VALUES (-101, 'planted', 1)"""
FOUND = {-1: "different", -2: "missing", -101: "extra"}
CLEAN = (
    "DROP SCHEMA IF EXISTS ver_live CASCADE; DROP SCHEMA IF EXISTS ver_dw CASCADE; "
    f"DROP PUBLICATION IF EXISTS {NAME}; SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots "
    f"WHERE slot_name = '{NAME}' AND active; SELECT pg_drop_replication_slot(slot_name) FROM "
    f"pg_replication_slots WHERE slot_name = '{NAME}'; DROP TABLE IF EXISTS spark_channel_tunnel_places, "
    "spark_channel_tunnel_notes, spark_channel_tunnel_clients, spark_channel_tunnel_channels, "
    "spark_channel_tunnels CASCADE"
)


class World:
    """Table `orders` and its copy. Keys below 0 are not changed by the application."""

    def __init__(self, server: PostgresServer, seed: int) -> None:
        self.server, self.chance, self.number = server, random.Random(seed), 0
        server.psql(
            "CREATE SCHEMA ver_live; CREATE SCHEMA ver_dw;"
            "CREATE TABLE ver_live.orders (id int PRIMARY KEY, v text, n int); INSERT INTO ver_live.orders "
            f"SELECT n, 'first', n FROM generate_series(-50, {ROWS}) n; "
            f"CREATE PUBLICATION {NAME} FOR TABLE ver_live.orders"
        )

    @property
    def file(self) -> dict[str, Any]:
        source = {**self.server.login, "publication": NAME, "slot": NAME}
        return {
            "source": {**source, "heartbeatInterval": "5", "maxRetryInterval": "0.2"},
            "target": {**self.server.login, "currentSchema": "ver_dw"},
            "defaults": {"mode": "full_then_changes", "object": "{table}"},
            "streams": {"ver_live.orders": {}},
        }

    def follow(self) -> None:
        """Bring the target up to now."""
        report = spark_channel.replicate(None, self.file, once=True)
        assert report.exit_code == 0, [each.why for each in report.parked]

    def changes(self, count: int) -> Iterator[str]:
        """Statements, none of which writes what was there before."""
        for _ in range(count):
            self.number += 1
            key, what = self.chance.randint(1, ROWS + 500), self.chance.random()
            if what < 0.2:
                yield f"DELETE FROM ver_live.orders WHERE id = {key};"
            else:
                yield (
                    f"INSERT INTO ver_live.orders VALUES ({key}, 'v{self.number}', {self.number}) "
                    "ON CONFLICT (id) DO UPDATE SET v = excluded.v, n = excluded.n;"
                )

    def change(self, count: int) -> None:
        self.server.psql("\n".join(self.changes(count)))

    def verify(self, clock: SystemClock) -> VerifyReport:
        source, target = (
            {**self.server.login, "currentSchema": schema, "dbtable": "orders"}
            for schema in ("ver_live", "ver_dw")
        )
        spec = TransferSpec(Endpoint.parse("reader", source), Endpoint.parse("writer", target))
        settings = VerifySettings(clock=clock, copied_only=True)
        with local_engine(served=False) as engine:
            return verify_with(engine, spec, {}, settings)


class Sleeps(SystemClock):
    """A clock on which a wait takes no time and calls `during`, with its seconds."""

    def __init__(self, during: Callable[[float], None]) -> None:
        self.during = during

    def sleep(self, seconds: float) -> None:
        self.during(seconds)


@pytest.fixture
def server(postgres_server: PostgresServer) -> Iterator[PostgresServer]:
    postgres_server.psql(CLEAN)
    yield postgres_server
    postgres_server.psql(CLEAN)


def kinds(report: VerifyReport) -> dict[int, str]:
    return {each.key["id"]: each.kind for each in report.differences}


def test_planted_differences_are_found_and_no_others_while_a_tunnel_lags(
    server: PostgresServer,
) -> None:
    world = World(server, 1)
    world.follow()
    server.psql(PLANTED)
    world.change(PER_SECOND)

    def live(seconds: float) -> None:
        world.change(int(PER_SECOND * min(seconds, 2)))
        world.follow()
        world.change(PER_SECOND)  # the target lags by a second

    report = world.verify(Sleeps(live))
    assert kinds(report) == FOUND, report
    assert (report.looks, report.different, report.missing, report.extra) == (4, 1, 1, 1)
    assert report.settled > 100


@contextmanager
def written(world: World, path: Path) -> Iterator[None]:
    """500 changes a second, each in its own transaction, and a process that follows them into the target."""
    path.write_text(json.dumps(world.file))
    stopped = threading.Event()
    with ExitStack() as held:
        # Fmt: skip.
        follower = subprocess.Popen(
            [sys.executable, "-m", "spark_channel.cli", "replicate", str(path)],
            env=environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        held.callback(follower.wait, 30)
        held.callback(follower.terminate)
        where = ["-h", str(world.server.directory), "-p", str(world.server.port)]
        command = [str(programs() / "psql"), "-Xq", *where, "-U", world.server.user, "postgres"]
        client = held.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE))
        assert client.stdin is not None

        def write(pipe: IO[bytes]) -> None:
            began, number = time.monotonic(), 0
            while not stopped.wait(max(0.0, began + number / PER_SECOND - time.monotonic())):
                pipe.write(("\n".join(world.changes(10)) + "\n").encode())
                pipe.flush()
                number += 10

        writer = threading.Thread(target=write, args=(client.stdin,))
        writer.start()
        held.callback(writer.join)
        held.callback(stopped.set)
        yield
        assert follower.poll() is None, "the follower has ended"


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(20))
def test_nothing_but_planted_differences_is_found_beside_500_changes_a_second(
    server: PostgresServer, tmp_path: Path, seed: int
) -> None:
    world = World(server, seed)
    world.follow()
    server.psql(PLANTED)
    began = time.monotonic()
    with written(world, tmp_path / "live.yml"):
        report = world.verify(SystemClock())
    seconds = time.monotonic() - began
    print(f"{world.number / seconds:.0f} changes/s; {report}")
    assert world.number > 0.8 * PER_SECOND * seconds
    assert kinds(report) == FOUND, report
    assert (report.different, report.missing, report.extra) == (1, 1, 1)
    world.follow()
    report = world.verify(Sleeps(lambda seconds: None))
    assert (kinds(report), report.changing, report.settled) == (FOUND, 0, 0)
