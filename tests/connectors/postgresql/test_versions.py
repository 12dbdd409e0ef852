"""What matters most, on the oldest and the newest supported server beside the one of the other tests."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pyarrow as pa
import pytest
from adbc_driver_postgresql import dbapi

from spark_channel.connectors import load_reader
from spark_channel.connectors.base.feed import FeedLimit, FeedOptions
from spark_channel.options import CommitMode
from spark_channel.testing import reader_conformance
from tests.connectors.postgresql.log.test_feed import (  # noqa: F401 - as above
    Table,
    table,
    test_a_delete_has_what_the_replica_identity_names,
    test_a_limit_cuts_between_transactions,
    test_a_partitioned_table_is_followed_by_its_root,
    test_base_and_changes_hold_every_row,
    test_every_change_comes_in_commit_order,
)
from tests.connectors.postgresql.pg import Pg
from tests.connectors.postgresql.test_claims import (  # noqa: F401 - they run here, too
    test_a_driver_that_wakes_up_after_its_pair_was_published_adds_nothing,
    test_a_driver_that_was_overtaken_publishes_nothing,
    test_staging_of_a_live_run_stays_and_that_of_a_dead_one_goes,
)
from tests.connectors.postgresql.test_conformance import check_writer, people
from tests.connectors.postgresql.write.test_database import (  # noqa: F401 - as above
    test_a_published_pair_is_a_no_op,
    test_apply_takes_the_last_change_of_each_key,
    test_partitioned_targets,
    test_upsert_and_skip_existing,
)
from tests.servers.ports import free_port
from tests.servers.postgres import PostgresServer


@pytest.fixture(scope="module", params=["13", "18"])
def postgres_server(request: pytest.FixtureRequest) -> Iterator[PostgresServer]:
    server = PostgresServer.create(version=request.param)
    yield server
    server.close()


def test_the_server_is_the_one_that_is_named(postgres_server: PostgresServer) -> None:
    assert postgres_server.psql("SHOW server_version").split(".")[0] == postgres_server.version


@pytest.mark.parametrize(
    ("commit", "there"), [("job", False), pytest.param("task", True, marks=pytest.mark.soak)]
)
def test_reader_and_writer_keep_the_contract(pg: Pg, commit: CommitMode, there: bool) -> None:
    check_writer(pg, commit, there=there, more={})
    pg.psql(
        "CREATE TABLE partitioned (id bigint PRIMARY KEY, name text) PARTITION BY RANGE (id);"
        "CREATE TABLE p1 PARTITION OF partitioned FOR VALUES FROM (0) TO (40);"
        "CREATE TABLE p2 PARTITION OF partitioned FOR VALUES FROM (40) TO (1000);"
        f"INSERT INTO partitioned SELECT g, 'name ' || g FROM generate_series(0, {people().num_rows - 1}) g"
    )
    reader_conformance(lambda: pg.reader("partitioned"), expected=people())


@pytest.mark.parametrize("commit", ["job", "task"])
def test_generated_columns_are_read_and_not_written(pg: Pg, commit: CommitMode) -> None:
    virtual = "VIRTUAL" if pg.server.version == "18" else "STORED"
    columns = (
        f"(id bigint PRIMARY KEY, twice bigint GENERATED ALWAYS AS (id * 2) {virtual}, "
        "thrice bigint GENERATED ALWAYS AS (id * 3) STORED)"
    )
    pg.psql(
        f"CREATE TABLE t {columns}; CREATE TABLE u {columns};"
        "INSERT INTO t SELECT g FROM generate_series(1, 50) g"
    )
    found = pg.read("t", advice=4).sort_by("id")
    assert found.to_pylist()[9] == {"id": 10, "twice": 20, "thrice": 30}
    pg.write(found.select(["id"]), dbtable="u", commit=commit)
    assert pg.read("u").sort_by("id").equals(found)


def test_an_idle_table_gives_no_ranges_whatever_others_write(table: Table) -> None:  # noqa: F811 - the fixture
    """Servers before 15 send transactions in which nothing was published."""
    feed = table.feed()
    (at,) = feed.now()
    table.server.psql("CREATE TABLE IF NOT EXISTS other (n int); INSERT INTO other VALUES (1)")
    assert feed.latest(at, FeedLimit()) == at
    table.server.psql("INSERT INTO other VALUES (2)")
    assert feed.latest(at, FeedLimit()) == at


def test_a_type_that_only_newer_servers_have_is_not_needed(pg: Pg) -> None:
    pg.write(pa.table({"id": [1], "at": pa.array([0], pa.timestamp("us", "UTC"))}), dbtable="made")
    assert pg.read("made").num_rows == 1


def test_changes_continue_on_the_standby_that_was_promoted() -> None:
    """Where the slot is one that the server copies to its standby."""
    with ExitStack() as stack:
        server = PostgresServer.create(version="18")
        stack.callback(server.close)
        server.psql(
            "CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION p FOR TABLE t;"
            "SELECT pg_create_physical_replication_slot('standby')"
        )
        standby = _standby(server)
        stack.callback(standby.close)
        server.psql("ALTER SYSTEM SET synchronous_standby_names = '*'")
        server.psql("ALTER SYSTEM SET synchronous_commit = 'remote_apply'")
        server.psql("SELECT pg_reload_conf()")
        server.psql("SELECT pg_create_logical_replication_slot('f', 'pgoutput', failover => true)")
        feed = load_reader({**server.login, "dbtable": "t"})[0].feed(
            FeedOptions(slot="f", publication="p")
        )
        (at,) = feed.now()
        login = f"//{server.user}:{server.password}@"
        connection = dbapi.connect(standby.url.replace("//", login), autocommit=True)
        stack.enter_context(closing(connection))
        copied = stack.enter_context(closing(connection.cursor()))
        # The standby keeps its copy of the slot once nothing that it needs is gone there.
        for number in (1, 2, 3):
            copied.execute("SELECT pg_sync_replication_slots()::text")
            server.psql(f"INSERT INTO t VALUES ({number}); SELECT pg_log_standby_snapshot()")
            at = feed.latest(at, FeedLimit())
            feed.settle(at)
        server.psql("INSERT INTO t VALUES (4)")
        copied.execute("SELECT pg_sync_replication_slots()::text")
        assert standby.psql("SELECT synced AND NOT temporary FROM pg_replication_slots") == "t"
        server.stop()
        standby.psql("SELECT pg_promote()")
        standby.psql("INSERT INTO t VALUES (5)")
        feed = load_reader({**standby.login, "dbtable": "t"})[0].feed(
            FeedOptions(slot="f", publication="p")
        )
        end = feed.latest(at, FeedLimit())
        read = [batch for split in feed.changes(at, end) for batch in feed.read(split)]
        assert pa.Table.from_batches(read).column("id").to_pylist() == [4, 5]


def _standby(server: PostgresServer) -> PostgresServer:
    """By a copy of its files: Maven's PostgreSQL lacks pg_basebackup."""
    directory = Path(tempfile.mkdtemp(prefix="spark-channel-pg-"))
    if os.geteuid() == 0:
        shutil.chown(directory, "postgres", "postgres")
    made = PostgresServer(directory, free_port(), version=server.version)
    server.stop()
    subprocess.run(["cp", "-a", str(server.data), str(made.data)], check=True)
    server.start()
    for slot in (made.data / "pg_replslot").iterdir():
        shutil.rmtree(slot)
    (made.data / "standby.signal").touch()
    settings = {
        "unix_socket_directories": directory,
        "hot_standby_feedback": "on",
        "primary_slot_name": "standby",
        "primary_conninfo": f"host={server.directory} port={server.port} user={server.user} dbname=postgres",
    }
    with (made.data / "postgresql.conf").open("a") as file:
        file.write("".join(f"{name} = '{value}'\n" for name, value in settings.items()))
    made.start()
    return made
