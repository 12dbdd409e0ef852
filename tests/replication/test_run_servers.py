"""Replications of PostgreSQL and MariaDB: odd names and tables, into databases, files and lake tables."""

import json
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

import spark_channel
from spark_channel.connectors.postgresql.read.copy_session import PgCopySession
from spark_channel.connectors.postgresql.session import (
    PgPlanSession,
    PgReadSession,
    PgSession,
    PgWriteSession,
)
from spark_channel.errors import OptionError
from spark_channel.replication import ReplicationReport
from spark_channel.replication.config import load_replication
from spark_channel.replication.status import resume_tables
from spark_channel.replication.tunnels import parts_of
from tests.cli.test_run import run
from tests.servers.mariadb import MariadbServer
from tests.servers.postgres import PostgresServer

PG_TABLES = """
DROP SCHEMA IF EXISTS rep_a CASCADE; DROP SCHEMA IF EXISTS "Rep.B" CASCADE; DROP SCHEMA IF EXISTS rep_dw CASCADE;
CREATE SCHEMA rep_a; CREATE SCHEMA "Rep.B"; CREATE SCHEMA rep_dw;
CREATE TABLE rep_a.plain (id int PRIMARY KEY, name text, at timestamptz, n numeric(10,2));
INSERT INTO rep_a.plain SELECT n, 'name ' || n, '2026-01-01 00:00+00'::timestamptz + n * interval '1 hour', n / 4.0
  FROM generate_series(1, 300) n;
CREATE TABLE rep_a.keyless (a int, b text); INSERT INTO rep_a.keyless VALUES (1, 'x'), (1, 'x'), (NULL, NULL);
CREATE TABLE rep_a.empty (a int);
CREATE TABLE rep_a."Mixed Case" ("Id" int PRIMARY KEY, "select" text, "a.b" text);
INSERT INTO rep_a."Mixed Case" VALUES (1, 'q"uote', 'dot');
CREATE TABLE "Rep.B"."dot.ted" (id int PRIMARY KEY); INSERT INTO "Rep.B"."dot.ted" VALUES (7);
CREATE TABLE rep_a.parts (id int, day date, PRIMARY KEY (id, day)) PARTITION BY RANGE (day);
CREATE TABLE rep_a.parts_1 PARTITION OF rep_a.parts FOR VALUES FROM ('2026-01-01') TO ('2026-02-01');
CREATE TABLE rep_a.parts_2 PARTITION OF rep_a.parts FOR VALUES FROM ('2026-02-01') TO ('2026-03-01');
INSERT INTO rep_a.parts VALUES (1, '2026-01-05'), (2, '2026-02-05');
CREATE VIEW rep_a.seen AS SELECT 1 AS one;
ANALYZE;
"""
PG_ROWS = {
    "rep_a.plain": 300,
    "rep_a.keyless": 3,
    "rep_a.empty": 0,
    "rep_a.Mixed Case": 1,
    "Rep.B.dot.ted": 1,
    "rep_a.parts": 2,
}
MY_TABLES = """
DROP TABLE IF EXISTS rep_plain, rep_keyless, rep_empty, `rep_Mixed Case`, `rep_dot.ted`;
CREATE TABLE rep_plain (id INT PRIMARY KEY, name VARCHAR(50), at DATETIME(6), seen TIMESTAMP(6) NULL, n DECIMAL(10,2));
INSERT INTO rep_plain SELECT seq, CONCAT('name ', seq), '2026-01-01' + INTERVAL seq HOUR,
  '2026-01-01' + INTERVAL seq HOUR, seq / 4 FROM seq_1_to_300;
CREATE TABLE rep_keyless (a INT, b TEXT); INSERT INTO rep_keyless VALUES (1, 'x'), (1, 'x'), (NULL, NULL);
CREATE TABLE rep_empty (a INT);
CREATE TABLE `rep_Mixed Case` (`Id` INT PRIMARY KEY, `select` TEXT, `a.b` TEXT);
INSERT INTO `rep_Mixed Case` VALUES (1, 'q`uote', 'dot');
CREATE TABLE `rep_dot.ted` (id INT PRIMARY KEY); INSERT INTO `rep_dot.ted` VALUES (7);
"""
MY_ROWS = {
    "shop.rep_plain": 300,
    "shop.rep_keyless": 3,
    "shop.rep_empty": 0,
    "shop.rep_Mixed Case": 1,
    "shop.rep_dot.ted": 1,
}


