"""How a server is found and logged in to, and that a password is shown nowhere."""

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import psycopg
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_channel.connectors import load_reader, load_writer
from spark_channel.connectors.base.registry import describe, find_connector
from spark_channel.connectors.postgresql.options import conninfo, parse_url
from spark_channel.errors import ChannelError, OptionError, SourceError, TargetError
from tests.connectors.files.helpers import read_all
from tests.connectors.postgresql.pg import Pg
from tests.servers.postgres import PostgresServer


@pytest.mark.parametrize(
    ("url", "parameters"),
    [
        ("jdbc:postgresql://db:5433/shop", {"host": "db", "port": "5433", "dbname": "shop"}),
        ("postgresql://db/shop", {"host": "db", "port": "5432", "dbname": "shop"}),
        ("postgres://a:1,b:2/shop", {"host": "a,b", "port": "1,2", "dbname": "shop"}),
        ("jdbc:postgresql:shop", {"host": "localhost", "port": "5432", "dbname": "shop"}),
        ("jdbc:postgresql:/", {"host": "localhost", "port": "5432"}),
        ("postgresql://:5433/shop", {"host": "localhost", "port": "5433", "dbname": "shop"}),
        ("postgresql://a,b/shop?port=6000", {"host": "a,b", "port": "6000,6000", "dbname": "shop"}),
        (
            "postgresql://%2Frun%2Fpg/a%2Fb?port=1",
            {"host": "/run/pg", "port": "1", "dbname": "a/b"},
        ),
        ("postgresql:///x%2541?host=/run", {"host": "/run", "port": "5432", "dbname": "x%41"}),
        ("postgresql:///?service=shop", {"service": "shop"}),
        ("postgresql://h/?service=shop", {"host": "h", "service": "shop"}),
        ("postgresql://[::1]:5433/a%20b", {"host": "::1", "port": "5433", "dbname": "a b"}),
        (
            "jdbc:postgresql://h/d?ssl=true",
            {"host": "h", "port": "5432", "dbname": "d", "sslmode": "verify-full"},
        ),
        (
            (
                "jdbc:postgresql://h/d?sslmode=require&ApplicationName=x&loginTimeout=3&reWriteBatchedInserts=true"
                "&targetServerType=preferSecondary"
            ),
            {
                "host": "h",
                "port": "5432",
                "dbname": "d",
                "sslmode": "require",
                "application_name": "x",
                "connect_timeout": "3",
                "target_session_attrs": "prefer-standby",
            },
        ),
    ],
)
def test_urls(url: str, parameters: dict[str, str]) -> None:
    assert parse_url(url).parameters == parameters
    assert find_connector({"url": url}, "reader").name == "postgresql"


@pytest.mark.parametrize(
    "url",
    [
        "jdbc:mysql://h/d",
        "postgresql://h:x/d",
        "postgresql://h/d/e",
        "postgresql://h/d?no=geheim",
        "postgresql://u:geheim%FF@h/d",
        "postgresql://h/d%00",
        "postgresql://h/%FF",
    ],
)
def test_urls_that_are_refused(url: str) -> None:
    with pytest.raises(OptionError) as raised:
        parse_url(url)
    assert "geheim" not in str(raised.value)


TEXT = st.text(
    st.characters(exclude_characters="\0", exclude_categories=["Cs", "Cc"]), min_size=1, max_size=8
).filter(lambda text: text == text.strip())
HOST = st.one_of(st.just("h"), st.just("::1"), TEXT.filter(lambda text: not set(",[]") & set(text)))


@given(st.lists(st.tuples(HOST, st.integers(1, 65535)), min_size=1, max_size=3), TEXT, TEXT, TEXT)
def test_a_url_that_is_made_again_names_the_same(
    places: list[tuple[str, int]], database: str, settings: str, user: str
) -> None:
    hosts, ports = ",".join(host for host, _ in places), ",".join(str(port) for _, port in places)
    parameters = {"host": hosts, "port": ports, "dbname": database, "options": settings}
    address = parse_url(
        "postgresql://?" + "&".join(f"{name}={quote(text)}" for name, text in parameters.items())
    )
    assert address.parameters == parameters
    assert parse_url(address.url) == address
    assert (
        parse_url(f"postgresql://{quote(user, safe='')}:{quote(settings, safe='')}@h/x").user
        == user
    )


