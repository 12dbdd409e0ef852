"""SQL built and checked by sqlglot; names resolved."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol, TypeVar

import pyarrow as pa

from spark_channel.connectors.base.types import Node, arrow_columns, exp, sqlglot, tokens
from spark_channel.errors import OptionError, SourceError
from spark_channel.final_errors import of_input

__all__ = [
    "Node",
    "SameName",
    "Source",
    "UnreadableError",
    "condition",
    "custom_kinds",
    "identifier",
    "inside",
    "is_plain_name",
    "known_name",
    "missing_table",
    "name_readings",
    "named_table",
    "only_name",
    "parsed_name",
    "pick_columns",
    "query",
    "quoted_name",
    "quoted_parts",
    "quoted_text",
    "source_query",
    "text_of",
    "top_columns",
]


# SQL text, built and checked with sqlglot: users' SQL is parsed, and identifiers are quoted.

_LACKS = re.compile(r"Required keyword: '\w+' missing for <class '[\w.]+'>")


@cache
def _forbidden() -> tuple[type[Any], ...]:
    return (
        exp.Alter,
        exp.Attach,
        exp.Command,
        exp.Commit,
        exp.Create,
        exp.Delete,
        exp.Detach,
        exp.Drop,
        exp.Insert,
        exp.Into,
        exp.Merge,
        exp.Pragma,
        exp.Rollback,
        exp.Set,
        exp.Transaction,
        exp.TruncateTable,
        exp.Update,
        exp.Use,
    )


def _unbound(dialect: str) -> tuple[type[Any], ...]:
    """MySQL's `@a` and `@@a` are variables of the session, which have values."""
    variables = (exp.Parameter, exp.SessionParameter)
    return (exp.Placeholder,) if dialect == "mysql" else (exp.Placeholder, *variables)


class UnreadableError(OptionError):
    """SQL that sqlglot cannot read."""


@dataclass(frozen=True, slots=True)
class Source:
    """The FROM clause, and the name by which its columns are qualified."""

    expression: Node
    name: str

    def column(self, name: str) -> "exp.Column":
        return exp.column(identifier(name), table=identifier(self.name))


def identifier(name: str) -> "exp.Identifier":
    return exp.to_identifier(name, quoted=True)


def quoted_name(name: str) -> str:
    """A name in a statement of standard SQL."""
    return '"' + name.replace('"', '""') + '"'


def quoted_text(value: str) -> str:
    """A text in a statement of standard SQL, in which a backslash is a letter as any other."""
    return "'" + value.replace("'", "''") + "'"


def text_of(text: str, dialect: str | None = None) -> str:
    """A query or condition of the user's, once it is checked, for parentheses: never rendered again, since dialects
    call some functions otherwise. A comment at its end would take the parenthesis in.

    With its `dialect`, comments behind the semicolon at its end are left out, too.
    """
    bare = text.strip().rstrip(";").rstrip()
    if dialect is not None and ";" in bare:
        token_list = sqlglot.tokenize(bare, read=dialect)
        if token_list[-1].token_type == tokens.TokenType.SEMICOLON:
            bare = bare[: token_list[-1].start].rstrip()
    return f"{bare}\n" if "--" in bare or "#" in bare else bare


def inside(text: str, dialect: str) -> str:
    """The text inside the outer parentheses of `(subquery) alias`."""
    depth = 0
    for token in sqlglot.tokenize(text, read=dialect):
        depth += {tokens.TokenType.L_PAREN: 1, tokens.TokenType.R_PAREN: -1}.get(
            token.token_type, 0
        )
        if depth == 0:
            return text[text.index("(") + 1 : token.start]
    return text


def named_table(parts: Sequence[str]) -> Source:
    """The table `parts` names: (table,) or (schema, table)."""
    schema = identifier(parts[0]) if len(parts) > 1 else None
    return Source(exp.Table(this=identifier(parts[-1]), db=schema), parts[-1])


def query(text: str, dialect: str, option: str) -> "exp.Query":
    """`text` as the one statement it must be: a SELECT, without parameters.

    Raises:
        OptionError: not SQL, several statements, or anything that changes something.
    """
    takes = "one SELECT"
    try:
        trees = [
            tree
            for tree in sqlglot.parse(text, read=dialect)
            if tree is not None and not isinstance(tree, exp.Semicolon)
        ]
    except sqlglot.errors.SqlglotError as error:
        reason = f"it is not SQL that can be read: {_first_line(error)}"
        raise UnreadableError(
            str(_refused(option, text, reason, takes)), option=option, got=text, takes=takes
        ) from None
    if len(trees) != 1:
        raise _refused(option, text, f"it holds {len(trees)} statements", takes)
    tree = trees[0]
    if not isinstance(tree, exp.Query):
        raise _refused(option, text, f"it is {_kind(tree)}", takes)
    _check(tree, dialect, option, text, takes)
    return tree


