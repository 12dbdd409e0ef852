"""Redis and Valkey, against servers that the tests start."""

import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("redis")

from spark_channel.connectors import FetchSize, WriteContext
from spark_channel.connectors.base.overlap import MOST_COUNTED
from spark_channel.datax import load_job
from spark_channel.errors import (
    ChannelError,
    CommitError,
    OptionError,
    SourceError,
    SupersededError,
    TargetError,
)
from spark_channel.testing import reader_conformance
from tests.behaviour.datax.test_end_to_end import carry_out
from tests.connectors.redis.conftest import read, reader, stage, write, writer
from tests.datax.moved import move
from tests.datax.small_jobs import make_job
from tests.servers.redis import PASSWORD, RedisServer

pytestmark = [
    pytest.mark.real_server("Redis", "redis"),
    pytest.mark.real_server("Valkey", "redis"),
]

MOMENT = datetime(2024, 1, 31, 8, 30, tzinfo=UTC)


def test_the_reader_keeps_its_promises(server: RedisServer) -> None:
    for n in range(40):
        server.client.hset(f"user:{n}", mapping={"n": n, "name": f"ä{n}"})
    server.client.set("other", "x")
    expected = pa.table(
        {
            "_key": [f"user:{n}" for n in range(40)],
            "n": range(40),
            "name": [f"ä{n}" for n in range(40)],
        }
    )
    schema = "_key STRING, n BIGINT, name STRING"
    reader_conformance(
        lambda: reader(server, schema=schema, keys="user:*"), expected=expected, advice=2
    )


@pytest.mark.lowest
def test_values_of_every_type(server: RedisServer) -> None:
    client = server.client
    client.set("a", "text", px=3_600_000)
    client.hset("b", mapping={"x": "1"})
    client.rpush("c", "1", "2")
    client.sadd("d", "n", "m")
    client.zadd("e", {"m": 1.5})
    found = reader(server, schema="_key STRING, _type STRING, _ttl_ms BIGINT, _value STRING, x INT")
    found.fetch_size = FetchSize(rows=2)
    rows = {row["_key"]: row for row in read(found).to_pylist()}
    assert {key: (row["_type"], row["_value"]) for key, row in rows.items()} == {
        "a": ("string", "text"),
        "b": ("hash", '{"x":"1"}'),
        "c": ("list", '["1","2"]'),
        "d": ("set", '["m","n"]'),
        "e": ("zset", '{"m":1.5}'),
    }
    assert rows["b"]["x"] == 1
    assert 3_000_000 < rows["a"]["_ttl_ms"] <= 3_600_000
    assert rows["c"]["_ttl_ms"] is None
    assert read(reader(server, keyType="hash")).to_pylist() == [
        {"_key": "b", "_ttl_ms": None, "_type": "hash", "x": "1"}
    ]
    assert reader(server, keys="none*", schema="_key STRING").split(1) == []
    client.xadd("s", {"f": "v"})
    with pytest.raises(SourceError, match=r"key b's' is a stream.* 'keyType'"):
        read(reader(server, schema="_key STRING"))


@pytest.mark.parametrize("kind", ["list", "set", "zset", "hash"])
def test_bytes_that_json_cannot_hold_are_refused(server: RedisServer, kind: str) -> None:
    """Not shown as a text that another value has, too."""
    client, odd = server.client, b"\xfd\x00"
    add = {
        "list": lambda: client.rpush("odd", "fd00", odd),
        "set": lambda: client.sadd("odd", "fd00", odd),
        "zset": lambda: client.zadd("odd", {odd: 1}),
        "hash": lambda: client.hset("odd", odd, "x"),
    }
    add[kind]()
    client.set("text", "x")
    held = rf"key b'odd', a {kind}, holds b'\\xfd\\x00'.*not UTF-8.*'keys'"
    unnamed = r"key b'odd' has field b'\\xfd\\x00', which is not UTF-8.*'keys'"
    for options, message in (
        ({}, unnamed if kind == "hash" else held),
        ({"schema": "_key STRING, _value STRING"}, held),
    ):
        with pytest.raises(SourceError, match=message):
            read(reader(server, **options))
    rows = read(reader(server, schema="_key STRING, _type STRING")).to_pylist()
    assert sorted((row["_key"], row["_type"]) for row in rows) == [
        ("odd", kind),
        ("text", "string"),
    ]


