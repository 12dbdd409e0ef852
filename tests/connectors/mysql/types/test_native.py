"""Rows that pass between two tables as lines of LOAD DATA: each value arrives unchanged, or goes through Arrow."""

from typing import Any

import pytest

import spark_channel
from spark_channel.errors import ChannelError
from tests.connectors.mysql.shop import Shop

pytestmark = pytest.mark.real_server("MariaDB", "mysql")

PASS = "rows pass as the source's bytes"
TYPES = {
    "i": "BIGINT UNSIGNED",
    "s": "SMALLINT(4) ZEROFILL",
    "b": "TINYINT(1)",
    "n": "DECIMAL(38,10)",
    "f": "FLOAT",
    "d": "DOUBLE",
    "da": "DATE",
    "dt": "DATETIME(6)",
    "ts": "TIMESTAMP(3) NULL",
    "ti": "TIME(6)",
    "y": "YEAR",
    "c": "CHAR(9)",
    "v": "VARCHAR(99)",
    "t": "LONGTEXT",
    "l": "VARCHAR(9) CHARACTER SET latin1",
    "e": "ENUM('2','1','a,b')",
    "m": "SET('x','y')",
}
ROWS = [
    [
        "18446744073709551615, 7, 1, -0.0000000001, 0.1, 0.1, '0001-01-01', '9999-12-31 23:59:59.999999'",
        "'2030-10-27 02:30:00.123', '23:59:59.000001', 2155, 'a', 'NULL', REPEAT('long', 100000), 'é', '1', 'x,y'",
    ],
    [
        "0, 0, 0, 12345678901234567890, 3.4e38, 1.7976931348623157e308, '2024-02-29', '1000-01-01'",
        "'1970-01-01 00:00:01', '00:00:00', 0, '', '\\\\N'",
        "CHAR(1, 2, 3, 0, 10, 13, 9, 34, 39, 44, 92, 26 USING utf8mb4), '', 'a,b', ''",
    ],
    [
        "1, 1, 1, 1, 1e-30, 5e-324, '2024-01-01', '2024-01-01', '2024-01-01', '01:00:00', 1901, 'N'",
        "CONCAT(CHAR(2 USING utf8mb4), 'N'), CONCAT(REPEAT('ä', 125), 'z'), 'N', '2', 'y'",
    ],
    ["NULL"] * len(TYPES),
]


def _tables(shop: Shop, source: str, target: str) -> None:
    shop.sql(f"CREATE TABLE a ({source}); CREATE TABLE b ({target})")


def _copy(shop: Shop, source: dict[str, Any] | None = None, **options: Any) -> str:
    table = {**shop.login, "name": "mysql"}
    from_table = {**table, "dbtable": "a", **(source or {})}
    return spark_channel.transfer(None, from_table, {**table, "dbtable": "b", **options}).path


@pytest.mark.parametrize("commit", ["job", "task"])
def test_every_value_arrives_as_it_is(shop: Shop, commit: str) -> None:
    columns = ", ".join(f"{name} {declared}" for name, declared in TYPES.items())
    _tables(shop, columns, columns)
    for row in ROWS:
        shop.sql(f"SET time_zone = '-02:00'; INSERT INTO a VALUES ({', '.join(row)})")
    assert _copy(shop, commit=commit, sessionTimeZone="-05:00").startswith(PASS)
    equal = " AND ".join(f"a.{name} <=> b.{name}" for name in TYPES)
    exact = " AND ".join(f"HEX(a.{name}) <=> HEX(b.{name})" for name in TYPES if name != "f")
    assert shop.rows(f"SELECT COUNT(*) FROM a JOIN b ON {equal} AND {exact}") == [("4",)]
    assert shop.rows("SELECT COUNT(*) FROM b") == [("4",)]


def test_a_table_of_one_column(shop: Shop) -> None:
    _tables(shop, "v VARCHAR(9)", "v VARCHAR(9)")
    shop.sql("INSERT INTO a VALUES ('x'), (NULL), (''), ('NULL')")
    assert _copy(shop).startswith(PASS)
    assert shop.rows("SELECT QUOTE(v) FROM b ORDER BY v") == [
        ("NULL",),
        ("''",),
        ("'NULL'",),
        ("'x'",),
    ]


