"""The definition of a SQLite table, read from its schema, and what a new SQLite table gets of it.

Between two SQLite files that is the source's own CREATE TABLE and CREATE INDEX. They are tried in an empty database
before a row moves, where ALTER TABLE also gives the table its name in all of them.
"""

import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa

from spark_channel.connectors.base.definition import (
    ColumnDefinition,
    ConstraintDefinition,
    ForeignKeyDefinition,
    SequenceDefinition,
    TableDefinition,
    with_not_null,
)
from spark_channel.connectors.base.types import sqlglot, tokens
from spark_channel.connectors.sql.catalog import TABLE, DefinitionStep
from spark_channel.connectors.sql.definition import NewTable
from spark_channel.connectors.sql.session import Session
from spark_channel.connectors.sqlite.dialect import SqliteTable, SqliteWriteDialect
from spark_channel.connectors.sqlite.session import SqliteSession
from spark_channel.errors import SchemaError, TargetError

__all__ = ["read_definition", "tried"]

_NAME = r"""(?:"(?:[^"]|"")*"|`(?:[^`]|``)*`|\[[^\]]*\]|'(?:[^']|'')*'|[^\s"'`\[(]+)"""
_TABLE = re.compile(rf"CREATE TABLE {_NAME}")
_INDEX = re.compile(rf"CREATE( UNIQUE)? INDEX {_NAME}\s+ON\s+{_NAME}\s*", re.IGNORECASE)
"""As sqlite_master keeps a statement, whatever was typed before the name."""
_FOREIGN_KEYS = """
SELECT id, "from", "table", "to", on_update, on_delete FROM pragma_foreign_key_list({table}, 'main') ORDER BY id, seq
"""
_INDEXES = """
SELECT l.name, l."unique", l.origin, l.partial, m.sql, x.name, x.desc, x.coll
FROM pragma_index_list({table}, 'main') l JOIN pragma_index_xinfo(l.name, 'main') x ON x.key
LEFT JOIN main.sqlite_master m ON m.type = 'index' AND m.name = l.name ORDER BY l.name, x.seqno
"""


def read_definition(session: Session, table: SqliteTable) -> TableDefinition:
    """What the schema of the file says of the table."""
    dialect = SqliteWriteDialect()
    name = dialect.literal(table.name, None)
    statement = str(
        session.value(f"SELECT sql FROM main.sqlite_master WHERE type = 'table' AND name = {name}")  # noqa: S608 - quoted
        or ""
    )
    is_virtual = _TABLE.match(statement) is None
    checks = [
        ConstraintDefinition("check", text, (), text, is_plain=False) for text in _checks(statement)
    ]
    triggers = session.rows(
        f"SELECT name FROM main.sqlite_master WHERE type = 'trigger' AND tbl_name = {name} ORDER BY name"  # noqa: S608 - quoted
    )
    return TableDefinition(
        dialect.sql,
        table.schema,
        table.name,
        tuple(_columns(session, table, name, statement)),
        (*_constraints(session, table, name), *checks),
        tuple(_foreign_keys(session, table.name, name)),
        others=tuple(f"trigger {trigger}" for (trigger,) in triggers),
        statement="" if is_virtual else statement,
        own=("collations",) if table.collates else (),
    )


def _columns(
    session: Session, table: SqliteTable, name: str, statement: str
) -> Iterator[ColumnDefinition]:
    """A generated column is told by the whole statement, of which its expression is a part."""
    rows = session.rows(f"SELECT name, dflt_value FROM pragma_table_xinfo({name}, 'main')")  # noqa: S608 - quoted
    defaults = {str(column): default for column, default in rows}
    is_counted = "AUTOINCREMENT" in statement.upper() and table.rowid_alias() is not None
    last = None
    if is_counted and session.rows(
        "SELECT 1 FROM main.sqlite_master WHERE name = 'sqlite_sequence'"
    ):
        last = session.value(f"SELECT seq FROM main.sqlite_sequence WHERE name = {name}")  # noqa: S608 - quoted
    for column in table.columns:
        default = defaults.get(column.name)
        counts = is_counted and column.name == table.rowid_alias()
        yield ColumnDefinition(
            column.name,
            column.declared,
            not_null=SqliteWriteDialect().is_never_null(table, column),
            default=None if default is None else str(default),
            generated=_TABLE.sub("", statement, count=1) if column.generated else None,
            sequence=SequenceDefinition(table.name, int(last or 0) + 1) if counts else None,
        )


def _constraints(session: Session, table: SqliteTable, name: str) -> Iterator[ConstraintDefinition]:
    if table.primary:
        label = "_".join((table.name, *table.primary))
        yield ConstraintDefinition("primary key", label, table.primary, is_unique=True)
    parts: dict[str, list[tuple[object, ...]]] = {}
    for index, *about in session.rows(_INDEXES.format(table=name)):
        parts.setdefault(str(index), []).append(tuple(about))
    for index, rows in parts.items():
        unique, origin, partial, sql = rows[0][:4]
        columns = tuple(str(column) for *_, column, _, _ in rows if column is not None)
        if origin == "pk":
            continue
        is_plain = not partial and all(
            column is not None and not desc and coll == "BINARY" for *_, column, desc, coll in rows
        )
        if origin == "u":
            label = "_".join((table.name, *columns))
            yield ConstraintDefinition(
                "unique constraint", label, columns, is_unique=True, is_plain=is_plain
            )
        else:
            text = _behind_table(str(sql))
            yield ConstraintDefinition(
                "index", index, columns, text, is_unique=bool(unique), is_plain=is_plain
            )


