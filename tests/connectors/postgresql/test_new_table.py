"""`createTable=full` between PostgreSQL databases. `pg_dump` is the judge: it prints the same of both tables."""

import logging
import re
import sqlite3
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from spark_channel.errors import ChannelError, OptionError, SchemaError
from spark_channel.local import LocalEngine
from spark_channel.planning import Endpoint
from spark_channel.progress.render import progress_line
from tests.connectors.postgresql.conftest import Pg, own_schema
from tests.connectors.sql.test_own_source import copy
from tests.servers.postgres import PostgresServer, programs

DEFINITION = """
CREATE TABLE orders (
  id bigint GENERATED ALWAYS AS IDENTITY (START 5 INCREMENT 2) PRIMARY KEY,
  line serial,
  "Kind of" varchar(20) COLLATE "C" NOT NULL DEFAULT 'it''s' CHECK ("Kind of" <> ''),
  amount numeric(10,2) DEFAULT 0.00,
  letters char(3),
  length int GENERATED ALWAYS AS (length("Kind of")) STORED,
  at timestamptz(3) DEFAULT now(),
  days int4range,
  tags text[] DEFAULT '{}',
  address inet,
  boss bigint REFERENCES orders ON DELETE SET NULL DEFERRABLE INITIALLY DEFERRED,
  CONSTRAINT "positive (or not)" CHECK (amount >= 0) NOT VALID,
  EXCLUDE USING gist (days WITH &&),
  UNIQUE ("Kind of", amount)
);
CREATE INDEX "some USING others" ON orders (lower("Kind of")) WHERE id > 3;
CREATE UNIQUE INDEX by_line ON orders (line) INCLUDE (amount);
CREATE INDEX by_time ON orders (at DESC NULLS LAST, id) WITH (fillfactor = 70);
COMMENT ON TABLE orders IS 'what was "ordered"';
COMMENT ON COLUMN orders."Kind of" IS 'it''s';
COMMENT ON INDEX by_line IS 'for clerks';
COMMENT ON CONSTRAINT orders_pkey ON orders IS 'the key';
INSERT INTO orders ("Kind of", amount, days)
  SELECT 'k' || n, n, int4range(n, n + 1) FROM generate_series(1, 40) n;
"""


@pytest.fixture(scope="module")
def engine() -> Iterator[LocalEngine]:
    with LocalEngine() as made:
        yield made


@pytest.fixture
def target(postgres_server: PostgresServer) -> Iterator[Pg]:
    with own_schema(postgres_server) as made:
        yield made


def end(place: Pg, table: str = "orders", **options: str) -> Endpoint:
    return Endpoint("postgresql", place.options(dbtable=table, **options))


def dumped(place: Pg, table: str = "orders") -> list[str]:
    """What `pg_dump` prints of the table's definition, without comments and without the schema's name."""
    server = place.server
    url = server.url.replace("//", f"//{server.user}:{server.password}@")
    given = [str(programs() / "pg_dump"), "-s", "-O", "-t", f"{place.schema}.{table}", "-d", url]
    text = subprocess.run(given, capture_output=True, check=True, text=True).stdout
    lines = re.sub(rf"\b{place.schema}\.", "", text).split("\n")
    return [line for line in lines if line and not line.startswith(("--", "\\"))]


def test_the_definition_is_the_same(engine: LocalEngine, pg: Pg, target: Pg) -> None:
    pg.psql(DEFINITION)
    copy(engine, end(pg), end(target, createTable="full"))
    assert dumped(target) == dumped(pg)
    values = "SELECT count(*), sum(length), max(id), max(line) FROM orders"
    assert target.psql(values) == pg.psql(values)


def test_a_table_that_computes_a_column_as_its_source_does_takes_more_rows(
    engine: LocalEngine, pg: Pg, target: Pg
) -> None:
    pg.psql(DEFINITION)
    copy(engine, end(pg), end(target, createTable="full"))
    target.psql("DELETE FROM orders")
    copy(engine, end(pg), end(target, createTable="full"))
    values = "SELECT count(*), sum(length), max(id), max(line) FROM orders"
    assert target.psql(values) == pg.psql(values)
    target.psql(
        """ALTER TABLE orders DROP length; ALTER TABLE orders ADD length int GENERATED ALWAYS AS (1) STORED"""
    )
    with pytest.raises(SchemaError, match="'length' is computed"):
        copy(engine, end(pg), end(target, createTable="full"))


