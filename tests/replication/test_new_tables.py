"""Tables that a run makes: their keys, and what becomes of NOT NULL when the source drops it."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import spark_channel
from tests.servers.postgres import PostgresServer


def test_a_run_follows_a_source_that_drops_not_null_or_the_column(tmp_path: Path) -> None:
    source, target = tmp_path / "shop.db", tmp_path / "dw.db"

    def run(script: str) -> None:
        with closing(sqlite3.connect(source)) as shop:
            shop.executescript(script)
        file = {
            "source": {"path": str(source)},
            "target": {"path": str(target)},
            "streams": {"orders": {"object": "orders"}},
        }
        report = spark_channel.replicate(None, file)
        assert report.exit_code == 0, report

    def columns() -> list[Any]:
        with closing(sqlite3.connect(target)) as dw:
            return [(row[1], row[3], row[5]) for row in dw.execute("PRAGMA table_info(orders)")]

    make = "CREATE TABLE orders (id INT PRIMARY KEY NOT NULL, code TEXT{}, kind INT{});"
    run(make.format(" NOT NULL", " NOT NULL") + "INSERT INTO orders VALUES (1, 'a', 1);")
    assert columns() == [("id", 1, 1), ("code", 1, 0), ("kind", 1, 0)]
    run("DROP TABLE orders;" + make.format("", "") + "INSERT INTO orders VALUES (2, NULL, 2);")
    assert sorted(columns()) == [("code", 0, 0), ("id", 1, 1), ("kind", 0, 0)]
    with closing(sqlite3.connect(target)) as dw:
        assert dw.execute("SELECT id, code, kind FROM orders").fetchall() == [(2, None, 2)]


def test_small_tables_that_are_copied_together_have_keys(postgres_server: PostgresServer) -> None:
    tables = "".join(
        f"CREATE TABLE keyed.t{n} (a int, b text NOT NULL, c int, PRIMARY KEY (b, a));"
        f"INSERT INTO keyed.t{n} VALUES (1, 'x', NULL);"
        for n in range(3)
    )
    drop = "DROP SCHEMA IF EXISTS keyed, keyed_dw CASCADE;"
    postgres_server.psql(f"{drop} CREATE SCHEMA keyed; CREATE SCHEMA keyed_dw; {tables} ANALYZE")
    target = {**postgres_server.login, "currentSchema": "keyed_dw"}
    streams = {"keyed.*": {"object": "{table}"}}
    file = {"source": postgres_server.login, "target": target, "streams": streams}
    assert spark_channel.replicate(None, file).exit_code == 0
    for n in range(3):
        shown = postgres_server.rows(
            "SELECT pg_get_constraintdef(oid) FROM pg_constraint "
            f"WHERE conrelid = 'keyed_dw.t{n}'::regclass AND contype = 'p'"
        )
        assert shown == [("PRIMARY KEY (b, a)",)]
        for row in ("1, 'x', 5", "1, NULL, 5"):
            with pytest.raises(Exception, match=r"duplicate key|not-null"):
                postgres_server.psql(f"INSERT INTO keyed_dw.t{n} VALUES ({row})")
    postgres_server.psql(drop)