@pytest.fixture
def pg(postgres_server: PostgresServer) -> Iterator[PostgresServer]:
    postgres_server.psql(PG_TABLES)
    yield postgres_server
    postgres_server.psql(
        'DROP SCHEMA rep_a CASCADE; DROP SCHEMA "Rep.B" CASCADE; DROP SCHEMA rep_dw CASCADE'
    )


def replicate(
    source: Mapping[str, str], target: Mapping[str, str], streams: Mapping[str, Any], **more: Any
) -> ReplicationReport:
    file = {"source": dict(source), "target": dict(target), "streams": streams, **more}
    report = spark_channel.replicate(None, file)
    assert report.exit_code == 0, [(each.stream, each.why) for each in report.parked]
    return report


def states_of(report: ReplicationReport) -> dict[str, str]:
    return {each.stream: each.state for each in report.tables}


def rows_of(report: ReplicationReport) -> dict[str, int]:
    return {each.stream: each.rows for each in report.tables}


def test_the_exchanges_with_the_servers_for_each_small_table_are_few(
    pg: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str] = []

    def counted(kind: type[PgSession], name: str) -> None:
        method = getattr(kind, name)

        def run(session: PgSession, sql: Any) -> Any:
            sent.append(str(sql))
            return method(session, sql)

        monkeypatch.setattr(kind, name, run)

    counted(PgPlanSession, "_run")
    counted(PgReadSession, "_run")
    counted(PgWriteSession, "_run")
    counted(PgCopySession, "_script")

    def exchanges(tables: int) -> int:
        pg.psql(
            "DROP SCHEMA rep_dw CASCADE; CREATE SCHEMA rep_dw;"
            + "".join(
                f"CREATE TABLE rep_dw.s{number} (id int PRIMARY KEY, v text);"
                f"INSERT INTO rep_dw.s{number} VALUES (1, 'a'), (2, 'b');"
                for number in range(tables)
            )
        )
        target = {**pg.login, "currentSchema": "rep_a"}
        sent.clear()
        report = replicate(pg.login, target, {"rep_dw.s*": {}}, parallel="1")
        assert report.rows == 2 * tables
        return len(sent)

    exchanges(1)
    few, many = exchanges(1), exchanges(5)
    assert (many - few) / 4 <= 75


@pytest.mark.parametrize("writer", ["postgresql", "parquet", "delta"])
def test_the_tables_of_postgresql(pg: PostgresServer, tmp_path: Path, writer: str) -> None:
    target = (
        {**pg.login, "currentSchema": "rep_dw"}
        if writer == "postgresql"
        else {"path": str(tmp_path / "lake"), "writer": writer}
    )
    streams: dict[str, Any] = {"rep_a.*": {}, "rep.b.*": {}}
    report = replicate(pg.login, target, streams)
    assert rows_of(report) == PG_ROWS
    assert report.tables[0].stream in ("rep_a.plain", "rep_a.parts")  # the largest is begun first
    assert rows_of(replicate(pg.login, target, streams)) == PG_ROWS
    if writer == "postgresql":
        file = {
            "source": pg.login,
            "target": target,
            "streams": {"rep_a.plain": {"object": "é" * 31 + "{table}"}},
        }
        parked = spark_channel.replicate(None, file).parked
        assert "would cut its name after 63 bytes" in parked[0].why
    if writer == "postgresql":
        same = "SELECT count(*) FROM (SELECT * FROM rep_a.plain EXCEPT ALL SELECT * FROM rep_dw.rep_a_plain) x"
        assert pg.psql(same).strip() == "0"
        assert pg.psql('SELECT count(*) FROM rep_dw."Rep.B_dot.ted"').strip() == "1"
        assert pg.psql("SELECT count(*) FROM rep_dw.rep_a_plain").strip() == "300"


@pytest.mark.parametrize("writer", ["postgresql", "delta"])
def test_the_tables_of_mariadb(
    pg: PostgresServer, mariadb_server: MariadbServer, tmp_path: Path, writer: str
) -> None:
    mariadb_server.sql(MY_TABLES, database="shop")
    target = (
        {**pg.login, "currentSchema": "rep_dw"}
        if writer == "postgresql"
        else {"path": str(tmp_path / "lake"), "writer": writer}
    )
    for _ in range(2):
        report = replicate(mariadb_server.login, target, {"shop.rep_*": {}})
        assert rows_of(report) == MY_ROWS
    if writer == "postgresql":
        assert pg.psql('SELECT "select" FROM rep_dw."shop_rep_Mixed Case"').strip() == "q`uote"


