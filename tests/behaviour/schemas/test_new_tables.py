"""Tables that a run makes: their keys, and what becomes of NOT NULL when the source drops it."""

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import spark_channel
from spark_channel.clock import utc_now
from tests.cli.typed import typed
from tests.servers.mariadb import MariadbServer, MysqlServer
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


CIRCLE = """
CREATE TABLE circle.shops (id int PRIMARY KEY, best int);
CREATE TABLE circle.people (id int PRIMARY KEY, boss int, shop int NOT NULL);
CREATE TABLE circle.elsewhere (id int PRIMARY KEY);
INSERT INTO circle.elsewhere VALUES (1), (2);
INSERT INTO circle.shops VALUES (1, 2), (2, NULL);
INSERT INTO circle.people VALUES (2, NULL, 1), (1, 2, 1), (3, 1, 2);
ALTER TABLE circle.shops ADD CONSTRAINT to_best FOREIGN KEY (best) REFERENCES circle.people (id) ON DELETE SET NULL;
ALTER TABLE circle.people ADD CONSTRAINT to_boss FOREIGN KEY (boss) REFERENCES circle.people (id);
ALTER TABLE circle.people ADD CONSTRAINT to_shop FOREIGN KEY (shop) REFERENCES circle.shops (id) ON DELETE CASCADE;
ALTER TABLE circle.shops ADD CONSTRAINT to_other FOREIGN KEY (id) REFERENCES circle.elsewhere (id);
"""


def check_circle(
    run: Callable[[str], object], column: Callable[[str], list[str]], source: Any, target: Any
) -> None:
    """Two runs, of which the second one replaces rows to which others refer."""
    run(CIRCLE)
    streams = {f"circle.{name}": {"object": name} for name in ("shops", "people")}
    file = {
        "source": source,
        "target": target,
        "defaults": {"schema": "full"},
        "streams": streams,
    }
    names = (
        "SELECT constraint_name FROM information_schema.table_constraints "
        "WHERE table_schema = 'circle_dw' AND constraint_type = 'FOREIGN KEY' ORDER BY 1"
    )
    for _ in range(2):
        report = spark_channel.replicate(None, file)
        assert [table.state for table in report.tables] == ["done", "done"], report
        why = {table.stream: table.why for table in report.tables}
        left = "foreign key to_other: it refers to circle.elsewhere, which this run does not copy"
        assert left in why["circle.shops"]
        assert "foreign key" not in why["circle.people"]
        assert column(names) == ["to_best", "to_boss", "to_shop"]
    run("DELETE FROM circle_dw.shops WHERE id = 2")
    assert column("SELECT id FROM circle_dw.people ORDER BY id") == ["1", "2"]


def test_keys_between_tables_of_a_run_follow_all_rows_also_in_a_circle(
    postgres_server: PostgresServer,
) -> None:
    def column(query: str) -> list[str]:
        return [value for (value,) in postgres_server.rows(query)]

    drop = "DROP SCHEMA IF EXISTS circle, circle_dw CASCADE;"
    postgres_server.psql(f"{drop} CREATE SCHEMA circle; CREATE SCHEMA circle_dw;")
    target = {**postgres_server.login, "currentSchema": "circle_dw"}
    check_circle(postgres_server.psql, column, postgres_server.login, target)
    postgres_server.psql(drop)


@pytest.mark.parametrize("kind", [MariadbServer, pytest.param(MysqlServer, marks=pytest.mark.full)])
def test_keys_between_tables_of_a_run_follow_in_mariadb_and_mysql(
    kind: type[MariadbServer], request: pytest.FixtureRequest
) -> None:
    server = kind.create()
    request.addfinalizer(server.close)

    def column(query: str) -> list[str]:
        return server.sql(query).split("\n")

    server.sql("CREATE DATABASE circle; CREATE DATABASE circle_dw")
    source, target = (
        {**server.login, "url": server.url.rpartition("/")[0] + f"/{database}"}
        for database in ("circle", "circle_dw")
    )
    check_circle(server.sql, column, source, target)


