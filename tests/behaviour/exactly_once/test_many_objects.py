"""Ten thousand objects on a real S3 store, by two jobs at once: each row is there once, also after a rerun."""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")
pytest.importorskip("sqlalchemy")

from pyiceberg.catalog import load_catalog

from spark_channel.connectors import WriteContext, load_reader, load_writer
from tests.servers.stores import ObjectServer, object_server

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3_600)]

OBJECTS, TASKS = 10_000, 4


@pytest.fixture(scope="module")
def server() -> Iterator[ObjectServer]:
    with object_server("s3") as found, pytest.MonkeyPatch.context() as patch:
        for name, value in found.environment.items():
            patch.setenv(name, value)
        yield found


def _files(server: ObjectServer, folder: Path) -> dict[str, Any]:
    return {"path": server.uri("parquet/out")}


def _delta(server: ObjectServer, folder: Path) -> dict[str, Any]:
    return {"path": server.uri("delta/table")}


def _iceberg(server: ObjectServer, folder: Path) -> dict[str, Any]:
    catalog_of = {
        "type": "sql",
        "uri": f"sqlite:///{folder}/catalog.db",
        "warehouse": f"s3://{server.bucket}/iceberg",
        "s3.endpoint": f"http://127.0.0.1:{server.port}",
        "s3.region": "us-east-1",
        "s3.access-key-id": server.environment["AWS_ACCESS_KEY_ID"],
        "s3.secret-access-key": server.environment["AWS_SECRET_ACCESS_KEY"],
    }
    catalog = load_catalog("tests", **catalog_of)
    catalog.create_namespace("shop")
    catalog.close()
    return {"dbtable": "shop.t", "catalog": "tests", "catalogProperties": json.dumps(catalog_of)}


KINDS: dict[str, Callable[[ObjectServer, Path], dict[str, Any]]] = {
    "parquet": _files,
    "delta": _delta,
    "iceberg": _iceberg,
}


@pytest.mark.parametrize("kind", KINDS)
def test_each_row_is_there_once(server: ObjectServer, tmp_path: Path, kind: str) -> None:
    options = KINDS[kind](server, tmp_path)

    def write(rows: range, version: int, *, overwrite: bool = False) -> None:
        """An object for each row."""
        table = pa.table({"p": pa.array(rows, pa.int64()), "id": pa.array(rows, pa.int64())})
        by_value: dict[str, Any] = {} if kind == "parquet" else {"partitionBy": "p"}
        out = load_writer({"writer": kind, **by_value, **options})[0]
        context = WriteContext(f"job-{version}", txn=(f"job-{rows}", version), overwrite=overwrite)
        plan = out.prepare(context, table.schema)
        count = TASKS if by_value else len(rows)
        size = -(-len(rows) // count)

        def task(number: int) -> Any:
            attempt = out.open(plan, number, number)
            for batch in table.slice(number * size, size).to_batches():
                attempt.write(batch)
            return attempt.close()

        with ThreadPoolExecutor(TASKS) as tasks:
            receipts = list(tasks.map(task, range(count)))
        out.commit(plan, receipts)

    def ids() -> list[int]:
        source = load_reader({"reader": kind, **options})[0]
        source.schema()
        batches = [batch for split in source.split(4) for batch in source.read(split)]
        return sorted(i for batch in batches for i in batch.column("id").to_pylist())

    write(range(TASKS), 0)
    write(range(1), 1, overwrite=True)  # the table is there: two jobs append to it
    halves = (range(1, OBJECTS // 2), range(OBJECTS // 2, OBJECTS))
    with ThreadPoolExecutor(2) as jobs:
        list(jobs.map(write, halves, (2, 3)))
    assert ids() == list(range(OBJECTS))
    write(halves[0], 2)
    assert ids() == list(range(OBJECTS))
    write(range(10), 4, overwrite=True)
    assert ids() == list(range(10))
