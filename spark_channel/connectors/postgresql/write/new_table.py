"""What a new PostgreSQL table gets of the definition of its source, which is another PostgreSQL table.

The parts are tried on an empty table in a transaction that is rolled back, before a row moves: what this server
refuses (a function or a type that it lacks) is left out, and named with the server's reason.
"""

import re
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from spark_channel.arrow_schema import is_list, is_text
from spark_channel.connectors.base.definition import (
    ColumnDefinition,
    ConstraintDefinition,
    ForeignKeyDefinition,
    SequenceDefinition,
    TableDefinition,
    with_not_null,
)
from spark_channel.connectors.postgresql.catalog import PgColumn, PgTable, find_table
from spark_channel.connectors.postgresql.options import PostgresWriteOptions
from spark_channel.connectors.postgresql.session import PgWriteSession, literal_sql
from spark_channel.connectors.postgresql.write.dialect import DIALECT, create_statement
from spark_channel.connectors.sql.catalog import TABLE, DefinitionStep
from spark_channel.connectors.sql.definition import NewTable
from spark_channel.connectors.sql.write.plan import NumberedColumn, WriteTarget
from spark_channel.errors import SchemaError, TargetError
from spark_channel.plain_text import log_of

__all__ = [
    "NumbersStep",
    "count",
    "count_on",
    "counts_of",
    "keyed",
    "refusal",
    "tried",
    "typed",
    "types_of_texts",
    "untried",
    "with_numbers",
]

_log = log_of(__name__)

_COUNT = """
SELECT CASE WHEN f.is_past THEN q.seqrelid::pg_catalog.regclass::text END, f.behind::text, pg_catalog.setval(q.seqrelid,
  greatest(q.seqmin, least(n.following, q.seqmax))::bigint, n.following NOT BETWEEN q.seqmin AND q.seqmax)
FROM pg_catalog.pg_sequence q
CROSS JOIN LATERAL (SELECT (SELECT {last}({column})::numeric FROM {table}) + {increment} AS behind OFFSET 0) r
CROSS JOIN LATERAL (SELECT r.behind, coalesce(r.behind {past}, false) AS is_past, ({own})::numeric AS own) f
CROSS JOIN LATERAL (SELECT CASE WHEN f.is_past THEN f.own ELSE {more}(f.own, f.behind) END AS following) n
WHERE q.seqrelid = {sequence}
"""
"""Where the sequence has no number behind the rows (a row has its last one), it goes on as it would without them."""
_OWN = (
    "coalesce(pg_catalog.pg_sequence_last_value(q.seqrelid)::numeric + q.seqincrement, q.seqstart)"
)

_TEXT_TYPES = frozenset({"text", "character varying", "character", "bpchar", "name", '"char"'})
_OF_A_SERVER = re.compile("money|reg[a-z]+")
"""Types whose texts another server may read as another value, or not at all: they depend on its settings and names."""

NameOf = Callable[[str], str]
_MOST: Mapping[str, int] = {"smallint": 2**15 - 1, "integer": 2**31 - 1, "bigint": 2**63 - 1}


@dataclass(frozen=True, slots=True)
class NumbersStep(DefinitionStep):
    """A sequence. `count`, with `TABLE` for the table, is for `count`, which follows the step."""

    count: str


def counts_of(steps: Iterable[DefinitionStep], table: str) -> list[str]:
    """What `count` takes after `steps` of a new table, which is SQL."""
    return [step.count.replace(TABLE, table) for step in steps if isinstance(step, NumbersStep)]


def keyed(new: NewTable, options: PostgresWriteOptions, own_key: Sequence[str]) -> NewTable:
    """`new` with its primary key as a step, which follows the rows; not where the write's own key is the table's."""
    create = create_statement(TABLE, new.rows, options)
    if not new.key or own_key:
        return replace(new, key=(), create=create)
    columns = ", ".join(map(DIALECT.quoted, new.key))
    key = DefinitionStep("primary key", (f"ALTER TABLE {TABLE} ADD PRIMARY KEY ({columns})",))
    return replace(new, key=(), create=create, steps=(key, *new.steps))


