"""What `plan` costs a server by the tables of its job, in connections, which the server counts."""

import json
from pathlib import Path

import pytest

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
            assert f"{count} tasks" in planned.output
            logins.append(_sessions(server) - before)
        assert max(logins) <= 12, logins
    finally:
        server.psql("SET client_min_messages = error; DROP SCHEMA plans CASCADE")


def _sessions(server: PostgresServer) -> int:
    """Since the server began, with one for each question."""
    return int(server.psql("SELECT sessions FROM pg_stat_database WHERE datname = 'postgres'"))
