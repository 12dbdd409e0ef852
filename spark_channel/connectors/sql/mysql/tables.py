"""What the server says about a table, a view or a query: columns, keys, engine."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlglot import exp

from spark_channel.connectors.sql.mysql.column_types import declared_of
from spark_channel.connectors.sql.mysql.session import Session
from spark_channel.connectors.sql.statements import Source, identifier

__all__ = ["Column", "Table", "describe", "find_table", "readings", "same_name", "table_names"]

_ORDERED = frozenset({
    "tinyint", "smallint", "mediumint", "int", "bigint", "decimal", "date", "datetime", "timestamp", "time", "char",
    "varchar", "binary", "varbinary", "uuid", "year", "double",
})  # fmt: skip
"""Types whose order is that of their comparisons with literals; an enum is ordered by number, compared by text."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column as the server declares it. `generated`: computed by the server, never written."""

    name: str
    declared: str
    not_null: bool = False
    has_default: bool = False
    generated: bool = False
    charset: str | None = None
    collation: str | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """A table or view. `unique` are the column sets that a key holds unique, without NULLs, the primary one first;
    `loose` those that hold NULLs too.
    """

    database: str
    name: str
    is_view: bool
    columns: tuple[Column, ...]
    unique: tuple[tuple[str, ...], ...] = ()
    loose: tuple[tuple[str, ...], ...] = ()
    engine: str | None = None
    primary: tuple[str, ...] = ()

    @property
    def source(self) -> Source:
        return Source(exp.Table(this=identifier(self.name), db=identifier(self.database)), self.name)

    @property
    def label(self) -> str:
        return f"{self.database}.{self.name}"

    def split_key(self) -> tuple[str, ...] | None:
        """The smallest unique key whose columns can be compared with literals in their own order."""
        kinds = {column.name: column.declared.lower().partition("(")[0].split()[0] for column in self.columns}
        for key in self.unique:
            if all(kinds[name] in _ORDERED for name in key):
                return key
        return None


def table_names(session: Session) -> list[str]:
    """Tables and views of the session's database."""
    rows = session.rows(
        "SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE() ORDER BY table_name"
    )
    return [str(name) for (name,) in rows]


def readings(session: Session, text: str) -> list[tuple[str, str]]:
    """(database, name) that `dbtable` may mean: the whole text as a name first, then `database.name`."""
    here = session.value("SELECT DATABASE()")
    found = [(str(here), text)] if here is not None else []
    try:
        tree = exp.to_table(text, dialect="mysql")
    except Exception:  # sqlglot raises several kinds; a text that it cannot read is a name as it stands
        return found
    if isinstance(tree.this, exp.Identifier) and not tree.catalog and not tree.alias and (tree.db or here):
        found.append((tree.db or str(here), tree.name))
    return found


def find_table(session: Session, text: str) -> Table | None:
    """The table or view that `dbtable` names."""
    for database, name in readings(session, text):
        table = table_named(session, database, name)
        if table is not None:
            return table
    return None


def table_named(session: Session, database: str, name: str) -> Table | None:
    rows = session.rows(
        "SELECT table_schema, table_name, table_type, engine FROM information_schema.tables "
        "WHERE table_schema = %s AND table_name = %s",
        (database, name),
    )
    if not rows:
        return None
    database, name, kind, engine = (None if each is None else str(each) for each in rows[0])  # type: ignore[assignment]
    columns = _columns(session, database, name)
    if "VIEW" in str(kind):
        return Table(database, name, True, columns)
    unique, loose, primary = _keys(session, database, name)
    return Table(database, name, False, columns, unique, loose, engine, primary)


def _columns(session: Session, database: str, name: str) -> tuple[Column, ...]:
    rows = session.rows(
        "SELECT column_name, column_type, is_nullable, column_default, extra, character_set_name, collation_name "
        "FROM information_schema.columns WHERE table_schema = %s AND table_name = %s ORDER BY ordinal_position",
        (database, name),
    )
    found = []
    for column, declared, nullable, default, extra, charset, collation in rows:
        words = str(extra).upper()
        found.append(
            Column(
                str(column), str(declared), nullable == "NO",
                default is not None or "AUTO_INCREMENT" in words or "DEFAULT_GENERATED" in words,
                "VIRTUAL" in words or "STORED" in words or "PERSISTENT" in words,
                charset, collation,
            )
        )  # fmt: skip
    return tuple(found)


def _keys(
    session: Session, database: str, name: str
) -> tuple[tuple[tuple[str, ...], ...], tuple[tuple[str, ...], ...], tuple[str, ...]]:
    """What is held unique without NULLs and with them, and the primary key."""
    rows = session.rows(
        "SELECT index_name, column_name, nullable, sub_part FROM information_schema.statistics "
        "WHERE table_schema = %s AND table_name = %s AND non_unique = 0 ORDER BY index_name, seq_in_index",
        (database, name),
    )
    keys: dict[str, list[tuple[str, bool]]] = {}
    broken = set()
    for index, column, nullable, part in rows:
        if column is None or part is not None:
            broken.add(str(index))  # an expression, or a prefix of a column
        keys.setdefault(str(index), []).append((str(column), nullable == "YES"))
    ordered = sorted(
        (index for index in keys if index not in broken),
        key=lambda index: (index != "PRIMARY", len(keys[index])),
    )
    unique = tuple(
        tuple(column for column, _ in keys[index]) for index in ordered if not any(n for _, n in keys[index])
    )
    loose = tuple(
        tuple(column for column, _ in keys[index]) for index in ordered if any(n for _, n in keys[index])
    )
    return unique, loose, unique[0] if ordered[:1] == ["PRIMARY"] else ()


def describe(session: Session, source: Source) -> tuple[Column, ...]:
    """The columns of a query, as its result is described. Costs no scan where the server merges it."""
    query = exp.select("*").from_(source.expression.copy()).limit(0).sql("mysql")
    return tuple(Column(str(field.name), declared_of(field)) for field in session.fields(query))


def same_name(name: str, names: Sequence[str]) -> str | None:
    """The one of `names` that the server takes `name` for: the exact one, else one that differs in case only."""
    if name in names:
        return name
    return next((each for each in names if each.lower() == name.lower()), None)
