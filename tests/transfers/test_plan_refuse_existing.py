"""What `errorIfExists` asks of a target, by what its connector declares; no session is needed for it."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import psycopg
import pytest

from spark_channel.connectors import load_writer
from spark_channel.errors import TargetError
from spark_channel.planning import Endpoint, TransferSpec
from spark_channel.transfers.plan import OpenedTransfer, refuse_existing
from tests.servers.postgres import PostgresServer


def ask(name: str, **options: Any) -> None:
    writer, _ = load_writer({"writer": name, **options})
    spec = TransferSpec(Endpoint("generator"), Endpoint(name, options))
    opened = SimpleNamespace(spec=spec, writers=(writer,), target="the target")
    refuse_existing(writer, cast(OpenedTransfer, opened))


@pytest.fixture
def schema(postgres_server: PostgresServer) -> Iterator[str]:
    with psycopg.connect(
        postgres_server.url, user=postgres_server.user, password=postgres_server.password
    ) as made:
        made.autocommit = True
        made.execute("CREATE SCHEMA hidden")
        made.execute("CREATE TABLE hidden.orders (id bigint)")
        yield "hidden"
        made.execute("DROP SCHEMA hidden CASCADE")


def test_a_table_is_looked_for_where_the_writer_s_own_options_say(
    postgres_server: PostgresServer, schema: str
) -> None:
    login = {
        "url": postgres_server.url,
        "user": postgres_server.user,
        "password": postgres_server.password,
        "dbtable": "orders",
        "retryTimeout": "0",
    }
    ask("postgresql", **login)
    with pytest.raises(TargetError, match="the target exists"):
        ask("postgresql", **login, currentSchema=schema)
    with pytest.raises(TargetError, match="the target exists"):
        ask("postgresql", **login, sessionInitStatement=f"SET search_path = {schema}")


def test_files_are_looked_for(tmp_path: Any) -> None:
    ask("csv", path=str(tmp_path / "none"))
    (tmp_path / "a.csv").write_text("id\n1\n")
    with pytest.raises(TargetError, match="the target exists"):
        ask("csv", path=str(tmp_path), maxRecordsPerFile="5")


def test_where_nothing_is_kept_nothing_is_there() -> None:
    ask("discard")
