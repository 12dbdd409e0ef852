"""What a new table gets of the definition of the table that its rows come from."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from spark_channel.arrow_schema import TextLengths
from spark_channel.connectors.base.definition import (
    ConstraintDefinition,
    ForeignKeyDefinition,
    TableDefinition,
    with_not_null,
)
from spark_channel.connectors.sql.catalog import TABLE, DefinitionStep, Table
from spark_channel.connectors.sql.definition.portable import DiffersError, Portable
from spark_channel.connectors.sql.dialect import WriteDialect
from spark_channel.plain_text import log_of

__all__ = [
    "Lack",
    "NewTable",
    "create_index",
    "free_names",
    "is_build",
    "lacking",
    "parts_of_both",
    "plain_new_table",
    "with_safe_key",
]

_log = log_of(__name__)

_MOST_NAMES = 1000
_NOT_BUILT = ("default ", "sequence ", "comment")
"""How the names of steps begin that read no row of the table."""


@dataclass(frozen=True, slots=True)
class NewTable:
    """A table to be made. `rows` are its columns, with those that are never NULL; `key` is its primary key.

    `create` is its CREATE TABLE with `TABLE` for its name, and `table` what that makes; "" and None = as `rows` and
    `key` say. `steps` follow when the rows are in. `left_out` names, for people, the parts of the source's definition
    that it does not get, and why, and `renamed` the names that are not the source's.
    """

    rows: pa.Schema
    key: tuple[str, ...] = ()
    create: str = ""
    table: Table | None = None
    steps: tuple[DefinitionStep, ...] = ()
    left_out: tuple[str, ...] = ()
    renamed: tuple[str, ...] = ()
    later: tuple[DefinitionStep, ...] = ()
    """Steps that a user runs."""
    defaults: Mapping[str, str] = field(default_factory=dict)
    checks: tuple[tuple[ConstraintDefinition, str], ...] = ()
    """What CREATE TABLE says beside the columns: their defaults, and conditions with the source's checks."""

    @property
    def builds(self) -> tuple[str, ...]:
        """The steps that read rows of the table, for people: no limit slows them down."""
        return tuple(step.what for step in self.steps if is_build(step))

    def stated_checks(self, dialect: WriteDialect) -> list[str]:
        """The checks in CREATE TABLE: with the source's name where it has one, but in MySQL, which shares names."""
        return [
            condition
            if not part.has_name or dialect.sql == "mysql"
            else f"CONSTRAINT {dialect.quoted(part.name)} {condition}"
            for part, condition in ((part, f"CHECK {sql}") for part, sql in self.checks)
        ]

    def without_builds(self, carried: Collection[str]) -> "NewTable":
        """The same, with the steps that read rows as `later`, but for those whose `what` is in `carried`."""
        later = [step for step in self.steps if is_build(step) and step.what not in carried]
        steps = tuple(step for step in self.steps if step not in later)
        return replace(self, steps=steps, later=tuple(later))

    def with_carried(self, steps: Sequence[DefinitionStep]) -> "NewTable":
        """The same with further steps, whose parts are no longer left out."""
        whats = {step.what for step in steps}
        left_out = tuple(part for part in self.left_out if part.partition(": ")[0] not in whats)
        return replace(self, steps=(*self.steps, *steps), left_out=left_out)

    def remark(self, label: str) -> None:
        """Log what the table lacks of its source, and its other names."""
        if self.left_out:
            _log.warning("table %s is made without %s", label, "; ".join(self.left_out))
        if self.renamed:
            _log.warning(
                "table %s has other names than its source: %s", label, "; ".join(self.renamed)
            )

    def announce(self, label: str, later: str) -> None:
        """Log, before a row moves, the index builds that no limit slows down; `later`: how those are made."""
        if self.later:
            parts = "; ".join(step.what for step in self.later)
            _log.warning("table %s gets later, %s: %s", label, later, parts)
        if self.builds:
            _log.warning(
                "table %s gets, after its rows, what no limit slows down: %s",
                label,
                "; ".join(self.builds),
            )


