"""Iceberg tables of a REST catalog, over HTTP: created, committed to, read, and fenced by its own requirements."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyiceberg")
pytest.importorskip("sqlalchemy")

from pyiceberg.catalog import Catalog

from spark_channel.connectors import WriteContext
from spark_channel.errors import SourceError, SupersededError
from tests.connectors.iceberg.helpers import (
    leftovers,
    numbers,
    read,
    rows_by_pyiceberg,
    stage,
    write,
    writer_of,
)
from tests.servers.iceberg_rest import TOKEN, RestCatalogServer, serve


@pytest.fixture
def server(catalog: Catalog) -> Iterator[RestCatalogServer]:
    with serve(catalog) as found:
        yield found


def _options(server: RestCatalogServer, token: str = TOKEN) -> dict[str, Any]:
    return {"catalogProperties": json.dumps({"type": "rest", "uri": server.uri, "token": token})}


def test_a_table_is_created_written_and_read(
    tmp_path: Path, catalog: Catalog, server: RestCatalogServer
) -> None:
    more = _options(server)
    write(tmp_path, pa.table({"day": ["a", "b"], "id": [1, 2]}), partitionBy="day", **more)
    write(tmp_path, pa.table({"day": ["b"], "id": [3]}), **more)
    write(tmp_path, pa.table({"day": ["b"], "id": [4]}), overwrite=True, replaceWhere="day = 'b'", **more)
    write(tmp_path, pa.table({"day": ["c"], "id": [1]}), writeMode="upsert", keyColumns="id", **more)
    write(tmp_path, pa.table({"day": ["d"], "id": [5], "name": ["x"]}), onSchemaChange="evolve", **more)
    assert sorted(read(tmp_path, **more)["id"].to_pylist()) == [1, 4, 5]
    assert sorted(rows_by_pyiceberg(catalog, "shop.t")["id"].to_pylist()) == [1, 4, 5]
    assert leftovers(catalog, "shop.t") == []
    assert "POST namespaces/shop/tables" in server.requests
    assert server.requests.count("POST namespaces/shop/tables/t") >= 9


def test_an_overtaken_driver_changes_nothing(
    tmp_path: Path, catalog: Catalog, server: RestCatalogServer
) -> None:
    more = _options(server)
    write(tmp_path, numbers(0), **more)
    older, later = writer_of(tmp_path, **more), writer_of(tmp_path, **more)
    plan, receipts = stage(older, [numbers(1)], WriteContext("older", txn=("n", 1)))
    later_plan, later_receipts = stage(later, [numbers(1)], WriteContext("later", txn=("n", 1)))
    with pytest.raises(SupersededError):
        older.commit(plan, receipts)
    later.commit(later_plan, later_receipts)
    older.commit(plan, receipts)
    assert sorted(rows_by_pyiceberg(catalog, "shop.t")["id"].to_pylist()) == [0, 1]


def test_jobs_that_create_and_append_at_once(
    tmp_path: Path, catalog: Catalog, server: RestCatalogServer
) -> None:
    more = _options(server)
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for each in range(3):
                write(tmp_path, numbers(number * 10 + each), job=f"job-{number}-{each}", **more)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert errors == []
    found = sorted(rows_by_pyiceberg(catalog, "shop.t")["id"].to_pylist())
    assert found == sorted(number * 10 + each for number in range(3) for each in range(3))


@pytest.mark.parametrize("there", [True, False], ids=["existing", "new"])
def test_a_commit_whose_answer_is_lost(
    tmp_path: Path, catalog: Catalog, server: RestCatalogServer, there: bool
) -> None:
    """A gateway's 504 does not say whether the catalog has committed: the table is looked at."""
    more = _options(server)
    if there:
        write(tmp_path, numbers(0), **more)
    out = writer_of(tmp_path, **more)
    plan, receipts = stage(out, [numbers(1)], WriteContext("job"))
    server.lose = 1
    out.commit(plan, receipts)
    assert server.lose == 0
    assert sorted(rows_by_pyiceberg(catalog, "shop.t")["id"].to_pylist()) == ([0, 1] if there else [1])
    assert leftovers(catalog, "shop.t") == []


def test_a_token_that_is_refused_is_not_shown(tmp_path: Path, server: RestCatalogServer) -> None:
    with pytest.raises(SourceError, match="pyiceberg says") as caught:
        read(tmp_path, **_options(server, "another-s3cret"))
    assert "s3cret" not in str(caught.value)
