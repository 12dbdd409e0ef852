"""Files, Delta and Iceberg tables in one bucket of SeaweedFS: many objects, and many jobs at once.

Eight processes that are killed meanwhile are in `files.test_busy` and `lake.test_busy`.
"""

import json
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")
pytest.importorskip("sqlalchemy")

from pyiceberg.catalog import load_catalog

from spark_channel.connectors import WriteContext, load_writer
from spark_channel.connectors.files.filesystem import locate
from spark_channel.connectors.files.listing import list_files
from spark_channel.connectors.files.store import store_of
from tests.connectors.files.busy import staged
from tests.connectors.files.helpers import numbers
from tests.connectors.lake.busy import rows_in
from tests.servers.stores import VERSIONED, ObjectServer, object_server

pytestmark = pytest.mark.real_server(
    "SeaweedFS", "parquet", "csv", "json", "arrow", "orc", "delta", "iceberg"
)
FORMS = ("parquet", "delta", "iceberg")


@pytest.fixture(scope="module", params=["s3", pytest.param(VERSIONED, marks=pytest.mark.soak)])
def server(request: pytest.FixtureRequest) -> Iterator[ObjectServer]:
    with object_server(request.param) as found, pytest.MonkeyPatch.context() as patch:
        for name, value in found.environment.items():
            patch.setenv(name, value)
        yield found


def target(form: str, server: ObjectServer, folder: Path) -> dict[str, Any]:
    """Options of a new target, with `format` among them."""
    if form != "iceberg":
        return {"format": form, "path": server.uri(f"{folder.name}/t")}
    catalog = {
        "type": "sql",
        "uri": f"sqlite:///{folder}/catalog.db?timeout=120",
        "warehouse": f"s3://{server.bucket}/{folder.name}",
        "s3.endpoint": f"http://127.0.0.1:{server.port}",
        "s3.region": "us-east-1",
        "s3.access-key-id": server.environment["AWS_ACCESS_KEY_ID"],
        "s3.secret-access-key": server.environment["AWS_SECRET_ACCESS_KEY"],
    }
    with load_catalog("tests", **catalog) as made:
        made.create_namespace("shop")
    return {
        "format": form,
        "dbtable": "shop.t",
        "catalog": "tests",
        "catalogProperties": json.dumps(catalog),
    }


def write(
    options: dict[str, Any], job: str, *tables: pa.Table, overwrite: bool = False, **more: Any
) -> None:
    """A whole job, one task per table."""
    place = {name: value for name, value in options.items() if name != "format"}
    writer, _ = load_writer({"writer": options["format"], **place, **more})
    plan = writer.prepare(WriteContext(job, overwrite=overwrite, commit="job"), tables[0].schema)
    writer.commit(plan, staged(writer, plan, tables))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("form", FORMS)
def test_three_appends_and_three_overwrites_at_once(
    server: ObjectServer, tmp_path: Path, form: str
) -> None:
    """One of the overwrites is the last, and its rows are there, with those of appends after it; none twice."""
    options = target(form, server, tmp_path)
    write(options, "first", numbers(100))
    failed: list[BaseException] = []
    ready = threading.Barrier(6)

    def work(number: int) -> None:
        try:
            ready.wait(60)
            rows = [numbers(number * 10), numbers(number * 10 + 1)]
            write(options, f"job-{number}", *rows, overwrite=number >= 3)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(240)
    assert failed == []
    write(options, "last", numbers(200))
    seen = Counter(rows_in(options)["n"].to_pylist())
    assert set(seen.values()) == {1}, "a row is there twice"
    jobs = Counter(n // 10 for n in seen)
    assert jobs.pop(20) == 1, "an append that ended alone is lost"
    assert set(jobs.values()) == {2}, "a job is seen in half"
    assert len([job for job in jobs if job in (3, 4, 5)]) == 1
    assert set(jobs) <= {0, 1, 2, 3, 4, 5}, "what was overwritten is there"


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("server", ["s3"], indirect=True)
@pytest.mark.parametrize("form", FORMS)
def test_ten_thousand_objects(server: ObjectServer, tmp_path: Path, form: str) -> None:
    """Each listing has eleven pages. They are read, appended to, replaced and removed."""
    _work_on_many(target(form, server, tmp_path), 10_000)


@pytest.mark.parametrize("server", ["s3"], indirect=True)
@pytest.mark.parametrize("form", FORMS)
def test_thirty_objects(server: ObjectServer, tmp_path: Path, form: str) -> None:
    _work_on_many(target(form, server, tmp_path), 30)


def _work_on_many(options: dict[str, Any], count: int) -> None:
    rows = _parted(range(count))
    each: dict[str, Any] = {"partitionBy": "p"}
    if options["format"] == "parquet":
        each = {"maxRecordsPerFile": "1"}
    parts = [rows.slice(at, count // 10) for at in range(0, count, count // 10)]
    write(options, "many", *parts, **each)
    assert sorted(rows_in(options)["n"].to_pylist()) == list(range(count))
    write(options, "one-more", _parted([count]))
    assert sorted(rows_in(options)["n"].to_pylist()) == list(range(count + 1))
    write(options, "all", _parted([1]), overwrite=True)
    assert rows_in(options)["n"].to_pylist() == [1]
    write(options, "again", _parted([2]))
    assert sorted(rows_in(options)["n"].to_pylist()) == [1, 2]


def _parted(values: Sequence[int]) -> pa.Table:
    """Numbers, and of each a part `p` of its own."""
    return pa.table({"n": pa.array(values, pa.int64()), "p": [str(value) for value in values]})


@pytest.mark.parametrize("server", ["s3"], indirect=True)
def test_a_folder_of_three_pages_is_listed_whole(server: ObjectServer, tmp_path: Path) -> None:
    """SeaweedFS lists `a/b` before `a b`, where the order of bytes is the other."""
    place = locate(server.uri(f"{tmp_path.name}/in"))
    store = store_of(place)
    names = [f"{number % 7}{' /-'[number % 3]}{number:04d}.csv" for number in range(2_100)]

    def put(some: list[str]) -> None:
        for name in some:
            store.put(f"{place.path}/{name}", b"n\n1\n")

    threads = [threading.Thread(target=put, args=(names[at::6],)) for at in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    listed = [file.path for file in list_files(place)]
    assert listed == sorted(f"{place.path}/{name}" for name in names)