def test_what_a_url_leaves_out_is_in_the_environment() -> None:
    """As libpq finds it. What the url says holds, and JDBC's urls are complete."""
    here = {"PGHOST": "/run", "PGPORT": "99", "PGDATABASE": "shop", "PGUSER": "ann"}
    found = parse_url("postgresql:///", here)
    assert (found.parameters, found.user) == (
        {"host": "/run", "port": "99", "dbname": "shop"},
        "ann",
    )
    found = parse_url("postgresql://bob@h:1/x", here)
    assert (found.parameters, found.user) == ({"host": "h", "port": "1", "dbname": "x"}, "bob")
    assert parse_url("postgresql://h/x", here).parameters["port"] == "99"
    assert parse_url("jdbc:postgresql://h/", here).parameters == {"host": "h", "port": "5432"}
    assert parse_url("postgresql:///", {"PGSERVICE": "s", **here}).parameters == {"service": "s"}


ODD = "a/b?#@:&=%41 +é'\"\\"


def test_a_database_and_a_role_of_any_name_are_reached(postgres_server: PostgresServer) -> None:
    """By TCP and by a socket, in the url and as options; the neighbour whose name is that name decoded is not."""
    plain = unquote(ODD)
    names = {name: name.replace('"', '""') for name in (ODD, plain)}
    for name, quoted in names.items():
        postgres_server.psql(f'CREATE DATABASE "{quoted}"')
        with psycopg.connect(
            host=str(postgres_server.directory),
            port=postgres_server.port,
            user=postgres_server.user,
            dbname=name,
        ) as session:
            session.execute("CREATE TABLE t AS SELECT %s::text AS name", [name])
            session.execute("GRANT SELECT ON t TO public")
    postgres_server.psql(
        f"CREATE ROLE \"{names[ODD]}\" LOGIN PASSWORD '{ODD.replace(chr(39), chr(39) * 2)}'"
    )
    login, database = f"{quote(ODD, safe='')}:{quote(ODD, safe='')}", quote(ODD, safe="")
    socket = quote(str(postgres_server.directory), safe="")
    try:
        for options in (
            {"url": f"postgresql://{login}@127.0.0.1:{postgres_server.port}/{database}"},
            {
                "url": f"jdbc:postgresql://127.0.0.1:{postgres_server.port}/{database}",
                "user": ODD,
                "password": ODD,
            },
            {
                "url": f"postgresql://{postgres_server.user}@{socket}:{postgres_server.port}/{database}"
            },
            {
                "url": f"postgresql:///{database}?host={postgres_server.directory}&port={postgres_server.port}",
                "user": postgres_server.user,
            },
        ):
            reader, _ = load_reader({**options, "reader": "postgresql", "dbtable": "t"})
            assert read_all(reader).column("name").to_pylist() == [ODD], options
        writer, _ = load_writer(
            {**postgres_server.login, "url": options["url"], "writer": "postgresql", "dbtable": "t"}
        )
        assert writer.exists()
    finally:
        for quoted in names.values():
            postgres_server.psql(f'DROP DATABASE "{quoted}" WITH (FORCE)')
        postgres_server.psql(f'DROP ROLE "{names[ODD]}"')


