"""Through PgBouncer, whose few sessions go from client to client with each transaction.

Each operation is done with a neighbour in the same pool, which writes all the time. The neighbour must never notice:
neither by a statement that fails, nor by anything that is left in a session.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_channel.connectors import Receipt, load_reader, load_writer
from spark_channel.connectors.base.contract import FetchSize
from spark_channel.connectors.base.feed import FeedLimit, FeedOptions
from spark_channel.connectors.postgresql.read.copy_session import PgCopySession
from spark_channel.connectors.sql.postgresql_family import SETTINGS
from spark_channel.errors import ChannelError, SourceError, TargetError
from spark_channel.service import signal_value, sql_value
from spark_channel.tunnel import Tunnel
from spark_channel.tunnel.store import PostgresStore
from tests.connectors.postgresql.pg import Pg, own_schema
from tests.connectors.sql.one_database import run_task
from tests.servers.pgbouncer import Pgbouncer, pgbouncer
from tests.servers.postgres import PostgresServer

ROWS = 3_000
_OF_POOLER = (
    "application_name",
    "client_encoding",
    "DateStyle",
    "TimeZone",
    "standard_conforming_strings",
)
"""What PgBouncer itself sets, to what each client had when it connected."""
_CHANGED = """
SELECT name, setting, reset_val FROM pg_settings
WHERE source = 'session' AND (setting IS DISTINCT FROM reset_val OR NOT name = ANY (%s))
"""
_LEFT = """
SELECT 'lock', classid::text FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()
UNION ALL SELECT 'prepared statement', statement FROM pg_prepared_statements
UNION ALL SELECT 'cursor', name FROM pg_cursors
UNION ALL SELECT 'temporary table', relname FROM pg_class WHERE relpersistence = 't' AND relkind = 'r'
UNION ALL SELECT 'channel', pg_listening_channels()
UNION ALL SELECT 'slot', slot_name FROM pg_replication_slots WHERE temporary
"""


@dataclass
class Pooled(Pg):
    """As `Pg`, through the pooler; `psql` asks the server itself."""

    pooler: Pgbouncer = field(kw_only=True)

    def options(self, **options: Any) -> dict[str, Any]:
        return {**super().options(**options), **self.pooler.login}


class Neighbour(threading.Thread):
    """An application that inserts a row a transaction, until it is left."""

    def __init__(self, pooler: Pgbouncer, schema: str) -> None:
        super().__init__(daemon=True)
        self._pooler, self._table = pooler, f"{schema}.neighbour"
        self._left, self.writes = threading.Event(), threading.Event()
        self.rows = 0
        self.failure: Exception | None = None

    def run(self) -> None:
        try:
            with self._pooler.client() as connection:
                while not self._left.wait(0.001):
                    connection.execute(f"INSERT INTO {self._table} VALUES (%s)", [self.rows])
                    self.rows += 1
                    self.writes.set()
        except Exception as error:
            self.failure = error

    def leave(self) -> None:
        self._left.set()
        self.join(60)
        assert not self.is_alive()


@pytest.fixture(scope="module")
def pooler(postgres_server: PostgresServer) -> Iterator[Pgbouncer]:
    with pgbouncer(postgres_server, size=2) as made:
        yield made


@pytest.fixture
def pg(pooler: Pgbouncer) -> Iterator[Pooled]:
    with own_schema(pooler.server) as made:
        made.psql(
            "CREATE TABLE t (id bigint PRIMARY KEY, at timestamptz, v text, span interval); "
            f"INSERT INTO t SELECT n, timestamptz '2026-01-01' + n * interval '1 s', 'x' || n, n * interval '1 min' "
            f"FROM generate_series(1, {ROWS}) n; CREATE TABLE neighbour (n int)"
        )
        yield Pooled(made.server, made.schema, pooler=pooler)


@contextmanager
def unnoticed(pg: Pooled) -> Iterator[None]:
    """The neighbour's rows are all there after the block, and every session of the pool is as a new one."""
    neighbour = Neighbour(pg.pooler, pg.schema)
    neighbour.start()
    assert neighbour.writes.wait(60)
    try:
        yield
    finally:
        neighbour.leave()
    assert neighbour.failure is None
    assert neighbour.rows > 0
    assert (
        pg.psql("SELECT count(*), count(DISTINCT n) FROM neighbour")
        == f"{neighbour.rows}|{neighbour.rows}"
    )
    check_clean(pg.pooler)


