"""Servers that are too old are refused by their version, before a row moves."""

from collections.abc import Iterator

import pyarrow as pa
import pytest

pytest.importorskip("clickhouse_connect")

from spark_channel.connectors import WriteContext, load_reader, load_writer
from spark_channel.connectors.clickhouse import session
from spark_channel.errors import ChannelError
from tests.servers.clickhouse import (
    PASSWORD,
    USER,
    ClickhouseServer,
    clickhouse_server,
    old_clickhouse_server,
)


@pytest.fixture
def old() -> Iterator[ClickhouseServer]:
    with old_clickhouse_server() as server:
        yield server


def test_a_server_on_which_the_client_cannot_begin(old: ClickhouseServer) -> None:
    login = {"url": old.url, "user": "default", "dbtable": "system.one"}
    message = r"ClickHouse 18\.\S+ is too old: .* need column 'readonly' .* Upgrade the server"
    with pytest.raises(ChannelError, match=message):
        load_reader(login)[0].schema()
    with pytest.raises(ChannelError, match=message):
        load_writer(login)[0].prepare(WriteContext("job"), pa.schema([("dummy", pa.uint8())]))


def test_a_server_without_a_setting_that_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a server before 22.2, which has no token against blocks that are dropped as equal."""
    pytest.importorskip("chdb")
    monkeypatch.setattr(session, "_NEEDED", session._NEEDED | {"a_setting_of_tomorrow"})
    with clickhouse_server() as server:
        reader, _ = load_reader(
            {"url": server.url, "user": USER, "password": PASSWORD, "dbtable": "system.one"}
        )
        with pytest.raises(
            ChannelError, match=r"ClickHouse \d+\.\S+ is too old.*'a_setting_of_tom"
        ):
            reader.schema()
