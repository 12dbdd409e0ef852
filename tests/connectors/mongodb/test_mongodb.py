"""MongoDB over its wire protocol, against a server of the tests' own (see tests/servers/mongo.py)."""

from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pytest

from spark_channel.connectors import FetchSize, WriteContext, load_reader, load_writer
from spark_channel.connectors.base.contract import Reader, Receipt
from spark_channel.datax import load_job
from spark_channel.errors import ChannelError, OptionError, SchemaError, SourceError, TargetError
from spark_channel.testing import reader_conformance

bson = pytest.importorskip("bson", reason="pymongo is not installed")

from tests.datax.small_jobs import make_job  # noqa: E402 - behind importorskip
from tests.servers.ferretdb import FerretServer  # noqa: E402 - behind importorskip
from tests.servers.mongo import MongoServer, mongo_server  # noqa: E402 - behind importorskip

MOMENT = datetime(2024, 1, 31, 8, 30, 0, 123000, UTC)


@pytest.fixture(scope="module")
def running() -> Iterator[MongoServer]:
    with mongo_server() as server:
        yield server


@pytest.fixture
def server(running: MongoServer) -> MongoServer:
    running.collections.clear()
    running.views.clear()
    running.commands.clear()
    running.breaks.clear()
    running.open_cursors.clear()
    running.refuses = lambda document: ""
    return running


def reader(server: MongoServer | FerretServer, **options: Any) -> Reader:
    made, warnings = load_reader({"url": server.url, "collection": "t", **options})
    assert warnings == []
    return made


def read(found: Reader, advice: int = 1) -> pa.Table:
    schema = found.schema()
    return pa.Table.from_batches(
        [batch for split in found.split(advice) for batch in found.read(split)], schema
    )


def write(
    server: MongoServer | FerretServer, rows: pa.Table, *, overwrite: bool = False, **options: Any
) -> list[tuple[Any, str]]:
    """The refused rows, of a write that allows them when `dirty` is given."""
    dirty = options.pop("dirty", False)
    writer, _ = load_writer({"url": server.url, "collection": "t", **options})
    plan = writer.prepare(WriteContext("job", overwrite=overwrite), rows.schema)
    assert plan.commit == "task"
    refused: list[tuple[Any, str]] = []
    task = writer.open(plan, 0, 0)
    if dirty:
        task.tolerant = True
        task.refused = lambda row, reason: refused.append((row.to_pylist()[0], reason))
    try:
        for batch in rows.to_batches():
            task.write(batch)
        receipt: Receipt = task.close()
    except BaseException:
        task.rollback()
        raise
    assert receipt.rows == rows.num_rows - len(refused)
    writer.commit(plan, [receipt])
    return refused


def test_the_reader_keeps_its_promises(server: MongoServer) -> None:
    server.put("t", [{"_id": n, "name": f"name {n}", "part": {"n": n / 2}} for n in range(40)])
    expected = pa.table(
        {
            "_id": range(40),
            "name": [f"name {n}" for n in range(40)],
            "part.n": [n / 2 for n in range(40)],
        }
    )
    schema = "_id BIGINT, name STRING, `part.n` DOUBLE"
    reader_conformance(lambda: reader(server, schema=schema), expected=expected, advice=2)
    assert server.open_cursors == {}  # each cursor that was left early was killed


def test_splits_cover_ids_of_every_type_once(server: MongoServer) -> None:
    """A condition such as _id < 5 finds numbers alone; bounds of the index find every type."""
    ids: list[Any] = [
        1,
        2.5,
        "a",
        "b",
        bson.ObjectId(),
        bson.ObjectId(),
        MOMENT,
        None,
        True,
        {"a": 1},
        b"x",
        7,
    ]
    server.put("t", [{"_id": each, "n": number} for number, each in enumerate(ids)])
    for advice in (1, 3, 12):
        found = read(reader(server, schema="n BIGINT"), advice)
        assert sorted(found.column("n").to_pylist()) == list(range(len(ids)))
    assert len(reader(server).split(3)) == 3


def test_a_view_is_one_split(server: MongoServer) -> None:
    server.put("t", [{"_id": n} for n in range(30)])
    server.views.add("t")
    found = reader(server, schema="_id BIGINT")
    assert len(found.split(4)) == 1
    assert read(found, 4).num_rows == 30


@pytest.mark.parametrize("how", ["lost", "forgotten"])
def test_a_read_continues_after_the_last_document(server: MongoServer, how: str) -> None:
    server.put("t", [{"_id": n} for n in range(50)])
    found = reader(server, schema="_id BIGINT")
    found.fetch_size = FetchSize(rows=10)
    (split,) = found.split(1)
    ids = []
    for number, batch in enumerate(found.read(split)):
        ids += batch.column(0).to_pylist()
        if number == 1:
            server.breaks.append(("getMore", how))
    assert ids == list(range(50))
    assert server.breaks == []


