"""Defaults and checks that a copy carries into another system: both servers are given the same rows, and compared.

What the source's own program shows for a row without values, and which values it refuses, the copy's must do likewise.
"""

import itertools
import sqlite3
import uuid
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pytest

import spark_channel
from tests.servers.mariadb import MariadbServer, MysqlServer
from tests.servers.postgres import PostgresServer

_ZONE = timedelta(hours=9)
TYPES: Mapping[str, Mapping[str, str]] = {
    "postgresql": {"local": "timestamp", "instant": "timestamptz", "double": "double precision"},
    "mysql": {"local": "datetime(6)", "instant": "timestamp(6) NULL", "double": "double"},
    "sqlite": {"local": "TIMESTAMP", "instant": "TIMESTAMPTZ", "double": "DOUBLE"},
    "duckdb": {"local": "TIMESTAMP", "instant": "TIMESTAMPTZ", "double": "DOUBLE"},
}
CONSTANTS: Mapping[str, tuple[Any, ...]] = {
    "whole": ("bigint", "-5", Decimal(-5)),
    "share": ("decimal(10,2)", "1.50", Decimal("1.5")),
    "measure": ("{double}", "0.25", Decimal("0.25")),
    "word": ("varchar(20)", "'it''s, \"é\"'", 'it\'s, "é"'),
    "blank": ("varchar(20)", "''", ""),
    "flag": ("boolean", "true", True),
    "leap": ("date", "'2020-02-29'", date(2020, 2, 29)),
    "moment": ("{local}", "'2020-01-02 03:04:05'", datetime(2020, 1, 2, 3, 4, 5)),
}
CURRENT: Mapping[str, Mapping[str, tuple[Any, ...]]] = {
    "postgresql": {
        "now_local": ("{local}", "now()"),
        "now_instant": ("{instant}", "CURRENT_TIMESTAMP"),
        "now_utc": ("{local}", "(now() AT TIME ZONE 'utc')"),
    },
    "mysql": {
        "now_local": ("{local}", "CURRENT_TIMESTAMP(6)"),
        "now_instant": ("{instant}", "CURRENT_TIMESTAMP(6)"),
        "now_utc": ("{local}", "(UTC_TIMESTAMP(6))"),
        "now_second": ("timestamp NULL", "CURRENT_TIMESTAMP"),
    },
    "sqlite": {"now_utc": ("{local}", "CURRENT_TIMESTAMP")},
    "duckdb": {"now_instant": ("{instant}", "now()")},
}
NOT_CURRENT = {"now_local": {"sqlite", "duckdb"}}
"""Systems that have no such."""
CHECKS = {
    "above": ("int", "above > 0 AND above <= 10", ["0", "1", "10", "11", "NULL"]),
    "one_of": ("int", "one_of IN (1, 2, 30)", ["1", "2", "3", "30", "NULL"]),
    "none_of": ("int", "none_of NOT IN (1, 2)", ["0", "1", "2", "NULL"]),
    "between": ("int", "between_ BETWEEN -3 AND 3", ["-4", "-3", "3", "4"]),
    "price": ("decimal(10,2)", "price >= 0.50", ["0.49", "0.50", "7", "NULL"]),
    "ratio": ("{double}", "ratio < 0.1 OR ratio >= 2", ["0.09", "0.1", "1.9", "2", "-1"]),
    "known": ("int", "known IS NOT NULL", ["NULL", "0"]),
    "missing": ("int", "missing IS NULL OR missing = 4", ["NULL", "0", "4"]),
    "either": ("int", "NOT (either = 3 OR either <> 7 AND either < 5)", ["3", "4", "5", "7", "8", "NULL"]),
    "truth": ("boolean", "truth = true", ["true", "false", "NULL"]),
    "born": ("date", "born >= '2000-01-01'", ["'1999-12-31'", "'2000-01-01'", "NULL"]),
    "begun": (
        "{local}",
        "begun < '2000-01-01 12:00:00'",
        ["'2000-01-01 11:59:59'", "'2000-01-01 12:00:00'"],
    ),
    "code": ("varchar(9)", "code IN ('x', 'yz')", ["'x'", "'X'", "'x '", "'yz'", "''", "NULL"]),
    "other": ("varchar(9)", "other <> ''", ["''", "' '", "'a'", "NULL"]),
}  # fmt: skip
_TEXTS, _TIMES = {"code", "other"}, {"born", "begun"}


def not_carried(source: str, target: str) -> set[str]:
    """The columns of `CHECKS` whose checks the copy has not."""
    return (_TEXTS if source == "mysql" else set()) | (
        _TIMES if "sqlite" in (source, target) else set()
    )


