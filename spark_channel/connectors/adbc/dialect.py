"""The SQL of a database behind an ADBC driver, made by sqlglot: statements, merges and claims."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from typing import cast

import pyarrow as pa
import sqlglot
from sqlglot import exp

from spark_channel.connectors.adbc.session import AdbcSession
from spark_channel.connectors.sql.catalog import Column, ReadColumn, Table, TargetTable
from spark_channel.connectors.sql.dialect import WriteDialect
from spark_channel.connectors.sql.session import Session
from spark_channel.connectors.sql.statements import identifier, only_name, parsed_name
from spark_channel.connectors.sql.write.claim_tables import ClaimDialect
from spark_channel.connectors.sql.write.merge import PLACE, Merge
from spark_channel.connectors.sql.write.postgresql_claims import (
    claim_dialect as claims_of_postgresql,
)
from spark_channel.connectors.sql.write.sqlite_inserts import has_triggers, insert_words
from spark_channel.errors import TargetError

__all__ = [
    "AdbcDialect",
    "AdbcMerge",
    "arranged",
    "check_unique",
    "claim_dialect",
    "make_unique",
    "may_skip",
    "placed",
]

_SKIPPING = """
WITH RECURSIVE family (oid) AS (
  SELECT c.oid FROM pg_catalog.pg_class c WHERE c.oid = pg_catalog.to_regclass($1)
  UNION SELECT i.inhrelid FROM pg_catalog.pg_inherits i JOIN family f ON i.inhparent = f.oid
)
SELECT 1 FROM family f JOIN pg_catalog.pg_trigger g ON g.tgrelid = f.oid
WHERE NOT g.tgisinternal AND g.tgtype::int & 66 <> 0 LIMIT 1
"""
"""Triggers BEFORE a statement or INSTEAD OF one, also of partitions."""


@dataclass(frozen=True, slots=True)
class AdbcColumn(Column):
    """`kind` is the driver's type."""

    kind: pa.DataType = field(default_factory=pa.null)


class AdbcDialect(WriteDialect):
    """`sql` is sqlglot's name of the SQL."""

    product = "ADBC"
    no_keys = "ADBC drivers do not say which keys are unique"

    def __init__(self, sql: str) -> None:
        self.sql = sql
        self.has_savepoints = sql in ("postgres", "mysql", "sqlite")

    def quoted(self, name: str) -> str:
        return identifier(name).sql(self.sql or None)

    def literal(self, value: object, column: Column | None) -> str:
        plain = str(value) if isinstance(value, date | Decimal) else value
        return exp.convert(plain).sql(self.sql or None)

    def same_name(self, name: str, names: Sequence[str]) -> str | None:
        return only_name(name, names)

    def limited(self, query: str, rows: int, after: int = 0) -> str:
        tree = cast(exp.Select, sqlglot.parse_one(query, read=self.sql or None)).limit(rows)
        return (tree.offset(after) if after else tree).sql(self.sql or None)

    def find_table(self, session: Session, text: str) -> Table | None:
        """Return the table that `text` names. Reading fails with the driver's error if it does not exist."""
        if text.lstrip().startswith("("):
            return None
        schema, name = self.named(text)
        query = f"SELECT * FROM {self.place(schema, name)}"  # noqa: S608 - quoted
        return Table(schema or "", name, self.describe(session, query))

    def named(self, text: str) -> tuple[str | None, str]:
        """(schema, name) that `dbtable` means; a text that this SQL cannot read as a name is the name itself."""
        tree = parsed_name(text, self.sql)
        return (None, text) if tree is None else (tree.db or None, tree.name)

    def table_names(self, session: Session) -> list[str]:
        return []

    def describe(self, session: Session, query: str) -> tuple[Column, ...]:
        """By running it: some drivers take a column's type from its first rows."""
        schema = cast(AdbcSession, session).schema_of(query)
        return tuple(
            AdbcColumn(arrow_field.name, str(arrow_field.type), kind=arrow_field.type)
            for arrow_field in schema
        )

    def arrow_type(self, column: Column) -> pa.DataType:
        return cast(AdbcColumn, column).kind

    def key_type(self, column: Column, read: ReadColumn | None) -> pa.DataType | None:
        kind = self.arrow_type(column)
        ordered = (
            pa.types.is_integer,
            pa.types.is_floating,
            pa.types.is_decimal,
            pa.types.is_string,
            pa.types.is_large_string,
            pa.types.is_date,
            pa.types.is_timestamp,
        )
        return kind if any(is_kind(kind) for is_kind in ordered) else None

    def size(self, text: str) -> str | None:
        return None

    def misfit_advice(self, column: ReadColumn) -> str:
        return "Drivers take a column's type from its first rows: make it one type in 'query'"


