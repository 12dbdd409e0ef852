"""An overwrite touches one table: not those that inherit from it, and not those that refer to it."""

from collections.abc import Iterator
from typing import Any

import pytest

import spark_channel
from spark_channel.errors import TargetError
from spark_channel.replication import ReplicationReport
from spark_channel.replication.config import load_replication
from spark_channel.replication.plan import plan_replication
from spark_channel.replication.status import status_of
from spark_channel.replication.table_run import RunSettings
from tests.replication.test_changes import Followed, followed
from tests.servers.mariadb import MariadbServer
from tests.servers.postgres import PostgresServer

__all__ = ["followed"]

ROWS = """
INSERT INTO one.base VALUES (1, 'b');
INSERT INTO one.child SELECT g, repeat('x', 100), 5 FROM generate_series(2, 20) g; ANALYZE one.base, one.child
"""
TABLES = """
CREATE TABLE {0}.base (id int PRIMARY KEY, v text);
CREATE TABLE {0}.child (w int, PRIMARY KEY (id)) INHERITS ({0}.base);
"""


@pytest.fixture
def pg(postgres_server: PostgresServer) -> Iterator[PostgresServer]:
    postgres_server.psql(
        "DROP SCHEMA IF EXISTS one, one_dw CASCADE; CREATE SCHEMA one; CREATE SCHEMA one_dw;"
        + TABLES.format("one")
        + ROWS
    )
    yield postgres_server
    postgres_server.psql("DROP SCHEMA one, one_dw CASCADE")


def replicated(source: Any, target: Any, streams: Any, **more: Any) -> ReplicationReport:
    file = {"source": source, "target": target, "streams": streams, **more}
    return spark_channel.replicate(None, file)


def of_pg(pg: PostgresServer, **more: Any) -> ReplicationReport:
    target = {**pg.login, "currentSchema": "one_dw"}
    streams = {"one.*": {"object": "{table}", **more}}
    return replicated(pg.login, target, streams, parallel=1)


def counts(pg: PostgresServer) -> list[tuple[str, ...]]:
    return pg.rows(
        "SELECT (SELECT count(*) FROM ONLY one_dw.base), (SELECT count(*) FROM one_dw.base), "
        "(SELECT count(*) FROM one_dw.child)"
    )


def test_a_parent_that_is_overwritten_leaves_its_children_their_rows(pg: PostgresServer) -> None:
    pg.psql(TABLES.format("one_dw"))
    for _ in range(2):
        assert of_pg(pg).exit_code == 0
        assert counts(pg) == [("1", "20", "19")]


def test_a_target_without_children_gets_all_rows_that_a_query_of_the_parent_returns(
    pg: PostgresServer,
) -> None:
    for _ in range(2):
        assert of_pg(pg).exit_code == 0
        assert counts(pg) == [("20", "20", "19")]


def test_a_table_whose_trigger_divides_its_rows_is_one_table_with_its_children(
    pg: PostgresServer,
) -> None:
    pg.psql(
        TABLES.format("one_dw")
        + "CREATE FUNCTION one_dw.divide() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN INSERT INTO one_dw.child VALUES (NEW.id, NEW.v); RETURN NULL; END $$;"
        "CREATE TRIGGER divide BEFORE INSERT ON one_dw.base FOR EACH ROW EXECUTE FUNCTION one_dw.divide()"
    )
    target = {**pg.login, "currentSchema": "one_dw"}
    for _ in range(2):
        assert replicated(pg.login, target, {"one.base": {"object": "base"}}).exit_code == 0
        assert counts(pg) == [("0", "20", "20")]


def test_a_partitioned_table_is_overwritten_with_its_partitions(pg: PostgresServer) -> None:
    pg.psql(
        "CREATE TABLE one_dw.base (id int, v text) PARTITION BY RANGE (id);"
        "CREATE TABLE one_dw.low PARTITION OF one_dw.base FOR VALUES FROM (0) TO (10);"
        "CREATE TABLE one_dw.high PARTITION OF one_dw.base FOR VALUES FROM (10) TO (100)"
    )
    target = {**pg.login, "currentSchema": "one_dw"}
    for _ in range(2):
        assert replicated(pg.login, target, {"one.base": {"object": "base"}}).exit_code == 0
        assert pg.rows("SELECT count(*) FROM one_dw.base") == [("20",)]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("followed", ["postgresql"], indirect=True)