def test_numbers_go_on_behind_the_greatest(engine: LocalEngine, pg: Pg, target: Pg) -> None:
    """Also where a row was given a number by hand, of which the source's sequence knows nothing."""
    pg.psql(DEFINITION)
    pg.psql(
        """INSERT INTO orders (id, line, "Kind of") OVERRIDING SYSTEM VALUE VALUES (1001, 500, 'x')"""
    )
    copy(engine, end(pg), end(target, createTable="full"))
    target.psql("""INSERT INTO orders ("Kind of") VALUES ('new')""")
    assert target.psql("SELECT id, line FROM orders WHERE \"Kind of\" = 'new'") == "1003|501"


def test_names_that_are_taken_get_others(
    engine: LocalEngine, pg: Pg, caplog: pytest.LogCaptureFixture
) -> None:
    """An index's name is its schema's: a copy beside its source has others, and says which."""
    pg.psql(DEFINITION)
    with caplog.at_level(logging.WARNING):
        copy(engine, end(pg), end(pg, "orders_copy", createTable="full"))
    assert "index by_line is by_line_1" in caplog.text
    found = "SELECT count(*) FROM pg_indexes WHERE tablename = "
    assert pg.psql(found + "'orders_copy'") == pg.psql(found + "'orders'")


def test_what_the_target_cannot_have_is_named_before_a_row_moves(
    engine: LocalEngine, pg: Pg, target: Pg, caplog: pytest.LogCaptureFixture
) -> None:
    pg.psql(
        "CREATE FUNCTION twice(n int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT 2 * n'; "
        "CREATE TABLE shops (id int PRIMARY KEY); CREATE TYPE mood AS ENUM ('good', 'bad'); "
        "CREATE TABLE orders (id int PRIMARY KEY, n int CHECK (twice(n) > 0), how mood, shop int REFERENCES shops); "
        "CREATE INDEX by_shop ON orders (shop); ALTER TABLE orders CLUSTER ON by_shop; "
        "ALTER TABLE orders REPLICA IDENTITY FULL; ALTER TABLE orders ALTER n SET STATISTICS 500; "
        "CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'; "
        "CREATE TRIGGER t BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION nothing(); "
        "INSERT INTO orders VALUES (1, 1, 'good', NULL)"
    )
    other = PostgresServerOfOther(target)
    with caplog.at_level(logging.WARNING):
        copy(engine, end(pg), other.end(createTable="full"))
    said = caplog.text
    assert "check orders_n_check: " in said
    assert "does not exist" in said
    assert f"type {pg.schema}.mood of how: " in said
    assert "foreign key orders_shop_fkey: when shops has its rows, run ALTER TABLE" in said
    assert "trigger t: no copy carries it" in said
    assert "CLUSTER ON by_shop: no copy carries it" in said
    assert "REPLICA IDENTITY FULL: no copy carries it" in said
    assert "statistics target of n: no copy carries it" in said
    assert other.psql("SELECT id, n, how FROM orders") == "1|1|good"
    assert other.psql("SELECT count(*) FROM pg_indexes WHERE tablename = 'orders'") == "2"
    assert "trial" not in other.psql("SELECT string_agg(relname, ' ') FROM pg_class")


class PostgresServerOfOther:
    """A database of its own, which has none of the source's functions and types."""

    def __init__(self, place: Pg) -> None:
        self._server, self._name = place.server, f"other_{place.schema}"
        self._server.psql(f"CREATE DATABASE {self._name}")

    def end(self, **options: str) -> Endpoint:
        login = {**self._server.login, "dbtable": "orders"}
        login["url"] = login["url"].rpartition("/")[0] + f"/{self._name}"
        return Endpoint("postgresql", {**login, **{k.lower(): v for k, v in options.items()}})

    def psql(self, statement: str) -> str:
        return self._server.psql(statement, database=self._name)


