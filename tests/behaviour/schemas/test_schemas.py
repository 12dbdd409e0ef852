"""`schema: full` of whole schemas. The database's own dump is the judge: it prints the same of both sides.

Each table is also verified and repaired, with no key named.
"""

import json
import os
import re
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import pytest

import spark_channel
from tests.cli.typed import typed
from tests.replication.schemas import duckdb as of_duckdb
from tests.replication.schemas import mysql, postgresql
from tests.replication.schemas import sqlite as of_sqlite
from tests.servers.mariadb import PASSWORD, USER, MariadbServer, MysqlServer
from tests.servers.postgres import PostgresServer, programs

_OWN = "table_name LIKE 'spark_channel%'"
_DUCKDB_SHOWS = (
    f"SELECT table_name, sql, comment FROM duckdb_tables() WHERE NOT {_OWN} ORDER BY ALL",
    f"SELECT table_name, column_name, comment FROM duckdb_columns() WHERE NOT internal AND NOT {_OWN} ORDER BY ALL",
    f"SELECT index_name, sql, comment FROM duckdb_indexes() WHERE NOT {_OWN} ORDER BY ALL",
    "SELECT sequence_name, increment_by, cycle FROM duckdb_sequences() ORDER BY ALL",
)


def replicated(source: Any, target: Any, pattern: str) -> dict[str, Any]:
    """Run twice: the second one replaces all rows, and leaves the definition as it is. Returns the file."""
    file = {
        "source": source,
        "target": target,
        "defaults": {"schema": "full", "object": "{table}"},
        "streams": {pattern: {}},
    }
    for _ in range(2):
        report = spark_channel.replicate(None, file)
        assert report.exit_code == 0, report
        assert not any("without" in table.why for table in report.tables), report
    return file


def repaired(
    file: Any,
    folder: Path,
    tables: list[str],
    empty: Callable[[str], object],
    prefix: str = "",
) -> None:
    """Take the rows of each table in turn: `verify --repair` writes them again."""
    path = folder / "shop.yml"
    path.write_text(json.dumps(file))  # which is YAML, too
    assert tables
    for table in tables:
        empty(table)
        given = ("--repair", "--confirm", "0", "--select", f"{prefix}{table}")
        said = typed("verify", str(path), *given)
        assert said.exit_code == 0, (table, said.output)
    said = typed("verify", str(path), "--confirm", "0")
    assert said.exit_code == 0, said.output


def dumped(server: PostgresServer, database: str) -> list[str]:
    """What pg_dump prints of the schema, but for the ledger, as lines."""
    login = server.login["url"].rpartition("/")[0]
    url = f"{login}/{database}?user={server.login['user']}"
    given = ["-s", "-O", "-n", "shop", "-T", "shop.spark_channel*", "-d", url]
    password = {"PGPASSWORD": str(server.login.get("password", ""))}
    done = subprocess.run(
        [str(programs() / "pg_dump"), *given],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, **password},
    )
    return [line for line in done.stdout.split("\n") if line and not line.startswith(("--", "\\"))]


