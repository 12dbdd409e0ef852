"""SQL text, built and checked with sqlglot: users' SQL is parsed, and identifiers are quoted."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from spark_channel.connectors.base.types import Node, exp, sqlglot, tokens
from spark_channel.errors import OptionError

__all__ = [
    "Source",
    "UnreadableError",
    "bind_columns",
    "condition",
    "identifier",
    "inside",
    "named_table",
    "query",
    "quoted_name",
    "quoted_text",
    "source_query",
    "text_of",
    "top_columns",
]


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