@pytest.mark.parametrize("key", ["id", "at", "seen"])
@pytest.mark.parametrize("system", ["postgresql", "mariadb"])
def test_an_incremental_table_of_a_server(
    pg: PostgresServer, mariadb_server: MariadbServer, system: str, key: str
) -> None:
    """Without a primary key, so that a row that is read twice is there twice; the highest value waits."""
    if system == "postgresql" and key == "seen":
        pytest.skip("`at` is a time with a zone there")
    source: Mapping[str, str] = pg.login
    stream, insert = "rep_a.plain", pg.psql
    more = "INSERT INTO rep_a.plain VALUES (301, 'new', '2026-03-01 00:00+00', 1), (302, 'new', '2026-03-02', 1)"
    if system == "mariadb":
        mariadb_server.sql(MY_TABLES, database="shop")
        source, stream = mariadb_server.login, "shop.rep_plain"
        more = (
            "INSERT INTO rep_plain VALUES (301, 'new', '2026-03-01', '2026-03-01', 1), "
            "(302, 'new', '2026-03-02', '2026-03-02', 1)"
        )
    streams = {
        stream: {"mode": "incremental", "update_key": key, "late_seconds": "0", "object": "copied"}
    }
    target = {**pg.login, "currentSchema": "rep_dw"}
    waits = 0 if key == "id" else 1
    assert replicate(source, target, streams).rows == 300 - waits
    assert replicate(source, target, streams).rows == 0
    insert(more) if system == "postgresql" else mariadb_server.sql(more, database="shop")
    assert replicate(source, target, streams).rows == 2
    assert replicate(source, target, streams).rows == 0
    found = pg.psql("SELECT count(*), count(DISTINCT id), max(id) FROM rep_dw.copied").strip()
    assert found.split("|") == [str(302 - waits), str(302 - waits), str(302 - waits)]


