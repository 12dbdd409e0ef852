"""A cluster of three members, which share the keys."""

from collections.abc import Iterator

import pyarrow as pa
import pytest

from spark_channel.errors import ChannelError, OptionError
from tests.connectors.redis.conftest import read, reader, write, writer
from tests.servers.redis import PROGRAMS, RedisServer, redis_cluster

pytestmark = [
    pytest.mark.real_server("Redis", "redis"),
    pytest.mark.real_server("Valkey", "redis"),
]
ROWS = pa.table({"k": [f"{n}" for n in range(100)], "v": [f"v{n}" for n in range(100)]})
COLUMNS = "_key STRING, v STRING"


@pytest.fixture(scope="module", params=list(PROGRAMS))
def running_cluster(request: pytest.FixtureRequest) -> Iterator[list[RedisServer]]:
    with redis_cluster(request.param) as members:
        yield members


@pytest.fixture
def cluster(running_cluster: list[RedisServer]) -> list[RedisServer]:
    for member in running_cluster:
        member.client.flushall()
    return running_cluster


def test_keys_of_all_members_are_written_and_read(cluster: list[RedisServer]) -> None:
    write(cluster[0], ROWS, cluster=True)
    assert sum(member.client.dbsize() for member in cluster) == 100
    assert all(member.client.dbsize() for member in cluster)
    write(cluster[1], ROWS, cluster=True, commit="job", stream=("query", 0))  # as Spark asks for it
    found = read(reader(cluster[2], cluster=True, schema=COLUMNS))
    assert sorted(found.column("v").to_pylist()) == sorted(ROWS.column("v").to_pylist())


def test_an_overwrite_removes_the_keys_of_the_prefix_on_all_members(
    cluster: list[RedisServer],
) -> None:
    write(cluster[0], ROWS, cluster=True, keyPrefix="a:")
    write(cluster[0], ROWS, cluster=True, keyPrefix="b:")
    write(cluster[0], ROWS.slice(0, 7), cluster=True, keyPrefix="a:", overwrite=True)
    counts = [
        read(reader(cluster[0], cluster=True, schema=COLUMNS, keys=f"{name}:*")).num_rows
        for name in "ab"
    ]
    assert counts == [7, 100]


def test_a_job_that_publishes_at_once_is_refused(cluster: list[RedisServer]) -> None:
    with pytest.raises(OptionError, match=r"'commit' got 'job'; with 'cluster' it takes task"):
        writer(cluster[0], cluster=True, commit="job")


def test_a_member_is_not_taken_for_a_single_server(cluster: list[RedisServer]) -> None:
    """It would show its own keys as if they were all."""
    for attempt in (
        lambda: write(cluster[0], ROWS),
        lambda: read(reader(cluster[0], schema=COLUMNS)),
        lambda: read(reader(cluster[0])),
    ):
        with pytest.raises(
            ChannelError, match=r"is a member of a Redis Cluster.*'cluster' to true"
        ):
            attempt()


def test_a_login_is_refused_as_what_it_is(cluster: list[RedisServer]) -> None:
    """The driver says that the server is no member of a cluster when a user may not ask for the members."""
    with pytest.raises(ChannelError, match=r"check 'user', 'password'") as met:
        read(reader(cluster[0], cluster=True, password="wr0ng", schema=COLUMNS))
    assert "wr0ng" not in str(met.value)
    for member in cluster:
        member.client.execute_command(
            "ACL", "SETUSER", "clerk", "on", ">pw", "~*", "+@all", "-cluster"
        )
    with pytest.raises(ChannelError, match=r"cluster\|slots.*allow CLUSTER SLOTS and COMMAND"):
        write(cluster[0], ROWS, cluster=True, user="clerk", password="pw")
