"""Tables that are followed by the logs of PostgreSQL and MariaDB: deletes, tables that are parked, contracts."""

import hashlib
import itertools
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import spark_channel
from spark_channel.connectors import load_reader
from spark_channel.replication import ReplicationReport
from spark_channel.replication.config import load_replication
from spark_channel.replication.status import reset_tables, resume_tables, status_of
from spark_channel.service import ServiceServer, discovery
from tests.servers.mariadb import BINLOG, MariadbServer
from tests.servers.postgres import PostgresServer

Row = dict[str, Any]


@pytest.fixture(scope="module")
def logging_server() -> Iterator[MariadbServer]:
    server = MariadbServer.create(**BINLOG)
    yield server
    server.close()


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
            "DROP TABLE IF EXISTS spark_channel_tunnel_notes, spark_channel_tunnel_clients, "
            "spark_channel_tunnel_channels, spark_channel_tunnels CASCADE"
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


def test_a_run_is_one_job_of_its_tunnel(
    followed: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery, "_running", [])
    followed.sql("INSERT INTO fol.a VALUES (1, 1, 'x'); INSERT INTO fol.b VALUES (1), (2)")
    with ServiceServer() as server:
        report = followed.run()
    (status,) = server.metrics.statuses()
    assert (status.phase, status.rows) == ("done", 3)
    spec = status.spec
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
    assert found["fol.b"].lag_rows == 0
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
def test_a_lost_slot_is_mended_by_a_reset_of_all_tables(followed: Followed) -> None:
    followed.sql("INSERT INTO fol.a VALUES (1, 1, 'x'), (2, 2, 'y'); INSERT INTO fol.b VALUES (1)")
    followed.run()
    followed.sql("SELECT pg_drop_replication_slot('fol')")
    followed.sql("DELETE FROM fol.a WHERE id = 1; INSERT INTO fol.b VALUES (2)")
    why = followed.run(3).parked[0].why
    assert "replicate reset FILE '*'" in why
    assert reset_tables(load_replication(followed.file), ["*"]) == ["fol.a", "fol.b"]
    followed.run()
    assert followed.rows("a", "id, n") == [(2, 2)]
    assert followed.rows("b", "id") == [(1,), (2,)]
