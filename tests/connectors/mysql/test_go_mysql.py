"""The SQL side against go-mysql-server, another team's server, which calls itself MySQL 8.

It has no temporary tables, so no upserts, no binary log, and no `query`, since it describes no derived table. Its
catalog has no functional indexes, and does not say which columns are generated or invisible. It returns DATE, TIME and
SET as other texts than MySQL. Its LOAD DATA takes no number beside a quoted text, so rows are inserted.
"""

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from spark_channel.connectors.mysql.dialect import table_named
from spark_channel.connectors.mysql.session import MysqlSession
from spark_channel.errors import ChannelError, SourceError, TargetError
from spark_channel.testing import reader_conformance, writer_conformance
from tests.connectors.mysql.conftest import Shop
from tests.servers.go_mysql import GoMysqlServer, go_mysql_server

pytestmark = pytest.mark.real_server("go-mysql-server", "mysql")

UTC = dt.UTC


@pytest.fixture(scope="module")
def running() -> Iterator[GoMysqlServer]:
    with go_mysql_server() as server:
        yield server


@pytest.fixture
def shop(running: GoMysqlServer) -> Iterator[Shop]:
    running.sql("CREATE DATABASE warehouse")
    yield Shop(running, "warehouse")
    running.sql("DROP DATABASE warehouse")


def numbers(*values: int) -> pa.Table:
    return pa.table({"id": pa.array(values, pa.int32()), "name": [f"n{each}" for each in values]})


def test_caching_sha2_password_logs_in_over_tls_only(shop: Shop, running: GoMysqlServer) -> None:
    shop.sql("CREATE TABLE t (id INT PRIMARY KEY)")
    checked: dict[str, Any] = {"sslmode": "verify-full", "sslrootcert": str(running.certificate)}
    assert shop.read(**checked).num_rows == 0
    with pytest.raises(SourceError, match=r"the login was refused.*\(1045\)"):
        shop.read(**checked, password="wrong")
    with pytest.raises(SourceError, match="127") as caught:
        shop.read(sslmode="disable")
    assert running.password not in str(caught.value)


def test_the_catalog_has_keys_defaults_and_collations(shop: Shop) -> None:
    shop.sql(
        "CREATE TABLE t (id BIGINT UNSIGNED AUTO_INCREMENT PRIMARY KEY, code VARCHAR(9) COLLATE utf8mb4_0900_ai_ci "
        "NOT NULL, n INT DEFAULT (1 + 2), at TIMESTAMP DEFAULT CURRENT_TIMESTAMP, note TEXT, "
        "UNIQUE KEY code (code), UNIQUE KEY loose (n), KEY down (at DESC), UNIQUE KEY part (note(5)))"
    )
    with MysqlSession(shop.reader().options, SourceError) as session:
        table = table_named(session, shop.database, "t")
    assert table is not None
    assert (table.engine, table.primary, table.is_view) == ("InnoDB", ("id",), False)
    assert table.unique == (("id",), ("code",))
    assert table.loose == (("n",),)
    shown = {
        each.name: (each.declared, each.not_null, each.has_default, each.numbered, each.collation)
        for each in table.columns
    }
    assert shown == {
        "id": ("bigint unsigned", True, True, True, None),
        "code": ("varchar(9)", True, False, False, "utf8mb4_0900_ai_ci"),
        "n": ("int", False, True, False, None),
        "at": ("timestamp", False, True, False, None),
        "note": ("text", False, False, False, "utf8mb4_0900_bin"),
    }


def test_every_type_is_written_and_read(shop: Shop) -> None:
    moment = dt.datetime(2024, 1, 31, 8, 30, 0, 123456)
    held: dict[str, tuple[str, pa.DataType, list[Any]]] = {
        "id": ("int PRIMARY KEY", pa.int32(), [1, 2]),
        "yes": ("tinyint(1)", pa.bool_(), [True, None]),
        "tiny": ("tinyint", pa.int8(), [-128, 127]),
        "small": ("smallint", pa.int16(), [-(2**15), 2**15 - 1]),
        "medium": ("mediumint", pa.int32(), [-(2**23), 2**23 - 1]),
        "big": ("bigint", pa.int64(), [-(2**63), 2**63 - 1]),
        "huge": ("bigint unsigned", pa.uint64(), [0, 2**64 - 1]),
        "single": ("float", pa.float32(), [1.5, None]),
        "two": ("double", pa.float64(), [1 / 3, -1e308]),
        "exact": ("decimal(38,18)", pa.decimal128(38, 18), [Decimal("-1E-18"), None]),
        "local": ("datetime(6)", pa.timestamp("us"), [moment, None]),
        "at": ("timestamp(6)", pa.timestamp("us", "UTC"), [moment.replace(tzinfo=UTC), None]),
        "made": ("year", pa.int16(), [1901, 2155]),
        "name": ("varchar(20)", pa.string(), ["ä€😀'\"\\\n,", ""]),
        "long": ("longtext", pa.string(), ["NULL", None]),
        "few": ("varbinary(5)", pa.binary(), [b"\0\1", b""]),
        "raw": ("longblob", pa.binary(), [bytes(range(256)), None]),
        "one": ("enum('a','b')", pa.string(), ["b", None]),
    }
    declared = ", ".join(f"`{name}` {kind}" for name, (kind, _, _) in held.items())
    rows = pa.table({name: pa.array(values, kind) for name, (_, kind, values) in held.items()})
    shop.sql(f"CREATE TABLE t ({declared})")
    shop.write(rows)
    found = shop.read().sort_by("id")
    for name in held:
        assert found[name].to_pylist() == rows[name].to_pylist(), name


