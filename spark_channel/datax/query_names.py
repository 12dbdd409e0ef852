"""Names for the columns of a `querySql` that have none, or share one: DataX uses positions."""

from collections import Counter
from typing import Any

__all__ = ["with_unique_names"]


_OPEN, _CLOSE = ("L_PAREN", "L_BRACKET", "L_BRACE"), ("R_PAREN", "R_BRACKET", "R_BRACE")


def with_unique_names(query: str, dialect: str) -> str:
    """`query` with an alias for each column whose name occurs before; everything else stays as written.

    Unchanged where no name occurs twice, and where the text cannot be taken apart with certainty.
    """
    import sqlglot

    try:
        tree = sqlglot.parse_one(query, read=dialect)
        if not _is_ambiguous(tree, dialect):
            return query
        aliased = _with_aliases(query, tree, dialect)
        return aliased if _is_same(tree, sqlglot.parse_one(aliased, read=dialect)) else query
    except (sqlglot.errors.SqlglotError, RecursionError):
        return query


def _is_ambiguous(tree: object, dialect: str) -> bool:
    from sqlglot import exp

    if not isinstance(tree, exp.Select) or tree.is_star:
        return False
    counted = Counter(_name(select) for select in tree.selects)
    # PostgreSQL names `max(a)` and `max(b)` max; MySQL names them by their texts.
    nameless = counted.pop("", 0)
    return any(count > 1 for count in counted.values()) or (nameless > 1 and dialect == "postgres")


def _name(column: Any) -> str:
    return str(column.alias_or_name).lower()


def _with_aliases(query: str, tree: Any, dialect: str) -> str:
    from sqlglot import exp

    items = _items(query, dialect)
    if len(items) != len(tree.selects):
        return query
    names = {_name(select) for select in tree.selects}
    before: set[str] = set()
    edits: list[tuple[int, int, str]] = []
    for number, (tokens, column) in enumerate(zip(items, tree.selects, strict=True)):
        name = _name(column)
        if name and name not in before:
            before.add(name)
            continue
        last = len(tokens) - 1
        if isinstance(column, exp.Alias):
            last -= 2 if tokens[last - 1].token_type.name == "ALIAS" else 1
        alias = next(
            free_alias
            for n in range(number, number + len(names) + 1)
            if (free_alias := f"{name or 'c'}_{n}") not in names
        )
        names.add(alias)
        written = (
            f'"{alias}"' if dialect == "postgres" else f"`{alias}`" if dialect == "mysql" else alias
        )
        edits.append((tokens[last].end + 1, tokens[-1].end + 1, f" AS {written}"))
    for start, end, text in reversed(edits):
        query = query[:start] + text + query[end:]
    return query


def _items(query: str, dialect: str) -> list[list[Any]]:
    """The tokens of each column of the outermost SELECT."""
    import sqlglot

    items: list[list[Any]] = []
    depth, inside = 0, False
    for token in sqlglot.tokenize(query, read=dialect):
        kind = token.token_type.name
        if depth == 0 and not inside:
            if kind == "SELECT":
                inside = True
                items.append([])
        elif depth == 0 and kind in ("FROM", "INTO", "WHERE", "ORDER_BY", "LIMIT", "SEMICOLON"):
            break
        elif depth == 0 and kind == "COMMA":
            items.append([])
        elif inside:
            items[-1].append(token)
        depth += (kind in _OPEN) - (kind in _CLOSE)
    return items if all(items) else []


def _is_same(one: Any, other: Any) -> bool:
    """Whether the queries differ in the aliases of their columns only."""
    columns = [[select.unalias() for select in tree.selects] for tree in (one, other)]
    trees = [tree.copy() for tree in (one, other)]
    for tree in trees:
        tree.set("expressions", [])
    names = [_name(select) for select in other.selects]
    return (
        columns[0] == columns[1]
        and trees[0] == trees[1]
        and len({n for n in names if n}) == len(names)
    )
