"""Settings of the server that change rows hold for no session of this connector."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_channel.connectors.mysql.session import MysqlSession
from spark_channel.connectors.mysql.session.variables import LEAST, SETTINGS, settings_to_change
from spark_channel.errors import BatchRefusedError, ChannelError, SourceError, TargetError
from spark_channel.options import CommitMode
from tests.connectors.mysql.shop import Shop

GLOBALS = {
    "sql_select_limit": "1",
    "sql_auto_is_null": "1",
    "sql_safe_updates": "1",
    "sql_quote_show_create": "0",
    "foreign_key_checks": "0",
    "unique_checks": "0",
    "check_constraint_checks": "0",
    "completion_type": "'RELEASE'",
    "system_versioning_asof": "'2000-01-01'",
    "wsrep_dirty_reads": "1",
    "sql_notes": "0",
    "note_verbosity": "''",
    "max_recursive_iterations": "2",
    "group_concat_max_len": "4",
    "max_sort_length": "64",
    "max_error_count": "0",
    "net_read_timeout": "1",
    "net_write_timeout": "1",
    "wait_timeout": "1",
    "explicit_defaults_for_timestamp": "0",
    "character_set_client": "'latin1'",
    "character_set_results": "'latin1'",
    "collation_connection": "'latin1_bin'",
    "sql_mode": "'ANSI,PAD_CHAR_TO_FULL_LENGTH,NO_BACKSLASH_ESCAPES,HIGH_NOT_PRECEDENCE,EMPTY_STRING_IS_NULL'",
    "init_connect": "'SET NAMES latin1, autocommit = 0, sql_select_limit = 1'",
    "tx_isolation": "'READ-UNCOMMITTED'",
}


@contextmanager
def globally(shop: Shop, settings: dict[str, str]) -> Iterator[None]:
    assigned = ", ".join(f"GLOBAL {name} = {value}" for name, value in settings.items())
    try:
        shop.sql(f"SET {assigned}")
        yield
    finally:
        shop.sql("SET " + ", ".join(f"GLOBAL {name} = DEFAULT" for name in settings))


def test_no_global_setting_cuts_or_changes_a_read(shop: Shop) -> None:
    shop.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, v CHAR(5)) WITH SYSTEM VERSIONING")
    shop.sql("INSERT INTO t SELECT seq, '' FROM seq_1_to_500")
    shop.sql("DELETE FROM t WHERE id > 490")
    with globally(shop, GLOBALS):
        each: dict[str, Any]
        for each in ({}, {"sqlMode": "session"}, {"rowsPerSecond": "1M"}):
            assert shop.read(advice=3, **each).num_rows == 490
        assert shop.read(None, query="SELECT id FROM t WHERE id <= 300").num_rows == 300


def test_no_global_setting_cuts_a_query(shop: Shop) -> None:
    shop.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, v TEXT)")
    shop.sql("INSERT INTO t SELECT seq, CONCAT(REPEAT('é', 500), seq) FROM seq_1_to_20")
    queries = {
        "WITH RECURSIVE x AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM x WHERE n < 3000) SELECT n FROM x": 3000,
        "SELECT GROUP_CONCAT(v) AS v FROM t GROUP BY id % 2": 2,
        "SELECT DISTINCT v FROM t": 20,
        "SELECT v FROM t GROUP BY v ORDER BY v": 20,
    }
    with globally(shop, GLOBALS):
        for query, rows in queries.items():
            found = shop.read(None, query=query)
            assert found.num_rows == rows, query
        for letters in shop.read(None, query=list(queries)[1])["v"].to_pylist():
            assert len(letters) > 5000


@pytest.mark.parametrize(
    ("query", "variables", "message"),
    [
        ("SELECT GROUP_CONCAT(v) AS v FROM t", "group_concat_max_len=9", "cut by GROUP_CONCAT"),
        ("SELECT REPEAT(v, 1 << 24) AS v FROM t", None, "larger than max_allowed_packet"),
        (
            "WITH RECURSIVE x AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM x WHERE n < 9) SELECT n FROM x",
            "max_recursive_iterations=3",
            "result may be incomplete",
        ),
    ],
)
def test_a_result_that_the_server_cuts_with_a_warning_is_refused(
    shop: Shop, query: str, variables: str | None, message: str
) -> None:
    shop.sql("CREATE TABLE t (v VARCHAR(9)); INSERT INTO t VALUES ('abcdefg'), ('hijklm')")
    more: dict[str, Any] = {} if variables is None else {"sessionVariables": variables}
    with pytest.raises(SourceError, match=f"the server cut the result: (?i:.*{message})"):
        shop.read(None, query=query, **more)


def test_warnings_of_other_kinds_do_not_end_a_read(shop: Shop) -> None:
    shop.sql("CREATE TABLE t (v VARCHAR(9)); INSERT INTO t VALUES ('1a'), ('2')")
    assert shop.read(None, query="SELECT v FROM t WHERE v > 1").num_rows == 1


def test_a_session_decodes_letters_whatever_the_user_sets(shop: Shop) -> None:
    shop.sql("CREATE TABLE t (v VARCHAR(9)); INSERT INTO t VALUES ('é😀')")
    for option in ("sessionInitStatement", "sessionVariables"):
        text = "character_set_results=latin1,character_set_client=latin1"
        more: dict[str, Any] = {option: f"SET {text}" if "Init" in option else text}
        assert shop.read(where="v = 'é😀'", **more).to_pylist() == [{"v": "é😀"}]


def test_an_upsert_keeps_a_key_that_the_server_would_update(shop: Shop) -> None:
    """Without explicit_defaults_for_timestamp the first TIMESTAMP of a table has ON UPDATE CURRENT_TIMESTAMP."""
    kind = pa.timestamp("us", "UTC")
    rows = pa.table({"at": pa.array([1_000_000], kind), "v": [1]})
    with globally(shop, {"explicit_defaults_for_timestamp": "0"}):
        for value in (1, 2):
            shop.write(
                rows.set_column(1, "v", pa.array([value])), writeMode="upsert", keyColumns="at"
            )
    assert shop.rows("SELECT UNIX_TIMESTAMP(at), v FROM t") == [("1.000000", "2")]


def test_no_global_setting_changes_a_write(shop: Shop) -> None:
    rows = pa.table({"id": [1, 2], "v": ["a", "b"]})
    shop.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, v VARCHAR(5) CHECK (v <> 'b')) ENGINE=InnoDB")
    commits: tuple[CommitMode, ...] = ("job", "task")
    with globally(shop, GLOBALS):
        for commit in commits:
            with pytest.raises(TargetError, match="CONSTRAINT"):
                shop.write(rows, commit=commit)
            shop.write(rows.slice(0, 1), commit=commit, overwrite=True)
    assert shop.rows("SELECT * FROM t") == [("1", "a")]


def test_the_list_is_set_and_the_users_own_statements_come_after_it(shop: Shop) -> None:
    with globally(shop, GLOBALS):
        more: dict[str, Any] = {
            "sessionVariables": "foreign_key_checks=0",
            "sessionInitStatement": "SET unique_checks = 0",
        }
        session = MysqlSession(shop.reader("t", **more).options, SourceError)
        with session.closed_on_failure():
            names = ", ".join(f"'{name}'" for name in (*SETTINGS, *LEAST))
            found = dict(session.rows(f"SHOW SESSION VARIABLES WHERE Variable_name IN ({names})"))
            assert session.value("SELECT @@sql_select_limit") > 1 << 60
        session.close()
    assert {name: int(found.pop(name)) for name in LEAST} == LEAST
    changed = {name: value for name, value in found.items() if value != SETTINGS[name]}
    assert changed == {"foreign_key_checks": "OFF", "unique_checks": "OFF"}
    # Names that the other kind of server has, or older versions of this one.
    of_others = {"transaction_isolation", "tx_isolation", "information_schema_stats_expiry"}
    assert SETTINGS.keys() - found.keys() <= of_others


def test_only_what_a_server_has_is_set() -> None:
    assert settings_to_change({"sql_auto_is_null": "OFF", "unique_checks": "on"}) == ""
    assert settings_to_change({"transaction_isolation": "READ-UNCOMMITTED"}) == (
        "transaction_isolation = 'REPEATABLE-READ'"
    )
    assert (
        settings_to_change({"system_versioning_asof": "2000-01-01"})
        == "system_versioning_asof = DEFAULT"
    )
    assert settings_to_change({"wait_timeout": "28800", "max_sort_length": "4"}) == (
        "max_sort_length = 1024"
    )


def test_the_page_lists_them() -> None:
    page = (Path(__file__).parents[3] / "docs" / "mysql.md").read_text(encoding="utf-8")
    listed = page.partition("### Settings of a session")[2].partition("## Writing")[0]
    assert {
        name for name in (*SETTINGS, *LEAST, "sql_select_limit") if f"`{name}`" not in listed
    } == set()


def test_words_of_the_users_mode_that_change_values_are_left_out(shop: Shop) -> None:
    shop.sql("CREATE TABLE t (id BIGINT PRIMARY KEY AUTO_INCREMENT, v CHAR(3) NOT NULL)")
    mode = "EMPTY_STRING_IS_NULL,PAD_CHAR_TO_FULL_LENGTH,ANSI_QUOTES"
    options: dict[str, Any] = {
        "sqlMode": "session",
        "sessionInitStatement": f"SET SESSION sql_mode = '{mode}'",
    }
    for local in ("true", "false"):
        shop.write(
            pa.table({"id": [0, 2], "v": ["", "a"]}), localInfile=local, overwrite=True, **options
        )
        assert shop.rows("SELECT id, LENGTH(v) FROM t ORDER BY id") == [("0", "0"), ("2", "1")]
        assert shop.read(**options).to_pylist() == [{"id": 0, "v": ""}, {"id": 2, "v": "a"}]


@pytest.mark.parametrize("commit", ["job", "task"])
@pytest.mark.parametrize("local", ["true", "false"], ids=["load data", "insert"])
@pytest.mark.parametrize("declared", ["TIMESTAMP NOT NULL", "INT AUTO_INCREMENT UNIQUE"])
def test_a_null_that_the_server_would_fill_is_refused(
    shop: Shop, commit: CommitMode, local: str, declared: str
) -> None:
    shop.sql(
        f"CREATE TABLE t (id BIGINT PRIMARY KEY, v {declared}, w TIMESTAMP NULL) ENGINE=InnoDB"
    )
    kind = pa.timestamp("us", "UTC") if "TIMESTAMP" in declared else pa.int32()
    rows = pa.table(
        {"id": [1], "v": pa.nulls(1, kind), "w": pa.nulls(1, pa.timestamp("us", "UTC"))}
    )
    with pytest.raises(
        BatchRefusedError, match=r"column 'v', row 1 of task 0: .*the server would store"
    ):
        shop.write(rows, commit=commit, localInfile=local)
    assert shop.rows("SELECT * FROM t") == []


@pytest.mark.parametrize("more", [{}, {"ledger": "none"}], ids=["ledger", "direct"])
def test_insert_ignore_sees_each_warning_of_many(shop: Shop, more: dict[str, Any]) -> None:
    """The server keeps 65 535 warnings of a statement, and a duplicate key is one."""
    shop.sql("CREATE TABLE t (id BIGINT NOT NULL UNIQUE, v VARCHAR(9) NOT NULL) ENGINE=InnoDB")
    good = pa.table({"id": pa.repeat(pa.scalar(1), 70_000), "v": pa.repeat(pa.scalar("a"), 70_000)})
    rows = pa.concat_tables([good, pa.table({"id": [2], "v": pa.nulls(1, pa.string())})])
    commits: tuple[CommitMode, ...] = ("task",) if more else ("job", "task")
    for commit in commits:
        with pytest.raises(ChannelError, match="Column 'v' cannot be null"):
            shop.write(rows.combine_chunks(), commit=commit, duplicates="ignore", **more)
        assert shop.rows("SELECT * FROM t") == []
        shop.write(good.combine_chunks(), commit=commit, duplicates="ignore", **more)
        assert shop.rows("SELECT * FROM t") == [("1", "a")]
        shop.sql("DELETE FROM t")


def test_a_trigger_that_assigns_columns_is_told(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    shop.sql(
        "CREATE TABLE t (id BIGINT PRIMARY KEY, v VARCHAR(9)); "
        "CREATE TRIGGER quiet BEFORE INSERT ON t FOR EACH ROW SET @seen = NEW.v; "
        "CREATE TRIGGER loud BEFORE UPDATE ON t FOR EACH ROW SET @a = 1, NEW.v = 'x'"
    )
    shop.write(pa.table({"id": [1], "v": ["a"]}))
    messages = [each.getMessage() for each in caplog.records if "trigger" in each.getMessage()]
    assert len(messages) == 1
    assert "trigger loud, which assigns columns" in messages[0]