def test_bytes_in_a_field_are_read_as_binary(server: RedisServer) -> None:
    server.client.hset("h", mapping={"a": b"\xfe", "b": "1"})
    (row,) = read(reader(server)).to_pylist()
    assert row == {"_key": "h", "_ttl_ms": None, "_type": "hash", "a": b"\xfe", "b": "1"}


def test_an_infinite_score_is_valid_json_and_can_be_written_again(server: RedisServer) -> None:
    scores = {"a": float("inf"), "b": float("-inf"), "c": 2.0**53 + 2}
    server.client.zadd("z", scores)
    (row,) = read(reader(server, schema="_key STRING, _value STRING")).to_pylist()
    text = row["_value"]

    def refused(name: str) -> None:
        raise AssertionError(name)

    found = json.loads(text, parse_constant=refused)
    assert {name: float(score) for name, score in found.items()} == scores
    rows = pa.table(
        {"k": ["z2"] * 3, "m": list(found), "s": [str(each) for each in found.values()]}
    )
    write(server, rows, valueType="zset", scoreColumn="s")
    assert dict(server.client.zrange("z2", 0, -1, withscores=True)) == scores


def test_a_field_with_the_name_of_an_own_column_is_refused(server: RedisServer) -> None:
    server.client.hset("h", mapping={"_key": "other", "x": "1"})
    with pytest.raises(SourceError, match=r"key b'h' has field '_key'.*own.*'schema'"):
        read(reader(server, schema="_key STRING, x STRING"))
    assert read(reader(server, schema="x STRING")).to_pylist() == [{"x": "1"}]


@pytest.mark.parametrize(
    ("score", "kept"),
    [
        (9_007_199_254_740_993, False),
        (-9_007_199_254_740_993, False),
        (9_007_199_254_740_992, True),
        (2**60, True),
        (Decimal("0.1"), True),
        (Decimal("0.12345678901234567890"), False),
        ("9007199254740993", False),
        ("1e3", True),
        (0.1, True),
    ],
)
def test_a_score_is_written_exactly_or_refused(server: RedisServer, score: Any, kept: bool) -> None:
    rows = pa.table({"k": ["z"], "m": ["member"], "s": [score]})
    refused: list[Any] = []
    write(
        server, rows, valueType="zset", scoreColumn="s", refused=lambda *each: refused.append(each)
    )
    found = server.client.zrange("z", 0, -1, withscores=True)
    if kept:
        assert (found[0][1], refused) == (float(score), [])
    else:
        assert (found, "cannot be a score, which is a double" in str(refused)) == ([], True)


def test_an_infinity_in_a_nested_value_is_refused_and_a_null_is_no_item(
    server: RedisServer,
) -> None:
    refused: list[Any] = []
    rows = pa.table({"k": ["a", "b"], "v": [[1.5, None, 2.0], [float("inf")]]})
    write(server, rows, refused=lambda *each: refused.append(each), valueType="string")
    assert server.client.get("a") == "[1.5,null,2.0]"
    assert server.client.get("b") is None
    assert "Infinity in a nested value, which JSON cannot hold" in str(refused)
    write(server, rows.slice(0, 1), valueType="list", keyPrefix="l:")
    assert server.client.lrange("l:a", 0, -1) == ["1.5", "2.0"]


