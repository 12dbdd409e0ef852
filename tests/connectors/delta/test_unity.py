"""Delta tables by their address in Unity Catalog, over HTTP: the catalog vends credentials, and S3 checks them."""

import json
import logging
import os
import pickle
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("deltalake")
pytest.importorskip("obstore")

from spark_channel.connectors import WriteContext
from spark_channel.connectors.base.feed import FeedLimit, FeedOptions
from spark_channel.connectors.delta.table import DeltaReadOptions, DeltaWriteOptions
from spark_channel.connectors.unity import resolve
from spark_channel.errors import (
    OptionError,
    SourceError,
    SupersededError,
    TargetError,
    UnsupportedError,
)
from tests.connectors.delta.helpers import numbers, read, reader_of, stage, write, writer_of
from tests.servers.unity import TOKEN, UnityServer, unity_server
from tests.servers.web import as_json


@pytest.fixture(scope="module")
def server() -> Iterator[UnityServer]:
    with unity_server() as found:
        yield found


@pytest.fixture
def unity(server: UnityServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[UnityServer]:
    """Without credentials in the environment."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    server.life, server.refuses = 3600.0, None
    server.vended.clear()
    server.web.seen.clear()
    server.web.faults.clear()
    yield server
    server.refuses = None


def ids(unity: UnityServer, uri: str, **more: Any) -> list[int]:
    return sorted(read(uri, **unity.options(), **more)["id"].to_pylist())


def test_a_table_is_written_and_read(unity: UnityServer) -> None:
    uri, more = unity.add("main.shop.one"), unity.options()
    write(uri, pa.table({"p": ["a b", "c"], "id": [1, 2]}), partitionBy="p", **more)
    write(uri, pa.table({"p": ["d"], "id": [3]}), **more)
    assert ids(unity, uri) == [1, 2, 3]
    write(uri, pa.table({"p": ["c"], "id": [4]}), overwrite=True, replaceWhere="p = 'c'", **more)
    write(
        uri, pa.table({"p": ["d", "e"], "id": [3, 5]}), writeMode="upsert", keyColumns="id", **more
    )
    assert ids(unity, uri) == [1, 3, 4, 5]
    wide = pa.table({"p": ["f"], "id": [6], "name": ["x"]})
    write(uri, wide, onSchemaChange="evolve", **more)
    write(uri, pa.table({"p": ["x"], "id": [9]}), overwrite=True, **more)
    assert ids(unity, uri) == [9]
    assert ids(unity, uri, version=0) == [1, 2]
    assert read(uri, columns="id", where="id = 9", **more).to_pydict() == {"id": [9]}
    lake: Any = writer_of(uri, **more)
    lake = lake.lake()
    notes = lake.store.entries(f"{lake.base}/_spark_channel", recursive=True)
    assert [each.path for each in notes if each.is_file] == []
    assert unity.keys.seen()["refused"] == []


def test_readers_get_credentials_that_only_read(unity: UnityServer) -> None:
    uri, more = unity.add("main.shop.rights"), unity.options()
    write(uri, numbers(1), **more)
    assert set(unity.vended) == {"READ_WRITE"}
    unity.vended.clear()
    assert ids(unity, uri) == [1]
    assert set(unity.vended) == {"READ"}


def test_the_driver_asks_once_and_tasks_ask_nothing(unity: UnityServer) -> None:
    uri, more = unity.add("main.shop.once"), unity.options()
    write(uri, *[numbers(each) for each in range(5)], **more)
    assert len(unity.vended) == 1
    assert [asked.method for asked in unity.web.seen] == ["GET", "POST"]


def test_one_claim_by_both_addresses(unity: UnityServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The transaction id that was published by the catalog's name is known by the location, too."""
    uri, more = unity.add("main.shop.both"), unity.options()
    out = writer_of(uri, **more)
    out.commit(*stage(out, [numbers(1)], WriteContext("a", txn=("nightly", 7))))
    unity.keys.issue("ASIAown", "own-token", expires=time.time() + 600, writes=True)
    own = {
        "aws_access_key_id": "ASIAown",
        "aws_secret_access_key": "x",
        "aws_session_token": "own-token",
    }
    at_s3 = f"scheme=http&region=us-east-1&endpoint_override=127.0.0.1%3A{unity.s3_port}"
    location = f"{unity.tables['main.shop.both']['storage_location']}?{at_s3}"
    out = writer_of(location, storageOptions=json.dumps(own))
    out.commit(*stage(out, [numbers(1)], WriteContext("b", txn=("nightly", 7))))
    assert ids(unity, uri) == [1]


def test_an_overtaken_driver_changes_nothing(unity: UnityServer) -> None:
    uri, more = unity.add("main.shop.two"), unity.options()
    write(uri, numbers(0), **more)
    older, later = writer_of(uri, **more), writer_of(uri, **more)
    plan, receipts = stage(older, [numbers(1)], WriteContext("older", txn=("n", 1)))
    later_plan, later_receipts = stage(later, [numbers(1)], WriteContext("later", txn=("n", 1)))
    with pytest.raises(SupersededError):
        older.commit(plan, receipts)
    later.commit(later_plan, later_receipts)
    assert ids(unity, uri) == [0, 1]


def test_a_stream_of_new_versions(unity: UnityServer) -> None:
    uri, more = unity.add("main.shop.stream"), unity.options()
    write(uri, numbers(1), **more)
    feed = reader_of(uri, **more).feed(FeedOptions())
    (start,) = feed.earliest()
    at = feed.latest(start, FeedLimit())
    for batch in (0, 1, 1):  # the last one is a rerun
        out = writer_of(uri, **more)
        out.commit(
            *stage(out, [numbers(10 + batch)], WriteContext(f"b-{batch}", stream=("query", batch)))
        )
    upto = feed.latest(at, FeedLimit())
    splits = [*feed.changes(start, at), *feed.changes(at, upto)]
    found = [
        i for split in splits for rows in feed.read(split) for i in rows.column("id").to_pylist()
    ]
    assert found == [1, 10, 11]


def test_credentials_are_renewed_while_files_are_open(unity: UnityServer) -> None:
    """The emulator refuses what has expired: a writer and a reader outlive their first credentials three times."""
    uri, more = unity.add("main.shop.renewed"), unity.options()
    unity.life = 3.0
    refused = unity.keys.seen()["refused"]
    parts: dict[str, Any] = {"compression": "none", "rowGroupRows": "3", **more}
    out = writer_of(uri, **parts)
    rows = pa.table({"data": [os.urandom(3 << 20) for _ in range(3)]})
    plan = out.prepare(WriteContext("slow"), rows.schema)
    # As in another process, which has only the plan.
    other, theirs = pickle.loads(pickle.dumps((writer_of(uri, **parts), plan)))
    attempt = other.open(theirs, 0, 1)
    for _ in range(5):
        attempt.write(rows.to_batches()[0])
        time.sleep(1.6)
    receipt = attempt.close()
    attempt.rollback()
    out.commit(plan, [receipt])
    assert len(receipt.details["files"]) == 1
    assert unity.vended.count("READ_WRITE") >= 3
    source: Any = reader_of(uri, **more)
    (split,) = source.split(1)
    found = 0
    for batch in pickle.loads(pickle.dumps(source)).read(split):
        found += batch.num_rows
        time.sleep(0.5)
    assert found == 15
    assert unity.vended.count("READ") >= 3
    assert unity.keys.seen()["refused"] == refused


def test_a_renewal_that_fails_ends_the_task_when_the_old_credentials_expire(
    unity: UnityServer, caplog: pytest.LogCaptureFixture
) -> None:
    uri, more = unity.add("main.shop.unrenewed"), unity.options()
    write(uri, numbers(1), **more)
    unity.life = 2.0
    source = reader_of(uri, **more)
    splits = source.split(1)
    unity.refuses = as_json({"error_code": "PERMISSION_DENIED", "message": "no more"}, 403)
    time.sleep(1.5)
    with caplog.at_level(logging.WARNING):
        assert [batch.num_rows for split in splits for batch in source.read(split)] == [1]
    assert "were not renewed" in caplog.text
    time.sleep(0.7)
    with pytest.raises(SourceError, match="vends no READ credentials"):
        reader_of(uri, **more).schema()
    with pytest.raises(SourceError, match="vends no READ credentials"):
        list(source.read(splits[0]))


def test_secrets_are_in_no_repr_and_no_log(
    unity: UnityServer, caplog: pytest.LogCaptureFixture
) -> None:
    uri, more = unity.add("main.shop.secret"), unity.options()
    with caplog.at_level(logging.DEBUG):
        out = writer_of(uri, **more)
        plan, receipts = stage(out, [numbers(1)], WriteContext("job"))
        out.commit(plan, receipts)
        source: Any = reader_of(uri, **more)
        splits = source.split(1)
    table = source.options.unity()
    shown = repr(
        [
            plan,
            receipts,
            source.options,
            splits,
            table,
            table.first,
            table.workspace,
            source.options.login,
        ]
    )
    for secret in (TOKEN, *unity.secrets):
        assert secret not in shown + caplog.text
    assert TOKEN in pickle.dumps(plan).decode("latin-1")  # it renews there, and nowhere shows


@pytest.mark.parametrize("writes", [False, True], ids=["read", "write"])
@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (401, {"message": "bad token"}, r"refuses the token .*bad token.*check unity_access_token"),
        (403, {"message": "no right"}, r"refuses the request .*no right.*USE CATALOG"),
        (404, {"message": "no table"}, r"has no such table \(no table\).*option 'path'"),
        (400, {"message": "odd"}, r"HTTP 400: odd.*check unity_workspace_url"),
        (200, "<html>", r"is not a JSON object.*check unity_workspace_url"),
    ],
)
def test_what_the_catalog_refuses(
    unity: UnityServer, writes: bool, status: int, body: Any, message: str
) -> None:
    unity.web.faults.append(as_json(body, status))
    failure = TargetError if writes else SourceError
    with pytest.raises(failure, match=message) as caught:
        resolve("uc://main.shop.any", unity.settings(), writes=writes)
    assert "uc://main.shop.any" in str(caught.value)
    assert TOKEN not in str(caught.value)


