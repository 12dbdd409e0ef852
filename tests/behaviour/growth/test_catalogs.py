"""What the catalogs of large databases cost: three tables of many are found as three of few, and all tables in a line.

Counted are what the server itself estimates or has opened, never the time.
"""

import json
import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
import pytest

import spark_channel
from spark_channel.connectors import load_reader
from spark_channel.connectors.duckdb.dialect import DuckdbDialect
from spark_channel.connectors.duckdb.session import DuckdbSession
from spark_channel.connectors.mysql.dialect import MysqlDialect
from spark_channel.connectors.postgresql.catalog.tables import _FIND
from spark_channel.connectors.postgresql.dialect import PostgresDialect
from spark_channel.connectors.sql.read.reader import SqlReader
from spark_channel.connectors.sql.stored_tables import STORED_RELATIONS
from spark_channel.connectors.sqlite.session import SqliteSession
from spark_channel.replication.config import Replication
from spark_channel.replication.plan import plan_replication
from spark_channel.replication.run import RunSettings
from spark_channel.replication.tables import find_tables
from tests.servers.mariadb import MariadbServer, MysqlServer
from tests.servers.postgres import PostgresServer

_NAMED = ("t1", "t2", "parted")
_SOURCES = ("one", "two", "three")
_SIZES = (10, 100, 1000)


@pytest.fixture
def server(postgres_server: PostgresServer) -> Iterator[PostgresServer]:
    """With a database of its own, whose catalog holds no other test's tables."""
    postgres_server.psql("CREATE DATABASE catalog_growth")
    yield postgres_server
    postgres_server.psql("DROP DATABASE catalog_growth WITH (FORCE)")


def _psql(server: PostgresServer, statement: str) -> str:
    return server.psql(f"\\c catalog_growth\n{statement}").split('as user "tester".')[-1].strip()


def _grow(server: PostgresServer, after: int, count: int) -> None:
    """Each tenth table has two partitions, and a view."""
    _psql(
        server,
        "DO $$ BEGIN "
        f"FOR n IN {after + 1}..{count} LOOP IF n % 10 = 0 THEN "
        "EXECUTE format('CREATE TABLE t%s (id int) PARTITION BY RANGE (id)', n); "
        "EXECUTE format('CREATE TABLE t%s_a PARTITION OF t%s FOR VALUES FROM (0) TO (9)', n, n); "
        "EXECUTE format('CREATE TABLE t%s_b PARTITION OF t%s FOR VALUES FROM (9) TO (99)', n, n); "
        "EXECUTE format('CREATE VIEW v%s AS SELECT * FROM t%s', n, n); "
        "ELSE EXECUTE format('CREATE TABLE t%s (id int)', n); END IF; END LOOP; END $$;\n"
        "VACUUM ANALYZE;",
    )


def _cost(server: PostgresServer, statement: str) -> float:
    (plan,) = json.loads(_psql(server, f"EXPLAIN (FORMAT JSON) {statement}"))
    return float(plan["Plan"]["Total Cost"])


