"""A new slot waits for every transaction that writes: the run says for which, and ends by a signal while it waits."""

import signal
import subprocess
from pathlib import Path

import psycopg
import pytest
import yaml

from tests.cli.test_run import CLI, environment
from tests.servers.postgres import PostgresServer

pytestmark = [pytest.mark.full, pytest.mark.timeout(120)]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_run_whose_slot_waits_says_for_what_and_ends_by_a_signal(
    postgres_server: PostgresServer, tmp_path: Path, number: signal.Signals
) -> None:
    server = postgres_server
    server.psql(
        "CREATE SCHEMA waits; CREATE TABLE waits.t (id int PRIMARY KEY); CREATE TABLE waits.held (id int); "
        "CREATE PUBLICATION waits FOR TABLE waits.t"
    )
    file = tmp_path / "waits.yaml"
    source = {
        "reader": "postgresql",
        **server.login,
        "tunnelStore": str(tmp_path / "store.db"),
        "publication": "waits",
    }
    target = {"writer": "sqlite", "path": str(tmp_path / "target.db")}
    streams = {"waits.t": {"mode": "full_then_changes"}}
    file.write_text(yaml.safe_dump({"source": source, "target": target, "streams": streams}))
    login = f"host=127.0.0.1 port={server.port} user={server.user} password={server.password} dbname=postgres"
    try:
        with psycopg.connect(login, application_name="nightly") as writer:
            writer.execute("INSERT INTO waits.held VALUES (1)")
            with subprocess.Popen(
                [*CLI, "replicate", str(file)],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                env=environment(),
            ) as run:
                assert run.stdout is not None
                said = []
                for line in run.stdout:
                    said.append(line)
                    if "the server waits for process" in line:
                        break
                assert (
                    f"process {writer.info.backend_pid} of user {server.user} (nightly" in said[-1]
                ), said
                follows = "following 1 table; Ctrl-C stops, the next run continues"
                assert any(follows in line for line in said), said
                run.send_signal(number)
                rest, _ = run.communicate(timeout=60)
                assert run.returncode == 128 + number, rest
            sessions = (
                "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'spark-channel%'"
            )
            assert server.psql(sessions) == "0"
            assert server.psql("SELECT count(*) FROM pg_replication_slots") == "0"
    finally:
        server.psql(
            "SET client_min_messages = error; DROP PUBLICATION waits; DROP SCHEMA waits CASCADE"
        )
