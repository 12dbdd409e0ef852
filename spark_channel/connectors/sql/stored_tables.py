"""What a table, a view or a query of a database reads: the server by its own names, and the tables behind views.

Spelling is not evidence: one server has many addresses, and one table many names. So the server is asked for its own
names, and the catalog for the tables.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Protocol

from spark_channel.connectors.base.overlap import Stored
from spark_channel.connectors.base.types import Node, exp, sqlglot
from spark_channel.connectors.sql.catalog import Table
from spark_channel.connectors.sql.session import Session
from spark_channel.connectors.sql.statements import quoted_text
from spark_channel.errors import ChannelError
from spark_channel.plain_text import log_of

__all__ = ["STORED_RELATIONS", "stored_in", "stored_query", "stored_table"]

_log = log_of(__name__)

_MOST_VIEWS = 100
"""Views behind views that are looked into."""

Part = tuple[str, ...]
_READS = """CASE WHEN p.pronamespace = 'pg_catalog'::regnamespace
  THEN p.proname ~ '_to_xml' OR p.proname IN ('ts_rewrite', 'ts_stat')
  ELSE l.lanname NOT IN ('internal', 'c') OR l.lanname = 'c' AND p.proretset AND 'text'::regtype = ANY (p.proargtypes)
END"""
"""Functions of PostgreSQL that may read any table: those of users, and those that run a query in a text (dblink)."""
_READERS: Mapping[str, str] = {
    "postgres": "SELECT 1 FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_language l ON l.oid = p.prolang "
    "WHERE lower(p.proname) IN ({names}) AND {reads} LIMIT 1",
    "mysql": "SELECT 1 FROM information_schema.routines WHERE lower(routine_name) IN ({names}) LIMIT 1",
}
STORED_RELATIONS = f"""
WITH RECURSIVE family (oid) AS (
  SELECT to_regclass($1)::oid WHERE to_regclass($1) IS NOT NULL
  UNION
  SELECT behind.oid FROM family f CROSS JOIN LATERAL (
    SELECT i.inhrelid FROM pg_catalog.pg_inherits i WHERE i.inhparent = f.oid
    UNION ALL
    SELECT d.refobjid FROM pg_catalog.pg_rewrite r
    JOIN pg_catalog.pg_class v ON v.oid = r.ev_class AND v.relkind = 'v'
    JOIN pg_catalog.pg_depend d ON d.classid = 'pg_catalog.pg_rewrite'::regclass AND d.objid = r.oid
      AND d.refclassid = 'pg_catalog.pg_class'::regclass AND d.refobjid <> r.ev_class
    WHERE r.ev_class = f.oid
  ) AS behind (oid)
)
SELECT (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database())::bigint,
  f.oid::bigint,
  c.relkind <> 'f' AND CASE WHEN c.relkind = 'v' THEN (
    SELECT count(*) FROM pg_catalog.pg_rewrite r
    JOIN pg_catalog.pg_depend d ON d.classid = 'pg_catalog.pg_rewrite'::regclass AND d.objid = r.oid
      AND d.refclassid = 'pg_catalog.pg_proc'::regclass
    JOIN pg_catalog.pg_proc p ON p.oid = d.refobjid
    JOIN pg_catalog.pg_language l ON l.oid = p.prolang
    WHERE r.ev_class = f.oid AND {_READS}) = 0 ELSE true END
FROM family f CROSS JOIN LATERAL (SELECT relkind FROM pg_catalog.pg_class WHERE oid = f.oid OFFSET 0) AS c
"""  # noqa: S608 - a constant
"""A table's rows may also be in its partitions or children, and a view's in what it selects from.