def _made(system: str) -> str:
    types = TYPES[system]
    lines = ["id int PRIMARY KEY"]
    for name, (declared, text, *_) in {**CONSTANTS, **CURRENT[system]}.items():
        lines.append(f"{name} {declared.format(**types)} DEFAULT {text}")
    for name, (declared, condition, _) in CHECKS.items():
        column = f"{name}_" if name == "between" else name
        lines.append(f"{column} {declared.format(**types)} CHECK ({condition})")
    return f"CREATE TABLE probe ({', '.join(lines)})"


class End:
    """A database, by its own program: `run` returns rows as texts or values, and raises what it refuses."""

    def __init__(
        self, system: str, login: Mapping[str, Any], run: Callable[[str], list[tuple[Any, ...]]]
    ) -> None:
        self.system, self.login, self.run = system, login, run

    def refuses(self, statement: str) -> bool:
        try:
            self.run(statement)
        except (RuntimeError, sqlite3.Error, duckdb.Error):
            return True
        return False


class Ends:
    """A source with the probe table, and an empty target, of any systems."""

    def __init__(self, pg: PostgresServer, mysql: MariadbServer, folder: Path) -> None:
        self._pg, self._mysql, self._folder = pg, mysql, folder

        self.is_mysql = isinstance(mysql, MysqlServer)

    def end(self, system: str) -> End:
        """An empty database."""
        name = f"portable_{uuid.uuid4().hex[:12]}"
        if system == "postgresql":
            self._pg.psql(f"CREATE SCHEMA {name}")
            before = f"SET search_path = {name}; SET TimeZone = 'Asia/Tokyo'; "
            return End(
                system,
                {**self._pg.login, "currentSchema": name},
                lambda sql: [tuple(x.split("|")) for x in self._pg.psql(before + sql).split("\n")],
            )
        if system == "mysql":
            self._mysql.sql(f"CREATE DATABASE {name}")
            url = f"{self._mysql.url.rpartition('/')[0]}/{name}"
            return End(
                system,
                {**self._mysql.login, "url": url},
                lambda sql: [
                    tuple(x.split("\t"))
                    for x in self._mysql.sql(
                        f"SET time_zone = '+09:00'; {sql}", database=name
                    ).split("\n")
                ],
            )
        path = self._folder / f"{name}.{system}"
        connect: Any = sqlite3.connect if system == "sqlite" else duckdb.connect

        def run(sql: str) -> list[tuple[Any, ...]]:
            session = connect(str(path))
            try:
                if system == "duckdb":
                    session.execute("SET TimeZone = 'Asia/Tokyo'")
                found: list[tuple[Any, ...]] = session.execute(sql).fetchall()
                session.commit()
            finally:
                session.close()
            return found

        return End(system, {"url": f"{system}:{path}"}, run)


@pytest.fixture(scope="module", params=[MariadbServer, MysqlServer])
def ends(
    request: pytest.FixtureRequest,
    postgres_server: PostgresServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Ends]:
    server = request.param.create()
    try:
        yield Ends(postgres_server, server, tmp_path_factory.mktemp("portable"))
    finally:
        server.close()


def _value(found: Any, like: Any) -> Any:
    """What a program shows, as the value that it means."""
    if isinstance(like, bool):
        return str(found).lower() in ("t", "true", "1")
    if isinstance(like, Decimal):
        return Decimal(str(found))
    if isinstance(like, datetime):
        return datetime.fromisoformat(str(found).rstrip("Z"))
    return date.fromisoformat(str(found)) if isinstance(like, date) else found


def _epoch(end: End, column: str) -> float:
    asked = {
        "postgresql": f"extract(epoch FROM {column})",
        "mysql": f"UNIX_TIMESTAMP({column})",
        "sqlite": f"strftime('%s', {column})",
        "duckdb": f"epoch({column})",
    }[end.system]
    return float(end.run(f"SELECT {asked} FROM probe WHERE id = 1")[0][0])


