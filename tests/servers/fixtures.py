"""Servers as pytest fixtures: started when first asked for, one a session."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.servers.firebird import FirebirdServer
from tests.servers.mariadb import BINLOG, MariadbServer
from tests.servers.postgres import PostgresServer

if TYPE_CHECKING:
    from tests.connectors.mysql.shop import Shop
    from tests.connectors.postgresql.pg import Pg


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """PostgreSQL with `wal_level = logical`; tests use their own schemas or tables."""
    server = PostgresServer.create()
    yield server
    server.close()


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


@pytest.fixture(scope="module")
def logging_server() -> Iterator[MariadbServer]:
    """MariaDB with a binary log from which tables can be followed; a file of tests may set what it likes there."""
    server = MariadbServer.create(**BINLOG)
    yield server
    server.close()


@pytest.fixture
def pg(postgres_server: PostgresServer) -> "Iterator[Pg]":
    """A schema of its own."""
    from tests.connectors.postgresql.pg import own_schema

    with own_schema(postgres_server) as pg:
        yield pg


@pytest.fixture
def shop(mariadb_server: MariadbServer) -> "Iterator[Shop]":
    """A database of its own; below tests/connectors/mysql, on each kind of server."""
    from tests.connectors.mysql.shop import own_shop

    with own_shop(mariadb_server) as shop:
        yield shop


@pytest.fixture
def logged(logging_server: MariadbServer) -> "Iterator[Shop]":
    """A `Shop` on a server whose log can be followed."""
    from tests.connectors.mysql.shop import own_shop

    with own_shop(logging_server) as shop:
        yield shop