def _checks(statement: str) -> Iterator[str]:
    """The conditions in CREATE TABLE, with their parentheses."""
    words, opens = sqlglot.tokenize(statement, read="sqlite"), tokens.TokenType.L_PAREN
    for index, word in enumerate(words[:-1]):
        if word.text.upper() != "CHECK" or words[index + 1].token_type != opens:
            continue
        depth = 0
        for end in words[index + 1 :]:
            depth += (end.token_type == opens) - (end.token_type == tokens.TokenType.R_PAREN)
            if depth == 0:
                yield statement[words[index + 1].start : end.end + 1]
                break


def _foreign_keys(session: Session, table: str, name: str) -> Iterator[ForeignKeyDefinition]:
    dialect = SqliteWriteDialect()
    keys: dict[int, list[tuple[object, ...]]] = {}
    for number, *about in session.rows(_FOREIGN_KEYS.format(table=name)):
        keys.setdefault(int(number), []).append(tuple(about))
    for rows in keys.values():
        other = str(rows[0][1])
        columns = tuple(str(row[0]) for row in rows)
        referenced = tuple(str(row[2]) for row in rows)
        if rows[0][2] is None:  # its primary key
            literal = dialect.literal(other, None)
            rows_found = session.rows(
                f"SELECT name FROM pragma_table_info({literal}, 'main') WHERE pk > 0 ORDER BY pk"  # noqa: S608 - quoted
            )
            referenced = tuple(str(column) for (column,) in rows_found)
        actions = zip(("UPDATE", "DELETE"), rows[0][3:5], strict=True)
        behind = "".join(
            f" ON {event} {action}" for event, action in actions if action != "NO ACTION"
        )
        label = "_".join((table, *columns, "fkey"))
        yield ForeignKeyDefinition(label, columns, "", other, referenced, behind)


def tried(
    definition: TableDefinition, rows: pa.Schema, name: str, name_of: Callable[[str], str]
) -> NewTable | str:
    """Table `name` as its source is defined; a text: why this library does not take it."""
    lacks = [column.name for column in definition.columns if column.name not in rows.names]
    if lacks:
        return f"the rows lack column {lacks[0]}"
    dialect, left_out, renamed, steps = SqliteWriteDialect(), list[str](), list[str](), []
    indexes = [one for one in definition.constraints if one.kind == "index"]
    own_sql, wanted_sql = dialect.quoted(definition.name), dialect.quoted(name)
    with (
        tempfile.TemporaryDirectory(prefix="spark-channel-") as folder,
        SqliteSession(
            Path(folder) / "trial", "rwc", lock_timeout=1, failure=TargetError
        ) as session,
    ):
        try:
            session.execute(definition.statement)
        except TargetError as error:
            return " ".join(str(error).split())
        for index in indexes:
            try:
                session.execute(_create_index(index, index.name, own_sql, index.text))
            except TargetError as error:
                left_out.append(f"{index.label}: {' '.join(str(error).split())}")
        if definition.name != name:
            session.execute(
                f"ALTER TABLE {own_sql} RENAME TO {dialect.quoted('spark_channel_trial')}"
            )
            session.execute(
                f"ALTER TABLE {dialect.quoted('spark_channel_trial')} RENAME TO {wanted_sql}"
            )
        texts = {
            str(index): str(sql)
            for index, sql in session.rows("SELECT name, sql FROM sqlite_master WHERE sql <> ''")
        }
        table = dialect.find_table(session, wanted_sql)
    assert table is not None
    for column in table.columns:
        try:
            if not column.generated:
                dialect.write_column(rows.field(column.name), column)
        except SchemaError as error:
            return str(error)
    for index in indexes:
        if index.name not in texts:
            continue
        free = name_of(index.name)
        if free != index.name:
            renamed.append(f"{index.label} is {free}")
        statement = _create_index(index, free, wanted_sql, _behind_table(texts[index.name]))
        steps.append(DefinitionStep(index.label, (statement,)))
    steps += _counted(definition, name)
    left_out += [f"{other}: no copy carries it" for other in definition.others]
    return NewTable(
        with_not_null(rows, definition),
        create=_TABLE.sub(lambda _: f"CREATE TABLE {TABLE}", texts[name], count=1),
        table=table,
        steps=tuple(steps),
        left_out=tuple(left_out),
        renamed=tuple(renamed),
    )


def _behind_table(statement: str) -> str:
    """What CREATE INDEX says behind the table; "" = it is written in a form that is not known."""
    head = _INDEX.match(statement)
    return "" if head is None else statement[head.end() :]


def _create_index(index: ConstraintDefinition, name: str, table: str, text: str) -> str:
    unique = "UNIQUE " if index.is_unique else ""
    return f"CREATE {unique}INDEX {SqliteWriteDialect().quoted(name)} ON {table} {text}"


def _counted(definition: TableDefinition, name: str) -> Iterator[DefinitionStep]:
    """AUTOINCREMENT goes on behind the source's number, also if its last rows are gone."""
    table = SqliteWriteDialect().literal(name, None)
    for column in definition.columns:
        if column.sequence is not None and column.sequence.following > 1:
            last = column.sequence.following - 1
            statement = (
                f"INSERT INTO main.sqlite_sequence (name, seq) SELECT {table}, {last} "  # noqa: S608 - quoted
                f"WHERE NOT EXISTS (SELECT 1 FROM main.sqlite_sequence WHERE name = {table})"
            )
            raised = f"UPDATE main.sqlite_sequence SET seq = max(seq, {last}) WHERE name = {table}"  # noqa: S608 - quoted
            yield DefinitionStep(f"sequence of {column.name}", (statement, raised))