def test_a_catalog_that_vends_nothing(unity: UnityServer) -> None:
    uri = unity.add("main.shop.closed")
    unity.refuses = as_json({"message": "external access is disabled"}, 403)
    with pytest.raises(
        SourceError, match=r"vends no READ credentials.*EXTERNAL USE SCHEMA;.*access is disabled"
    ):
        read(uri, **unity.options())
    with pytest.raises(TargetError, match=r"vends no READ_WRITE credentials.*MODIFY"):
        write(uri, numbers(1), **unity.options())
    unity.refuses = as_json({"expiration_time": 1, "gcp_oauth_token": {"oauth_token": "x"}})
    with pytest.raises(SourceError, match="no credentials for s3://"):
        read(uri, **unity.options())


def test_a_catalog_that_is_busy_is_asked_again(unity: UnityServer) -> None:
    uri = unity.add("main.shop.busy")
    write(uri, numbers(1), **unity.options())
    unity.web.faults += [as_json("busy", 503), None, as_json("slow down", 429)]
    assert ids(unity, uri) == [1]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"data_source_format": "PARQUET"}, "not a Delta table: the catalog says PARQUET"),
        (
            {"storage_location": None, "table_type": "VIEW"},
            "not a Delta table: the catalog says VIEW",
        ),
        ({"storage_location": "gs://box/t"}, "gs://box/t; deltalake takes no token for gs://"),
        ({"storage_location": "file:///tmp/t"}, "file:///tmp/t; the catalog's credentials"),
    ],
)
def test_tables_that_are_refused(unity: UnityServer, more: dict[str, Any], message: str) -> None:
    uri = unity.add("main.shop.other", **more)
    with pytest.raises(UnsupportedError, match=message):
        read(uri, **unity.options())


