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
from pyiceberg.catalog.sql import SqlCatalog

from spark_channel.connectors import WriteContext
from spark_channel.connectors.iceberg.guard import guard
from spark_channel.errors import (
    CommitError,
    OptionError,
    SourceError,
    SupersededError,
    UnsupportedError,
)
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
    write(
        tmp_path,
        pa.table({"day": ["b"], "id": [4]}),
        overwrite=True,
        replaceWhere="day = 'b'",
        **more,
    )
    write(
        tmp_path, pa.table({"day": ["c"], "id": [1]}), writeMode="upsert", keyColumns="id", **more
    )
    write(
        tmp_path,
        pa.table({"day": ["d"], "id": [5], "name": ["x"]}),
        onSchemaChange="evolve",
        **more,
    )
    assert sorted(read(tmp_path, **more)["id"].to_pylist()) == [1, 4, 5]
    assert sorted(rows_by_pyiceberg(catalog, "shop.t")["id"].to_pylist()) == [1, 4, 5]
    assert leftovers(catalog, "shop.t") == []
    assert "POST namespaces/shop/tables" in server.requests
    assert server.requests.count("POST namespaces/shop/tables/t") >= 5


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


def test_a_commit_that_meets_another_one(
    tmp_path: Path, catalog: Catalog, server: RestCatalogServer
) -> None:
    """The catalog answers 409: the rows are decided on again, on the state with the other job's rows."""
    more = _options(server)
    write(tmp_path, numbers(0), **more)
    out = writer_of(tmp_path, **more)
    plan, receipts = stage(out, [numbers(1)], WriteContext("job", txn=("n", 1)))
    server.statuses.clear()
    server.meanwhile.append(lambda: write(tmp_path, numbers(2), job="other"))
    out.commit(plan, receipts)
    assert server.statuses.count(409) == 1
    again = writer_of(tmp_path, **more)
    again.commit(*stage(again, [numbers(1)], WriteContext("rerun", txn=("n", 1))))
    assert sorted(rows_by_pyiceberg(catalog, "shop.t")["id"].to_pylist()) == [0, 1, 2]
    assert leftovers(catalog, "shop.t") == []


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


@pytest.mark.parametrize("status", [504, 503, 408])
@pytest.mark.parametrize("there", [True, False], ids=["existing", "new"])
def test_a_commit_whose_answer_is_lost(
    tmp_path: Path, catalog: Catalog, server: RestCatalogServer, there: bool, status: int
) -> None:
    """A gateway's answer does not say whether the catalog has committed: the table is looked at."""
    more = _options(server)
    if there:
        write(tmp_path, numbers(0), **more)
    out = writer_of(tmp_path, **more)
    plan, receipts = stage(out, [numbers(1)], WriteContext("job"))
    server.lose, server.lost = 1, status
    out.commit(plan, receipts)
    assert server.lose == 0
    assert sorted(rows_by_pyiceberg(catalog, "shop.t")["id"].to_pylist()) == (
        [0, 1] if there else [1]
    )
    assert leftovers(catalog, "shop.t") == []


@pytest.mark.parametrize("status", [400, 403, 404, 419])
@pytest.mark.parametrize("there", [True, False], ids=["existing", "new"])
def test_a_commit_that_is_refused_leaves_no_file(
    tmp_path: Path, catalog: Catalog, server: RestCatalogServer, there: bool, status: int
) -> None:
    more = _options(server)
    if there:
        write(tmp_path, numbers(0), **more)
    out = writer_of(tmp_path, **more)
    plan, receipts = stage(out, [numbers(1)], WriteContext("job"))
    server.refuse = [status] * 2  # pyiceberg sends a 419 again, with a new token
    with pytest.raises(CommitError, match="refused"):
        out.commit(plan, receipts)
    server.refuse.clear()
    out.abort(plan, receipts)
    assert leftovers(catalog, "shop.t") == []
    write(tmp_path, numbers(2), **more)
    assert sorted(rows_by_pyiceberg(catalog, "shop.t")["id"].to_pylist()) == [0, 2][not there :]