def source_query(dbtable: str, dialect: str, option: str) -> Source:
    """JDBC's `(subquery) alias`.

    Raises:
        OptionError: anything else.
    """
    takes = "a table's name or (subquery) alias"
    outer = query("SELECT * FROM " + dbtable, dialect, option)  # noqa: S608 - parsed and checked, never run
    source = outer.args.get("from_") or outer.args.get("from")
    extra = [
        name
        for name, value in outer.args.items()
        if value and name not in ("expressions", "from_", "from")
    ]
    if (
        not isinstance(outer, exp.Select)
        or source is None
        or extra
        or not isinstance(source.this, exp.Subquery)
    ):
        raise _refused(option, dbtable, "it is more than a subquery in parentheses", takes)
    inner = source.this
    if not isinstance(inner.this, exp.Select | exp.SetOperation):
        raise _refused(option, dbtable, "it is not a subquery", takes)
    if any(inner.args.get(name) for name in ("joins", "pivots", "laterals", "sample")):
        raise _refused(option, dbtable, "it is more than a subquery in parentheses", takes)
    return subquery(inner.this, inner.alias or "source")


def subquery(tree: "exp.Query", name: str) -> Source:
    """A query in FROM, under `name`."""
    return Source(tree.subquery(identifier(name), copy=True), name)


def condition(text: str, dialect: str, option: str) -> Node:
    """`text` as one condition.

    Raises:
        OptionError: not a condition, several statements, or anything that changes something.
    """
    takes = "one SQL condition, such as: price > 10 AND name LIKE 'a%'"
    try:
        tree = sqlglot.parse_one(text, read=dialect, into=exp.Condition)
    except sqlglot.errors.SqlglotError as error:
        raise _refused(
            option, text, f"it is not a condition: {_first_line(error)}", takes
        ) from None
    if not isinstance(tree, exp.Condition) or isinstance(tree, exp.Query):
        raise _refused(option, text, f"it is {_kind(tree)}", takes)
    _check(tree, dialect, option, text, takes)
    return tree


def top_columns(tree: Node) -> "list[exp.Column]":
    """The columns in a condition, outside its subqueries."""
    return [
        column for column in tree.find_all(exp.Column) if column.find_ancestor(exp.Query) is None
    ]


def bind_columns(tree: Node, replace: "Callable[[exp.Column], Node]") -> Node:
    """A copy of the condition, its top columns replaced."""
    copy = tree.copy()
    holder = exp.Paren(this=copy)
    for column in top_columns(holder):
        column.replace(replace(column))
    return holder


def _check(tree: Node, dialect: str, option: str, text: str, takes: str) -> None:
    unbound = _unbound(dialect)
    for node in tree.walk():
        if isinstance(node, _forbidden()):
            raise _refused(option, text, f"it holds {_kind(node)}", takes)
        if isinstance(node, unbound):
            raise _refused(option, text, "it holds a parameter that nothing would fill", takes)


def _kind(tree: Node) -> str:
    return (
        "a " + type(tree).__name__.upper() + " statement"
        if isinstance(tree, _forbidden())
        else "no query"
    )


def _first_line(error: Exception) -> str:
    details = getattr(error, "errors", None)
    if details:
        problem = _LACKS.sub("an operand is missing", details[0]["description"])
        return f"{problem} at line {details[0]['line']}, column {details[0]['col']}"
    return str(error).splitlines()[0]


def _refused(option: str, text: str, reason: str, takes: str) -> OptionError:
    return OptionError(
        f"option {option!r} got {text!r}; {reason}. It takes {takes}",
        option=option,
        got=text,
        takes=takes,
    )


# Resolves the tables and columns that options name.


SameName = Callable[[str, Sequence[str]], str | None]
"""The one of several names that a database takes a name for; None = none of them."""

