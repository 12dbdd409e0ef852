"""Servers of the kinds that MySQL's connector reads and writes: a test runs on each, unless it says why not."""

from collections.abc import Iterator

import pytest

from tests.connectors.mysql.shop import Shop
from tests.servers.mariadb import MariadbServer, MysqlServer, NewestMariadb

SERVERS: dict[str, type[MariadbServer]] = {
    "mariadb": MariadbServer,
    "newest mariadb": NewestMariadb,
    "mysql": MysqlServer,
}
"""The tests of this folder that ask for a server run on each of them, but for those with a mark `not_on`."""
IN_CI = (
    "test_contract",
    "test_writer",
    "test_types",
    "test_feed",
    "test_evolving",
    "test_mysql_server",
)
"""Files whose tests CI runs on every server; the others are run there by `make test-servers`."""
_GRAMMAR = "its statements are MariaDB's own"
_VARIABLES = "it sets or reads variables that MySQL does not have"
NOT_ON_MYSQL = {
    "log/test_feed.py::test_every_change_comes_in_the_order_of_the_log": "it counts the numbers of MariaDB's GTIDs",
    "log/test_feed.py::test_types_come_as_a_read_brings_them": "MySQL has no UUID, INET4 and INET6",
    "log/test_feed.py::test_a_compressed_log_is_read": _VARIABLES,
    "log/test_feed.py::test_generated_columns": _GRAMMAR,
    "CREATE OR REPLACE TABLE": _GRAMMAR,
    "test_foreign_keys_whose_cascades_are_not_logged": "MySQL logs them from 9.6 on, and test_mysql_server.py tests it",
    "test_a_foreign_key_that_appears_later_stops_the_feed": "MySQL logs what it changes from 9.6 on",
    "SET STATEMENT": _GRAMMAR,
    "EXECUTE IMMEDIATE": _GRAMMAR,
    "TRUNCATE .t": _GRAMMAR,
    "ALTER TABLE t MODIFY item VARCHAR(30) NOT NULL, ENGINE=MyISAM": "MySQL has no partitions of MyISAM",
    "ALTER IGNORE": _GRAMMAR,
    "CONVERT PARTITION": _GRAMMAR,
    "SYSTEM VERSIONING": _GRAMMAR,
    "SYSTEM_TIME": _GRAMMAR,
    "log/test_feed.py::test_columns_that_change_are_taken_by_the_next_start": _GRAMMAR,
    "test_changes_without_names_of_columns_are_told_the_statement": "MySQL's setting has another default word",
    "test_a_server_without_a_log_is_told": "MySQL has a log unless it is switched off",
    "test_missing_rights_are_told_with_the_statement": "MySQL names its rights otherwise",
    "test_what_is_no_plain_table_is_refused": _GRAMMAR,
    "test_an_offset_from_the_future_or_another_server_is_told": "its positions are MariaDB's",
    "test_a_transaction_of_several_domains_is_in_its_range": "MySQL's GTIDs have no domains",
    "test_it_is_one_of_this_connectors_sessions": _VARIABLES,
    "test_a_table_that_is_made_anew_between_snapshot_and_statement": "MySQL's statement sees the new table as it is",
    "test_a_commit_that_waits_for_its_replica_is_not_undone_by_a_chunk": _VARIABLES,
    "test_a_chunk_that_would_see_all_of_the_log_undoes_a_waiting_commit": _VARIABLES,
    "UUID PRIMARY KEY": "MySQL has no UUID",
    "test_a_copy_whose_connections_and_copier_are_killed_is_equal": _GRAMMAR,
    "test_tables_are_read_in_chunks_beside_the_changes_of_all": "EMPTY is a reserved word of MySQL",
    "test_any_history_of_tables_is_copied_whole": _GRAMMAR,
    "test_exists_asks_the_catalog": _GRAMMAR,
    "test_a_deadlocked_task_whose_rows_are_not_kept_is_told": "it looks at MariaDB's table of locks",
    "lower_case_table_names": "MySQL takes that setting only where its data is created",
    "test_an_overwrite_and_the_tasks_of_an_append": "it names tables of numbers outside the witness",
    "test_a_table_is_cut_without_a_scan": "it counts by information_schema.SESSION_STATUS",
    "test_a_server_restarted_in_mid_job": _GRAMMAR,
    "test_full_disk.py": "MySQL takes a DATA DIRECTORY only where its configuration says so",
    "test_tls_is_used_where_the_server_has_it": "MySQL's default login needs TLS, or a key",
    "test_required_tls_that_the_server_has_not_is_an_error": "MySQL makes itself a certificate",
    "test_a_task_that_grows_stages_the_rows_that_waited_in_memory": _GRAMMAR,
    "test_a_connection_that_ends_while_rows_wait_in_memory_is_made_again": _GRAMMAR,
    "test_a_connection_that_ends_is_lost": "it names tables of numbers outside the witness",
    "test_a_log_whose_connection_ends_is_lost": _VARIABLES,
    "test_a_server_that_takes_small_packets_loads_rows": "MySQL names the setting otherwise",
    "VALUES (1, 2), (3, 4)": "MySQL's word for such a query is VALUES ROW(1, 2)",
    "test_types_with_comments": _VARIABLES,
    "test_a_compressed_column_is_refused_in_the_log": _GRAMMAR,
    "test_a_session_that_is_lost_at_once_is_begun_again_with_pauses": "MySQL says in another packet that it is full",
    "test_no_global_setting": _VARIABLES,
    "max_recursive_iterations": _VARIABLES,
    "test_the_list_is_set_and_the_users_own_statements_come_after_it": _VARIABLES,
    "test_words_of_the_users_mode_that_change_values_are_left_out": "MySQL has no EMPTY_STRING_IS_NULL",
    "test_new_columns_give_back_what_they_were_given": "MySQL shows no widths of whole numbers",
    "test_other_types_are_read_and_written_as_the_server_has_them[mysql-enum": "MySQL has no UUID and INET",
    "test_a_value_of_more_than_16_mib_comes_whole": _VARIABLES,
    "test_a_value_that_would_be_changed_is_refused": _GRAMMAR,
    "test_tls_is_checked": "it looks at information_schema.SESSION_STATUS",
}
"""Assumptions of tests that MySQL does not share: a part of the test's id, and why."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    dropped = [item for item in items if _is_elsewhere(item)]
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = [item for item in items if item not in set(dropped)]


def _is_elsewhere(item: pytest.Item) -> bool:
    """Whether a mark says that the item's server is another one than the test is about."""
    values = getattr(item, "callspec", None)
    server = values and values.params.get("server_class")
    marks = list(item.iter_markers("not_on"))
    assert all(mark.kwargs["reason"] for mark in marks)
    if server is MysqlServer and any(part in item.nodeid for part in NOT_ON_MYSQL):
        return True
    if server in (NewestMariadb, MysqlServer) and item.path.stem not in IN_CI:
        item.add_marker("every_server")
    return server in {SERVERS[name] for mark in marks for name in mark.args}


@pytest.fixture(scope="session", params=list(SERVERS.values()), ids=list(SERVERS))
def server_class(request: pytest.FixtureRequest) -> type[MariadbServer]:
    return request.param  # type: ignore[no-any-return] # one of SERVERS


@pytest.fixture(scope="session")
def mariadb_server(server_class: type[MariadbServer]) -> Iterator[MariadbServer]:
    server = server_class.create()
    yield server
    server.close()


@pytest.fixture(scope="module")
def mysql_server() -> Iterator[MysqlServer]:
    """A server of a file of tests, which may set what it likes there."""
    server = MysqlServer.create(**MysqlServer.log_settings)
    yield server
    server.close()


@pytest.fixture
def mysql(mysql_server: MysqlServer) -> Iterator[Shop]:
    mysql_server.sql("CREATE DATABASE warehouse")
    yield Shop(mysql_server, "warehouse")
    mysql_server.sql("DROP DATABASE warehouse")


@pytest.fixture(scope="session")
def logging_server(server_class: type[MariadbServer]) -> Iterator[MariadbServer]:
    """A server with a binary log from which tables can be followed."""
    server = server_class.create(**server_class.log_settings)
    yield server
    server.close()
