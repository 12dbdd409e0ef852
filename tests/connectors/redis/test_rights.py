"""The users of docs/services.md, as they are created there, may do what they are for, and nothing more is needed."""

import re
from pathlib import Path

import pyarrow as pa
import pytest

from spark_channel.connectors import WriteContext
from spark_channel.errors import ChannelError
from tests.connectors.redis.conftest import read, reader, write, writer
from tests.servers.redis import RedisServer

pytestmark = [
    pytest.mark.real_server("Redis", "redis"),
    pytest.mark.real_server("Valkey", "redis"),
]
PAGE = Path(__file__).resolve().parents[3] / "docs" / "services.md"
USERS = {
    line.split()[2]: line
    for line in re.findall(r"^ACL SETUSER .*$", PAGE.read_text(), re.MULTILINE)
}


ROWS = pa.table({"k": ["1", "2"], "v": ["a", "b"], "s": [1.0, 2.0]})
KINDS = ("string", "hash", "list", "set", "zset")


def allow(server: RedisServer, name: str) -> dict[str, str]:
    """Create the user as the page says; returns the login."""
    line = USERS[name]
    if server.kind == "redis":
        line = line.replace(" +hpttl", "")  # which that version does not have, as the page says
    server.client.execute_command(*line.split())
    server.client.execute_command("ACL", "SETUSER", name, ">pw")
    server.client.config_resetstat()
    return {"user": name, "password": "pw"}


def check_used(server: RedisServer, name: str) -> None:
    """Check that each right of the page was used since the user was created."""
    used = {each.removeprefix("cmdstat_") for each in server.client.info("commandstats")}
    rights = set(re.findall(r" \+(\S+)", USERS[name]))
    assert rights - used <= ({"hpttl"} if server.kind == "redis" else set())


def test_the_reader(server: RedisServer) -> None:
    client = server.client
    client.set("user:text", "x")
    client.hset("user:hash", mapping={"x": "1"})
    client.rpush("user:list", "1")
    client.sadd("user:set", "1")
    client.zadd("user:sorted", {"1": 1})
    login = allow(server, "reader")
    found = read(reader(server, keys="user:*", schema="_key STRING, _value STRING", **login))
    assert found.num_rows == len(KINDS)
    check_used(server, "reader")
    for refused in (
        lambda: write(server, ROWS, keyPrefix="user:", **login),
        lambda: client.set("other", "x") and read(reader(server, schema="_value STRING", **login)),
    ):
        with pytest.raises(ChannelError, match=r"check 'user', 'password' and the user's ACL"):
            refused()


def test_the_writer(server: RedisServer) -> None:
    login = allow(server, "writer")
    for kind in KINDS:
        score = {"scoreColumn": "s"} if kind == "zset" else {"valueColumns": "v"}
        options = {**login, "keyPrefix": f"copy:{kind}:", "valueType": kind, **score}
        write(server, ROWS, **options, expireSeconds=1_000)
        write(server, ROWS, **options, overwrite=True)
        write(server, ROWS, **options, commit="job", job=kind)
        write(server, ROWS, **options, commit="job", txn=("nightly", 1), job=f"{kind} again")
        overtaken(server, **options)
    nothing = pa.table({"k": ["1"], "v": pa.nulls(1, pa.string())})
    write(server, nothing, **login, keyPrefix="copy:hash:")
    assert server.client.hgetall("copy:hash:1") == {}
    write(server, ROWS, **login, keyPrefix="copy:set:", writeMode="delete")
    assert server.client.keys("copy:set:*") == []
    check_used(server, "writer")
    with pytest.raises(ChannelError, match="ACL"):
        write(server, ROWS, **login, keyPrefix="other:")


def overtaken(server: RedisServer, **options: str) -> None:
    """Two runs of one transaction, and one that is given up."""
    found = writer(server, **options)
    contexts = [WriteContext(name, commit="job", txn=("late", 2)) for name in ("slow", "later")]
    plans = [found.prepare(context, ROWS.schema) for context in contexts]
    found.abort(plans[1], None)
