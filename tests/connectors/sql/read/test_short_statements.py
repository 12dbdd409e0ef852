"""Short statements on real servers: what they leave open, and what becomes of a read whose statement is ended."""

import random
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_channel.connectors import FetchSize, Reader, load_reader
from spark_channel.connectors.base.feed import FeedOptions
from spark_channel.connectors.sql.read.keyset import keyset_of
from spark_channel.connectors.sql.read.reader import SqlReader
from spark_channel.connectors.sql.read.short_statements import SessionHolder, ShortStatements
from spark_channel.connectors.sql.session import BatchSize
from spark_channel.errors import SourceError
from spark_channel.limits import RateLimiter
from spark_channel.pipeline import GroupRead
from spark_channel.planning import Task, TaskGroup
from spark_channel.testing import VirtualClock
from tests.connectors.mysql.shop import (
    Shop,
    transactions,
)
from tests.connectors.postgresql.pg import (
    Pg,
)
from tests.connectors.sql.places import KINDS, Place, open_place
from tests.servers.mariadb import MariadbServer
from tests.servers.postgres import PostgresServer

ROWS = 3_000


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    with open_place(request, request.param, tmp_path) as made:
        yield made


def _limited(reader: Reader, rows: int = 50) -> Reader:
    reader.schema()
    reader.fetch_size = FetchSize(rows=rows)
    return reader


def _each(reader: Reader, advice: int = 1) -> Iterator[list[int]]:
    """The ids of each batch."""
    for split in reader.split(advice):
        for batch in reader.read(split):
            yield batch["id"].to_pylist()


def _ids(reader: Reader, meanwhile: Callable[[int], None] = lambda number: None) -> list[int]:
    found: list[int] = []
    for number, ids in enumerate(_each(reader)):
        found += ids
        meanwhile(number)
    return found


def _pg_table(pg: Pg, rows: int = ROWS) -> None:
    pg.psql(
        f"CREATE TABLE t (id int PRIMARY KEY, v text); "
        f"INSERT INTO t SELECT n, 'x' || n FROM generate_series(1, {rows}) n"
    )


def _shop_table(shop: Shop, rows: int = ROWS) -> None:
    shop.sql(
        f"CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(20)); INSERT INTO t SELECT seq, seq FROM seq_1_to_{rows}"
    )


