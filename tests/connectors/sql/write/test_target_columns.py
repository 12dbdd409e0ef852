"""How rows meet a table's columns: one promise for every database, with its own types and names."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest

from spark_channel.connectors.duckdb.dialect import DuckdbTable, DuckdbWriteDialect
from spark_channel.connectors.mysql.dialect import MysqlColumn, MysqlTable
from spark_channel.connectors.mysql.options import MysqlWriteOptions
from spark_channel.connectors.mysql.write.dialect import MysqlWriteDialect
from spark_channel.connectors.postgresql.catalog import PgColumn, PgTable
from spark_channel.connectors.postgresql.options import PostgresWriteOptions
from spark_channel.connectors.postgresql.write.dialect import DIALECT as POSTGRESQL
from spark_channel.connectors.sql.catalog import Column, Table, TargetTable
from spark_channel.connectors.sql.dialect import WriteDialect
from spark_channel.connectors.sql.options import SqlWriteOptions
from spark_channel.connectors.sql.session import Session
from spark_channel.connectors.sql.write.target_columns import new_target, old_target
from spark_channel.connectors.sqlite.dialect import SqliteColumn, SqliteTable, SqliteWriteDialect
from spark_channel.errors import OptionError, SchemaError, TargetError


class PlainDialect(WriteDialect):
    """A third party's, with no more than it must say."""

    product = "Plain"

    def find_table(self, session: Session, text: str) -> Table | None:
        raise NotImplementedError

    def table_names(self, session: Session) -> list[str]:
        raise NotImplementedError

    def describe(self, session: Session, query: str) -> tuple[Column, ...]:
        raise NotImplementedError

    def arrow_type(self, column: Column) -> pa.DataType:
        return {"BIGINT": pa.int64(), "TEXT": pa.string()}[column.declared.upper()]

    def created_type(self, name: str, kind: pa.DataType, *, key: bool) -> str:
        return {pa.int64(): "BIGINT", pa.string(): "TEXT"}[kind]


@dataclass(frozen=True)
class Database:
    dialect: WriteDialect
    table: Callable[..., Table]
    column: Callable[..., Column]
    options: type[SqlWriteOptions] = SqlWriteOptions
    url: str = "x:y"

    def options_of(self, **given: Any) -> SqlWriteOptions:
        return self.options.parse({"url": self.url, "dbtable": "t", **given})[0]

    def there(self, **about: Any) -> Table:
        """`Id`, which must be given, `name`, and `twice`, which the database computes."""
        columns = (
            self.column("Id", "bigint", not_null=True),
            self.column("name", "text"),
            self.column("twice", "bigint", generated=True),
        )
        return self.table(schema="main", name="t", columns=columns, **about)

    def old(self, rows: pa.Schema, table: Table | None = None, **given: Any) -> TargetTable:
        return old_target(self.dialect, table or self.there(), rows, self.options_of(**given))

    def new(self, rows: pa.Schema, **given: Any) -> TargetTable:
        return new_target(self.dialect, "main", "t", "main.t", rows, self.options_of(**given))


def _pg_column(name: str, declared: str, **about: Any) -> PgColumn:
    base = {"bigint": "int8"}.get(declared, declared)
    return PgColumn(name, declared, base=base, builtin=True, **about)


DATABASES = {
    "plain": Database(PlainDialect(), Table, Column),
    "sqlite": Database(SqliteWriteDialect(), SqliteTable, SqliteColumn),
    "duckdb": Database(
        DuckdbWriteDialect(),
        DuckdbTable,
        lambda name, declared, **about: Column(
            name, {"bigint": "BIGINT", "text": "VARCHAR"}[declared], **about
        ),
    ),
    "mysql": Database(
        MysqlWriteDialect(),
        MysqlTable,
        MysqlColumn,
        MysqlWriteOptions,
        "jdbc:mysql://127.0.0.1/main",
    ),
    "postgresql": Database(
        POSTGRESQL,
        lambda **about: PgTable(kind="v" if about.get("is_view") else "r", **about),
        _pg_column,
        PostgresWriteOptions,
        "postgresql://127.0.0.1/main",
    ),
}
ROWS = pa.schema([("ID", pa.int64()), ("name", pa.string())])


