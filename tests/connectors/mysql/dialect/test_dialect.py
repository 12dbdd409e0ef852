"""Queries of the user's return what the server's own client shows for them; types are read beside their comments."""

from typing import Any

import pytest

from spark_channel.connectors.mysql.dialect import MysqlDialect
from spark_channel.errors import ChannelError, OptionError, SchemaError
from tests.connectors.mysql.log.test_feed import all_after, feed_of
from tests.connectors.mysql.shop import Shop


@pytest.mark.parametrize(
    "query",
    [
        "WITH x AS (SELECT id FROM t) SELECT SQL_NO_CACHE * FROM x",
        "SELECT DISTINCT HIGH_PRIORITY STRAIGHT_JOIN SQL_CALC_FOUND_ROWS id FROM t",
        "SELECT /*!40001 SQL_NO_CACHE */ id, '/*!40001 SQL_NO_CACHE */' AS v FROM t",
        "SELECT @n := @n + 1 AS n, id FROM t, (SELECT @n := 0) AS z",
        "SELECT @n := @n + 1 AS n, id FROM t, (SELECT @n := 0) AS z ORDER BY v DESC -- last first",
        "SELECT id, @@version AS v, @@session.sql_mode AS m FROM t",
        "SELECT id FROM t WHERE id = 1 UNION ALL SELECT id FROM t",
        "(SELECT id FROM t) UNION (SELECT 9)",
        "VALUES (1, 2), (3, 4)",
        "SELECT id FROM t FOR UPDATE",
        "SELECT id FROM t LOCK IN SHARE MODE; -- done",
        "/* all */ SELECT id FROM t; # done",
        "SELECT id FROM t FOR SYSTEM_TIME AS OF NOW(6)",
        "SELECT id FROM t PARTITION (p)",
        "SELECT v AS `a ; b`, ';' AS c FROM t;",
    ],
)
def test_a_query_returns_what_the_client_shows(shop: Shop, query: str) -> None:
    versioned = " WITH SYSTEM VERSIONING" if "SYSTEM_TIME" in query else ""
    parted = "" if versioned else " PARTITION BY RANGE (id) (PARTITION p VALUES LESS THAN (9))"
    shop.sql(f"CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(9)){versioned}{parted}")
    shop.sql("INSERT INTO t VALUES (1, 'x'), (2, 'z'), (3, 'y')")
    mode = shop.reader("t").options.sql_mode
    assert mode == "strict"
    found = [
        tuple(str(int(each)) if isinstance(each, float) else str(each) for each in row.values())
        for row in shop.read(None, query=query).to_pylist()
    ]
    shown = shop.rows(query)
    if "sql_mode" in query:  # a session's own
        found, shown = [row[:2] for row in found], [row[:2] for row in shown]
    assert sorted(found) == sorted(shown)


@pytest.mark.parametrize(
    "query",
    [
        "SELECT 1 AS a INTO @x",
        "SELECT id FROM t PROCEDURE ANALYSE()",
        "SELECT 1) AS a INTO OUTFILE '/tmp/x' FIELDS (",
        "SELECT 1; SELECT 2",
        "VALUES (1); VALUES (2)",
        "DELETE FROM t",
        "SELECT id FROM t WHERE id = ?",
        "CALL p()",
    ],
)
def test_what_is_no_one_query_is_refused(shop: Shop, query: str) -> None:
    shop.sql("CREATE TABLE t (id INT)")
    with pytest.raises(ChannelError, match=r"option 'query' got|error in your SQL syntax"):
        shop.read(None, query=query)


def test_columns_of_one_name_are_told(shop: Shop) -> None:
    shop.sql("CREATE TABLE t (id INT); INSERT INTO t VALUES (1)")
    query = "SELECT a.id, b.id FROM t AS a, t AS b"
    with pytest.raises(SchemaError, match=r"'id'.*duplicateNames"):
        shop.read(None, query=query)
    for each in (query, f"WITH x AS (SELECT 1) {query} LIMIT 9; -- all"):
        found = shop.read(None, query=each, duplicateNames="number")
        assert found.to_pylist() == [{"id": 1, "id_1": 1}]
    plain = "WITH x AS (SELECT id FROM t) SELECT * FROM x"
    assert shop.read(None, query=plain, duplicateNames="number").to_pylist() == [{"id": 1}]


def test_a_variable_of_another_database_is_a_parameter() -> None:
    class Other(MysqlDialect):
        sql = "postgres"

    with pytest.raises(OptionError, match="parameter"):
        Other().derived("SELECT $1")


def test_types_with_comments(shop: Shop) -> None:
    """Compressed columns, temporal columns of the format before MySQL 5.6, and a view of one."""
    shop.sql(
        "SET GLOBAL mysql56_temporal_format = 0; CREATE TABLE t (id INT PRIMARY KEY, c TEXT COMPRESSED, "
        "b VARBINARY(99) COMPRESSED, d DATETIME, s TIMESTAMP NULL, e ENUM('/* a */', 'b''')); "
        "SET GLOBAL mysql56_temporal_format = 1; CREATE VIEW v AS SELECT id, DATE_ADD(d, INTERVAL 1 DAY) AS n FROM t"
    )
    shop.sql("INSERT INTO t VALUES (1, 'x', 'y', '2024-01-01 10:00:00', '2024-01-01', '/* a */')")
    assert "/*" in shop.sql("SELECT GROUP_CONCAT(column_type) FROM information_schema.columns")
    found = shop.read()
    rows: list[dict[str, Any]] = found.to_pylist()
    assert [(row["c"], row["b"], str(row["d"]), row["e"]) for row in rows] == [
        ("x", b"y", "2024-01-01 10:00:00", "/* a */")
    ]
    assert str(shop.read("v")["n"][0]) == "2024-01-02 10:00:00"
    shop.sql("CREATE TABLE other LIKE t")
    for commit in ("job", "task"):
        shop.write(found, dbtable="other", commit=commit, overwrite=True)
        assert shop.rows("SELECT * FROM other") == shop.rows("SELECT * FROM t")
    shop.write(found, dbtable="other", writeMode="upsert", keyColumns="id")
    assert shop.rows("SELECT * FROM other") == shop.rows("SELECT * FROM t")


def test_a_compressed_column_is_refused_in_the_log(logged: Shop) -> None:
    logged.sql("CREATE TABLE t (id INT PRIMARY KEY, item TEXT COMPRESSED, n INT)")
    feed, rest = feed_of(logged), feed_of(logged, columns="id,n")
    (token,) = feed.now()
    logged.sql("INSERT INTO t VALUES (1, REPEAT('x', 500), 5)")
    with pytest.raises(SchemaError, match=r"column .item. .* is COMPRESSED.*option .columns."):
        all_after(feed, token)
    assert [(row["id"], row["n"]) for row in all_after(rest, token)] == [(1, 5)]