@pytest.mark.parametrize("place", [kind for kind in KINDS if kind != "duckdb"], indirect=True)
@pytest.mark.parametrize(
    "options", [{}, {"where": "v > 20"}, {"columns": "v"}, {"partitionColumn": "a"}]
)
@pytest.mark.parametrize("rows", [7, 1_000])
def test_short_statements_bring_what_one_does(
    place: Place, options: dict[str, Any], rows: int
) -> None:
    values = [(number // 10, f"it's {number % 10}\\ ", number / 4) for number in range(300)]
    place.create("t", {"a": "int NOT NULL", "b": "text NOT NULL", "v": "real"}, values, "a, b")
    whole = place.read(**options)
    reader = _limited(place.reader(**options), rows)
    found = pa.Table.from_batches(
        [batch for split in reader.split(3) for batch in reader.read(split)], whole.schema
    )
    order = [(name, "ascending") for name in whole.schema.names]
    assert found.sort_by(order).equals(whole.sort_by(order))


@pytest.mark.parametrize("kind", ["postgresql", "mysql", "sqlite"])
def test_without_a_limit_a_split_is_one_statement(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    with open_place(request, kind, tmp_path) as place:
        place.create("t", {"id": "int NOT NULL"}, [(1,)], "id")

        def seconds(reader: Any) -> float | None:
            found: float | None = reader.statement_seconds
            return found

        reader = place.reader()
        assert seconds(reader) is None
        reader.fetch_size = FetchSize(nbytes=100)
        assert seconds(reader) == 5.0
        assert seconds(place.reader(statementSeconds=2)) == 2.0
        assert seconds(_limited(place.reader(statementSeconds=0))) is None
        assert seconds(place.reader(rowsPerSecondPerTask=5)) == 5.0


def test_a_statement_asks_for_no_more_than_the_limit(pg: Pg) -> None:
    _pg_table(pg)
    reader = _limited(pg.reader(burstMillis=0))
    ends = set(accumulate(len(ids) for ids in _each(reader)))
    assert ends.issuperset(range(50, ROWS + 1, 50))


class _Searching:
    """The reader of a server that searches `seconds` for the first row of each statement."""

    def __init__(self, reader: Any, clock: VirtualClock, seconds: float) -> None:
        self._reader, self._clock, self._seconds = reader, clock, seconds
        self.statements = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)

    def short_batches(
        self, session: Any, sql: str, split: Any, columns: Any, pacer: Any
    ) -> Iterator[pa.RecordBatch]:
        self.statements += 1
        self._clock.sleep(self._seconds)
        for batch in session.stream(sql, BatchSize(100, 1 << 20), [pa.int64()] * len(columns)):
            self._clock.sleep(batch.num_rows * 1e-5)
            yield batch


@pytest.mark.parametrize("seconds", [0.0, 6.0, 60.0])
def test_statements_that_search_for_longer_than_they_may_last_are_not_cut_to_a_few_rows(
    seconds: float, tmp_path: Path
) -> None:
    rows, clock = 100_000, VirtualClock()
    with closing(sqlite3.connect(tmp_path / "t.db")) as connection, connection:
        connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY)")
        connection.executemany("INSERT INTO t VALUES (?)", ((number,) for number in range(rows)))
    reader, _ = load_reader({"url": f"sqlite:{tmp_path / 't.db'}", "dbtable": "t"})
    assert isinstance(reader, SqlReader)
    reader.schema()
    (split,) = reader.split(1)
    searching: Any = _Searching(reader, clock, seconds)
    with SessionHolder(reader.connected) as line:
        source = reader.known(line.session())
        keyset = keyset_of(source, split)
        assert keyset is not None
        read = ShortStatements(
            searching, split, keyset, line, seconds=5.0, retry_seconds=60.0, clock=clock
        )
        assert sum(batch.num_rows for batch in read.batches()) == rows
    assert searching.statements <= 20


def test_nothing_is_open_on_postgresql_between_two_statements(pg: Pg) -> None:
    """Also while the caller takes its time: a table can be changed, and vacuum removes rows."""
    _pg_table(pg)
    states = "SELECT state, backend_xmin IS NULL FROM pg_stat_activity WHERE application_name LIKE 'spark-channel%'"
    locks = (
        "SELECT count(*) FROM pg_locks l JOIN pg_stat_activity a USING (pid) "
        "WHERE a.application_name LIKE 'spark-channel%'"
    )

    def look(number: int) -> None:
        if number == 3:
            time.sleep(0.05)  # the answer was read to its end a moment before the server says so
            assert pg.psql(states) == "idle|t"
            assert pg.psql(locks) == "0"
            pg.psql("SET lock_timeout = '1s'; ALTER TABLE t ADD COLUMN w int")

    assert _ids(_limited(pg.reader()), look) == list(range(1, ROWS + 1))


def test_nothing_is_open_on_mariadb_between_two_statements(shop: Shop) -> None:
    _shop_table(shop)

    def look(number: int) -> None:
        if number == 3:
            assert transactions(shop) == []
            commands = "SELECT command FROM information_schema.processlist WHERE user = 'tester'"
            assert shop.rows(commands) == [("Sleep",)]
            shop.sql("SET lock_wait_timeout = 1; LOCK TABLES t WRITE; UNLOCK TABLES")

    assert _ids(_limited(shop.reader()), look) == list(range(1, ROWS + 1))


def test_nothing_is_open_on_sqlite_between_two_statements(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """A writer that needs the whole file gets it."""
    with open_place(request, "sqlite", tmp_path) as place:
        place.create("t", {"id": "int NOT NULL", "v": "text"}, [(n, "x") for n in range(500)], "id")

        def look(number: int) -> None:
            if number == 3:
                place.run("INSERT INTO t VALUES (1000, 'new')")

        assert _ids(_limited(place.reader()), look) == [*range(500), 1000]


@pytest.mark.parametrize(
    "seconds", [3.0, pytest.param(600.0, marks=[pytest.mark.soak, pytest.mark.timeout(900)])]
)
@pytest.mark.parametrize("speed", [100, 1_000, 20_000])
def test_no_transaction_of_ours_is_old(pg: Pg, speed: int, seconds: float) -> None:
    """Sampled each 100 ms while a limited group of two channels is read."""
    rows = int(speed * seconds)
    _pg_table(pg, rows)
    oldest: list[float] = []
    over = threading.Event()
    query = (
        "SELECT coalesce(max(extract(epoch FROM clock_timestamp() - xact_start)), 0) FROM pg_stat_activity "
        "WHERE application_name LIKE 'spark-channel read%'"
    )

    def sample() -> None:
        while not over.wait(0.1):
            oldest.append(float(pg.psql(query)))

    reader = _limited(pg.reader(), max(1, speed // 4))
    tasks = tuple(Task(number, split) for number, split in enumerate(reader.split(4)))
    group = GroupRead(
        reader,
        TaskGroup(0, tasks, 2),
        reader.schema(),
        limiter=RateLimiter(rows_per_second=speed),
        capacity_rows=1 << 20,
        capacity_bytes=64 << 20,
    )
    sampler = threading.Thread(target=sample)
    sampler.start()
    begun = time.monotonic()
    try:
        found = sorted(n for batch in group.batches() for n in batch["id"].to_pylist())
    finally:
        over.set()
        sampler.join()
    assert found == list(range(1, rows + 1))
    assert time.monotonic() - begun >= 0.9 * seconds
    assert len(oldest) >= 10
    print(
        f"{speed} rows/s for {seconds:.0f} s: oldest transaction {max(oldest):.2f} s, {len(oldest)} samples"
    )
    assert max(oldest) <= 5.0 + 1.0, (
        "statementSeconds is 5 under a limit, and a busy machine adds a second"
    )


@pytest.mark.parametrize("ends", [50])
def test_random_ends_of_connections_lose_and_double_nothing_on_postgresql(
    pg: Pg, ends: int
) -> None:
    """By pg_terminate_backend and pg_cancel_backend, at any moment."""
    rows = 200_000
    _pg_table(pg, rows)
    found = _with_ends(
        _limited(pg.reader(), 2_000),
        ends,
        lambda number: pg.psql(
            f"SELECT count({('pg_terminate_backend', 'pg_cancel_backend')[number % 3 == 2]}(pid)) "
            "FROM pg_stat_activity WHERE application_name LIKE 'spark-channel read%'"
        ),
    )
    assert found == list(range(1, rows + 1))


@pytest.mark.parametrize("ends", [50])
def test_random_ends_of_connections_lose_and_double_nothing_on_mariadb(
    shop: Shop, ends: int
) -> None:
    """By KILL and KILL QUERY, at any moment."""
    rows = 200_000
    _shop_table(shop, rows)
    mine = f"SELECT id FROM information_schema.processlist WHERE db = '{shop.database}' AND user = 'tester'"

    def end(number: int) -> None:
        for (session,) in shop.rows(mine):
            try:
                shop.sql(f"KILL {'QUERY' if number % 3 == 2 else ''} {session}")
            except RuntimeError:
                pass  # it has ended by itself

    assert _with_ends(_limited(shop.reader(), 2_000), ends, end) == list(range(1, rows + 1))


def _with_ends(reader: Reader, ends: int, end: Callable[[int], Any]) -> list[int]:
    """Read slowly while a thread ends the read's connections."""
    done = threading.Event()
    ended = 0
    chance = random.Random(0)

    def keep_ending() -> None:
        nonlocal ended
        while ended < ends and not done.wait(chance.uniform(0.0, 0.1)):
            end(ended)
            ended += 1

    ending = threading.Thread(target=keep_ending)
    ending.start()
    try:
        found = []
        for ids in _each(reader):
            found += ids
            if ended < ends:
                done.wait(chance.uniform(0.0, 0.08))
        while ended < ends and ending.is_alive():
            ending.join(0.1)
    finally:
        done.set()
        ending.join()
    assert ended == ends
    return found


def test_a_postgresql_that_is_away_for_a_while_is_waited_for() -> None:
    server = PostgresServer.create()
    try:
        pg = Pg(server, "public")
        _pg_table(pg)
        reader, found, down = _limited(pg.reader()), [], False
        for ids in _each(reader):
            found += ids
            if not down and len(found) >= 500:
                down = True
                server.stop()
                threading.Timer(2.0, server.start).start()
        assert found == list(range(1, ROWS + 1))
    finally:
        server.close()


def test_a_mariadb_that_is_away_for_a_while_is_waited_for() -> None:
    server = MariadbServer.create()
    try:
        shop = Shop(server, "shop")
        _shop_table(shop)
        reader, found, down = _limited(shop.reader()), [], False
        for ids in _each(reader):
            found += ids
            if not down and len(found) >= 500:
                down = True
                server.stop()
                threading.Timer(2.0, server.start).start()
        assert found == list(range(1, ROWS + 1))
    finally:
        server.close()


def test_a_read_without_a_limit_waits_for_its_server_too() -> None:
    """A task that begins while the server restarts; a job that starts then fails immediately."""
    server = PostgresServer.create()
    try:
        pg = Pg(server, "public")
        _pg_table(pg)
        reader = pg.reader()
        reader.schema()
        (split,) = reader.split(1)
        server.stop()
        with pytest.raises(SourceError, match="no server answers there"):
            pg.reader().schema()
        back = threading.Timer(1.5, server.start)
        back.start()
        try:
            assert sum(batch.num_rows for batch in reader.read(split)) == ROWS
        finally:
            back.join()
    finally:
        server.close()


def test_a_server_that_stays_away_ends_the_read_after_retry_timeout() -> None:
    server = PostgresServer.create()
    try:
        pg = Pg(server, "public")
        _pg_table(pg)
        batches = _each(_limited(pg.reader(retryTimeout=1)))
        next(batches)
        server.stop()
        begun = time.monotonic()
        with pytest.raises(SourceError, match="no server answers there"):
            list(batches)
        assert 0.9 <= time.monotonic() - begun < 6.0
    finally:
        server.close()


@pytest.fixture(scope="module")
def replicated() -> Iterator[tuple[PostgresServer, PostgresServer]]:
    """A primary, and a standby that waits half a second for queries."""
    primary = PostgresServer.create()
    try:
        standby = primary.standby(max_standby_streaming_delay="500ms")
        try:
            yield primary, standby
        finally:
            standby.close()
    finally:
        primary.close()


@pytest.mark.parametrize(
    "jobs", [1, pytest.param(100, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])]
)
def test_a_busy_standby_is_read_whole(
    replicated: tuple[PostgresServer, PostgresServer], jobs: int
) -> None:
    """One statement is ended by the replay; short ones bring each row once, in each of so many jobs."""
    primary, standby = replicated
    on_primary, on_standby = Pg(primary, "public"), Pg(standby, "public")
    on_primary.psql("DROP TABLE IF EXISTS t")
    _pg_table(on_primary, 10_000)
    busy = threading.Event()

    def keep_busy() -> None:
        while not busy.wait(0.2):
            on_primary.psql("UPDATE t SET v = v WHERE id <= 500")
            on_primary.psql("VACUUM t")

    written = primary.psql("SELECT pg_current_wal_lsn()")
    while standby.psql(f"SELECT pg_last_wal_replay_lsn() >= '{written}'") != "t":
        time.sleep(0.05)
    changing = threading.Thread(target=keep_busy)
    changing.start()
    try:
        with pytest.raises(SourceError, match="the standby ended the statement"):
            _ids(
                _limited(on_standby.reader(statementSeconds=0), 200), lambda number: time.sleep(0.1)
            )
        for _ in range(jobs):  # no row twice, none missing
            found = _ids(_limited(on_standby.reader(), 200), lambda number: time.sleep(0.1))
            assert found == list(range(1, 10_001))
    finally:
        busy.set()
        changing.join()


def test_the_settings_of_a_dba_are_kept_and_named(pg: Pg) -> None:
    """statement_timeout makes statements smaller until they fit; if none fits, the error names the setting."""
    _pg_table(pg, 2_000)
    role = f"r_{pg.schema}"
    pg.psql(
        f"CREATE ROLE {role} LOGIN PASSWORD 'x'; GRANT USAGE ON SCHEMA {pg.schema} TO {role}; "
        f"CREATE VIEW slow AS SELECT 1; GRANT SELECT ON ALL TABLES IN SCHEMA {pg.schema} TO {role}; "
        f"ALTER ROLE {role} SET statement_timeout = '700ms'; ALTER ROLE {role} SET lock_timeout = '200ms'; "
        f"ALTER ROLE {role} SET idle_in_transaction_session_timeout = '9s'"
    )
    try:
        login = {"user": role, "password": "x"}
        reader = pg.reader(**login)
        with reader.connect("read") as session:
            names = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")
            assert [session.value(f"SELECT current_setting('{name}')") for name in names] == [
                "700ms",
                "200ms",
                "9s",
            ]
        # Each row takes 2 ms: 1000 at once do not fit, and 100 do.
        slow = pg.reader(**login, where="pg_sleep(0.002) IS NOT NULL", retryTimeout=20)
        slow.schema()
        slow.fetch_size = FetchSize(rows=1_000)
        splits = pg.reader().split(1)
        found = [
            n for split in splits for batch in slow.read(split) for n in batch["id"].to_pylist()
        ]
        assert found == list(range(1, 2_001))
        never = pg.reader(**login, where="pg_sleep(1) IS NOT NULL", retryTimeout=1)
        never._source = slow._source
        never.fetch_size = FetchSize(rows=1)
        never.schema()
        with pytest.raises(
            SourceError, match="the setting statement_timeout, or option 'queryTimeout', ended"
        ):
            list(never.read(splits[0]))
        with (
            _locked(pg),
            pytest.raises(SourceError, match="the setting lock_timeout ended the statement"),
        ):
            list(_limited(pg.reader(**login, retryTimeout=0)).read(splits[0]))
    finally:
        pg.psql(f"DROP OWNED BY {role}; DROP ROLE {role}")


@contextmanager
def _locked(pg: Pg) -> Iterator[None]:
    """The table, by an application, for longer than a read waits."""
    holder = threading.Thread(
        target=lambda: pg.psql(
            "BEGIN; LOCK TABLE t IN ACCESS EXCLUSIVE MODE; SELECT pg_sleep(3); COMMIT"
        )
    )
    holder.start()
    try:
        while (
            pg.psql("SELECT count(*) FROM pg_locks WHERE mode = 'AccessExclusiveLock' AND granted")
            == "0"
        ):
            time.sleep(0.02)
        yield
    finally:
        holder.join()


def test_a_time_limit_of_mariadb_makes_statements_smaller(shop: Shop) -> None:
    _shop_table(shop, 1_000)
    slow = shop.reader(
        where="SLEEP(0.002) = 0",
        sessionInitStatement="SET max_statement_time = 0.5",
        retryTimeout=20,
    )
    slow.schema()
    slow.fetch_size = FetchSize(rows=1_000)
    split = shop.reader().split(1)[0]
    assert [n for batch in slow.read(split) for n in batch["id"].to_pylist()] == list(
        range(1, 1_001)
    )
    never = shop.reader(
        where="SLEEP(2) = 0", sessionInitStatement="SET max_statement_time = 0.3", retryTimeout=1
    )
    never.schema()
    never.fetch_size = FetchSize(rows=1)
    with pytest.raises(
        SourceError, match="max_statement_time, or option 'queryTimeout', ended the statement"
    ):
        list(never.read(split))


def test_rows_far_wider_than_expected_do_not_fill_memory(pg: Pg) -> None:
    """The first 256 rows are looked at; a statement is cut where later ones are wider."""
    pg.psql(
        "CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t SELECT n, "
        "CASE WHEN n > 1000 THEN repeat('x', 1000000) ELSE '' END FROM generate_series(1, 1100) n"
    )
    reader = _limited(pg.reader(), 5_000)
    found: list[int] = []
    for split in reader.split(1):
        for batch in reader.read(split):
            found += batch["id"].to_pylist()
            assert batch.nbytes < 64 << 20
    assert found == list(range(1, 1_101))


def test_what_has_no_key_is_told_with_the_length_of_its_statements(pg: Pg) -> None:
    pg.psql("CREATE TABLE t (id int); INSERT INTO t SELECT generate_series(1, 1000); ANALYZE t")
    reader = pg.reader(partitionColumn="id")
    reader.schema()
    splits = reader.split(1)
    assert reader.remarks(splits) == []
    reader.fetch_size = FetchSize(rows=5)  # 10 rows a second
    (remark,) = reader.remarks(splits)
    assert "is read by one statement of up to 100 s at this limit for each split" in remark
    reader.fetch_size = FetchSize(rows=500)  # a second
    assert reader.remarks(splits) == []


def test_what_has_no_key_has_more_and_smaller_splits(pg: Pg) -> None:
    pg.psql("CREATE TABLE t (id int); INSERT INTO t SELECT generate_series(1, 1000); ANALYZE t")
    reader = pg.reader(partitionColumn="id")
    reader.schema()
    assert len(reader.split(2)) == 2
    reader.fetch_size = FetchSize(rows=50)  # 100 rows a second: 5 s for each
    assert len(reader.split(2)) == 2
    reader.fetch_size = FetchSize(rows=25)
    assert len(reader.split(2)) == 4
    reader.fetch_size = FetchSize(rows=1)
    splits = reader.split(2)
    assert len(splits) == 16
    assert sum(batch.num_rows for split in splits for batch in reader.read(split)) == 1_000


def test_a_snapshot_keeps_one_statement(pg: Pg) -> None:
    _pg_table(pg)
    reader = _limited(pg.reader(snapshot=True))
    with reader.hold():
        splits = reader.split(2)
        assert "holds one transaction open until all rows are read" in reader.remarks(splits)[0]
        found: list[int] = []
        for split in splits:
            for batch in reader.read(split):
                found += batch["id"].to_pylist()
                pg.psql("UPDATE t SET v = 'late' WHERE id = 3000; DELETE FROM t WHERE id = 2900")
        assert sorted(found) == list(range(1, ROWS + 1))
        pg.kill_sessions("spark-channel snapshot%")
        with pytest.raises(
            SourceError, match="the transaction that held option 'snapshot' has ended"
        ):
            list(reader.read(splits[0]))


@pytest.mark.parametrize(
    "place", ["postgresql", "mysql", "sqlite", "duckdb", "firebird"], indirect=True
)
@pytest.mark.parametrize("column", ["id", "at", "day"])
def test_a_feed_is_read_in_short_statements_too(place: Place, column: str) -> None:
    """Its base by the key, and new rows by an index of the cursor, of which many rows have one value."""
    columns = {"id": "int NOT NULL", "at": "time NOT NULL", "day": "day NOT NULL"}
    rows = [
        (n, f"2024-01-01 00:00:00.{n:0{place.ticks}d}", f"2024-01-{1 + n // 10:02d}")
        for n in range(1, 101)
    ]
    place.create("t", columns, rows, "id")
    names = {"at": "by_at", "day": "by_day"}
    for name, index in names.items():
        place.run(
            f"CREATE INDEX {index} ON {place.quoted('t')} ({place.quoted(name)}, {place.quoted('id')})"
        )
    reader: Any = place.reader()
    feed = reader.feed(FeedOptions(cursor_column=column, late_seconds=0))
    (start,), (now,) = feed.earliest(), feed.now()
    reader.fetch_size = FetchSize(rows=7)
    base, changes = feed.base([now], 3), feed.changes(start, now)
    if place.kind in ("postgresql", "mysql"):
        found = [keyset_of(reader._source, split) for split in [*base, *changes]]
        assert all(found)
        assert {each.key[0].name for each in found[-len(changes) :] if each} == {column}
    for splits in (base, changes):
        ids = [n for split in splits for batch in feed.read(split) for n in batch["id"].to_pylist()]
        assert sorted(ids) == list(range(1, 101))
