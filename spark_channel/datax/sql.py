"""Table names with ranges, and the SELECT that a reader's columns and condition mean."""

import re
from collections.abc import Callable
from typing import Any

from spark_channel.datax.plugin_context import PluginContext
from spark_channel.datax.sections import refusal

__all__ = ["bare_names", "expand_tables", "plain_columns", "select_statements", "selects"]

_MOST_TABLES = 10_000
_RANGE = re.compile(r"(.*?)\[(\d{1,18})-(\d{1,18})\](.*)", re.DOTALL)
_NAME = r"""(?:[\w$#]+|"[^"]+"|`[^`]+`|\[[^\]]+\])"""
_TABLE = re.compile(rf"{_NAME}(?:\.{_NAME}){{0,2}}")
_PLAIN = re.compile(r"[^\W\d]\w*")
_CONSTANTS = {"null", "true", "false", "current_date", "current_timestamp"}


def expand_tables(tables: tuple[str, ...], path: str) -> tuple[str, ...]:
    """`t_[00-02]` is t_00, t_01, t_02; one text may hold several names with commas between them.

    Raises:
        JobFileError: no table, or more than 10 000.
    """
    names: list[str] = []
    for text in tables:
        for part in (piece.strip() for piece in text.split(",")):
            if part:
                names.extend(_expand(part, path))
            if len(names) > _MOST_TABLES:
                raise refusal(path, text, f"at most {_MOST_TABLES} tables")
    if not names:
        raise refusal(path, tables, "a table, or a list of tables")
    wrong = next((name for name in names if _TABLE.fullmatch(name) is None), None)
    if wrong is not None:
        raise refusal(
            path, wrong, "a table, or schema.table; names with other characters need quotes"
        )
    return tuple(names)


def _expand(name: str, path: str) -> list[str]:
    match = _RANGE.fullmatch(name)
    if match is None:
        return [name]
    before, first, last, after = match.groups()
    low, high = sorted((int(first), int(last)))
    if high - low >= _MOST_TABLES:
        raise refusal(path, name, f"at most {_MOST_TABLES} tables")
    # DataX pads with zeros to the width of the smaller end when that begins with 0.
    smaller = first if int(first) == low else last
    width = len(smaller) if smaller.startswith("0") else 0
    return [f"{before}{number:0{width}d}{after}" for number in range(low, high + 1)]


def plain_columns(columns: tuple[str, ...], dialect: str, path: str) -> tuple[str, ...] | None:
    """The columns' bare names, without quotes; None when one is a constant or an expression, or occurs twice.

    Raises:
        JobFileError: a text that is not an SQL expression in this dialect.
    """
    names = bare_names(columns, dialect, path)
    return None if "" in names or len(set(names)) < len(names) else names


def bare_names(columns: tuple[str, ...], dialect: str, path: str) -> tuple[str, ...]:
    """The same with "" for a constant or an expression."""
    names = []
    for number, text in enumerate(columns):
        if _PLAIN.fullmatch(text) and text.lower() not in _CONSTANTS:
            names.append(_folded(text, dialect))
            continue
        parsed = _parsed(text, dialect, f"{path}[{number}]")
        plain = _is_bare(parsed)
        quoted = plain and parsed.this.quoted
        names.append("" if not plain else parsed.name if quoted else _folded(parsed.name, dialect))
    return tuple(names)


def _folded(name: str, dialect: str) -> str:
    """As the server reads a name without quotes."""
    return name.lower() if dialect == "postgres" else name


def selects(columns: tuple[str, ...], name: str, dialect: str) -> bool:
    """Whether one of the columns, already seen to be SQL, is the bare column `name`."""
    parsed = (_expression(text, dialect) for text in columns)
    return any(_is_bare(one) and one.name.lower() == name.lower() for one in parsed)


def _is_bare(parsed: object) -> bool:
    from sqlglot import exp

    return isinstance(parsed, exp.Column) and len(parsed.parts) == 1 and not parsed.is_star


def _expression(text: str, dialect: str) -> Any:
    import sqlglot
    from sqlglot import exp

    if _PLAIN.fullmatch(text) and text.lower() not in _CONSTANTS:
        return exp.column(text)
    # `into` a bare expression: as a statement, a column named `comment` or `show` would be one.
    return sqlglot.parse_one(text, read=dialect, into=_any())


def _any() -> Any:
    from sqlglot import exp

    return getattr(exp, "Expr", exp.Expression)  # the root's name changed in sqlglot 30


def _parsed(text: str, dialect: str, path: str) -> Any:
    import sqlglot
    from sqlglot import exp

    takes = f"a column or an expression of {dialect or 'SQL'}"
    try:
        parsed = _expression(text, dialect)
    except (sqlglot.errors.SqlglotError, RecursionError) as error:
        raise refusal(path, text, f"{takes} ({_reason(error)})") from None
    is_statement = isinstance(parsed, (exp.Query, exp.Command, exp.DDL)) and not isinstance(
        parsed, exp.Subquery
    )
    if parsed is None or is_statement:
        raise refusal(path, text, takes)
    return parsed


def _closed(text: str) -> str:
    """A text that may end with a comment, which would take what follows it in."""
    return f"{text}\n" if "--" in text or "#" in text else text


def _reason(error: Exception) -> str:
    import sqlglot

    if isinstance(error, sqlglot.errors.ParseError) and error.errors:
        return str(error.errors[0].get("description", "")).rstrip(".")
    return type(error).__name__


def select_statements(
    columns: tuple[str, ...], where: str | None, dialect: str, context: PluginContext
) -> Callable[[str], str]:
    """A SELECT for each table, of the job's own texts; expressions are named c0, c1, ... by their place.

    They are parsed only to be named: rendered in any dialect, some would mean something else.

    Raises:
        JobFileError: a column, table or condition that is not SQL of this dialect.
    """
    import sqlglot
    from sqlglot import exp

    path = context.key("column")
    outputs: list[str] = []
    names: set[str] = set()
    for number, text in enumerate(columns):
        if text == "*":
            outputs.append(text)
            continue
        parsed = _parsed(text, dialect, f"{path}[{number}]")
        name = parsed.alias_or_name.lower() if isinstance(parsed, (exp.Column, exp.Alias)) else ""
        if not name or name in names:
            bare = (
                parsed.unalias().sql(dialect=dialect)
                if isinstance(parsed, exp.Alias)
                else text.strip()
            )
            name = f"c{number}"
            text = f"{_closed(bare)} AS {name}"
        names.add(name)
        outputs.append(_closed(text.strip()))
    outputs_text, condition = ", ".join(outputs), ""
    if where is not None:
        _parsed(where, dialect, context.key("where"))
        condition = f" WHERE {_closed(where)}"

    def of_table(table: str) -> str:
        try:
            exp.to_table(table, dialect=dialect)
        except (sqlglot.errors.SqlglotError, ValueError, RecursionError):
            raise refusal(context.key("table"), table, "a table, or schema.table") from None
        return f"SELECT {outputs_text} FROM {table}{condition}"  # noqa: S608 - the job's own texts, each parsed

    return of_table