Each relation's are looked up by an index: a catalog may be large. (A subquery that counts, or has
OFFSET, is not made a hash of all.)
"""
_VIEWS: Mapping[str, str] = {
    "sqlite": "SELECT sql FROM main.sqlite_master WHERE type = 'view' AND lower(name) = lower({name})",
    "duckdb": "SELECT sql FROM duckdb_views() WHERE lower(schema_name) = lower({schema}) "
    "AND lower(view_name) = lower({name}) AND database_name = current_database()",
    "mysql": "SELECT view_definition FROM information_schema.views WHERE table_schema = {schema} "
    "AND table_name = {name}",
    "clickhouse": "SELECT as_select FROM system.tables WHERE database = {schema} AND name = {name}",
}


class Catalog(Protocol):
    """A dialect, of a reader or of a writer."""

    @property
    def sql(self) -> str: ...

    def quoted(self, name: str) -> str: ...

    def literal(self, value: object, column: None) -> str: ...

    def find_table(self, session: Session, text: str) -> Table | None: ...


def stored_table(
    session: Session, dialect: Catalog, schema: str, name: str, *, is_view: bool
) -> Stored:
    """Where a table's or a view's rows are."""
    return _Search(session, dialect).stored(
        lambda search: search.add(schema, name, is_view=is_view)
    )


def stored_in(session: Session, dialect: Catalog, schema: str) -> Stored:
    """The database of a schema's tables, as the one part. What two such have not in common, none of their tables has.

    Not `complete`: a view there may read another database.
    """
    return _Search(session, dialect).stored(lambda search: search.add_database(schema))


def stored_query(session: Session, dialect: Catalog, query: str) -> Stored:
    """Where the rows are that `query` reads."""
    return _Search(session, dialect).stored(lambda search: search.follow(query))


class _Search:
    def __init__(self, session: Session, dialect: Catalog) -> None:
        self._session, self._dialect = session, dialect
        self._parts: set[Part] = set()
        self._views: set[tuple[str, str]] = set()
        self._complete = True

    def stored(self, find: Callable[["_Search"], None]) -> Stored:
        """A database that does not answer these questions is an unknown server."""
        system = self._dialect.sql
        names: frozenset[str] = frozenset()
        try:
            names = self._servers()
            find(self)
        except ChannelError as error:
            _log.debug("which tables are read, or where, is not known: %s", error)
            self._complete = False
        return Stored(system, names, frozenset(self._parts), self._complete)

    def _servers(self) -> frozenset[str]:
        """The server's own names, which a session that serves several tables is asked for once."""
        servers: frozenset[str] | None = getattr(self._session, "servers", None)
        if servers is None:
            ask = _SERVERS.get(self._dialect.sql, _no_names)
            servers = frozenset(ask(self._session))
            if hasattr(self._session, "servers"):
                self._session.servers = servers
        return servers

    def add(self, schema: str, name: str, *, is_view: bool) -> None:
        if self._dialect.sql == "postgres":
            self._add_relations(schema, name)
            return
        if self._dialect.sql in ("sqlite", "duckdb"):
            schema, name = (schema or "main").lower(), name.lower()
        elif self._dialect.sql == "mysql" and not schema:
            schema = str(self._session.rows("SELECT DATABASE()")[0][0] or "")
        self._parts.add((schema, name))
        if is_view and (schema, name) not in self._views:
            self._views.add((schema, name))
            self._look_into(schema, name)

    def add_database(self, schema: str) -> None:
        """PostgreSQL reads and writes tables of one database alone, and SQLite and DuckDB of one file."""
        database = ""
        if self._dialect.sql == "postgres":
            database = str(self._session.value("SELECT current_database()"))
        elif self._dialect.sql == "mysql":
            here = schema or str(self._session.value("SELECT DATABASE()") or "")
            literal = self._dialect.literal(here, None)
            views = f"SELECT 1 FROM information_schema.views WHERE table_schema = {literal} LIMIT 1"  # noqa: S608 - quoted
            database, self._complete = here.casefold(), not self._session.rows(views)
        self._parts.add((database,))

    def _add_relations(self, schema: str, name: str) -> None:
        """With partitions, children, and what views select from: the catalog knows all of them."""
        quoted = ".".join(self._dialect.quoted(part) for part in (schema, name) if part)
        relations = self._session.repeated(
            "spark_channel_stored", "text", STORED_RELATIONS, [self._text(quoted)]
        )
        self._complete = self._complete and bool(relations)
        for database, oid, is_known in relations:
            self._parts.add((str(database), str(oid)))
            self._complete = self._complete and bool(is_known)

    def _look_into(self, schema: str, name: str) -> None:
        question = _VIEWS.get(self._dialect.sql)
        if question is None or len(self._views) > _MOST_VIEWS:
            self._complete = False
            return
        rows = self._session.rows(question.format(schema=self._text(schema), name=self._text(name)))
        if rows and rows[0][0]:
            self.follow(str(rows[0][0]))
        else:
            self._complete = False  # this user may not see it

    def follow(self, query: str) -> None:
        """The tables that a query, or the definition of a view, names."""
        try:
            trees = [
                tree
                for tree in sqlglot.parse(query, read=self._dialect.sql or None)
                if tree is not None
            ]
        except sqlglot.errors.SqlglotError:
            self._complete = False
            return
        for tree in trees:
            if self._calls_reader(tree):
                self._complete = False
            for schema, name in _named(tree):
                self._add_named(
                    schema,
                    name,
                    {table_expression.alias for table_expression in tree.find_all(exp.CTE)},
                )

    def _calls_reader(self, tree: Node) -> bool:
        """Whether a function that is called may read any table, as those of users may."""
        called: list[exp.Func] = [*tree.find_all(exp.Anonymous)]
        called += [name for _, name in _named(tree) if isinstance(name, exp.Func)]
        if not called or self._dialect.sql == "sqlite":  # which has none of users
            return False
        question = _READERS.get(self._dialect.sql)
        if question is None:
            return True
        if self._dialect.sql == "mysql" and any(
            isinstance(call.parent, exp.Dot) for call in called
        ):
            return True  # only functions of users have a database
        names = {(call.name or call.sql_name()).lower() for call in called}
        names_sql = ", ".join(map(self._text, sorted(names)))
        return bool(self._session.rows(question.format(names=names_sql, reads=_READS)))

    def _text(self, value: str) -> str:
        if self._dialect.sql == "postgres":  # most jobs: sqlglot takes longer to import
            return quoted_text(value)
        return exp.Literal.string(value).sql(self._dialect.sql or None)

    def _add_named(
        self, schema: "exp.Identifier | None", name: Node, expressions: set[str]
    ) -> None:
        if isinstance(name, exp.Func):
            return  # see `_calls_reader`
        if not isinstance(name, exp.Identifier):
            self._complete = False
            return
        text = ".".join(
            part.sql(self._dialect.sql or None) for part in (schema, name) if part is not None
        )
        table = self._dialect.find_table(self._session, text)
        if table is not None:
            self.add(table.schema, table.name, is_view=table.is_view)
        elif schema is not None or name.name not in expressions:
            self._complete = False