def test_a_failure_while_an_index_is_built_leaves_nothing(
    engine: LocalEngine, pg: Pg, target: Pg
) -> None:
    """The rows of a query break the source's key: no table is seen, and the rerun with good rows has all."""
    pg.psql(DEFINITION)
    pg.psql("ALTER TABLE orders DROP CONSTRAINT orders_days_excl; CREATE TABLE other (LIKE orders)")
    bad = end(target, createTable="full", postSql="SELECT 1 / 0")
    with pytest.raises(ChannelError, match="division by zero"):
        copy(engine, end(pg), bad)
    assert target.psql("SELECT to_regclass('orders') IS NULL") == "t"
    assert (
        target.psql(f"SELECT count(*) FROM pg_sequences WHERE schemaname = '{target.schema}'")
        == "0"
    )
    copy(engine, end(pg), end(target, createTable="full"))
    assert dumped(target) == dumped(pg)


def test_a_table_that_is_dropped_and_made_again_keeps_its_names(
    engine: LocalEngine, pg: Pg, target: Pg, caplog: pytest.LogCaptureFixture
) -> None:
    pg.psql(DEFINITION)
    for _ in range(2):
        copy(
            engine,
            end(pg),
            end(target, createTable="full", truncate="false"),
            save_mode="overwrite",
        )
    assert dumped(target) == dumped(pg)
    assert "other names" not in caplog.text


@pytest.mark.parametrize(
    "options", [{"commit": "task"}, {"maxdirtyrows": "5"}], ids=["commit", "dirty rows"]
)
def test_full_is_published_as_a_whole(
    engine: LocalEngine, pg: Pg, target: Pg, options: dict[str, str]
) -> None:
    pg.psql(DEFINITION)
    with pytest.raises(OptionError, match="createTable=full"):
        copy(engine, end(pg), end(target, createTable="full", **options))


def test_rows_of_a_query_have_no_definition(engine: LocalEngine, pg: Pg, target: Pg) -> None:
    pg.psql(DEFINITION)
    source = Endpoint("postgresql", pg.options(query="SELECT id FROM orders"))
    with pytest.raises(OptionError, match="'createTable' got 'keys'"):
        copy(engine, source, end(target, createTable="keys"))


def test_rows_that_are_added_let_numbers_go_on_behind_them(
    engine: LocalEngine, pg: Pg, target: Pg
) -> None:
    """Also of a table that is there, and whatever its sequence gave out before."""
    pg.psql(
        "CREATE TABLE t (id int GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, n serial, v text);"
        "INSERT INTO t (id, n) VALUES (40, 7)"
    )
    make = "CREATE TABLE t (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, n serial, v text);"
    target.psql(f"{make} SELECT setval(pg_get_serial_sequence('t', 'n'), 90)")
    copy(engine, end(pg, "t"), end(target, "t", createtable="full"))
    target.psql("INSERT INTO t (v) VALUES ('new')")
    assert target.psql("SELECT id, n FROM t WHERE v = 'new'") == "41|91"


def test_what_no_limit_slows_down_is_announced(
    engine: LocalEngine, pg: Pg, target: Pg, caplog: pytest.LogCaptureFixture
) -> None:
    pg.psql("CREATE TABLE t (id int PRIMARY KEY, v text DEFAULT 'x'); CREATE INDEX by_v ON t (v)")
    with caplog.at_level(logging.INFO):
        copy(engine, end(pg, "t"), end(target, "t", createtable="full", rowspersecond="1000"))
    label = f"table {target.schema}.t gets"
    said = [record.message for record in caplog.records if record.message.startswith(label)]
    assert said[0].endswith("no limit slows down: primary key t_pkey; index by_v")
    assert f"{label} index by_v, which no limit slows down" in said


def test_a_build_is_shown_while_it_lasts(engine: LocalEngine, pg: Pg, target: Pg) -> None:
    """The index waits for a lock, which is given back when the line was read."""
    pg.psql(
        f"CREATE FUNCTION {pg.schema}.held(n int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS "
        "'BEGIN IF n = 1 AND current_setting(''application_name'') LIKE ''spark-channel%'' "
        "THEN PERFORM pg_advisory_xact_lock(671); END IF; RETURN n; END';"
        "CREATE TABLE t (id int); INSERT INTO t SELECT g FROM generate_series(1, 50000) g;"
        f"CREATE INDEX by_id ON t ({pg.schema}.held(id))"
    )
    waits = (
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 671 AND NOT granted"
    )
    login = pg.server.login
    with (
        psycopg.connect(
            pg.server.url, user=login["user"], password=login.get("password"), autocommit=True
        ) as holder,
        ThreadPoolExecutor(1) as pool,
    ):
        holder.execute("SELECT pg_advisory_lock(671)")
        copied = pool.submit(copy, engine, end(pg, "t"), end(target, "t", createTable="full"))
        while pg.psql(waits) == "0":
            assert not copied.done()
        (job,) = engine.registry().live("")
        line = progress_line(job.status())
        assert "publishing - 50k rows" in line
        assert "builds index by_id over 50 000 rows, under no limit" in line
        holder.execute("SELECT pg_advisory_unlock(671)")
        copied.result(60)
    assert "by_id" in "".join(dumped(target, "t"))


