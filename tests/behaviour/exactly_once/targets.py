"""Real targets under the protocol: how each is written, looked at, and emptied between two schedules."""

import shutil
import sqlite3
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_channel.connectors import Writer, load_writer
from tests.behaviour.third_party import install
from tests.connectors.files.helpers import leftovers, read
from tests.servers.firebird import FirebirdServer
from tests.servers.mariadb import MariadbServer, MysqlServer
from tests.servers.postgres import PostgresServer

__all__ = ["KINDS", "LAKES", "OTHER_DRIVERS", "Target", "open_target"]

KINDS = ["sqlite", "duckdb", "postgresql", "mysql", "adbc", "firebird"]
OTHER_DRIVERS = ["mysql_of_oracle", "adbc_sqlite"]
"""Servers and drivers beside those of `KINDS`, under the same connectors."""
LAKES = ["delta", "iceberg"]
"""Tables without SQL: `sql` is for the rest."""
_CREATE = "CREATE TABLE t (id BIGINT NOT NULL)"


@dataclass
class Target:
    """`sql` runs a statement as an independent client; its rows as text. `staged` is what staging holds.

    `end_sessions` has the server end every session of a writer; None = no server.
    """

    kind: str
    options: dict[str, Any]
    sql: Callable[[str], list[tuple[str, ...]]]
    staged: Callable[[], list[str]]
    reset: Callable[[bool], None]
    schema: str = ""
    end_sessions: Callable[[], object] | None = None
    ids: Callable[[], list[int]] | None = None
    staged_by_killed: Callable[[], list[str]] | None = None
    """`staged` where processes are killed; None = the same."""

    def writer(self, **more: Any) -> Writer:
        return load_writer({**self.options, **more})[0]

    def seen(self) -> Counter[int]:
        try:
            if self.ids is not None:
                return Counter(self.ids())
            return Counter(int(each) for (each,) in self.sql("SELECT id FROM t"))
        except MissingTableError:
            return Counter()

    @property
    def claims(self) -> str:
        return f"{self.schema}spark_channel_claims"


class MissingTableError(Exception):
    pass


def open_target(kind: str, request: pytest.FixtureRequest, path: Path) -> Iterator[Target]:
    if kind == "parquet":
        yield _parquet(path / "out")
    elif kind == "sqlite":
        yield _sqlite(path / "shop.db")
    elif kind == "duckdb":
        yield _duckdb(path / "shop.duckdb")
    elif kind in ("postgresql", "adbc"):
        server: PostgresServer = request.getfixturevalue("postgres_server")
        yield _postgresql(server, kind)
        server.psql("SET client_min_messages = error; DROP SCHEMA IF EXISTS protocol CASCADE")
    elif kind == "delta":
        yield _delta(path / "t")
    elif kind == "iceberg":
        yield from _iceberg(path)
    elif kind == "firebird":
        pytest.importorskip("firebird.driver", reason="the driver of the tests' own connector")
        install()
        firebird: FirebirdServer = request.getfixturevalue("firebird_server")
        name = f"p{uuid.uuid4().hex[:12]}"  # a file under a name that the server still holds would be overwritten
        firebird.create_database(name)
        yield _firebird(firebird, name)
        firebird.drop_database(name)
    elif kind == "adbc_sqlite":
        yield _adbc_sqlite(path / "shop.db")
    elif kind == "mysql_of_oracle":
        with closing(MysqlServer.create()) as oracle:
            yield _mysql(oracle)
    else:
        shop: MariadbServer = request.getfixturevalue("mariadb_server")
        yield _mysql(shop)
        shop.sql("DROP DATABASE IF EXISTS protocol")


def _parquet(path: Path) -> Target:
    """A folder, which has no tables of claims: `sql` reads its ids."""

    def sql(_statement: str) -> list[tuple[str, ...]]:
        if not any(path.glob("*")):
            return []
        return [(str(each),) for each in read("parquet", path).column("id").to_pylist()]

    def reset(_there: bool) -> None:
        shutil.rmtree(path, ignore_errors=True)

    options = {"writer": "parquet", "path": str(path)}
    return Target("parquet", options, sql, lambda: leftovers(path), reset)


