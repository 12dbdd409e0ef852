"""Reads return and writes store the same whatever a role, a database or a server has set."""

import subprocess
import tempfile
from collections.abc import Iterator
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_channel.clock import SYSTEM_CLOCK
from spark_channel.connectors import load_reader
from spark_channel.connectors.base.feed import FeedOptions
from spark_channel.connectors.base.health import RowCost
from spark_channel.connectors.base.session_pool import keeping_sessions
from spark_channel.connectors.postgresql.copy.paced import PacedCopy
from spark_channel.connectors.postgresql.read.copy_session import PgCopySession
from spark_channel.connectors.postgresql.session import (
    PgPlanSession,
    PgReadSession,
    PgSession,
    PgWriteSession,
)
from spark_channel.errors import CommitError, SchemaError, SourceError, TargetError
from spark_channel.options import CommitMode
from tests.connectors.postgresql.pg import Pg
from tests.servers.postgres import PostgresServer

LOCALES = {"ar": "es_AR", "us": "en_US", "jp": "ja_JP"}
"""Their money: `$ 12,34`, `$12.34` and, without digits behind the point, `¥12`."""


@pytest.fixture(scope="module")
def locale_server() -> Iterator[PostgresServer]:
    """A server that knows `LOCALES`, which are compiled into a folder that its account can read."""
    with (
        tempfile.TemporaryDirectory(prefix="spark-channel-locales-") as made,
        pytest.MonkeyPatch.context() as patch,
    ):
        folder = Path(made)
        folder.chmod(0o755)
        for name in LOCALES.values():
            if not _compiled(name, folder / f"{name}.UTF-8"):
                pytest.skip(f"this machine has no localedef, or no source of locale {name}")
        patch.setenv("LOCPATH", made)
        server = PostgresServer.create()
        try:
            yield server
        finally:
            server.close()


def _compiled(name: str, folder: Path) -> bool:
    try:
        subprocess.run(
            ["localedef", "-i", name, "-f", "UTF-8", str(folder)],
            check=False,
            capture_output=True,
            timeout=120,
        )
    except FileNotFoundError:
        return False
    return folder.is_dir()


@pytest.fixture(scope="module")
def databases(locale_server: PostgresServer) -> dict[str, Pg]:
    """A database for each locale."""
    found: dict[str, Pg] = {}
    for name, locale in LOCALES.items():
        locale_server.psql(f"CREATE DATABASE {name}")
        locale_server.psql(f"ALTER DATABASE {name} SET lc_monetary = '{locale}.UTF-8'")
        found[name] = _Place(locale_server, "public", name)
    return found


@pytest.fixture
def places(databases: dict[str, Pg]) -> Iterator[dict[str, Pg]]:
    """The databases, with empty tables `t` and `copy`."""
    for place in databases.values():
        place.psql("CREATE TABLE t (m money, a money[]); CREATE TABLE copy (LIKE t)")
    yield databases
    for place in databases.values():
        place.psql("DROP TABLE t, copy")


class _Place(Pg):
    def __init__(self, server: PostgresServer, schema: str, base: str) -> None:
        super().__init__(server, schema)
        self._base = base

    def psql(self, statement: str) -> str:
        return self.server.psql(statement, database=self._base)

    def options(self, **options: Any) -> dict[str, Any]:
        url = f"postgresql://127.0.0.1:{self.server.port}/{self._base}"
        return {**super().options(**options), "url": url}


@pytest.mark.parametrize("commit", ["job", "task"])
@pytest.mark.parametrize(("source", "target"), [("ar", "us"), ("us", "ar"), ("jp", "ar")])
def test_money_is_the_same_amount_on_a_server_of_another_locale(
    places: dict[str, Pg], source: str, target: str, commit: CommitMode
) -> None:
    amount = "12" if source == "jp" else "-12345.67"
    places[source].psql(
        f"INSERT INTO t SELECT m, ARRAY[m, NULL] FROM (SELECT CAST('{amount}'::numeric AS money)) AS of (m)"
    )
    read = places[source].read("t")
    assert read.to_pylist() == [{"m": amount, "a": [amount, None]}]
    places[target].write(read, dbtable="copy", commit=commit)
    found = places[target].psql("SELECT m::numeric, a[1]::numeric, a[2] IS NULL FROM copy")
    assert [Decimal(each) for each in found.split("|")[:2]] == [Decimal(amount)] * 2
    assert found.endswith("|t")


@pytest.mark.parametrize("commit", ["job", "task"])
def test_money_that_another_locale_would_round_is_refused(
    places: dict[str, Pg], commit: CommitMode
) -> None:
    with pytest.raises((CommitError, TargetError), match=r"column 'm' is money.* round 12\.34"):
        places["jp"].write(pa.table({"m": ["12.34"]}), dbtable="copy", commit=commit)
    assert places["jp"].psql("SELECT count(*) FROM copy") == "0"


