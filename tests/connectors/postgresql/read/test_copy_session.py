"""Rows that pass from PostgreSQL to PostgreSQL as COPY writes them: what passes, and what has to be Arrow."""

import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal

import pyarrow as pa
import pytest

import spark_channel
from spark_channel.connectors import FetchSize, Receipt, WritePlan, load_reader
from spark_channel.connectors.base.contract import NATIVE, native_data
from spark_channel.connectors.postgresql import PostgresReader
from spark_channel.connectors.postgresql.failures import is_gone
from spark_channel.connectors.postgresql.read import copy_session
from spark_channel.connectors.postgresql.read.asyncpg_arguments import (
    asyncpg_arguments,
    why_not_asyncpg,
)
from spark_channel.connectors.postgresql.read.copy_session import PgCopySession
from spark_channel.errors import SourceError, TargetError
from spark_channel.options import CommitMode
from tests.connectors.postgresql.pg import Pg
from tests.connectors.postgresql.test_types import EXACT, Kept, check_equal, make_typed_tables
from tests.connectors.sql.one_database import run_task
from tests.service.helpers import wait_for

_OF_ARROW = {
    "interval",
    "mood",
    "pair",
    "positive[]",
    "money",
    "xml",
    "jsonpath",
    "regclass",
    "regtype",
    "regproc",
    "regrole",
    '"char"',
    "int4multirange",
}
"""Types whose bytes are not known to mean the same elsewhere."""


def _passing(row: str) -> list[Kept]:
    others = _OF_ARROW | {"positive"}
    return [case for case in EXACT[row] if case[0].removesuffix("[]") not in others]


def _plan(
    pg: Pg,
    reader: PostgresReader,
    target: str = "b",
    *,
    commit: CommitMode | None = None,
    **options: Any,
) -> tuple[Any, WritePlan, list[Any]]:
    """The writer, its plan and the splits, as a transfer makes them."""
    schema = reader.schema()
    splits = reader.split(3)
    writer = pg.writer(target, **options)
    context = replace(pg.context(commit=commit), native=reader.native_rows(splits))
    plan = writer.prepare(context, schema)
    reader.native = plan.native
    return writer, plan, splits


def _move(
    pg: Pg,
    source: str = "a",
    target: str = "b",
    *,
    commit: CommitMode | None = None,
    **options: Any,
) -> WritePlan:
    reader = pg.reader(source)
    writer, plan, splits = _plan(pg, reader, target, commit=commit, **options)
    try:
        receipts: list[Receipt] = []
        for number, split in enumerate(splits):
            rows = pa.Table.from_batches(list(reader.read(split)), plan.arriving)
            receipts.append(run_task(writer, plan, number, rows))
        writer.commit(plan, receipts)
    except BaseException:
        writer.abort(plan, None)
        raise
    return plan


@pytest.mark.parametrize("commit", ["job", "task"])
def test_types_pass_as_they_are(pg: Pg, commit: CommitMode) -> None:
    cases = [case for row in EXACT for case in _passing(row)]
    names = make_typed_tables(pg, cases)
    assert _move(pg, commit=commit).native
    check_equal(pg, names)


def test_what_spark_cannot_hold_passes_too(pg: Pg) -> None:
    pg.psql(
        "CREATE TABLE a (d date, t timestamptz, h time, n numeric(10,2), m int[]); CREATE TABLE b (LIKE a);"
        "INSERT INTO a VALUES ('infinity', '-infinity', '24:00', 'NaN', '{{1,2},{3,4}}'),"
        "('4713-01-01 BC', '294276-12-31 23:59:59.999999Z', '00:00', 1, '[5:6]={7,8}')"
    )
    assert _move(pg).native
    assert pg.psql("SELECT * FROM b ORDER BY n") == pg.psql("SELECT * FROM a ORDER BY n")