@pytest.mark.parametrize(
    ("delimiter", "keys"),
    [
        (":", [("a:b", "c"), ("a", "b:c"), ("a", "b"), (":", "")]),
        ("::", [("a:", "b"), ("a", ":b"), ("a", "b")]),
    ],
)
def test_no_two_rows_have_one_key(
    server: RedisServer, delimiter: str, keys: list[tuple[str, str]]
) -> None:
    refused: list[Any] = []
    rows = pa.table(
        {
            "k": [one for one, _ in keys],
            "l": [two for _, two in keys],
            "v": [f"{one} {two}" for one, two in keys],
        }
    )
    options = {"keyColumns": "k,l", "valueType": "string", "keyDelimiter": delimiter}
    write(server, rows, refused=lambda *each: refused.append(each), **options)
    assert len(server.client.keys("*")) + len(refused) == len(keys)
    assert refused
    for key in server.client.keys("*"):
        assert server.client.get(key) == " ".join(key.split(delimiter, 1))
    with pytest.raises(OptionError, match="'keyDelimiter' is empty"):
        write(server, rows, **{**options, "keyDelimiter": ""})


@pytest.mark.lowest
def test_hashes_and_texts(server: RedisServer) -> None:
    rows = pa.table(
        {
            "k": [1, 2],
            "a": ["x", None],
            "d": [Decimal("1.50"), None],
            "t": [MOMENT, None],
            "f": [True, False],
        }
    )
    server.client.hset("u:2", mapping={"a": "old", "kept": "yes"})
    write(server, rows, keyPrefix="u:", timeZone="Asia/Shanghai")
    assert server.client.hgetall("u:1") == {
        "a": "x",
        "d": "1.50",
        "t": "2024-01-31 16:30:00",
        "f": "true",
    }
    assert server.client.hgetall("u:2") == {"kept": "yes", "f": "false"}
    write(server, rows.select(["k", "a"]), keyPrefix="u:", writeMode="replace", expireSeconds=100)
    assert server.client.hgetall("u:1") == {"a": "x"}
    assert 0 < server.client.ttl("u:1") <= 100
    assert not server.client.exists("u:2")
    write(server, rows.select(["k", "a", "f"]), valueType="string", keySuffix=":json")
    assert server.client.get("2:json") == '{"a": null, "f": false}'
    write(server, rows.select(["k", "a"]), valueType="string")
    assert (server.client.get("1"), server.client.get("2")) == ("x", None)
    write(server, rows.select(["k"]), writeMode="delete")
    assert not server.client.exists("1")


@pytest.mark.lowest
def test_lists_sets_and_sorted_sets(server: RedisServer) -> None:
    rows = pa.table({"k": ["a", "a"], "v": ["1,2", "3"], "s": [1.5, 2.0]})
    for _ in range(2):
        write(server, rows.select(["k", "v"]), valueType="list", valueDelimiter=",")
    assert server.client.lrange("a", 0, -1) == ["1", "2", "3"] * 2
    write(
        server, rows.select(["k", "v"]), valueType="list", valueDelimiter=",", writeMode="replace"
    )
    assert server.client.lrange("a", 0, -1) == ["3"]
    for _ in range(2):
        write(server, rows.select(["k", "v"]), valueType="set", keyPrefix="s:")
        write(server, rows, valueType="zset", scoreColumn="s", keyPrefix="z:")
    assert server.client.smembers("s:a") == {"1,2", "3"}
    assert server.client.zrange("z:a", 0, -1, withscores=True) == [("1,2", 1.5), ("3", 2.0)]


def test_whether_a_retried_task_can_add_its_rows_twice_is_told(server: RedisServer) -> None:
    """In the lines that a job shows when it begins."""
    rows = pa.table({"k": ["a"], "v": ["1"]})
    listed = {"valueType": "list"}
    for options, doubles in (
        ({}, False),
        (listed, True),
        ({**listed, "writeMode": "replace"}, False),
    ):
        plan = writer(server, **options).prepare(WriteContext("job"), rows.schema)
        assert plan.at_least_once is doubles
    assert (
        writer(server, **listed).prepare(WriteContext("a", "job"), rows.schema).at_least_once
        is False
    )


def test_refused_rows_are_told_and_the_others_written(server: RedisServer) -> None:
    server.client.set("b", "a string")
    rows = pa.table({"k": ["a", "b", None], "v": ["1", "2", "3"]})
    rejected: list[tuple[Any, str]] = []
    write(server, rows, refused=lambda row, why: rejected.append((row.to_pylist()[0]["v"], why)))
    assert [value for value, _ in rejected] == ["2", "3"]
    assert "WRONGTYPE" in rejected[0][1]
    assert rejected[1][1] == "key column 'k' is NULL"
    assert server.client.hgetall("a") == {"v": "1"}
    with pytest.raises(TargetError, match=r"refused 1 of 1 rows.*WRONGTYPE"):
        write(server, rows.slice(1, 1))


