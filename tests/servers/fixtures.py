"""Servers as pytest fixtures: started when first asked for, one a session."""

from collections.abc import Iterator

import pytest

from tests.servers.firebird import FirebirdServer
from tests.servers.mariadb import MariadbServer
from tests.servers.postgres import PostgresServer


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """PostgreSQL with `wal_level = logical`; tests use their own schemas or tables."""
    server = PostgresServer.create()
    yield server
    server.close()


@pytest.fixture(scope="session")
def server_class() -> type[MariadbServer]:
    """The kind of server of fixtures that tests of several connectors import; tests of MySQL have each."""
    return MariadbServer


@pytest.fixture(scope="session")
def mariadb_server() -> Iterator[MariadbServer]:
    """MariaDB with the database `shop`; tests use their own tables."""
    server = MariadbServer.create()
    yield server
    server.close()


@pytest.fixture(scope="session")
def firebird_server() -> Iterator[FirebirdServer]:
    """Firebird; tests use their own databases."""
    server = FirebirdServer.create()
    yield server
    server.close()
