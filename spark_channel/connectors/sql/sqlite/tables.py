"""What a SQLite file says about a table, a view or a query: columns, keys, and how its rows can be cut."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from sqlglot import exp

from spark_channel.connectors.sql.sqlite.database import Session
from spark_channel.connectors.sql.statements import identifier

__all__ = ["Column", "Table", "describe_query", "find_table", "table_names"]

_ROWIDS = ("rowid", "_rowid_", "oid")


@dataclass(frozen=True, slots=True)
class Column:
    """One column as SQLite declares it. `generated`: computed by SQLite, never written."""

    name: str
    declared: str
    not_null: bool = False
    has_default: bool = False
    generated: bool = False
    key_position: int = 0


@dataclass(frozen=True, slots=True)
class Table:
    """A table or view.

    `rowid` is a name by which its rowid can be asked for; None for views, tables WITHOUT ROWID, and tables
    whose columns hide it. `unique` are the column sets that a key or a full unique index holds unique.
    """

    schema: str
    name: str
    is_view: bool
    columns: tuple[Column, ...]
    rowid: str | None = None
    without_rowid: bool = False
    unique: tuple[tuple[str, ...], ...] = ()

    @property
    def key(self) -> tuple[str, ...]:
        """The primary key's columns in their order."""
        parts = sorted((column.key_position, column.name) for column in self.columns if column.key_position)
        return tuple(name for _, name in parts)

    def rowid_alias(self) -> str | None:
        """The column that is the rowid itself (INTEGER PRIMARY KEY), which SQLite fills when it is absent."""
        if len(self.key) == 1 and not self.without_rowid and not self.is_view:
            column = next(column for column in self.columns if column.name == self.key[0])
            if column.declared.upper() == "INTEGER":
                return column.name
        return None


@dataclass(frozen=True, slots=True)
class _Found:
    schema: str
    name: str
    kind: str
    without_rowid: bool = field(default=False)


def table_names(session: Session) -> list[str]:
    """Tables and views of the file, without SQLite's own."""
    rows = session.rows(
        "SELECT name FROM main.sqlite_master WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite\\_%' "
        "ESCAPE '\\' ORDER BY name"
    )
    return [str(name) for (name,) in rows]


def find_table(session: Session, text: str) -> Table | None:
    """The table or view that `dbtable` names: the whole text as a name first, then `schema.name`."""
    for schema, name in _readings(text):
        found = _lookup(session, schema, name)
        if found is not None:
            return _describe(session, found)
    return None


def describe_query(session: Session, query: exp.Query) -> tuple[Column, ...]:
    """The columns of a query, with the types of the columns that it passes on. Costs no scan."""
    view = exp.Table(this=identifier("spark_channel_query"), db=identifier("temp"))
    session.rows(exp.Create(this=view, kind="VIEW", expression=query).sql("sqlite"))
    try:
        return _columns(session, "temp", "spark_channel_query")
    finally:
        session.rows("DROP VIEW temp.spark_channel_query")


def _readings(text: str) -> list[tuple[str, str]]:
    readings = [("main", text)]
    try:
        tree = exp.to_table(text, dialect="sqlite")
    except Exception:  # sqlglot raises several kinds; a text that it cannot read is a name as it stands
        return readings
    if isinstance(tree.this, exp.Identifier) and not tree.catalog and not tree.alias:
        readings.append((tree.db or "main", tree.name))
    return readings


def _lookup(session: Session, schema: str, name: str) -> _Found | None:
    if schema.lower() not in ("main", "temp"):
        return None
    rows = session.rows(
        "SELECT schema, name, type, wr FROM pragma_table_list WHERE lower(schema) = lower(?) AND "
        "lower(name) = lower(?)",
        (schema, name),
    )
    return None if not rows else _Found(str(rows[0][0]), str(rows[0][1]), str(rows[0][2]), bool(rows[0][3]))


def _describe(session: Session, found: _Found) -> Table:
    columns = _columns(session, found.schema, found.name)
    names = {column.name.lower() for column in columns}
    is_view = found.kind == "view"
    rowid = None
    if not is_view and not found.without_rowid and found.kind == "table":
        rowid = next((name for name in _ROWIDS if name not in names), None)
    table = Table(found.schema, found.name, is_view, columns, rowid, found.without_rowid)
    return Table(
        found.schema, found.name, is_view, columns, rowid, found.without_rowid, _unique(session, table)
    )


def _columns(session: Session, schema: str, name: str) -> tuple[Column, ...]:
    rows = session.rows(
        'SELECT name, type, "notnull", dflt_value IS NOT NULL, hidden, pk FROM pragma_table_xinfo(?, ?)',
        (name, schema),
    )
    return tuple(
        Column(str(column), str(declared or ""), bool(not_null), bool(default), hidden in (2, 3), int(key))
        for column, declared, not_null, default, hidden, key in rows
        if hidden != 1
    )


def _unique(session: Session, table: Table) -> tuple[tuple[str, ...], ...]:
    found: list[tuple[str, ...]] = [table.key] if table.key else []
    rows = session.rows(
        'SELECT name FROM pragma_index_list(?, ?) WHERE "unique" AND NOT partial', (table.name, table.schema)
    )
    for (index,) in rows:
        columns = session.rows("SELECT name FROM pragma_index_info(?, ?)", (index, table.schema))
        if all(name is not None for (name,) in columns):
            found.append(tuple(str(name) for (name,) in columns))
    return tuple(found)


def same_name(name: str, names: Sequence[str]) -> str | None:
    """The one of `names` that SQLite takes `name` for: the exact one, else one that differs in case only."""
    if name in names:
        return name
    return next((each for each in names if each.lower() == name.lower()), None)