def test_money_as_text_of_some_locale_is_refused(pg: Pg) -> None:
    pg.psql("CREATE TABLE t (m money)")
    with pytest.raises(TargetError, match=r'for type numeric: "\$1,234\.50"'):
        pg.write(pa.table({"m": ["$1,234.50"]}), commit="task")
    pg.write(pa.table({"m": ["1234.50"]}), commit="task")
    assert pg.psql("SELECT m::numeric FROM t") == "1234.50"


def test_money_in_the_log_is_refused_by_name(pg: Pg) -> None:
    pg.psql(
        "CREATE TABLE t (id int PRIMARY KEY, m money); INSERT INTO t VALUES (1, 1);"
        f"CREATE PUBLICATION {pg.schema}_p FOR TABLE t"
    )
    options = FeedOptions(slot=f"{pg.schema}_s", publication=f"{pg.schema}_p")
    with pytest.raises(SchemaError, match=r"column 'm' of table .* is money.*lc_monetary"):
        pg.reader("t").feed(options)


REGISTERED = {
    "regclass": "there",
    "regproc": "f",
    "regprocedure": "f(int)",
    "regtype": "mood",
    "regoper": "===",
    "regoperator": "===(int,int)",
    "regconfig": "words",
    "regdictionary": "dict",
}


def test_a_name_of_an_object_is_of_the_same_object_with_another_search_path(pg: Pg) -> None:
    """The same names are in `public`, where a session without the schema in its path would find them."""
    schema = pg.schema
    columns = ", ".join(f"c{number} {kind}" for number, kind in enumerate(REGISTERED))
    values = ", ".join(f"'{name}'" for name in REGISTERED.values())
    make = (
        "CREATE TABLE there (i int); CREATE TYPE mood AS ENUM ('fine');"
        "CREATE FUNCTION f(int) RETURNS int LANGUAGE sql AS 'SELECT 1';"
        "CREATE OPERATOR === (leftarg = int, rightarg = int, function = int4eq);"
        "CREATE TEXT SEARCH CONFIGURATION words (COPY = pg_catalog.english);"
        "CREATE TEXT SEARCH DICTIONARY dict (TEMPLATE = pg_catalog.simple);"
    )
    other = f"{schema}_other"
    pg.psql(f"{make} CREATE TABLE t ({columns}, a regclass[]); CREATE TABLE u (LIKE t)")
    pg.server.psql(f"CREATE SCHEMA {other}; SET search_path = {other}; {make}")
    try:
        pg.psql(f"INSERT INTO t VALUES ({values}, '{{there,NULL}}')")
        read = pg.read("t")
        writer = {**pg.server.login, "currentschema": other}
        other_pg = Pg(pg.server, other)
        assert other_pg.options()["currentschema"] == writer["currentschema"]
        other_pg.write(read, dbtable=f"{schema}.u", commit="task")
        assert pg.psql("SELECT count(*) FROM t JOIN u ON t::text = u::text") == "1"
    finally:
        pg.server.psql(f"SET client_min_messages = error; DROP SCHEMA {other} CASCADE")


HOSTILE = {
    "DateStyle": "German",
    "IntervalStyle": "sql_standard",
    "extra_float_digits": "-15",
    "bytea_output": "escape",
    "standard_conforming_strings": "off",
    "array_nulls": "off",
    "xmloption": "document",
    "gin_fuzzy_search_limit": "1",
    "TimeZone": "Asia/Kolkata",
    "xmlbinary": "hex",
    "client_encoding": "LATIN1",
}


@pytest.fixture
def hostile(pg: Pg) -> Iterator[Pg]:
    """A role whose settings are `HOSTILE`."""
    role = f"{pg.schema}_role"
    pg.server.psql(f"CREATE ROLE {role} LOGIN SUPERUSER PASSWORD 'p'")
    for name, value in HOSTILE.items():
        pg.server.psql(f"ALTER ROLE {role} SET {name} = '{value}'")
    try:
        yield _Role(pg.server, pg.schema, role)
    finally:
        pg.server.psql(f"REASSIGN OWNED BY {role} TO CURRENT_USER; DROP ROLE {role}")


class _Role(Pg):
    def __init__(self, server: PostgresServer, schema: str, role: str) -> None:
        super().__init__(server, schema)
        self._role = role

    def options(self, **options: Any) -> dict[str, Any]:
        return {**super().options(**options), "user": self._role, "password": "p"}