def test_statements_of_indexes_and_constraints_go_into_a_file(
    engine: LocalEngine, pg: Pg, target: Pg, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pg.psql(DEFINITION)
    after = tmp_path / "after.sql"
    into = end(target, createTable="full", schemaAfter=str(after))
    with caplog.at_level(logging.WARNING):
        copy(engine, end(pg), into)
    assert "gets later, by a file of statements: " in caplog.text
    assert not [line for line in dumped(target) if "INDEX" in line or "PRIMARY KEY" in line]
    text = after.read_text()
    assert 'CREATE INDEX CONCURRENTLY "by_time" ON' in text
    for statement in text.split(";\n")[:-1]:
        target.psql(statement)
    assert dumped(target) == dumped(pg)
    after.write_text("mine")
    copy(engine, end(pg), into, save_mode="overwrite")  # a table that is there is left as it is
    assert after.read_text() == "mine"


def test_a_table_that_is_dropped_gets_again_what_it_had_of_the_file(
    engine: LocalEngine, pg: Pg, target: Pg, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pg.psql(DEFINITION)
    after = tmp_path / "after.sql"
    into = end(target, createTable="full", schemaAfter=str(after), truncate="false")
    copy(engine, end(pg), into)
    for statement in after.read_text().split(";\n")[:-1]:
        target.psql(statement)
    target.psql("CREATE INDEX of_a_dba ON orders (lower(letters)); DROP INDEX by_line")
    caplog.clear()
    copy(engine, end(pg), into, save_mode="overwrite")
    text, table = after.read_text(), f'"{target.schema}"."orders"'
    assert [line for line in text.splitlines() if not line.startswith("--")] == [
        f'CREATE UNIQUE INDEX CONCURRENTLY "by_line" ON {table} USING btree (line) INCLUDE (amount);',
        f"""COMMENT ON INDEX "{target.schema}"."by_line" IS 'for clerks';""",
    ]
    lost = "index of_a_dba, which the table that is dropped had: "
    made = f'CREATE INDEX "of_a_dba" ON {table} USING btree (lower((letters)::text))'
    assert lost + made in caplog.text
    for statement in text.split(";\n")[:-1]:
        target.psql(statement)
    assert dumped(target) == dumped(pg)


def test_indexes_whose_names_differ_in_case_get_names_of_their_own(
    engine: LocalEngine, pg: Pg, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pg.psql(
        'CREATE TABLE orders (a int, b int); CREATE INDEX "By_It" ON orders (a);'
        "CREATE INDEX by_it ON orders (b); INSERT INTO orders VALUES (1, 2)"
    )
    path = tmp_path / "t.db"
    options = {"path": str(path), "dbtable": "orders", "createTable": "full"}
    with caplog.at_level(logging.WARNING):
        copy(engine, end(pg), Endpoint("sqlite", options))
    assert "index by_it is by_it_1" in caplog.text
    with closing(sqlite3.connect(path)) as made:
        found = made.execute(
            "SELECT name FROM pragma_index_list('orders') ORDER BY name"
        ).fetchall()
    assert found == [("By_It",), ("by_it_1",)]


def test_a_name_that_is_too_long_is_cut(
    engine: LocalEngine, target: Pg, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, name = tmp_path / "s.db", "by_" + "ä" * 40
    with closing(sqlite3.connect(path)) as made, made:
        made.execute("CREATE TABLE orders (a INT)")
        made.execute(f"CREATE INDEX {name} ON orders (a)")
    source = Endpoint("sqlite", {"path": str(path), "dbtable": "orders"})
    with caplog.at_level(logging.WARNING):
        copy(engine, source, end(target, createTable="full"))
    cut = "by_" + "ä" * 29 + "_1"
    assert f"index {name} is {cut}" in caplog.text
    assert f"CREATE INDEX {cut} ON orders USING btree (a);" in "\n".join(dumped(target)).replace(
        '"', ""
    )
