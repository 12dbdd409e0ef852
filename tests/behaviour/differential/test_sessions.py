"""Two sessions of one job in different zones: the rows past a moment are the same in each.

Rows are at every half hour around both changes of the hour; the zone of the server and that of the session that reads
are each of `ZONES`.
"""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest

from spark_channel.connectors import load_reader
from spark_channel.connectors.base.feed import FeedOptions
from tests.servers.mariadb import MariadbServer
from tests.servers.postgres import PostgresServer

ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Pacific/Apia")
"""The last one left a whole day out, in 2011."""
_CHANGES = (
    datetime(2024, 3, 31, 1, tzinfo=UTC),
    datetime(2024, 10, 27, 1, tzinfo=UTC),
    datetime(2024, 3, 10, 7, tzinfo=UTC),
    datetime(2024, 11, 3, 6, tzinfo=UTC),
    datetime(2011, 12, 30, 10, tzinfo=UTC),
)
MOMENTS = sorted(
    change + timedelta(minutes=30 * step) for change in _CHANGES for step in range(-3, 4)
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Options = dict[str, Any]


def micros(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(microseconds=1)


def ids(options: Options, where: str) -> list[int]:
    reader, _ = load_reader({**options, "where": where})
    reader.schema()
    return sorted(
        row["id"]
        for split in reader.split(1)
        for batch in reader.read(split)
        for row in batch.to_pylist()
    )


def check_increments(looks: Options, reads: Options, delete: Callable[[int], object]) -> None:
    """Each increment begins behind the one before: together they have every row once."""
    reader, _ = load_reader(looks)
    last = len(MOMENTS)
    for place in range(0, last - 1, 5):
        after = micros(MOMENTS[place])
        for again in (False, True):
            found = reader.increment("at", after, again=again)
            wanted = list(range(place if again else place + 1, last))
            assert ids(reads, found.condition) == wanted, (MOMENTS[place], again)
    for place in range(last - 1, 3, -4):
        found = reader.increment("at", None, again=True)
        assert found.position == micros(MOMENTS[place])
        assert ids(reads, found.condition) == list(range(place + 1)), MOMENTS[place]
        delete(place - 3)


def _delete(server: PostgresServer, place: int) -> None:
    server.psql(f"DELETE FROM zones WHERE id >= {place}")


def values(shown: Callable[[datetime], str]) -> str:
    return ", ".join(f"({number}, {shown(at)})" for number, at in enumerate(MOMENTS))


@pytest.fixture(scope="module")
def zoned(mariadb_server: MariadbServer) -> Iterator[MariadbServer]:
    """A server that knows the zones by their names."""
    mariadb_server.load_zones(ZONES)
    yield mariadb_server
    mariadb_server.sql("SET GLOBAL time_zone = 'SYSTEM'")


@pytest.mark.parametrize("server_zone", ZONES)
@pytest.mark.parametrize("session_zone", [None, *ZONES[1:3]])
def test_mariadb_timestamps(
    zoned: MariadbServer, server_zone: str, session_zone: str | None
) -> None:
    text = values(lambda at: f"'{at:%Y-%m-%d %H:%M:%S}'")
    zoned.sql(
        f"SET GLOBAL time_zone = '{server_zone}'; SET time_zone = '+00:00'; DROP TABLE IF EXISTS shop.zones; "
        "CREATE TABLE shop.zones (id int PRIMARY KEY, at timestamp NOT NULL UNIQUE); "
        f"INSERT INTO shop.zones VALUES {text}"
    )
    url = f"mysql://127.0.0.1:{zoned.port}/shop"
    looks = {"url": url, "user": zoned.user, "password": zoned.password, "dbtable": "zones"}
    reads = looks if session_zone is None else {**looks, "sessiontimezone": session_zone}
    check_increments(
        looks, reads, lambda place: zoned.sql(f"DELETE FROM shop.zones WHERE id >= {place}")
    )


@pytest.mark.parametrize("session_zone", [None, *ZONES[1:3]])
def test_postgresql_timestamps(postgres_server: PostgresServer, session_zone: str | None) -> None:
    for server_zone in ZONES:
        text = values(lambda at: f"'{at:%Y-%m-%d %H:%M:%S}+00'")
        postgres_server.psql(
            f"ALTER ROLE CURRENT_USER SET timezone = '{server_zone}'; DROP TABLE IF EXISTS zones; "
            "CREATE TABLE zones (id int PRIMARY KEY, at timestamptz NOT NULL UNIQUE); "
            f"INSERT INTO zones VALUES {text}"
        )
        try:
            looks = {**postgres_server.login, "dbtable": "zones"}
            reads = looks if session_zone is None else {**looks, "sessiontimezone": session_zone}
            check_increments(looks, reads, partial(_delete, postgres_server))
        finally:
            postgres_server.psql("ALTER ROLE CURRENT_USER RESET timezone; DROP TABLE zones")


@pytest.mark.parametrize("zone", ZONES)
def test_a_position_by_time_is_a_moment(postgres_server: PostgresServer, zone: str) -> None:
    text = values(lambda at: f"'{at:%Y-%m-%d %H:%M:%S}+00'")
    postgres_server.psql(
        f"ALTER ROLE CURRENT_USER SET timezone = '{zone}'; DROP TABLE IF EXISTS zones; "
        "CREATE TABLE zones (id int PRIMARY KEY, at timestamptz NOT NULL UNIQUE); "
        f"INSERT INTO zones VALUES {text}"
    )
    try:
        reader, _ = load_reader({**postgres_server.login, "dbtable": "zones"})
        feed = reader.feed(FeedOptions(cursor_column="at", late_seconds=0))
        (end,) = feed.now()
        for place in range(0, len(MOMENTS), 9):
            (start,) = feed.at(MOMENTS[place])
            found = [
                row["id"]
                for split in feed.changes(start, end)
                for batch in feed.read(split)
                for row in batch.to_pylist()
            ]
            assert sorted(found) == list(range(place, len(MOMENTS)))
    finally:
        postgres_server.psql("ALTER ROLE CURRENT_USER RESET timezone; DROP TABLE zones")