def test_a_table_that_the_catalog_commits_to_is_refused_by_its_feature(unity: UnityServer) -> None:
    uri, more = unity.add("main.shop.managed"), unity.options()
    write(uri, numbers(1), **more)
    lake: Any = writer_of(uri, **more)
    lake = lake.lake()
    path = f"{lake.base}/_delta_log/{0:020d}.json"
    with lake.store.place.fs.open_input_file(path) as opened:
        lines = [json.loads(line) for line in bytes(opened.read()).splitlines()]
    for line in lines:
        if "protocol" in line:
            features = ["catalogManaged"]
            line["protocol"] = {
                "minReaderVersion": 3,
                "minWriterVersion": 7,
                "readerFeatures": features,
                "writerFeatures": features,
            }
    lake.store.put(path, "\n".join(map(json.dumps, lines)).encode())
    with pytest.raises(UnsupportedError, match="the feature 'catalogManaged': its catalog commits"):
        read(uri, **more)
    with pytest.raises(UnsupportedError, match="catalogManaged"):
        write(uri, numbers(2), **more)


@pytest.mark.parametrize(
    "path", ["uc://main.shop", "uc://a.b.c.d", "uc://a.b.c?x=1", "uc:a.b.c", "uc://", "uc://a..c"]
)
def test_addresses_of_another_form(unity: UnityServer, path: str) -> None:
    with pytest.raises(OptionError, match=r"uc://catalog\.schema\.table"):
        read(path, **unity.options())


