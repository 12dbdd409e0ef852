"""Each kind of server, empty, and hands to read and write it."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from spark_channel.connectors import Receipt, WriteContext, WritePlan, load_reader, load_writer
from spark_channel.connectors.base.contract import Reader, Writer

pytest.importorskip("redis")

from tests.servers.redis import PASSWORD, PROGRAMS, RedisServer, redis_server


@pytest.fixture(scope="session", params=list(PROGRAMS))
def running(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    with redis_server(request.param) as server:
        yield server


@pytest.fixture
def server(running: RedisServer) -> RedisServer:
    running.client.flushall()
    return running


def reader(server: RedisServer, **options: Any) -> Reader:
    return load_reader({"reader": "redis", "url": server.url, "password": PASSWORD, **options})[0]


def read(found: Reader) -> pa.Table:
    schema = found.schema()
    return pa.Table.from_batches(
        [batch for split in found.split(4) for batch in found.read(split)], schema
    )


def writer(server: RedisServer, **options: Any) -> Writer:
    return load_writer(
        {"writer": "redis", "url": server.url, "password": PASSWORD, "keyColumns": "k", **options}
    )[0]


def stage(
    found: Writer, plan: WritePlan, rows: pa.Table, task: int = 0, refused: Any = None
) -> Receipt:
    opened = found.open(plan, task, task)
    if refused is not None:
        opened.tolerant, opened.refused = True, refused
    try:
        for batch in rows.to_batches():
            opened.write(batch)
        return opened.close()
    except BaseException:
        opened.rollback()
        raise


def write(server: RedisServer, rows: pa.Table, *, refused: Any = None, **options: Any) -> None:
    context = {
        name: options.pop(name)
        for name in ("overwrite", "commit", "txn", "stream")
        if name in options
    }
    job = options.pop("job", "job")
    found = writer(server, **options)
    plan = found.prepare(WriteContext(job, **context), rows.schema)
    found.commit(plan, [stage(found, plan, rows, refused=refused)])