def _blocks(server: PostgresServer, statement: str) -> int:
    """Which it reads."""
    (plan,) = json.loads(_psql(server, f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}"))
    return int(plan["Plan"]["Shared Hit Blocks"]) + int(plan["Plan"]["Shared Read Blocks"])


def _names(tables: Sequence[Any]) -> list[str]:
    return [table.name for table in tables]


@pytest.mark.full
def test_postgresql_finds_named_tables_at_one_cost_and_all_tables_in_a_line(
    server: PostgresServer,
) -> None:
    _psql(
        server,
        "CREATE TABLE parted (id int, v text) PARTITION BY RANGE (id); "
        "CREATE TABLE parted_a PARTITION OF parted FOR VALUES FROM (0) TO (500); "
        "CREATE TABLE parted_b PARTITION OF parted FOR VALUES FROM (500) TO (999) PARTITION BY RANGE (id); "
        "CREATE TABLE parted_c PARTITION OF parted_b FOR VALUES FROM (500) TO (999); "
        "INSERT INTO parted SELECT n, 'x' FROM generate_series(0, 998) n; ANALYZE parted",
    )
    dialect, before = PostgresDialect(), 0
    named, every, looked, stored = list[float](), list[float](), list[float](), list[int]()
    find = _FIND.replace("$1", "'parted'::name").replace("$2", "'public'::name")
    find = find.replace("$3", "'public.parted'::name")
    for size in _SIZES:
        _grow(server, before, size)
        before = size
        named.append(_cost(server, dialect.list_tables([("public", name) for name in _NAMED])))
        every.append(_cost(server, dialect.list_tables()))
        looked.append(_cost(server, find))
        stored.append(_blocks(server, STORED_RELATIONS.replace("$1", "'public.parted'")))
    assert max(named) < 1.5 * named[0], named
    assert max(looked) < 1.5 * looked[0], looked
    assert max(stored) < 1.5 * stored[0], stored  # indexes have more levels
    assert every[2] < 15 * every[1], every
    url = {**server.login, "url": server.login["url"].rpartition("/")[0] + "/catalog_growth"}
    reader, _ = load_reader({**url, "dbtable": "any"})
    assert isinstance(reader, SqlReader)
    found = reader.named_tables(["public.PARTED", "public.t1"])
    assert [(table.label, table.rows) for table in found] == [
        ("public.parted", 999),
        ("public.t1", 0),
    ]
    every_table = reader.tables()
    assert len(every_table) == 1001
    assert found == [table for table in every_table if table.name in ("parted", "t1")]
    assert found[0].nbytes == int(
        _psql(server, "SELECT pg_relation_size('parted_a') + pg_relation_size('parted_c')")
    )


@pytest.mark.full
def test_mariadb_opens_the_tables_that_are_named_and_no_other(
    mariadb_server: MariadbServer,
) -> None:
    database = "catalog_growth"
    mariadb_server.sql(f"CREATE DATABASE {database}")
    try:
        statements = [f"CREATE TABLE t{number} (id INT)" for number in range(40)]
        mariadb_server.sql("; ".join(statements), database=database)
        query = MysqlDialect().list_tables([(database, "t1"), (database, "t2"), (database, "T3")])
        said = mariadb_server.sql(f"EXPLAIN EXTENDED {query}", database=database)
        looks = [line for line in said.splitlines() if "TABLE_SCHEMA,TABLE_NAME" in line]
        assert len(looks) == 3, said
        listed = mariadb_server.sql(query, database=database)
        assert [line.split("\t")[1] for line in listed.splitlines()] == ["t1", "t2"]
    finally:
        mariadb_server.sql(f"DROP DATABASE {database}")


_OPENED = "SHOW GLOBAL STATUS WHERE Variable_name = 'Opened_table_definitions' OR Variable_name LIKE 'Handler_read_%'"


@pytest.mark.full
@pytest.mark.parametrize("server_class", [MariadbServer, MysqlServer], ids=["mariadb", "mysql"])
def test_a_replicate_of_three_tables_looks_at_no_other_of_the_server(
    server_class: type[MariadbServer],
) -> None:
    """MariaDB's list of InnoDB's tables is read whole, without opening one: it has no index, so only opens count."""
    server = server_class.create(table_definition_cache=400, performance_schema="OFF")
    try:
        server.sql("CREATE DATABASE source; CREATE DATABASE target; CREATE DATABASE others")
        made = "CREATE TABLE {name} (id INT PRIMARY KEY, v INT)"
        keys = "CREATE TABLE {name} (id INT PRIMARY KEY, v INT, FOREIGN KEY (v) REFERENCES t0 (id))"
        for name in _SOURCES:
            server.sql(
                f"{made.format(name=name)}; INSERT INTO {name} VALUES (1, 1)", database="source"
            )
        url = server.url.rpartition("/")[0]
        file = {
            "source": {**server.login, "url": f"{url}/source"},
            "target": {**server.login, "url": f"{url}/target"},
            "streams": {f"source.{name}": {} for name in _SOURCES},
        }
        assert spark_channel.replicate(None, file).exit_code == 0
        costs = []
        for first, last in ((0, 10), (10, 200)):
            # Half of them beside the target.
            for database in ("others", "target"):
                statements = [
                    (keys if number % 10 else made).format(name=f"t{number}")
                    for number in range(first, last)
                ]
                server.sql("; ".join(statements), database=database)
            costs.append([_read(server, file, dry_run=dry_run) for dry_run in (True, False)])
        for few, many in zip(*costs, strict=True):
            names = ("Opened_table_definitions", "rows")[: 1 + (server_class is MysqlServer)]
            assert {
                name: many[name] for name in names if many[name] > 1.1 * few[name] + 20
            } == {}, (
                few,
                many,
            )
    finally:
        server.close()


def _read(server: MariadbServer, file: dict[str, Any], *, dry_run: bool) -> dict[str, int]:
    """How many definitions of tables a server opened, and rows it read, for a run when it remembers no table."""

    def status() -> dict[str, int]:
        lines = (line.split("\t") for line in server.sql(_OPENED).splitlines())
        return {name: int(value) for name, value in lines}

    server.sql("FLUSH TABLES")
    before = status()
    if dry_run:
        settings = RunSettings()
        assert plan_replication(Replication.model_validate(file), settings, parallelism=1).tables
    else:
        assert spark_channel.replicate(None, file).exit_code == 0
    behind = status()
    counts = {name: behind[name] - before[name] for name in before}
    opened = counts.pop("Opened_table_definitions")
    return {"Opened_table_definitions": opened, "rows": sum(counts.values())}


def test_duckdb_finds_the_tables_that_are_named(tmp_path: Path) -> None:
    path = tmp_path / "t.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute(
            'CREATE TABLE t1 (id INT); CREATE TABLE t2 (id INT); CREATE TABLE "t.3\'" (id INT)'
        )
    reader, _ = load_reader({"url": f"duckdb:{path}", "dbtable": "any"})
    assert _names(reader.named_tables(["main.t1", "main.t.3'", "main.none"])) == ["t.3'", "t1"]
    assert len(reader.tables()) == 3


