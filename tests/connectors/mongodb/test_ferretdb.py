"""The connector against FerretDB, which another team wrote for the same wire protocol."""

from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("bson", reason="pymongo is not installed")

import bson

from spark_channel.connectors import FetchSize
from spark_channel.errors import TargetError
from tests.connectors.mongodb.test_mongodb import read, reader, write
from tests.servers.ferretdb import FerretServer, ferret_server

MOMENT = datetime(2024, 1, 31, 8, 30, 0, 123000, UTC)


@pytest.fixture(scope="module")
def running() -> Iterator[FerretServer]:
    with ferret_server() as server:
        yield server


@pytest.fixture
def server(running: FerretServer) -> Iterator[FerretServer]:
    yield running
    running.client.drop_database("shop")


def put(server: FerretServer, documents: list[dict[str, Any]], collection: str = "t") -> None:
    server.client["shop"][collection].insert_many(documents)


def test_values_of_every_type_arrive(server: FerretServer) -> None:
    key = bson.ObjectId()
    document = {
        "_id": key,
        "whole": 2**53 + 1,
        "small": 7,
        "half": 0.5,
        "text": "ä\u0000ü",
        "yes": True,
        "raw": b"\0\1",
        "at": MOMENT,
        "list": [1, "two", None],
        "part": {"city": "B", "n": [1.5]},
        "none": None,
    }
    put(server, [document])
    schema = (
        "_id STRING, whole BIGINT, small INT, half DOUBLE, text STRING, yes BOOLEAN, raw BINARY, at TIMESTAMP, "
        "list STRING, `part.city` STRING, none STRING"
    )
    (row,) = read(reader(server, schema=schema)).to_pylist()
    assert row == {
        "_id": str(key),
        **{name: document[name] for name in ("whole", "small", "half", "text", "yes", "raw")},
        "at": MOMENT,
        "list": '[1,"two",null]',
        "part.city": "B",
        "none": None,
    }
    assert read(reader(server, filter='{"part.city": "C"}', schema="_id STRING")).num_rows == 0


@pytest.mark.parametrize("advice", [1, 4])
def test_a_server_that_ignores_bounds_of_an_index_is_read_once(
    server: FerretServer, advice: int
) -> None:
    """It returned all documents for each range."""
    put(server, [{"_id": n, "n": n} for n in range(2_000)])
    found = reader(server, schema="n BIGINT")
    found.fetch_size = FetchSize(rows=300)
    assert len(found.split(advice)) == 1
    assert sorted(read(found, advice)["n"].to_pylist()) == list(range(2_000))


def test_writes_by_key_leave_the_same_documents_when_they_run_again(server: FerretServer) -> None:
    put(server, [{"_id": 2, "kept": True}])
    rows = pa.table(
        {
            "_id": [1, 2],
            "name": ["a", "b"],
            "at": pa.array([MOMENT, None], pa.timestamp("ms", "UTC")),
        }
    )
    for _ in range(2):
        write(server, rows, writeMode="upsert")
    assert server.documents("t") == [
        {"_id": 1, "name": "a", "at": MOMENT},
        {"_id": 2, "kept": True, "name": "b", "at": None},
    ]
    write(server, rows.select(["_id", "name"]), writeMode="replace")
    assert server.documents("t") == [{"_id": 1, "name": "a"}, {"_id": 2, "name": "b"}]
    write(server, pa.table({"n": [1, 2, 3]}), overwrite=True)
    found = server.documents("t")
    assert [each["n"] for each in found] == [1, 2, 3]
    assert {type(each["_id"]) for each in found} == {bson.ObjectId}


def test_refused_documents_are_told_and_the_others_written(server: FerretServer) -> None:
    put(server, [{"_id": 1}])
    refused = write(server, pa.table({"_id": [1, 2, 3]}), dirty=True)
    assert [(row, "E11000" in why) for row, why in refused] == [({"_id": 1}, True)]
    assert [each["_id"] for each in server.documents("t")] == [1, 2, 3]


def test_decimals_that_the_server_does_not_have_are_an_error_that_names_it(
    server: FerretServer,
) -> None:
    rows = pa.table({"_id": [1], "d": pa.array([Decimal("1.50")], pa.decimal128(10, 2))})
    with pytest.raises(TargetError, match=r"127\.0\.0\.1"):
        write(server, rows)