def _sqlite(path: Path) -> Target:
    def sql(statement: str) -> list[tuple[str, ...]]:
        if not path.exists():
            raise MissingTableError
        with closing(sqlite3.connect(path, timeout=60)) as connection, connection:
            try:
                return [tuple(map(str, row)) for row in connection.execute(statement)]
            except sqlite3.OperationalError as error:
                raise MissingTableError from error

    def reset(there: bool) -> None:
        for each in path.parent.iterdir():
            shutil.rmtree(each) if each.is_dir() else each.unlink()
        if there:
            path.touch()
            sql(_CREATE)

    options = {"path": str(path), "dbtable": "t"}
    return Target("sqlite", options, sql, lambda: _beside(path), reset)


def _adbc_sqlite(path: Path) -> Target:
    """Its rows are staged in tables of the file."""
    pytest.importorskip("adbc_driver_sqlite")
    target = _sqlite(path)
    options = {"writer": "adbc", "driver": "sqlite", "uri": str(path), "dbtable": "t"}

    def staged() -> list[str]:
        stages = "type = 'table' AND name LIKE 'spark\\_channel\\_stage%' ESCAPE '\\'"
        return [name for (name,) in target.sql(f"SELECT name FROM sqlite_master WHERE {stages}")]

    return replace(target, kind="adbc_sqlite", options=options, staged=staged)


def _duckdb(path: Path) -> Target:
    import duckdb

    def sql(statement: str) -> list[tuple[str, ...]]:
        if not path.exists():
            raise MissingTableError
        with duckdb.connect(str(path)) as connection:
            try:
                return [tuple(map(str, row)) for row in connection.execute(statement).fetchall()]
            except duckdb.CatalogException as error:
                raise MissingTableError from error

    def reset(there: bool) -> None:
        for each in path.parent.iterdir():
            shutil.rmtree(each) if each.is_dir() else each.unlink()
        if there:
            with duckdb.connect(str(path)) as connection:
                connection.execute(_CREATE)

    options = {"writer": "duckdb", "path": str(path), "dbtable": "t"}
    return Target("duckdb", options, sql, lambda: _beside(path), reset)


def _postgresql(server: PostgresServer, kind: str) -> Target:
    def sql(statement: str) -> list[tuple[str, ...]]:
        if (
            "FROM t" in statement
            and server.psql("SELECT to_regclass('protocol.t') IS NOT NULL") != "t"
        ):
            raise MissingTableError
        found = server.psql(f"SET search_path = protocol; {statement}")
        return [tuple(line.split("|")) for line in found.splitlines()]

    def reset(there: bool) -> None:
        server.psql(
            "SET client_min_messages = error; DROP SCHEMA IF EXISTS protocol CASCADE; CREATE SCHEMA protocol"
            + (f"; SET search_path = protocol; {_CREATE}" if there else "")
        )

    def staged() -> list[str]:
        stages = "schemaname = 'protocol' AND tablename LIKE 'spark_channel_stage%'"
        return server.psql(f"SELECT tablename FROM pg_tables WHERE {stages}").split()

    if kind == "adbc":
        uri = server.url.replace("//", f"//{server.user}:{server.password}@")
        options = {"writer": "adbc", "driver": "postgresql", "uri": uri, "dbtable": "protocol.t"}
    else:
        options = {**server.login, "currentschema": "protocol", "dbtable": "t"}

    def end_sessions() -> None:
        server.psql(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
            "WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
        )

    return Target(kind, options, sql, staged, reset, "protocol.", end_sessions)