@pytest.mark.parametrize("schema", [None, "full"])
def test_a_table_that_a_run_made_is_verified_and_repaired_without_a_hint(
    tmp_path: Path, schema: str | None
) -> None:
    source, target = tmp_path / "shop.db", tmp_path / "dw.db"
    with closing(sqlite3.connect(source)) as shop:
        shop.executescript(
            "CREATE TABLE orders (shop INT NOT NULL, id INT NOT NULL, v TEXT, PRIMARY KEY (shop, id));"
            "INSERT INTO orders VALUES (1, 1, 'a'), (1, 2, 'b'), (2, 1, 'c')"
        )
    file = tmp_path / "shop.yml"
    defaults = {"object": "{table}", **({} if schema is None else {"schema": schema})}
    places = {"source": {"path": str(source)}, "target": {"path": str(target)}}
    file.write_text(json.dumps({**places, "defaults": defaults, "streams": {"*": {}}}))
    assert typed("replicate", str(file)).exit_code == 0
    with closing(sqlite3.connect(target)) as dw, dw:
        dw.execute("UPDATE orders SET v = 'broken' WHERE id = 2")
        dw.execute("DELETE FROM orders WHERE shop = 2")
    assert typed("verify", str(file)).exit_code == 3
    repaired = typed("verify", str(file), "--repair")
    assert repaired.exit_code == 0, repaired.output
    assert (
        "3 rows are equal after the repair, by shop, id: 2 upserted, 0 deleted" in repaired.output
    )
    assert "1 table: 1 equal, 1 of them after a repair" in repaired.output
    again = typed("verify", str(file), "--repair").output
    assert "3 rows are equal, by shop, id" in again
    assert "after a repair" not in again
    with closing(sqlite3.connect(target)) as dw:
        rows = dw.execute("SELECT * FROM orders ORDER BY shop, id").fetchall()
    assert rows == [(1, 1, "a"), (1, 2, "b"), (2, 1, "c")]


def test_a_replication_leaves_the_index_builds_to_a_file_of_statements_of_each_table(
    tmp_path: Path,
) -> None:
    source, target, after = tmp_path / "shop.db", tmp_path / "dw.db", tmp_path / "after"
    after.mkdir()
    with closing(sqlite3.connect(source)) as shop:
        shop.executescript(
            "CREATE TABLE orders (id INTEGER PRIMARY KEY, v TEXT); CREATE INDEX by_v ON orders (v);"
            "CREATE TABLE people (id INTEGER PRIMARY KEY, name TEXT); CREATE UNIQUE INDEX by_name ON people (name);"
            "INSERT INTO orders VALUES (1, 'a'); INSERT INTO people VALUES (1, 'A')"
        )
    file = {
        "source": {"path": str(source)},
        "target": {"path": str(target)},
        "defaults": {
            "object": "{table}",
            "schema": "full",
            "target_options": {"schemaAfter": str(after)},
        },
        "streams": {"*": {}},
    }
    assert spark_channel.replicate(None, file).exit_code == 0
    wanted = "SELECT name, tbl_name FROM sqlite_master WHERE name IN ('by_v', 'by_name') ORDER BY 1"
    with closing(sqlite3.connect(target)) as dw, closing(sqlite3.connect(source)) as shop:
        assert dw.execute("SELECT v, name FROM orders, people").fetchall() == [("a", "A")]
        assert dw.execute(wanted).fetchall() == []
        for statements in after.glob("*.sql"):
            dw.executescript(statements.read_text())
        assert dw.execute(wanted).fetchall() == shop.execute(wanted).fetchall() != []