def test_a_commit_that_may_have_been_made_keeps_its_files(
    tmp_path: Path, catalog: Catalog, server: RestCatalogServer
) -> None:
    """The catalog commits when its client has been told of an error, and has looked at the table."""
    more = _options(server)
    write(tmp_path, numbers(0), **more)
    out = writer_of(tmp_path, **more)
    plan, receipts = stage(out, [numbers(1)], WriteContext("job"))
    server.refuse = [503]
    with pytest.raises(CommitError, match="did not say whether it has committed"):
        out.commit(plan, receipts)
    out.abort(plan, receipts)
    assert [Path(file).suffix for file in leftovers(catalog, "shop.t")] == [".avro"] * 2


def test_a_token_that_is_refused_is_not_shown(tmp_path: Path, server: RestCatalogServer) -> None:
    with pytest.raises(SourceError, match="pyiceberg says") as caught:
        read(tmp_path, **_options(server, "another-s3cret"))
    assert "s3cret" not in str(caught.value)


RAN: list[Any] = []


def run_by_a_stranger(*arguments: Any, **named: Any) -> Any:
    """In place of `subprocess.Popen`, which a server can name as well, with its arguments."""
    RAN.append((arguments, named))
    raise AssertionError("code that a server names was run")


HERE = f"{__name__}.run_by_a_stranger"
LOGIN = {"type": "custom", "impl": HERE, "custom": {"args": ["touch", "/tmp/x"]}}


@pytest.mark.parametrize("part", ["defaults", "overrides"])
@pytest.mark.parametrize("settings", [{"auth": LOGIN}, {"py-io-impl": HERE}])
def test_a_server_names_no_code_that_runs_here(
    tmp_path: Path, server: RestCatalogServer, part: str, settings: dict[str, Any]
) -> None:
    """pyiceberg imports what a server's configuration names, and calls it: with `auth`, with arguments."""
    server.config = {part: settings}
    write(tmp_path, numbers(1), **_options(server))
    assert read(tmp_path, **_options(server))["id"].to_pylist() == [1]
    assert RAN == []


def set_property(path: Path, name: str) -> None:
    """As one who may write the table, by other means than pyiceberg, which would run it."""
    metadata = json.loads(path.read_text())
    kept = {key: value for key, value in metadata["properties"].items() if value != HERE}
    metadata["properties"] = {**kept, name: HERE}
    path.write_text(json.dumps(metadata))


@pytest.mark.parametrize("rest", [True, False], ids=["rest", "sql"])
def test_a_table_names_no_code_that_runs_here(
    tmp_path: Path, catalog: Catalog, server: RestCatalogServer, rest: bool
) -> None:
    guard(catalog, {})  # the server's own
    more = _options(server) if rest else {}
    write(tmp_path, numbers(1), **more)
    late = writer_of(tmp_path, **more)
    staged = stage(late, [numbers(2)], WriteContext("late"))
    path = Path(catalog.load_table("shop.t").metadata_location.removeprefix("file://"))
    set_property(path, "py-io-impl")
    server.table_config = {"py-io-impl": HERE, "s3.retry-strategy-impl": HERE}
    assert read(tmp_path, **more)["id"].to_pylist() == [1]
    set_property(path, "write.py-location-provider.impl")
    with pytest.raises(
        UnsupportedError, match=r"'write\.py-location-provider\.impl'.*not run here"
    ):
        write(tmp_path, numbers(3), **more)
    with pytest.raises(UnsupportedError, match="not run here"):
        late.commit(*staged)
    assert RAN == []


class OwnCatalog(SqlCatalog):
    """Knows by itself where it is."""

    def __init__(self, name: str, place: str, **properties: str) -> None:
        super().__init__(
            name,
            **{**properties, "uri": f"sqlite:///{place}/own.db", "warehouse": f"file://{place}"},
        )


def test_a_catalog_of_the_users_own_needs_no_uri(tmp_path: Path) -> None:
    properties = {"py-catalog-impl": f"{__name__}.OwnCatalog", "place": str(tmp_path)}
    more = {"catalog": "own", "catalogProperties": json.dumps(properties)}
    with pytest.raises(SourceError, match=r"the catalog has no (?:table|namespace)"):
        read(tmp_path, **more)


def test_a_login_in_a_uri_that_is_not_understood_is_not_shown(tmp_path: Path) -> None:
    given = {"catalogProperties": json.dumps({"uri": "postgres://ann:s3cret@h/d"})}
    with pytest.raises(OptionError, match=r"'catalogProperties'.*give a 'type'") as caught:
        read(tmp_path, **given)
    assert "s3cret" not in str(caught.value)
    assert caught.value.__cause__ is None
