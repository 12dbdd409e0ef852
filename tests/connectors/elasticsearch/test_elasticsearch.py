"""The connector against OpenSearch, and against a relay for the faults that it cannot be made to produce."""

import base64
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from spark_channel.connectors import FetchSize, WriteContext, load_reader, load_writer
from spark_channel.connectors.base.contract import Reader
from spark_channel.connectors.elasticsearch import client as elastic_http
from spark_channel.datax import load_job
from spark_channel.errors import ChannelError, OptionError, SourceError, TargetError
from spark_channel.testing import reader_conformance
from tests.behaviour.datax.test_end_to_end import carry_out
from tests.datax.small_jobs import make_job
from tests.servers.opensearch import OpenSearchServer, opensearch_server

MOMENT = datetime(2024, 1, 31, 8, 30, tzinfo=UTC)


pytestmark = [
    pytest.mark.real_server("OpenSearch", "elasticsearch"),
    pytest.mark.real_server("Elasticsearch", "elasticsearch"),
]


@pytest.fixture(
    scope="module",
    params=[
        "opensearch",
        pytest.param("elasticsearch", marks=pytest.mark.every_server),  # starts in ten seconds
    ],
)
def running(request: pytest.FixtureRequest) -> Iterator[OpenSearchServer]:
    with opensearch_server(request.param) as server:
        yield server


@pytest.fixture
def server(running: OpenSearchServer) -> Iterator[OpenSearchServer]:
    yield running
    running.clear()


def fill(server: OpenSearchServer, count: int) -> None:
    server.put(
        "t", {f"id{n}": {"n": n, "part": {"x": n / 2}, "tags": ["a", str(n)]} for n in range(count)}
    )


def reader(server: OpenSearchServer, **options: Any) -> Reader:
    return load_reader({"reader": "elasticsearch", "url": server.url, "index": "t", **options})[0]


def read(found: Reader, advice: int = 1) -> pa.Table:
    schema = found.schema()
    return pa.Table.from_batches(
        [batch for split in found.split(advice) for batch in found.read(split)], schema
    )


def write(
    server: OpenSearchServer, rows: pa.Table, *, overwrite: bool = False, **options: Any
) -> list[tuple[Any, str]]:
    dirty = options.pop("dirty", False)
    writer, _ = load_writer({"writer": "elasticsearch", "url": server.url, "index": "t", **options})
    plan = writer.prepare(WriteContext("job", overwrite=overwrite), rows.schema)
    refused: list[tuple[Any, str]] = []
    task = writer.open(plan, 0, 0)
    if dirty:
        task.tolerant, task.refused = (
            True,
            lambda row, reason: refused.append((row.to_pylist()[0], reason)),
        )
    try:
        for batch in rows.to_batches():
            task.write(batch)
        receipt = task.close()
    except BaseException:
        task.rollback()
        raise
    assert receipt.rows == rows.num_rows - len(refused)
    writer.commit(plan, [receipt])
    return refused


def test_the_reader_keeps_its_promises(server: OpenSearchServer) -> None:
    fill(server, 40)
    expected = pa.table(
        {"_id": [f"id{n}" for n in range(40)], "n": range(40), "part.x": [n / 2 for n in range(40)]}
    )
    schema = "_id STRING, n BIGINT, `part.x` DOUBLE"
    reader_conformance(lambda: reader(server, schema=schema), expected=expected, advice=2)
    assert server.scrolls() == 0  # each that was left early was ended


def test_columns_are_found_and_filtered(server: OpenSearchServer) -> None:
    fill(server, 5)
    found = read(reader(server), 2).sort_by("n")
    assert found.column_names == ["_id", "n", "part", "tags"]
    assert found.slice(4).to_pylist() == [
        {"_id": "id4", "n": 4, "part": '{"x":2.0}', "tags": '["a","4"]'}
    ]
    some = reader(
        server, filter='{"term": {"n": 3}}', arraySeparators='{"tags": "|"}', columns="tags,_id"
    )
    assert read(some).to_pylist() == [{"tags": "a|3", "_id": "id3"}]
    assert reader(server, schema="n BIGINT", filter='{"term": {"n": 9}}').split(3) == []


