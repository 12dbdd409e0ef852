"""Tables of two REST catalogs, Iceberg's own and Project Nessie: created, written, evolved, streamed, and raced for."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyiceberg")

from pyiceberg.catalog import Catalog, load_catalog

from spark_channel.connectors import WriteContext
from spark_channel.connectors.base.feed import FeedLimit, FeedOptions
from spark_channel.errors import SourceError, SupersededError
from tests.connectors.iceberg.helpers import (
    numbers,
    read,
    reader_of,
    rows_by_pyiceberg,
    stage,
    write,
    writer_of,
)
from tests.servers.lake_rest import lake_rest
from tests.servers.nessie import start_nessie

pytestmark = [
    pytest.mark.every_server,
    pytest.mark.real_server("Iceberg's REST catalog", "iceberg"),
    pytest.mark.real_server("Project Nessie", "iceberg"),
]


@pytest.fixture(scope="module", params=["Iceberg", "Nessie"])
def properties(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, str]]:
    """What a client is given. Nessie chooses the folder of each creation, and shows a table's newest snapshot."""
    if request.param == "Iceberg":
        with lake_rest(tmp_path_factory.mktemp("rest")) as uri:
            yield {"type": "rest", "uri": uri}
    else:
        with start_nessie() as nessie:
            yield {"type": "rest", "uri": nessie.uri, **nessie.properties}


@pytest.fixture
def catalog(properties: dict[str, str]) -> Iterator[Catalog]:
    found = load_catalog("rest", **properties)
    found.create_namespace_if_not_exists("shop")
    try:
        yield found
    finally:
        for name in found.list_tables("shop"):
            found.drop_table(name)
        found.close()


@pytest.fixture
def more(properties: dict[str, str]) -> dict[str, Any]:
    return {"catalogProperties": json.dumps(properties)}


def _is_nessie(catalog: Catalog) -> bool:
    return "nessie.is-nessie-catalog" in catalog.properties


def _ids(catalog: Catalog) -> list[int]:
    return sorted(rows_by_pyiceberg(catalog, "shop.t")["id"].to_pylist())


def test_a_table_is_created_written_and_read(
    tmp_path: Path, catalog: Catalog, more: dict[str, Any]
) -> None:
    write(tmp_path, pa.table({"day": ["a", "b"], "id": [1, 2]}), partitionBy="day", **more)
    write(tmp_path, pa.table({"day": ["b"], "id": [3]}), **more)
    row = pa.table({"day": ["b"], "id": [4]})
    write(tmp_path, row, overwrite=True, replaceWhere="day = 'b'", **more)
    row = pa.table({"day": ["c"], "id": [1]})
    write(tmp_path, row, writeMode="upsert", keyColumns="id", **more)
    row = pa.table({"day": ["ü"], "id": [5], "name": ["x"]})
    write(tmp_path, row, onSchemaChange="evolve", **more)
    expected = [
        {"day": "c", "id": 1, "name": None},
        {"day": "b", "id": 4, "name": None},
        {"day": "ü", "id": 5, "name": "x"},
    ]
    assert read(tmp_path, **more).sort_by("id").to_pylist() == expected
    assert rows_by_pyiceberg(catalog, "shop.t").sort_by("id").to_pylist() == expected
    write(tmp_path, row, overwrite=True, **more)
    assert read(tmp_path, **more).to_pylist() == row.to_pylist()


def test_no_table_and_no_namespace(tmp_path: Path, catalog: Catalog, more: dict[str, Any]) -> None:
    with pytest.raises(SourceError, match=r"the catalog has no table shop\.t; check"):
        read(tmp_path, **more)
    with pytest.raises(SourceError, match=r"the catalog has no (table|namespace) .*other\.t"):
        reader_of(tmp_path, "other.t", **more).schema()


def test_an_overtaken_driver_changes_nothing(
    tmp_path: Path, catalog: Catalog, more: dict[str, Any]
) -> None:
    write(tmp_path, numbers(0), **more)
    older, later = writer_of(tmp_path, **more), writer_of(tmp_path, **more)
    staged = stage(older, [numbers(1)], WriteContext("older", txn=("n", 1)))
    later_staged = stage(later, [numbers(1)], WriteContext("later", txn=("n", 1)))
    with pytest.raises(SupersededError):
        older.commit(*staged)
    later.commit(*later_staged)
    older.commit(*staged)
    assert _ids(catalog) == [0, 1]


def test_a_commit_of_another_client_in_between(
    tmp_path: Path, catalog: Catalog, more: dict[str, Any]
) -> None:
    write(tmp_path, numbers(0, 7), **more)
    out = writer_of(tmp_path, **more)
    staged = stage(out, [numbers(1)], WriteContext("job", txn=("n", 1)))
    table = catalog.load_table("shop.t")
    table.append(numbers(2))
    table.delete("id = 7")
    out.commit(*staged)
    again = writer_of(tmp_path, **more)
    again.commit(*stage(again, [numbers(1)], WriteContext("rerun", txn=("n", 1))))
    assert _ids(catalog) == [0, 1, 2]


@pytest.mark.parametrize("created", [True, False])
def test_eight_jobs_at_once(
    tmp_path: Path, catalog: Catalog, more: dict[str, Any], *, created: bool
) -> None:
    """Each row is there once: a job whose commit was refused decides again.

    Where the catalog chooses the folder of a new table, those that did not create it are told to run again.
    """
    if created:
        catalog.create_table("shop.t", numbers().schema)
    errors: dict[int, BaseException] = {}
    start = threading.Barrier(8)

    def append(number: int) -> None:
        try:
            start.wait(60)
            write(tmp_path, numbers(number), job=f"job-{number}", **more)
        except BaseException as error:
            errors[number] = error

    threads = [threading.Thread(target=append, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(240)
    if created or not _is_nessie(catalog):
        assert errors == {}
    for number, error in errors.items():
        assert "run it again" in str(error)
        write(tmp_path, numbers(number), job=f"job-{number}", **more)
    assert _ids(catalog) == list(range(8))


def test_new_snapshots_are_streamed_once(
    tmp_path: Path, catalog: Catalog, more: dict[str, Any]
) -> None:
    write(tmp_path, numbers(1, 2), **more)
    feed = reader_of(tmp_path, **more).feed(FeedOptions())
    (at,) = feed.earliest()
    seen: list[int] = []

    def advance() -> None:
        nonlocal at
        upto = feed.latest(at, FeedLimit())
        for split in feed.changes(at, upto):
            seen.extend(i for batch in feed.read(split) for i in batch.column("id").to_pylist())
        at = upto

    for number in range(3, 6):
        advance()
        write(tmp_path, numbers(number), **more)
        if _is_nessie(catalog):
            with pytest.raises(SourceError, match=r"shows one snapshot of shop\.t.*read it whole"):
                advance()
            assert seen == [1, 2]
            return
    assert sorted(seen) == [1, 2, 3, 4]
    assert feed.lag(at).rows == 1