def check_clean(pooler: Pgbouncer) -> None:
    """Each session of the pool, by a transaction of a client in each at the same time."""
    with ExitStack() as stack:
        clients = [stack.enter_context(pooler.client()) for _ in range(pooler.size)]
        for client in clients:
            client.execute("BEGIN")
        seen = {client.execute("SELECT pg_backend_pid()").fetchone() for client in clients}
        assert len(seen) == pooler.size
        for client in clients:
            assert client.execute(_CHANGED, [list(_OF_POOLER)]).fetchall() == []
            assert client.execute(_LEFT).fetchall() == []
            client.execute("CREATE TEMPORARY TABLE writes (n int) ON COMMIT DROP")
            client.execute("COMMIT")


def _direct(pg: Pooled) -> Pg:
    return Pg(pg.server, pg.schema)


def _all(reader: Any, splits: list[Any]) -> pa.Table:
    with reader.reading() as read:
        batches = [batch for split in splits for batch in read(split)]
    return pa.Table.from_batches(batches, reader.schema()).sort_by("id")


def _read(pg: Pg, advice: int = 1, fetch: FetchSize | None = None, **options: Any) -> pa.Table:
    reader = pg.reader(**options)
    reader.schema()
    if fetch is not None:
        reader.fetch_size = fetch
    return _all(reader, reader.split(advice))


READS: dict[str, Callable[[Pg], pa.Table]] = {
    "whole": _read,
    "splits by a key": lambda pg: _read(pg, 4),
    "short statements": lambda pg: _read(pg, statementSeconds=1),
    "short statements in pieces": lambda pg: _read(pg, 2, FetchSize(rows=500)),
    "a cursor": lambda pg: _read(
        pg, fetch=FetchSize(rows=500), dbtable=None, query="SELECT * FROM t"
    ),
    "settings": lambda pg: _read(
        pg,
        sessionTimeZone="Asia/Tokyo",
        queryTimeout=60,
        timestampsAs="local",
        sessionInitStatement="SET work_mem = '1MB'; SET SESSION intervalstyle TO iso_8601",
    ),
}


@pytest.mark.parametrize("name", READS)
def test_a_read(pg: Pooled, name: str) -> None:
    with unnoticed(pg):
        found = READS[name](pg)
    assert found.num_rows == ROWS
    assert found.equals(READS[name](_direct(pg)))


def test_a_read_of_a_held_snapshot(pg: Pooled) -> None:
    reader = pg.reader(snapshot="true")
    schema = reader.schema()
    with unnoticed(pg), reader.hold():
        splits = reader.split(4)
        assert {tuple(split.params["key"]) for split in splits} == {("ctid",)}
        rows = [pa.Table.from_batches(reader.read(split), schema).num_rows for split in splits]
    assert sum(rows) == ROWS


def _native(pg: Pooled, commit: Any) -> None:
    reader = pg.reader(columns="id,at,v")
    schema = reader.schema()
    splits = reader.split(3)
    writer = pg.writer("copy")
    plan = writer.prepare(
        replace(pg.context(commit=commit), native=reader.native_rows(splits)), schema
    )
    assert plan.native
    reader.native = plan.native
    receipts: list[Receipt] = []
    with reader.reading() as read:
        for number, split in enumerate(splits):
            rows = pa.Table.from_batches(list(read(split)), plan.arriving)
            receipts.append(run_task(writer, plan, number, rows))
    writer.commit(plan, receipts)


def _limited(pg: Pooled, rows: pa.Table) -> None:
    writer = pg.writer("copy", rowsPerSecond="1M", capacityBytes="1")
    plan = writer.prepare(pg.context(commit="task"), rows.schema)
    tasks = [run_task(writer, plan, number, part) for number, part in enumerate(_parts(rows))]
    writer.commit(plan, tasks)


