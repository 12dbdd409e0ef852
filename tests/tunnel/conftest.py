"""Stores of both kinds."""

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_channel.tunnel.store import PostgresStore, SqliteStore, SqlStore
from tests.servers.postgres import PostgresServer

__all__ = ["make_store", "store"]

_numbers = itertools.count()


@pytest.fixture(params=["sqlite", "postgresql"])
def make_store(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], SqlStore]:
    """Makes stores, each empty."""

    def sqlite() -> SqlStore:
        return SqliteStore(tmp_path / f"tunnels-{next(_numbers)}.db")

    def postgresql() -> SqlStore:
        server: PostgresServer = request.getfixturevalue("postgres_server")
        name = f"tunnels_{next(_numbers)}"
        server.psql(f"CREATE SCHEMA {name}")
        login = f"{server.user}:{server.password}@127.0.0.1:{server.port}"
        return PostgresStore(f"postgresql://{login}/postgres?options=-csearch_path%3D{name}")

    return sqlite if request.param == "sqlite" else postgresql


@pytest.fixture
def store(make_store: Callable[[], SqlStore]) -> SqlStore:
    return make_store()