def test_large_documents_are_asked_for_a_few_at_a_time(
    server: OpenSearchServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """5 000 of more than 53 kB are more than one answer may have: such an index could not be read."""
    server.put("t", {f"id{n}": {"n": n, "text": "x" * 4_000} for n in range(300)})
    monkeypatch.setattr(elastic_http, "MOST_BYTES", 1 << 20)
    found = reader(server, schema="n BIGINT, text STRING", sampleRows=10)
    batches = [batch for split in found.split(1) for batch in found.read(split)]
    assert sorted(n for batch in batches for n in batch["n"].to_pylist()) == list(range(300))
    assert {20 < batch.num_rows < 40 for batch in batches[:-1]} == {True}


def test_a_portion_that_is_lost_ends_the_read(server: OpenSearchServer) -> None:
    """The scroll has moved on: asked again, it would give the next portion, and rows would be missing."""
    fill(server, 30)
    for status in (0, 503):
        found = reader(server, schema="n BIGINT")
        found.fetch_size = FetchSize(rows=10)
        batches = found.read(found.split(1)[0])
        next(batches)
        server.relay.breaks.append(("_search/scroll", status))
        with pytest.raises(SourceError, match=r"does not answer|is busy"):
            list(batches)
    assert server.relay.breaks == []


def test_an_index_without_its_documents_is_not_read_as_nulls(server: OpenSearchServer) -> None:
    server.ask("PUT", "/t", {"mappings": {"_source": {"enabled": False}}})
    fill(server, 3)
    with pytest.raises(
        SourceError, match=r"document 'id.' has no _source.*index the documents again"
    ):
        read(reader(server, schema="_id STRING, n BIGINT"))


def test_a_busy_server_is_asked_again(server: OpenSearchServer) -> None:
    fill(server, 3)
    server.relay.breaks += [("_count", 429), ("_count", 0)]
    assert len(reader(server, schema="n BIGINT").split(1)) == 1
    server.relay.breaks += [("_count", 503)] * 50
    with pytest.raises(SourceError, match="HTTP 503"):
        reader(server, schema="n BIGINT", retryTimeout="0.3").split(1)


def test_the_login(server: OpenSearchServer) -> None:
    fill(server, 1)
    server.relay.login = "Basic " + base64.b64encode(b"ann:s3cret").decode()
    assert read(reader(server, user="ann", password="s3cret", schema="n BIGINT")).num_rows == 1
    with pytest.raises(
        SourceError, match=r"HTTP 401: unable to authenticate user; check 'user'"
    ) as met:
        reader(server, user="ann", password="wr0ng").schema()
    assert "wr0ng" not in str(met.value)
    server.relay.login = "ApiKey abc"
    assert read(reader(server, apiKey="abc", schema="n BIGINT")).num_rows == 1


def test_rows_become_documents(server: OpenSearchServer) -> None:
    rows = pa.table(
        {
            "_id": ["a"],
            "n": [1],
            "price": [Decimal("1.50")],
            "at": [MOMENT],
            "raw": [b"\0\1"],
            "tags": ["x,y"],
            "more": ['{"b": [1]}'],
            "inner": [{"l": [1, None]}],
        }
    )
    write(server, rows, arraySeparators='{"tags": ","}', jsonColumns="more")
    assert server.documents("t") == {
        "a": {
            "n": 1,
            "price": "1.50",
            "at": "2024-01-31T08:30:00.000+00:00",
            "raw": "AAE=",
            "tags": ["x", "y"],
            "more": {"b": [1]},
            "inner": {"l": [1, None]},
        }
    }


def test_a_write_by_id_that_is_run_again_changes_nothing(server: OpenSearchServer) -> None:
    rows = pa.table({"key": [1, 2, 1], "name": ["a", "b", "last"]})
    server.put("t", {"2": {"kept": True}})
    for _ in range(2):
        write(server, rows, writeMode="upsert", idColumn="key", batchSize="2")
    assert server.documents("t") == {
        "1": {"key": 1, "name": "last"},
        "2": {"kept": True, "key": 2, "name": "b"},
    }
    write(server, rows, writeMode="replace", idColumn="key")
    assert server.documents("t")["2"] == {"key": 2, "name": "b"}
    write(server, pa.table({"name": ["x", "y"]}), overwrite=True)
    assert sorted(each["name"] for each in server.documents("t").values()) == ["x", "y"]


def test_refused_documents_are_told_and_the_others_written(server: OpenSearchServer) -> None:
    server.put("t", {"a": {"n": 1}})
    rows = pa.table({"_id": ["a", "b", None, "c"], "n": ["1", "unfit", "3", "4"]})
    refused = write(server, rows, dirty=True)
    conflict, unfit, no_id = (reason for _, reason in refused)
    assert re.fullmatch(r"version_conflict.*document already exists.*\(HTTP 409\)", conflict)
    assert re.fullmatch(
        r"mapper_parsing_exception: .*\[n\] of type \[long\].*'unfit'.*\(HTTP 400\)", unfit
    )
    assert no_id == "id column '_id' is NULL"
    assert server.documents("t")["c"] == {"n": "4"}
    with pytest.raises(TargetError, match=r"refused 1 of 1 rows.*already exists"):
        write(server, pa.table({"_id": ["a"]}))


def test_documents_for_which_there_is_no_room_are_sent_again(server: OpenSearchServer) -> None:
    server.relay.crowded = 2
    write(server, pa.table({"n": [1, 2, 3]}))
    assert sorted(each["n"] for each in server.documents("t").values()) == [1, 2, 3]
    server.relay.crowded = 10_000
    with pytest.raises(TargetError, match=r"overloaded .* write slower"):
        write(server, pa.table({"n": [1]}), retryTimeout="0.2")


def test_an_insert_is_not_sent_twice(server: OpenSearchServer) -> None:
    """Documents without ids that have arrived would arrive twice; those with ids replace themselves."""
    server.relay.breaks.append(("_bulk", 0))
    with pytest.raises(TargetError, match="does not answer"):
        write(server, pa.table({"n": [1]}))
    assert [each["n"] for each in server.documents("t").values()] == [1], "it has arrived"
    server.relay.breaks.append(("_bulk", 0))
    write(server, pa.table({"_id": ["a"], "n": [2]}), writeMode="replace")
    assert sorted(each["n"] for each in server.documents("t").values()) == [1, 2]


def test_aliases_patterns_and_templates(server: OpenSearchServer) -> None:
    properties = {"n": {"type": "integer"}, "at": {"type": "date"}}
    template = {
        "index_patterns": ["logs-*"],
        "template": {"mappings": {"properties": properties, "dynamic": "strict"}},
    }
    server.ask("PUT", "/_index_template/logs", template)
    try:
        for month in (1, 2):
            rows = pa.table({"_id": [f"m{month}"], "n": [month], "at": [MOMENT]})
            write(server, rows, index=f"logs-{month}")
        refused = write(server, pa.table({"_id": ["x"], "other": [1]}), index="logs-1", dirty=True)
        assert "strict_dynamic_mapping_exception" in refused[0][1]
        add = [{"add": {"index": "logs-2", "alias": "newest", "is_write_index": True}}]
        server.ask("POST", "/_aliases", {"actions": add})
        write(server, pa.table({"_id": ["m3"], "n": [3], "at": [MOMENT]}), index="newest")
    finally:
        server.ask("DELETE", "/_index_template/logs")
    schema = "_id STRING, n INT, at TIMESTAMP"
    for index, ids in (("newest", ["m2", "m3"]), ("logs-*", ["m1", "m2", "m3"])):
        found = read(reader(server, index=index, schema=schema), 3).sort_by("_id").to_pylist()
        assert [row["_id"] for row in found] == ids
        assert {row["at"] for row in found} == {MOMENT}
    write(server, pa.table({"_id": ["m4"], "n": [4]}), index="newest", overwrite=True)
    assert server.documents("logs-*").keys() == {"m1", "m4"}


def test_a_mapping_that_changed_a_value_shows_the_document_as_it_was_written(
    server: OpenSearchServer,
) -> None:
    """`_source` is the text that was sent, whatever the field's type makes of it."""
    properties = {"n": {"type": "byte"}, "x": {"type": "float"}}
    server.ask("PUT", "/t", {"mappings": {"properties": properties}})
    refused = write(
        server, pa.table({"_id": ["a", "b"], "n": [7, 300], "x": [0.1, 0.2]}), dirty=True
    )
    assert ["byte" in reason for _, reason in refused] == [True]
    found = read(reader(server, schema="_id STRING, n INT, x DOUBLE")).to_pylist()
    assert found == [{"_id": "a", "n": 7, "x": 0.1}]


def test_documents_that_come_while_an_index_is_read_are_not_read(server: OpenSearchServer) -> None:
    fill(server, 30)
    found = reader(server, schema="n BIGINT")
    found.fetch_size = FetchSize(rows=10)
    batches = found.read(found.split(1)[0])
    read = next(batches).num_rows
    server.put("t", {f"new{n}": {"n": 100 + n} for n in range(10)})
    assert read + sum(batch.num_rows for batch in batches) == 30


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"writeMode": "upsert"}, "which needs ids: name their column with 'idColumn'"),
        ({"idColumn": "x"}, "option 'idColumn' names 'x'"),
        ({"jsonColumns": "x"}, "option 'jsonColumns' names 'x'"),
        ({"commit": "job"}, "option 'commit' got 'job'"),
        ({"url": "h:9200"}, "option 'url' .*http://host:9200"),
        ({"index": "a/b"}, "option 'index' got 'a/b'"),
        ({"user": "ann"}, "'user' and 'password' go together"),
        ({"createIndex": "[]"}, "option 'createIndex'"),
    ],
)
def test_options_are_refused_by_name(
    server: OpenSearchServer, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        write(server, pa.table({"n": [1]}), **options)


def test_a_datax_job_moves_documents(
    server: OpenSearchServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "UTC")
    server.ask("PUT", "/t", {"mappings": {"properties": {"n": {"type": "keyword"}}}})
    server.put("t", {f"id{n}": {"n": n, "tags": [{"l": n}]} for n in range(3)})
    server.put("t", {"bad": {"n": "none"}})
    reads = {
        "endpoint": server.url,
        "index": "t",
        "column": [{"name": "_id"}, {"name": "n", "type": "long"}, {"name": "tags"}],
        "search": [{"query": {"match_all": {}}}],
    }
    writes = {
        "endpoint": server.url,
        "index": "u",
        "cleanup": True,
        "settings": {"number_of_shards": 1},
        "column": [
            {"name": "pk", "type": "id"},
            {"name": "n", "type": "integer"},
            {"name": "tags", "type": "nested"},
        ],
    }
    job = make_job("elasticsearchreader", reads, "elasticsearchwriter", writes)
    for _ in range(2):
        refused = carry_out(load_job(job).spec)
        assert [one.rows.to_pylist()[0]["n"] for one in refused] == ["none"]
        assert server.documents("u") == {f"id{n}": {"n": n, "tags": [{"l": n}]} for n in range(3)}
    made = server.ask("GET", "/u")["u"]
    assert made["settings"]["index"]["number_of_shards"] == "1"
    assert made["mappings"]["properties"] == {
        "n": {"type": "integer"},
        "tags": {"type": "nested", "properties": {"l": {"type": "long"}}},
    }


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"column": [{"name": "a", "type": "thing"}]},
            r"column\[0\]\.type got 'thing'; it takes one of id",
        ),
        ({"column": [{"type": "id"}, {"type": "id"}]}, "several columns of type id"),
        (
            {"actionType": "update"},
            "actionType got 'update'; it takes index, create, or update with a column",
        ),
        ({"alias": "x"}, "alias is not supported"),
    ],
)
def test_faults_of_a_job_are_named(changed: dict[str, Any], message: str) -> None:
    given = {
        "endpoint": "http://h:9200",
        "index": "t",
        "column": [{"name": "a", "type": "long"}],
        **changed,
    }
    with pytest.raises(ChannelError, match=message):
        load_job(make_job(writer="elasticsearchwriter", writes=given))


def test_splits_are_marked_with_the_server_and_not_with_its_login(server: OpenSearchServer) -> None:
    fill(server, 3)
    found = reader(server, schema="_id STRING", user="etl", password="s3cret")
    host = server.url.partition("//")[2]
    assert {found.resource_mark(split) for split in found.split(2)} == {host}


def test_a_plan_says_how_many_documents_an_overwrite_removes(server: OpenSearchServer) -> None:
    schema = pa.schema([("n", pa.int64())])
    made = load_writer({"writer": "elasticsearch", "url": server.url, "index": "t"})[0]
    assert made.foreign_content(schema) == ""
    fill(server, 3)
    assert made.foreign_content(schema) == "3 documents of index 't', whoever wrote them"
