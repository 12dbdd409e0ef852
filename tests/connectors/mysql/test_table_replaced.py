"""A table that is swapped, altered or made again between two statements of a limited read: the read ends by name."""

from collections.abc import Sequence
from typing import Any

import pytest

from spark_channel.connectors.mysql.session import MysqlSession
from spark_channel.errors import SourceError
from tests.connectors.mysql.shop import Shop
from tests.connectors.sql.changing import acting, check_change, check_no_change, limited

_MADE = """
DROP TABLE IF EXISTS t, other, old;
CREATE TABLE t (id int PRIMARY KEY, at datetime, v varchar(9));
INSERT INTO t WITH RECURSIVE r (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM r WHERE i < 40)
  SELECT i, '2024-01-01', 'old' FROM r;
CREATE TABLE other LIKE t;
INSERT INTO other SELECT id, at, 'new' FROM t;
"""
_UNTOLD = """
CREATE USER IF NOT EXISTS etl@'127.0.0.1' IDENTIFIED BY 'p'; GRANT SELECT ON {database}.* TO etl@'127.0.0.1'
"""
"""A login without PROCESS is told the second in which a table was made or renamed, and not its number."""
CHANGES = {
    "swap": ("RENAME TABLE t TO old, other TO t", "another table took its name"),
    "made again": (
        "DROP TABLE t; CREATE TABLE t LIKE other; INSERT INTO t SELECT * FROM other",
        "another table took its name",
    ),
    "an empty one": (
        "DROP TABLE t; CREATE TABLE t LIKE other",
        "another table took its name",
    ),
    "truncate": (
        "TRUNCATE t; INSERT INTO t SELECT * FROM other",
        "it was emptied by TRUNCATE",
    ),
    "dropped": ("DROP TABLE t", "it was dropped or renamed"),
    "type": (
        "ALTER TABLE t MODIFY at timestamp NULL",
        "the type of column 'at' was changed from datetime to timestamp",
    ),
    "column": ("ALTER TABLE t CHANGE v w varchar(9)", "column 'v' was dropped or renamed"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_between_two_statements_ends_the_read(shop: Shop, change: str) -> None:
    act, says = CHANGES[change]
    check_change(
        lambda: shop.reader("t", statementSeconds="5"),
        lambda: shop.sql(_MADE),
        lambda: shop.sql(act),
        says,
    )


@pytest.mark.parametrize("change", ["swap", "made again", "dropped", "type", "column"])
def test_a_login_without_process_is_told_by_the_time(shop: Shop, change: str) -> None:
    act, says = CHANGES[change]
    shop.sql(_UNTOLD.format(database=shop.database))
    try:
        login = {"user": "etl", "password": "p"}
        check_change(
            lambda: shop.reader("t", statementSeconds="5", **login),
            lambda: shop.sql(
                _MADE.replace("CREATE TABLE other", "DO SLEEP(1.01); CREATE TABLE other")
            ),
            lambda: shop.sql(f"DO SLEEP(1.01); {act}"),
            says,
        )
    finally:
        shop.sql("DROP USER etl@'127.0.0.1'")


def test_what_keeps_the_rows_does_not_end_the_read(shop: Shop) -> None:
    check_no_change(
        lambda: shop.reader("t", statementSeconds="5"),
        lambda: shop.sql(_MADE),
        lambda: shop.sql("ANALYZE TABLE t; UPDATE t SET v = 'old'; FLUSH TABLES t"),
    )


def test_splits_of_one_job_read_one_table(shop: Shop) -> None:
    shop.sql(_MADE)
    reader = shop.reader("t")
    reader.schema()
    splits = reader.split(3)
    with reader.reading() as read:
        assert list(read(splits[0]))
        shop.sql(CHANGES["swap"][0])
        with pytest.raises(SourceError, match="not the table any more"):
            list(read(splits[1]))


def test_the_check_is_one_look_for_each_split(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is behind the last statement, however many a split has."""
    shop.sql(_MADE)
    asked: list[str] = []
    rows = MysqlSession.rows

    def noting(self: MysqlSession, sql: str, parameters: Sequence[object] = ()) -> Any:
        asked.append(sql)
        return rows(self, sql, parameters)

    reader = limited(shop.reader("t", statementSeconds="5"))
    reader.schema()
    splits = reader.split(2)
    monkeypatch.setattr(MysqlSession, "rows", noting)
    with acting(-1, lambda: None) as sent, reader.reading() as read:
        assert sum(batch.num_rows for split in splits for batch in read(split)) == 40
    assert len(sent) > 2 * len(splits)
    assert sum("create_time" in sql for sql in asked) == len(splits)