@pytest.mark.full
@pytest.mark.parametrize(
    ("source", "target"), [each for each in itertools.product(TYPES, TYPES) if each[0] != each[1]]
)
def test_both_systems_fill_and_refuse_the_same(ends: Ends, source: str, target: str) -> None:
    if ends.is_mysql and "mysql" not in (source, target):
        pytest.skip("MariaDB's run has these systems")
    one, other = ends.end(source), ends.end(target)
    one.run(_made(source))
    target_options = {**other.login, "dbtable": "probe", "createTable": "full"}
    report = spark_channel.transfer(None, {**one.login, "dbtable": "probe"}, target_options)
    lacks = " ".join(report.left_out)
    current = {name for name in CURRENT[source] if target not in NOT_CURRENT.get(name, ())}
    for name in {*CONSTANTS, *CURRENT[source]}:
        assert (f"default of {name}:" in lacks) is (name in CURRENT[source].keys() - current), name
    one.run("INSERT INTO probe (id, known) VALUES (1, 1)")
    other.run("INSERT INTO probe (id, known) VALUES (1, 1)")
    for name, (_, _, like) in CONSTANTS.items():
        for end in (one, other):
            ((found,),) = end.run(f"SELECT {name} FROM probe WHERE id = 1")
            assert _value(found, like) == like, (end.system, name)
    now = datetime.now(UTC)
    for name in current:
        for end in (one, other):
            if name in ("now_instant", "now_second"):
                assert abs(_epoch(end, name) - now.timestamp()) < 60, (end.system, name)
                continue
            ((found,),) = end.run(f"SELECT {name} FROM probe WHERE id = 1")
            shown = datetime.fromisoformat(str(found)).replace(tzinfo=UTC)
            wanted = now if name == "now_utc" else now + _ZONE
            assert abs(shown - wanted) < timedelta(seconds=60), (end.system, name)
    if "now_second" in current:
        assert _epoch(other, "now_second") % 1 == 0
    number = 1
    for name, (_, _, values) in CHECKS.items():
        column = f"{name}_" if name == "between" else name
        without = name in not_carried(source, target)
        seen = []
        for value in values:
            number += 1
            names, given = ("id, known", f"{number}, 1")
            if name == "known":
                names, given = "id", f"{number}"
            statement = f"INSERT INTO probe ({names}, {column}) VALUES ({given}, {value})"
            seen.append((value, one.refuses(statement), other.refuses(statement)))
        assert any(refused for _, refused, _ in seen), name
        assert not all(refused for _, refused, _ in seen), name
        if without:
            assert not any(refused for _, _, refused in seen), (name, seen)
        else:
            assert [each[1] for each in seen] == [each[2] for each in seen], (name, seen)
    checks = [each for each in report.left_out if each.startswith("check ")]
    assert len(checks) == len(not_carried(source, target)), checks


@pytest.mark.full
@pytest.mark.parametrize("target", ["mysql", "duckdb"])
def test_constants_of_more_than_28_digits_are_exact(ends: Ends, target: str) -> None:
    """So many the usual arithmetic of decimals rounds to."""
    if ends.is_mysql and target != "mysql":
        pytest.skip("MariaDB's run has this system")
    one, other = ends.end("postgresql"), ends.end(target)
    far = "-12345678901234567890123456789012345678"
    one.run(
        f"CREATE TABLE probe (id int PRIMARY KEY, a numeric(38,28) DEFAULT 1 CHECK (a < 5), "
        f"b numeric(38,0) DEFAULT {far}, c double precision DEFAULT -1.5)"
    )
    wanted = {**other.login, "dbtable": "probe", "createTable": "full"}
    report = spark_channel.transfer(None, {**one.login, "dbtable": "probe"}, wanted)
    assert report.left_out == ()
    other.run("INSERT INTO probe (id) VALUES (1)")
    ((a, b, c),) = other.run("SELECT a, b, c FROM probe")
    assert (Decimal(a), Decimal(b), Decimal(c)) == (Decimal(1), Decimal(far), Decimal("-1.5"))
    assert other.refuses("INSERT INTO probe (id, a) VALUES (2, 5)")


LONG = {
    "wide": ("decimal(38,18)", "100000000000"),
    "every": ("decimal(38,18)", "-12345678901234567890.123456789012345678"),
    "shorter": ("decimal(38,10)", "1.2300000000000000000000000000000000"),
    "whole": ("decimal(38,0)", "99999999999999999999999999999999999999"),
    "measure": ("double", "1e9999999"),
}