def test_indexes_are_built_at_their_times_also_after_a_build_that_was_killed(
    postgres_server: PostgresServer,
) -> None:
    run, rows = postgres_server.psql, postgres_server.rows
    drop = "DROP SCHEMA IF EXISTS timed, timed_dw CASCADE;"
    run(
        f"{drop} CREATE SCHEMA timed; CREATE SCHEMA timed_dw;"
        "CREATE TABLE timed.shops (id int PRIMARY KEY, name text UNIQUE);"
        "CREATE TABLE timed.orders (id int PRIMARY KEY, shop int REFERENCES timed.shops, n int CHECK (n > 0));"
        "CREATE INDEX by_n ON timed.orders (n DESC, id) WHERE n > 1;"
        "INSERT INTO timed.shops VALUES (1, 'a'); INSERT INTO timed.orders VALUES (1, 1, 7), (2, 1, 7); ANALYZE"
    )
    target = {**postgres_server.login, "currentSchema": "timed_dw"}
    other_day = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")[(utc_now().weekday() + 3) % 7]
    file = {
        "source": postgres_server.login,
        "target": target,
        "defaults": {"schema": "full", "object": "{table}"},
        "limit": {"builds": other_day},
        "streams": {"timed.*": {}},
    }
    found = (
        "SELECT c.relname, pg_get_indexdef(i.indexrelid), i.indisvalid::text FROM pg_index i "
        "JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_namespace n ON n.oid = c.relnamespace "
        "WHERE n.nspname = 'timed_dw' AND c.relname NOT LIKE 'spark_channel%' ORDER BY 1"
    )
    why = {each.stream: each.why for each in spark_channel.replicate(None, file).tables}
    assert rows(found) == []
    assert f"left to limit.builds ({other_day}): " in why["timed.orders"]
    assert 'CREATE INDEX CONCURRENTLY "by_n" ON "timed_dw"."orders"' in why["timed.orders"]
    with pytest.raises(Exception, match="could not create unique index"):
        run("CREATE UNIQUE INDEX CONCURRENTLY by_n ON timed_dw.orders (n)")
    assert [name for name, _, _ in rows(found)] == ["by_n"]
    run("INSERT INTO timed.orders VALUES (3, 1, 9)")
    file["limit"] = {"builds": ["mon-sun"]}
    report = spark_channel.replicate(None, file)
    assert [each.why for each in report.tables] == ["", ""], report
    made = {name: (text, is_valid) for name, text, is_valid in rows(found)}
    assert sorted(made) == ["by_n", "orders_pkey", "shops_name_key", "shops_pkey"]
    assert made["by_n"][0].endswith("(n DESC, id) WHERE (n > 1)")
    assert {is_valid for _, is_valid in made.values()} == {"true"}
    for row in ("(9, 2, 1)", "(9, 1, 0)", "(1, 1, 1)"):
        with pytest.raises(Exception, match=r"foreign key|check constraint|duplicate key"):
            run(f"INSERT INTO timed_dw.orders VALUES {row}")
    assert rows("SELECT count(*)::text FROM timed_dw.orders") == [("3",)]
    run(drop)


def test_an_index_whose_name_is_taken_leaves_nothing_of_a_build_that_was_killed(
    postgres_server: PostgresServer,
) -> None:
    run, rows = postgres_server.psql, postgres_server.rows
    long = "by_" + "n" * 60
    drop = "DROP SCHEMA IF EXISTS taken, taken_dw CASCADE;"
    run(
        f"{drop} CREATE SCHEMA taken; CREATE SCHEMA taken_dw;"
        f"CREATE TABLE taken_dw.other (n int); CREATE INDEX by_n ON taken_dw.other (n);"
        f"CREATE INDEX {long} ON taken_dw.other (n);"
        "CREATE TABLE taken.a (id int PRIMARY KEY, n int, m int); INSERT INTO taken.a VALUES (1, 7, 7), (2, 7, 7);"
        f"CREATE INDEX by_n ON taken.a (n); CREATE INDEX {long} ON taken.a (m)"
    )
    file = {
        "source": postgres_server.login,
        "target": {**postgres_server.login, "currentSchema": "taken_dw"},
        "defaults": {"schema": "full", "object": "{table}"},
        "streams": {"taken.a": {"mode": "incremental", "update_key": "id", "primary_key": ["id"]}},
    }
    other_day = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")[(utc_now().weekday() + 3) % 7]
    for times in (other_day, "mon-sun"):
        file["limit"] = {"builds": [times]}
        report = spark_channel.replicate(None, file)
        assert report.exit_code == 0, report
        if times == other_day:
            for name in ("by_n_1", f"{long[:61]}_1", "of_a_dba"):
                with pytest.raises(Exception, match="could not create unique index"):
                    run(f"CREATE UNIQUE INDEX CONCURRENTLY {name} ON taken_dw.a (n)")
    found = rows(
        "SELECT c.relname, i.indisvalid::text FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid "
        "WHERE i.indrelid = 'taken_dw.a'::regclass ORDER BY 1"
    )
    assert found == [
        ("a_pkey", "true"),
        ("by_n_1", "true"),
        (f"{long[:61]}_1", "true"),
        ("of_a_dba", "false"),
    ]
    run(drop)