@pytest.mark.parametrize("deletes", ["hard", "soft", "scd2"])
def test_changes_of_a_parent_leave_its_children_their_rows(
    followed: Followed, deletes: str
) -> None:
    followed.more["deletes"] = deletes
    followed.sql("INSERT INTO fol.a VALUES (1, 1, 'x'), (2, 2, 'y')")
    followed.run()
    followed.sql("CREATE TABLE fol_dw.child () INHERITS (fol_dw.t_a)")
    followed.sql("INSERT INTO fol_dw.child SELECT * FROM ONLY fol_dw.t_a")
    kept = followed.sql("SELECT * FROM fol_dw.child ORDER BY id")
    followed.sql("UPDATE fol.a SET n = 5 WHERE id = 1; DELETE FROM fol.a WHERE id = 2")
    followed.run()
    assert followed.sql("SELECT * FROM fol_dw.child ORDER BY id") == kept
    followed.sql("TRUNCATE fol.a; INSERT INTO fol.a VALUES (3, 3, 'z')")
    followed.run()
    assert followed.sql("SELECT * FROM fol_dw.child ORDER BY id") == kept
    live = {"hard": "true", "soft": "_deleted_at IS NULL", "scd2": "_valid_to IS NULL"}[deletes]
    said = followed.sql(f"SELECT id FROM ONLY fol_dw.t_a WHERE {live}")
    assert said.split() == ["3"]


@pytest.mark.parametrize("rule", ["CASCADE", "SET NULL"])
def test_an_overwrite_that_would_change_other_tables_is_refused(
    mariadb_server: MariadbServer, pg: PostgresServer, rule: str
) -> None:
    mariadb_server.sql(
        "DROP TABLE IF EXISTS one_item, one_base; CREATE TABLE one_base (id INT PRIMARY KEY, v TEXT, up INT, "
        "FOREIGN KEY (up) REFERENCES one_base (id) ON DELETE CASCADE);"
        "CREATE TABLE one_item (id INT PRIMARY KEY, base INT, CONSTRAINT of_base FOREIGN KEY (base) "
        f"REFERENCES one_base (id) ON DELETE {rule}); "
        "INSERT INTO one_base VALUES (1, 'old', NULL); INSERT INTO one_item VALUES (7, NULL)",
        database="shop",
    )
    streams = {"one.base": {"object": "one_base"}}
    try:
        report = replicated(pg.login, mariadb_server.login, streams)
        assert report.exit_code == 0, "no row refers to the table"
        mariadb_server.sql("INSERT INTO one_item VALUES (8, 1)", database="shop")
        (parked,) = replicated(pg.login, mariadb_server.login, streams).parked
        assert "foreign key 'of_base' of shop.one_item" in parked.why
        assert f"ON DELETE {rule}" in parked.why
        left = mariadb_server.sql("SELECT base FROM one_item WHERE id = 8", database="shop")
        assert left.strip() == "1"
    finally:
        mariadb_server.sql("DROP TABLE one_item, one_base", database="shop")


@pytest.mark.timeout(120)
@pytest.mark.parametrize("followed", ["postgresql"], indirect=True)
def test_a_truncate_that_would_reach_other_tables_parks_the_table(followed: Followed) -> None:
    followed.sql("INSERT INTO fol.a VALUES (1, 1, 'x')")
    followed.run()
    followed.sql(
        "CREATE TABLE fol_dw.item (id int, a int CONSTRAINT of_a REFERENCES fol_dw.t_a ON DELETE CASCADE);"
        "INSERT INTO fol_dw.item VALUES (7, 1)"
    )
    followed.sql("TRUNCATE fol.a")
    (parked,) = followed.run(code=3).parked
    assert parked.error_type == TargetError.__name__
    assert "foreign key 'of_a'" in parked.why
    assert followed.sql("SELECT id FROM fol_dw.item").split() == ["7"]


def test_a_table_that_a_run_makes_has_the_definition_of_its_source(pg: PostgresServer) -> None:
    pg.psql(
        "DROP TABLE one.base CASCADE; "
        "CREATE TABLE one.orders (id serial PRIMARY KEY, code text UNIQUE NOT NULL, n int DEFAULT 7); "
        "INSERT INTO one.orders (code) SELECT 'c' || n FROM generate_series(1, 30) n"
    )
    for schema, columns, indexes in (("keys", "t|\\N", 1), ("full", "t|7", 2)):
        pg.psql("DROP TABLE IF EXISTS one_dw.orders")
        for _ in range(2):
            assert of_pg(pg, schema=schema).exit_code == 0
        found = pg.psql(
            "SELECT bool_or(attnotnull) FILTER (WHERE attname = 'code'), "
            "max(pg_get_expr(adbin, adrelid)) FILTER (WHERE attname = 'n') FROM pg_attribute "
            "LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum "
            "WHERE attrelid = 'one_dw.orders'::regclass"
        )
        assert found == columns
        made = pg.psql(
            "SELECT count(*) FROM pg_indexes WHERE schemaname = 'one_dw' AND tablename = 'orders'"
        )
        assert int(made) == indexes


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"mode": "incremental", "update_key": "id"}, "set primary_key"),
        ({"columns": {"v": "drop"}}, "masks"),
    ],
)
def test_a_definition_that_the_rows_would_break_is_refused(
    pg: PostgresServer, options: dict[str, Any], says: str
) -> None:
    report = of_pg(pg, schema="keys", **options)
    assert report.exit_code != 0
    assert all(says in (table.why or "") for table in report.tables)


