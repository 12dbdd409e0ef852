"""The definition of a DuckDB table, read from its catalog, and what a new DuckDB table gets of it.

Between two DuckDB files that is the CREATE TABLE and CREATE INDEX that DuckDB writes of the source, without foreign
keys, which it cannot add to a table that is there. They are tried in an empty database before a row moves.
"""

import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from spark_channel.connectors.base.definition import (
    ColumnDefinition,
    ConstraintDefinition,
    ConstraintKind,
    ForeignKeyDefinition,
    SequenceDefinition,
    TableDefinition,
    with_not_null,
)
from spark_channel.connectors.duckdb.dialect import (
    DuckdbTable,
    DuckdbWriteDialect,
    in_table,
    index_columns,
    of_catalog,
)
from spark_channel.connectors.duckdb.session import DuckdbSession, text_literal
from spark_channel.connectors.sql.catalog import TABLE, DefinitionStep
from spark_channel.connectors.sql.definition import NewTable
from spark_channel.connectors.sql.session import Session
from spark_channel.connectors.sql.statements import name_readings
from spark_channel.connectors.sql.write.plan import NumberedColumn, WriteTarget
from spark_channel.errors import SchemaError, TargetError

__all__ = ["comments_of", "counted_on", "read_definition", "same_sequence", "tried"]

_NAME = r'(?:"(?:[^"]|"")*"|[^\s"(.]+)'
_TABLE = re.compile(rf"CREATE TABLE (?:{_NAME}\.)*{_NAME}\(")
_INDEX = re.compile(rf"CREATE(?: UNIQUE)? INDEX {_NAME} ON (?:{_NAME}\.)*{_NAME}\s*")
"""As DuckDB writes a statement, whatever was typed."""
_NEXT = re.compile(r"nextval\('((?:[^']|'')*)'\)")
_FOLLOWING = "CAST(regexp_extract(sql, ' START (-?[0-9]+)', 1) AS BIGINT)"
"""A sequence's next number: `last_value` is that of a session alone, or of the file, by the release."""
_SETTINGS = (
    "concat_ws(' ', 'MINVALUE', min_value, 'MAXVALUE', max_value, "
    "CASE WHEN cycle THEN 'CYCLE' ELSE 'NO CYCLE' END)"
)
_KINDS: dict[str, ConstraintKind] = {
    "PRIMARY KEY": "primary key",
    "UNIQUE": "unique constraint",
    "CHECK": "check",
}
_MOST_NUMBERS = 100_000_000
"""DuckDB has no setval: a sequence is taken forward number by number, so many in about ten seconds."""
_AHEAD = """
SELECT count(nextval({name})), any_value(gap) FROM (SELECT coalesce(greatest(0,
  ({last} - ({following})) // {step} + 1), 0) AS gap) AS found,
  LATERAL (SELECT unnest(range(CASE WHEN gap > {most} THEN 0 ELSE gap END))) AS numbers
"""


def read_definition(session: Session, table: DuckdbTable) -> TableDefinition:
    """What the catalog says of the table."""
    dialect, inside = DuckdbWriteDialect(), in_table(table.schema, table.name)
    rows_found = session.rows(
        f"SELECT sql, comment FROM {of_catalog(session, 'duckdb_tables')} {inside}"  # noqa: S608 - names are quoted
    )
    statement, comment = rows_found[0] if rows_found else ("", None)
    constraints = session.rows(
        "SELECT constraint_type, constraint_name, constraint_column_names, constraint_text, referenced_table, "  # noqa: S608 - names are quoted
        f"referenced_column_names FROM {of_catalog(session, 'duckdb_constraints')} {inside} ORDER BY constraint_index"
    )
    stated = [
        ConstraintDefinition(
            _KINDS[kind],
            str(name),
            tuple(columns),
            str(text),
            is_unique=kind != "CHECK",
            is_plain=kind != "CHECK",
        )
        for kind, name, columns, text, _, _ in constraints
        if kind in _KINDS
    ]
    keys = [
        ForeignKeyDefinition(
            str(name), tuple(columns), table.schema, str(other), tuple(referenced), ""
        )
        for kind, name, columns, _, other, referenced in constraints
        if kind == "FOREIGN KEY"
    ]
    texts = [str(text) for kind, _, _, text, *_ in constraints if kind == "FOREIGN KEY"]
    return TableDefinition(
        dialect.sql,
        table.schema,
        table.name,
        tuple(_columns(session, table)),
        (*stated, *_indexes(session, inside)),
        tuple(keys),
        comment,
        statement=_without(str(statement), texts),
        own=("collations",) if re.search(r" COLLATE ", str(statement)) else (),
    )


def _columns(session: Session, table: DuckdbTable) -> Iterator[ColumnDefinition]:
    dialect = DuckdbWriteDialect()
    rows = session.rows(
        f"SELECT column_name, column_default, comment FROM {of_catalog(session, 'duckdb_columns')} "  # noqa: S608 - names are quoted
        f"{in_table(table.schema, table.name)}"
    )
    about = {str(name): (default, comment) for name, default, comment in rows}
    for column in table.columns:
        default, comment = about[column.name]
        named = None if default is None else _NEXT.fullmatch(str(default))
        yield ColumnDefinition(
            column.name,
            column.declared,
            not_null=dialect.is_never_null(table, column),
            default=None if default is None or column.generated or named else str(default),
            generated=str(default) if column.generated else None,
            sequence=None if named is None else _sequence(session, table, column.name, named[1]),
            comment=comment,
        )