def test_an_overwrite_removes_the_keys_of_the_prefix(server: RedisServer) -> None:
    server.client.mset({"u*:1": "old", "u*:9": "old", "ux:1": "kept"})
    write(
        server,
        pa.table({"k": ["1"], "v": ["new"]}),
        keyPrefix="u*:",
        valueType="string",
        overwrite=True,
    )
    assert {key: server.client.get(key) for key in server.client.keys("*")} == {
        "u*:1": "new",
        "ux:1": "kept",
    }
    with pytest.raises(OptionError, match="'keyPrefix', which is empty"):
        write(server, pa.table({"k": ["1"], "v": ["new"]}), overwrite=True)
    write(server, pa.table({"k": ["1"], "v": ["new"]}), commit="job", txn=("nightly", 2))
    write(server, pa.table({"k": ["1"], "v": ["new"]}), keyPrefix="s", overwrite=True)
    assert len(server.client.keys("spark-channel:claim:*")) == 1
    assert writer(server, keyPrefix="ux").exists()
    assert not writer(server, keyPrefix="uy").exists()


def test_a_job_is_published_at_once_and_once(server: RedisServer) -> None:
    rows = pa.table({"k": ["a", "b"], "v": ["1", "2"]})
    found = writer(server, valueType="list", commit="job")
    context = WriteContext("one", commit="job", txn=("nightly", 7))
    plan = found.prepare(context, rows.schema)
    lost = stage(found, plan, rows, 0)  # another attempt of the task is the one that counts
    receipts = [stage(found, plan, rows, 0), stage(found, plan, rows.slice(0, 1), 1)]
    assert lost.rows == 2
    assert not server.client.exists("a", "b")
    for _ in range(2):
        found.commit(plan, receipts)
        assert (server.client.lrange("a", 0, -1), server.client.lrange("b", 0, -1)) == (
            ["1", "1"],
            ["2"],
        )
    assert server.client.keys("spark-channel:stage*") == []
    again = found.prepare(WriteContext("two", commit="job", txn=("nightly", 7)), rows.schema)
    assert again.published_at is not None
    found.commit(again, [stage(found, again, rows)])
    assert server.client.llen("a") == 2


def test_an_overtaken_run_publishes_nothing(server: RedisServer) -> None:
    rows = pa.table({"k": ["a"], "v": ["1"]})
    found = writer(server, valueType="list")
    contexts = [WriteContext(name, commit="job", txn=("nightly", 8)) for name in ("slow", "later")]
    slow = found.prepare(contexts[0], rows.schema)
    receipt = stage(found, slow, rows)
    later = found.prepare(contexts[1], rows.schema)
    assert server.client.keys("spark-channel:stage:*") == []
    with pytest.raises(SupersededError):
        found.commit(slow, [receipt])
    found.abort(slow, None)
    found.commit(later, [stage(found, later, rows)])
    found.commit(slow, [receipt])  # published meanwhile: nothing is added
    assert server.client.lrange("a", 0, -1) == ["1"]
    third = found.prepare(WriteContext("third", commit="job"), rows.schema)
    stage(found, third, rows)
    found.abort(third, None)
    assert server.client.keys("spark-channel:stage*") == []


def test_each_batch_of_a_stream_is_published_once(server: RedisServer) -> None:
    rows = pa.table({"k": ["a"], "v": ["1"]})
    for number in (0, 1, 1, 0):
        write(server, rows, valueType="list", commit="job", stream=("query", number))
    assert server.client.llen("a") == 2