SHOWN = {
    "interval": "'-1 mons +2 days -00:00:01.5'",
    "xml": "'a<b/>c'",
    "inet": "'10.0.0.1'",
    "inet[]": "'{10.0.0.1,::1,NULL}'",
    "pair": "ROW(ARRAY[1,NULL], '\\x00ff'::bytea, 0.1::float8 + 0.2, 'a\\b'::text)",
    "tsrange": "'[2024-02-01 00:00,2024-03-04 05:06:07.5)'",
    "bytea[]": "ARRAY['\\x00ff'::bytea]",
    "float4": "0.1",
    "text": "'ü€'",
    "numrange": "'[1.50,)'",
}


@pytest.mark.parametrize("commit", ["job", "task"])
def test_a_roles_settings_change_no_value(pg: Pg, hostile: Pg, commit: CommitMode) -> None:
    columns = ", ".join(f"c{number} {kind}" for number, kind in enumerate(SHOWN))
    pg.psql(
        "CREATE TYPE pair AS (a int[], b bytea, c float8, d text);"
        f"CREATE TABLE t (id int PRIMARY KEY, {columns}); CREATE TABLE u (LIKE t);"
        f"INSERT INTO t VALUES (1, {', '.join(SHOWN.values())})"
    )
    read = hostile.read("t")
    assert read.equals(pg.read("t"))
    hostile.write(read, dbtable="u", commit=commit)
    assert pg.psql("SELECT count(*) FROM t JOIN u ON t::text = u::text") == "1"


@pytest.mark.parametrize("commit", ["job", "task"])
def test_a_backslash_in_a_name_ends_no_text_where_it_escapes_by_default(
    pg: Pg, hostile: Pg, commit: CommitMode
) -> None:
    name, rows = "odd\\'; SELECT 1; --\\", pa.table({"i": [1, 2]})
    pg.psql(f'CREATE TABLE "{name}" (i bigint)')
    hostile.write(rows, dbtable=f'"{name}"', commit=commit)
    hostile.write(rows, dbtable=f'"{name}2"', commit=commit, tableComment="C:\\")
    for made in (name, f"{name}2"):
        assert hostile.read(f'"{made}"').num_rows == 2


def test_a_comment_behind_a_statement_of_the_user_hides_no_other_statement(pg: Pg) -> None:
    own = "SET work_mem = '3MB' -- as we do"
    pg.psql("CREATE TABLE noted (id int)")
    rows = pa.table({"id": pa.array([1, 2], pa.int32())})
    pg.write(rows, dbtable="noted", sessionInitStatement=own)
    assert pg.psql("SELECT sum(id) FROM noted") == "3"
    options = pg.reader("noted", sessionInitStatement=own).options
    for kind in (PgPlanSession, PgReadSession, PgCopySession):
        with kind(options, failure=SourceError, purpose="read") as session, session.transaction():
            assert session.value("SHOW work_mem") == "3MB"


@pytest.mark.parametrize("may_open", [None, False], ids=["by a constant statement", "by DECLARE"])
def test_the_query_of_a_cursor_means_the_same_whatever_the_role_has_set(
    pg: Pg, hostile: Pg, may_open: bool | None
) -> None:
    pg.psql("CREATE TABLE cut (v text)")
    pg.write(pa.table({"v": ["C:\\temp", "it's", "\u017alot\u00fd", "C:temp"]}), dbtable="cut")
    text = " || '|' || ".join(["'C:\\temp'", "'it''s'", "'\u017alot\u00fd'"])
    options = hostile.reader("cut").options
    with PgReadSession(options, failure=SourceError, purpose="read") as session:
        session._may_open = may_open
        one = list(session.pieces(f"SELECT {text} AS v", lambda: 8))
        assert pa.Table.from_batches(one)["v"].to_pylist() == ["C:\\temp|it's|\u017alot\u00fd"]
        cut = f"SELECT v FROM {hostile.schema}.cut WHERE v IN ('C:\\temp', 'it''s', '\u017alot\u00fd') ORDER BY v"
        for size in (1, 2, 3, 8):
            found = session.pieces(cut, partial(int, size))
            assert sum(each.num_rows for each in found) == 3
    for sql, words in (
        ("SELECT id FROM nowhere WHERE id > 'it''s'", 'relation "nowhere" does not exist'),
        ("SELECT 'it''s' WHERE 1 / 0 = 1", "division by zero"),
    ):
        with PgReadSession(options, failure=SourceError, purpose="read") as session:
            session._may_open = may_open
            with pytest.raises(SourceError) as refused:
                list(session.pieces(sql, lambda: 8))
        assert str(refused.value).endswith(f"PostgreSQL says: ERROR:  {words}")


