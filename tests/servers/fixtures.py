"""Servers as pytest fixtures: started when first asked for, one a session."""

from collections.abc import Iterator

import pytest

from tests.servers.firebird import FirebirdServer
from tests.servers.mariadb import MariadbServer
from tests.servers.postgres import PostgresServer


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """PostgreSQL with `wal_level = logical`; tests keep to schemas or tables of their own."""
    server = PostgresServer.create()
    yield server
    server.close()


@pytest.fixture(scope="session")
def mariadb_server() -> Iterator[MariadbServer]:
    """MariaDB with the database `shop`; tests keep to tables of their own."""
    server = MariadbServer.create()
    yield server
    server.close()


@pytest.fixture(scope="session")
def firebird_server() -> Iterator[FirebirdServer]:
    """Firebird; tests keep to databases of their own."""
    server = FirebirdServer.create()
    yield server
    server.close()
