"""A copy by PostgreSQL's log while the columns of its source change."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.connectors.sql.evolving import (
    Source,
    copy_much_while_columns_change,
    copy_while_columns_change,
)
from tests.servers.postgres import PostgresServer


@pytest.fixture
def source(postgres_server: PostgresServer) -> Iterator[Source]:
    name = f"evolving_{uuid.uuid4().hex[:12]}"
    server = postgres_server

    def run(text: str) -> str:
        return server.psql(f"SET search_path = {name}; {text}")

    server.psql(f"CREATE SCHEMA {name}")
    yield Source(
        run,
        {**server.login, "currentschema": name},
        {"slot": name, "publication": name},
        "ALTER TABLE source ALTER COLUMN {column} TYPE {type}",
        "generate_series(1, {count}) i",
        f"CREATE PUBLICATION {name} FOR TABLE source",
    )
    server.psql(
        "SET client_min_messages = error; SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots "
        f"WHERE slot_name LIKE '{name}%'; DROP PUBLICATION IF EXISTS {name}; DROP SCHEMA {name} CASCADE"
    )


@pytest.mark.timeout(120)
def test_a_copy_while_columns_change_is_equal(source: Source, tmp_path: Path) -> None:
    copy_while_columns_change(source, tmp_path)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(3))
def test_copies_of_many_changes_while_columns_change_are_equal(
    source: Source, tmp_path: Path, seed: int
) -> None:
    copy_much_while_columns_change(source, tmp_path, seed)