def _held(pg: Pooled, rows: pa.Table) -> None:
    """Under a limit, from memory."""
    writer = pg.writer("copy", rowsPerSecond="1M", capacityBytes="10MiB")
    plan = writer.prepare(pg.context(commit="task"), rows.schema)
    task = writer.open(plan, 0, 0)
    for part in _parts(rows):
        task.write(part.combine_chunks().to_batches()[0])
        task.flush()
    writer.commit(plan, [task.close()])


def _parts(rows: pa.Table) -> list[pa.Table]:
    return [rows.slice(0, ROWS // 2), rows.slice(ROWS // 2)]


WRITES: dict[str, Callable[[Pooled, pa.Table], Any]] = {
    "commit=task": lambda pg, rows: pg.write(*_parts(rows), dbtable="copy", commit="task"),
    "commit=job": lambda pg, rows: pg.write(*_parts(rows), dbtable="copy", commit="job"),
    "new table": lambda pg, rows: pg.write(*_parts(rows), dbtable="new", commit="job"),
    "overwrite": lambda pg, rows: pg.write(*_parts(rows), dbtable="copy", overwrite=True),
    "upsert": lambda pg, rows: pg.write(*_parts(rows), dbtable="copy", writeMode="upsert"),
    "upsert by task": lambda pg, rows: pg.write(
        *_parts(rows), dbtable="copy", writeMode="upsert", commit="task"
    ),
    "dirty rows": lambda pg, rows: pg.write(
        *_parts(rows), dbtable="copy", commit="task", maxDirtyRows=5, batchsize=500
    ),
    "scripts": lambda pg, rows: pg.write(
        *_parts(rows),
        dbtable="copy",
        preSql="SET LOCAL work_mem = '1MB'",
        postSql="UPDATE copy SET v = v",
        sessionInitStatement="SET work_mem = '2MB'",
    ),
    "limited": _limited,
    "limited, from memory": _held,
    "native, commit=task": lambda pg, _: _native(pg, "task"),
    "native, commit=job": lambda pg, _: _native(pg, "job"),
}


@pytest.mark.parametrize("name", WRITES)
def test_a_write(pg: Pooled, name: str) -> None:
    pg.psql("CREATE TABLE copy (LIKE t INCLUDING ALL)")
    rows = _read(_direct(pg))
    with unnoticed(pg):
        WRITES[name](pg, rows)
    target = "new" if name == "new table" else "copy"
    columns = "id, at, v" if name.startswith("native") else "id, at, v, span::text"
    assert pg.psql(f"SELECT {columns} FROM {target} ORDER BY id") == pg.psql(
        f"SELECT {columns} FROM t ORDER BY id"
    )
    assert pg.staged() == []


def test_a_write_with_its_transaction_id_is_done_once(pg: Pooled) -> None:
    pg.psql("CREATE TABLE copy (LIKE t INCLUDING ALL)")
    rows = _read(_direct(pg))
    with unnoticed(pg):
        pg.write(rows, dbtable="copy", txn=("nightly", 1))
        writer = pg.writer("copy")
        plan = writer.prepare(pg.context(txn=("nightly", 1)), rows.schema)
        assert plan.published_at is not None
    assert pg.psql("SELECT count(*) FROM copy") == str(ROWS)


def _changes(feed: Any, after: Any, upto: Any) -> list[Any]:
    return [
        row
        for split in feed.changes(after, upto)
        for batch in feed.read(split)
        for row in batch.to_pylist()
    ]


def test_a_stream_by_a_cursor_column(pg: Pooled) -> None:
    with unnoticed(pg):
        feed = pg.reader().feed(FeedOptions("id", late_seconds=0.0))
        (start,) = feed.earliest()
        end = feed.latest(start, FeedLimit())
        found = _changes(feed, start, end)
    assert sorted(row["id"] for row in found) == [*range(1, ROWS + 1)]


def test_a_stream_by_logical_replication(pg: Pooled) -> None:
    name = f"pooled_{pg.schema}"
    pg.psql(f"CREATE PUBLICATION {name} FOR TABLE t")
    try:
        with unnoticed(pg):
            feed = pg.reader().feed(FeedOptions(slot=name, publication=name))
            (start,) = feed.now()
            pg.psql("UPDATE t SET v = 'new' WHERE id = 7; DELETE FROM t WHERE id = 8")
            (again,) = feed.now()  # by a slot that lasts for a moment
            end = feed.latest(start, FeedLimit())
            found = _changes(feed, start, end)
            assert feed.latest(again, FeedLimit()) == again
            feed.settle(end)
            feed.lag(end)
            begun = feed.with_base(feed.now())
            assert begun is not None
            base = _changes(feed, begun[0], feed.latest(begun[0], FeedLimit()))
            feed.close()
        assert [(row["_op"], row["id"]) for row in found] == [("update", 7), ("delete", 8)]
        assert found[0]["at"] == _read(_direct(pg), where="id = 7")["at"][0].as_py()
        assert sorted(row["id"] for row in base) == [n for n in range(1, ROWS + 1) if n != 8]
    finally:
        pg.psql(f"DROP PUBLICATION {name}")


def test_health(pg: Pooled) -> None:
    writing = pg.writer().health()
    assert writing is not None
    with unnoticed(pg), pg.reader().health() as health, writing as other:
        for _ in range(2):
            assert {"latency", "wakeup"} <= set(health.sample().delays)
            assert other.sample().delays["latency"]


def test_a_probe(pg: Pooled) -> None:
    with unnoticed(pg):
        query = pg.options(query="SELECT count(*)::int FROM t")
        assert sql_value(query)() == ROWS
        signal = signal_value(pg.pooler.login, "latency")
        assert signal() >= 0
        signal.close()


def test_a_tunnel_whose_store_and_source_are_behind_it(pg: Pooled) -> None:
    user = f"store_{pg.schema}"
    pg.psql(f"CREATE ROLE {user} SUPERUSER LOGIN; ALTER ROLE {user} SET search_path = {pg.schema}")
    store = PostgresStore(f"postgresql://{user}:any@127.0.0.1:{pg.pooler.port}/postgres")
    seen: list[int] = []
    with unnoticed(pg):
        tunnel = Tunnel("copy", pg.options(dbtable="t", cursorColumn="id"), store=store)
        tunnel.create()
        tunnel.consume(
            lambda delivery: seen.extend(
                id_ for batch in delivery.batches for id_ in batch["id"].to_pylist()
            ),
            threads=2,
            drained=True,
        )
    assert sorted(seen) == [*range(1, ROWS + 1)]


def _by_adbc(pg: Pooled, half: str, name: str, **options: str) -> dict[str, str]:
    url = f"postgresql://{pg.server.user}:any@127.0.0.1:{pg.pooler.port}/postgres"
    return {
        half: "adbc",
        "driver": "postgresql",
        "uri": url,
        "dbtable": f"{pg.schema}.{name}",
        **options,
    }


@pytest.mark.parametrize("commit", ["task", "job"])
def test_the_adbc_driver(pg: Pooled, commit: Any) -> None:
    pg.psql("CREATE TABLE copy (id bigint PRIMARY KEY, v text); CREATE TABLE seen (memory text);")
    kept = {"sessioninitstatement": "SET work_mem = '1MB'"}
    with unnoticed(pg):
        reader, _ = load_reader(_by_adbc(pg, "reader", "t", columns="id,v", **kept))
        rows = _all(reader, reader.split(2))
        after = f"INSERT INTO {pg.schema}.seen SELECT current_setting('work_mem')"
        writer, _ = load_writer(_by_adbc(pg, "writer", "copy", postsql=after, **kept))
        plan = writer.prepare(pg.context(commit=commit), rows.schema)
        writer.commit(
            plan, [run_task(writer, plan, number, part) for number, part in enumerate(_parts(rows))]
        )
    assert pg.psql("SELECT id, v FROM copy ORDER BY id") == pg.psql(
        "SELECT id, v FROM t ORDER BY id"
    )
    assert pg.psql("SELECT * FROM seen") == "1MB"


@pytest.mark.parametrize(
    "statement", ["SELECT set_config('app.tenant', '7', false)", "SET idle_session_timeout = 0"]
)
@pytest.mark.parametrize("path", ["read", "native", "write", "adbc"])
def test_what_only_a_session_can_keep_is_refused(pg: Pooled, statement: str, path: str) -> None:
    def connect(place: Pg) -> None:
        options = {"sessionInitStatement": statement}
        if path == "adbc":
            reader, _ = load_reader(_by_adbc(pg, "reader", "t", sessioninitstatement=statement))
            reader.schema()
        elif path == "write":
            place.writer(**options).exists()
        elif path == "read":
            place.reader(**options).schema()
        else:
            PgCopySession(
                place.reader(**options).options, failure=SourceError, purpose="read"
            ).close()

    with (
        unnoticed(pg),
        pytest.raises(
            ChannelError, match=r"connection pooler .*'sessionInitStatement' holds"
        ) as raised,
    ):
        connect(pg)
    assert statement in str(raised.value)
    if path != "adbc":
        connect(_direct(pg))


def test_a_statement_that_no_transaction_may_hold(pg: Pooled) -> None:
    """VACUUM runs by itself, where it means the same without the user's settings."""
    pg.psql("CREATE TABLE copy (LIKE t)")
    with unnoticed(pg):
        plain = pg.options(dbtable=f"{pg.schema}.copy", startSql=f"VACUUM {pg.schema}.copy")
        del plain["currentschema"]
        load_writer(plain)[0].begin()
        with pytest.raises(
            TargetError,
            match=r"pooler .*'currentSchema'.*'VACUUM copy' cannot run in one",
        ):
            pg.writer("copy", startSql="VACUUM copy").begin()
    _direct(pg).writer("copy", startSql="VACUUM copy").begin()


def test_startup_parameters_that_a_pooler_refuses(pg: Pooled) -> None:
    url = f"{pg.pooler.url}?options=-c%20search_path%3D{pg.schema}"
    with pytest.raises(
        SourceError, match=r"connection pooler .* refuses this parameter.*'currentSchema'"
    ):
        load_reader({**pg.options(dbtable="t"), "url": url})[0].schema()


def test_a_pooler_without_transactions_is_named(pg: Pooled) -> None:
    named = pytest.raises(SourceError, match=r"connection pooler .*pool_mode=transaction")
    with pgbouncer(pg.server, size=1, mode="statement") as other, named:
        replace(pg, pooler=other).reader().schema()


def test_a_full_pool_is_named(pg: Pooled) -> None:
    with pgbouncer(pg.server, size=1, wait=1) as other, other.client() as busy:
        busy.execute("BEGIN")
        with pytest.raises(SourceError, match=r"no free session .*default_pool_size"):
            replace(pg, pooler=other).reader(retryTimeout=0).schema()


@pytest.mark.parametrize("commit", ["task", "job"])
def test_sessions_that_are_lost_behind_it(pg: Pooled, commit: Any) -> None:
    pg.psql("CREATE TABLE copy (LIKE t INCLUDING ALL)")
    rows = _read(_direct(pg))
    writer = pg.writer("copy", rowsPerSecond="1M", capacityBytes="1", retryTimeout=20)
    plan = writer.prepare(pg.context(commit=commit), rows.schema)
    task = writer.open(plan, 0, 0)
    for part in _parts(rows):
        task.write(part.combine_chunks().to_batches()[0])
        task.flush()
        ended = "SELECT count(pg_terminate_backend(pid)) > 0 FROM pg_stat_activity "
        assert (
            pg.server.psql(
                f"{ended}WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
            )
            == "t"
        )
    writer.commit(plan, [task.close()])
    assert pg.psql("SELECT count(*), count(DISTINCT id) FROM copy") == f"{ROWS}|{ROWS}"


def test_a_session_of_the_server_itself_has_its_name_also_between_transactions(pg: Pooled) -> None:
    name = "SELECT application_name, state FROM pg_stat_activity WHERE application_name LIKE 'spark-channel%'"
    direct = _direct(pg)
    with direct.reader().connect("read"):
        assert pg.server.psql(name) == "spark-channel read|idle"
    with pg.reader().connect("read"):
        assert pg.server.psql(name) == ""


def test_the_page_lists_the_settings() -> None:
    page = Path("docs/postgresql.md").read_text()
    assert all(f"`{name}`" in page for name in SETTINGS)