def _sequence(
    session: Session, table: DuckdbTable, column: str, text: str
) -> SequenceDefinition | None:
    """The sequence that a default names by `text`. Its next number is behind the column's rows, too."""
    dialect = DuckdbWriteDialect()
    for schema, name in name_readings(text.replace("''", "'"), "duckdb", "main"):
        rows = session.rows(
            f"SELECT {_FOLLOWING}, increment_by, {_SETTINGS} "  # noqa: S608 - quoted
            f"FROM duckdb_sequences() WHERE database_name = current_database() "
            f"AND schema_name = {text_literal(schema)} AND sequence_name = {text_literal(name)}"
        )
        if rows:
            following, increment, settings = rows[0]
            last = "max" if increment > 0 else "min"
            table_sql = dialect.place(table.schema, table.name)
            least = session.value(f"SELECT {last}({dialect.quoted(column)}) FROM {table_sql}")  # noqa: S608 - quoted names
            if least is not None:
                farther = max if increment > 0 else min
                following = farther(following, least + increment)
            return SequenceDefinition(name, int(following), int(increment), settings=settings)
    return None


def _indexes(session: Session, inside: str) -> Iterator[ConstraintDefinition]:
    rows = session.rows(
        f"SELECT index_name, is_unique, sql, comment FROM {of_catalog(session, 'duckdb_indexes')} {inside} ORDER BY 1"  # noqa: S608 - names are quoted
    )
    for name, is_unique, sql, comment in rows:
        columns = index_columns(str(sql))
        head = _INDEX.match(str(sql))
        yield ConstraintDefinition(
            "index",
            str(name),
            columns,
            "" if head is None else str(sql)[head.end() :].rstrip(";"),
            is_unique=bool(is_unique),
            is_plain=bool(columns),
            comment=comment,
        )


def _without(statement: str, keys: list[str]) -> str:
    """CREATE TABLE without its foreign keys, of which a release before 1.5 writes some as nothing."""
    for text in keys:
        statement = statement.replace(f", {text}", "" if text else ", ", 1)
    if "" in keys:
        statement = re.sub(r"(?:, )+(?=\);?$)", "", statement)
    return statement


def tried(
    definition: TableDefinition,
    rows: pa.Schema,
    schema: str,
    name: str,
    name_of: Callable[[str], str],
    sequence_of: Callable[[SequenceDefinition], str],
) -> NewTable | str:
    """Table `name` as its source is defined; a text: why this library does not take it.

    `sequence_of` gives the name of the sequence in `schema` that takes the place of one of the source.
    """
    lacks = [column.name for column in definition.columns if column.name not in rows.names]
    if lacks:
        return f"the rows lack column {lacks[0]}"
    dialect, left_out, renamed, steps = DuckdbWriteDialect(), list[str](), list[str](), []
    table_sql = dialect.place(schema, name)
    create = _TABLE.sub(lambda _: f"CREATE TABLE {TABLE}(", definition.statement, count=1)
    sequences: dict[str, SequenceDefinition] = {}
    for column in definition.columns:
        named = {sequence.name for sequence in sequences.values()}
        if column.sequence is not None and column.sequence.name not in named:
            free = sequence_of(column.sequence)
            sequences[free] = column.sequence
            if free != column.sequence.name:
                renamed.append(f"sequence of {column.name} is {free}")
    create = _NEXT.sub(lambda match: _renamed(match, schema, sequences), create).rstrip(";")
    creates = [
        f"CREATE SEQUENCE IF NOT EXISTS {dialect.place(schema, free)} START {sequence.following} "
        f"INCREMENT BY {sequence.increment} {sequence.settings}"
        for free, sequence in sequences.items()
    ]
    with (
        tempfile.TemporaryDirectory(prefix="spark-channel-") as folder,
        DuckdbSession(
            Path(folder) / "trial", read_only=False, lock_timeout=1, failure=TargetError
        ) as session,
    ):
        session.execute(f"CREATE SCHEMA IF NOT EXISTS {dialect.quoted(schema)}")
        try:
            for statement in (*creates, create.replace(TABLE, table_sql)):
                session.execute(statement)
        except TargetError as error:
            return " ".join(str(error).split())
        table = dialect.find_table(session, table_sql)
        assert table is not None
        for made_column in table.columns:
            try:
                if not made_column.generated:
                    dialect.write_column(rows.field(made_column.name), made_column)
            except SchemaError as error:
                return str(error)
        for constraint in definition.constraints:
            if constraint.kind != "index":
                continue
            free = name_of(constraint.name)
            step = _index(constraint, schema, free)
            try:
                for statement in step.on(table_sql):
                    session.execute(statement)
            except TargetError as error:
                left_out.append(f"{constraint.label}: {' '.join(str(error).split())}")
                continue
            steps.append(step)
            if free != constraint.name:
                renamed.append(f"{constraint.label} is {free}")
    steps += _counted(definition, schema, sequences)
    steps += comments_of(definition, rows)
    left_out += [
        f"{key.label}: {dialect.product} adds none to a table that is there"
        for key in definition.foreign_keys
    ]
    return NewTable(
        with_not_null(rows, definition),
        create="; ".join((*creates, create)),
        table=table,
        steps=tuple(steps),
        left_out=tuple(left_out),
        renamed=tuple(renamed),
    )