def test_columns_find_each_other_by_name(shop: Shop) -> None:
    _tables(shop, "x INT, y INT", "z INT DEFAULT 7, Y INT, x INT")
    shop.sql("INSERT INTO a VALUES (1, 2)")
    assert _copy(shop).startswith(PASS)
    assert shop.rows("SELECT x, Y, z FROM b") == [("1", "2", "7")]


@pytest.mark.parametrize("value", ["0000-00-00", "2024-00-01"])
def test_a_zero_date_is_refused_by_name(shop: Shop, value: str) -> None:
    _tables(shop, "day DATE", "day DATE")
    shop.sql(f"SET sql_mode = ''; INSERT INTO a VALUES ('2024-01-01'), ('{value}')")
    with pytest.raises(ChannelError, match=r"column .day.*zeroDates"):
        _copy(shop)
    assert shop.rows("SELECT COUNT(*) FROM b") == [("0",)]


@pytest.mark.parametrize("commit", ["job", "task"])
def test_a_default_zero_date_of_another_column_is_stored(shop: Shop, commit: str) -> None:
    shop.sql(
        "SET sql_mode = ''; CREATE TABLE a (v INT, day DATE); INSERT INTO a VALUES (1, '2024-01-01');"
        "CREATE TABLE b (v INT, day DATE, seen DATE NOT NULL DEFAULT '0000-00-00')"
    )
    assert not _copy(shop, commit=commit).startswith(PASS)
    assert shop.rows("SELECT v, day, CONCAT(seen) FROM b") == [("1", "2024-01-01", "0000-00-00")]


def test_zero_dates_are_not_blamed_for_another_refusal(shop: Shop) -> None:
    _tables(shop, "v INT, day DATE", "v INT UNIQUE, day DATE")
    shop.sql("INSERT INTO a VALUES (1, '2024-01-01'), (1, '2024-01-01')")
    with pytest.raises(ChannelError, match="Duplicate entry") as caught:
        _copy(shop)
    assert "zeroDates" not in str(caught.value)


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("v INT", "v BIGINT"),
        ("v INT", "v INT NOT NULL"),
        ("v INT UNSIGNED", "v BIGINT UNSIGNED"),
        ("v INT", "v INT AUTO_INCREMENT, KEY (v)"),
        ("v DATETIME(6)", "v DATETIME"),
        ("v DECIMAL(9,2)", "v DECIMAL(10,2)"),
        ("v VARCHAR(9)", "v VARCHAR(8)"),
        ("v ENUM('a','b')", "v ENUM('b','a')"),
        ("v VARBINARY(9)", "v VARBINARY(9)"),
        ("v BIT(9)", "v BIT(9)"),
    ],
)
def test_other_columns_are_read_as_values(shop: Shop, source: str, target: str) -> None:
    _tables(shop, source, target)
    assert not _copy(shop).startswith(PASS)


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ({"customSchema": "v INT"}, {}),
        ({"zeroDates": "null"}, {}),
        ({"floatsAs": "text"}, {}),
        ({"timestampsAs": "local"}, {}),
        ({"statementSeconds": "1"}, {}),
        ({"rowsPerSecond": "1k"}, {}),
        ({}, {"sqlMode": "session"}),
        ({}, {"localInfile": "false"}),
        ({}, {"duplicates": "ignore"}),
    ],
)
def test_options_that_need_values(
    shop: Shop, source: dict[str, str], target: dict[str, str]
) -> None:
    _tables(shop, "v INT", "v INT UNIQUE")
    shop.sql("INSERT INTO a VALUES (1)")
    assert not _copy(shop, source, **target).startswith(PASS)
    assert shop.rows("SELECT v FROM b") == [("1",)]


def test_the_report_says_that_the_target_needs_values(shop: Shop) -> None:
    _tables(shop, "v INT", "v INT")
    assert "or its options need values" in _copy(shop, localInfile="false")


@pytest.mark.parametrize("mode", ["insert", "upsert"])
def test_modes_that_take_the_lines(shop: Shop, mode: str) -> None:
    _tables(shop, "id INT PRIMARY KEY, v TEXT", "id INT PRIMARY KEY, v TEXT")
    shop.sql("INSERT INTO a VALUES (1, 'new'), (2, NULL)")
    if mode == "upsert":
        shop.sql("INSERT INTO b VALUES (1, 'old')")
    assert _copy(shop, writeMode=mode).startswith(PASS)
    assert shop.rows("SELECT id, v FROM b ORDER BY id") == [("1", "new"), ("2", "NULL")]