@pytest.mark.skipif(duckdb.__version__ < "2", reason="it lists all")
def test_duckdb_looks_up_tables_that_are_named_in_full(tmp_path: Path) -> None:
    """The rows that leave the catalog's function are counted, not those behind a filter."""
    names = [("main", "t1"), ("main", "t2")]
    counts = []
    for tables in _SIZES:
        with duckdb.connect(str(tmp_path / f"{tables}.duckdb")) as connection:
            connection.execute(
                "; ".join(f"CREATE TABLE t{number} (id INT)" for number in range(tables))
            )
            connection.execute(
                "PRAGMA enable_profiling='no_output'; PRAGMA profiling_mode='detailed'"
            )
            rows = connection.execute(DuckdbDialect().list_tables(names)).fetchall()
            (node,) = json.loads(connection.get_profiling_information())["operator"]
        assert [row[1] for row in rows] == ["t1", "t2"]
        while node["type"] != "TABLE_SCAN":
            (node,) = node["children"]
        counts.append(node["intermediate_rows"])
    assert counts == [2, 2, 2]


def test_duckdb_lists_its_constraints_for_keys_of_several_columns_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no columns: a table is described by its name, also where a temporary one has it."""
    path = tmp_path / "t.duckdb"
    statements = {
        "a": ("CREATE TABLE a (id INT, v TEXT)", (), 0),
        "b": ("CREATE TABLE b (id INT PRIMARY KEY, v TEXT)", (("id",),), 0),
        "c": ("CREATE TABLE c (id INT PRIMARY KEY, v TEXT UNIQUE)", (("id",), ("v",)), 1),
        "d": ("CREATE TABLE d (x INT, y INT, PRIMARY KEY (y, x))", (("y", "x"),), 1),
    }
    with duckdb.connect(str(path)) as connection:
        connection.execute("; ".join(statement for statement, _, _ in statements.values()))
    asked: list[str] = []
    rows = DuckdbSession.rows

    def counted(session: DuckdbSession, sql: str, *args: Any) -> Any:
        asked.append(sql)
        return rows(session, sql, *args)

    monkeypatch.setattr(DuckdbSession, "rows", counted)
    for name, (_, unique, lists) in statements.items():
        reader, _ = load_reader(
            {
                "url": f"duckdb:{path}",
                "dbtable": name,
                "sessionInitStatement": f"CREATE TEMP TABLE {name} (other INT)",
            }
        )
        asked.clear()
        assert isinstance(reader, SqlReader)
        with reader.connect("plan") as session:
            table = reader.dialect.find_table(session, name)
        assert table is not None
        assert table.unique == unique
        assert [column.name for column in table.columns] != ["other"]
        assert sum("duckdb_constraints" in sql for sql in asked) == lists, asked
        assert not any("duckdb_columns" in sql for sql in asked)


class _Asked:
    """How often a source listed all its tables, and which labels it was asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.all, self.named = 0, 0
        tables, named_tables = SqlReader.tables, SqlReader.named_tables

        def count_all(reader: SqlReader) -> Any:
            self.all += 1
            return tables(reader)

        def count_named(reader: SqlReader, labels: Any) -> Any:
            self.named += 1
            return named_tables(reader, labels)

        monkeypatch.setattr(SqlReader, "tables", count_all)
        monkeypatch.setattr(SqlReader, "named_tables", count_named)


