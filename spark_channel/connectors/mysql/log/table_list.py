"""Which tables a list such as `shop.orders, shop.items` or `shop.*` names."""

from collections.abc import Collection, Sequence

from spark_channel.connectors.mysql.log.schema import PLAIN
from spark_channel.connectors.mysql.session import MysqlSession, quoted
from spark_channel.connectors.sql.dialect import Dialect
from spark_channel.connectors.sql.feed.log_tables import is_pattern
from spark_channel.connectors.sql.statements import parsed_name
from spark_channel.errors import OptionError, SourceError
from spark_channel.plain_text import log_of

__all__ = ["find_listed", "find_one", "name_of", "named"]

_log = log_of(__name__)


def find_listed(
    session: MysqlSession, dialect: Dialect, items: Sequence[str]
) -> list[tuple[str, str]]:
    """The tables (database, name) that the items of a list name, each once.

    Raises:
        OptionError: a name of no table. SourceError: a pattern of none.
    """
    tables: dict[tuple[str, str], None] = {}
    for item in items:
        names = (
            _of_pattern(session, item) if is_pattern(item) else [find_one(session, dialect, item)]
        )
        tables.update(dict.fromkeys(names))
    return list(tables)


def find_one(session: MysqlSession, dialect: Dialect, name: str) -> tuple[str, str]:
    """
    Raises:
        OptionError: the table does not exist.
    """
    table = dialect.find_table(session, name)
    if table is None:
        raise OptionError(
            f"table {name!r} does not exist in {session.place}: name it as database.table",
            option="tables",
            got=name,
        )
    return table.schema, table.name


def name_of(database: str, name: str) -> str:
    """What a feed of several tables calls one of them."""
    return ".".join(part if PLAIN.fullmatch(part) else quoted(part) for part in (database, name))


def named(text: str, names: Collection[str], *, folds: bool) -> list[str]:
    """Those of the feed's `names` that `text` may mean, including tables that the source has dropped."""

    def parts(name: str) -> tuple[str, str]:
        tree = parsed_name(name, "mysql")
        database, table = ("", name) if tree is None else (tree.db, tree.name)
        return (database.lower(), table.lower()) if folds else (database, table)

    database, table_named = parts(text)
    parts_of = {name: parts(name) for name in names}
    return [
        name
        for name, (at, table) in parts_of.items()
        if table == table_named and database in ("", at)
    ]


def _of_pattern(session: MysqlSession, item: str) -> list[tuple[str, str]]:
    if item == "*":
        database = str(session.value("SELECT DATABASE()") or "")
    else:
        tree = parsed_name(f"{item[:-1]}x", "mysql")
        database = "" if tree is None else tree.db
    if not database:
        raise OptionError(
            f"option 'tables' got {item!r}; a pattern is database.*, or * for the database that 'url' names",
            option="tables",
            got=item,
            takes="database.*",
        )
    rows = session.rows(
        "SELECT table_schema, table_name, table_type FROM information_schema.tables "
        "WHERE table_schema = %s AND table_type NOT IN ('VIEW', 'SYSTEM VIEW', 'SEQUENCE') ORDER BY table_name",
        [database],
    )
    tables = [(str(at), str(name)) for at, name, kind in rows if kind == "BASE TABLE"]
    left_out = ", ".join(str(name) for _, name, kind in rows if kind != "BASE TABLE")
    if left_out:
        _log.warning(
            "%r leaves out %s, which have no plain rows in the binary log: the tunnel does not follow them",
            item,
            left_out,
        )
    if not tables:
        raise SourceError(
            f"option 'tables' got {item!r}, which matches no table in {session.place}: correct it, or create the table"
        )
    return tables
