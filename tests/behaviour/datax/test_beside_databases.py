"""The rows that DataX itself wrote, from and to databases.

The values come from runs of DataX (commit 60ea07b, OpenJDK 8u504, TZ=Asia/Shanghai) with the same jobs and tables.
"""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from spark_channel.connectors.base.feed import FeedOptions
from spark_channel.connectors.base.registry import load_reader
from spark_channel.errors import OptionError
from tests.datax.ran import ran
from tests.servers.mariadb import MariadbServer
from tests.servers.postgres import PostgresServer

Ask = Callable[[str], list[tuple[str, ...]]]


class End:
    """One database: what a job's `connection` needs, and how its tables are filled and read."""

    def __init__(self, kind: str, url: str, login: dict[str, str], ask: Ask) -> None:
        self.kind, self.url, self.login, self.ask = kind, url, login, ask

    def reads(self, table: str, **more: Any) -> dict[str, Any]:
        return self._half("reader", [self.url], table, more)

    def writes(self, table: str, **more: Any) -> dict[str, Any]:
        return self._half("writer", self.url, table, more)

    def _half(self, half: str, url: Any, table: str, more: dict[str, Any]) -> dict[str, Any]:
        connection = [{"jdbcUrl": url, "table": [table]}]
        parameter = {**self.login, "column": ["id", "v"], "connection": connection, **more}
        return {"name": f"{self.kind}{half}", "parameter": parameter}