def test_a_view_does_not_continue_with_rows_it_has_returned(server: MongoServer) -> None:
    server.put("t", [{"_id": n} for n in range(50)])
    server.views.add("t")
    found = reader(server, schema="_id BIGINT")
    found.fetch_size = FetchSize(rows=10)
    (split,) = found.split(1)
    batches = found.read(split)
    next(batches)
    server.breaks.append(("getMore", "forgotten"))
    with pytest.raises(SourceError, match="cursor id"):
        list(batches)


def test_columns_and_types_are_found(server: MongoServer) -> None:
    server.put(
        "t",
        [
            {
                "_id": bson.ObjectId("65b9f0000000000000000001"),
                "n": 1,
                "x": 1,
                "at": MOMENT,
                "ok": True,
                "mixed": 1,
            },
            {
                "_id": bson.ObjectId("65b9f0000000000000000002"),
                "n": bson.Int64(2**40),
                "x": 1.5,
                "raw": b"\0",
                "price": bson.Decimal128("12.50"),
                "tags": ["a", {"b": MOMENT}],
                "mixed": "a",
            },
        ],
    )
    found = read(reader(server))
    assert found.schema.names == ["_id", "n", "x", "at", "ok", "mixed", "raw", "price", "tags"]
    kinds = {
        "n": pa.int64(),
        "x": pa.float64(),
        "at": pa.timestamp("us", "UTC"),
        "ok": pa.bool_(),
        "raw": pa.binary(),
    }
    assert {field.name: field.type for field in found.schema} == {
        name: kinds.get(name, pa.string()) for name in found.schema.names
    }
    one, two = found.to_pylist()
    assert one["_id"] == "65b9f0000000000000000001"
    assert (one["at"], one["mixed"], one["x"]) == (MOMENT, "1", 1.0)
    assert (two["n"], two["price"], two["raw"]) == (2**40, "12.50", b"\0")
    assert two["tags"] == '["a",{"b":"2024-01-31T08:30:00.123000+00:00"}]'
    exact = read(
        reader(
            server,
            schema="price DECIMAL(6, 2), at TIMESTAMP_NTZ, x STRING",
            timeZone="Asia/Shanghai",
        )
    )
    assert exact.column("price").to_pylist() == [None, Decimal("12.50")]
    assert exact.column("at").to_pylist()[0] == datetime(2024, 1, 31, 16, 30, 0, 123000)


