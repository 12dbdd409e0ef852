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
from spark_channel.datax import load_job
from spark_channel.errors import TargetError
from spark_channel.testing import reader_conformance
from tests.behaviour.datax.test_end_to_end import carry_out
from tests.connectors.mongodb.test_mongodb import job_address, read, reader, write
from tests.datax.small_jobs import make_job
from tests.servers.ferretdb import FerretServer, ferret_server

pytestmark = pytest.mark.real_server("FerretDB", "mongodb")

MOMENT = datetime(2024, 1, 31, 8, 30, 0, 123000, UTC)


@pytest.fixture(scope="module")
def running() -> Iterator[FerretServer]:
    with ferret_server() as server:
        yield server


@pytest.fixture
def server(running: FerretServer) -> Iterator[FerretServer]:
    yield running
    running.client.drop_database("shop")


def test_the_reader_keeps_its_promises(server: FerretServer) -> None:
    server.put("t", [{"_id": number, "name": f"ä{number}"} for number in range(40)])
    reader_conformance(
        lambda: reader(server, schema="_id BIGINT, name STRING"),
        expected=pa.table({"_id": range(40), "name": [f"ä{number}" for number in range(40)]}),
        advice=2,
    )


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
    server.put("t", [document])
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
    server.put("t", [{"_id": n, "n": n} for n in range(2_000)])
    found = reader(server, schema="n BIGINT")
    found.fetch_size = FetchSize(rows=300)
    assert len(found.split(advice)) == 1
    assert sorted(read(found, advice)["n"].to_pylist()) == list(range(2_000))


def test_the_filter_is_mongodbs(server: FerretServer) -> None:
    server.put("t", [{"_id": n, "at": datetime(2024, 1, n + 1, tzinfo=UTC)} for n in range(5)])
    filters = '{"at": {"$gte": {"$date": "2024-01-04T00:00:00Z"}}}'
    found = reader(server, filter=filters, columns="_id")
    assert read(found, 2).to_pydict() == {"_id": [3, 4]}
    assert reader(server, schema="_id BIGINT", filter='{"_id": 77}').split(4) == []


def test_a_write_by_key_that_is_run_again_changes_nothing(server: FerretServer) -> None:
    rows = pa.table({"_id": [1, 2, 1], "name": ["a", "b", "last"]})
    server.put("t", [{"_id": 2, "kept": True}])
    for _ in range(2):
        write(server, rows, writeMode="upsert")
        assert server.documents("t") == [
            {"_id": 1, "name": "last"},
            {"_id": 2, "kept": True, "name": "b"},
        ]
    write(server, rows, writeMode="replace")
    assert server.documents("t") == [{"_id": 1, "name": "last"}, {"_id": 2, "name": "b"}]
    by_name = pa.table({"name": ["b", None], "n": [5, 6]})
    refused = write(server, by_name, writeMode="upsert", keyColumns="name", dirty=True)
    assert refused == [({"name": None, "n": 6}, "key column 'name' is NULL")]
    assert server.documents("t")[1] == {"_id": 2, "name": "b", "n": 5}


def test_overwrite_and_delete_filter(server: FerretServer) -> None:
    server.put("t", [{"_id": n, "old": n < 2} for n in range(4)])
    write(server, pa.table({"_id": [9]}), deleteFilter='{"old": true}')
    assert [document["_id"] for document in server.documents("t")] == [2, 3, 9]
    write(server, pa.table({"_id": [5]}), overwrite=True)
    assert [document["_id"] for document in server.documents("t")] == [5]


def oid(number: int) -> Any:
    return bson.ObjectId(f"65b9f000000000000000000{number}")


def test_a_datax_job_moves_documents(server: FerretServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Shanghai")
    server.put(
        "t",
        [
            {"_id": oid(n), "n": n, "at": MOMENT, "tags": ["a", "b"], "in": {"x": n}}
            for n in range(3)
        ]
        + [{"_id": oid(9), "n": "none"}],
    )
    columns = [
        {"name": "_id", "type": "string"},
        {"name": "n", "type": "long"},
        {"name": "at", "type": "date"},
        {"name": "tags", "type": "array", "splitter": "|"},
        {"name": "in.x", "type": "document.int"},
    ]
    written = [
        {"name": "_id", "type": "ObjectId"},
        {"name": "n", "type": "int"},
        {"name": "at", "type": "date"},
        {"name": "tags", "type": "array", "splitter": "|", "itemtype": "string"},
        {"name": "x", "type": "string"},
    ]
    job = make_job(
        "mongodbreader",
        {**job_address(server, "t"), "column": columns, "query": '{"n": {"$ne": 2}}'},
        "mongodbwriter",
        {
            **job_address(server, "u"),
            "column": written,
            "preSql": {"type": "remove", "item": [{"name": "n", "value": 8}]},
            "writeMode": {"isReplace": "true", "replaceKey": "_id"},
        },
    )
    server.put("u", [{"_id": 1, "n": 8}, {"_id": 2, "n": 9}])
    for _ in range(2):
        refused = carry_out(load_job(job).spec)
        assert [one.rows.to_pylist()[0]["n"] for one in refused] == ["none"]
        left, *moved = server.documents("u")
        assert left == {"_id": 2, "n": 9}
        assert moved == [
            {"_id": oid(n), "n": n, "at": MOMENT, "tags": ["a", "b"], "x": str(n)} for n in range(2)
        ]


def test_refused_documents_are_told_and_the_others_written(server: FerretServer) -> None:
    server.put("t", [{"_id": 1}])
    refused = write(server, pa.table({"_id": [1, 2, 3]}), dirty=True)
    assert [(row, "E11000" in why) for row, why in refused] == [({"_id": 1}, True)]
    assert [each["_id"] for each in server.documents("t")] == [1, 2, 3]


def test_decimals_that_the_server_does_not_have_are_an_error_that_names_it(
    server: FerretServer,
) -> None:
    rows = pa.table({"_id": [1], "d": pa.array([Decimal("1.50")], pa.decimal128(10, 2))})
    with pytest.raises(TargetError, match=r"127\.0\.0\.1"):
        write(server, rows)