@pytest.mark.full
@pytest.mark.parametrize("name", list(postgresql.SCHEMAS))
def test_pg_dump_prints_the_same_of_a_copied_schema(
    postgres_server: PostgresServer, name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    sides = f"{name}_from", f"{name}_into"
    for database in sides:
        postgres_server.psql(f"CREATE DATABASE {database}")
        drop = partial(postgres_server.psql, f"DROP DATABASE {database} WITH (FORCE)")
        request.addfinalizer(drop)
        head = "CREATE SCHEMA shop; SET search_path = shop;"
        postgres_server.psql(head + postgresql.TYPES, database=database)
    head = "SET search_path = shop;"
    postgres_server.psql(head + postgresql.SCHEMAS[name] + "ANALYZE;", database=sides[0])
    place, _, _ = postgres_server.login["url"].rpartition("/")
    source, target = (
        {**postgres_server.login, "url": f"{place}/{database}", "currentSchema": "shop"}
        for database in sides
    )
    file = replicated(source, target, "shop.*")
    assert dumped(postgres_server, sides[1]) == dumped(postgres_server, sides[0])
    names = postgres_server.psql(
        "SELECT tablename FROM pg_tables WHERE schemaname = 'shop'", database=sides[0]
    )

    def empty(table: str) -> None:
        others = "SET session_replication_role = replica"
        postgres_server.psql(f'{others}; DELETE FROM shop."{table}"', database=sides[1])

    repaired(file, tmp_path, names.split(), empty, "shop.")
    assert dumped(postgres_server, sides[1]) == dumped(postgres_server, sides[0])


@pytest.fixture(scope="module", params=[MariadbServer, MysqlServer])
def of_mysql(request: pytest.FixtureRequest) -> Iterator[MariadbServer]:
    made: MariadbServer = request.param.create()
    yield made
    made.close()


@pytest.mark.full
@pytest.mark.parametrize("name", list(mysql.SCHEMAS))
def test_a_server_shows_the_same_of_a_copied_schema(
    of_mysql: MariadbServer, name: str, tmp_path: Path
) -> None:
    into, shop = f"{name}_into", f"shop_{name}"
    of_mysql.sql(f"CREATE DATABASE `{into}`; CREATE DATABASE {shop}")
    of_mysql.sql(mysql.SCHEMAS[name], database=shop)
    names = of_mysql.sql(
        f"SELECT table_name FROM information_schema.tables WHERE table_schema = '{shop}'"
    ).split()

    def shown(database: str) -> dict[str, str]:
        created = (of_mysql.sql(f"SHOW CREATE TABLE `{each}`", database=database) for each in names)
        return {
            each: re.sub(r"AUTO_INCREMENT=\d+ ", "", made)
            for each, made in zip(names, created, strict=True)
        }

    def dump(database: str) -> str:
        given = ["-h127.0.0.1", f"-P{of_mysql.port}", f"-u{USER}", f"-p{PASSWORD}", "-d"]
        done = subprocess.run(
            ["mariadb-dump", *given, "--skip-comments", database, *sorted(names)],
            check=True,
            capture_output=True,
            text=True,
        )
        return re.sub(r"AUTO_INCREMENT=\d+ ", "", done.stdout)

    def empty(table: str) -> None:
        of_mysql.sql(f"SET foreign_key_checks = 0; DELETE FROM `{table}`", database=into)

    show = dump if type(of_mysql) is MariadbServer else shown
    place = of_mysql.url.rpartition("/")[0]
    source, target = ({**of_mysql.login, "url": f"{place}/{each}"} for each in (shop, into))
    file = replicated(source, target, "*")
    assert show(into) == show(shop)
    repaired(file, tmp_path, names, empty, f"{shop}.")
    assert show(into) == show(shop)
    of_mysql.sql(f"DROP DATABASE `{into}`; DROP DATABASE {shop}")


@pytest.mark.full
@pytest.mark.parametrize("name", list(of_sqlite.SCHEMAS))
def test_sqlite_shows_the_same_of_a_copied_schema(name: str, tmp_path: Path) -> None:
    places = [tmp_path / "shop.db", tmp_path / "into.db"]
    with closing(sqlite3.connect(places[0])) as shop:
        shop.executescript(of_sqlite.SCHEMAS[name])

    def shown(place: Path) -> list[Any]:
        with closing(sqlite3.connect(place)) as file:
            rows = file.execute(
                "SELECT type, name, sql FROM sqlite_master WHERE name NOT LIKE 'spark_channel%' ORDER BY 1, 2"
            ).fetchall()
        # The names of tables and indexes are quoted in another way.
        return [(kind, name, re.sub(r'["\[\]]', "", sql or "")) for kind, name, sql in rows]

    def empty(table: str) -> None:
        with closing(sqlite3.connect(places[1])) as file, file:
            quoted = table.replace('"', '""')
            file.execute(f'DELETE FROM "{quoted}"')

    file = replicated({"path": str(places[0])}, {"path": str(places[1])}, "*")
    assert shown(places[1]) == shown(places[0])
    names = [
        name
        for kind, name, _ in shown(places[0])
        if kind == "table" and not name.startswith("sqlite_")
    ]
    repaired(file, tmp_path, names, empty)
    assert shown(places[1]) == shown(places[0])


@pytest.mark.full
@pytest.mark.parametrize("name", list(of_duckdb.SCHEMAS))
def test_duckdb_shows_the_same_of_a_copied_schema(name: str, tmp_path: Path) -> None:
    places = [tmp_path / "shop.duckdb", tmp_path / "into.duckdb"]
    with duckdb.connect(str(places[0])) as shop:
        shop.execute(of_duckdb.SCHEMAS[name])

    def shown(place: Path) -> list[Any]:
        with duckdb.connect(str(place), read_only=True) as file:
            return [file.execute(sql).fetchall() for sql in _DUCKDB_SHOWS]

    def empty(table: str) -> None:
        with duckdb.connect(str(places[1])) as file:
            file.execute(f"DELETE FROM {table}")

    file = replicated({"path": str(places[0])}, {"path": str(places[1])}, "*")
    assert shown(places[1]) == shown(places[0])
    with duckdb.connect(str(places[0]), read_only=True) as shop:
        names = [
            name for (name,) in shop.execute("SELECT table_name FROM duckdb_tables()").fetchall()
        ]
    repaired(file, tmp_path, names, empty, "main.")
    assert shown(places[1]) == shown(places[0])