@pytest.mark.parametrize("mode", ["full", "incremental"])
def test_what_postgresql_says_of_a_masked_value_is_hidden(
    pg: PostgresServer, tmp_path: Path, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    file: dict[str, Any] = {
        "source": pg.login,
        "target": {"url": f"sqlite:{tmp_path}/dw.db"},
        "defaults": {"mode": mode, "update_key": "id", "columns": {"*.name": "sha256"}},
        "streams": {"rep_a.plain": {"where": "name::date > '2026-01-01'"}},
    }
    report = spark_channel.replicate(None, file)
    assert "22007" in report.parked[0].why
    assert "hidden" in report.parked[0].why
    assert '"name ' not in report.to_json() + caplog.text
    file["defaults"]["columns"] = {}
    assert '"name ' in spark_channel.replicate(None, file).parked[0].why


def test_what_mariadb_says_of_a_masked_value_is_hidden_and_the_rest_is_shown(
    mariadb_server: MariadbServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    mariadb_server.sql(
        "DROP TABLE IF EXISTS rep_secret; CREATE TABLE rep_secret (id INT PRIMARY KEY, name VARCHAR(40));"
        "INSERT INTO rep_secret VALUES (1, 'planted-secret')",
        database="shop",
    )
    stream: dict[str, Any] = {"where": "EXTRACTVALUE(name, CONCAT('/', name, '(')) = ''"}
    file: dict[str, Any] = {
        "source": mariadb_server.login,
        "target": {"url": f"sqlite:{tmp_path}/dw.db"},
        "defaults": {"columns": {"*.name": "sha256"}},
        "streams": {"shop.rep_secret": stream},
    }
    report = spark_channel.replicate(None, file)
    assert "hidden" in report.parked[0].why
    assert "planted-secret" not in report.to_json() + caplog.text
    stream["where"] = "no_such_column = 1"
    assert "no_such_column" in spark_channel.replicate(None, file).parked[0].why
    file["defaults"], stream["where"] = {}, "EXTRACTVALUE(name, CONCAT('/', name, '(')) = ''"
    assert "XPATH" in spark_channel.replicate(None, file).parked[0].why


def test_a_plan_moves_nothing_and_names_what_is_missing(pg: PostgresServer) -> None:
    from spark_channel.replication.config import load_replication
    from spark_channel.replication.plan import plan_replication
    from spark_channel.replication.run import RunSettings

    pg.psql(
        "DROP ROLE IF EXISTS rep_reader; CREATE ROLE rep_reader LOGIN PASSWORD 'rep';"
        "GRANT USAGE ON SCHEMA rep_a TO rep_reader;"
        "GRANT SELECT ON rep_a.plain TO rep_reader"
    )
    file = load_replication(
        {
            "source": {**pg.login, "user": "rep_reader", "password": "rep"},
            "target": {**pg.login, "currentSchema": "rep_dw"},
            "streams": {"rep_a.plain": {}, "rep_a.keyless": {}},
            "limit": {"rows_per_second": "100", "windows": ["pause"]},
        }
    )
    made = plan_replication(file, RunSettings(), parallelism=2)
    plans = {each.stream: each for each in made.tables}
    assert (plans["rep_a.plain"].does, plans["rep_a.plain"].fault) == ("creates", "")
    assert plans["rep_a.plain"].rows == 300
    assert "ORDER BY" in plans["rep_a.plain"].statement  # short statements, under a limit
    assert "Seq Scan on plain" in plans["rep_a.plain"].server_plan  # one statement has all rows
    assert "GRANT SELECT ON rep_a.keyless TO rep_reader" in plans["rep_a.keyless"].fault
    assert made.seconds is None
    assert json.loads(json.dumps(made.notes)) == []
    assert pg.psql("SELECT count(*) FROM pg_tables WHERE schemaname = 'rep_dw'").strip() == "0"
    pg.psql("DROP OWNED BY rep_reader; DROP ROLE rep_reader")


def test_a_plan_parks_no_table_for_an_identity_column_of_the_target(pg: PostgresServer) -> None:
    from spark_channel.replication.config import load_replication
    from spark_channel.replication.plan import plan_replication
    from spark_channel.replication.run import RunSettings

    pg.psql(
        "CREATE SCHEMA rep_numbered; CREATE TABLE rep_numbered.plain "
        "(id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text, at timestamptz, n numeric(10,2))"
    )
    file = {
        "source": pg.login,
        "target": {**pg.login, "currentSchema": "rep_numbered"},
        "streams": {"rep_a.plain": {"object": "plain"}},
    }
    made = plan_replication(load_replication(file), RunSettings(), parallelism=2)
    report = spark_channel.replicate(None, file)
    pg.psql("DROP SCHEMA rep_numbered CASCADE")
    assert [(each.does, each.fault) for each in made.tables] == [("replaces all rows", "")]
    assert report.rows == 300


def test_a_plan_parks_a_followed_table_as_the_run_does(pg: PostgresServer) -> None:
    """For what its target lacks, and by its contract."""
    from spark_channel.replication.config import load_replication
    from spark_channel.replication.plan import plan_replication
    from spark_channel.replication.run import RunSettings

    names = ("keyless", "fewer", "absent", "left", "fine")
    pg.psql(
        "CREATE SCHEMA rep_past; CREATE SCHEMA rep_past_dw; CREATE PUBLICATION rep_past;"
        + "".join(
            f"CREATE TABLE rep_past.{name} (id int PRIMARY KEY, n int);"
            f"INSERT INTO rep_past.{name} VALUES (1, 1);"
            f"ALTER PUBLICATION rep_past ADD TABLE rep_past.{name};"
            for name in names
        )
        + "CREATE TABLE rep_past_dw.keyless (id int, n int);"
        "CREATE TABLE rep_past_dw.fewer (id int PRIMARY KEY)"
    )
    file = {
        "source": {
            **pg.login,
            "publication": "rep_past",
            "slot": "rep_past",
            "statementseconds": 0,
        },
        "target": {**pg.login, "currentSchema": "rep_past_dw"},
        "defaults": {"mode": "full_then_changes", "object": "{table}"},
        "streams": {
            "rep_past.keyless": {},
            "rep_past.fewer": {"contract": {"columns": "freeze"}},
            "rep_past.absent": {"contract": {"tables": "freeze"}},
            "rep_past.left": {"contract": {"tables": "discard_row"}},
            "rep_past.fine": {},
        },
    }
    made = plan_replication(load_replication(file), RunSettings(), parallelism=2)
    report = spark_channel.replicate(None, file, once=True)
    pg.psql(
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = 'rep_past';"
        "DROP PUBLICATION rep_past; DROP SCHEMA rep_past CASCADE; DROP SCHEMA rep_past_dw CASCADE;"
        "DROP TABLE IF EXISTS spark_channel_tunnel_places, spark_channel_tunnel_notes, spark_channel_tunnel_clients, "
        "spark_channel_tunnel_channels, spark_channel_tunnels CASCADE"
    )
    plans = {each.stream: each for each in made.tables}
    parked = {each.stream: each.why for each in report.parked}
    assert {name for name, each in plans.items() if each.fault} == parked.keys()
    fine = plans["rep_past.fine"]
    assert (fine.fault, fine.connections) == ("", 1)
    assert fine.statement.endswith('ORDER BY "fine"."id" LIMIT 1000')
    assert "Index Scan" in fine.server_plan or "Sort" in fine.server_plan
    assert "does not hold (id) unique" in plans["rep_past.keyless"].fault
    assert plans["rep_past.fewer"].fault in parked["rep_past.fewer"]
    assert plans["rep_past.left"].does == next(
        each.why for each in report.tables if each.stream == "rep_past.left"
    )


def test_a_date_before_our_era_is_no_position(pg: PostgresServer) -> None:
    """It is not that of the same year after it, beyond which no row would be read."""
    pg.psql(
        "CREATE SCHEMA rep_old; CREATE TABLE rep_old.days (at date PRIMARY KEY);"
        "INSERT INTO rep_old.days VALUES ('4000-01-01 BC')"
    )
    streams = {"rep_old.days": {"mode": "incremental", "update_key": "at", "late_seconds": 0}}
    target = {**pg.login, "currentSchema": "rep_dw"}
    report = spark_channel.replicate(
        None, {"source": pg.login, "target": target, "streams": streams}
    )
    pg.psql("DROP SCHEMA rep_old CASCADE")
    assert "has a highest value that is not date" in report.parked[0].why


def test_a_plan_and_a_run_park_tables_that_no_tunnel_follows(pg: PostgresServer) -> None:
    from spark_channel.replication.config import load_replication
    from spark_channel.replication.plan import plan_replication
    from spark_channel.replication.run import RunSettings

    pg.psql(
        "CREATE SCHEMA rep_no; CREATE TABLE rep_no.parts (id int PRIMARY KEY) PARTITION BY RANGE (id);"
        "CREATE TABLE rep_no.rest PARTITION OF rep_no.parts DEFAULT;"
        "CREATE TABLE rep_no.sums (id int PRIMARY KEY, n int GENERATED ALWAYS AS (id * 2) STORED);"
        "CREATE PUBLICATION rep_no FOR TABLE rep_no.parts, rep_no.sums WITH (publish_via_partition_root)"
    )
    file = {
        "source": {**pg.login, "publication": "rep_no", "slot": "rep_no"},
        "target": {**pg.login, "currentSchema": "rep_dw"},
        "defaults": {"mode": "full_then_changes"},
        "streams": {"rep_no.parts": {}, "rep_no.sums": {}, "rep_no.missing": {}},
    }
    made = plan_replication(load_replication(file), RunSettings(), parallelism=2)
    report = spark_channel.replicate(None, file, once=True)
    pg.psql("DROP PUBLICATION rep_no; DROP SCHEMA rep_no CASCADE")
    assert {each.mode for each in report.tables} == {"full_then_changes"}
    faults = {each.stream: each.fault for each in made.tables}
    assert faults == {each.stream: each.why for each in report.parked}
    for name in ("parts", "sums"):
        assert faults[f"rep_no.{name}"].endswith(
            ". Remove the cause, or use mode full or incremental"
        )


def test_tables_are_followed_by_the_log(
    pg: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Base, changes, a table that the file has later, and one that refuses a row for a while; masks all along."""
    monkeypatch.setenv("PII_KEY", "0123456789abcdef0123")
    slot = "rep_follow"
    pg.psql(
        f'CREATE PUBLICATION {slot} FOR TABLE rep_a.plain, rep_a."Mixed Case", "Rep.B"."dot.ted"'
    )
    source = {**pg.login, "publication": slot, "slot": slot, "heartbeatInterval": "5"}
    source["maxRetryInterval"] = "0.2"
    target = {**pg.login, "currentSchema": "rep_dw"}
    streams: dict[str, Any] = {
        "rep_a.plain": {"mode": "full_then_changes", "columns": {"name": "hmac(${env:PII_KEY})"}},
        "rep_a.Mixed Case": {"mode": "full_then_changes"},
        "rep_a.keyless": {"mode": "full_then_changes"},
        "rep_a.empty": {},
    }

    def run(*select: str) -> ReplicationReport:
        file = {"source": source, "target": target, "streams": streams}
        return spark_channel.replicate(None, file, once=True, select=select)

    try:
        with pytest.raises(OptionError, match=r"--select takes rep_a\.plain and not rep_a"):
            run("rep_a.plain")
        report = run()
        states = {each.stream: (each.state, each.rows) for each in report.tables}
        assert states == {
            "rep_a.plain": ("done", 300),
            "rep_a.Mixed Case": ("done", 1),
            "rep_a.keyless": ("parked", 0),
            "rep_a.empty": ("done", 0),
        }, [each.why for each in report.parked]
        assert "no primary key" in report.parked[0].why
        pg.psql(
            "DELETE FROM rep_a.plain WHERE id <= 10; UPDATE rep_a.plain SET n = 0 WHERE id = 11"
        )
        pg.psql(
            "UPDATE rep_a.plain SET id = 1000 WHERE id = 12; INSERT INTO rep_a.plain VALUES (301, 'x', NULL, 1)"
        )
        del streams["rep_a.keyless"]
        streams["rep.b.dot.ted"] = {"mode": "full_then_changes"}
        report = run()
        assert report.exit_code == 0, [each.why for each in report.parked]
        same = (
            "SELECT count(*) FROM (SELECT id, at, n FROM rep_a.plain EXCEPT ALL "
            "SELECT id, at, n FROM rep_dw.rep_a_plain) x"
        )
        assert pg.psql(same).strip() == "0"
        assert pg.psql("SELECT count(*) FROM rep_dw.rep_a_plain").strip() == "291"
        assert (
            pg.psql("SELECT count(*) FROM rep_dw.rep_a_plain WHERE name LIKE 'name%'").strip()
            == "0"
        )
        assert pg.psql('SELECT id FROM rep_dw."Rep.B_dot.ted"').strip() == "7"
        pg.psql("ALTER TABLE rep_dw.rep_a_plain ADD CONSTRAINT small CHECK (id < 2000)")
        pg.psql("INSERT INTO rep_a.plain VALUES (2000, 'y', NULL, 1)")
        report = run()
        assert report.exit_code == 3
        assert "small" in report.parked[0].why
        assert pg.psql("SELECT count(*) FROM rep_dw.rep_a_plain").strip() == "291"
        pg.psql("ALTER TABLE rep_dw.rep_a_plain DROP CONSTRAINT small")
        assert states_of(run())["rep_a.plain"] == "parked"
        file = load_replication({"source": source, "target": target, "streams": streams})
        assert resume_tables(file, ["rep_a.plain"]) == (["rep_a.plain"], [])
        assert {each.state for each in run().tables} <= {"done", "unchanged"}
        assert pg.psql("SELECT count(*) FROM rep_dw.rep_a_plain").strip() == "292"
    finally:
        pg.psql(
            f"SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = '{slot}';"
            f"DROP PUBLICATION {slot}; DROP TABLE IF EXISTS spark_channel_tunnel_places, "
            "spark_channel_tunnel_notes, spark_channel_tunnel_clients, "
            "spark_channel_tunnel_channels, spark_channel_tunnels CASCADE"
        )


def test_a_plan_of_tables_that_are_followed_is_a_sheet_for_their_dba(
    pg: PostgresServer, tmp_path: Path
) -> None:
    pg.psql(
        "DROP ROLE IF EXISTS rep_reader; CREATE ROLE rep_reader LOGIN PASSWORD 'rep';"
        "GRANT USAGE ON SCHEMA rep_a TO rep_reader;"
        'GRANT SELECT ON rep_a.plain, rep_a.keyless, rep_a.empty, rep_a."Mixed Case" TO rep_reader;'
        "DROP TABLE IF EXISTS public.spark_channel_tunnel_places, public.spark_channel_tunnel_notes, "
        "public.spark_channel_tunnel_clients, "
        "public.spark_channel_tunnel_channels, public.spark_channel_tunnels;"
        "CREATE PUBLICATION rep_sheet FOR TABLE rep_a.plain"
    )
    file = {
        "source": {
            **pg.login,
            "user": "rep_reader",
            "password": "rep",
            "publication": "rep_sheet",
            "slot": "rep_sheet",
        },
        "target": {**pg.login, "currentSchema": "rep_dw"},
        "defaults": {"mode": "full_then_changes", "deletes": "soft"},
        "streams": {"rep_a.plain": {}, "rep_a.Mixed Case": {}, "rep_a.empty": {"mode": "full"}},
        "limit": {"rows_per_second": "10"},
    }
    (tmp_path / "sheet.yml").write_text(yaml.safe_dump(file))
    try:
        said = run(
            "replicate", str(tmp_path / "sheet.yml"), "--dry-run", "--plans", code=3, COLUMNS="200"
        )
        said = " ".join(said.split())
        for text in (
            "270 to 330",
            "'rep_sheet' does not hold table rep_a.\"Mixed Case\": run ALTER PUBLICATION rep_sheet ADD TABLE",
            "missing: role rep_reader may not use replication slots: run ALTER ROLE rep_reader REPLICATION",
            "locks of the source: ACCESS SHARE while a statement runs",
            "locks of the target: ROW EXCLUSIVE",
            "target: CREATE rep_a_plain (id int32, name string",
            "_deleted_at timestamp[us, tz=UTC]",
            "duration: 27 s to 33 s at this limit, ends by 20",
            "connections: at most 6 at a time",
            "from pg_class, within about 10 %",
            "log of the source: slot rep_sheet will be made, and keeps the WAL that no run has read yet",
        ):
            assert text in said
        made = "schemaname = 'rep_dw' OR schemaname = 'public' AND tablename LIKE '%tunnel%'"
        assert pg.psql(f"SELECT schemaname, tablename FROM pg_tables WHERE {made}").strip() == ""
        assert "rep_sheet" not in pg.psql("SELECT slot_name FROM pg_replication_slots")
    finally:
        pg.psql("DROP PUBLICATION rep_sheet; DROP OWNED BY rep_reader; DROP ROLE rep_reader")


def test_a_plan_has_the_grants_that_postgresql_needs(pg: PostgresServer, tmp_path: Path) -> None:
    """Tables that are followed: a new one, and one that is there; then the role has all that the plan said."""
    pg.psql(
        "DROP ROLE IF EXISTS rep_poor; CREATE ROLE rep_poor LOGIN PASSWORD 'rep';"
        "CREATE TABLE rep_dw.rep_a_plain (LIKE rep_a.plain INCLUDING ALL);"
        "GRANT INSERT ON rep_dw.rep_a_plain TO rep_poor"
    )
    login = {**pg.login, "user": "rep_poor", "password": "rep"}
    file = tmp_path / "poor.yml"
    made = {
        "source": {**login, "publication": "rep_poor", "slot": "rep_poor"},
        "target": login,
        "defaults": {"mode": "full_then_changes", "object": "rep_dw.{schema}_{table}"},
        "streams": {"rep_a.plain": {}, "rep_a.Mixed Case": {}},
    }
    file.write_text(yaml.safe_dump(made))
    try:
        said = " ".join(run("replicate", str(file), "--dry-run", code=3, COLUMNS="200").split())
        grants = [
            "GRANT USAGE ON SCHEMA rep_a TO rep_poor",
            'GRANT SELECT ON rep_a.plain, rep_a."Mixed Case" TO rep_poor',
            "GRANT USAGE, CREATE ON SCHEMA rep_dw TO rep_poor",
            "GRANT SELECT, UPDATE, DELETE ON rep_dw.rep_a_plain TO rep_poor",
            "GRANT CREATE ON SCHEMA public TO rep_poor",
            'CREATE PUBLICATION rep_poor FOR TABLE rep_a.plain, rep_a."Mixed Case"',
            "ALTER ROLE rep_poor REPLICATION",
        ]
        assert [each for each in grants if each not in said] == [], said
        assert pg.psql("SELECT count(*) FROM pg_tables WHERE schemaname = 'rep_dw'").strip() == "1"
        pg.psql(";".join(grants[:-1]))
        (refused,) = {each.why for each in spark_channel.replicate(None, made, once=True).tables}
        assert refused.endswith(f"role rep_poor may not use replication slots: run {grants[-1]}")
        pg.psql(grants[-1])
        run("replicate", str(file), "--dry-run", COLUMNS="200")
        said = run("check", str(file), "--connect", COLUMNS="200")
        for text in (
            "PostgreSQL 1",
            "connections free; 2 of 2 tables can be copied",
            "slot rep_poor",
        ):
            assert text in said
        assert spark_channel.replicate(None, made, once=True).exit_code == 0
    finally:
        pg.psql(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = 'rep_poor';"
            "DROP PUBLICATION rep_poor; DROP OWNED BY rep_poor CASCADE; DROP ROLE rep_poor"
        )


def test_a_plan_has_the_grants_that_mariadb_needs(
    mariadb_server: MariadbServer, tmp_path: Path
) -> None:
    mariadb_server.sql(
        "CREATE TABLE rep_r (id INT PRIMARY KEY); CREATE TABLE rep_s (id INT PRIMARY KEY);"
        "INSERT INTO rep_r VALUES (1); CREATE DATABASE rep_dw; CREATE TABLE rep_dw.shop_rep_r LIKE rep_r;"
        "CREATE USER poor@'127.0.0.1' IDENTIFIED BY 'rep'; GRANT INSERT ON shop.rep_r TO poor@'127.0.0.1';"
        "GRANT SELECT ON shop.rep_s TO poor@'127.0.0.1'; GRANT SELECT ON rep_dw.* TO poor@'127.0.0.1'",
        database="shop",
    )
    login = {**mariadb_server.login, "user": "poor", "password": "rep"}
    file = tmp_path / "poor.yml"
    made = {
        "source": login,
        "target": {**login, "url": f"{login['url'].rpartition('/')[0]}/rep_dw"},
        "streams": {"shop.rep_r": {}, "shop.rep_s": {}},
    }
    file.write_text(yaml.safe_dump(made))
    try:
        said = " ".join(run("replicate", str(file), "--dry-run", code=3, COLUMNS="200").split())
        grants = [
            "GRANT SELECT ON `shop`.`rep_r` TO `poor`@`127.0.0.1`",
            "GRANT INSERT, UPDATE, DELETE, CREATE, DROP ON `rep_dw`.* TO `poor`@`127.0.0.1`",
        ]
        assert [each for each in grants if said.count(each) != 1 + ("rep_dw" in each)] == [], said
        mariadb_server.sql(";".join(grants))
        run("replicate", str(file), "--dry-run", COLUMNS="200")
        assert spark_channel.replicate(None, made).exit_code == 0
    finally:
        mariadb_server.sql(
            "DROP DATABASE rep_dw; DROP TABLE shop.rep_r; DROP TABLE shop.rep_s; DROP USER poor@'127.0.0.1'"
        )


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("shop.orders", ("shop", "orders")),
        ('rep_a."Mixed Case"', ("rep_a", "Mixed Case")),
        ('"Rep.B"."dot.ted"', ("Rep.B", "dot.ted")),
        ('"a""b".c', ('a"b', "c")),
        ("`a``b`.`c.d`", ("a`b", "c.d")),
        ("orders", ("", "orders")),
    ],
)
def test_the_names_of_feeds(text: str, parts: tuple[str, str]) -> None:
    assert parts_of(text) == parts


def test_a_pattern_leaves_out_the_copies_on_the_server_of_the_source(pg: PostgresServer) -> None:
    """From the second run on the catalog has them, too."""
    pg.psql("CREATE SCHEMA rep_copies")
    try:
        for object_ in ("rep_copies.{table}", "rep_copies.{schema}_{table}"):
            streams = {"rep_a.*": None, "rep_c*": None}
            for number in range(2):
                report = replicate(
                    pg.login, pg.login, streams, defaults={"object": object_, "mode": "full"}
                )
                copied = {each.stream for each in report.tables}
                assert copied == {name for name in PG_ROWS if name.startswith("rep_a.")}
                left = [each for each in report.notes if "is not copied" in each]
                assert len(left) == (len(copied) if number else 0)
            pg.psql("DROP SCHEMA rep_copies CASCADE; CREATE SCHEMA rep_copies")
    finally:
        pg.psql("DROP SCHEMA rep_copies CASCADE")


def test_a_star_is_all_of_the_database_that_a_mysql_url_names(
    mariadb_server: MariadbServer, tmp_path: Path
) -> None:
    mariadb_server.sql(
        "DROP DATABASE IF EXISTS rep_one; DROP DATABASE IF EXISTS rep_two; CREATE DATABASE rep_one; "
        "CREATE DATABASE rep_two; CREATE TABLE rep_one.here (id INT); CREATE TABLE rep_two.there (id INT)"
    )
    target = {"url": f"sqlite:{tmp_path}/dw.db"}
    server = f"mysql://127.0.0.1:{mariadb_server.port}"
    login = {**mariadb_server.login, "url": f"{server}/rep_one"}
    try:
        assert [*rows_of(replicate(login, target, {"*": None}))] == ["rep_one.here"]
        both = replicate(login, target, {"*": None, "rep_two.*": None})
        assert {*rows_of(both)} == {"rep_one.here", "rep_two.there"}
        without = replicate(
            {**login, "url": server}, target, {"*": None, "shop.*": {"disabled": True}}
        )
        assert {"rep_one.here", "rep_two.there"} <= {*rows_of(without)}
    finally:
        mariadb_server.sql("DROP DATABASE rep_one; DROP DATABASE rep_two")
