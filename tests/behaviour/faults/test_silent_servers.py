"""SIGTERM to a copy whose server answers no more: the program ends, and the next one adds each row once."""

import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from spark_channel.connectors.base import open_sessions
from spark_channel.signals import ending
from tests.cli.test_run import CLI, environment
from tests.servers.mariadb import MariadbServer
from tests.servers.postgres import PostgresServer
from tests.spark.relay import Relay

ROWS = 50_000
ROW = b"xxxxxxxxxx"
OPERATIONS = Path(__file__).resolve().parents[3] / "docs" / "operations.md"


def test_a_command_has_half_a_second_left_of_the_five_that_the_docs_promise() -> None:
    row = next(line for line in OPERATIONS.read_text().splitlines() if "without Spark" in line)
    assert "within 5 s" in row
    assert ending._END_SECONDS + open_sessions._END_SECONDS <= 4.5


@pytest.fixture(scope="module")
def mariadb_server() -> Iterator[MariadbServer]:
    with closing(MariadbServer.create()) as server:
        yield server


@pytest.fixture
def relays() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.mark.full
@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    ("ends", "last", "more"),
    [
        ("source", b"pg_catalog", ()),
        ("source", b"TO STDOUT", ()),
        ("target", ROW, ()),
        ("target", ROW, ("--commit=task",)),
        ("target", b"COMMIT", ()),
        ("source target", ROW, ()),
    ],
)
def test_postgresql(
    postgres_server: PostgresServer,
    relays: ExitStack,
    ends: str,
    last: bytes,
    more: tuple[str, ...],
) -> None:
    server = postgres_server
    server.psql(
        "SET client_min_messages = error; DROP SCHEMA IF EXISTS silent CASCADE; CREATE SCHEMA silent;"
        "CREATE TABLE silent.copy (id bigint, v text);"
        "CREATE TABLE silent.t AS SELECT g::bigint AS id, repeat('x', 100) AS v "
        f"FROM generate_series(1, {ROWS}) g"
    )
    relay = Relay(("127.0.0.1", server.port), last)
    relays.callback(relay.end)

    source, target = (
        _url(server, relay if end in ends else server, f"silent.{table}")
        for end, table in (("source", "t"), ("target", "copy"))
    )
    _ended(relay, source, target, *more)
    assert server.psql("SELECT count(*), count(DISTINCT id) FROM silent.copy") == f"{ROWS}|{ROWS}"
    server.psql("SET client_min_messages = error; DROP SCHEMA silent CASCADE")


@pytest.mark.full
@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    ("ends", "last"),
    [("source", b"FROM `shop`.`silent`"), ("target", ROW), ("target", b"COMMIT")],
)
def test_mariadb(mariadb_server: MariadbServer, relays: ExitStack, ends: str, last: bytes) -> None:
    server = mariadb_server
    server.sql(
        "CREATE OR REPLACE TABLE silent_copy (id BIGINT, v VARCHAR(200)); "
        "CREATE OR REPLACE TABLE silent AS "
        f"SELECT CAST(seq AS SIGNED) AS id, REPEAT('x', 100) AS v FROM seq_1_to_{ROWS}",
        database="shop",
    )
    relay = Relay(("127.0.0.1", server.port), last)
    relays.callback(relay.end)

    source, target = (
        _url(server, relay if end in ends else server, table)
        for end, table in (("source", "silent"), ("target", "silent_copy"))
    )
    _ended(relay, source, target)
    counts = server.sql("SELECT COUNT(*), COUNT(DISTINCT id) FROM silent_copy", database="shop")
    assert counts.split() == [str(ROWS)] * 2
    server.sql("DROP TABLE silent, silent_copy", database="shop")


def _url(
    server: PostgresServer | MariadbServer,
    reached: PostgresServer | MariadbServer | Relay,
    table: str,
) -> str:
    where = server.url.replace(str(server.port), str(reached.port))
    return f"{where}?dbtable={table}&user={server.user}&password={server.password}"


def _ended(relay: Relay, *arguments: str) -> None:
    """End a copy once its server is silent, and run it again once the server speaks."""
    command = [*CLI, "copy", *arguments]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment()
    ) as run:
        until = time.monotonic() + 60
        while not relay.silent.wait(0.1):
            assert run.poll() is None, run.communicate()[0]
            assert time.monotonic() < until, "it never came so far"
        run.send_signal(signal.SIGTERM)
        output, _ = run.communicate(timeout=30)
    assert run.returncode == 143, output
    relay.speak()
    again = subprocess.run(
        command, capture_output=True, text=True, env=environment(), timeout=90, check=False
    )
    assert again.returncode == 0, again.stderr
