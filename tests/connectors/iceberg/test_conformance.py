"""The Iceberg connector keeps the contract that every connector keeps."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

pytest.importorskip("pyiceberg")
pytest.importorskip("sqlalchemy")

from pyiceberg.catalog import Catalog
from pyiceberg.utils.concurrent import ExecutorFactory

from spark_channel.testing import reader_conformance, writer_conformance
from tests.connectors.iceberg.helpers import (
    leftovers,
    reader_of,
    rows_by_pyiceberg,
    write,
    writer_of,
)

pytestmark = pytest.mark.real_server("pyiceberg", "iceberg")


@pytest.fixture(autouse=True)
def started_pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """pyiceberg's pool starts a thread when no other is idle: here all run before the kit counts threads."""
    threads = 4
    all_run = threading.Barrier(threads)
    with ThreadPoolExecutor(threads) as pool:
        for waiting in [pool.submit(all_run.wait) for _ in range(threads)]:
            waiting.result()
        monkeypatch.setattr(ExecutorFactory, "get_or_create", staticmethod(lambda: pool))
        yield


def test_the_reader(tmp_path: Path, catalog: Catalog) -> None:
    table = pa.table({"id": range(600), "name": [f"name {n}" for n in range(600)]})
    write(tmp_path, *[table.slice(n * 120, 120) for n in range(5)])
    reader_conformance(partial(reader_of, tmp_path, splitBytes="800"), expected=table)
    some = table.filter(pc.less(table["id"], 140))
    reader_conformance(partial(reader_of, tmp_path, where="id < 140"), expected=some)
    names = table.select(["name"])
    reader_conformance(partial(reader_of, tmp_path, columns="name"), expected=names)


def test_a_partitioned_table(tmp_path: Path, catalog: Catalog) -> None:
    table = pa.table({"day": [f"2024-01-0{n % 3 + 1}" for n in range(300)], "id": range(300)})
    write(tmp_path, table, partitionBy="day")
    assert [field.name for field in catalog.load_table("shop.t").spec().fields] == ["day"]
    reader_conformance(partial(reader_of, tmp_path), expected=table)


def test_an_empty_table(tmp_path: Path, catalog: Catalog) -> None:
    nothing = pa.schema([("id", pa.int64()), ("name", pa.string())]).empty_table()
    write(tmp_path, nothing)
    reader_conformance(partial(reader_of, tmp_path), expected=nothing)


@pytest.mark.parametrize("there", [True, False], ids=["existing", "new"])
@pytest.mark.parametrize("partition", [None, "name"])
def test_the_writer(tmp_path: Path, catalog: Catalog, there: bool, partition: str | None) -> None:
    options: dict[str, Any] = {} if partition is None else {"partitionBy": partition}
    if there:
        write(tmp_path, pa.table({"id": [0], "name": ["name 0"]}), **options)

    def seen() -> pa.Table | None:
        return rows_by_pyiceberg(catalog, "shop.t") if catalog.table_exists("shop.t") else None

    writer_conformance(
        partial(writer_of, tmp_path, **options),
        read_back=seen,
        commits=["job"],
        leftovers=lambda: leftovers(catalog, "shop.t"),
    )