def test_what_the_server_cannot_publish_is_told_before_a_row_is_written(
    server: RedisServer,
) -> None:
    rows = pa.table({"k": ["a", "b"], "v": ["1", "2"]})
    server.client.set("b", "a string")
    with pytest.raises(
        CommitError, match=r"key 'b' holds a value of another type.* Nothing was published"
    ):
        write(server, rows, commit="job")
    assert not server.client.exists("a")
    with pytest.raises(CommitError, match=r"the job has 2 rows, and option 'jobRows' takes 1"):
        write(server, rows, commit="job", jobRows=1, job="other")
    found = writer(server)
    plan = found.prepare(WriteContext("third", commit="job"), rows.schema)
    receipt = stage(found, plan, rows.slice(0, 1))
    server.client.delete(receipt.details["stage"])
    with pytest.raises(CommitError, match=r"no longer exist.* Nothing was published"):
        found.commit(plan, [receipt])


def test_rows_of_many_values_fit_the_script(server: RedisServer) -> None:
    names = [f"c{n}" for n in range(5_000)]
    rows = pa.table({"k": ["a"], **{name: ["x"] for name in names}})
    write(server, rows, commit="job")
    assert server.client.hlen("a") == 5_000


def test_a_lost_answer_of_the_publishing_script(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The script has run: asked again, the claim says so."""
    import redis

    rows = pa.table({"k": ["a"], "v": ["1"]})
    asked: list[int] = []
    original = redis.Redis.eval

    def lose(self: Any, *values: Any) -> Any:
        found = original(self, *values)
        asked.append(1)
        if len(asked) == 1:
            raise redis.ConnectionError("lost")
        return found

    monkeypatch.setattr(redis.Redis, "eval", lose)
    write(server, rows, valueType="list", commit="job")
    assert server.client.llen("a") == 1
    assert server.client.keys("spark-channel:stage*") == []


def test_nothing_is_published_that_the_server_would_refuse_in_the_middle(
    server: RedisServer,
) -> None:
    """A script that fails takes back nothing of what it wrote."""
    rows = pa.table({"k": ["a", "b"], "v": ["1", "2"]})
    server.client.hset("a", mapping={"v": "0"})
    server.client.set("b", "a string")
    with pytest.raises(
        CommitError, match=r"key 'b' holds a value of another type.* Nothing was published"
    ):
        write(server, rows, commit="job", writeMode="delete", hashFields="v")
    assert server.client.hgetall("a") == {"v": "0"}
    everything = {"enabled": True, "passwords": ["+pw"], "categories": ["+@all"]}
    server.client.acl_setuser("clerk", keys=["spark-channel:*", "a*"], reset=True, **everything)
    try:
        login = {"user": "clerk", "password": "pw", "valueType": "string", "job": "second"}
        with pytest.raises(
            CommitError, match=r"the user may not run 'DEL b'.*ACL\. Nothing was published"
        ):
            write(server, rows, commit="job", writeMode="replace", **login)
    finally:
        server.client.acl_deluser("clerk")
    assert server.client.hgetall("a") == {"v": "0"}


def test_a_pair_is_the_same_under_each_name_of_the_server(server: RedisServer) -> None:
    rows = pa.table({"k": ["a"], "v": ["1"]})
    for job, host in (("one", "127.0.0.1"), ("two", "localhost")):
        found = writer(server, valueType="list", url=f"redis://{host}:{server.port}")
        plan = found.prepare(WriteContext(job, commit="job", txn=("nightly", 9)), rows.schema)
        found.commit(plan, [stage(found, plan, rows)])
    assert server.client.llen("a") == 1


def test_a_server_that_removes_any_key_keeps_no_record_of_a_pair(server: RedisServer) -> None:
    rows = pa.table({"k": ["a"], "v": ["1"]})
    server.client.config_set("maxmemory", 1 << 30)
    server.client.config_set("maxmemory-policy", "allkeys-lru")
    try:
        with pytest.raises(TargetError, match=r"'maxmemory-policy' is allkeys-lru.*noeviction"):
            write(server, rows, commit="job", txn=("nightly", 1))
        write(server, rows, commit="job")
        server.client.config_set("maxmemory-policy", "volatile-lru")
        write(server, rows, commit="job", txn=("nightly", 1), job="second")
    finally:
        server.client.config_set("maxmemory-policy", "noeviction")
        server.client.config_set("maxmemory", 0)


def test_a_server_that_runs_a_script_is_waited_for(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As another job's publication: the server drops the transaction whole, and says that it is busy."""
    import redis

    rows = pa.table({"k": ["a"], "v": ["1"]})
    found = writer(server, valueType="list")
    plan = found.prepare(WriteContext("one", commit="job"), rows.schema)
    calls: list[int] = []
    original = redis.client.Pipeline.execute

    def busy(self: Any, *values: Any, **named: Any) -> Any:
        calls.append(1)
        if len(calls) == 1:
            raise redis.ResponseError(
                "Command # 1 (RPUSH a) of pipeline caused error: BUSY Redis is busy"
            )
        return original(self, *values, **named)

    monkeypatch.setattr(redis.client.Pipeline, "execute", busy)
    found.commit(plan, [stage(found, plan, rows)])
    assert server.client.lrange("a", 0, -1) == ["1"]


def test_only_an_answer_about_a_value_refuses_its_row() -> None:
    import redis
    from redis._parsers import base

    from spark_channel.connectors.redis.client import is_of_row, is_passing

    parser: Any = base.BaseParser
    answers = {
        "WRONGTYPE Operation against a key holding the wrong kind of value": True,
        "ERR value is not a valid float": True,
        "OOM command not allowed when used memory > 'maxmemory'.": False,
        "READONLY You can't write against a read only replica.": False,
        "MISCONF Redis is configured to save RDB snapshots": False,
        "NOPERM User clerk has no permissions": False,
        "CLUSTERDOWN The cluster is down": False,
        "MOVED 1 127.0.0.1:1": False,
    }
    assert {text: is_of_row(parser.parse_error(text)) for text in answers} == answers
    busy = "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE."
    # As the driver reports it for a command of a pipeline.
    for text in (busy, f"Command # 1 (SET a 1) of pipeline caused error: {busy}"):
        assert is_passing(redis.ResponseError(text))
        assert not is_of_row(redis.ResponseError(busy))
    assert not is_passing(
        redis.ResponseError("Command # 1 (SET a BUSY) of pipeline caused error: x")
    )


def test_a_server_that_is_no_cluster_is_told_apart(server: RedisServer) -> None:
    with pytest.raises(SourceError, match="with 'cluster' the server must be a member"):
        read(reader(server, cluster=True, schema="_key STRING, v STRING"))
    with pytest.raises(TargetError, match="with 'cluster' the server must be a member"):
        write(server, pa.table({"k": ["a"], "v": ["b"]}), cluster=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"url": "h:6379"}, "option 'url' .*redis://host:6379/0"),
        ({"keyColumns": "x"}, "option 'keyColumns' names 'x'"),
        ({"valueColumns": "x"}, "option 'valueColumns' names 'x'"),
        ({"valueType": "zset"}, "'scoreColumn' goes together with valueType=zset"),
        ({"valueType": "list", "valueColumns": "k,v"}, "with valueType=list it takes one column"),
        ({"hashFields": "v"}, "'hashFields' is for writeMode=delete"),
        ({"sslrootcert": "ca.pem"}, "'sslrootcert' is for TLS, and 'url' asks for none"),
    ],
)
def test_options_are_refused_by_name(
    server: RedisServer, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        write(server, pa.table({"k": ["1"], "v": ["1"]}), **options)


def test_a_transaction_is_of_the_whole_job(server: RedisServer) -> None:
    with pytest.raises(OptionError, match="'txn' needs commit=job"):
        write(server, pa.table({"k": ["1"], "v": ["1"]}), txn=("a", 1), commit="task")


def test_the_login_is_not_shown(server: RedisServer) -> None:
    with pytest.raises(ChannelError, match=r"check 'user', 'password'") as met:
        reader(server, password="wr0ng").schema()
    assert "wr0ng" not in str(met.value)
    with pytest.raises(SourceError, match="the server does not answer"):
        reader(server, url="redis://127.0.0.1:1/0").schema()


def test_a_datax_job_writes_keys(server: RedisServer, tmp_path: Any) -> None:
    source = tmp_path / "in.txt"
    source.write_text("1,ann,2024-01-31 10:00:05\n2,bob,2024-01-31 10:00:05\n")
    columns = [
        {"index": 0, "type": "long"},
        {"index": 1, "type": "string"},
        {"index": 2, "type": "date"},
    ]
    reads = {"path": str(source), "column": columns}
    config: dict[str, Any] = {
        "colKey": {"name": "id", "index": 0},
        "keyPrefix": "user:",
        "expire": 300,
        "colValue": [{"name": "name", "index": 1}, {"name": "at", "index": 2}],
    }
    writes = {
        "redisMode": "singleton",
        "address": f"127.0.0.1:{server.port}",
        "auth": PASSWORD,
        "writeType": "hash",
        "config": config,
    }
    for _ in range(2):
        assert (
            carry_out(load_job(make_job("txtfilereader", reads, "rediswriter", writes)).spec) == []
        )
    assert server.client.hgetall("user:2") == {"name": "bob", "at": "2024-01-31 10:00:05"}
    pushed = {
        **config,
        "colValue": config["colValue"][0],
        "pushType": "rpush",
        "keyPrefix": "names:",
    }
    listed = {**writes, "writeType": "list", "config": pushed}
    job = make_job("txtfilereader", reads, "rediswriter", listed)
    job["job"]["setting"] = {"commit": "job", "txn": "nightly:1"}
    for run in ("a", "b"):
        assert move(job, name=run) == []
    assert server.client.lrange("names:1", 0, -1) == ["ann"]
    back = {
        "address": f"127.0.0.1:{server.port}",
        "auth": PASSWORD,
        "include": "user:*",
        "column": ["_key", "name"],
    }
    text = {"path": str(tmp_path / "out"), "fileName": "f", "writeMode": "truncate"}
    carry_out(load_job(make_job("redisreader", back, "txtfilewriter", text)).spec)
    (made,) = (tmp_path / "out").glob("f__*")
    assert sorted(made.read_text().splitlines()) == ["user:1,ann", "user:2,bob"]
    gone = {
        **writes,
        "writeMode": "delete",
        "config": {"colKey": {"name": "id", "index": 0}, "keyPrefix": "user:"},
    }
    carry_out(load_job(make_job("txtfilereader", reads, "rediswriter", gone)).spec)
    assert server.client.keys("user:*") == []


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"address": "a:1,b:2"}, "address got 'a:1,b:2'; it takes one address"),
        ({"config": {"strKey": "x", "colValue": {"index": 1}}}, r"config\.colKey got strKey"),
        ({"config": {"colKey": {"index": 0}}}, r"config\.colValue is missing"),
        (
            {
                "writeType": "list",
                "config": {"colKey": {"index": 0}, "colValue": {"index": 1}, "pushType": "lpush"},
            },
            "lpush",
        ),
        (
            {"connection": [{"uri": "tcp://h:1"}]},
            "connection is not supported: Addax's plugins copy dumps",
        ),
    ],
)
def test_what_a_job_cannot_ask(changed: dict[str, Any], message: str) -> None:
    writes = {
        "address": "h:6379",
        "writeType": "string",
        "config": {"colKey": {"index": 0}, "colValue": {"index": 1}},
        **changed,
    }
    with pytest.raises(ChannelError, match=message):
        load_job(make_job(writer="rediswriter", writes=writes))


def test_a_plan_says_how_many_keys_an_overwrite_removes(server: RedisServer) -> None:
    schema = pa.schema([("k", pa.string()), ("v", pa.string())])
    made = writer(server, keyPrefix="u:", valueType="string")
    assert made.foreign_content(schema) == ""
    server.client.mset({"u:1": "old", "u:2": "old", "x:1": "kept"})
    assert made.foreign_content(schema) == "2 keys with prefix 'u:', whoever wrote them"
    with server.client.pipeline() as pipeline:
        for number in range(MOST_COUNTED):
            pipeline.set(f"u:{number}", "old")
        pipeline.set("u:one more", "old")
        pipeline.execute()
    assert made.foreign_content(schema).startswith("more than 10000 keys")
