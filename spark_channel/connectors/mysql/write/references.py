"""Which foreign keys of other tables delete or empty their rows with a table's.

MariaDB's catalog opens all tables that the login may see for it. InnoDB's list of keys opens none, and needs PROCESS
(findings/mariadb-foreign-keys-open-all-tables.sh).
"""

from collections.abc import Sequence
from typing import Any, cast

from spark_channel.connectors.mysql.dialect import MysqlDialect, in_file_names
from spark_channel.connectors.mysql.session import MysqlSession, is_away
from spark_channel.connectors.sql.session import Session
from spark_channel.errors import SourceError, TargetError

__all__ = ["reached", "reaching_keys"]

FullName = tuple[str, str]
"""Database and name of a table."""

_KEYS = (
    "SELECT DISTINCT FIELD(LOWER(CONVERT(ref_name USING utf8mb4)) COLLATE utf8mb4_bin, {names}) AS number, for_name "
    "FROM information_schema.INNODB_SYS_FOREIGN WHERE type & 3 HAVING number > 0"
)
"""The first two bits are ON DELETE CASCADE and SET NULL."""
_REFERRED = (
    "r.unique_constraint_catalog = 'def' AND (r.unique_constraint_schema, r.referenced_table_name) IN ({tables}) "
    "AND r.delete_rule IN ('CASCADE', 'SET NULL')"
)
"""MySQL finds them by an index of its dictionary where the catalog is named, too."""
_REACHED = (
    "SELECT DISTINCT r.unique_constraint_schema, r.referenced_table_name "  # noqa: S608 - texts are quoted
    f"FROM information_schema.referential_constraints r WHERE {_REFERRED}"
)
_REACHING = f"""
SELECT r.constraint_name, r.constraint_schema, r.table_name, r.delete_rule,
  GROUP_CONCAT(k.column_name ORDER BY k.ordinal_position SEPARATOR '/')
FROM information_schema.referential_constraints r JOIN information_schema.key_column_usage k
  ON k.constraint_schema = r.constraint_schema AND k.constraint_name = r.constraint_name
    AND k.table_name = r.table_name
WHERE {_REFERRED} AND {{of_key}} AND NOT (r.constraint_schema = {{schema}} AND r.table_name = {{name}})
GROUP BY 1, 2, 3, 4
"""  # noqa: S608 - texts are quoted
"""A name with a slash is not found, and refused by the server."""


def reached(session: Session, tables: Sequence[FullName]) -> set[FullName]:
    """Those of `tables` that such keys refer to."""
    keys = _keys_of_innodb(session, tables)
    if keys is not None:
        return {tables[int(number) - 1] for number, _ in keys}
    rows = session.rows(_REACHED.format(tables=_listed(tables)))
    return {(str(schema), str(name)) for schema, name in rows}


def reaching_keys(session: Session, table: FullName) -> list[tuple[Any, ...]]:
    """(name, database, table, rule, columns with slashes between) of such keys of other tables."""
    keys = _keys_of_innodb(session, [table])
    conditions = ["TRUE"] if keys is None else _of_tables(session, [str(file) for _, file in keys])
    schema, name = map(_literal, table)
    return [
        row
        for of_key in conditions
        for row in session.rows(
            _REACHING.format(tables=_listed([table]), schema=schema, name=name, of_key=of_key)
        )
    ]


def _keys_of_innodb(session: Session, tables: Sequence[FullName]) -> list[tuple[Any, ...]] | None:
    """(number of the table from 1, name of the other as that of a file); None = the server does not say so."""
    if not cast(MysqlSession, session).is_mariadb:
        return None
    names = (
        f"LOWER(CONVERT({in_file_names(*map(_literal, table))} USING utf8mb4))" for table in tables
    )
    try:
        return session.rows(_KEYS.format(names=", ".join(names)))
    except (SourceError, TargetError) as error:
        if is_away(error):
            raise
        return None  # without PROCESS


def _of_tables(session: Session, files: Sequence[str]) -> list[str]:
    """The condition of the keys of each table: MariaDB opens one that is named so, and no other."""
    conditions = []
    for file in files:
        parts = ", ".join(
            f"CONVERT(_filename{_literal(part)} USING utf8mb4)" for part in file.split("/")
        )
        ((schema, name),) = session.rows(f"SELECT {parts}")
        schema, name = _literal(schema), _literal(name)
        conditions.append(
            f"r.constraint_schema = {schema} AND r.table_name = {name} "
            f"AND k.table_schema = {schema} AND k.table_name = {name}"
        )
    return conditions


def _listed(tables: Sequence[FullName]) -> str:
    return ", ".join(f"({', '.join(map(_literal, table))})" for table in tables)


def _literal(text: object) -> str:
    return MysqlDialect().literal(text, None)