def is_build(step: DefinitionStep) -> bool:
    """Whether the step reads rows of the table, so that no limit slows it down."""
    return not step.what.startswith(_NOT_BUILT)


def primary_key(
    definition: TableDefinition, rows: pa.Schema
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The primary key, if the rows have it: its columns, and what is left out."""
    key = definition.primary
    if key is None:
        return (), ()
    for name in key.columns:
        if name not in rows.names:
            return (), (f"{key.label}: the rows lack its column {name}",)
        if rows.field(name).nullable:
            return (), (f"{key.label}: its column {name} may be NULL in {definition.system}",)
    return key.columns, ()


def with_safe_key(
    dialect: WriteDialect, definition: TableDefinition, rows: pa.Schema, lengths: TextLengths
) -> tuple[TableDefinition, tuple[str, ...]]:
    """The definition without a primary key that the target may refuse rows for, and what is left out."""
    key = definition.primary
    for name in () if key is None else key.columns:
        index = rows.get_field_index(name)
        obstacle = "" if index < 0 else dialect.not_keyed(rows.field(index), lengths.get(name))
        if obstacle and key is not None:
            return definition.without_primary(), (f"{key.label}: {obstacle}",)
    return definition, ()


def plain_new_table(
    dialect: WriteDialect,
    definition: TableDefinition,
    rows: pa.Schema,
    *,
    is_full: bool,
    name_of: Callable[[str], str],
    table: str = TABLE,
    is_typed: bool = False,
) -> NewTable:
    """NOT NULL and the primary key; `is_full`: also the indexes, defaults and checks that mean the same everywhere.

    `name_of` gives an index a name that is free. `table` is the table in CREATE INDEX. `is_typed`: the user has chosen
    types of columns.
    """
    rows = with_not_null(rows, definition)
    key, left_out = primary_key(definition, rows)
    if not is_full:
        return NewTable(rows, key, left_out=left_out)
    steps, renamed, out = [], [], list(left_out)
    portable, checks = Portable(dialect, definition, rows), []
    for constraint in definition.constraints:
        if constraint.kind == "primary key":
            continue
        if constraint.kind == "check":
            try:
                _refuse_chosen(is_typed)
                checks.append((constraint, portable.check(constraint)))
            except DiffersError as error:
                out.append(f"{constraint.label}: {error}")
            continue
        obstacle = _not_plain(dialect, constraint, rows)
        if obstacle:
            out.append(f"{constraint.label}: {obstacle}")
            continue
        name = name_of(_beside_tables(definition, constraint.name))
        if name != constraint.name:
            renamed.append(f"{constraint.label} is {name}")
        statement = create_index(dialect, constraint, name, table, constraint.columns)
        steps.append(DefinitionStep(constraint.label, (statement,)))
    defaults: dict[str, str] = {}
    whys: dict[str, str] = {}
    for column in definition.columns:
        if column.default is not None:
            try:
                _refuse_chosen(is_typed)
                defaults[column.name] = portable.default(column)
            except DiffersError as error:
                whys[f"default of {column.name}"] = str(error)
    carried = {f"default of {name}" for name in defaults}
    none = f"{dialect.product} gets none from another system"
    obstacle = f"{dialect.product} may read its SQL in another way than {definition.system}"
    for part in definition.of_parts():
        if part not in carried:
            is_none = part.startswith("comment ") or part in definition.own
            out.append(f"{part}: {whys.get(part) or (none if is_none else obstacle)}")
    for column in definition.columns:
        if column.is_own and column.name in rows.names:
            subject = f"type {column.declared} of {column.name}"
            out.append(f"{subject}: the column takes values that the type refuses")
    obstacle = "replicate adds it when both tables have their rows"
    if not dialect.adds_keys:
        obstacle = f"{dialect.product} adds none to a table that is there"
    out += [f"{foreign.label}: {obstacle}" for foreign in definition.foreign_keys]
    out += [f"{other}: no copy carries it" for other in definition.others]
    return NewTable(
        rows,
        key,
        steps=tuple(steps),
        left_out=tuple(out),
        renamed=tuple(renamed),
        defaults=defaults,
        checks=tuple(checks),
    )


def _refuse_chosen(is_typed: bool) -> None:
    if is_typed:
        raise DiffersError("option createTableColumnTypes chooses types of columns")


def _beside_tables(definition: TableDefinition, name: str) -> str:
    """The name of an index, of a system in which it is its table's alone: elsewhere a later table may have it."""
    is_own = definition.system == "mysql" and not name.startswith(definition.name)
    return f"{definition.name}_{name}" if is_own else name


def create_index(
    dialect: WriteDialect,
    constraint: ConstraintDefinition,
    name: str,
    table: str,
    columns: Sequence[str],
) -> str:
    """The statement that makes an index of whole columns. `table` is SQL."""
    unique = "UNIQUE " if constraint.is_unique else ""
    names = ", ".join(map(dialect.quoted, columns))
    return f"CREATE {unique}INDEX {dialect.quoted(name)} ON {table} ({names})"


def _not_plain(dialect: WriteDialect, constraint: ConstraintDefinition, rows: pa.Schema) -> str:
    """Why a constraint is left out; "" = it is not."""
    if constraint.kind == "exclusion constraint" or not constraint.is_plain:
        return "it is more than a list of columns"
    for name in constraint.columns:
        if name not in rows.names:
            return f"the rows lack its column {name}"
        obstacle = dialect.not_indexed(rows.field(name))
        if obstacle:
            return obstacle
    return ""


def _is_list(key: ConstraintDefinition) -> bool:
    """Whether its columns say all of it. Those of a check do not."""
    return key.is_plain and key.kind != "check"


def parts_of_both(
    one: TableDefinition, other: TableDefinition
) -> tuple[set[str], list[ConstraintDefinition]]:
    """The labels of `one`'s keys, checks and indexes that `other` has, too, whatever their names; and the rest."""
    plain = {(key.columns, key.is_unique) for key in other.constraints if _is_list(key)}
    texts = {(key.is_unique, key.text) for key in other.constraints if key.text}
    both, others = set(), []
    for key in one.constraints:
        is_plain = _is_list(key) and (key.columns, key.is_unique) in plain
        if is_plain or (key.text and (key.is_unique, key.text) in texts):
            both.add(key.label)
        else:
            others.append(key)
    theirs = {key.columns for key in other.foreign_keys}
    return both | {key.label for key in one.foreign_keys if key.columns in theirs}, others


@dataclass(frozen=True, slots=True)
class Lack:
    """What a target lacks: a statement, or text for people. `is_build`: it makes a key, an index or a check."""

    text: str
    is_build: bool = False


def lacking(
    dialect: WriteDialect,
    source: TableDefinition,
    target: TableDefinition,
    *,
    is_full: bool,
    name_of: Callable[[str], str] = str,
    referenced: Callable[[ForeignKeyDefinition], str] = lambda _key: "",
) -> list[Lack]:
    """What the target lacks of NOT NULL, the primary key and (`is_full`) indexes and foreign keys, as statements.

    `referenced` returns the copy of the table to which a foreign key refers, as SQL; "" = the key is named alone.

    An index is there if one of the target has its columns and is as unique, whatever its name is. `name_of` gives one
    that is not there a name that is free.
    """
    table = dialect.place(target.schema, target.name)
    on = dialect.indexed_table(target.name).replace(TABLE, table)
    names = [column.name for column in target.columns]

    def theirs(name: str) -> str | None:
        return dialect.same_name(name, names)

    def stated(constraint: ConstraintDefinition, columns: Sequence[str]) -> str:
        """The source's own text as a statement, where both are of one system and name the columns alike."""
        is_same = source.system == target.system and tuple(columns) == constraint.columns
        if not is_same or not constraint.text:
            return ""
        return dialect.stated(constraint, name_of(constraint.name), table, on)

    lacks = []
    for column in source.columns:
        column_of_target = target.column(theirs(column.name) or "")
        if column_of_target is not None and column.not_null and not column_of_target.not_null:
            statement = dialect.not_null(table, column_of_target.name, column_of_target.declared)
            lacks.append(
                Lack(
                    statement
                    or f"NOT NULL of {column_of_target.name}, which {dialect.product} cannot add"
                )
            )
    keys = {
        key.columns: key.is_unique for key in target.constraints if _is_list(key) and key.is_unique
    }
    unique_by_columns = {
        **{key.columns: False for key in target.constraints if _is_list(key)},
        **keys,
    }
    texts = {key.text for key in target.constraints if key.text}
    for constraint in source.constraints:
        is_key = constraint.kind == "primary key"
        columns = tuple(theirs(name) or "" for name in constraint.columns)
        if not (is_key or is_full) or not all(columns):
            continue
        if is_key:
            if target.primary is None and not unique_by_columns.get(columns):
                # One that may be deferred, or has further columns, is another key than its columns say.
                made_sql = "" if constraint.is_plain else stated(constraint, columns)
                made_sql = made_sql or dialect.keyed(table, columns, target.name)
                lacks.append(Lack(made_sql, is_build=True))
        elif constraint.is_plain and constraint.kind in ("index", "unique constraint"):
            if columns in unique_by_columns and unique_by_columns[columns] >= constraint.is_unique:
                continue
            # Its own text has what no other system has: a collation, storage parameters.
            made_sql = stated(constraint, columns) if constraint.kind == "index" else ""
            made_sql = made_sql or create_index(
                dialect, constraint, name_of(constraint.name), on, columns
            )
            lacks.append(Lack(dialect.beside_writers(made_sql), is_build=True))
        elif source.system == target.system and constraint.text and constraint.text not in texts:
            made_sql = dialect.stated(constraint, name_of(constraint.name), table, on)
            limit = f", which {dialect.product} adds to no table that is there"
            lacks.append(
                Lack(dialect.beside_writers(made_sql), is_build=True)
                if made_sql
                else Lack(f"{constraint.label}: {constraint.text}{limit}")
            )
    foreign_columns = {key.columns for key in target.foreign_keys}
    for foreign in source.foreign_keys if is_full else ():
        columns = tuple(theirs(name) or "" for name in foreign.columns)
        if all(columns) and columns not in foreign_columns:
            other = referenced(foreign) if dialect.adds_keys else ""
            named = f"{foreign.label} of {', '.join(columns)} to the copy of {foreign.table}"
            own_key = replace(foreign, columns=columns)
            lacks.append(Lack(dialect.added_key(table, own_key, other) if other else named))
    return lacks


def free_names(
    names: Collection[str], longest: int | None, *, folds: bool = False
) -> Callable[[str], str]:
    """What gives each part of a table a name that neither `names` nor an earlier part has; `folds`: in another case.

    One that is taken, or longer than `longest` bytes, becomes the first of `name_1`, `name_2` ... that is free.
    """
    fold = str.casefold if folds else str
    used = set(map(fold, names))

    def is_free(name: str) -> bool:
        return fold(name) not in used and (longest is None or len(name.encode()) <= longest)

    def name_of(name: str) -> str:
        free = name if is_free(name) else _numbered(name, longest, is_free)
        used.add(fold(free))
        return free

    return name_of


def _numbered(name: str, longest: int | None, is_free: Callable[[str], bool]) -> str:
    for number in range(1, _MOST_NAMES):
        behind, encoded = f"_{number}", name.encode()
        if longest is not None:
            encoded = encoded[: longest - len(behind)]
        candidate = encoded.decode(errors="ignore") + behind
        if is_free(candidate):
            return candidate
    raise AssertionError(f"{_MOST_NAMES} names like {name!r} are taken")