@pytest.mark.parametrize(
    ("given", "there", "native"),
    [
        ("text", "text", True),
        ("varchar(9)", "text", True),
        ("varchar", "text", True),
        ("text", "varchar(9)", False),  # blanks too many would be cut off without a word
        ("varchar(9)", "varchar(8)", False),
        ("varchar(9)", "varchar(9)", True),
        ("varchar(9)", "varchar", True),
        ("char(3)", "text", False),
        ("char(3)", "char(3)", True),
        ("numeric(10,2)", "numeric", True),
        ("numeric(10,2)", "numeric(12,2)", False),
        ("numeric(10,2)[]", "numeric[]", True),
        ("timestamp", "timestamp(3)", False),
        ("timestamp(3)", "timestamp", True),
        ("int", "bigint", False),
        ("json", "text", False),
        ("varchar(9)[]", "text[]", False),
    ],
)
def test_a_table_of_other_types(pg: Pg, given: str, there: str, native: bool) -> None:
    """Where a value might come out changed, it goes through Arrow, and is looked at."""
    value = {"json": "'[1]'", "int": "7", "timestamp": "'2024-01-01'"}.get(
        given.split("(", maxsplit=1)[0], "'1'"
    )
    value = "'{1}'" if given.endswith("[]") else value
    pg.psql(
        f"CREATE TABLE a (v {given}); CREATE TABLE b (v {there}); INSERT INTO a VALUES ({value}), (NULL)"
    )
    plan = _move(pg)
    assert plan.native is native
    expected = (
        f"{value}::{given}::{there}" if there != "text" else f"format('%s', {value}::{given})"
    )
    assert pg.psql(f"SELECT v IS NOT DISTINCT FROM {expected} FROM b WHERE v IS NOT NULL") == "t"


def test_columns_go_by_name(pg: Pg) -> None:
    pg.psql(
        "CREATE TABLE a (x int, y int, z int); INSERT INTO a VALUES (1, 2, 3);"
        "CREATE TABLE b (more text DEFAULT 'd', z int, \"Y\" int, x int)"
    )
    assert _move(pg).native
    assert pg.psql("SELECT * FROM b") == "d|3|2|1"


def test_a_new_table(pg: Pg) -> None:
    pg.psql("CREATE TABLE a AS SELECT g AS id, 'v' || g AS v FROM generate_series(1, 1000) g")
    assert _move(pg).native
    assert pg.psql("SELECT count(*), sum(id) FROM b") == "1000|500500"
    pg.psql("CREATE TABLE a2 (u uuid); INSERT INTO a2 VALUES (gen_random_uuid())")
    assert not _move(pg, "a2", "b2").native, "a new table holds its text"
    assert pg.psql("SELECT u::uuid FROM b2") == pg.psql("SELECT u FROM a2")


@pytest.mark.parametrize("commit", ["job", "task"])
@pytest.mark.parametrize(
    ("mode", "expected"),
    [("upsert", "1|new\n2|new\n3|old"), ("skipExisting", "1|old\n2|new\n3|old")],
)
def test_merges(pg: Pg, commit: CommitMode, mode: str, expected: str) -> None:
    pg.psql(
        "CREATE TABLE b (k numeric PRIMARY KEY, v text); INSERT INTO b VALUES (1, 'old'), (3, 'old');"
        "CREATE TABLE a (LIKE b); INSERT INTO a VALUES (1, 'new'), (2, 'new')"
    )
    assert _move(pg, commit=commit, writemode=mode).native
    assert pg.psql("SELECT * FROM b ORDER BY k") == expected


@pytest.mark.parametrize(
    ("commit", "says"),
    [
        ("task", r"a row is refused.*check constraint"),
        ("job", r"violates check constraint.*Nothing of this job is in table"),
    ],
)
def test_a_value_that_the_table_refuses_is_told(
    pg: Pg, commit: Literal["job", "task"], says: str
) -> None:
    pg.psql(
        "CREATE TABLE a (v int); CREATE TABLE b (v int CHECK (v < 5)); INSERT INTO a VALUES (1), (7)"
    )
    with pytest.raises(TargetError, match=says):
        _move(pg, commit=commit)
    assert pg.psql("SELECT count(*) FROM b") == "0"
    wait_for(lambda: pg.server.connections() == 0, "the sessions to end")


