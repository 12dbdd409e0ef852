"""Names of tables and columns as the database takes them, and what stands in FROM."""

from collections.abc import Sequence

from sqlglot import exp

from spark_channel.connectors.sql.statements import Source, identifier

__all__ = ["named", "quoted", "same_name", "source_of"]


def named(text: str, dialect: str) -> tuple[str | None, str]:
    """(schema, name) that `dbtable` means; a text that is no name in this SQL is a name as it stands."""
    try:
        tree = exp.to_table(text, dialect=dialect or None)
    except Exception:  # sqlglot raises several kinds
        return None, text
    if not isinstance(tree.this, exp.Identifier) or tree.catalog or tree.alias:
        return None, text
    return tree.db or None, tree.name


def source_of(schema: str | None, name: str) -> Source:
    database = identifier(schema) if schema is not None else None
    return Source(exp.Table(this=identifier(name), db=database), name)


def quoted(name: str, dialect: str) -> str:
    return identifier(name).sql(dialect or None)


def same_name(name: str, names: Sequence[str]) -> str | None:
    """The one of `names` that is meant: the exact one, else the only one that differs in case."""
    if name in names:
        return name
    near = [each for each in names if each.lower() == name.lower()]
    return near[0] if len(near) == 1 else None
