"""The one table of a tunnel is dropped or renamed while a range of it is handed out, and its client dies."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from spark_channel.errors import SourceError
from spark_channel.tunnel import Delivery, Tunnel
from tests.connectors.mysql.shop import Shop
from tests.servers.postgres import PostgresServer

pytestmark = pytest.mark.timeout(120)

Row = Mapping[str, Any]
MARIADB = (
    "id INT PRIMARY KEY, item VARCHAR(40), price DECIMAL(8,2), at TIMESTAMP(3) NULL, kind ENUM('a','b'), "
    "n INT UNSIGNED, note TEXT CHARACTER SET latin1"
)
POSTGRESQL = (
    "id int PRIMARY KEY, item text, price numeric(8,2), at timestamptz, n smallint, note bytea"
)


class DiesError(Exception):
    """The client ends with a range at hand, and without its checkpoint."""


def die_at(tunnel: Tunnel, operation: str) -> list[Row]:
    """Consume until a range has an operation; returns its rows."""
    found: list[Row] = []

    def process(delivery: Delivery) -> None:
        rows = [row for batch in delivery.batches for row in batch.to_pylist()]
        if any(row["_op"] == operation for row in rows):
            found.extend(rows)
            raise DiesError

    given = {**tunnel._options, "onError": "stop"}
    with pytest.raises(DiesError):
        Tunnel(tunnel.name, given, store=tunnel.store).consume(process, drained=True, threads=1)
    return found


def check(tunnel: Tunnel, before: list[Row], missing: str) -> None:
    """The range arrives unchanged, except for existing rows, which are gone; then each read reports its end."""
    found: list[Row] = []

    def process(delivery: Delivery) -> None:
        found.extend(row for batch in delivery.batches for row in batch.to_pylist())

    for _ in range(2):
        with pytest.raises(SourceError, match=missing):
            tunnel.consume(process, drained=True)
    assert found == [row for row in before if row["_op"] != "read"]
    assert found
    view = tunnel.describe()
    assert not any(each.channel.parked or each.channel.pending for each in view.channels)
    with pytest.raises(SourceError, match=missing):
        Tunnel("other", tunnel._options, store=tunnel.store).create()
    with pytest.raises(SourceError, match=missing):
        tunnel.reset()


MISSING = r"table .*t' does not exist.*assigned before are delivered.*tunnel delete"


@pytest.mark.parametrize("mode", ["fail", "evolve"])
@pytest.mark.parametrize("gone", ["DROP TABLE t", "RENAME TABLE t TO u"])
@pytest.mark.parametrize("operation", ["read", "insert"])
def test_a_binary_log(logged: Shop, tmp_path: Path, operation: str, gone: str, mode: str) -> None:
    logged.sql(f"CREATE TABLE t ({MARIADB})")
    logged.sql("INSERT INTO t (id, item) SELECT seq, 'old' FROM seq_1_to_100")
    given = {
        **logged.login,
        "dbtable": "t",
        "binlog": "true",
        "maxRowsPerTrigger": "40",
        "onSchemaChange": mode,
    }
    tunnel = Tunnel("t", given, store=str(tmp_path / "tunnels.db"))
    tunnel.create()
    if operation == "insert":
        tunnel.consume(lambda delivery: list(delivery.batches), drained=True)
    logged.sql(
        "INSERT INTO t VALUES (101, 'new', 1.25, '2026-05-01 01:02:03.004', 'b', 4000000000, 'über'); "
        "UPDATE t SET price = 2.5, kind = 'a' WHERE id = 5; DELETE FROM t WHERE id = 6"
    )
    before = die_at(tunnel, operation)
    logged.sql(f"UPDATE t SET item = 'later' WHERE id = 7; {gone}")
    check(tunnel, before, MISSING)
    logged.sql(f"CREATE TABLE t ({MARIADB})")
    tunnel.reset()
    tunnel.delete()


@pytest.fixture
def server(postgres_server: PostgresServer) -> Iterator[PostgresServer]:
    postgres_server.psql(
        f"CREATE SCHEMA missing; CREATE TABLE missing.t ({POSTGRESQL}); "
        "INSERT INTO missing.t (id, item) SELECT i, 'old' FROM generate_series(1, 100) i; "
        "CREATE PUBLICATION missing FOR TABLE missing.t"
    )
    yield postgres_server
    postgres_server.psql(
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = 'missing'; "
        "DROP PUBLICATION missing; SET client_min_messages = error; DROP SCHEMA missing CASCADE"
    )


@pytest.mark.parametrize("mode", ["fail", "evolve"])
@pytest.mark.parametrize("gone", ["DROP TABLE missing.t", "ALTER TABLE missing.t RENAME TO u"])
@pytest.mark.parametrize("operation", ["read", "insert"])
def test_a_slot(
    server: PostgresServer, tmp_path: Path, operation: str, gone: str, mode: str
) -> None:
    given = {
        **server.login,
        "dbtable": "missing.t",
        "slot": "missing",
        "publication": "missing",
        "maxRowsPerTrigger": "40",
        "onSchemaChange": mode,
    }
    tunnel = Tunnel("t", given, store=str(tmp_path / "tunnels.db"))
    tunnel.create()
    if operation == "insert":
        tunnel.consume(lambda delivery: list(delivery.batches), drained=True)
    server.psql(
        "INSERT INTO missing.t VALUES (101, 'new', 1.25, '2026-05-01 01:02:03.004Z', 3, 'x'); "
        "UPDATE missing.t SET price = 2.5 WHERE id = 5; DELETE FROM missing.t WHERE id = 6"
    )
    before = die_at(tunnel, operation)
    server.psql(f"UPDATE missing.t SET item = 'later' WHERE id = 7; {gone}")
    check(tunnel, before, MISSING)
    tunnel.delete()
    assert (
        server.psql("SELECT count(*) FROM pg_replication_slots WHERE slot_name = 'missing'") == "0"
    )