def _rows(reader: PostgresReader) -> Any:
    reader.schema()
    return reader.native_rows(reader.split(2))


def test_what_reads_otherwise_has_no_native_rows(pg: Pg) -> None:
    pg.psql(
        "CREATE TYPE mood AS ENUM ('fine'); CREATE TABLE a (v int, m mood); INSERT INTO a VALUES (1, 'fine')"
    )
    assert _rows(pg.reader("a")) is None, "an enum has another number on each server"
    assert _rows(pg.reader("a", columns="v")) is not None
    assert _rows(pg.reader("a", columns="v", customschema="v BIGINT")) is None
    low = pg.reader("a", columns="v")
    low.fetch_size = FetchSize(rows=10)
    assert _rows(low) is None, "under a low limit rows come by a cursor, which has no such form"
    url = pg.server.url + "?channel_binding=prefer"
    assert _rows(pg.reader("a", columns="v", url=url)) is None, "asyncpg would not hand it on"


def test_a_type_of_ones_own_called_as_one_of_the_servers(pg: Pg) -> None:
    pg.psql("CREATE TABLE a (v int); CREATE TABLE b (v int); INSERT INTO a VALUES (1)")
    pg.psql("CREATE TABLE date (v int); CREATE TYPE inet AS (a int)")
    assert _move(pg).native
    assert _rows(pg.reader(None, query="SELECT v FROM a")) is not None
    name = f"{pg.schema}.inet"
    pg.psql(
        f"CREATE TABLE c (v {name}); CREATE TABLE d (v pg_catalog.inet); INSERT INTO d VALUES ('::1')"
    )
    for table, is_native in (("c", False), ("d", True)):
        for reader in (pg.reader(table), pg.reader(None, query=f"SELECT * FROM {table}")):
            assert (_rows(reader) is not None) == is_native
    with pytest.raises(TargetError):
        _move(pg, "d", "c")


def test_a_query_and_a_condition(pg: Pg) -> None:
    pg.psql(
        "CREATE TABLE a AS SELECT g AS id FROM generate_series(1, 100) g; CREATE TABLE b (id int, twice int)"
    )
    reader = pg.reader(
        None, query="SELECT id, id * 2 AS twice FROM a", where="id > 90", partitioncolumn="id"
    )
    writer, plan, splits = _plan(pg, reader)
    assert plan.native
    receipts = [
        run_task(writer, plan, number, pa.Table.from_batches(list(reader.read(split)), NATIVE))
        for number, split in enumerate(splits)
    ]
    writer.commit(plan, receipts)
    assert sum(receipt.rows for receipt in receipts) == 10
    assert pg.psql("SELECT count(*), sum(id), sum(twice) FROM b") == "10|955|1910"


def test_one_snapshot(pg: Pg) -> None:
    pg.psql("CREATE TABLE a AS SELECT g AS id FROM generate_series(1, 3000) g")
    reader = pg.reader("a", snapshot="true")
    reader.schema()
    with reader.hold():
        splits = reader.split(4)
        reader.native = reader.native_rows(splits) is not None
        assert reader.native
        pg.psql("DELETE FROM a WHERE id > 10")
        with reader.reading() as read:
            assert sum(batch.num_rows for split in splits for batch in read(split)) == 3000
    assert pg.server.connections() == 0


@pytest.fixture
def big(pg: Pg) -> Iterator[PostgresReader]:
    """64 MB of rows, which no socket holds."""
    pg.psql(
        "CREATE TABLE big AS SELECT g AS id, repeat('x', 1000) AS v FROM generate_series(1, 60000) g"
    )
    reader = pg.reader("big")
    assert _rows(reader) is not None
    reader.native = True
    yield reader
    assert pg.server.connections() == 0


def test_rows_come_in_pieces_of_a_megabyte(big: PostgresReader) -> None:
    (split,) = big.split(1)
    sizes = [len(native_data(batch)) for batch in big.read(split)]
    assert len(sizes) > 40
    assert max(sizes) < 2 << 20


