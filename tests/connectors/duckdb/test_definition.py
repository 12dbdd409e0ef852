"""A new DuckDB table, as its source in another file is defined. DuckDB's own catalog is the judge."""

import logging
from pathlib import Path

import duckdb
import pytest

import spark_channel
from spark_channel.connectors.duckdb.dialect import DuckdbWriteDialect
from spark_channel.connectors.duckdb.session import DuckdbSession
from spark_channel.errors import SourceError
from spark_channel.replication import ReplicationReport

SHOP = """
CREATE SEQUENCE numbers START 5 INCREMENT 2;
CREATE SEQUENCE down START -1 INCREMENT -1 MINVALUE -1000;
CREATE TYPE mood AS ENUM ('sad', 'it''s fine');
CREATE TABLE people (id INTEGER PRIMARY KEY, name VARCHAR COLLATE NOCASE NOT NULL UNIQUE);
CREATE TABLE "my orders" (id BIGINT DEFAULT nextval('numbers') PRIMARY KEY, m mood DEFAULT 'sad',
  n INTEGER NOT NULL CHECK (n > 0), code VARCHAR, twice INTEGER GENERATED ALWAYS AS (n * 2),
  person INTEGER REFERENCES people (id), price DECIMAL(10, 2) DEFAULT 1.5, far INTEGER DEFAULT nextval('down'),
  UNIQUE (n, code), CHECK (n < 100 AND id <> 4));
CREATE INDEX by_n ON "my orders" (n);
CREATE INDEX "by lower" ON "my orders" (lower(code), n);
COMMENT ON TABLE "my orders" IS 'it''s';
COMMENT ON COLUMN "my orders".n IS 'how many';
COMMENT ON INDEX by_n IS 'quick';
INSERT INTO people VALUES (1, 'Ann');
INSERT INTO "my orders" (n, code, person) VALUES (1, 'a', 1), (2, 'b', NULL);
"""
_CATALOG = (
    "SELECT sql, comment FROM duckdb_tables() WHERE table_name NOT LIKE 'spark_channel%' ORDER BY ALL",
    "SELECT sql, comment FROM duckdb_indexes() WHERE table_name NOT LIKE 'spark_channel%' ORDER BY ALL",
    "SELECT column_name, comment FROM duckdb_columns() WHERE table_name IN ('people', 'my orders') ORDER BY ALL",
    "SELECT sql FROM duckdb_sequences() ORDER BY ALL",
)


def catalog(path: Path) -> list[object]:
    with duckdb.connect(str(path)) as database:
        return [database.execute(query).fetchall() for query in _CATALOG]


def run(path: Path, script: str) -> list[tuple[object, ...]]:
    with duckdb.connect(str(path)) as database:
        return database.execute(script).fetchall()


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    path = tmp_path / "shop.duckdb"
    run(path, SHOP)
    return path


def replicated(source: Path, target: Path) -> ReplicationReport:
    file = {
        "source": {"path": str(source)},
        "target": {"path": str(target)},
        "defaults": {"schema": "full", "object": "{table}"},
        "streams": {"*": None},
    }
    report = spark_channel.replicate(None, file)
    assert report.exit_code == 0, report
    return report


def test_a_replicated_schema_is_the_same_but_for_foreign_keys(shop: Path, tmp_path: Path) -> None:
    target = tmp_path / "dw.duckdb"
    wanted = repr(catalog(shop)).replace(", FOREIGN KEY (person) REFERENCES people(id)", "")
    for _ in range(2):
        report = replicated(shop, target)
        why = "; ".join(table.why for table in report.tables)
        assert "DuckDB adds none to a table that is there" in why
        assert repr(catalog(target)) == wanted
    shown = run(target, """INSERT INTO "my orders" (n) VALUES (7) RETURNING id, twice, far""")
    assert shown == [(9, 14, -3)]


def test_the_numbers_of_a_table_that_is_there_go_on_behind_its_rows(
    shop: Path, tmp_path: Path
) -> None:
    target = tmp_path / "dw.duckdb"
    replicated(shop, target)
    run(shop, """INSERT INTO "my orders" (id, n, code) VALUES (101, 3, 'c')""")
    replicated(shop, target)
    assert run(target, """INSERT INTO "my orders" (n) VALUES (7) RETURNING id""") == [(103,)]


def test_names_that_are_taken_get_a_number_and_the_warning_says_so(
    shop: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    target = tmp_path / "dw.duckdb"
    run(
        target,
        "CREATE TABLE other (a INTEGER); CREATE INDEX by_n ON other (a); CREATE SEQUENCE numbers START 1",
    )
    with caplog.at_level(logging.WARNING):
        replicated(shop, target)
    assert "index by_n is by_n_1" in caplog.text
    assert "sequence of id is numbers_1" in caplog.text
    assert run(target, """INSERT INTO "my orders" (n) VALUES (7) RETURNING id""") == [(9,)]


def test_a_unique_index_of_an_expression_is_no_key_of_its_columns(tmp_path: Path) -> None:
    path = tmp_path / "t.duckdb"
    run(path, "CREATE TABLE t (a INTEGER, b VARCHAR); CREATE UNIQUE INDEX u ON t (lower(b))")
    with DuckdbSession(path, read_only=True, lock_timeout=1, failure=SourceError) as session:
        table = DuckdbWriteDialect().find_table(session, "t")
    assert table is not None
    assert table.unique == ()