def test_a_table_of_another_system_takes_rows_without_a_number(
    postgres_server: PostgresServer, mariadb_server: MariadbServer
) -> None:
    """From PostgreSQL into MariaDB, and on into PostgreSQL. One row got its number by hand."""
    pg, maria = postgres_server, mariadb_server
    drop = "DROP SCHEMA IF EXISTS counted, counted_dw CASCADE;"
    pg.psql(
        f"{drop} CREATE SCHEMA counted; CREATE SCHEMA counted_dw;"
        "CREATE TABLE counted.t (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, v varchar(9));"
        "COMMENT ON COLUMN counted.t.v IS 'it''s';"
        "INSERT INTO counted.t (v) VALUES ('a'), ('b'); INSERT INTO counted.t OVERRIDING SYSTEM VALUE VALUES (10, 'c')"
    )
    maria.sql("DROP DATABASE IF EXISTS counted_dw; CREATE DATABASE counted_dw")
    between = {**maria.login, "url": maria.url.rpartition("/")[0] + "/counted_dw"}
    back = {**pg.login, "currentSchema": "counted_dw"}
    for source, target, stream in (
        ({**pg.login}, between, "counted.t"),
        (between, back, "counted_dw.t"),
    ):
        streams = {stream: {"schema": "full", "object": "t"}}
        for _ in range(2):
            report = spark_channel.replicate(
                None, {"source": source, "target": target, "streams": streams}
            )
            assert report.exit_code == 0, report
        if target is between:
            maria.sql("INSERT INTO counted_dw.t (v) VALUES ('d')")
            assert maria.sql("SELECT id FROM counted_dw.t WHERE v = 'd'") == "11"
    pg.psql("INSERT INTO counted_dw.t (v) VALUES ('e')")
    assert pg.rows("SELECT id::text FROM counted_dw.t WHERE v = 'e'") == [("12",)]
    maria.sql("DROP DATABASE counted_dw")
    pg.psql(drop)


def check_last_numbers(
    pg: PostgresServer, source: dict[str, Any], numbers: dict[str, int], following: int
) -> None:
    pg.psql("DROP SCHEMA IF EXISTS ends_dw CASCADE; CREATE SCHEMA ends_dw")
    file = {
        "source": source,
        "target": {**pg.login, "currentSchema": "ends_dw"},
        "defaults": {"schema": "full", "object": "{table}"},
        "streams": {"ends.*": {}},
    }
    report = spark_channel.replicate(None, file)
    assert [each.state for each in report.tables] == ["done"] * len(numbers), report
    for table, number in numbers.items():
        assert pg.rows(f"SELECT id::text FROM ends_dw.{table}") == [(str(number),)]
        own = following or number
        given = f"SELECT nextval(pg_get_serial_sequence('ends_dw.{table}', 'id'))::text"
        assert pg.rows(given) == [(str(own),)]
    pg.psql("DROP SCHEMA ends_dw CASCADE")


def test_a_row_with_the_last_number_of_its_type_parks_no_table(
    postgres_server: PostgresServer,
) -> None:
    """Of a group of small tables, whose rows have their numbers by hand."""
    numbers = {"a": 2**15 - 1, "b": 2**31 - 1, "c": 2**63 - 1}
    kinds = {"a": "smallserial", "b": "serial", "c": "bigserial"}
    tables = "".join(
        f"CREATE TABLE ends.{name} (id {kinds[name]} PRIMARY KEY); INSERT INTO ends.{name} VALUES ({numbers[name]});"
        for name in kinds
    )
    pg = postgres_server
    pg.psql(f"DROP SCHEMA IF EXISTS ends CASCADE; CREATE SCHEMA ends; {tables} ANALYZE")
    check_last_numbers(pg, pg.login, numbers, following=1)
    pg.psql("DROP SCHEMA ends CASCADE")


@pytest.mark.full
def test_a_table_of_mysql_that_has_given_its_last_number_is_copied(
    postgres_server: PostgresServer, request: pytest.FixtureRequest
) -> None:
    server = MysqlServer.create()
    request.addfinalizer(server.close)
    numbers = {"a": 2**15 - 1, "b": 2**31 - 1, "c": 2**63 - 1}
    kinds = {"a": "SMALLINT", "b": "INT", "c": "BIGINT"}
    server.sql("CREATE DATABASE ends")
    for name, kind in kinds.items():
        server.sql(
            f"CREATE TABLE ends.{name} (id {kind} AUTO_INCREMENT PRIMARY KEY);"
            f"INSERT INTO ends.{name} VALUES ({numbers[name]})"
        )
    source = {**server.login, "url": server.url.rpartition("/")[0] + "/ends"}
    check_last_numbers(postgres_server, source, numbers, following=0)


