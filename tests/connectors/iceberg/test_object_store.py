"""Iceberg tables on S3, GCS and Azure over HTTP: the catalog commits, files are in the bucket."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyiceberg")
pytest.importorskip("sqlalchemy")

from pyiceberg.catalog import load_catalog

from spark_channel.connectors import WriteContext
from spark_channel.connectors.lake.writer import LakeWriter
from spark_channel.errors import SupersededError
from tests.connectors.iceberg.helpers import numbers, read, stage, write, writer_of
from tests.servers.stores import BUCKET, VERSIONED, ObjectServer, object_server

SLOW = pytest.param("azure", marks=pytest.mark.soak)
"""Azurite lets pyarrow's removal of an object wait for 7 to 15 s, which is most of these tests' two minutes."""


@pytest.fixture(scope="module", params=["s3", VERSIONED, "gcs", SLOW])
def server(request: pytest.FixtureRequest) -> Iterator[ObjectServer]:
    with object_server(request.param) as found:
        yield found


def _warehouse(server: ObjectServer, name: str) -> dict[str, str]:
    """Where tables are, and pyiceberg's own properties of the store: the environment has no credentials."""
    address = f"127.0.0.1:{server.port}"
    match server.kind:
        case "s3":
            return {
                "warehouse": f"s3://{server.bucket}/{name}",
                "s3.endpoint": f"http://{address}",
                "s3.region": "us-east-1",
                "s3.access-key-id": server.environment["AWS_ACCESS_KEY_ID"],
                "s3.secret-access-key": server.environment["AWS_SECRET_ACCESS_KEY"],
            }
        case "gcs":
            return {
                "warehouse": f"gs://{BUCKET}/{name}",
                "gcs.service.host": f"http://{address}",
                "gcs.oauth2.token": "t0ken",
                "gcs.oauth2.token-expires-at": str(1000 * 4_102_444_800),
            }
        case _:
            return {
                "warehouse": f"abfs://{BUCKET}@devstoreaccount1.dfs.core.windows.net/{name}",
                "adls.account-name": "devstoreaccount1",
                "adls.account-key": server.environment["AZURE_STORAGE_ACCOUNT_KEY"],
                "adls.blob-storage-authority": address,
                "adls.blob-storage-scheme": "http",
                "adls.dfs-storage-authority": address,
                "adls.dfs-storage-scheme": "http",
            }


@pytest.fixture
def options(server: ObjectServer, tmp_path: Path) -> dict[str, Any]:
    catalog_of = {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/catalog.db",
        **_warehouse(server, tmp_path.name),
    }
    catalog = load_catalog("tests", **catalog_of)
    catalog.create_namespace("shop")
    catalog.close()
    return {"catalogProperties": json.dumps(catalog_of)}


def test_a_table_is_written_replaced_and_read(tmp_path: Path, options: dict[str, Any]) -> None:
    write(tmp_path, pa.table({"p": ["a b", "c"], "id": [1, 2]}), partitionBy="p", **options)
    write(tmp_path, pa.table({"p": ["d"], "id": [3]}), **options)
    assert sorted(read(tmp_path, **options)["id"].to_pylist()) == [1, 2, 3]
    write(
        tmp_path,
        pa.table({"p": ["c"], "id": [4]}),
        overwrite=True,
        replaceWhere="p = 'c'",
        **options,
    )
    write(
        tmp_path, pa.table({"p": ["x"], "id": [1]}), writeMode="upsert", keyColumns="id", **options
    )
    assert sorted(read(tmp_path, **options)["id"].to_pylist()) == [1, 3, 4]
    writer = writer_of(tmp_path, **options)
    assert isinstance(writer, LakeWriter)
    lake = writer.lake()
    assert lake.open() is not None
    notes = lake.store.entries(f"{lake.base}/_spark_channel", recursive=True)
    assert [each.path for each in notes if each.is_file] == []


def test_an_overtaken_driver_changes_nothing(tmp_path: Path, options: dict[str, Any]) -> None:
    write(tmp_path, numbers(0), **options)
    older, later = writer_of(tmp_path, **options), writer_of(tmp_path, **options)
    plan, receipts = stage(older, [numbers(1)], WriteContext("older", txn=("n", 1)))
    later_plan, later_receipts = stage(later, [numbers(1)], WriteContext("later", txn=("n", 1)))
    with pytest.raises(SupersededError):
        older.commit(plan, receipts)
    later.commit(later_plan, later_receipts)
    assert sorted(read(tmp_path, **options)["id"].to_pylist()) == [0, 1]