def _mysql(server: MariadbServer) -> Target:
    def sql(statement: str) -> list[tuple[str, ...]]:
        if (
            "FROM t" in statement
            and not server.sql("SHOW TABLES LIKE 't'", database="protocol").strip()
        ):
            raise MissingTableError
        found = server.sql(statement, database="protocol")
        return [tuple(line.split("\t")) for line in found.splitlines()]

    def reset(there: bool) -> None:
        server.sql("DROP DATABASE IF EXISTS protocol; CREATE DATABASE protocol")
        if there:
            server.sql(_CREATE, database="protocol")

    def staged() -> list[str]:
        return server.sql(
            "SHOW TABLES LIKE 'spark\\_channel\\_stage%'", database="protocol"
        ).split()

    login = {
        "url": f"mysql://127.0.0.1:{server.port}/protocol",
        "user": server.user,
        "password": server.password,
    }

    def end_sessions() -> None:
        if server.product == "MariaDB":
            server.sql(f"KILL USER {server.user}")
            return
        sessions = f"SELECT id FROM information_schema.processlist WHERE user = '{server.user}'"
        for session in server.sql(sessions).split():
            with suppress(RuntimeError):  # it has ended meanwhile
                server.sql(f"KILL {session}")

    return Target("mysql", {**login, "dbtable": "t"}, sql, staged, reset, end_sessions=end_sessions)


def _firebird(server: FirebirdServer, name: str) -> Target:
    def tables() -> list[str]:
        query = "SELECT TRIM(RDB$RELATION_NAME) FROM RDB$RELATIONS WHERE RDB$SYSTEM_FLAG = 0"
        return [table for (table,) in server.sql(query, database=name)]

    def sql(statement: str) -> list[tuple[str, ...]]:
        if "FROM t" in statement and "T" not in tables():
            raise MissingTableError
        return [tuple(map(str, row)) for row in server.sql(statement, database=name)]

    def reset(there: bool) -> None:
        for table in tables():
            server.sql(f"DROP TABLE {table}", database=name)
        if there:
            server.sql(_CREATE, database=name)

    def staged() -> list[str]:
        return [table for table in tables() if table.startswith("SPARK_CHANNEL_STAGE")]

    return Target("firebird", {**server.login(name), "dbtable": "t"}, sql, staged, reset)


def _no_sql(_: str) -> list[tuple[str, ...]]:
    raise NotImplementedError("a lakehouse table has no SQL here")


def _delta(path: Path) -> Target:
    pytest.importorskip("deltalake")
    from deltalake import DeltaTable, Schema

    from tests.connectors.delta.helpers import leftovers, rows_by_deltalake

    def ids() -> list[int]:
        if not (path / "_delta_log").exists():
            raise MissingTableError
        return [int(each) for each in rows_by_deltalake(path)["id"].to_pylist()]

    def reset(there: bool) -> None:
        shutil.rmtree(path, ignore_errors=True)
        if there:
            DeltaTable.create(
                str(path),
                Schema.from_arrow(pa.schema([pa.field("id", pa.int64(), nullable=False)])),
            )

    return Target(
        "delta",
        {"writer": "delta", "path": str(path)},
        _no_sql,
        lambda: leftovers(path),
        reset,
        ids=ids,
    )


def _iceberg(path: Path) -> Iterator[Target]:
    pytest.importorskip("pyiceberg")
    from tests.connectors.iceberg.helpers import create, drop, ids, leftovers, options_of, shop

    with shop(path) as catalog:

        def seen() -> list[int]:
            if not catalog.table_exists("shop.t"):
                raise MissingTableError
            return ids(catalog, "shop.t")

        def reset(there: bool) -> None:
            drop(catalog, "shop.t")
            if there:
                create(catalog, "shop.t", pa.schema([pa.field("id", pa.int64(), nullable=False)]))

        options = {"writer": "iceberg", **options_of(path, "shop.t")}
        yield Target(
            "iceberg",
            options,
            _no_sql,
            lambda: leftovers(catalog, "shop.t"),
            reset,
            ids=seen,
            staged_by_killed=lambda: leftovers(catalog, "shop.t", killed=True),
        )


def _beside(path: Path) -> list[str]:
    return [str(each) for each in path.parent.rglob("*") if ".spark-channel" in str(each)]