def test_an_index_takes_no_name_of_another_table_of_the_run(
    postgres_server: PostgresServer, mariadb_server: MariadbServer, tmp_path: Path
) -> None:
    """MariaDB names an index after its column, and PostgreSQL and SQLite have one name for tables and indexes."""
    pg, maria = postgres_server, mariadb_server
    maria.sql(
        "DROP DATABASE IF EXISTS named; CREATE DATABASE named; USE named;"
        "CREATE TABLE aa (zz INT, UNIQUE (zz)); CREATE TABLE zz (id INT PRIMARY KEY);"
        "INSERT INTO aa VALUES (1), (2), (3); INSERT INTO zz VALUES (1)"
    )
    pg.psql("DROP SCHEMA IF EXISTS named CASCADE; CREATE SCHEMA named")
    source = {**maria.login, "url": maria.url.rpartition("/")[0] + "/named"}
    for target in ({**pg.login, "currentSchema": "named"}, {"path": str(tmp_path / "t.db")}):
        file = {
            "source": source,
            "target": target,
            "defaults": {"schema": "full", "object": "{table}"},
            "streams": {"named.*": {}},
            "parallel": 1,
        }
        for stream in ("named.aa", "named.zz"):
            report = spark_channel.replicate(None, file, select=[stream])
            assert [each.state for each in report.tables] == ["done"], report
    assert pg.rows("SELECT indexname FROM pg_indexes WHERE tablename = 'aa'") == [("aa_zz",)]
    maria.sql("DROP DATABASE named")
    pg.psql("DROP SCHEMA named CASCADE")


def test_keys_and_indexes_that_are_built_later_are_the_sources_own(
    postgres_server: PostgresServer,
) -> None:
    """Not what their columns alone would be: one takes two NULLs, another checks each row at once."""
    run, rows = postgres_server.psql, postgres_server.rows
    drop = "DROP SCHEMA IF EXISTS own, own_dw CASCADE;"
    run(
        f"{drop} CREATE SCHEMA own; CREATE SCHEMA own_dw;"
        "CREATE TABLE own.a (id int, n text, m int, PRIMARY KEY (id) DEFERRABLE INITIALLY DEFERRED,"
        "  UNIQUE NULLS NOT DISTINCT (m), UNIQUE (n), CHECK (m > 0));"
        "CREATE TABLE own.b (id int, n text, m int, CONSTRAINT own_key PRIMARY KEY (id) INCLUDE (n));"
        'CREATE INDEX by_bytes ON own.a (n COLLATE "C"); CREATE INDEX loose ON own.a (id, m) WITH (fillfactor=50);'
        "CREATE INDEX by_m ON own.a (m) INCLUDE (n); CREATE UNIQUE INDEX one_m ON own.b (m) NULLS NOT DISTINCT;"
        "INSERT INTO own.a VALUES (1, 'a', 1), (2, 'b', NULL); INSERT INTO own.b VALUES (1, 'a', 1)"
    )
    file = {
        "source": postgres_server.login,
        "target": {**postgres_server.login, "currentSchema": "own_dw"},
        "defaults": {"schema": "full", "object": "{table}"},
        "limit": {"builds": ["mon-sun"]},
        "streams": {"own.*": {}},
    }
    report = spark_channel.replicate(None, file)
    assert [each.why for each in report.tables] == ["", ""], report

    def defined(schema: str) -> list[tuple[str, ...]]:
        return rows(
            f"SELECT replace(pg_get_indexdef(i.indexrelid), '{schema}.', ''), i.indimmediate::text "
            "FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid JOIN pg_namespace n ON n.oid = c.relnamespace "
            f"WHERE n.nspname = '{schema}' AND c.relname IN ('a', 'b') ORDER BY 1"
        )

    assert defined("own_dw") == defined("own")
    report = spark_channel.replicate(None, file)
    assert [each.state for each in report.tables] == ["done", "done"], report
    assert defined("own_dw") == defined("own")
    run(drop)
