"""What `schema: full` carries between systems: the page, the dry run, the report and the log say what arrives."""

import logging
import sqlite3
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

import spark_channel
from spark_channel.connectors import load_reader
from spark_channel.connectors.base.definition import TableDefinition
from spark_channel.replication.config import load_replication
from spark_channel.replication.plan import plan_replication
from spark_channel.replication.table_run import RunSettings
from tests.connectors.iceberg.helpers import options_of, shop
from tests.replication.carried import (
    CARRIED,
    LAKES,
    PAGE,
    PROBES,
    ROWS,
    parts_of,
    written,
)
from tests.servers.mariadb import MariadbServer
from tests.servers.postgres import PostgresServer


def test_the_page_has_the_table_that_is_tested() -> None:
    assert PAGE.read_text(encoding="utf-8") == written()


class _Ends:
    """The probe table in each system, and empty targets."""

    def __init__(self, pg: PostgresServer, mariadb: MariadbServer, folder: Path) -> None:
        self._pg, self._mariadb, self._folder = pg, mariadb, folder
        script = f"{PROBES['postgresql']}{ROWS}"
        pg.psql(f"CREATE SCHEMA carried; SET search_path = carried; {script} ANALYZE;")
        mariadb.sql("CREATE DATABASE carried")
        mariadb.sql(f"{PROBES['mysql']}{ROWS}", database="carried")
        with sqlite3.connect(folder / "carried.sqlite") as made:
            made.executescript(f"{PROBES['sqlite']}{ROWS}")
        made.close()
        with duckdb.connect(str(folder / "carried.duckdb")) as other:
            other.execute(f"{PROBES['duckdb']}{ROWS}")

    def close(self) -> None:
        self._pg.psql("DROP SCHEMA carried CASCADE; DROP SCHEMA IF EXISTS carried_dw CASCADE;")
        self._mariadb.sql("DROP DATABASE carried; DROP DATABASE IF EXISTS carried_dw")

    def source(self, name: str) -> dict[str, Any]:
        return self._end(name, "carried")

    def target(self, name: str) -> dict[str, Any]:
        """A target without tables."""
        if name == "postgresql":
            self._pg.psql("DROP SCHEMA IF EXISTS carried_dw CASCADE; CREATE SCHEMA carried_dw")
        elif name == "mysql":
            self._mariadb.sql("DROP DATABASE IF EXISTS carried_dw; CREATE DATABASE carried_dw")
        elif name == "delta":
            return {"writer": name, "path": str(self._folder / f"delta-{uuid.uuid4().hex}")}
        elif name == "iceberg":
            place = self._folder / f"iceberg-{uuid.uuid4().hex}"
            place.mkdir()
            with shop(place):
                given = options_of(place, "")
            return {"writer": name, **{key: given[key] for key in given if key != "dbtable"}}
        else:
            (self._folder / f"carried_dw.{name}").unlink(missing_ok=True)
        return self._end(name, "carried_dw")

    def _end(self, name: str, place: str) -> dict[str, Any]:
        if name == "postgresql":
            return {**self._pg.login, "currentSchema": place}
        if name == "mysql":
            return {
                **self._mariadb.login,
                "url": f"{self._mariadb.url.rpartition('/')[0]}/{place}",
            }
        return {"url": f"{name}:{self._folder}/{place}.{name}"}


@pytest.fixture(scope="module")
def ends(
    postgres_server: PostgresServer,
    mariadb_server: MariadbServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[_Ends]:
    made = _Ends(postgres_server, mariadb_server, tmp_path_factory.mktemp("carried"))
    yield made
    made.close()


def _defined(end: dict[str, Any]) -> TableDefinition:
    found = load_reader({**end, "dbtable": "probe"})[0].definition()
    assert found is not None
    return found


@pytest.mark.full
@pytest.mark.parametrize(("source", "target"), list(CARRIED))
def test_what_arrives_and_what_is_named_as_left_out_are_all_parts(
    ends: _Ends, source: str, target: str, caplog: pytest.LogCaptureFixture
) -> None:
    into = ends.target(target)
    file = {
        "source": ends.source(source),
        "target": into,
        "defaults": {
            "schema": "full",
            "object": "shop.{table}" if target == "iceberg" else "{table}",
        },
        "streams": {"carried.*" if source == "postgresql" else "*": {}},
    }
    plans = plan_replication(load_replication(file), RunSettings(), parallelism=1).tables
    assert [each.fault for each in plans] == ["", ""]
    (planned,) = [each.left_out for each in plans if each.stream.endswith("probe")]
    with caplog.at_level(logging.WARNING):
        caplog.clear()
        report = spark_channel.replicate(None, file)
        logged = [each.getMessage() for each in caplog.records]
    assert report.exit_code == 0, report
    (why,) = [each.why for each in report.tables if each.stream.endswith("probe")]
    theirs = dict(parts_of(_defined(ends.source(source))))
    left = theirs.keys() - CARRIED[source, target]
    for part in left:
        words = theirs[part]
        assert any(words in each for each in planned), (words, planned)
        assert words in why
        assert len([each for each in logged if words in each]) == 1, (words, logged)
    for part in theirs.keys() & CARRIED[source, target]:
        assert theirs[part] not in why
        assert not any(theirs[part] == each.partition(":")[0] for each in planned), part
    if target not in LAKES:
        own = dict(parts_of(_defined(into)))
        assert own.keys() - {"index"} == (theirs.keys() & CARRIED[source, target]) - {"index"}
        assert "index" in own
