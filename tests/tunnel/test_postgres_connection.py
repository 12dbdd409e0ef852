"""Connections to tunnel stores in PostgreSQL, and how often they are made."""

import adbc_driver_manager
import adbc_driver_postgresql
import pytest

from spark_channel.connectors.base.session_pool import keeping_sessions
from spark_channel.tunnel.postgres_connection import transaction
from spark_channel.tunnel.store import PostgresStore
from tests.servers.postgres import PostgresServer


@pytest.fixture
def url(postgres_server: PostgresServer, request: pytest.FixtureRequest) -> str:
    login = f"{postgres_server.user}:{postgres_server.password}@127.0.0.1:{postgres_server.port}"
    return f"postgresql://{login}/postgres?application_name={request.node.name[:40]}"


def process(url: str) -> int:
    """The server's process of a transaction."""
    with transaction(url) as statements:
        ((number,),) = statements.rows("SELECT pg_backend_pid()")
    return int(number)


def test_stores_of_one_database_ask_it_for_its_types_once(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run makes several, and the driver needs as much time for the types as for five connections."""
    connect, asked = adbc_driver_postgresql.connect, list[str]()

    def counted(uri: str, options: dict[str, str]) -> object:
        asked.append(uri)
        return connect(uri, options)

    monkeypatch.setattr(adbc_driver_postgresql, "connect", counted)
    for _ in range(2):
        assert PostgresStore(url).all(make=True) == []
    assert asked == [url]


def test_the_calls_of_a_run_share_a_connection_and_other_calls_have_their_own(url: str) -> None:
    with keeping_sessions():
        assert process(url) == process(url)
    assert process(url) != process(url)


def test_a_connection_that_its_server_ended_is_made_again(
    url: str, postgres_server: PostgresServer
) -> None:
    with keeping_sessions():
        number = process(url)
        postgres_server.psql(f"SELECT pg_terminate_backend({number}, 10000)")
        assert process(url) != number


def fail(url: str) -> None:
    with transaction(url) as statements:
        statements.execute("CREATE TABLE of_a_failed_call (n int)")
        statements.rows("SELECT * FROM nowhere")


def test_what_failed_is_rolled_back_and_its_connection_ended(url: str) -> None:
    with keeping_sessions():
        number = process(url)
        with pytest.raises(adbc_driver_manager.Error, match="nowhere"):
            fail(url)
        assert process(url) != number
        with transaction(url) as statements:
            assert statements.rows("SELECT to_regclass('of_a_failed_call') IS NULL") == [(True,)]