def with_numbers(
    new: NewTable,
    definition: TableDefinition,
    schema: str,
    name: str,
    options: PostgresWriteOptions,
    name_of: NameOf,
) -> NewTable:
    """`new`, made as the definition of another system says, with what means the same here, as steps."""
    steps = [
        DefinitionStep(f"default of {column}", (_set_default(column, default),))
        for column, default in new.defaults.items()
    ]
    for part, condition in new.checks:
        label = f" CONSTRAINT {DIALECT.quoted(name_of(part.name))}" if part.has_name else ""
        added = f"ALTER TABLE {TABLE} ADD{label} CHECK {condition}"
        steps.append(DefinitionStep(part.label, (added,)))
    for column in definition.columns:
        index = new.rows.get_field_index(column.name)
        if index < 0:
            continue
        field, column_sql = new.rows.field(index), DIALECT.quoted(column.name)
        sequence = column.sequence
        most = _MOST.get(DIALECT.created_type(field.name, field.type, key=False), 0)
        if (
            sequence is not None
            and not field.nullable
            and sequence.increment > 0
            and 0 < sequence.following <= most
            and options.create_table_column_types is None
        ):
            start = f"START WITH {sequence.following} INCREMENT BY {sequence.increment}"
            identity = f"ALTER TABLE {TABLE} ALTER COLUMN {column_sql} ADD GENERATED BY DEFAULT AS IDENTITY ({start})"
            count = _count(
                TABLE,
                column.name,
                _sequence_of(DIALECT.place(schema, name), column.name),
                sequence.increment,
                str(sequence.following),
            )
            steps.append(NumbersStep(f"sequence of {column.name}", (identity,), count))
        if column.comment is not None:
            comment = f"COMMENT ON COLUMN {TABLE}.{column_sql} IS {literal_sql(column.comment)}"
            steps.append(DefinitionStep(f"comment of {column.name}", (comment,)))
    if definition.comment is not None and options.table_comment is None:
        comment = f"COMMENT ON TABLE {TABLE} IS {literal_sql(definition.comment)}"
        steps.append(DefinitionStep("comment of the table", (comment,)))
    return new.with_carried(steps)


def _sequence_of(table_sql: str, column: str) -> str:
    """The sequence of a column of a table, as SQL."""
    serial = f"pg_get_serial_sequence({literal_sql(table_sql)}, {literal_sql(column)})"
    return f"pg_catalog.{serial}::pg_catalog.regclass"


def _count(table: str, column: str, sequence: str, increment: int, own: str) -> str:
    """A statement for `count`. `own`: what the sequence goes on with if no row says more; all but `column` is SQL."""
    ascends = increment > 0
    return " ".join(_COUNT.split()).format(
        last="max" if ascends else "min",
        more="greatest" if ascends else "least",
        past="> q.seqmax" if ascends else "< q.seqmin",
        column=DIALECT.quoted(column),
        table=table,
        increment=increment,
        own=own,
        sequence=sequence,
    )


class _UndoError(Exception):
    """Ends the transaction of a trial."""


def tried(
    session: PgWriteSession,
    schema: str,
    definition: TableDefinition,
    rows: pa.Schema,
    options: PostgresWriteOptions,
    name_of: NameOf,
) -> NewTable:
    """A table for `rows` in `schema`, with all parts of the definition that this server takes."""
    parts = _Parts(schema, definition, with_not_null(rows, definition), options)
    table = DIALECT.place(schema, f"spark_channel_trial_{secrets.token_hex(8)}")
    left_out: list[str] = []
    steps: list[DefinitionStep] = []
    try:
        with session.transaction():
            types = _types(session, table, parts, left_out)
            created = _made(session, table, parts.create(types))
            for trial, step in parts.steps(_other_names(), name_of):
                reason = refusal(session, trial.on(table))
                if reason:
                    left_out.append(f"{step.what}: {reason}")
                else:
                    steps.append(step)
            raise _UndoError
    except _UndoError:
        pass
    left_out += parts.left_out()
    applied = {step.what for step in steps}
    renamed = tuple(f"{part} is {name}" for part, name in parts.renamed.items() if part in applied)
    return NewTable(
        parts.rows,
        create=parts.create(types),
        table=created,
        steps=tuple(steps),
        left_out=tuple(left_out),
        renamed=renamed,
    )


