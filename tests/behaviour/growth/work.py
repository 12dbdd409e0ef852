"""Work that no server counts: calls of functions, and bytes of an offset."""

import itertools
import json
import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_channel import transfer
from spark_channel.connectors import load_reader
from spark_channel.connectors.base.feed import FeedLimit, FeedOptions
from spark_channel.connectors.kafka.administrator import Administrator, Edges, Part, Topic
from spark_channel.datax import load_job
from spark_channel.limits import Coordinator, Grant, GrantRequest, Join, Joined
from spark_channel.testing.clock import VirtualClock
from tests.behaviour.growth.aged import age_folder

__all__ = [
    "bytes_of_an_offset",
    "bytes_of_an_offset_in_late_seconds",
    "calls_of_a_grant",
    "calls_of_a_job_file",
    "calls_of_a_job_into_a_folder",
    "calls_of_a_kafka_topic",
]

_LATE = 600
_ROUNDS = 5
_CALLS = 150
"""What a request needs at most, whatever the clients are: one beside fewer takes a few calls more or less."""


@contextmanager
def counting(folder: str = "") -> Iterator[Callable[[], int]]:
    """The functions of Python, of files below `folder`, that were called until now."""
    calls = 0

    def count(frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event == "call" and folder in frame.f_code.co_filename

    sys.setprofile(count)
    try:
        yield lambda: calls
    finally:
        sys.setprofile(None)


def calls_of_a_grant(_path: Path, clients: int) -> int:
    """Of the coordinator for each request, where `clients` of one job have a grant and renew it in turns."""
    clock, ids = VirtualClock(), itertools.count()
    limit = Coordinator("db", 1_000_000, clock=clock, new_id=lambda: f"id-{next(ids)}")
    joined: list[tuple[Joined, int]] = []
    for number in range(clients):
        answer = limit.handle(Join("db", "job", f"task {number}"))
        assert isinstance(answer, Joined)
        joined.append((answer, 0))
    asked = 0
    with counting() as calls:
        for number in range(1, _ROUNDS + 1):
            for place, (who, grant) in enumerate(joined):
                answer = limit.handle(GrantRequest("db", who.client, who.epoch, number, grant))
                asked += 1
                if isinstance(answer, Grant):
                    joined[place] = who, answer.grant
            clock.advance(0.5)
        return -(-calls() // (asked * _CALLS)) * _CALLS


def bytes_of_an_offset(path: Path, files: int, *, ago: float = 2 * _LATE) -> int:
    """Of a stream of a folder, `files` of which changed so many seconds before the newest one."""
    path.mkdir()
    now = 1_700_000_000
    for number in range(files + 1):
        at = now - (ago if number else 0)
        pq.write_table(pa.table({"n": [number]}), path / f"{number}.parquet")
        os.utime(path / f"{number}.parquet", (at, at))
    reader, _ = load_reader({"reader": "parquet", "path": str(path)})
    feed = reader.feed(FeedOptions(late_seconds=_LATE))
    (start,) = feed.earliest()
    token = feed.latest(start, FeedLimit(rows=files)) if files > 1 else start
    return len(json.dumps(feed.latest(token, FeedLimit())["recent"]))


def bytes_of_an_offset_in_late_seconds(path: Path, files: int) -> int:
    return bytes_of_an_offset(path, files, ago=_LATE / 2)


def calls_of_a_job_file(path: Path, tables: int) -> int:
    """Of its reader, with a hundred times `tables` tables in one connection."""
    path.mkdir()
    url = "jdbc:postgresql://127.0.0.1:5432/shop"
    login = {"username": "shop", "password": "x", "column": ["id"]}
    listed = {"table": [f"t{number}" for number in range(100 * tables)], "jdbcUrl": [url]}
    content = {
        "reader": {"name": "postgresqlreader", "parameter": {**login, "connection": [listed]}},
        "writer": {
            "name": "postgresqlwriter",
            "parameter": {**login, "connection": [{"table": ["target"], "jdbcUrl": url}]},
        },
    }
    file = path / "job.json"
    file.write_text(
        json.dumps({"job": {"setting": {"speed": {"channel": 2}}, "content": [content]}})
    )
    with counting() as calls:
        load_job(file)
        return calls()


class _Brokers:
    """The answers about a topic of so many partitions, without a network."""

    def __init__(self, partitions: int) -> None:
        self.topic = Topic(tuple(range(partitions)), "id")

    def topics(self, names: Collection[str], *, since: float | None = None) -> Mapping[str, Topic]:
        return dict.fromkeys(names, self.topic)

    def edges(self, parts: Collection[Part]) -> Mapping[Part, Edges]:
        return dict.fromkeys(parts, Edges(0, 100))

    def last_offsets(self, parts: Collection[Part]) -> Mapping[Part, int]:
        return dict.fromkeys(parts, 100)


def calls_of_a_kafka_topic(_path: Path, partitions: int) -> int:
    """Of a job's plan, a stream's first positions and its look at each, with a hundred times `partitions`."""
    brokers = _Brokers(100 * partitions)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("topics", "edges", "last_offsets"):
            patch.setattr(Administrator, name, getattr(brokers, name))
        patch.setattr(Administrator, "settled_edges", brokers.edges)
        reader, _ = load_reader(
            {"reader": "kafka", "bootstrapServers": "127.0.0.1:1", "topic": "orders"}
        )
        with counting() as calls:
            reader.split(8)
            feed = reader.feed(FeedOptions())
            tokens = feed.earliest()
            with feed.shared_look():
                ends = [feed.latest(token, FeedLimit()) for token in tokens]
            assert ends != tokens
            return calls()


def calls_of_a_job_into_a_folder(path: Path, files: int) -> int:
    """Of the files connector, for one row, where jobs before it have written a thousand times `files` files."""
    source = {"reader": "generator", "rows": "1"}
    target = {"writer": "parquet", "path": str(path)}
    transfer(None, source, target, channels=1)
    age_folder(path, 1_000 * files)
    transfer(None, source, target, channels=1)
    with counting("/connectors/files/") as calls:
        transfer(None, source, target, channels=1)
        return calls()