def test_all_rows_pass_a_channel_that_holds_one(pg: Pg) -> None:
    pg.psql(
        "CREATE TABLE a (id bigint PRIMARY KEY, item text); CREATE TABLE b (LIKE a);"
        "INSERT INTO a SELECT i, repeat('x', i) FROM generate_series(1, 200) i"
    )
    source = pg.options(name="postgresql", dbtable="a")
    target = pg.options(name="postgresql", dbtable="b", capacityBytes="4")
    report = spark_channel.transfer(None, source, target)
    assert report.path.startswith("rows pass as the source's bytes")
    assert pg.psql("SELECT count(*), sum(length(item)) FROM b").strip() == "200|20100"


def test_who_leaves_early_leaves_no_connection_and_no_thread(big: PostgresReader) -> None:
    (split,) = big.split(1)
    before = threading.active_count()
    for taken in range(3):
        batches: Any = big.read(split)
        for _ in range(taken):
            next(batches)
        batches.close()
    assert threading.active_count() == before


def test_a_connection_that_is_lost_is_told_and_read_again(pg: Pg, big: PostgresReader) -> None:
    (split,) = big.split(1)
    batches = big.read(split)
    first = next(batches).num_rows
    pg.kill_sessions()
    with pytest.raises(SourceError) as raised:
        for _ in batches:
            pass
    assert is_gone(raised.value)
    assert first < sum(batch.num_rows for batch in big.read(split)) == 60_000


def test_the_splits_of_a_channel_share_a_connection(pg: Pg, big: PostgresReader) -> None:
    (split,) = big.split(1)
    with big.reading() as read:
        list(read(split))
        assert pg.server.connections(expected=1) == 1
        pg.kill_sessions()
        assert sum(batch.num_rows for batch in read(split)) == 60_000, (
            "a kept connection that went is replaced"
        )
        broken = replace(split, params={**split.params, "snapshot": "00000003-00000001-1"})
        with pytest.raises(SourceError):
            list(read(broken))


def test_a_session_changes_nothing(pg: Pg, big: PostgresReader) -> None:
    with (
        PgCopySession(big.options, failure=SourceError, purpose="read") as session,
        pytest.raises(SourceError, match="division by zero"),
    ):
        list(session.copy("SELECT 1 / 0", 1, 1))
    session.close()
    assert not session.is_open
    with pytest.raises(SourceError, match="closed"):
        session.rows("SELECT 1")


def test_an_error_in_the_middle_is_the_servers_own(pg: Pg, big: PostgresReader) -> None:
    session = PgCopySession(big.options, failure=SourceError, purpose="read")
    with pytest.raises(SourceError, match="division by zero"):
        list(session.copy("SELECT 1 / (id - 59999), v FROM big", 2, 1 << 20))
    assert not session.is_open


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"password": "falsch-geheim"}, "login is refused"),
        ({"url": "postgresql://127.0.0.1:1/shop"}, "no server answers there"),
        ({"url": "postgresql://nowhere.invalid/shop"}, "host is not known"),
    ],
)
def test_a_server_that_is_not_reached_is_told(pg: Pg, options: dict[str, str], words: str) -> None:
    reader = pg.reader("t", **options)
    with pytest.raises(SourceError, match=words) as raised:
        PgCopySession(reader.options, failure=SourceError, purpose="read")
    for secret in ("falsch", pg.server.password):
        assert secret not in str(raised.value) + repr(raised.value.__cause__)


def test_a_server_that_does_not_answer_is_told_in_time(pg: Pg) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"postgresql://127.0.0.1:{silent.getsockname()[1]}/shop"
        reader = pg.reader("t", url=url, connecttimeout="1")
        with pytest.raises(SourceError, match="timeout expired") as raised:
            PgCopySession(reader.options, failure=SourceError, purpose="read")
        assert is_gone(raised.value)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        (
            "postgresql://u:p@db/shop?sslmode=verify-full&sslrootcert=/ca.crt&application_name=x",
            "",
        ),
        (
            "jdbc:postgresql://a:1/shop?user=u&password=p&targetServerType=primary&tcpKeepAlive=true",
            "",
        ),
        ("postgresql://u:p@db/shop?options=-cwork_mem%3D5MB", ""),
        ("postgresql://u@db/shop", ""),
        ("postgresql://u:p@a,b/shop", "several hosts"),
        ("postgresql://u:p@db/shop?sslrootcert=system", "sslrootcert"),
        ("postgresql://u:p@db/shop?channel_binding=require", "'channel_binding'"),
    ],
)
def test_which_addresses_it_knows(url: str, why: str) -> None:
    reader: Any = load_reader({"url": url, "dbtable": "t"})[0]
    said = why_not_asyncpg(reader.options.parameters("x"), {})
    assert bool(said) is bool(why)
    assert why in said