def typed(
    session: PgWriteSession,
    schema: str,
    new: NewTable,
    definition: TableDefinition,
    options: PostgresWriteOptions,
) -> NewTable:
    """`new` with the source's own types of columns that are read as texts for want of an Arrow type, as uuid or jsonb.

    A type that this server lacks, or that a user made, is named, and its column holds texts.
    """
    types = types_of_texts(definition.columns, new.rows)
    own = [column for column in definition.columns if column.name in types and column.is_own]
    left_out = [
        f"type {column.declared} of {column.name}: createTable=full carries it" for column in own
    ]
    new = replace(new, left_out=(*new.left_out, *left_out))
    for column in own:
        del types[column.name]
    if not types:
        return new
    columns = tuple(ColumnDefinition(name, declared) for name, declared in types.items())
    typing = TableDefinition(definition.system, definition.schema, definition.name, columns)
    typed_table = tried(session, schema, typing, new.rows, options, str)
    return replace(
        new,
        create=typed_table.create,
        table=typed_table.table,
        left_out=(*new.left_out, *typed_table.left_out),
    )


def types_of_texts(
    columns: Iterable[ColumnDefinition | PgColumn], rows: pa.Schema
) -> dict[str, str]:
    """The types, as SQL, of a source's columns that are read as texts and are not of a type of texts."""
    types = {}
    for column in columns:
        number = rows.get_field_index(column.name)
        kind = None if number < 0 else rows.field(number).type
        values = kind.value_type if kind is not None and is_list(kind) else kind
        words = column.declared.removesuffix("[]").partition("(")[0]
        is_kept = words not in _TEXT_TYPES and not _OF_A_SERVER.fullmatch(words)
        if values is not None and is_text(values) and is_kept:
            types[column.name] = column.declared
    return types


def untried(
    schema: str,
    definition: TableDefinition,
    rows: pa.Schema,
    options: PostgresWriteOptions,
    name_of: NameOf,
) -> NewTable:
    """As `tried`, without a trial: the server refuses a part when it makes the table.

    Raises:
        SchemaError: the type of a column must be tried.
    """
    for column in definition.columns:
        if column.is_own or column.generated is not None:
            raise SchemaError(f"column {column.name!r} of {definition.name} is tried alone")
    parts = _Parts(schema, definition, with_not_null(rows, definition), options)
    steps = [step for _, step in parts.steps(_other_names(), name_of)]
    return NewTable(
        parts.rows,
        create=parts.create({column.name for column in parts.columns}),
        steps=tuple(steps),
        left_out=tuple(parts.left_out()),
        renamed=tuple(f"{part} is {name}" for part, name in parts.renamed.items()),
    )


def _other_names() -> NameOf:
    """Names for a trial, which no other table has."""
    mark, numbers = secrets.token_hex(4), iter(range(1_000_000))
    return lambda _name: f"spark_channel_trial_{mark}_{next(numbers)}"


def count_on(
    session: PgWriteSession, place: WriteTarget, columns: Sequence[NumberedColumn]
) -> None:
    """Let the sequences of a table that is there go on behind its rows, and behind its source's, in a transaction.

    A refusal does not fail it.
    """
    if not columns:
        return
    table_sql, statements = DIALECT.place(place.schema, place.name), []
    for column in columns:
        increment, following = column.sequence.increment, _OWN
        if column.following is not None:
            function = "greatest" if increment > 0 else "least"
            following = f"{function}({_OWN}, {column.following})"
        sequence = _sequence_of(table_sql, column.name)
        statements.append(_count(table_sql, column.name, sequence, increment, following))
    rows: list[tuple[Any, ...]] = []
    reason = refusal(session, statements, rows)
    if reason:
        _log.warning(
            "table %s may give numbers that its rows have: %s. As the owner of its sequences, run %s",
            place.label,
            reason,
            "; ".join(statements),
        )
    _say_past(rows)


def count(session: PgWriteSession, counts: Sequence[str]) -> None:
    """Let the sequences of new tables go on behind their rows."""
    if counts:
        _say_past(session.rows(" UNION ALL ".join(counts)))


def _say_past(counted: Iterable[tuple[Any, ...]]) -> None:
    for name, behind, _ in counted:
        if name is not None:
            _log.warning(
                "sequence %s goes on as if its table had no rows: behind them comes %s, which is no number of it",
                name,
                behind,
            )