@pytest.fixture
def shanghai(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Shanghai")


@pytest.fixture
def postgresql(postgres_server: PostgresServer) -> End:
    server = postgres_server

    def ask(text: str) -> list[tuple[str, ...]]:
        shown = server.psql(f"SET timezone = 'UTC'; {text}").splitlines()
        return [tuple(line.split("|")) for line in shown if line != "SET"]

    url = f"jdbc:postgresql://127.0.0.1:{server.port}/postgres"
    return End("postgresql", url, {"username": server.user, "password": server.password}, ask)


@pytest.fixture
def mysql(mariadb_server: MariadbServer) -> End:
    server = mariadb_server

    def ask(text: str) -> list[tuple[str, ...]]:
        shown = server.sql(text, database="shop")
        return [tuple(line.split("\t")) for line in shown.splitlines()]

    url = f"jdbc:mysql://127.0.0.1:{server.port}/shop"
    return End("mysql", url, {"username": server.user, "password": server.password}, ask)


@pytest.fixture
def sqlite(tmp_path: Path) -> End:
    def ask(text: str) -> list[tuple[str, ...]]:
        with closing(sqlite3.connect(tmp_path / "kept.db")) as base, base:
            rows = [base.execute(part).fetchall() for part in text.split(";") if part.strip()]
        return [tuple(map(str, row)) for row in rows[-1]]

    return End("sqlite", f"jdbc:sqlite:{tmp_path / 'kept.db'}", {}, ask)


def run(
    folder: Path, reader: dict[str, Any], writer: dict[str, Any], code: int = 0, **setting: Any
) -> dict[str, Any]:
    content = [{"reader": reader, "writer": writer}]
    job = {"setting": {"speed": {"channel": 1}, **setting}, "content": content}
    return ran(folder, {"job": job}, code=code)


def lines(folder: Path, reader: dict[str, Any]) -> list[str]:
    out = {"path": str(folder / "out"), "fileName": "o", "writeMode": "truncate"}
    run(folder, reader, {"name": "txtfilewriter", "parameter": {**out, "fieldDelimiter": "|"}})
    written = (folder / "out").glob("o__*")
    return sorted(line for path in written for line in path.read_text().splitlines())


def file(folder: Path, data: str, kind: str) -> dict[str, Any]:
    (folder / "in.csv").write_text(data)
    column = [{"index": 0, "type": "long"}, {"index": 1, "type": kind}]
    return {
        "name": "txtfilereader",
        "parameter": {"path": str(folder / "in.csv"), "fieldDelimiter": ",", "column": column},
    }


@pytest.mark.usefixtures("shanghai")
def test_sessions_of_postgresql_have_the_zone_of_the_machine(
    tmp_path: Path, postgresql: End
) -> None:
    postgresql.ask("DROP TABLE IF EXISTS zoned; CREATE TABLE zoned (id int, v timestamptz)")
    postgresql.ask("INSERT INTO zoned VALUES (1, '2024-01-31 10:00:05+00')")
    assert lines(tmp_path, postgresql.reads("zoned")) == ["1|2024-01-31 18:00:05"]
    written = file(tmp_path, "2,2024-01-31 18:00:06\n", "date")
    run(tmp_path, written, postgresql.writes("zoned"))
    shown = postgresql.ask("SELECT v FROM zoned ORDER BY id")
    assert shown == [("2024-01-31 10:00:05+00",), ("2024-01-31 10:00:06+00",)]


@pytest.mark.usefixtures("shanghai")
def test_a_job_that_sets_the_zone_keeps_it(tmp_path: Path, postgresql: End) -> None:
    postgresql.ask("DROP TABLE IF EXISTS zoned; CREATE TABLE zoned (id int, v timestamptz)")
    postgresql.ask("INSERT INTO zoned VALUES (1, '2024-01-31 10:00:05+00')")
    reader = postgresql.reads("zoned", session=["SET TIME ZONE 'Asia/Tokyo'"])
    assert lines(tmp_path, reader) == ["1|2024-01-31 19:00:05"]


@pytest.mark.parametrize("name", ["postgresql", "mysql", "sqlite"])
def test_a_duplicate_key_and_no_row_that_may_be_refused(
    tmp_path: Path, name: str, request: pytest.FixtureRequest
) -> None:
    end: End = request.getfixturevalue(name)
    end.ask("DROP TABLE IF EXISTS kept; CREATE TABLE kept (id int PRIMARY KEY, v varchar(9))")
    end.ask("INSERT INTO kept VALUES (2, 'old')" + ("" if name != "sqlite" else "; SELECT 1"))
    rows = file(tmp_path, "1,a\n2,b\n", "string")
    run(tmp_path, rows, end.writes("kept"), code=3, errorLimit={"record": 0})
    assert ("2", "old") in end.ask("SELECT id, v FROM kept ORDER BY id")


DIGITS = "1,12345678901234567.89\n2,0.1\n3,2.675\n4,-0\n"


@pytest.mark.parametrize(
    ("name", "declared", "expected"),
    [
        ("mysql", "decimal(20,2)", ["12345678901234567.89", "0.10", "2.68", "0.00"]),
        ("mysql", "varchar(30)", ["12345678901234567.89", "0.1", "2.675", "-0"]),
        ("postgresql", "numeric(20,2)", ["12345678901234567.89", "0.10", "2.68", "0.00"]),
        ("postgresql", "text", ["12345678901234567.89", "0.1", "2.675", "-0"]),
    ],
)
def test_the_digits_of_a_double_arrive(
    tmp_path: Path, name: str, declared: str, expected: list[str], request: pytest.FixtureRequest
) -> None:
    end: End = request.getfixturevalue(name)
    end.ask(f"DROP TABLE IF EXISTS digits; CREATE TABLE digits (id int, v {declared})")
    run(tmp_path, file(tmp_path, DIGITS, "double"), end.writes("digits"))
    assert [v for _, v in end.ask("SELECT id, v FROM digits ORDER BY id")] == expected


def test_whole_numbers_of_64_bits_without_a_sign(tmp_path: Path, mysql: End) -> None:
    mysql.ask("DROP TABLE IF EXISTS large; CREATE TABLE large (id int, v bigint unsigned)")
    run(tmp_path, file(tmp_path, "1,18446744073709551615\n2,5\n", "long"), mysql.writes("large"))
    assert mysql.ask("SELECT v FROM large ORDER BY id") == [("18446744073709551615",), ("5",)]


def test_a_float_that_has_no_such_digits_is_refused(tmp_path: Path, postgresql: End) -> None:
    postgresql.ask("DROP TABLE IF EXISTS far; CREATE TABLE far (id int, v float8)")
    report = run(
        tmp_path, file(tmp_path, "1,1E400\n2,1e300\n3,NaN\n", "double"), postgresql.writes("far")
    )
    assert report["rows_refused"] == 1
    assert postgresql.ask("SELECT v FROM far ORDER BY id") == [("1e+300",), ("NaN",)]


FLOATS = {
    "mysql": {
        "double": {"0": "0", "100": "100", "1e20": "1e20", "0.1": "0.1", "1e7": "10000000"},
        "double(6,2)": {"1.5": "1.50", "0": "0.00"},
        "float": {"0.1": "0.1", "1.5": "1.5"},
    },
    "postgresql": {
        "float8": {"0": "0", "100": "100", "1e20": "1e+20", "'NaN'": "NaN", "1e-7": "1e-07"},
        "real": {"0.1": "0.1", "16777216": "1.6777216e+07"},
    },
}


@pytest.mark.parametrize(
    ("name", "declared"), [(name, kind) for name, kinds in FLOATS.items() for kind in kinds]
)
def test_floats_become_the_texts_that_the_server_shows(
    tmp_path: Path, name: str, declared: str, request: pytest.FixtureRequest
) -> None:
    end: End = request.getfixturevalue(name)
    texts = FLOATS[name][declared]
    values = ", ".join(f"({number}, {value})" for number, value in enumerate(texts, 1))
    end.ask(f"DROP TABLE IF EXISTS shown; CREATE TABLE shown (id int, v {declared})")
    end.ask(f"INSERT INTO shown VALUES {values}")
    expected = [f"{number}|{text}" for number, text in enumerate(texts.values(), 1)]
    assert lines(tmp_path, end.reads("shown")) == expected
    end.ask("DROP TABLE IF EXISTS texts; CREATE TABLE texts (id int, v varchar(40))")
    run(tmp_path, end.reads("shown"), end.writes("texts"))
    assert ["|".join(row) for row in end.ask("SELECT id, v FROM texts ORDER BY id")] == expected


def test_a_double_with_digits_goes_into_one_with_digits(tmp_path: Path, mysql: End) -> None:
    for table in ("sized", "sized_too"):
        mysql.ask(f"DROP TABLE IF EXISTS {table}; CREATE TABLE {table} (id int, v double(6,2))")
    mysql.ask("INSERT INTO sized VALUES (1, 1.5), (2, 0)")
    run(tmp_path, mysql.reads("sized"), mysql.writes("sized_too"))
    assert mysql.ask("SELECT id, v FROM sized_too ORDER BY id") == [("1", "1.50"), ("2", "0.00")]


def test_a_reader_by_its_own_name_shows_floats(tmp_path: Path, postgresql: End) -> None:
    postgresql.ask("DROP TABLE IF EXISTS shown; CREATE TABLE shown (id int, v float8)")
    postgresql.ask("INSERT INTO shown VALUES (1, 100)")
    login = {"user": postgresql.login["username"], "password": postgresql.login["password"]}
    own = {"url": postgresql.url, "dbtable": "shown", **login}
    shown = {
        "name": "postgresql",
        "parameter": {**own, "floatsAs": "text", "timestampsAs": "local"},
    }
    assert lines(tmp_path, shown) == ["1|100"]


def test_a_log_has_no_shown_floats() -> None:
    more = {"dbtable": "t", "user": "u", "password": "p", "floatsAs": "text"}
    reader, _ = load_reader({"reader": "postgresql", "url": "postgresql://127.0.0.1:1/x", **more})
    with pytest.raises(OptionError, match="'floatsAs' got 'text'"):
        reader.feed(FeedOptions(slot="s", publication="p"))
    log = {"reader": "mysql", "url": "mysql://127.0.0.1:1/x", "binlog": "true"}
    reader, _ = load_reader({**log, **more})
    with pytest.raises(OptionError, match="'floatsAs' got 'text'"):
        reader.feed(FeedOptions())


def test_a_decimal_has_more_digits_than_arrow(tmp_path: Path, mysql: End) -> None:
    number = "1234567890123456789012345678901234567890.1200000000"
    mysql.ask("DROP TABLE IF EXISTS wide; CREATE TABLE wide (id int, v decimal(60,10))")
    rows = f"1,{number}\n2,abc\n3,0.5\n"
    report = run(tmp_path, file(tmp_path, rows, "string"), mysql.writes("wide"))
    assert report["rows_refused"] == 1
    assert lines(tmp_path, mysql.reads("wide")) == [f"1|{number}", "3|0.5000000000"]


def test_a_column_without_a_type_leaves_the_others_theirs(tmp_path: Path, mysql: End) -> None:
    mysql.ask("DROP TABLE IF EXISTS placed; CREATE TABLE placed (id int, v decimal(10,2), p point)")
    run(tmp_path, file(tmp_path, "1,1.50\n", "string"), mysql.writes("placed"))
    assert mysql.ask("SELECT id, v FROM placed") == [("1", "1.50")]