def _named(tree: Node) -> Iterator[tuple["exp.Identifier | None", Node]]:
    """The schema and name of each table in FROM; not the name of a view that is made."""
    view = tree.this if isinstance(tree, exp.Create) else None
    for table in tree.find_all(exp.Table):
        if table is not view and table.parent is not view:
            yield table.args.get("db"), table.this


def _postgres(session: Session) -> Iterator[str]:
    """The cluster's number, which a standby shares; and for a role that may not ask, when the server was started."""
    may = "has_function_privilege(to_regprocedure('pg_catalog.pg_control_system()'), 'EXECUTE')"
    if session.rows(f"SELECT 1 WHERE {may}"):
        ((number,),) = session.rows(
            "SELECT system_identifier::text FROM pg_catalog.pg_control_system()"
        )
        yield f"cluster {number}"
    started = "extract(epoch FROM pg_catalog.pg_postmaster_start_time())::text"
    ((at, port),) = session.rows(f"SELECT {started}, pg_catalog.current_setting('port')")
    yield f"started {at} {port}"


def _mysql(session: Session) -> Iterator[str]:
    """The number that a server makes for itself; without one, settings that differ between servers of one network."""
    names = "'server_uuid', 'server_uid', 'hostname', 'port', 'datadir', 'socket', 'server_id'"
    settings = {
        str(name).lower(): str(value)
        for name, value in session.rows(f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({names})")
    }
    number = settings.get("server_uuid") or settings.get("server_uid")
    yield f"server {number}" if number else f"server {sorted(settings.items())}"


def _clickhouse(session: Session) -> Iterator[str]:
    ((number,),) = session.rows("SELECT toString(serverUUID())")
    yield f"server {number}"


def _file(session: Session) -> Iterator[str]:
    """The file itself, by whatever path or link it was opened."""
    for row in session.rows("PRAGMA database_list"):
        path = row[2]
        if row[1] in ("temp", "system") or not path:
            continue
        try:
            stat = Path(str(path)).stat()
        except OSError:
            continue
        yield f"file {stat.st_dev} {stat.st_ino}"
        return


def _no_names(session: Session) -> Iterator[str]:
    yield from ()


_SERVERS: Mapping[str, Callable[[Session], Iterator[str]]] = {
    "postgres": _postgres,
    "mysql": _mysql,
    "sqlite": _file,
    "duckdb": _file,
    "clickhouse": _clickhouse,
}
