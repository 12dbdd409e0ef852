"""Fields of a hash that have a time to live of their own: Redis since 7.4, Valkey since 9.0."""

import json
from typing import Any

import pyarrow as pa
import pytest

from spark_channel.errors import SourceError
from tests.connectors.redis.conftest import read, reader, write
from tests.servers.redis import RedisServer

pytestmark = [
    pytest.mark.real_server("Redis", "redis"),
    pytest.mark.real_server("Valkey", "redis"),
    pytest.mark.parametrize("running", ["newest redis", "valkey"], indirect=True),
]
HOUR = 3_600_000


@pytest.fixture
def expiring(server: RedisServer) -> RedisServer:
    server.client.hset("kept", mapping={"name": "ann", "token": "t0"})
    server.client.hset("session", mapping={"name": "bob", "token": "t1", "seen": "9"})
    server.client.execute_command("HPEXPIRE", "session", HOUR, "FIELDS", 2, "token", "seen")
    return server


def test_their_times_are_a_column(expiring: RedisServer) -> None:
    for options in ({}, {"schema": "_key STRING, name STRING, _field_ttl_ms STRING"}):
        rows = {row["_key"]: row for row in read(reader(expiring, **options)).to_pylist()}
        times = json.loads(rows["session"]["_field_ttl_ms"])
        assert sorted(times) == ["seen", "token"]
        assert all(HOUR - 60_000 < each <= HOUR for each in times.values())
        assert rows["kept"]["_field_ttl_ms"] is None
    assert rows["session"]["name"] == "bob"


@pytest.mark.parametrize("columns", ["_key STRING, token STRING", "_key STRING, _value STRING"])
def test_such_a_field_is_refused_without_that_column(expiring: RedisServer, columns: str) -> None:
    """A copy would keep for ever what expires."""
    message = (
        r"key b'session': field '(token|seen)' expires in \d+ ms.*_field_ttl_ms STRING.*'schema'"
    )
    with pytest.raises(SourceError, match=message):
        read(reader(expiring, schema=columns))


def test_other_fields_are_read_as_ever(expiring: RedisServer) -> None:
    rows = read(reader(expiring, schema="_key STRING, name STRING")).to_pylist()
    assert sorted(row["name"] for row in rows) == ["ann", "bob"]


def test_one_that_the_sample_did_not_have_is_refused(expiring: RedisServer) -> None:
    expiring.client.hpersist("session", "token", "seen")
    found = reader(expiring)
    assert "_field_ttl_ms" not in found.schema().names
    expiring.client.hpexpire("session", HOUR, "token")
    with pytest.raises(SourceError, match=r"key b'session': field 'token' expires in"):
        read(found)


def test_a_field_that_expires_meanwhile_is_left_out(
    expiring: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Removed between the two questions that a read asks."""
    import redis

    found = reader(expiring, schema="_key STRING, name STRING, token STRING, _field_ttl_ms STRING")
    found.schema()
    original: Any = redis.client.Pipeline.execute_command

    def expire(self: Any, *command: Any, **named: Any) -> Any:
        if command[0] == "HPTTL":
            expiring.client.hdel("session", "token")
            expiring.client.delete("kept")
        return original(self, *command, **named)

    monkeypatch.setattr(redis.client.Pipeline, "execute_command", expire)
    (row,) = read(found).to_pylist()
    assert (row["_key"], row["name"], row["token"]) == ("session", "bob", None)
    assert list(json.loads(row["_field_ttl_ms"])) == ["seen"]


@pytest.mark.parametrize("commit", ["task", "job"])
def test_a_write_keeps_the_times_of_fields_that_it_does_not_write(
    expiring: RedisServer, commit: str
) -> None:
    rows = pa.table({"k": ["session"], "name": ["carl"], "token": ["t2"]})
    write(expiring, rows, commit=commit)
    times = expiring.client.hpttl("session", "token", "seen", "name")
    assert times[0] == times[2] == -1
    assert times[1] > 0