def test_what_a_target_that_is_there_lacks_is_said_and_not_changed(pg: PostgresServer) -> None:
    pg.psql(
        "DROP TABLE one.base CASCADE; "
        "CREATE TABLE one.orders (id int PRIMARY KEY, code text UNIQUE, n int NOT NULL REFERENCES one.orders, "
        "CONSTRAINT above CHECK (n > 0)); "
        "CREATE INDEX by_n ON one.orders (n, id); CREATE INDEX odd ON one.orders (lower(code)); "
        "CREATE TABLE one_dw.orders (id int NOT NULL, code text, n int); "
        "CREATE UNIQUE INDEX its_own_name ON one_dw.orders (code); CREATE TABLE one_dw.odd (n int)"
    )
    target = {**pg.login, "currentSchema": "one_dw"}
    streams = {"one.*": {"object": "{table}", "schema": "full"}}
    file = load_replication({"source": pg.login, "target": target, "streams": streams})
    table = 'ALTER TABLE "one_dw"."orders"'
    wanted = (
        'ALTER TABLE "one_dw"."orders" ALTER COLUMN "n" SET NOT NULL',
        'ALTER TABLE "one_dw"."orders" ADD PRIMARY KEY ("id")',
        'CREATE INDEX CONCURRENTLY "by_n" ON "one_dw"."orders" USING btree (n, id)',
        'ALTER TABLE "one_dw"."orders" ADD CONSTRAINT "above" CHECK ((n > 0))',
        'CREATE INDEX CONCURRENTLY "odd_1" ON "one_dw"."orders" USING btree (lower(code))',
        f'{table} ADD CONSTRAINT "orders_n_fkey" FOREIGN KEY ("n") REFERENCES "one_dw"."orders" ("id")',
    )
    (plan,) = plan_replication(file, RunSettings(), parallelism=1).tables
    assert set(plan.lacks) == set(wanted)
    assert of_pg(pg, schema="full").exit_code == 0
    (status,) = status_of(file)
    assert set(status.lacks) == set(wanted)
    for statement in wanted:
        pg.psql(statement)
    (status,) = status_of(file)
    assert status.lacks == ()


def test_names_that_are_not_the_sources_are_shown_in_dry_run_and_report(
    pg: PostgresServer, mariadb_server: MariadbServer
) -> None:
    """One index is named as a table of the target is, the other has more bytes than PostgreSQL's names."""
    long = "é" * 40
    pg.psql("CREATE TABLE one_dw.odd (n int)")
    mariadb_server.sql("DROP DATABASE IF EXISTS named; CREATE DATABASE named")
    mariadb_server.sql(
        f"CREATE TABLE od (a int PRIMARY KEY, b int, KEY odd (b), KEY `od_{long}` (b, a))",
        database="named",
    )
    try:
        source = {
            **mariadb_server.login,
            "url": f"{mariadb_server.url.rpartition('/')[0]}/named",
        }
        target = {**pg.login, "currentSchema": "one_dw"}
        file = {
            "source": source,
            "target": target,
            "streams": {"named.od": {"object": "{table}", "schema": "full"}},
        }
        (plan,) = plan_replication(load_replication(file), RunSettings(), parallelism=1).tables
        wanted = ("index odd is odd_1", f"index od_{long} is od_{'é' * 29}_1")
        assert set(plan.renamed) == set(wanted)
        (table,) = spark_channel.replicate(None, file).tables
        assert all(each in table.why for each in wanted)
        made = pg.rows("SELECT indexname FROM pg_indexes WHERE schemaname = 'one_dw'")
        assert {name for (name,) in made} >= {"odd_1", f"od_{'é' * 29}_1"}
    finally:
        mariadb_server.sql("DROP DATABASE named")
