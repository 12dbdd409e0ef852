"""Delta tables on S3, GCS and Azure over HTTP: commits are conditional puts."""

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pytest

pytest.importorskip("deltalake")
pytest.importorskip("obstore")

from spark_channel.connectors import WriteContext
from spark_channel.connectors.base.feed import FeedLimit, FeedOptions
from spark_channel.connectors.files.compact import format_of_folder
from spark_channel.connectors.files.filesystem import locate
from spark_channel.errors import ChannelError, SchemaError, SupersededError, UnsupportedError
from tests.connectors.delta.helpers import numbers, read, reader_of, stage, write, writer_of
from tests.servers.stores import KINDS, VERSIONED, ObjectServer, object_server, start_gcs


@dataclass
class Shop:
    """Tables in one store. `options`: Azurite does not list from a name on, which object_store knows by a setting."""

    server: ObjectServer
    options: dict[str, Any]

    def uri(self, name: str) -> str:
        return self.server.uri(f"{name}/table")

    def write(self, uri: str, *tables: pa.Table, **more: Any) -> None:
        write(uri, *tables, **self.options, **more)

    def read(self, uri: str, **more: Any) -> pa.Table:
        return read(uri, **self.options, **more)

    def writer(self, uri: str) -> Any:
        return writer_of(uri, **self.options)

    def ids(self, uri: str, **more: Any) -> list[int]:
        return sorted(self.read(uri, **more)["id"].to_pylist())


@pytest.fixture(scope="module", params=(*KINDS, VERSIONED))
def shop(request: pytest.FixtureRequest) -> Iterator[Shop]:
    with object_server(request.param) as found, pytest.MonkeyPatch.context() as patch:
        for name, value in found.environment.items():
            patch.setenv(name, value)
        emulated = {"storageOptions": json.dumps({"azure_storage_use_emulator": "true"})}
        yield Shop(found, emulated if request.param == "azure" else {})


def test_a_table_is_written_and_read(shop: Shop) -> None:
    uri = shop.uri("one")
    table = pa.table({"p": ["a b", "c"], "id": [1, 2]})
    shop.write(uri, table, partitionBy="p")
    shop.write(uri, pa.table({"p": ["d"], "id": [3]}))
    assert shop.ids(uri) == [1, 2, 3]
    shop.write(uri, pa.table({"p": ["c"], "id": [4]}), overwrite=True, replaceWhere="p = 'c'")
    assert shop.ids(uri) == [1, 3, 4]
    shop.write(uri, pa.table({"p": ["d", "e"], "id": [3, 5]}), writeMode="upsert", keyColumns="id")
    assert shop.ids(uri) == [1, 3, 4, 5]
    shop.write(uri, pa.table({"p": ["x"], "id": [9]}), overwrite=True)
    assert shop.ids(uri) == [9]
    assert shop.ids(uri, version=0) == [1, 2]
    assert shop.read(uri, columns="id", where="id = 9").to_pydict() == {"id": [9]}
    lake = shop.writer(uri).lake()
    notes = lake.store.entries(f"{lake.base}/_spark_channel", recursive=True)
    assert [each.path for each in notes if each.is_file] == []


@pytest.mark.lowest
def test_new_columns(shop: Shop) -> None:
    uri = shop.uri("columns")
    shop.write(uri, numbers(1))
    wide = pa.table({"id": [2], "name": ["b"]})
    with pytest.raises(SchemaError, match="has no column 'name'"):
        shop.write(uri, wide)
    shop.write(uri, wide, onSchemaChange="evolve")
    assert shop.read(uri).sort_by("id").to_pydict() == {"id": [1, 2], "name": [None, "b"]}


def test_a_stream_of_new_versions(shop: Shop) -> None:
    uri = shop.uri("stream")
    shop.write(uri, numbers(1))
    feed = reader_of(uri, **shop.options).feed(FeedOptions())
    (start,) = feed.earliest()
    at = feed.latest(start, FeedLimit())
    for batch in (0, 1, 1):  # the last one is a rerun
        out = shop.writer(uri)
        context = WriteContext(f"batch-{batch}", stream=("query", batch))
        out.commit(*stage(out, [numbers(10 + batch)], context))
    upto = feed.latest(at, FeedLimit())
    splits = [*feed.changes(start, at), *feed.changes(at, upto)]
    assert [
        i for split in splits for rows in feed.read(split) for i in rows.column("id").to_pylist()
    ] == [
        1,
        10,
        11,
    ]


def test_an_overtaken_driver_changes_nothing(shop: Shop) -> None:
    uri = shop.uri("two")
    shop.write(uri, numbers(0))
    older, later = shop.writer(uri), shop.writer(uri)
    plan, receipts = stage(older, [numbers(1)], WriteContext("older", txn=("n", 1)))
    later_plan, later_receipts = stage(later, [numbers(1)], WriteContext("later", txn=("n", 1)))
    with pytest.raises(SupersededError):
        older.commit(plan, receipts)
    later.commit(later_plan, later_receipts)
    assert shop.ids(uri) == [0, 1]


def test_jobs_that_create_and_append_at_once(shop: Shop) -> None:
    uri = shop.uri("three")
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for each in range(3):
                shop.write(uri, numbers(number * 10 + each), job=f"job-{number}-{each}")
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert errors == []
    assert shop.ids(uri) == sorted(number * 10 + each for number in range(3) for each in range(3))


def test_credentials_of_an_option(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """For the log, which deltalake writes, and for the data files, which pyarrow does."""
    if not shop.server.environment:
        return  # the GCS emulator knows no credentials
    settings = {
        name.lower(): value
        for name, value in shop.server.environment.items()
        if "AWS_EC2" not in name
    }
    for name in settings:
        monkeypatch.delenv(name.upper())
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    more = json.loads(shop.options.get("storageOptions", "{}"))
    if url := settings.pop("azurite_blob_storage_url", None):
        monkeypatch.setenv("AZURITE_BLOB_STORAGE_URL", url)
    options: dict[str, Any] = {"storageOptions": json.dumps({**more, **settings})}
    uri = shop.uri("login")
    write(uri, numbers(1), **options)
    write(uri, numbers(2), overwrite=True, **options)
    assert read(uri, **options).to_pydict() == {"id": [2]}
    assert format_of_folder(uri, options) == "delta"
    if shop.server.kind == "azure":
        return  # Azurite's key is known to object_store
    with pytest.raises(ChannelError):
        shop.write(shop.uri("login-of-the-environment"), numbers(1))


def test_a_store_that_ignores_the_condition_is_refused(tmp_path: Path) -> None:
    """Of two jobs that commit one version, the first would lose its rows."""
    write(tmp_path / "t", numbers(1))
    with start_gcs(conditional=False) as server:
        place = locate(server.uri("plain/t"))
        pafs.copy_files(str(tmp_path / "t"), place.path, destination_filesystem=place.fs)
        assert read(server.uri("plain/t"))["id"].to_pylist() == [1]
        for uri in (server.uri("plain/t"), server.uri("plain/new")):
            for overwrite in (True, False):
                with pytest.raises(UnsupportedError, match="ignores the condition"):
                    write(uri, numbers(2), overwrite=overwrite)
        assert read(server.uri("plain/t"))["id"].to_pylist() == [1]


def test_the_uris_secrets_are_not_shown(shop: Shop) -> None:
    settings = json.dumps({"aws_access_key_id": "x", "aws_secret_access_key": "s3cret"})
    shown = repr(reader_of(shop.uri("four"), storageOptions=settings).options)
    assert "s3cret" not in shown
