"""The table of servers in docs/hardening.md is what the attacks try."""

from spark_channel.connectors.base.registry import all_connectors
from tests.behaviour.attacks import table
from tests.behaviour.attacks.test_logins import LESS, WAYS

NO_NETWORK = {"sqlite", "duckdb", "generator", "discard"}
FILES = {"csv", "json", "text", "parquet", "orc", "arrow"}


def test_the_page_has_the_table_that_is_made() -> None:
    present, made = table.page()
    assert present == made, "run `python -m tests.behaviour.attacks.table`"


def test_each_connector_with_a_network_is_in_the_table_once() -> None:
    named = [name for server in table.SERVERS for name in server.names]
    assert len(set(named)) == len(named)
    ours = {
        each.name for each in all_connectors() if "spark_channel" in str(each.reader or each.writer)
    }
    assert ours - NO_NETWORK - FILES == set(named) - {"ftps", "sftp", "files"}


def test_what_the_table_says_of_a_server_is_tried() -> None:
    tried = set(WAYS) | {"adbc"}
    for server in table.SERVERS:
        if not {"sftp", "files"} & set(server.names):
            assert set(server.names) <= tried
            assert any(key.split()[0].removesuffix("s") in "".join(server.names) for key in LESS)