@pytest.fixture(params=list(DATABASES))
def database(request: pytest.FixtureRequest) -> Database:
    return DATABASES[request.param]


def test_columns_are_matched_by_name_and_keep_the_spelling_of_the_table(database: Database) -> None:
    found = database.old(ROWS)
    assert [(column.name, column.target) for column in found.columns] == [
        ("ID", "Id"),
        ("name", "name"),
    ]
    assert [name for name, _ in found.declared] == ["Id", "name", "twice"]
    assert (found.create, found.key, found.operation) == (None, (), None)


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        (
            [("ID", pa.int64()), ("nme", pa.string())],
            "column 'nme' is not in table .*, which has Id, name, twice",
        ),
        (
            [("name", pa.string())],
            r"needs column 'Id' \(NOT NULL without a default\), .*; they have name",
        ),
        ([("Id", pa.int64()), ("twice", pa.int64())], r"'twice' is computed by \w+ \(generated\)"),
        (
            [("Id", pa.string())],
            "column 'Id' is string, and the table's column 'Id' is \\w+.*cannot hold it exactly",
        ),
        (
            [("Id", pa.int64()), ("ID", pa.int64())],
            "are one name|two columns of the rows are column 'Id'",
        ),
    ],
)
def test_rows_that_do_not_meet_the_table_are_refused(
    database: Database, rows: list[tuple[str, pa.DataType]], why: str
) -> None:
    with pytest.raises(SchemaError, match=why):
        database.old(pa.schema(rows))


def test_a_view_is_refused(database: Database) -> None:
    with pytest.raises(TargetError, match="name the table behind it"):
        database.old(ROWS, database.there(is_view=True))


def test_a_key_is_held_unique_by_the_table(database: Database) -> None:
    keyed = database.there(unique=(("Id",),), primary=("Id",))
    assert database.old(ROWS, keyed, writeMode="upsert").key == ("Id",)
    assert database.old(ROWS, keyed, writeMode="upsert", keyColumns="iD").key == ("Id",)
    with pytest.raises(TargetError, match=r"does not hold \(name\) unique, so writeMode upsert"):
        database.old(ROWS, keyed, writeMode="upsert", keyColumns="name")
    with pytest.raises(OptionError, match="'writeMode' upsert needs 'keyColumns'"):
        database.old(ROWS, writeMode="upsert")


def test_a_change_feed_brings_its_operation_beside_the_columns(database: Database) -> None:
    feed = ROWS.append(pa.field("_op", pa.string()))
    keyed = database.there(unique=(("Id",),), primary=("Id",))
    found = database.old(feed, keyed, writeMode="apply")
    assert (found.names, found.operation) == (("Id", "name"), "_op")
    assert found.staged_names == ("Id", "name", "_op")
    with pytest.raises(SchemaError, match="needs column '_op'"):
        database.old(ROWS, keyed, writeMode="apply")


def test_a_new_table_has_the_key_and_the_types_that_were_chosen(database: Database) -> None:
    if database.dialect is POSTGRESQL:
        pytest.skip("PostgreSQL asks its catalog for the types of the table that it has made")
    rows = pa.schema(
        [pa.field("id", pa.int64(), nullable=False), ("name", pa.string()), ("n", pa.int16())]
    )
    made = database.new(rows, createTableColumnTypes="N BIGINT, NAME STRING")
    assert made.create is not None
    assert made.create.startswith(f"CREATE TABLE {made.sql} (")
    assert made.create.count("NOT NULL") == 1
    declared = dict(made.declared)
    assert declared["n"] == declared["id"] != declared["name"]
    keyed = database.new(
        rows, writeMode="upsert", keyColumns="ID", createTableColumnTypes="n BIGINT"
    )
    assert keyed.key == ("id",)
    assert f"PRIMARY KEY ({database.dialect.quoted('id')})" in str(keyed.create)
    with pytest.raises(OptionError, match="'createTableColumnTypes' names column 'nope'"):
        database.new(rows, createTableColumnTypes="nope STRING")
    with pytest.raises(SchemaError, match="no columns"):
        database.new(pa.schema([]))
