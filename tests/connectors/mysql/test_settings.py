"""Settings of the server that change rows hold for no session of this connector."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_channel.connectors.mysql.options import SETTINGS, settings_to_change
from spark_channel.connectors.mysql.session import MysqlSession
from spark_channel.errors import BatchRefusedError, SourceError, TargetError
from spark_channel.options import CommitMode
from tests.connectors.mysql.conftest import Shop

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
            names = ", ".join(f"'{name}'" for name in SETTINGS)
            found = dict(session.rows(f"SHOW SESSION VARIABLES WHERE Variable_name IN ({names})"))
            assert session.value("SELECT @@sql_select_limit") > 1 << 60
        session.close()
    changed = {name: value for name, value in found.items() if value != SETTINGS[name]}
    assert changed == {"foreign_key_checks": "OFF", "unique_checks": "OFF"}
    assert len(found) == len(SETTINGS) - ("transaction_isolation" not in found)


def test_only_what_a_server_has_is_set() -> None:
    assert settings_to_change({"sql_auto_is_null": "OFF", "unique_checks": "on"}) == ""
    assert settings_to_change({"transaction_isolation": "READ-UNCOMMITTED"}) == (
        "transaction_isolation = 'REPEATABLE-READ'"
    )
    assert (
        settings_to_change({"system_versioning_asof": "2000-01-01"})
        == "system_versioning_asof = DEFAULT"
    )


def test_the_page_lists_them() -> None:
    page = (Path(__file__).parents[3] / "docs" / "mysql.md").read_text(encoding="utf-8")
    listed = page.partition("### Settings of a session")[2].partition("## Writing")[0]
    assert {name for name in (*SETTINGS, "sql_select_limit") if f"`{name}`" not in listed} == set()


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