def refusal(
    session: PgWriteSession,
    statements: Sequence[str],
    rows: list[tuple[Any, ...]] | None = None,
) -> str:
    """Why the server refuses the statements, in its words; "" = it has run them. `rows` gets what they return."""
    session.execute("SAVEPOINT spark_channel_trial")
    returned: list[tuple[Any, ...]] = []
    try:
        for statement in statements:
            returned += session.rows(statement)
    except TargetError as error:
        if not session.is_open:
            raise
        session.execute("ROLLBACK TO SAVEPOINT spark_channel_trial")
        return " ".join((str(error).partition("PostgreSQL says: ")[2] or str(error)).split())
    session.execute("RELEASE SAVEPOINT spark_channel_trial")
    if rows is not None:
        rows += returned
    return ""


def _made(session: PgWriteSession, table: str, create: str) -> PgTable:
    """The table of the trial, made again by `create`."""
    session.execute(f"DROP TABLE {table}")
    session.execute(create.replace(TABLE, table))
    created = find_table(session, table)
    assert created is not None
    return created


def _types(
    session: PgWriteSession, table: str, parts: "_Parts", left_out: list[str]
) -> Collection[str]:
    """Make the table of the trial. Returns the columns that have the source's own declaration."""
    types = {column.name for column in parts.columns}
    if refusal(session, [parts.create(types).replace(TABLE, table)]):
        for column in parts.columns:  # one by one, to find which
            reason = refusal(session, [parts.create({column.name}).replace(TABLE, table)])
            if reason:
                types.discard(column.name)
                left_out.append(f"type {column.declared} of {column.name}: {reason}")
            else:
                session.execute(f"DROP TABLE {table}")
        session.execute(parts.create(types).replace(TABLE, table))
    pg_table = find_table(session, table)
    assert pg_table is not None
    for stored_column in pg_table.columns:
        if stored_column.name in types and not stored_column.generated:
            try:
                DIALECT.write_column(parts.rows.field(stored_column.name), stored_column)
            except SchemaError as error:
                types.discard(stored_column.name)
                left_out.append(f"type {stored_column.declared} of {stored_column.name}: {error}")
    return types