@pytest.mark.parametrize(
    ("source", "target", "lacks"),
    [("duckdb", "sqlite", set()), ("sqlite", "duckdb", {"every", "whole", "measure"})],
)
def test_a_number_keeps_more_digits_than_python_s_own_context_has(
    tmp_path: Path, source: str, target: str, lacks: set[str]
) -> None:
    """But for those of which SQLite makes a double."""
    own = {
        name: text for name, (_, text) in LONG.items() if source == "sqlite" or name != "measure"
    }
    lines = [f"{name} {LONG[name][0]} DEFAULT {text}" for name, text in own.items()]
    if source == "sqlite":  # which has such numbers as texts
        lines = [each.replace("decimal", "DECIMAL_TEXT") for each in lines]
    connect: Any = {"duckdb": duckdb.connect, "sqlite": sqlite3.connect}
    session = connect[source](str(tmp_path / source))
    session.execute(f"CREATE TABLE probe (id int NOT NULL PRIMARY KEY, {', '.join(lines)})")
    names = ["id", *lacks]
    ones = ", ".join("1" for _ in names)
    session.execute(f"INSERT INTO probe ({', '.join(names)}) VALUES ({ones})")
    session.commit()
    session.close()
    report = spark_channel.transfer(
        None,
        {"url": f"{source}:{tmp_path}/{source}", "dbtable": "probe"},
        {"url": f"{target}:{tmp_path}/{target}", "dbtable": "probe", "createTable": "full"},
    )
    assert {each.partition(":")[0] for each in report.left_out} == {
        f"default of {name}" for name in lacks
    }
    session = connect[target](str(tmp_path / target))
    session.execute("INSERT INTO probe (id) VALUES (2)")
    for name in own.keys() - lacks:
        found = session.execute(f"SELECT {name} FROM probe").fetchall()
        assert [Decimal(value) for (value,) in found] == [Decimal(own[name])] * 2, name
    session.close()


@pytest.mark.full
def test_a_check_of_a_column_that_mysql_itself_changes_is_left_out_by_name(
    ends: Ends, caplog: pytest.LogCaptureFixture
) -> None:
    """A numbered one, and one that a foreign key changes: both servers refuse them."""
    numbered = "MySQL checks no column with AUTO_INCREMENT"
    made = {
        "sqlite": "id INTEGER PRIMARY KEY AUTOINCREMENT CHECK (id > 0), n int CHECK (n > 0 OR n = -3)",
        "postgresql": "id serial PRIMARY KEY CHECK (id > 0), n int CHECK (n > 0 OR n = -3)",
    }
    for source, columns in made.items():
        one, other = ends.end(source), ends.end("mysql")
        one.run(f"CREATE TABLE probe ({columns})")
        one.run("INSERT INTO probe (n) VALUES (1)")
        target = {**other.login, "dbtable": "probe", "createTable": "full"}
        report = spark_channel.transfer(None, {**one.login, "dbtable": "probe"}, target)
        checks = [each for each in report.left_out if each.startswith("check ")]
        assert len(checks) == 1, report.left_out
        assert checks[0].endswith(f": {numbered}")
        assert other.refuses("INSERT INTO probe (n) VALUES (0)")
        other.run("INSERT INTO probe (n) VALUES (-3)")
        assert other.run("SELECT id, n FROM probe ORDER BY id") == [("1", "1"), ("2", "-3")]
    one, other = ends.end("postgresql"), ends.end("mysql")
    one.run(
        "CREATE TABLE par (id int PRIMARY KEY); INSERT INTO par VALUES (1); "
        "CREATE TABLE chi (id int PRIMARY KEY, "
        "f int CONSTRAINT nulled REFERENCES par ON DELETE SET NULL CHECK (f > 0), "
        "c int CONSTRAINT gone REFERENCES par ON DELETE CASCADE CHECK (c > 0), "
        "u int CONSTRAINT moved REFERENCES par ON UPDATE CASCADE CHECK (u > 0)); "
        "INSERT INTO chi VALUES (1, 1, NULL, 1), (2, NULL, 1, NULL)"
    )
    schema = one.login["currentSchema"]
    copied = spark_channel.replicate(
        None,
        {
            "source": one.login,
            "target": other.login,
            "streams": {f"{schema}.*": {"object": "{table}", "schema": "full"}},
        },
    )
    assert copied.exit_code == 0, copied
    said = caplog.text
    for column, key in (("f", "nulled"), ("u", "moved")):
        assert (
            f"check chi_{column}_check: MySQL checks no column that foreign key {key} changes"
            in said
        )
    assert "chi_c_check" not in said
    shown = str(other.run("SHOW CREATE TABLE chi"))
    assert all(f"CONSTRAINT `{key}` FOREIGN KEY" in shown for key in ("nulled", "gone", "moved"))
    assert other.refuses("INSERT INTO chi (id, c) VALUES (3, 0)")
    other.run("UPDATE chi SET u = NULL, c = NULL; DELETE FROM par")
    assert other.run("SELECT id, f FROM chi ORDER BY id") == [("1", "NULL"), ("2", "NULL")]
