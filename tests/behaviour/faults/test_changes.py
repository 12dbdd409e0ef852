"""Random histories of a table, its copiers and servers: the copy is equal, and each event arrives once."""

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers.mariadb import BINLOG, MariadbServer
from tests.servers.postgres import PostgresServer
from tests.tunnel.changes import History, MariadbSource, PostgresSource, Source, StreamedSource

CHANGES = 10_000
KILLS = ("copier", "connection", "server", "copier")


@pytest.fixture(scope="module")
def binlog_server() -> Iterator[MariadbServer]:
    server = MariadbServer.create(**BINLOG)
    yield server
    server.close()


def source_of(kind: str, request: pytest.FixtureRequest, name: str) -> Source:
    if kind == "postgresql":
        return PostgresSource(request.getfixturevalue("postgres_server"), name)
    if kind == "streamed":
        return StreamedSource(request.getfixturevalue("postgres_server"), name)
    return MariadbSource(request.getfixturevalue("binlog_server"), name)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["postgresql", "streamed", "mariadb"])
def test_a_copy_of_random_changes_is_equal_and_has_each_event_once(
    kind: str, request: pytest.FixtureRequest, postgres_server: PostgresServer, tmp_path: Path
) -> None:
    source = source_of(kind, request, "history")
    try:
        found = History(source, postgres_server, tmp_path, 1, CHANGES, KILLS).play()
    finally:
        source.close()
    assert found["changes"] >= CHANGES
    assert found["events"] >= CHANGES
    assert found["read"] > 0


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("seed", range(2, 6))
@pytest.mark.parametrize("kind", ["postgresql", "streamed", "mariadb"])
def test_copies_of_a_million_random_changes_are_equal(
    kind: str,
    seed: int,
    request: pytest.FixtureRequest,
    postgres_server: PostgresServer,
    tmp_path: Path,
) -> None:
    """`SPARK_CHANNEL_CHANGES` for another number of changes."""
    changes = int(os.environ.get("SPARK_CHANNEL_CHANGES", "1000000"))
    chance = random.Random(seed)
    kills = [
        chance.choice(("copier", "copier", "connection", "connection", "server")) for _ in range(50)
    ]
    source = source_of(kind, request, f"history_{seed}")
    try:
        history = History(
            source,
            postgres_server,
            tmp_path,
            seed,
            changes,
            kills,
            base=changes // 10,
            truncates=6,
            ranges=max(500, changes // 200),
            added=("i1 integer", "t1 varchar(20)", "i2 integer"),
        )
        print(kind, seed, history.play())
    finally:
        source.close()
