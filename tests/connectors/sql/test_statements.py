"""Statements are built from parsed parts; what a user gives cannot become more than it may be."""

import sqlite3
from contextlib import closing
from types import SimpleNamespace
from typing import Any, cast

import pytest
import sqlglot
from hypothesis import given
from hypothesis import strategies as st
from sqlglot import exp

from spark_channel.connectors.base.types import arrow_columns, sql_columns
from spark_channel.connectors.postgresql.catalog import name_parts
from spark_channel.connectors.sql import statements
from spark_channel.connectors.sql.catalog import Column
from spark_channel.connectors.sql.options import SqlWriteOptions
from spark_channel.connectors.sql.read.source import ReadSource
from spark_channel.connectors.sql.statements import name_readings, parsed_name, quoted_parts
from spark_channel.connectors.sqlite.dialect import SqliteDialect, SqliteWriteDialect
from spark_channel.connectors.sqlite.loader import insert_one
from spark_channel.connectors.sqlite.session import statements_of
from spark_channel.errors import OptionError

NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=20)


@given(table=NAMES, column=NAMES)
def test_any_name_is_only_a_name(table: str, column: str) -> None:
    """Whatever the name holds, SQLite makes that table and that column, and nothing else."""
    if table.lower().startswith("sqlite_"):
        table = "x" + table
    dialect = SqliteWriteDialect()
    place = dialect.place("main", table)
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("CREATE TABLE witness (w)")
        connection.execute(
            dialect.created(place, [Column(column, "TEXT", not_null=True)], [column])
        )
        named = cast(Any, SimpleNamespace(staged_names=[column]))
        connection.execute(insert_one(cast(Any, None), named, place), ("value",))
        read = ReadSource(dialect, place, table, None, ())
        chosen = read.sql([read.column(column)])
        assert connection.execute(chosen).fetchall() == [("value",)]
        connection.execute(dialect.emptied(place, SqlWriteOptions(dbtable="t")))
        assert connection.execute(chosen).fetchall() == []
        connection.execute(f"DROP TABLE {place}")
        assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("witness",)]


def test_conditions_are_joined_without_being_merged() -> None:
    source = ReadSource(SqliteDialect(), '"t"', "t", None, (), condition="a = 1 OR b = 2")
    text = source.sql(["*"], ["a = 1 OR b = 2"])
    assert text.count("OR") == 2
    parsed = sqlglot.parse_one(text, read="sqlite").args["where"].this
    assert isinstance(parsed, exp.And)


def test_columns_inside_subqueries_are_left_alone() -> None:
    tree = statements.condition("a IN (SELECT b FROM u) AND c > 0", "sqlite", "where")
    assert sorted(column.name for column in statements.top_columns(tree)) == ["a", "c"]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("id BIGINT, `odd name` DECIMAL(10, 2)", {"id": "int64", "odd name": "decimal128(10, 2)"}),
        (
            "a STRING,b TIMESTAMP,c TIMESTAMP_NTZ",
            {"a": "string", "b": "timestamp[us, tz=UTC]", "c": "timestamp[us]"},
        ),
        ("a DECIMAL", {"a": "decimal128(10, 0)"}),
        (
            "a BYTE, b SHORT, c LONG, d FLOAT",
            {"a": "int8", "b": "int16", "c": "int64", "d": "float"},
        ),
    ],
)
def test_column_lists_in_sparks_words(text: str, found: dict[str, str]) -> None:
    assert {name: str(kind) for name, kind in arrow_columns(text, "customSchema").items()} == found


@pytest.mark.parametrize(
    "text",
    [
        "",
        "id",
        "id BIGINT)",
        "id BIGINT); DROP TABLE x; --",
        "id BIGINT, id INT",
        "id NOSUCHTYPE",
        "a MAP<INT, INT>",
        "id BIGINT NOT NULL",
        "a DECIMAL(39, 2)",
        "a DECIMAL(5, 6)",
        "PRIMARY KEY (a)",
    ],
)
def test_what_is_no_column_list(text: str) -> None:
    with pytest.raises(OptionError) as caught:
        arrow_columns(text, "customSchema")
    assert caught.value.option == "customSchema"


def test_types_of_sql_keep_their_lengths() -> None:
    assert sql_columns("name VARCHAR(64), c CHAR(3)", "createTableColumnTypes") == {
        "name": "VARCHAR(64)",
        "c": "CHAR(3)",
    }


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("DELETE FROM a", ["DELETE FROM a"]),
        ("A; B;; -- end", ["A;", "B;"]),
        ("INSERT INTO a VALUES (';'); /* ; */ B", ["INSERT INTO a VALUES (';');", "/* ; */ B"]),
        (
            "CREATE TRIGGER t AFTER INSERT ON a BEGIN DELETE FROM b; DELETE FROM c; END; D",
            ["CREATE TRIGGER t AFTER INSERT ON a BEGIN DELETE FROM b; DELETE FROM c; END;", "D"],
        ),
        (" ; ", []),
    ],
)
def test_scripts_are_taken_apart(text: str, found: list[str]) -> None:
    assert statements_of([text], "preSql") == found


@pytest.mark.parametrize("dialect", ["sqlite", "duckdb", "postgres", "mysql"])
@pytest.mark.parametrize(
    "text",
    [
        *("orders", "Orders_2", "a.b"),
        *('"orders"', '"main"."or ders"', 'main."x"', '"a""b"'),
        *("`orders`", "`main`.`or ders`", "main.`x`", "`a``b`", "`a.b`"),
    ],
)
def test_names_that_are_read_without_a_parser_are_read_as_by_it(text: str, dialect: str) -> None:
    tree = parsed_name(text, dialect)
    wanted = {("here", text)} if tree is None else {("here", text), (tree.db or "here", tree.name)}
    assert set(name_readings(text, dialect, "here")) == wanted


@given(st.lists(NAMES, min_size=1, max_size=3), st.sampled_from(["postgres", "mysql"]))
def test_a_name_in_quotes_has_the_parts_that_the_parser_finds(
    names: list[str], dialect: str
) -> None:
    quote = "`" if dialect == "mysql" else '"'
    text = ".".join(f"{quote}{name}{quote}" for name in names)
    found = quoted_parts(text, dialect)
    if found is not None:
        tree = parsed_name(text, dialect)
        assert tree is not None
        assert found == (tree.db or None, tree.name)


@given(
    st.lists(st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{2,8}", fullmatch=True), min_size=1, max_size=2)
)
def test_a_plain_name_of_postgresql_is_folded_as_the_parser_and_the_server_do(
    names: list[str],
) -> None:
    tree = parsed_name(".".join(names), "postgres")
    if tree is not None:  # not a word that sqlglot reads as a statement or a function
        assert name_parts(".".join(names)) == (tree.db.lower() or None, tree.name.lower())
