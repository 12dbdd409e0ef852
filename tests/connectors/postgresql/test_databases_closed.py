"""The driver's databases are closed: one that is only dropped keeps its memory."""

from typing import Any

import adbc_driver_manager
import adbc_driver_postgresql
import pytest

from spark_channel.connectors.postgresql.options import PostgresReadOptions
from spark_channel.connectors.postgresql.session import PgReadSession, shared_database
from spark_channel.errors import SourceError
from tests.servers.postgres import PostgresServer


def test_a_database_that_is_replaced_is_closed_when_its_last_session_ends(
    postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []
    connect = adbc_driver_postgresql.connect

    def noted(*given: Any, **more: Any) -> Any:
        made.append(connect(*given, **more))
        return made[-1]

    monkeypatch.setattr(adbc_driver_postgresql, "connect", noted)
    monkeypatch.setattr(shared_database, "_MOST_DATABASES", 1)

    def session(seconds: int) -> PgReadSession:
        url = f"{postgres_server.url}?connect_timeout={seconds}"
        options, _ = PostgresReadOptions.parse(
            {**postgres_server.login, "url": url, "dbtable": "t"}
        )
        return PgReadSession(options, failure=SourceError, purpose="test")

    first = session(31)
    second = session(32)
    assert first.value("SELECT 1") == 1
    first.close()
    del first
    second.close()
    with pytest.raises(adbc_driver_manager.ProgrammingError, match="not initialized"):
        adbc_driver_manager.AdbcConnection(made[0])
