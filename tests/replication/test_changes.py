"""Tables that are followed by the logs of PostgreSQL and MariaDB: deletes, tables that are parked, contracts."""

import hashlib
import itertools
import json
import logging
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from pyiceberg.catalog import load_catalog

import spark_channel
from spark_channel.clock import SYSTEM_CLOCK
from spark_channel.connectors import load_reader
from spark_channel.connectors.base.session_pool import keeping_sessions
from spark_channel.errors import TargetError
from spark_channel.replication import ReplicationReport, publish, status
from spark_channel.replication.changes import Follower
from spark_channel.replication.config import load_replication
from spark_channel.replication.status import reset_tables, resume_tables, status_of
from spark_channel.replication.tunnels import begin_again
from spark_channel.service import ServiceServer, running
from spark_channel.tunnel import Tunnel
from tests.cli.test_run import run
from tests.servers.mariadb import MariadbServer
from tests.servers.ports import free_port
from tests.servers.postgres import PostgresServer

Row = dict[str, Any]


class Followed:
    """Tables `a` and `b` of a server, and a target; `run` follows them up to now."""

    def __init__(
        self,
        source: Mapping[str, str],
        target: Mapping[str, str],
        sql: Any,
        schema: str,
        **options: Any,
    ) -> None:
        self.sql, self.schema, self.target = sql, schema, dict(target)
        self.more: Row = {}
        self.streams: Row = {f"{schema}.{name}": dict(options) for name in ("a", "b")}
        self.source = {**source, "heartbeatInterval": "5", "maxRetryInterval": "0.2"}

    @property
    def file(self) -> Row:
        return {
            "source": self.source,
            "target": self.target,
            "defaults": {"mode": "full_then_changes", "object": "t_{table}", **self.more},
            "streams": self.streams,
        }

    def run(self, code: int = 0) -> ReplicationReport:
        report = spark_channel.replicate(None, self.file, once=True)
        assert report.exit_code == code, [(each.stream, each.why) for each in report.parked]
        return report

    def rows(self, name: str, columns: str, order: str = "id") -> list[tuple[Any, ...]]:
        query = f"SELECT {columns} FROM t_{name} ORDER BY {order}"
        with keeping_sessions():  # the driver would ask for all types of the server each time
            reader, _ = load_reader({**self.target, "query": f"SELECT {columns} FROM t_{name}"})
            found = [batch.to_pydict() for split in reader.split(1) for batch in reader.read(split)]
        assert query
        rows = [row for each in found for row in zip(*each.values(), strict=True)]
        return sorted(rows, key=lambda row: [(value is None, value) for value in row])


@pytest.fixture(params=["postgresql", "mariadb"])
def followed(
    request: pytest.FixtureRequest,
    postgres_server: PostgresServer,
    tmp_path: Path,
) -> Iterator[Followed]:
    """From PostgreSQL into itself, or from MariaDB into SQLite."""
    tables = "CREATE TABLE {0}a (id INT PRIMARY KEY, n INT, s VARCHAR(20)); CREATE TABLE {0}b (id INT PRIMARY KEY)"
    if request.param == "postgresql":
        pg = postgres_server
        pg.psql(
            "DROP SCHEMA IF EXISTS fol CASCADE; DROP SCHEMA IF EXISTS fol_dw CASCADE; CREATE SCHEMA fol;"
            f"CREATE SCHEMA fol_dw; {tables.format('fol.')}; CREATE PUBLICATION fol FOR TABLE fol.a, fol.b"
        )
        source = {**pg.login, "publication": "fol", "slot": "fol"}
        yield Followed(source, {**pg.login, "currentSchema": "fol_dw"}, pg.psql, "fol")
        pg.psql(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = 'fol';"
            "DROP PUBLICATION fol; DROP SCHEMA fol CASCADE; DROP SCHEMA fol_dw CASCADE;"
            "DROP TABLE IF EXISTS spark_channel_tunnel_places, spark_channel_tunnel_notes, "
            "spark_channel_tunnel_clients, spark_channel_tunnel_channels, spark_channel_tunnels CASCADE"
        )
        return
    server: MariadbServer = request.getfixturevalue("logging_server")
    server.sql("DROP DATABASE IF EXISTS fol; CREATE DATABASE fol")
    server.sql(tables.format(""), database="fol")
    login = {**server.login, "url": f"mysql://127.0.0.1:{server.port}/fol"}

    def sql(text: str) -> str:
        return server.sql(text.replace("fol.", ""), database="fol")

    yield Followed(login, {"url": f"sqlite:{tmp_path}/dw.db"}, sql, "fol")