def test_a_catalog_that_is_not_named(unity: UnityServer, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = unity.add("main.shop.env")
    with pytest.raises(OptionError, match="where the catalog is; give unity_workspace_url"):
        read(uri)
    store = {"aws_endpoint": f"http://127.0.0.1:{unity.s3_port}", "allow_http": "true"}
    monkeypatch.setenv("DATABRICKS_HOST", unity.url)
    monkeypatch.setenv("UNITY_ALLOW_HTTP_URL", "true")
    monkeypatch.setenv("DATABRICKS_CLIENT_ID", "x")
    with pytest.raises(
        OptionError, match=r"databricks_client_id is not a login.*give unity_access_token"
    ):
        read(uri, storageOptions=json.dumps(store))
    monkeypatch.setenv("DATABRICKS_TOKEN", TOKEN)
    write(uri, numbers(1), storageOptions=json.dumps(store))
    assert read(uri, storageOptions=json.dumps(store)).to_pydict() == {"id": [1]}
    monkeypatch.setenv("UNITY_ALLOW_HTTP_URL", "false")
    with pytest.raises(OptionError, match="unity_allow_http_url"):
        read(uri, storageOptions=json.dumps(store))


def test_a_catalog_that_does_not_answer(
    unity: UnityServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_channel.connectors.unity.client._RETRY_SECONDS", 0.3)
    settings = unity.settings(unity_workspace_url="http://127.0.0.1:9")
    with pytest.raises(SourceError, match=r"does not answer.*check unity_workspace_url"):
        resolve("uc://a.b.c", settings, writes=False)


def test_credentials_of_the_users_own_are_refused(unity: UnityServer) -> None:
    with pytest.raises(
        OptionError, match="has 'aws_access_key_id', and the credentials of a uc:// table"
    ):
        resolve("uc://a.b.c", unity.settings(aws_access_key_id="x"), writes=False)


def test_options_of_the_same_table_are_equal() -> None:
    given = {"path": "uc://a.b.c"}
    assert DeltaReadOptions.parse(given)[0] == DeltaReadOptions.parse(given)[0]
    assert DeltaWriteOptions.parse(given)[0].path == "uc://a.b.c"
