"""What `plan` and `replicate` ask of a server by their tables: connections, which the server counts, and statements."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import spark_channel
from spark_channel.connectors import load_reader
from spark_channel.connectors.postgresql import PostgresReader
from spark_channel.connectors.postgresql.session import PgPlanSession, PgSession, PgWriteSession
from spark_channel.replication.config import load_replication
from spark_channel.replication.plan import plan_replication
from spark_channel.replication.table_run import RunSettings
from tests.cli.typed import typed
from tests.servers.postgres import PostgresServer

pytestmark = pytest.mark.full


def _job(server: PostgresServer, path: Path, count: int) -> Path:
    url = f"jdbc:postgresql://127.0.0.1:{server.port}/postgres?currentSchema=plans"
    login = {"username": server.user, "password": server.password, "column": ["id"]}
    tables = {"table": [f"t{number}" for number in range(count)], "jdbcUrl": [url]}
    content = {
        "reader": {"name": "postgresqlreader", "parameter": {**login, "connection": [tables]}},
        "writer": {
            "name": "postgresqlwriter",
            "parameter": {**login, "connection": [{"table": ["target"], "jdbcUrl": url}]},
        },
    }
    path.write_text(
        json.dumps({"job": {"setting": {"speed": {"channel": 2}}, "content": [content]}})
    )
    return path


def test_a_plan_of_many_tables_logs_in_as_often_as_one_of_few(
    postgres_server: PostgresServer, tmp_path: Path
) -> None:
    server = postgres_server
    server.psql(
        "CREATE SCHEMA plans; CREATE TABLE plans.target (id int); DO $$ BEGIN FOR n IN 0..29 LOOP "
        "EXECUTE format('CREATE TABLE plans.t%s AS SELECT 1 AS id', n); END LOOP; END $$"
    )
    try:
        logins = []
        for count in (3, 30):
            job = _job(server, tmp_path / f"{count}.json", count)
            before = _sessions(server)
            planned = typed("plan", str(job))
            assert planned.exit_code == 0, planned.output
            assert f"in {count} splits" in planned.output
            logins.append(_sessions(server) - before)
        assert max(logins) <= 12, logins
    finally:
        server.psql("SET client_min_messages = error; DROP SCHEMA plans CASCADE")


def _sessions(server: PostgresServer) -> int:
    """Since the server began, with one for each question."""
    return int(server.psql("SELECT sessions FROM pg_stat_database WHERE datname = 'postgres'"))


def _small_tables(server: PostgresServer, count: int) -> None:
    server.psql(
        "CREATE SCHEMA looks; DO $$ BEGIN FOR n IN 1.."
        f"{count} LOOP EXECUTE format('CREATE TABLE looks.t%s AS SELECT 1 AS id, ''x'' AS name; "
        "ALTER TABLE looks.t%s ADD PRIMARY KEY (id)', n, n); END LOOP; END $$; ANALYZE"
    )


def _statements(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Those that sessions send from now on, by "reader" and "writer"."""
    sent: Counter[str] = Counter()
    for name, kind in (("reader", PgPlanSession), ("writer", PgWriteSession)):
        run = kind._run

        def counted(session: Any, sql: str, name: str = name, run: Any = run) -> Any:
            sent[name] += 1
            return run(session, sql)

        monkeypatch.setattr(kind, "_run", counted)
    return sent


def test_a_look_at_many_tables_of_a_replication_asks_for_them_together(
    postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = postgres_server
    few, many = 10, 100
    dry: dict[int, Counter[str]] = {}
    runs: dict[tuple[str, int], int] = {}
    try:
        for count in (few, many):
            _small_tables(server, count)
            for mode in ("full", "incremental"):
                server.psql(f"CREATE SCHEMA looked_{mode}")
                login = {**server.login, "currentSchema": f"looked_{mode}"}
                keys = {"update_key": "id", "primary_key": ["id"]}
                file = {
                    "source": server.login,
                    "target": login,
                    "streams": {"looks.*": {}},
                    "defaults": {"mode": mode, **(keys if mode == "incremental" else {})},
                }
                with monkeypatch.context() as patch:
                    sent = _statements(patch)
                    if mode == "full":
                        settings = RunSettings()
                        plan_replication(
                            load_replication(file), settings, parallelism=2, explains=False
                        )
                        dry[count] = Counter(sent)
                        sent.clear()
                    assert spark_channel.replicate(None, file).exit_code == 0
                    runs[mode, count] = sent.total()
            server.psql(
                "SET client_min_messages = error; "
                "DROP SCHEMA looks, looked_full, looked_incremental CASCADE"
            )
    finally:
        server.psql(
            "SET client_min_messages = error; DROP SCHEMA IF EXISTS looks, looked_full, looked_incremental CASCADE"
        )
    more = many - few
    assert dry[many]["writer"] == dry[few]["writer"], dry
    assert dry[many]["reader"] - dry[few]["reader"] == more, "a look at the first rows of each"
    # The highest value of each, and what the groups have.
    assert runs["incremental", many] - runs["full", many] <= 1.5 * many, runs


def test_what_looks_many_tables_up_is_never_compiled(
    postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a hundred tables, the server's estimates are above its `jit_above_cost`."""
    server, settings = postgres_server, []
    run = PgSession.rows

    def noted(session: Any, sql: str) -> Any:
        if "AS asked (" in sql:
            settings.append(session.value("SELECT current_setting('jit')"))
        return run(session, sql)

    server.psql("CREATE SCHEMA looked")
    _small_tables(server, 3)
    monkeypatch.setattr(PgSession, "rows", noted)
    file = {
        "source": server.login,
        "target": {**server.login, "currentSchema": "looked"},
        "streams": {"looks.*": {}},
        "parallel": 1,
    }
    try:
        assert spark_channel.replicate(None, file).exit_code == 0
        reader, _ = load_reader({**server.login, "dbtable": "looks.t1"})
        assert isinstance(reader, PostgresReader)
        assert reader.definitions([reader])[0] is not None
        reader.look_up(["looks.t1"])
    finally:
        server.psql("SET client_min_messages = error; DROP SCHEMA looks, looked CASCADE")
    assert len(settings) >= 4
    assert {*settings} == {"off"}
