"""Delta tables on S3, GCS and Azure over HTTP: commits are conditional puts."""

import threading
from collections.abc import Iterator

import pyarrow as pa
import pytest

pytest.importorskip("deltalake")
pytest.importorskip("obstore")

from spark_channel.connectors import WriteContext
from spark_channel.errors import SupersededError
from tests.connectors.delta.helpers import numbers, read, reader_of, stage, write, writer_of
from tests.servers.stores import KINDS, ObjectServer, object_server


@pytest.fixture(scope="module", params=KINDS)
def server(request: pytest.FixtureRequest) -> Iterator[ObjectServer]:
    with object_server(request.param) as found, pytest.MonkeyPatch.context() as patch:
        for name, value in found.environment.items():
            patch.setenv(name, value)
        yield found


def _ids(uri: str) -> list[int]:
    return sorted(read(uri)["id"].to_pylist())


def test_a_table_is_written_and_read(server: ObjectServer) -> None:
    uri = server.uri("one/table")
    table = pa.table({"p": ["a b", "c"], "id": [1, 2]})
    write(uri, table, partitionBy="p")
    write(uri, pa.table({"p": ["d"], "id": [3]}))
    assert _ids(uri) == [1, 2, 3]
    write(uri, pa.table({"p": ["c"], "id": [4]}), overwrite=True, replaceWhere="p = 'c'")
    assert _ids(uri) == [1, 3, 4]
    write(uri, pa.table({"p": ["x"], "id": [9]}), overwrite=True)
    assert _ids(uri) == [9]
    assert read(uri, columns="id", where="id = 9").to_pydict() == {"id": [9]}
    lake = writer_of(uri).lake()  # type: ignore[attr-defined]
    notes = lake.store.entries(f"{lake.base}/_spark_channel", recursive=True)
    assert [each.path for each in notes if each.is_file] == []


def test_an_overtaken_driver_changes_nothing(server: ObjectServer) -> None:
    uri = server.uri("two/table")
    write(uri, numbers(0))
    older, later = writer_of(uri), writer_of(uri)
    context = WriteContext("older", txn=("n", 1))
    plan, receipts = stage(older, [numbers(1)], context)
    later_plan, later_receipts = stage(later, [numbers(1)], WriteContext("later", txn=("n", 1)))
    with pytest.raises(SupersededError):
        older.commit(plan, receipts)
    later.commit(later_plan, later_receipts)
    assert _ids(uri) == [0, 1]


def test_jobs_that_create_and_append_at_once(server: ObjectServer) -> None:
    uri = server.uri("three/table")
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for each in range(3):
                write(uri, numbers(number * 10 + each), job=f"job-{number}-{each}")
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert errors == []
    assert _ids(uri) == sorted(number * 10 + each for number in range(3) for each in range(3))


def test_the_uris_secrets_are_not_shown(server: ObjectServer) -> None:
    uri = server.uri("four/table")
    shown = repr(reader_of(uri, storageOptions='{"aws_secret_access_key": "s3cret"}').options)
    assert "s3cret" not in shown
