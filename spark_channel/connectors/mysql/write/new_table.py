"""What a new MySQL or MariaDB table gets of the definition of its source, always in one CREATE TABLE.

DDL commits: a job that ended between several statements would leave a table that no later job completes.

The source's own CREATE TABLE is tried under another name before a row moves, and that table is dropped: what this
server refuses is found then. Its foreign keys are left out, since the tables to which they refer may not have their
rows yet.
"""

import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pyarrow as pa

from spark_channel.connectors.base.definition import TableDefinition, with_not_null
from spark_channel.connectors.base.types import exp, sqlglot
from spark_channel.connectors.mysql.dialect import MysqlDialect
from spark_channel.connectors.mysql.options import MysqlWriteOptions
from spark_channel.connectors.mysql.session import MysqlWriteSession
from spark_channel.connectors.mysql.write.dialect import MysqlWriteDialect
from spark_channel.connectors.mysql.write.staging import drop_tables, table_in
from spark_channel.connectors.sql.catalog import TABLE, DefinitionStep, TargetTable
from spark_channel.connectors.sql.definition import NewTable
from spark_channel.connectors.sql.write.plan import WriteTarget
from spark_channel.errors import TargetError

__all__ = [
    "AutoIncrement",
    "Comment",
    "at_once",
    "comments_of",
    "tried",
    "untried",
    "without_refused_checks",
]

_TRIALS = 3
"""Another job may remove the first, which no claim names."""
_ENGINE = re.compile(r"(?<=\n\) ENGINE=)\w+")
_CHANGES = re.compile(r"ON UPDATE (?:CASCADE|SET)|ON DELETE SET")
"""Finds a foreign key by which the server changes the key's own columns."""
_COLUMN_LETTERS, _TABLE_LETTERS = 1024, 2048
"""The longest comments."""


def untried(place: WriteTarget, definition: TableDefinition, rows: pa.Schema) -> NewTable | str:
    """The table as its source is defined, as far as that can be known before a server is asked; a text: why not."""
    lacks = [column.name for column in definition.columns if column.name not in rows.names]
    if lacks:
        return f"the rows lack column {lacks[0]}"
    create = definition.statement
    left_out, writes = [], MysqlWriteDialect()
    for key in definition.foreign_keys:
        other = writes.place(key.schema or place.schema, key.table)
        statement = writes.added_key(writes.place(place.schema, place.name), key, other)
        left_out.append(f"{key.label}: when {key.table} has its rows, run {statement}")
    engine = _ENGINE.search(create)
    if engine is not None and engine[0] != "InnoDB":
        create = _ENGINE.sub("InnoDB", create, count=1)
        left_out.append(f"engine {engine[0]}: its tables have no transactions")
    left_out += [f"{other}: no copy carries it" for other in definition.others]
    return NewTable(with_not_null(rows, definition), create=create, left_out=tuple(left_out))


def tried(
    session: MysqlWriteSession, place: WriteTarget, definition: TableDefinition, rows: pa.Schema
) -> NewTable | str:
    """The table as its source is defined; a text: why this server does not take it, in its words."""
    untried_table = untried(place, definition, rows)
    if isinstance(untried_table, str):
        return untried_table
    table = None
    for _ in range(_TRIALS):
        # As staging, which the next job removes if this one is killed here.
        trial = table_in(place.staging, f"{place.stage}trial_{secrets.token_hex(8)}")
        try:
            session.execute(untried_table.create.replace(TABLE, trial))
        except TargetError as error:
            return " ".join(str(error).split())
        try:
            table = MysqlDialect().find_table(session, trial)
        finally:
            drop_tables(session, [trial])
        if table is not None:
            break
    if table is None:
        raise TargetError(
            f"other jobs removed the table in {place.staging!r} on which the definition was tried: run it again"
        )
    return replace(untried_table, table=table)


@dataclass(frozen=True, slots=True)
class AutoIncrement(DefinitionStep):
    """The column whose next number is `following`."""

    column: str
    following: int


@dataclass(frozen=True, slots=True)
class Comment(DefinitionStep):
    """The comment of a column, or of the table. `text` is SQL."""

    column: str | None
    text: str


def comments_of(
    definition: TableDefinition, rows: pa.Schema, *, is_free: bool
) -> Iterator[Comment]:
    """The comments that a server takes; `is_free`: the table gets none from an option."""
    literal, comment = MysqlWriteDialect().literal, definition.comment
    if comment is not None and is_free and len(comment) <= _TABLE_LETTERS:
        yield Comment("comment of the table", (), None, literal(comment, None))
    for column in definition.columns:
        text = column.comment
        if text is not None and column.name in rows.names and len(text) <= _COLUMN_LETTERS:
            yield Comment(f"comment of {column.name}", (), column.name, literal(text, None))


def without_refused_checks(new: NewTable, definition: TableDefinition) -> NewTable:
    """`new` without the checks that no server takes: of a column that the server itself numbers or changes."""
    whys = {
        name: f"MySQL checks no column that {key.label} changes"
        for key in definition.foreign_keys
        if _CHANGES.search(key.behind or "")
        for name in key.columns
    }
    for step in new.steps:
        if isinstance(step, AutoIncrement):
            whys[step.column] = "MySQL checks no column with AUTO_INCREMENT"
    checks, left_out = [], list(new.left_out)
    for part, condition in new.checks:
        columns = sqlglot.parse_one(condition, read="mysql").find_all(exp.Column)
        reason = next((whys[column.name] for column in columns if column.name in whys), "")
        if reason:
            left_out.append(f"{part.label}: {reason}")
        else:
            checks.append((part, condition))
    return replace(new, checks=tuple(checks), left_out=tuple(left_out))


def at_once(target: TargetTable, new: NewTable, options: MysqlWriteOptions) -> TargetTable:
    """`target`, whose CREATE TABLE makes what its steps would."""
    writes = MysqlWriteDialect()
    numbers = [step for step in target.steps if isinstance(step, AutoIncrement)]
    numbered = {step.column for step in numbers}
    comments = {step.column: step.text for step in target.steps if isinstance(step, Comment)}
    parts = []
    for column in target.columns:
        words = [writes.definition(column.column)]
        if column.target in new.defaults:
            words.append(f"DEFAULT {new.defaults[column.target]}")
        if column.target in numbered:
            words.append("AUTO_INCREMENT")
        if column.target in comments:
            words.append(f"COMMENT {comments[column.target]}")
        parts.append(" ".join(words))
    if key := target.key or new.key:
        parts.append(f"PRIMARY KEY ({', '.join(map(writes.quoted, key))})")
    parts += [
        statement.removeprefix("CREATE ").replace(f" ON {TABLE}", "", 1)
        for step in target.steps
        for statement in step.statements
    ]
    parts += new.stated_checks(writes)
    behind = "".join(f" AUTO_INCREMENT={step.following}" for step in numbers)
    if None in comments:
        behind += f" COMMENT={comments[None]}"
    create = f"CREATE TABLE {target.sql} ({', '.join(parts)}){writes.after_create(options)}{behind}"
    return replace(target, create=create, steps=())
