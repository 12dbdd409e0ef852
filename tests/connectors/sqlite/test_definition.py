"""`createTable=full` between SQLite files. What SQLite keeps as the schema is the judge: it is the same in both."""

import logging
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import spark_channel
from spark_channel.local import LocalEngine
from spark_channel.planning import Endpoint
from tests.behaviour.exactly_once.test_own_source import copy

DEFINITION = """
CREATE TABLE shops (id INTEGER PRIMARY KEY, name TEXT COLLATE NOCASE UNIQUE) STRICT;
CREATE TABLE "my orders" (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  code TEXT NOT NULL DEFAULT ('a' || 'b') COLLATE NOCASE, -- a comment, with a )
  amount DECIMAL(10,2) CHECK (amount >= 0),
  twice REAL GENERATED ALWAYS AS (amount * 2) VIRTUAL,
  before INT REFERENCES "my orders" (id),
  shop INT REFERENCES shops ON DELETE CASCADE,
  UNIQUE (code, amount)
);
CREATE UNIQUE INDEX [by shop] ON "my orders" (shop) WHERE shop IS NOT NULL;
CREATE INDEX by_expression ON "my orders" (lower(code), amount DESC);
CREATE TABLE pairs (a TEXT, b INT, PRIMARY KEY (a, b)) WITHOUT ROWID;
CREATE TRIGGER says AFTER INSERT ON shops BEGIN SELECT 1; END;
INSERT INTO shops VALUES (1, 'one'), (2, 'two');
INSERT INTO "my orders" (id, code, amount, before, shop) VALUES (1, 'x', 1.5, NULL, 1), (90, 'y', 2, 1, NULL);
DELETE FROM "my orders" WHERE id = 90;
INSERT INTO pairs VALUES ('x', 1), ('x', 2);
"""


@pytest.fixture(scope="module")
def engine() -> Iterator[LocalEngine]:
    with LocalEngine() as made:
        yield made


@pytest.fixture
def source(tmp_path: Path) -> Path:
    with closing(sqlite3.connect(tmp_path / "source.db")) as made:
        made.executescript(DEFINITION)
    return tmp_path / "source.db"


def schema(path: Path) -> list[str]:
    query = (
        "SELECT sql FROM sqlite_master WHERE sql <> '' AND type <> 'trigger' "
        "AND name NOT LIKE 'spark_channel%' ORDER BY name"
    )
    with closing(sqlite3.connect(path)) as made:
        return [
            text.replace("[by shop]", '"by shop"').replace("INDEX by_e", 'INDEX "by_e')
            for (text,) in made.execute(query)
        ]


def end(path: Path, table: str, **options: Any) -> Endpoint:
    return Endpoint("sqlite", {"path": str(path), "dbtable": f'"{table}"', **options})


def words(text: str) -> list[str]:
    """A statement without the quotes that SQLite does not need."""
    return text.replace('"', "").split()


def test_a_replicated_schema_is_the_same(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "target.db"
    file = {
        "source": {"path": str(source)},
        "target": {"path": str(target)},
        "defaults": {"schema": "full", "object": "{table}"},
        "streams": {"*": None},
    }
    for _ in range(2):
        report = spark_channel.replicate(None, file)
        assert report.exit_code == 0, report
        assert "foreign key" not in "".join(table.why for table in report.tables)
        assert list(map(words, schema(target))) == list(map(words, schema(source)))
    with closing(sqlite3.connect(target)) as copied:
        copied.execute('INSERT INTO "my orders" (amount) VALUES (3)')
        rows = copied.execute('SELECT id, code, twice FROM "my orders" ORDER BY id').fetchall()
    assert rows == [(1, "x", 3.0), (91, "ab", 6.0)]


def test_a_table_of_another_name_refers_to_itself(
    engine: LocalEngine, source: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """In the file of its source, whose indexes have the names of its own."""
    with caplog.at_level(logging.WARNING):
        copy(engine, end(source, "my orders"), end(source, "copies", createTable="full"))
    made = next(text for text in schema(source) if text.startswith('CREATE TABLE "copies"'))
    assert 'REFERENCES "copies" (id)' in made
    assert "index by shop is by shop_1" in caplog.text
    with closing(sqlite3.connect(source)) as copied:
        assert len(copied.execute("PRAGMA index_list(copies)").fetchall()) == 3


def test_what_the_library_refuses_is_named(
    engine: LocalEngine, source: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A collation of the application is in no other program."""
    with closing(sqlite3.connect(source)) as made:
        made.create_collation("german", lambda one, two: (one > two) - (one < two))
        made.executescript("CREATE INDEX own ON pairs (a COLLATE german, b)")
    target = tmp_path / "target.db"
    with caplog.at_level(logging.WARNING):
        copy(engine, end(source, "pairs"), end(target, "pairs", createTable="full"))
    assert "is made without index own: " in caplog.text
    assert "WITHOUT ROWID" in schema(target)[-1]