def test_deletes_are_applied_and_a_truncate_empties(followed: Followed) -> None:
    followed.sql("INSERT INTO fol.a VALUES (1, 1, 'x'), (2, 2, 'y'), (3, 3, 'z')")
    assert followed.run().rows == 3
    followed.sql("DELETE FROM fol.a WHERE id = 1")
    followed.sql("UPDATE fol.a SET n = 20 WHERE id = 2")
    followed.sql("INSERT INTO fol.b VALUES (7)")
    followed.run()
    assert followed.rows("a", "id, n, s") == [(2, 20, "y"), (3, 3, "z")]
    assert followed.rows("b", "id") == [(7,)]
    followed.sql("INSERT INTO fol.a VALUES (4, 4, NULL)")
    followed.sql("TRUNCATE fol.a")
    followed.sql("INSERT INTO fol.a VALUES (5, 5, NULL)")
    followed.run()
    assert followed.rows("a", "id, n") == [(5, 5)]


def test_a_tunnel_that_another_run_makes_meanwhile_is_followed(
    followed: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two first runs at a time: the second one does not park all tables."""
    followed.sql("INSERT INTO fol.a VALUES (1, 1, 'x')")
    followed.run()
    followed.sql("INSERT INTO fol.a VALUES (2, 2, 'y')")
    exists, said = Tunnel.exists, [False]
    monkeypatch.setattr(Tunnel, "exists", lambda tunnel: said.pop() if said else exists(tunnel))
    followed.run()
    assert followed.rows("a", "id, n") == [(1, 1), (2, 2)]


def test_a_run_is_one_job_of_its_tunnel(
    followed: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "_running", [])
    followed.sql("INSERT INTO fol.a VALUES (1, 1, 'x'); INSERT INTO fol.b VALUES (1), (2)")
    with ServiceServer() as server:
        report = followed.run()
    (shown,) = server.metrics.statuses()
    assert (shown.phase, shown.rows) == ("done", 3)
    spec = shown.spec
    assert (spec.kind, spec.part_of) == ("stream", f"replicate {report.run_id}")
    assert spec.name.startswith("replicate-")
    assert spec.source.endswith("#(tables)")
    assert spec.target.endswith("#(tables)")


def test_a_soft_delete_keeps_the_row_and_its_values(followed: Followed) -> None:
    followed.more["deletes"] = "soft"
    followed.sql("INSERT INTO fol.a VALUES (1, 1, 'x'), (2, 2, 'y'), (3, 3, 'z')")
    followed.run()
    followed.sql("DELETE FROM fol.a WHERE id < 3")
    followed.sql("INSERT INTO fol.a VALUES (2, 22, 'again'), (9, 9, 'short')")
    followed.sql("DELETE FROM fol.a WHERE id = 9")
    followed.run()
    gone = "CASE WHEN _deleted_at IS NULL THEN 0 ELSE 1 END AS gone"
    assert followed.rows("a", f"id, n, s, {gone}") == [
        (1, 1, "x", 1),
        (2, 22, "again", 0),
        (3, 3, "z", 0),
        (9, 9, "short", 1),
    ]
    first = followed.rows("a", "id, _deleted_at")[0]
    followed.sql("TRUNCATE fol.a")
    followed.sql("INSERT INTO fol.a VALUES (3, 33, 'new')")
    followed.run()
    assert [row[-1] for row in followed.rows("a", f"id, {gone}")] == [1, 1, 0, 1]
    assert followed.rows("a", "id, _deleted_at")[0] == first


def test_scd2_keeps_each_version(followed: Followed) -> None:
    followed.more["deletes"] = "scd2"
    followed.sql("INSERT INTO fol.a VALUES (1, 1, 'x'), (2, 2, 'y')")
    followed.run()
    for statement in (
        "UPDATE fol.a SET n = 10 WHERE id = 1",
        "UPDATE fol.a SET n = 11 WHERE id = 1",
        "DELETE FROM fol.a WHERE id = 2",
        "INSERT INTO fol.a VALUES (3, 3, 'z')",
    ):
        followed.sql(statement)
    followed.run()
    followed.sql("UPDATE fol.a SET n = 12 WHERE id = 1")
    followed.sql("INSERT INTO fol.a VALUES (2, 22, 'again')")
    followed.run()
    found = followed.rows("a", "id, _valid_from, _valid_to, n")
    assert [(row[0], row[3], row[2] is None) for row in found] == [
        (1, 1, False),
        (1, 10, False),
        (1, 11, False),
        (1, 12, True),
        (2, 2, False),
        (2, 22, True),
        (3, 3, True),
    ]
    for one, other in itertools.pairwise(found):
        assert one[0] != other[0] or one[2] <= other[1]
    followed.run()
    assert followed.rows("a", "id, _valid_from, _valid_to, n") == found


def test_a_table_that_is_refused_is_parked_alone_until_it_is_resumed(followed: Followed) -> None:
    followed.more["contract"] = {"columns": "freeze"}
    followed.sql("INSERT INTO fol.a VALUES (1, 1, 'x'), (2, 2, 'y'); INSERT INTO fol.b VALUES (1)")
    file = load_replication(followed.file)
    assert {each.state for each in status_of(file)} == {"not copied"}
    followed.run()
    followed.sql("ALTER TABLE fol.a ADD COLUMN extra INT; UPDATE fol.a SET extra = 5 WHERE id = 1")
    followed.sql("DELETE FROM fol.a WHERE id = 2; INSERT INTO fol.b VALUES (2)")
    for _ in range(2):
        report = followed.run(3)
        assert {each.stream: each.state for each in report.tables}["fol.a"] == "parked"
        assert "ADD COLUMN extra" in report.parked[0].why
        assert "replicate resume FILE fol.a" in report.parked[0].why
    assert followed.rows("b", "id") == [(1,), (2,)]
    assert followed.rows("a", "id, n") == [(1, 1), (2, 2)]
    found = {each.stream: each for each in status_of(file)}
    assert (found["fol.a"].state, found["fol.b"].state) == ("parked", "followed"), found
    assert "ADD COLUMN extra" in found["fol.a"].why
    assert (found["fol.b"].lag_rows, found["fol.b"].rows) == (0, 1)
    assert found["fol.b"].published_at
    followed.more["contract"] = {"columns": "evolve"}
    assert resume_tables(file, ["fol.*"]) == (["fol.a"], ["fol.b"])
    assert {each.stream: each.state for each in status_of(file)}["fol.a"] == "reset"
    followed.run()
    assert followed.rows("a", "id, n, extra") == [(1, 1, 5)]
    followed.sql("INSERT INTO fol.b VALUES (3)")
    assert reset_tables(file, ["fol.b"]) == ["fol.b"]
    followed.run()
    assert followed.rows("b", "id") == [(1,), (2,), (3,)]


@pytest.mark.parametrize("target", ["duckdb", "mariadb"])
@pytest.mark.parametrize("deletes", ["soft", "scd2"])
def test_other_targets_keep_what_is_deleted(
    logging_server: MariadbServer, tmp_path: Path, target: str, deletes: str
) -> None:
    server = logging_server
    server.sql("DROP DATABASE IF EXISTS fol; DROP DATABASE IF EXISTS fol_dw; CREATE DATABASE fol")
    server.sql(
        "CREATE DATABASE fol_dw; CREATE TABLE a (id INT PRIMARY KEY, n INT);"
        "CREATE TABLE b (id INT PRIMARY KEY); INSERT INTO a VALUES (1, 1), (2, 2)",
        database="fol",
    )

    def sql(text: str) -> str:
        return server.sql(text, database="fol")

    login = {**server.login, "url": f"mysql://127.0.0.1:{server.port}/fol"}
    there = {
        "duckdb": {"path": f"{tmp_path}/dw.duckdb", "writer": "duckdb"},
        "mariadb": {**login, "url": f"mysql://127.0.0.1:{server.port}/fol_dw"},
    }[target]
    source = {**login, "tunnelStore": f"{tmp_path}/store.db"}
    followed = Followed(source, there, sql, "fol", deletes=deletes)
    followed.run()
    sql("UPDATE a SET n = 10 WHERE id = 1; DELETE FROM a WHERE id = 2; INSERT INTO a VALUES (3, 3)")
    followed.run()
    sql("TRUNCATE a; INSERT INTO a VALUES (3, 33)")
    followed.run()
    followed.target.pop("writer", None)
    end = "_deleted_at" if deletes == "soft" else "_valid_to"
    found = followed.rows("a", f"id, n, CASE WHEN {end} IS NULL THEN 1 ELSE 0 END AS is_open")
    last = [(1, 10, 0), (2, 2, 0), (3, 33, 1)]
    assert found == (last if deletes == "soft" else [(1, 1, 0), *last[:2], (3, 3, 0), last[2]])


@pytest.mark.parametrize("lake", ["delta", "iceberg"])
def test_a_lake_table_has_each_change_once(
    logging_server: MariadbServer, tmp_path: Path, lake: str
) -> None:
    """Rows and the delivery's number are in one commit; a delivery that comes again adds none."""
    server = logging_server
    server.sql("DROP DATABASE IF EXISTS fol; CREATE DATABASE fol")
    server.sql(
        "CREATE TABLE a (id INT, kind VARCHAR(9), n INT, gone INT, PRIMARY KEY (id, kind));"
        "CREATE TABLE b (id INT PRIMARY KEY);"
        "INSERT INTO a SELECT seq, 'x', seq, 1 FROM seq_1_to_20",
        database="fol",
    )

    def sql(text: str) -> str:
        return server.sql(text, database="fol")

    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/c.db", "warehouse": f"{tmp_path}/w"}
    there: dict[str, str] = {"path": f"{tmp_path}/lake", "writer": "delta"}
    if lake == "iceberg":
        load_catalog("default", **catalog).create_namespace("dw")
        there = {"catalogProperties": json.dumps(catalog), "writer": "iceberg"}
    login = {**server.login, "url": f"mysql://127.0.0.1:{server.port}/fol"}
    followed = Followed({**login, "tunnelStore": f"{tmp_path}/store.db"}, there, sql, "fol")
    followed.more["object"] = "dw.t_{table}" if lake == "iceberg" else "t_{table}"

    def rows(columns: str = "id,kind,n") -> list[tuple[Any, ...]]:
        given = {**there, "reader": there["writer"]}
        given |= {"dbtable": "dw.t_a"} if lake == "iceberg" else {"path": f"{there['path']}/t_a"}
        del given["writer"]
        reader, _ = load_reader({**given, "columns": columns})
        reader.schema()
        found = [b.to_pydict() for split in reader.split(1) for b in reader.read(split)]
        return sorted(row for each in found for row in zip(*each.values(), strict=True))

    followed.run()
    assert rows() == [(n, "x", n) for n in range(1, 21)]
    sql(
        "UPDATE a SET n = 0 WHERE id = 1; DELETE FROM a WHERE id > 3; INSERT INTO a VALUES (4, 'y', 4, 1)"
    )
    sql(
        "UPDATE a SET kind = 'z' WHERE id = 2; INSERT INTO a VALUES (5, 'y', 5, 1); DELETE FROM a WHERE id = 5"
    )
    followed.run()
    assert rows() == [(1, "x", 0), (2, "z", 2), (3, "x", 3), (4, "y", 4)]
    assert followed.run().rows == 0
    sql("ALTER TABLE a DROP COLUMN gone, ADD COLUMN d INT DEFAULT 7")
    sql("INSERT INTO a VALUES (6, 'y', 6, 8)")
    followed.run()
    followed.run()
    assert rows("id,d") == [(1, 7), (2, 7), (3, 7), (4, 7), (6, 8)]
    sql("TRUNCATE a; INSERT INTO a VALUES (9, 'x', 9, 9)")
    followed.run()
    assert rows("id,d") == [(9, 9)]
    followed.more["deletes"] = "soft"
    assert "soft changes parts of rows" in followed.run(3).parked[0].why


@pytest.mark.parametrize("policy", ["evolve", "discard_value", "discard_row"])
def test_a_new_column_goes_by_the_contract_and_the_masks(followed: Followed, policy: str) -> None:
    followed.more = {"contract": {"columns": policy}, "columns": {"*.secret*": "sha256"}}
    followed.sql("INSERT INTO fol.a VALUES (1, 1, 'x')")
    followed.run()
    followed.sql("ALTER TABLE fol.a ADD COLUMN secret_2 VARCHAR(40)")
    followed.sql("INSERT INTO fol.a VALUES (2, 2, 'y', 'planted'), (3, 3, 'z', NULL)")
    followed.run()
    kept = [(1, 1), (3, 3)] if policy == "discard_row" else [(1, 1), (2, 2), (3, 3)]
    assert followed.rows("a", "id, n") == kept
    if policy == "evolve":
        digest = hashlib.sha256(b"planted").hexdigest()
        assert followed.rows("a", "id, secret_2") == [(1, None), (2, digest), (3, None)]


@pytest.mark.parametrize("policy", ["freeze", "discard_value"])
def test_a_table_that_the_target_lacks_goes_by_the_contract(
    followed: Followed, policy: str
) -> None:
    followed.sql("INSERT INTO fol.b VALUES (1)")
    followed.streams[f"{followed.schema}.a"]["contract"] = {"tables": policy}
    report = followed.run(3 if policy == "freeze" else 0)
    state = {"freeze": "parked", "discard_value": "unchanged"}[policy]
    assert {each.stream: each.state for each in report.tables} == {"fol.a": state, "fol.b": "done"}
    assert followed.rows("b", "id") == [(1,)]
    followed.streams[f"{followed.schema}.a"]["contract"] = {}
    followed.sql("INSERT INTO fol.a VALUES (1, 1, 'x')")
    followed.run()
    assert followed.rows("a", "id, n") == [(1, 1)]


def test_what_one_table_cannot_have_parks_it_alone(followed: Followed) -> None:
    followed.streams["fol.a"]["columns"] = {"s": "sha256"}
    followed.sql("INSERT INTO fol.a VALUES (1, 1, 'x'); INSERT INTO fol.b VALUES (1)")
    followed.run()
    followed.sql("ALTER TABLE fol.a DROP COLUMN s; INSERT INTO fol.a VALUES (2, 2)")
    followed.sql("INSERT INTO fol.b VALUES (2)")
    report = followed.run(3)
    assert [each.stream for each in report.parked] == ["fol.a"]
    assert "'s'" in report.parked[0].why
    assert followed.rows("b", "id") == [(1,), (2,)]


@pytest.mark.parametrize("column", ["_deleted_at", "_op"])
def test_a_table_with_a_column_of_such_a_name_is_parked_alone(
    followed: Followed, column: str
) -> None:
    followed.more["deletes"] = "soft"
    followed.sql(f"ALTER TABLE fol.a ADD COLUMN {column} INT")
    followed.sql("INSERT INTO fol.a VALUES (1, 1, 'x', 1); INSERT INTO fol.b VALUES (1)")
    report = followed.run(3)
    assert [each.stream for each in report.parked] == ["fol.a"]
    assert f"'{column}'" in report.parked[0].why
    assert followed.rows("b", "id") == [(1,)]
    followed.sql(f"ALTER TABLE fol.a DROP COLUMN {column}")
    followed.run()
    assert followed.rows("a", "id, n") == [(1, 1)]


def test_a_table_that_comes_back_has_no_rows_that_were_deleted_meanwhile(
    followed: Followed,
) -> None:
    followed.sql("INSERT INTO fol.a VALUES (1, 1, 'x'), (2, 2, 'y'); INSERT INTO fol.b VALUES (1)")
    followed.run()
    file = load_replication(followed.file)
    followed.streams["fol.a"]["disabled"] = True
    followed.run()
    assert {each.stream: each.state for each in status_of(file)}["fol.a"] != "followed"
    followed.sql("DELETE FROM fol.a WHERE id = 1")
    del followed.streams["fol.a"]["disabled"]
    followed.run()
    assert followed.rows("a", "id, n") == [(2, 2)]


def test_a_run_that_ends_when_it_has_made_a_table_again_loses_no_row(
    followed: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed.sql("INSERT INTO fol.a VALUES (1, 1, 'x'); INSERT INTO fol.b VALUES (1)")
    followed.run()
    drop_table(followed, "t_a")

    def killed(*_: object) -> None:
        raise RuntimeError("killed")

    with monkeypatch.context() as patch:
        patch.setattr("spark_channel.replication.changes.Follower._follow_others", killed)
        followed.run(3)
    followed.run()
    assert followed.rows("a", "id, n") == [(1, 1)]


def drop_table(followed: Followed, name: str) -> None:
    url = followed.target["url"]
    if url.startswith("sqlite:"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:"))) as there:
            there.execute(f"DROP TABLE {name}")
        return
    followed.sql(f"DROP TABLE fol_dw.{name}")


def test_a_reset_is_not_forgotten_by_a_run_that_leaves_the_table_out(followed: Followed) -> None:
    followed.sql("INSERT INTO fol.a VALUES (1, 1, 'x'); INSERT INTO fol.b VALUES (1)")
    followed.run()
    assert reset_tables(load_replication(followed.file), ["fol.a"]) == ["fol.a"]
    followed.streams["fol.a"]["where"] = "n > 0"
    followed.run(3)
    del followed.streams["fol.a"]["where"]
    assert {each.stream: each.state for each in status_of(load_replication(followed.file))}[
        "fol.a"
    ] == "reset"
    followed.run()
    assert followed.rows("a", "id, n") == [(1, 1)]


def test_a_truncate_does_not_hide_the_versions_before_it(followed: Followed) -> None:
    followed.more["deletes"] = "scd2"
    followed.sql("INSERT INTO fol.a VALUES (1, 1, 'x'), (2, 2, 'y')")
    followed.run()
    followed.sql("UPDATE fol.a SET n = 10 WHERE id = 1")
    followed.sql("TRUNCATE fol.a")
    followed.sql("INSERT INTO fol.a VALUES (1, 11, 'z')")
    followed.run()
    found = followed.rows("a", "id, _valid_from, _valid_to, n")
    assert [(row[0], row[3], row[2] is None) for row in found] == [
        (1, 1, False),
        (1, 10, False),
        (1, 11, True),
        (2, 2, False),
    ]
    for one, other in itertools.pairwise(found):
        assert one[0] != other[0] or one[1] <= one[2] <= other[1]


@pytest.mark.parametrize("followed", ["postgresql"], indirect=True)
def test_a_lost_slot_is_mended_by_a_reset_of_all_tables(
    followed: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also by one that is killed when the tunnel has begun again."""
    followed.sql("INSERT INTO fol.a VALUES (1, 1, 'x'), (2, 2, 'y'); INSERT INTO fol.b VALUES (1)")
    followed.run()
    followed.sql("SELECT pg_drop_replication_slot('fol')")
    followed.sql("DELETE FROM fol.a WHERE id = 1; INSERT INTO fol.b VALUES (2)")
    why = followed.run(3).parked[0].why
    assert "replicate reset FILE '*'" in why
    file = load_replication(followed.file)
    assert reset_tables(file, ["fol.a"]) == ["fol.a"]

    def killed(*given: Any) -> None:
        begin_again(*given)
        raise KeyboardInterrupt

    monkeypatch.setattr(status, "begin_again", killed)
    with pytest.raises(KeyboardInterrupt):
        reset_tables(file, ["*"])
    followed.run()
    assert followed.rows("a", "id, n") == [(2, 2)]
    assert followed.rows("b", "id") == [(1,), (2,)]


def test_a_second_file_ends_no_table_of_the_first(followed: Followed, tmp_path: Path) -> None:
    """One tunnel follows all tables from this source into this target, whichever file names them."""
    followed.sql("INSERT INTO fol.a VALUES (1, 1, 'x'); INSERT INTO fol.b VALUES (1)")

    def replicate(name: str, *tables: str) -> ReplicationReport:
        kept: Row = {f"{followed.schema}.{each}": {} for each in tables}
        (tmp_path / name).write_text(yaml.safe_dump({**followed.file, "streams": kept}))
        return spark_channel.replicate(None, tmp_path / name, once=True)

    assert replicate("night.yml", "a", "b").exit_code == 0
    report = replicate("day.yml", "a")
    assert "night.yml follows fol.b" in report.parked[0].why
    assert (
        replicate("day.yml", "a", "b")
        .notes[-1]
        .endswith("followed by night.yml, and now by day.yml: do not run both")
    )
    assert replicate("day.yml", "a").exit_code == 0
    followed.sql("INSERT INTO fol.a VALUES (2, 2, 'y')")
    assert replicate("day.yml", "a").rows == 1
    assert followed.rows("a", "id") == [(1,), (2,)]


def test_windows_hold_for_tables_that_are_followed(followed: Followed) -> None:
    values = ", ".join(f"({n}, {n}, 'x')" for n in range(60))
    followed.sql(f"INSERT INTO fol.a VALUES {values}")
    file = {**followed.file, "limit": {"windows": ["30"]}}
    began = SYSTEM_CLOCK.now()
    report = spark_channel.replicate(None, file, once=True)
    assert report.exit_code == 0, [each.why for each in report.parked]
    assert SYSTEM_CLOCK.now() - began >= 1.5  # 60 rows at 30 a second, less what the first one may
    assert [limit for _, _, limit in report.windows] == ["30 rows/s"]
    assert len(followed.rows("a", "id")) == 60


def columns(followed: Followed, name: str) -> list[str]:
    reader, _ = load_reader({**followed.target, "dbtable": f"t_{name}"})
    return list(reader.schema().names)


def test_a_column_with_values_in_the_existing_rows_has_them_in_the_target(
    followed: Followed,
) -> None:
    """The log has no word of them: a default, or the values of a column that was renamed."""
    followed.sql("INSERT INTO fol.a VALUES (1, 1, 'x'), (2, 2, 'y')")
    followed.run()
    followed.sql("ALTER TABLE fol.a ADD COLUMN d INT DEFAULT 7 NOT NULL")
    followed.sql("ALTER TABLE fol.a RENAME COLUMN n TO m")
    followed.sql("INSERT INTO fol.a (id, m, s, d) VALUES (3, 3, 'z', 8)")
    followed.run()
    assert followed.rows("a", "id, m, s, d") == [(1, 1, "x", 7), (2, 2, "y", 7), (3, 3, "z", 8)]
    is_known = followed.schema == "fol" and "publication" in followed.source
    assert ("n" in columns(followed, "a")) != is_known


@pytest.mark.parametrize("followed", ["postgresql"], indirect=True)
def test_a_renamed_column_goes_by_the_contract_and_the_masks(
    followed: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed.more |= {"columns": {"*.s": "sha256"}}
    followed.sql("INSERT INTO fol.a VALUES (1, 1, 'planted'); INSERT INTO fol.b VALUES (1)")
    followed.run()
    followed.sql("ALTER TABLE fol.a RENAME COLUMN s TO note")
    followed.sql("INSERT INTO fol.a VALUES (2, 2, 'planted'); INSERT INTO fol.b VALUES (2)")
    report = followed.run(3)
    assert "'s', which has mask sha256, was renamed to 'note'" in report.parked[0].why
    assert "note" not in columns(followed, "a")
    assert followed.rows("b", "id") == [(1,), (2,)]
    followed.more["columns"]["*.note"] = "sha256"
    resume_tables(load_replication(followed.file), ["fol.a"])
    followed.run()
    followed.run()
    assert columns(followed, "a") == ["id", "n", "note"]
    assert {len(each[0]) for each in followed.rows("a", "note")} == {64}
    followed.more["contract"] = {"columns": "freeze"}
    followed.sql("ALTER TABLE fol.a RENAME COLUMN n TO m")
    followed.sql("INSERT INTO fol.a VALUES (3, 3, 'planted')")
    assert 'RENAME COLUMN "n" TO "m"' in followed.run(3).parked[0].why


@pytest.mark.parametrize("followed", ["postgresql"], indirect=True)
def test_names_that_other_columns_have_now_show_neither_old_values_nor_masked_ones(
    followed: Followed,
) -> None:
    """No column is new to the target: two have swapped their names, or one was dropped and added again."""
    followed.more |= {"columns": {"*.secret": "sha256"}}
    names = ("{1} TO t", "{2} TO {1}", "t TO {2}")
    swap = "; ".join(f"ALTER TABLE fol.{{0}} RENAME {each}" for each in names)
    followed.sql("ALTER TABLE fol.a ADD m INT; ALTER TABLE fol.b ADD secret TEXT, ADD note TEXT")
    followed.sql(
        "INSERT INTO fol.a VALUES (1, 1, 'x', 10); INSERT INTO fol.b VALUES (1, 'planted')"
    )
    followed.run()
    followed.sql(swap.format("a", "n", "m") + ";" + swap.format("b", "secret", "note"))
    followed.sql(
        "INSERT INTO fol.a (id, n) VALUES (2, 20); INSERT INTO fol.b VALUES (2, 'planted')"
    )
    why = followed.run(3).parked[0].why
    assert "'secret', which has mask sha256, was renamed to 'note'" in why
    assert followed.rows("a", "id, n, m") == [(1, 10, 1), (2, 20, None)]
    assert followed.rows("b", "id, note") == [(1, None)]
    followed.sql("ALTER TABLE fol.a DROP m, ADD m INT DEFAULT 5; INSERT INTO fol.a (id) VALUES (3)")
    followed.run(3)
    assert followed.rows("a", "id, n, m") == [(1, 10, 5), (2, 20, 5), (3, None, 5)]


@pytest.mark.parametrize("followed", ["postgresql"], indirect=True)
def test_a_table_that_cannot_begin_misses_no_change(followed: Followed) -> None:
    """The others take its changes out of the log, which are not written: its rows are read again."""
    followed.sql("INSERT INTO fol.a VALUES (1, 1, 'x'), (2, 2, 'y'); INSERT INTO fol.b VALUES (1)")
    followed.run()
    followed.streams["fol.a"]["columns"] = {"id": "null"}
    followed.sql("DELETE FROM fol.a WHERE id = 1; INSERT INTO fol.a VALUES (3, 3, 'z')")
    followed.sql("INSERT INTO fol.b VALUES (2)")
    assert "primary key 'id' has mask null" in followed.run(3).parked[0].why
    assert followed.rows("b", "id") == [(1,), (2,)]
    del followed.streams["fol.a"]["columns"]
    followed.run()
    assert followed.rows("a", "id, n") == [(2, 2), (3, 3)]


@pytest.mark.parametrize("followed", ["postgresql"], indirect=True)
def test_a_table_that_is_made_again_in_the_source_has_its_new_rows_alone(
    followed: Followed,
) -> None:
    followed.sql("INSERT INTO fol.a VALUES (1, 1, 'x'), (2, 2, 'y'); INSERT INTO fol.b VALUES (1)")
    followed.run()
    followed.sql("DROP TABLE fol.a; CREATE TABLE fol.a (id INT PRIMARY KEY, n INT, m INT)")
    followed.sql(
        "ALTER PUBLICATION fol ADD TABLE fol.a; INSERT INTO fol.a VALUES (2, 20, 0), (3, 3, 0)"
    )
    followed.sql("INSERT INTO fol.b VALUES (2)")
    followed.run()
    assert followed.rows("a", "id, n, m") == [(2, 20, 0), (3, 3, 0)]
    assert followed.rows("b", "id") == [(1,), (2,)]


@pytest.mark.parametrize("followed", ["postgresql"], indirect=True)
def test_a_table_that_is_dropped_in_the_target_while_it_is_followed_gets_all_rows(
    followed: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed.sql("INSERT INTO fol.a VALUES (1, 1, 'x'), (2, 2, 'y')")
    followed.run()
    followed.sql("INSERT INTO fol.a VALUES (3, 3, 'z')")
    begin = Follower._follow_others

    def drop(*given: Any) -> None:
        begin(*given)
        followed.sql("DROP TABLE fol_dw.t_a")

    with monkeypatch.context() as patched:
        patched.setattr(Follower, "_follow_others", drop)
        followed.run()
    assert followed.rows("a", "id") == [(1,), (2,), (3,)]


SECRET = "planted-1f9a"


def test_no_byte_of_a_followed_table_has_a_masked_value(
    followed: Followed,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """In rows that come, are refused, deleted, and have a new column; in what the run, its state and a check say."""
    monkeypatch.setenv("PII_KEY", "0123456789abcdef0123")
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__TYPE", "file")
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__LOG_FILE_PATH", str(tmp_path / "lineage.json"))
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__APPEND", "true")
    monkeypatch.setattr(running, "_running", [])
    caplog.set_level(logging.DEBUG)
    followed.more |= {"columns": {"*.s*": "hmac(${env:PII_KEY})"}, "deletes": "soft"}
    file = tmp_path / "shop.yml"
    file.write_text(yaml.safe_dump(followed.file))
    to_postgres = "publication" in followed.source
    texts = []
    with ServiceServer() as server:
        for code, statements in (
            (0, f"INSERT INTO fol.a VALUES (1, 1, '{SECRET}'), (2, 2, '{SECRET}')"),
            (0, f"UPDATE fol.a SET s = 'x{SECRET}' WHERE id = 1; DELETE FROM fol.a WHERE id = 2"),
            (0, f"ALTER TABLE fol.b ADD COLUMN s2 VARCHAR(20) DEFAULT '{SECRET}'"),
            (0, f"INSERT INTO fol.b VALUES (1, '{SECRET}')"),
            (3, f"INSERT INTO fol.a VALUES (3, 1000, '{SECRET}')"),
        ):
            if code:
                refuse(followed)
            followed.sql(statements)
            report = followed.run(code)
            texts += [report.to_json(), repr(report), str(report)]
        texts += [repr(server.metrics.statuses()), repr(status_of(load_replication(file)))]
    assert "small" in report.parked[0].why
    texts += [
        run(*words, str(file), code=code, PII_KEY="0123456789abcdef0123")
        for words, code in ((("replicate", "--dry-run"), 0), (("verify",), 3))
    ]
    captured = capfd.readouterr()
    texts += [captured.out, captured.err, caplog.text]
    if to_postgres:
        tables = followed.sql(
            "SELECT schemaname || '.' || tablename FROM pg_tables "
            "WHERE schemaname = 'fol_dw' OR tablename LIKE 'spark%'"
        ).split()
        assert len(tables) > 4
        texts += [followed.sql(f"SELECT t::text FROM {each} t") for each in tables]
    assert [text for text in texts if SECRET in text] == []
    files = [each for each in tmp_path.rglob("*") if each.is_file()]
    assert [each for each in files if SECRET.encode() in each.read_bytes()] == []
    assert {len(each[0]) for each in followed.rows("a", "s")} == {64}


def test_no_error_of_the_log_quotes_a_masked_value(
    followed: Followed, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """Not of a value that Arrow cannot hold."""
    caplog.set_level(logging.DEBUG)
    is_postgres = "publication" in followed.source
    value = "5874897-11-30" if is_postgres else "2026-00-15"
    followed.more["columns"] = {"*.d": "sha256"}
    followed.sql("ALTER TABLE fol.a ADD COLUMN d DATE")
    followed.sql("INSERT INTO fol.a VALUES (1, 1, 'x', NULL)")
    followed.run()
    mode = "" if is_postgres else "SET sql_mode = ''; "
    followed.sql(f"{mode}UPDATE fol.a SET d = '{value}'")
    report = followed.run(3)
    file = tmp_path / "shop.yml"
    file.write_text(yaml.safe_dump(followed.file))
    said = report.to_json() + caplog.text + repr(status_of(load_replication(file)))
    assert "cannot hold" in report.parked[0].why
    assert value not in said


def refuse(followed: Followed) -> None:
    """Let the target refuse rows of `a` whose `n` is 1000."""
    if "publication" in followed.source:
        followed.sql("ALTER TABLE fol_dw.t_a ADD CONSTRAINT small CHECK (n < 1000)")
        return
    with closing(sqlite3.connect(followed.target["url"].removeprefix("sqlite:"))) as connection:
        connection.execute(
            "CREATE TRIGGER small BEFORE INSERT ON t_a WHEN NEW.n = 1000 BEGIN SELECT RAISE(ABORT, 'small'); END"
        )


@pytest.mark.timeout(120)
@pytest.mark.parametrize("followed", ["mariadb"], indirect=True)
def test_versions_are_in_the_order_of_the_changes_when_the_log_s_clock_is_set_back(
    followed: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed.more["deletes"] = "scd2"
    followed.sql("INSERT INTO fol.a VALUES (1, 10, 'x')")
    followed.run()
    followed.sql("UPDATE fol.a SET n = 20")
    followed.run()
    followed.sql("SET timestamp = UNIX_TIMESTAMP() - 3600; UPDATE fol.a SET n = 30")
    refused = publish.ChangePublisher._publish

    def once(self: Any, *given: Any) -> int:
        monkeypatch.setattr(publish.ChangePublisher, "_publish", refused)
        raise TargetError("the target was away")

    monkeypatch.setattr(publish.ChangePublisher, "_publish", once)
    followed.run()
    followed.sql("SET timestamp = UNIX_TIMESTAMP() - 7200; DELETE FROM fol.a")
    followed.run()
    versions = followed.rows("a", "_valid_from, _valid_to, n")
    assert [n for _, _, n in versions] == [10, 20, 30]
    ends = [end for _, end, _ in versions]
    assert all(ends)
    assert ends[:2] == [begin for begin, _, _ in versions[1:]]
    assert versions[2][0] <= ends[2]
    # A delivery that is written at a second try begins where it would have begun at the first.
    assert versions[2][0] - versions[1][0] == timedelta(microseconds=1)


def test_a_shared_limit_that_does_not_answer_parks_no_table(
    followed: Followed, tmp_path: Path
) -> None:
    """It is of no table: the run says where the limit is looked for, and ends as one to be repeated."""
    followed.sql("INSERT INTO fol.a VALUES (1, 1, 'x')")
    token, file, limit = tmp_path / "token", tmp_path / "f.json", f"127.0.0.1:{free_port()}/lost"
    token.write_text("t" * 32)
    source, report = {**followed.source, "outageTimeout": "2"}, tmp_path / "report.json"
    file.write_text(json.dumps({**followed.file, "source": source}))
    said = run(
        *("replicate", str(file), "--once", "--shared-limit", limit, "--report", str(report)),
        code=1,
        SPARK_CHANNEL_SHARED_LIMIT_TOKEN_FILE=str(token),
    )
    assert "limit 'lost' has not answered for" in said
    assert limit.removesuffix("/lost") in said
    assert "parked" not in said
    kept = json.loads(report.read_text())
    assert (kept["exit_code"], kept["error_type"]) == (1, "ServiceUnavailableError")
    assert "limit 'lost' has not answered for" in kept["error"]
    assert {each["stream"]: each["state"] for each in kept["tables"]}["fol.a"] == "not run"
    assert "failed, exit code 1: " in run("report", str(report))
    assert followed.run().rows == 1
    assert followed.rows("a", "id, n, s") == [(1, 1, "x")]
