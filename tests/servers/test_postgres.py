"""The server that other tests lean on: it starts, logs in by password, and is gone when it is closed."""

import subprocess

import pytest

from tests.servers.postgres import PostgresServer, programs


def test_it_answers_and_asks_for_the_password(postgres_server: PostgresServer) -> None:
    assert postgres_server.psql("SHOW wal_level") == "logical"
    command = [
        str(programs() / "psql"),
        "-w",
        "-h",
        "127.0.0.1",
        "-p",
        str(postgres_server.port),
        "-U",
        "tester",
    ]
    done = subprocess.run(
        [*command, "postgres", "-c", "SELECT 1"], capture_output=True, check=False
    )
    assert b"no password supplied" in done.stderr


def test_a_failing_statement_is_told(postgres_server: PostgresServer) -> None:
    with pytest.raises(RuntimeError, match='relation "nowhere" does not exist'):
        postgres_server.psql("SELECT * FROM nowhere")


def test_it_survives_a_crash_and_leaves_nothing() -> None:
    server = PostgresServer.create()
    try:
        server.psql("CREATE TABLE t AS SELECT 1 AS a")
        server.restart(how="immediate")
        assert server.psql("SELECT a FROM t") == "1"
    finally:
        server.close()
    assert not server.directory.exists()