def _replication(path: Path, streams: Sequence[str], **more: Any) -> Replication:
    return Replication.model_validate(
        {
            "source": {"url": f"duckdb:{path}"},
            "target": {"path": str(path.parent / "out"), "writer": "parquet"},
            "streams": {name: {} for name in streams},
            **more,
        }
    )


def test_a_file_that_names_its_tables_in_full_lists_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t.duckdb"
    with duckdb.connect(str(path)) as connection:
        for name in ("t1", "t2", "t3"):
            connection.execute(f"CREATE TABLE {name} (id INT, v TEXT)")
    masks = {"defaults": {"columns": {"main.t2.v": "null", "main.t1.v": "keep"}}}
    cases = [
        (["main.t1"], ["main.t1"], 0),
        (["main.T1"], ["main.t1"], 0),
        (["main.*"], ["main.t1", "main.t2", "main.t3"], 1),
        (["main.t1", "main.tx"], ["main.t1", "main.tx"], 1),
    ]
    for streams, labels, lists in cases:
        asked = _Asked(monkeypatch)
        copies = find_tables(_replication(path, streams, **masks)).copies
        assert (sorted(copy.stream for copy in copies), asked.all) == (labels, lists), streams
        own = next(copy for copy in copies if copy.stream == "main.t1")
        assert list(own.options.columns or ()) == ["main.t1.v"]


def test_a_stream_that_names_a_table_exactly_is_not_about_another_one() -> None:
    replication = _replication(Path("t.duckdb"), ["s.orders"])
    assert replication.options_for("s", "orders", {"s.orders", "s.Orders"}) is not None
    assert replication.options_for("s", "Orders", {"s.orders", "s.Orders"}) is None
    assert replication.options_for("s", "Orders", {"s.Orders"}) is not None