_SHOWN = 20
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_QUOTED_NAMES = {
    "mysql": re.compile(r"(?:`([^`]+)`\.)?`([^`]+)`"),
    **dict.fromkeys(("sqlite", "duckdb", "postgres"), re.compile(r'(?:"([^"]+)"\.)?"([^"]+)"')),
}
"""By sqlglot's name of the dialect."""


class Named(Protocol):
    """A column."""

    @property
    def name(self) -> str: ...


_Column = TypeVar("_Column", bound=Named)


def known_name(name_given: str, names: Sequence[str], same_name: SameName, option: str) -> str:
    """The one of `names` that `option` means by `name_given`.

    Raises:
        OptionError: none of them.
    """
    name = same_name(name_given, names)
    if name is None:
        hint = ". Put a text in single quotes" if option == "where" else ""
        raise OptionError(
            f"option {option!r} names column {name_given!r}, which is not there; columns: {', '.join(names)}{hint}",
            option=option,
            got=name_given,
            takes=", ".join(names),
        )
    return name


def pick_columns(
    columns: Sequence[_Column], names: Sequence[str] | None, same_name: SameName
) -> tuple[_Column, ...]:
    """The columns that option `columns` names, in its order; all of them without it.

    Raises:
        OptionError: a column that is not there.
    """
    if names is None:
        return tuple(columns)
    by_name = {column.name: column for column in columns}
    return tuple(by_name[known_name(name, list(by_name), same_name, "columns")] for name in names)


def custom_kinds(
    text: str | None, names: Sequence[str], same_name: SameName
) -> dict[str, pa.DataType]:
    """The types that option `customSchema` chooses, by column.

    Raises:
        OptionError: a column that does not exist, or text that is not a schema.
    """
    kinds = {} if text is None else arrow_columns(text, "customSchema")
    return {
        known_name(name, names, same_name, "customSchema"): kind for name, kind in kinds.items()
    }


def missing_table(
    dbtable: str, names: Sequence[str], location: object, *, may_hide: bool = False, lacks: str = ""
) -> SourceError:
    """The error for a table that does not exist, with the names of some that do, without those of this project.

    `may_hide`: the table may be there, where the login has no right on it; `lacks`: how it gets one.
    """
    ellipsis = ", ..." if len(names) > _SHOWN else ""
    theirs = [name for name in names if not name.rpartition(".")[2].startswith("spark_channel_")]
    names_shown = ", ".join(theirs[:_SHOWN]) + ellipsis if theirs else "none"
    hidden = f", or this user may not see it{f' ({lacks})' if lacks else ''}" if may_hide else ""
    return of_input(
        SourceError(
            f"table {dbtable!r} does not exist in {location}{hidden}; its tables: {names_shown}"
        )
    )


def only_name(name: str, names: Sequence[str]) -> str | None:
    """The one of `names` that is meant: the exact one, else the only one that differs in case."""
    if name in names:
        return name
    near = [candidate for candidate in names if candidate.lower() == name.lower()]
    return near[0] if len(near) == 1 else None


def parsed_name(text: str, dialect: str) -> "exp.Table | None":
    """`schema.name` as the database's SQL reads it; None for a text that it cannot read as a name."""
    try:
        tree = exp.to_table(text, dialect=dialect or None)
    except Exception:  # sqlglot raises several kinds
        return None
    return (
        tree
        if isinstance(tree.this, exp.Identifier) and not tree.catalog and not tree.alias
        else None
    )


def is_plain_name(text: str) -> bool:
    """Whether every database reads `text` as one name without a schema, which needs no parser."""
    return _PLAIN_NAME.fullmatch(text) is not None


def quoted_parts(text: str, dialect: str) -> tuple[str | None, str] | None:
    """(schema, table) of a name in quotes, as this project writes those of tables that it has found.

    None for any other text, which needs a parser: that takes longer than some statements.
    """
    quoted = _QUOTED_NAMES.get(dialect)
    match = quoted.fullmatch(text) if quoted else None
    return None if match is None else (match[1], match[2])


def name_readings(text: str, dialect: str, schema: str) -> list[tuple[str, str]]:
    """(schema, name) that `dbtable` may mean: the whole text as a name first, then `schema.name`.

    `schema` is where names without one are looked up.
    """
    if is_plain_name(text):
        return [(schema, text)]
    quoted = quoted_parts(text, dialect)
    if quoted is not None:
        return [(schema, text), (quoted[0] or schema, quoted[1])]
    tree = parsed_name(text, dialect)
    return [(schema, text)] if tree is None else [(schema, text), (tree.db or schema, tree.name)]