def test_a_service_names_the_server(
    postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "services.conf"
    file.write_text(
        f"[shop]\nhost={postgres_server.directory}\nport={postgres_server.port}\nuser={postgres_server.user}\ndbname=template1\n"
    )
    monkeypatch.setenv("PGSERVICEFILE", str(file))
    query = {"reader": "postgresql", "query": "SELECT current_database() AS name"}
    found, _ = load_reader({"url": "postgresql:///?service=shop", **query})
    assert read_all(found).column("name").to_pylist() == ["template1"]
    monkeypatch.setenv("PGSERVICE", "shop")
    found, _ = load_reader({"url": "postgresql:///postgres", **query})
    assert read_all(found).column("name").to_pylist() == ["postgres"]


def test_values_are_quoted_for_libpq() -> None:
    assert conninfo({"password": r"a'b\ c"}) == r"password='a\'b\\ c'"


SECRET = "geh'eim \\ %41"
IN_URL = "geh%27eim%20%5C%20%2541"


@pytest.mark.parametrize(
    "login",
    [
        {"url": "postgresql://127.0.0.1:1/shop", "user": "etl", "password": SECRET},
        {"url": f"postgresql://etl:{IN_URL}@127.0.0.1:1/shop"},
        {"url": f"jdbc:postgresql://127.0.0.1:1/shop?user=etl&password={IN_URL}"},
        {
            "url": "postgresql://127.0.0.1:1/shop",
            "user": "etl",
            "password": "${env:PG_SECRET_OF_TEST}",
        },
    ],
)
def test_a_password_is_taken_and_shown_nowhere(
    login: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PG_SECRET_OF_TEST", SECRET)
    reader, _ = load_reader({**login, "dbtable": "t"})
    writer, _ = load_writer({**login, "dbtable": "t"})
    for each in (reader, writer):
        options: Any = each.options
        assert options.password.get_secret_value() == SECRET
        shown = [
            repr(options),
            str(options),
            repr(each),
            describe(options),
            options.url,
            options.model_dump_json(),
        ]
        for call in (
            reader.schema,
            lambda: writer.prepare(_context(), pa.schema([("a", pa.int32())])),
        ):
            with pytest.raises((SourceError, TargetError)) as raised:
                call()
            shown += [str(raised.value), repr(raised.value), repr(raised.value.__cause__)]
        assert not [text for text in shown if "geh" in text]
        assert pickle.loads(pickle.dumps(each)).options == options


def _context() -> Any:
    from spark_channel.connectors import WriteContext

    return WriteContext(job="j")


def test_a_wrong_password_is_told_without_it(pg: Pg) -> None:
    options = pg.options(dbtable="t", password="falsch-geheim")
    reader, writer = load_reader(options)[0], load_writer(options)[0]
    for call in (reader.schema, lambda: writer.prepare(_context(), pa.schema([("a", pa.int32())]))):
        with pytest.raises(ChannelError, match="login is refused") as raised:
            call()
        assert "falsch" not in str(raised.value) + repr(raised.value.__cause__)


def test_the_server_sees_no_password_in_its_statements(pg: Pg) -> None:
    pg.psql("CREATE TABLE t (a int)")
    writer = pg.writer("t")
    plan = writer.prepare(pg.context(commit="job"), pa.schema([("a", pa.int32())]))
    writing = writer.open(plan, 0, 1)
    seen = pg.psql("SELECT application_name, query FROM pg_stat_activity")
    writing.rollback()
    writer.abort(plan, None)
    assert "spark-channel write" in seen
    assert pg.server.password not in seen + pg.psql(
        "SELECT coalesce(string_agg(obj_description(oid, 'pg_class'), ' '), '') FROM pg_class"
    )


def test_what_is_not_there_is_told(pg: Pg) -> None:
    pg.psql("CREATE TABLE there (a int)")
    with pytest.raises(SourceError, match=r"table 'nowhere' does not exist.*its tables: .*there"):
        pg.read("nowhere")
    with pytest.raises(SourceError, match="database does not exist"):
        pg.reader("t", url=pg.server.url.replace("/postgres", "/nowhere")).schema()
    with pytest.raises(SourceError, match="no server answers"):
        pg.reader("t", url="postgresql://127.0.0.1:1/x").schema()
    with pytest.raises(OptionError, match="where the database is"):
        load_reader({"reader": "postgresql", "dbtable": "t"})


def test_statements_of_users_cannot_do_more_than_read(pg: Pg) -> None:
    pg.psql(
        "CREATE TABLE y (a int); CREATE FUNCTION f() RETURNS int LANGUAGE sql AS 'INSERT INTO y VALUES (1) RETURNING a'"
    )
    for options in (
        {"query": "DROP TABLE y"},
        {"query": "SELECT 1; DROP TABLE y"},
        {"query": "WITH d AS (DELETE FROM y RETURNING 1) SELECT * FROM d"},
        {"dbtable": "(SELECT 1) a; DROP TABLE y"},
        {"dbtable": "y", "where": "true; DROP TABLE y"},
        {"dbtable": "y", "where": "a IN (SELECT a FROM y) OR nowhere = 1"},
        {"dbtable": "y", "columns": 'a"; DROP TABLE y; --'},
        {"query": "SELECT f() AS a"},
    ):
        table = options.pop("dbtable", None)
        with pytest.raises(ChannelError):
            pg.read(table, advice=1, **options)
    assert pg.psql("SELECT count(*) FROM y") == "0"


@pytest.fixture
def tls_server() -> Iterator[PostgresServer]:
    server = PostgresServer.create(ssl=True)
    yield server
    server.close()


def test_tls_options_pass_through(tls_server: PostgresServer) -> None:
    query = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()"
    root = str(tls_server.certificate)

    def encrypted(**options: str) -> bool:
        reader, _ = load_reader({**tls_server.login, "query": query, **options})
        reader.schema()
        (row,) = [
            row
            for split in reader.split(1)
            for batch in reader.read(split)
            for row in batch.to_pylist()
        ]
        return bool(row["ssl"])

    assert encrypted(sslmode="verify-full", sslrootcert=root)
    assert encrypted(url=f"jdbc:{tls_server.url}?ssl=true&sslrootcert={root}")
    assert not encrypted(sslmode="disable")
    with pytest.raises(SourceError, match="certificate"):
        encrypted(sslmode="verify-full", sslrootcert="/nowhere.crt")
    with pytest.raises(OptionError, match="sslmode"):
        encrypted(sslmode="maybe")