class _Opens:
    """How often a database file was opened, and how often DuckDB listed a catalog."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, kind: type[Any]) -> None:
        self.source, self.target, self.lists = 0, 0, 0
        make, rows = kind.__init__, kind.rows

        def opened(session: Any, path: Path, *args: Any, **options: Any) -> None:
            self.source += path.name == "source"
            self.target += path.name == "target"
            make(session, path, *args, **options)

        def asked(session: Any, sql: str, *args: Any) -> Any:
            self.lists += "duckdb_tables()" in sql or "duckdb_constraints()" in sql
            return rows(session, sql, *args)

        monkeypatch.setattr(kind, "__init__", opened)
        monkeypatch.setattr(kind, "rows", asked)


def _filled(kind: str, path: Path, tables: int) -> None:
    statements = "; ".join(
        f"CREATE TABLE t{number} (id INT PRIMARY KEY)" for number in range(tables)
    )
    if kind == "sqlite":
        with closing(sqlite3.connect(path)) as connection:
            connection.executescript(statements)
    else:
        with duckdb.connect(str(path)) as connection:
            connection.execute(statements)


@pytest.mark.parametrize(
    ("kind", "session"), [("sqlite", SqliteSession), ("duckdb", DuckdbSession)]
)
def test_a_plan_opens_a_database_file_once_whatever_the_tables_are(
    kind: str, session: type[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = {}
    for tables in (1, 10, 100):
        home = tmp_path / str(tables)
        home.mkdir()
        _filled(kind, home / "source", tables)
        _filled(kind, home / "target", 1)
        replication = Replication.model_validate(
            {
                "source": {"url": f"{kind}:{home}/source"},
                "target": {"url": f"{kind}:{home}/target"},
                "defaults": {"object": "copy_{table}"},
                "streams": {"*": {}},
            }
        )
        with monkeypatch.context() as patch:
            opens = _Opens(patch, session)
            plan = plan_replication(replication, RunSettings(), parallelism=2)
        assert [table.does for table in plan.tables] == ["creates"] * tables
        counts[tables] = opens.source, opens.target, opens.lists
    assert counts[100] == counts[10] <= (2, 2, 8), counts
    assert counts[1] <= counts[10], counts


@pytest.mark.parametrize("target_tables", [1, 100])
def test_a_plan_reads_the_whole_catalog_of_sqlite_for_many_tables_at_once(
    target_tables: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred that are named as they are quoted; SQLite has no index by which it finds one of them."""
    counts, rows = Counter[int](), SqliteSession.rows
    for tables in (10, 100):
        home = tmp_path / str(tables)
        home.mkdir()
        _filled("sqlite", home / "source", tables)
        _filled("sqlite", home / "target", min(tables, target_tables))
        replication = Replication.model_validate(
            {
                "source": {"url": f"sqlite:{home}/source"},
                "target": {"url": f"sqlite:{home}/target"},
                "streams": {f"t{number}": {} for number in range(tables)},
            }
        )

        def counted(session: SqliteSession, sql: str, *more: Any, tables: int = tables) -> Any:
            is_of_claims = "SELECT 1 FROM main.sqlite_master" in sql
            is_of_all = "pragma_table_list" in sql or "sqlite_master" in sql
            counts[tables] += is_of_all and not is_of_claims
            return rows(session, sql, *more)

        with monkeypatch.context() as patch:
            patch.setattr(SqliteSession, "rows", counted)
            plan = plan_replication(replication, RunSettings(), parallelism=2, explains=False)
        assert len(plan.tables) == tables
        assert not any(table.fault for table in plan.tables)
    assert counts[100] == counts[10] > 0, counts


@pytest.mark.parametrize(
    ("kind", "session"), [("sqlite", SqliteSession), ("duckdb", DuckdbSession)]
)
def test_the_names_of_all_tables_are_not_listed_for_each_new_one(
    kind: str, session: type[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are asked for when a new index needs a name that is free."""
    _filled(kind, tmp_path / "source", 3)
    _filled(kind, tmp_path / "target", 1)
    lists, rows = 0, session.rows

    def counted(one: Any, sql: str, *more: Any) -> Any:
        nonlocal lists
        lists += sql in (
            "SELECT name FROM sqlite_master",
            "SELECT index_name FROM duckdb_indexes()",
        )
        return rows(one, sql, *more)

    monkeypatch.setattr(session, "rows", counted)
    file = {
        "source": {"url": f"{kind}:{tmp_path}/source"},
        "target": {"url": f"{kind}:{tmp_path}/target"},
        "streams": {"*": {"object": "copy_{table}"}},
    }
    assert spark_channel.replicate(None, file).exit_code == 0
    assert lists == 0