class _Parts:
    """The parts of a definition, as statements for a table in `schema` with columns `rows`."""

    def __init__(
        self,
        schema: str,
        definition: TableDefinition,
        rows: pa.Schema,
        options: PostgresWriteOptions,
    ) -> None:
        self._schema, self._definition, self.rows, self._options = schema, definition, rows, options
        self.columns = [column for column in definition.columns if column.name in rows.names]
        self.renamed: dict[str, str] = {}
        """By the part, the name of an index or sequence that is not the source's."""

    def create(self, types: Collection[str]) -> str:
        """CREATE TABLE; the columns in `types` have the source's own declaration."""
        lines = []
        for field in self.rows:
            column = self._definition.column(field.name)
            if column is not None and field.name in types:
                lines.append(_declared(column, not_null=not field.nullable))
                continue
            declared = DIALECT.created_type(field.name, field.type, key=False)
            new_column = DIALECT.new_column(field.name, declared, not_null=not field.nullable)
            lines.append(DIALECT.definition(new_column))
        return f"CREATE TABLE {TABLE} ({', '.join(lines)}){DIALECT.after_create(self._options)}"

    def steps(
        self, trial_name: NameOf, name_of: NameOf
    ) -> Iterator[tuple[DefinitionStep, DefinitionStep]]:
        """(what is tried, what is done) of each part that follows the rows; they differ in the names of relations."""
        for column in self.columns:
            if column.default is not None:
                yield _same(f"default of {column.name}", _set_default(column.name, column.default))
            if column.sequence is not None:
                sequence, part = column.sequence, f"sequence of {column.name}"
                name = self._name(part, sequence.name, name_of)
                trial = self._numbered(column.name, sequence, trial_name(name))
                tried = DefinitionStep(part, (*trial.statements, trial.count))
                yield tried, self._numbered(column.name, sequence, name)
        for constraint in self._definition.constraints:
            yield self._constraint(constraint, trial_name, name_of)
        for key in self._definition.foreign_keys:
            if self._is_to_itself(key):
                yield _same(key.label, DIALECT.added_key(TABLE, key, TABLE))
        yield from self._comments()

    def left_out(self) -> Iterator[str]:
        """What is not tried."""
        for key in self._definition.foreign_keys:
            if not self._is_to_itself(key):
                table = DIALECT.place(self._schema, self._definition.name)
                schema = self._schema if key.schema == self._definition.schema else key.schema
                statement = DIALECT.added_key(table, key, DIALECT.place(schema, key.table))
                yield f"{key.label}: when {key.table} has its rows, run {statement}"
        for other in self._definition.others:
            yield f"{other}: no copy carries it"

    def _is_to_itself(self, key: ForeignKeyDefinition) -> bool:
        definition = self._definition
        return (key.schema, key.table) == (definition.schema, definition.name)

    def _name(self, part: str, name: str, name_of: NameOf) -> str:
        free = name_of(name)
        if free != name:
            self.renamed[part] = free
        return free

    def _numbered(self, column: str, sequence: SequenceDefinition, name: str) -> "NumbersStep":
        """What lets a column count on, behind the greatest number that it has."""
        sql, column_sql = DIALECT.place(self._schema, name), DIALECT.quoted(column)
        regclass = f"{literal_sql(sql)}::regclass"
        if sequence.identity:
            identity = f"GENERATED {sequence.identity} AS IDENTITY"
            settings = f"(SEQUENCE NAME {sql} {sequence.settings})"
            statements = [
                f"ALTER TABLE {TABLE} ALTER COLUMN {column_sql} ADD {identity} {settings}"
            ]
        else:
            statements = [
                f"CREATE SEQUENCE {sql} AS {sequence.declared} {sequence.settings}",
                _set_default(column, f"nextval({regclass})"),
                f"ALTER SEQUENCE {sql} OWNED BY {TABLE}.{column_sql}",
            ]
        count = _count(TABLE, column, regclass, sequence.increment, str(sequence.following))
        return NumbersStep(f"sequence of {column}", tuple(statements), count)

    def _constraint(
        self, constraint: ConstraintDefinition, trial_name: NameOf, name_of: NameOf
    ) -> tuple[DefinitionStep, DefinitionStep]:
        part = constraint.label
        if constraint.kind == "check":
            return _same(part, *self._added(constraint, constraint.name))
        name = self._name(part, constraint.name, name_of)
        return (
            DefinitionStep(part, self._added(constraint, trial_name(name))),
            DefinitionStep(part, self._added(constraint, name)),
        )

    def _added(self, constraint: ConstraintDefinition, name: str) -> tuple[str, ...]:
        name_sql = DIALECT.quoted(name)
        if constraint.kind == "index":
            unique = "UNIQUE " if constraint.is_unique else ""
            added = f"CREATE {unique}INDEX {name_sql} ON {TABLE} {constraint.text}"
            named = f"INDEX {DIALECT.place(self._schema, name)}"
        else:
            added = f"ALTER TABLE {TABLE} ADD CONSTRAINT {name_sql} {constraint.text}"
            named = f"CONSTRAINT {name_sql} ON {TABLE}"
        if constraint.comment is None:
            return (added,)
        return added, f"COMMENT ON {named} IS {literal_sql(constraint.comment)}"

    def _comments(self) -> Iterator[tuple[DefinitionStep, DefinitionStep]]:
        comment = self._definition.comment
        if comment is not None and self._options.table_comment is None:
            yield _same("comment", f"COMMENT ON TABLE {TABLE} IS {literal_sql(comment)}")
        for column in self.columns:
            if column.comment is not None:
                named = f"COLUMN {TABLE}.{DIALECT.quoted(column.name)}"
                comment = literal_sql(column.comment)
                yield _same(f"comment of {column.name}", f"COMMENT ON {named} IS {comment}")


def _same(part: str, *statements: str) -> tuple[DefinitionStep, DefinitionStep]:
    """A part that is tried as it is done."""
    step = DefinitionStep(part, statements)
    return step, step


def _set_default(column: str, expression: str) -> str:
    return f"ALTER TABLE {TABLE} ALTER COLUMN {DIALECT.quoted(column)} SET DEFAULT {expression}"


def _declared(column: ColumnDefinition, *, not_null: bool) -> str:
    """The column in CREATE TABLE, but for what follows the rows."""
    words = [DIALECT.quoted(column.name), column.declared]
    if column.collation is not None:
        words.append(f"COLLATE {column.collation}")
    if column.generated is not None:
        words.append(f"GENERATED ALWAYS AS {column.generated}")
    return " ".join([*words, "NOT NULL"] if not_null else words)