def test_no_row_is_left_out_by_a_limit_of_an_index(pg: Pg, hostile: Pg) -> None:
    pg.psql(
        "CREATE TABLE t (id int, tags int[]); INSERT INTO t SELECT i, ARRAY[1] FROM generate_series(1, 20000) i;"
        "CREATE INDEX ON t USING gin (tags); ANALYZE t"
    )
    forced: dict[str, Any] = {
        "where": "tags @> '{1}'",
        "sessionInitStatement": "SET enable_seqscan = off",
    }
    assert hostile.read("t", advice=1, **forced).num_rows == 20_000


def test_a_setting_under_which_the_driver_knows_no_type_is_refused_while_it_is_on(
    pg: Pg, hostile: Pg
) -> None:
    """The driver would return the bytes of each value."""
    role = hostile.options()["user"]
    pg.psql("CREATE TABLE t (n numeric(4,1)); INSERT INTO t VALUES (1.5)")
    pg.psql(f"ALTER ROLE {role} SET quote_all_identifiers = on")
    uri = f"postgresql://{role}:p@127.0.0.1:{pg.server.port}/postgres"
    adbc = {"reader": "adbc", "driver": "postgresql", "uri": uri, "query": "SELECT 1 AS n"}
    with pytest.raises(SourceError, match=r"quote_all_identifiers is on.* to 'url', or run ALTER"):
        hostile.read("t")
    with pytest.raises(SourceError, match=r"quote_all_identifiers is on.* to 'uri', or run ALTER"):
        load_reader(adbc)[0].schema()
    off = {**adbc, "uri": f"{uri}?options=-c%20quote_all_identifiers%3Doff"}
    assert load_reader(off)[0].schema().field("n").type == pa.int32()
    hostile.write(pa.table({"n": [Decimal("2.5")]}), dbtable="t", commit="job")
    pg.psql(f"ALTER ROLE {role} RESET quote_all_identifiers")
    assert hostile.read("t")["n"].to_pylist() == [Decimal("1.5"), Decimal("2.5")]


def test_adbc_reads_a_database_of_another_encoding(pg: Pg) -> None:
    base = f"{pg.schema}_latin1"
    pg.server.psql(f"CREATE DATABASE {base} ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    pg.server.psql("CREATE TABLE t AS SELECT chr(252) AS c", database=base)
    uri = f"postgresql://{pg.server.user}:{pg.server.password}@127.0.0.1:{pg.server.port}/{base}"
    reader, _ = load_reader({"reader": "adbc", "driver": "postgresql", "uri": uri, "dbtable": "t"})
    schema = reader.schema()
    batches = [batch for split in reader.split(1) for batch in reader.read(split)]
    assert pa.Table.from_batches(batches, schema)["c"].to_pylist() == ["ü"]


_LEFT = """
SELECT pg_backend_pid(), coalesce(current_setting('app.who', true), ''),
  (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()),
  (SELECT count(*) FROM pg_class WHERE oid = to_regclass('left_over')),
  (SELECT application_name FROM pg_stat_activity WHERE pid = pg_backend_pid())
"""


@pytest.mark.parametrize("kind", [PgPlanSession, PgReadSession, PgWriteSession, PgCopySession])
def test_a_session_that_is_lent_again_has_nothing_of_the_table_before(
    pg: Pg, kind: type[PgSession]
) -> None:
    """A function of a view or of a trigger sets, makes and locks what lasts as long as the session."""

    def lent(purpose: str) -> PgSession:
        return kind.lent(pg.writer().options, failure=TargetError, purpose=purpose)

    with keeping_sessions():
        with lent("one") as session, session.transaction():
            before = session.value("SELECT pg_backend_pid()")
            session.rows("SELECT set_config('app.who', 'one', false), pg_advisory_lock(7)")
            session.rows("SELECT set_config('search_path', 'elsewhere', false)")
            session.execute("CREATE TEMPORARY TABLE left_over (id int)")
            if isinstance(session, PgWriteSession):
                session.pace = PacedCopy(session, RowCost(), SYSTEM_CLOCK)
        with lent("two") as session, session.transaction():
            assert session.rows(_LEFT) == [(before, "", 0, 0, "spark-channel two")]
            assert session.value("SHOW search_path") != "elsewhere"
            assert getattr(session, "pace", None) is None


@pytest.mark.parametrize(
    "own",
    [
        {"sessionInitStatement": "SELECT set_config('app.who', 'me', false)"},
        {"preSql": "SELECT 1"},
        {"maxConnections": 2},
    ],
)
def test_a_table_with_statements_of_its_own_has_a_session_of_its_own(
    pg: Pg, own: dict[str, Any]
) -> None:
    def backend(**options: Any) -> int:
        made = pg.writer("t", **options).options
        with PgWriteSession.lent(made, failure=TargetError, purpose="test") as session:
            return int(session.value("SELECT pg_backend_pid()"))

    with keeping_sessions():
        plain = backend()
        assert backend(**own) != plain
        assert backend(**own) != plain
        assert backend() == plain