def _renamed(match: "re.Match[str]", schema: str, sequences: dict[str, SequenceDefinition]) -> str:
    """`nextval` of the target's sequence."""
    read = name_readings(match[1].replace("''", "'"), "duckdb", "main")
    for free, sequence in sequences.items():
        if sequence.name in [name for _, name in read] and (schema, free) not in read:
            return f"nextval({_literal(schema, free)})"
    return match[0]


def _literal(schema: str, name: str) -> str:
    """The sequence as nextval takes it."""
    dialect = DuckdbWriteDialect()
    return text_literal(dialect.place(schema, name))


def _index(index: ConstraintDefinition, schema: str, name: str) -> DefinitionStep:
    dialect = DuckdbWriteDialect()
    unique = "UNIQUE " if index.is_unique else ""
    statements = [f"CREATE {unique}INDEX {dialect.quoted(name)} ON {TABLE} {index.text}"]
    if index.comment is not None:
        comment = text_literal(index.comment)
        statements.append(f"COMMENT ON INDEX {dialect.place(schema, name)} IS {comment}")
    return DefinitionStep(index.label, tuple(statements))


def comments_of(definition: TableDefinition, rows: pa.Schema) -> Iterator[DefinitionStep]:
    """The comments of the table and of the columns that the rows have."""
    dialect = DuckdbWriteDialect()
    if definition.comment is not None:
        comment = text_literal(definition.comment)
        yield DefinitionStep("comment of the table", (f"COMMENT ON TABLE {TABLE} IS {comment}",))
    for column in definition.columns:
        if column.comment is not None and column.name in rows.names:
            named, comment = dialect.quoted(column.name), text_literal(column.comment)
            statement = f"COMMENT ON COLUMN {TABLE}.{named} IS {comment}"
            yield DefinitionStep(f"comment of {column.name}", (statement,))


def _counted(
    definition: TableDefinition, schema: str, sequences: dict[str, SequenceDefinition]
) -> Iterator[DefinitionStep]:
    """Move a sequence that another table counts by, too, behind this table's rows."""
    for column in definition.columns:
        for free, sequence in sequences.items():
            if column.sequence is not None and column.sequence.name == sequence.name:
                statement = _ahead(schema, free, sequence.increment, column.name, TABLE)
                yield DefinitionStep(f"sequence of {column.name}", (statement,))


def _ahead(
    schema: str, name: str, increment: int, column: str, table: str, following: int | None = None
) -> str:
    """The statement that takes a sequence behind the rows of a table, which is SQL: how far it went, and had to go.

    Its next number is then not before `following`.
    """
    column = DuckdbWriteDialect().quoted(column)
    last, sign = ("max", "") if increment > 0 else ("min", "-")
    owner = (
        f"SELECT {_FOLLOWING} FROM duckdb_sequences() "  # noqa: S608 - quoted
        f"WHERE database_name = current_database() AND schema_name = {text_literal(schema)} "
        f"AND sequence_name = {text_literal(name)}"
    )
    reached = f"(SELECT {last}({column}) FROM {table})"  # noqa: S608 - quoted names
    if following is not None:
        farther = "greatest" if increment > 0 else "least"
        reached = f"{farther}({reached}, {following - increment})"
    statement = _AHEAD.format(
        name=_literal(schema, name),
        last=f"{sign}{reached}",
        following=f"{sign}({owner})",
        step=abs(increment),
        most=_MOST_NUMBERS,
    )
    return " ".join(statement.split())


def counted_on(place: WriteTarget, columns: Sequence[NumberedColumn]) -> list[str]:
    """Statements after which the sequences of a table that is there are behind its rows, and behind its source's."""
    schema, table_sql = place.schema, DuckdbWriteDialect().place(place.schema, place.name)
    statements = []
    for column in columns:
        name, increment = column.sequence.name, column.sequence.increment
        statements.append(_ahead(schema, name, increment, column.name, table_sql, column.following))
    return statements


def same_sequence(session: Session, schema: str, name: str, sequence: SequenceDefinition) -> bool:
    """Whether the sequence `name` is not there, or counts in the same way, so that tables may share it."""
    rows = session.rows(
        f"SELECT increment_by, {_SETTINGS} FROM duckdb_sequences() "  # noqa: S608 - quoted
        f"WHERE database_name = current_database() AND schema_name = {text_literal(schema)} "
        f"AND sequence_name = {text_literal(name)}"
    )
    return not rows or rows[0] == (sequence.increment, sequence.settings)
