"""`schema: full` of whole schemas. The database's own dump is the judge: it prints the same of both sides."""

import os
import re
import subprocess
from functools import partial
from typing import Any

import pytest

import spark_channel
from tests.replication.schemas import mysql, postgresql
from tests.servers.mariadb import PASSWORD, USER, MariadbServer
from tests.servers.postgres import PostgresServer, programs


def replicated(source: Any, target: Any, pattern: str) -> None:
    """Run twice: the second one replaces all rows, and leaves the definition as it is."""
    file = {
        "source": source,
        "target": target,
        "defaults": {"schema": "full", "object": "{table}"},
        "streams": {pattern: None},
    }
    for _ in range(2):
        report = spark_channel.replicate(None, file)
        assert report.exit_code == 0, report
        assert not any("without" in table.why for table in report.tables), report


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
    postgres_server: PostgresServer, name: str, request: pytest.FixtureRequest
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
    replicated(source, target, "shop.*")
    assert dumped(postgres_server, sides[1]) == dumped(postgres_server, sides[0])


@pytest.mark.full
@pytest.mark.parametrize("name", list(mysql.SCHEMAS))
def test_mariadb_dump_prints_the_same_of_a_copied_schema(
    mariadb_server: MariadbServer, name: str
) -> None:
    def dump(server_database: str) -> str:
        given = ["-h127.0.0.1", f"-P{mariadb_server.port}", f"-u{USER}", f"-p{PASSWORD}", "-d"]
        ledger = mariadb_server.sql(
            f"SELECT table_name FROM information_schema.tables WHERE table_schema = '{server_database}' "
            "AND table_name LIKE 'spark\\\\_channel%'"
        )
        ignored = [f"--ignore-table={server_database}.{table}" for table in ledger.split()]
        done = subprocess.run(
            ["mariadb-dump", *given, "--skip-comments", *ignored, server_database],
            check=True,
            capture_output=True,
            text=True,
        )
        return re.sub(r"AUTO_INCREMENT=\d+ ", "", done.stdout)

    mariadb_server.sql(f"CREATE DATABASE `{name}_into`; CREATE DATABASE shop_{name}")
    mariadb_server.sql(mysql.SCHEMAS[name], database=f"shop_{name}")
    place = mariadb_server.url.rpartition("/")[0]
    source, target = (
        {**mariadb_server.login, "url": f"{place}/{database}"}
        for database in (f"shop_{name}", f"{name}_into")
    )
    replicated(source, target, "*")
    assert dump(f"{name}_into") == dump(f"shop_{name}")
    mariadb_server.sql(f"DROP DATABASE `{name}_into`; DROP DATABASE shop_{name}")