def test_the_reader_keeps_its_contract(shop: Shop) -> None:
    shop.sql("CREATE TABLE t (a INT, b VARCHAR(20), v DOUBLE, n TEXT, PRIMARY KEY (a, b))")
    rows = range(1, 601)
    expected = pa.table(
        {
            "a": pa.array([n // 100 for n in rows], pa.int32()),
            "b": [f"k{n}" for n in rows],
            "v": [n / 3 for n in rows],
            "n": [f'n,"{n}' if n % 5 else None for n in rows],
        }
    )
    shop.write(expected)
    reader_conformance(shop.reader, expected=expected)
    assert shop.server.connections() == 0


@pytest.mark.parametrize("key", ["INT", "VARCHAR(9) COLLATE utf8mb4_0900_ai_ci"])
def test_splits_read_each_row_once(shop: Shop, key: str) -> None:
    shop.sql(f"CREATE TABLE t (id {key} PRIMARY KEY, n INT)")
    shop.sql("INSERT INTO t VALUES " + ", ".join(f"('{n}', {n})" for n in range(1_000)))
    for options in ({}, {"rowsPerSecond": "100k"}, {"partitionColumn": "n"}):
        reader = shop.reader(**options)
        splits = reader.split(4)
        assert len(splits) == 4
        found = [
            n for each in splits for batch in reader.read(each) for n in batch["n"].to_pylist()
        ]
        assert sorted(found) == list(range(1_000)), options


def test_conditions_and_views_run_in_the_server(shop: Shop) -> None:
    shop.sql("CREATE TABLE t (id INT PRIMARY KEY, name TEXT); CREATE VIEW v AS SELECT id FROM t")
    shop.write(numbers(1, 2, 3))
    assert shop.read(where="id > 1 AND name LIKE 'n%'")["id"].to_pylist() == [2, 3]
    assert shop.read("v")["id"].to_pylist() == [1, 2, 3]


@pytest.mark.soak  # MariaDB is held to it
def test_the_writer_keeps_its_contract(shop: Shop) -> None:

    def read_back() -> pa.Table | None:
        try:
            return shop.read()
        except SourceError as error:
            if "does not exist" in str(error):
                return None
            raise

    writer_conformance(shop.writer, read_back=read_back, leftovers=shop.staged)
    assert shop.server.connections() == 0


@pytest.mark.parametrize("commit", ["job", "task"])
def test_rows_that_the_server_refuses_leave_no_others(shop: Shop, commit: Any) -> None:
    shop.sql(
        "CREATE TABLE t (id INT PRIMARY KEY, name VARCHAR(4), CONSTRAINT low CHECK (id < 100))"
    )
    shop.write(numbers(1), commit=commit)
    for refused, why in (
        (numbers(2, 100), "low"),
        (numbers(3, 1), "duplicate"),
        (numbers(98765), ""),
    ):
        with pytest.raises(TargetError, match=f"(?i){why}"):
            shop.write(refused, commit=commit)
    assert shop.rows("SELECT id FROM t") == [("1",)]
    assert shop.staged() == []


def test_a_transaction_id_is_written_once(shop: Shop) -> None:
    shop.sql("CREATE TABLE t (id INT PRIMARY KEY, name TEXT)")
    for _ in range(2):
        shop.write(numbers(1, 2), commit="job", txn=("app", 1))
    shop.write(numbers(3), commit="job", txn=("app", 2))
    assert shop.rows("SELECT id FROM t ORDER BY id") == [("1",), ("2",), ("3",)]


def test_what_the_server_lacks_is_an_error_that_names_it(shop: Shop) -> None:
    shop.sql("CREATE TABLE t (id INT PRIMARY KEY, name TEXT)")
    with pytest.raises(ChannelError, match="does not support temporary tables"):
        shop.write(numbers(1), writeMode="upsert")
    assert shop.rows("SELECT id FROM t") == []
    assert shop.staged() == []