def test_an_environment_that_libpq_alone_heeds() -> None:
    reader: Any = load_reader({"url": "postgresql://u:p@db/shop", "dbtable": "t"})[0]
    parameters = reader.options.parameters("x")
    assert not why_not_asyncpg(parameters, {"PGOPTIONS": "-c role=r", "HOME": "/"})
    assert "PGHOSTADDR" in why_not_asyncpg(parameters, {"PGHOSTADDR": "10.0.0.1"})
    assert "sslrootcert" in why_not_asyncpg(parameters, {"PGSSLROOTCERT": "system"})


def test_what_asyncpg_is_told() -> None:
    url = "postgresql://etl:a%20b@[::1]:2/shop?sslmode=verify-full&sslrootcert=/the%20ca.crt"
    reader: Any = load_reader({"url": url, "dbtable": "t", "connecttimeout": "7"})[0]
    parameters = reader.options.parameters("spark-channel")
    expected = {
        "dsn": "postgresql://?sslmode=verify-full&sslrootcert=%2Fthe+ca.crt",
        "host": "::1",
        "port": 2,
        "user": "etl",
        "password": "a b",
        "database": "shop",
        "timeout": 7.0,
        "server_settings": {"application_name": "spark-channel"},
        "statement_cache_size": 0,
    }
    assert asyncpg_arguments(parameters, {}) == expected
    arguments = asyncpg_arguments(
        {**parameters, "connect_timeout": "0"}, {"PGOPTIONS": "-c role=r"}
    )
    assert arguments["timeout"] is None, "to libpq 0 is as long as it takes"
    assert arguments["server_settings"]["options"] == "-c role=r"
    arguments = asyncpg_arguments({**parameters, "options": "-c a=b"}, {"PGOPTIONS": "-c role=r"})
    assert arguments["server_settings"]["options"] == "-c a=b"


@pytest.mark.parametrize("level", ["NOTICE", "WARNING", "INFO"])
def test_a_function_that_says_something_loses_no_row(pg: Pg, level: str) -> None:
    """asyncpg drops the rows before such a message: warnings are not asked for, and INFO, always sent, is found."""
    pg.psql(
        "CREATE FUNCTION loud(n int) RETURNS int LANGUAGE plpgsql AS "
        f"$$ BEGIN IF n % 100 = 50 THEN RAISE {level} 'said'; END IF; RETURN n; END $$;"
        "CREATE TABLE plain AS SELECT g AS v FROM generate_series(1, 1000) g;"
        "CREATE VIEW a AS SELECT loud(v) AS v FROM plain; CREATE TABLE b (v int)"
    )
    if level == "INFO":
        with pytest.raises(SourceError, match=r"sent 1000 rows, and \d+ were received.*RAISE INFO"):
            _move(pg)
        assert pg.psql("SELECT count(*) FROM b") == "0"
    else:
        assert _move(pg).native
        assert pg.psql("SELECT count(*), sum(v) FROM b") == "1000|500500"


def test_what_is_no_copy_is_told(pg: Pg, monkeypatch: pytest.MonkeyPatch) -> None:
    pg.psql("CREATE TABLE a AS SELECT g AS v FROM generate_series(1, 10) g; CREATE TABLE b (v int)")
    monkeypatch.setattr(copy_session, "HEADER", b"another header")
    with pytest.raises(SourceError, match="not in COPY's format"):
        _move(pg)
    assert pg.server.connections() == 0