def claim_dialect(session: AdbcSession, schema: str, dialect: str) -> ClaimDialect:
    """The tables that the database's own connector has, where there is one."""
    if dialect == "postgres":
        return claims_of_postgresql(session.rows, schema, lambda number: f"${number}")
    space = schema or None

    def trigger(name: str) -> str | None:
        if dialect != "sqlite":
            return None
        query = "SELECT 1 FROM sqlite_master WHERE type = 'trigger' AND tbl_name = ?"
        return "it has a trigger" if session.rows(query, (name,)) else None

    return ClaimDialect(
        table=lambda name: AdbcDialect(dialect).place(space, name),
        exists=lambda name: name in session.tables(space, name),
        mark=lambda number: f"${number}" if dialect == "redshift" else "?",
        distrust=trigger,
    )


def arranged(rows: pa.Table, target: TargetTable) -> pa.Table:
    """The columns of `rows` as they are staged: by the table's names."""
    names = [column.name for column in target.columns] + (
        [target.operation] if target.operation else []
    )
    return pa.table([rows.column(name) for name in names], names=list(target.staged_names))


def placed(rows: pa.Table, before: int) -> pa.Table:
    """`rows` with `PLACE`, when `before` rows came before them."""
    return rows.append_column(PLACE, pa.array(range(before, before + rows.num_rows), pa.int64()))


def make_unique(session: AdbcSession, target: TargetTable, dialect: AdbcDialect) -> None:
    """Give a table that was just made its key, which ON CONFLICT asks for."""
    digest = hashlib.sha256(target.name.encode()).hexdigest()[:12]
    index, on = dialect.quoted(f"spark_channel_key_{digest}"), target.sql
    if dialect.sql == "sqlite":  # an index is named with its schema, and its table without
        index, on = (
            dialect.place(target.schema, f"spark_channel_key_{digest}"),
            dialect.quoted(target.name),
        )
    session.execute(
        f"CREATE UNIQUE INDEX {index} ON {on} ({', '.join(map(dialect.quoted, target.key))})"
    )


def check_unique(session: AdbcSession, target: TargetTable, dialect: AdbcDialect) -> None:
    """Check that the table keeps the key unique, by a statement that needs it, for no rows. Ends the transaction.

    Raises:
        TargetError: it does not, or it is a view.
    """
    key_list = ", ".join(map(dialect.quoted, target.key))
    try:
        session.execute(
            f"INSERT INTO {target.sql} ({key_list}) SELECT {key_list} FROM {target.sql} WHERE 1 = 0 "  # noqa: S608 - quoted names
            f"ON CONFLICT ({key_list}) DO NOTHING"
        )
    except TargetError as error:
        raise TargetError(
            f"table {target.name!r} does not hold ({', '.join(target.key)}) unique, "
            f"so a key may match several rows; create a unique index on these columns. {error}"
        ) from error
    finally:
        session.undo()


def may_skip(session: AdbcSession, target: TargetTable, sql: str) -> bool:
    """Whether rows for the table are staged, and inserted by a statement whose rows the database counts."""
    if sql == "postgres":
        return bool(session.rows(_SKIPPING, (target.sql,)))
    if sql == "sqlite":
        return (
            has_triggers(session.rows, target.name) or insert_into(session, target, sql) != "INSERT"
        )
    return False


def insert_into(session: AdbcSession, target: TargetTable, sql: str) -> str:
    """How an INSERT into the table begins."""
    return insert_words(session.rows, target.name) if sql == "sqlite" else "INSERT"


class AdbcMerge(Merge):
    """By ON CONFLICT."""

    _session: AdbcSession
    order = ""

    def __init__(
        self,
        session: AdbcSession,
        dialect: AdbcDialect,
        target: TargetTable,
        rows: str,
        mode: str,
        count: int = 0,
    ) -> None:
        super().__init__(session, dialect, target, rows, mode, count)
        self.insert = insert_into(session, target, dialect.sql)

    def _affected(self, statement: str) -> int | None:
        count = self._session.affected(statement)
        if self._dialect.sql == "sqlite":
            count = int(self._session.value("SELECT changes()"))
        return None if count < 0 else count