def test_a_value_that_does_not_fit_is_named(server: MongoServer) -> None:
    server.put("t", [{"_id": 1, "n": 1}, {"_id": 2, "n": "two"}])
    with pytest.raises(
        SourceError, match=r"column 'n' of the record with _id '2': 'two' \(str\) is not a number"
    ):
        read(reader(server, sampleRows=1))
    assert read(reader(server, sampleRows=2)).column("n").to_pylist() == ["1", "two"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"where": "n > 5"},
            "option 'where' is not supported: MongoDB understands no SQL; use 'filter'",
        ),
        ({"filter": "n > 5"}, "option 'filter' .*query document"),
        ({"url": "mongodb://127.0.0.1"}, "option 'database' is missing"),
        ({"url": "127.0.0.1:27017"}, "option 'url' .*it takes mongodb://"),
        ({"timeZone": "Mars"}, "option 'timeZone'"),
        ({"schema": "n NUMBER OF THINGS"}, "option 'schema'"),
        ({"arraySeparators": "x"}, "option 'arraySeparators' .*JSON object"),
        ({"password": "p"}, "option 'password' needs 'user'"),
    ],
)
def test_options_are_refused_by_name(
    server: MongoServer, options: dict[str, str], message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        load_reader({"reader": "mongodb", "url": server.url, "collection": "t", **options})


def test_a_server_that_is_not_there_is_told_without_the_password() -> None:
    options = {
        "url": "mongodb://ann:s3cret@127.0.0.1:1/shop",
        "collection": "t",
        "connectTimeout": "0.2",
    }
    with pytest.raises(SourceError, match=r"no server answers within 0\.2 s") as met:
        load_reader(options)[0].schema()
    assert "s3cret" not in str(met.value)
    assert "s3cret" not in repr(load_reader(options)[0].options)


def test_documents_are_inserted_with_their_types(server: MongoServer) -> None:
    rows = pa.table(
        {
            "_id": ["65b9f0000000000000000001"],
            "n": pa.array([5], pa.int64()),
            "small": pa.array([5], pa.int32()),
            "price": pa.array([Decimal("1.50")], pa.decimal128(6, 2)),
            "at": pa.array([MOMENT]),
            "day": [date(2024, 1, 31)],
            "address.city": ["Rome"],
            "tags": ["a,b"],
            "more": ['{"a": [1]}'],
            "nothing": pa.array([None], pa.string()),
            "inner": [{"x": 1, "l": [1, 2]}],
        }
    )
    types = '{"_id": "objectId", "tags": "array:,:string", "more": "json"}'
    write(server, rows, fieldTypes=types, timeZone="Europe/Berlin")
    (document,) = server.documents("t")
    assert document == {
        "_id": bson.ObjectId("65b9f0000000000000000001"),
        "n": 5,
        "small": 5,
        "price": bson.Decimal128("1.50"),
        "at": MOMENT,
        "day": datetime(2024, 1, 30, 23, tzinfo=UTC),
        "address": {"city": "Rome"},
        "tags": ["a", "b"],
        "more": {"a": [1]},
        "nothing": None,
        "inner": {"x": 1, "l": [1, 2]},
    }
    assert (type(document["n"]), type(document["small"])) == (bson.Int64, int)


def test_refused_rows_are_told_and_the_others_written(server: MongoServer) -> None:
    server.put("t", [{"_id": 1}])
    server.refuses = lambda document: (
        "Document failed validation" if document.get("n") == 13 else ""
    )
    at = [MOMENT, MOMENT, MOMENT, MOMENT.replace(microsecond=5)]
    rows = pa.table({"_id": [1, 2, 3, 4], "n": [1, 13, 3, 4], "at": at})
    refused = write(server, rows, dirty=True)
    assert [(row["_id"], reason[:22]) for row, reason in refused] == [
        (1, "E11000 duplicate key e"),
        (2, "Document failed valida"),
        (4, "column 'at': 2024-01-3"),
    ]
    assert [document["_id"] for document in server.documents("t")] == [1, 3]
    with pytest.raises(
        TargetError, match=r"refused 1 of 1 rows, the first of them: E11000.*maxDirtyRows"
    ):
        write(server, pa.table({"_id": [3]}))


def test_what_cannot_be_written_is_refused_before_a_row_moves(server: MongoServer) -> None:
    with pytest.raises(SchemaError, match="column 't' has type time64"):
        write(server, pa.table({"t": pa.array([1], pa.time64("us"))}))
    with pytest.raises(SchemaError, match="'fieldTypes' names 'x'"):
        write(server, pa.table({"n": [1]}), fieldTypes='{"x": "int"}')
    with pytest.raises(OptionError, match="'keyColumns' names '_id'"):
        write(server, pa.table({"n": [1]}), writeMode="upsert")
    for options in (
        {"commit": "job"},
        {"txnAppId": "a", "txnVersion": 1},
        {"fieldTypes": '{"n": "number"}'},
    ):
        with pytest.raises(OptionError):
            write(server, pa.table({"n": [1]}), **options)
    assert server.documents("t") == []


def test_a_lost_connection_while_writing_is_an_error(server: MongoServer) -> None:
    server.breaks += [("insert", "lost")] * 3
    with pytest.raises(ChannelError, match=r"mongodb://127\.0\.0\.1"):
        write(server, pa.table({"n": [1]}))


def job_address(server: MongoServer | FerretServer, collection: str) -> dict[str, Any]:
    return {
        "address": [urlsplit(server.url).netloc],
        "dbName": "shop",
        "collectionName": collection,
    }


@pytest.mark.parametrize(
    ("reads", "message"),
    [
        ({"address": []}, r"reader\.parameter\.address is missing"),
        ({"column": [{"name": "a", "type": "array"}]}, r"column\[0\]\.splitter is missing"),
        (
            {"column": [{"name": "a", "type": "thing"}]},
            r"column\[0\]\.type got 'thing'; it takes one of string",
        ),
        ({"column": []}, r"column got an empty list"),
        ({"address": ["mongodb://h"]}, "address got 'mongodb://h'; it takes host:port"),
    ],
)
def test_faults_of_a_job_are_named(
    server: MongoServer, reads: dict[str, Any], message: str
) -> None:
    given = {**job_address(server, "t"), "column": [{"name": "a", "type": "string"}], **reads}
    with pytest.raises(ChannelError, match=message):
        load_job(make_job("mongodbreader", given))


def test_a_plan_says_how_many_documents_an_overwrite_removes(server: MongoServer) -> None:
    schema = pa.schema([("n", pa.int64())])
    made = load_writer({"url": server.url, "collection": "t"})[0]
    assert made.foreign_content(schema) == ""
    server.put("t", [{"_id": number} for number in range(3)])
    assert made.foreign_content(schema) == "about 3 documents of collection 't', whoever wrote them"


def test_times_are_cut_to_milliseconds_where_that_is_asked_for(server: MongoServer) -> None:
    rows = pa.table({"_id": [4], "at": [MOMENT.replace(microsecond=7_005)]})
    write(server, rows, truncateTimes="true")
    (document,) = server.documents("t")
    assert document["at"].microsecond == 7_000
