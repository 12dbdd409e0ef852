"""Existing rows in chunks beside the changes, on a real server."""

import random
import threading
from collections.abc import Iterator
from typing import Any, cast

import pytest

from spark_channel.connectors.base.feed import ChangeFeed, FeedLimit
from spark_channel.connectors.postgresql.log.snapshot import Snapshot
from spark_channel.connectors.postgresql.log.watermarks import PgWatermarks
from spark_channel.connectors.sql.feed import base_table
from spark_channel.errors import SchemaError, SourceError
from tests.connectors.postgresql.log.test_feed import Table
from tests.servers.postgres import PostgresServer

NO_LIMIT = FeedLimit()


@pytest.mark.parametrize(
    ("text", "seen", "unseen"),
    [
        ("100:110:103,105", [3, 99, 100, 104, 109], [103, 105, 110, 111, 5_000]),
        ("4294967290:4294967300:4294967297", [4294967289, 4294967296 - 1, 0, 3], [1, 4, 100]),
        ("8589934590:8589934590:", [4294967293, 4294967295 - 2], [4294967294, 4294967295, 0, 7]),
    ],
)
def test_a_snapshot_sees_what_had_ended(text: str, seen: list[int], unseen: list[int]) -> None:
    """The log has the last 32 bits of a number, with a sign."""
    snapshot = Snapshot.parse(text)
    assert all(snapshot.sees(each) and snapshot.sees(each - (1 << 32)) for each in seen)
    assert not any(snapshot.sees(each) or snapshot.sees(each - (1 << 32)) for each in unseen)


@pytest.fixture
def table(postgres_server: PostgresServer) -> Iterator[Table]:
    made = Table(postgres_server, "id int PRIMARY KEY, item text, n numeric(8,2)")
    yield made
    made.drop()


def begin(feed: ChangeFeed) -> Any:
    made = feed.with_base(feed.now())
    assert made is not None
    return made[0]


def rows(feed: ChangeFeed, after: Any, upto: Any) -> list[tuple[Any, ...]]:
    return [
        (row["_op"], row["id"], row["item"])
        for split in feed.changes(after, upto)
        for batch in feed.read(split)
        for row in batch.to_pylist()
    ]


def played(found: list[tuple[Any, ...]]) -> dict[int, str]:
    state: dict[int, str] = {}
    for what, key, item in found:
        if what == "truncate":
            state.clear()
        elif what == "delete":
            state.pop(key, None)
        else:
            state[key] = item
    return state


def state_of(table: Table) -> dict[int, str]:
    lines = table.server.psql(f"SELECT id, item FROM {table.name}").splitlines()
    return {int(line.split("|")[0]): line.split("|")[1] for line in lines}


def test_the_base_comes_in_chunks_beside_the_changes(table: Table) -> None:
    table.run("INSERT INTO $t SELECT i, 'old', i FROM generate_series(1, 100) i")
    feed = table.feed()
    token = begin(feed)
    table.run(
        "UPDATE $t SET item = 'new' WHERE id <= 10; DELETE FROM $t WHERE id = 50; INSERT INTO $t VALUES (0, 'x')"
    )
    first = feed.latest(token, FeedLimit(rows=40))
    found = rows(feed, token, first)
    assert [row for row in found if row[0] != "read"] == [
        *(("update", n, "new") for n in range(1, 11)),
        ("delete", 50, None),
        ("insert", 0, "x"),
    ]
    assert [row[1] for row in found if row[0] == "read"] == list(range(11, 28)), (
        "28 rows, of which 11 have changed"
    )
    assert rows(feed, token, first) == found, "a range can be read again"
    out, at = list(found), first
    while "base" in at:
        end = feed.latest(at, FeedLimit(rows=40))
        out += rows(feed, at, end)
        feed.settle(end)
        at = end
    assert feed.latest(at, NO_LIMIT) == at
    assert played(out) == state_of(table)
    assert len(out) == 12 + 89


def test_lag_counts_changes_and_chunks(table: Table) -> None:
    table.run("INSERT INTO $t SELECT i, 'old', i FROM generate_series(1, 100) i; ANALYZE $t")
    feed = table.feed()
    token = begin(feed)
    lag = feed.lag(token)
    assert (lag.rows, lag.seconds, lag.base_read, lag.base_chunks, lag.chunks) == (
        100,
        0.0,
        0,
        0,
        None,
    )
    at = token
    for number in (1, 2):
        at = feed.latest(at, FeedLimit(rows=20))
        lag = feed.lag(at)
        assert (lag.base_read, lag.base_chunks, lag.chunks) == (20 * number, number, 5)
    table.run("UPDATE $t SET item = 'new' WHERE id <= 3")
    lag = feed.lag(at)
    assert (lag.rows, lag.base_held) == (63, False)
    assert lag.seconds is not None
    assert 0 < lag.seconds < 60
    assert lag.kept is not None
    assert table.feed(max_slot_lag=1).lag(at).base_held


def test_a_range_that_is_read_again_drops_what_changed_meanwhile(table: Table) -> None:
    table.run("INSERT INTO $t SELECT i, 'old', i FROM generate_series(1, 20) i")
    feed = table.feed()
    token = begin(feed)
    end = feed.latest(token, NO_LIMIT)
    assert len(rows(feed, token, end)) == 20
    table.run(
        "UPDATE $t SET item = 'new' WHERE id = 5; DELETE FROM $t WHERE id = 6; INSERT INTO $t VALUES (0, 'x')"
    )
    again = rows(feed, token, end)
    assert [row[1] for row in again] == [n for n in range(1, 21) if n not in (5, 6)]
    last = feed.latest(end, NO_LIMIT)
    assert rows(feed, end, last) == [("update", 5, "new"), ("delete", 6, None), ("insert", 0, "x")]


def test_a_truncate_empties_a_chunk(table: Table) -> None:
    table.run("INSERT INTO $t SELECT i, 'old', i FROM generate_series(1, 20) i")
    feed = table.feed()
    token = begin(feed)
    end = feed.latest(token, NO_LIMIT)
    table.run("TRUNCATE $t; INSERT INTO $t VALUES (3, 'new')")
    assert rows(feed, token, end) == []
    assert rows(feed, end, feed.latest(end, NO_LIMIT)) == [
        ("truncate", None, None),
        ("insert", 3, "new"),
    ]


def test_the_slot_is_confirmed_while_the_base_is_read(table: Table) -> None:
    table.run("INSERT INTO $t SELECT i, 'old', i FROM generate_series(1, 100) i")
    feed = table.feed()
    at = begin(feed)
    confirmed = (
        f"SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = '{table.name}'"
    )
    seen = set()
    for _ in range(5):
        end = feed.latest(at, FeedLimit(rows=10))
        rows(feed, at, end)
        feed.settle(end)
        seen.add(table.server.psql(confirmed))
        at = end
        assert "base" in at
    assert len(seen) >= 3


def test_a_slot_that_keeps_too_much_pauses_the_base_and_not_the_log(table: Table) -> None:
    table.run("INSERT INTO $t SELECT i, 'old', i FROM generate_series(1, 100) i")
    feed = table.feed(max_slot_lag=1)
    token = begin(feed)
    table.run("UPDATE $t SET item = 'new' WHERE id = 1")
    end = feed.latest(token, NO_LIMIT)
    assert rows(feed, token, end) == [("update", 1, "new")]
    again = feed.latest(end, NO_LIMIT)
    assert again != end, "a reader that is to end when all is read does not end"
    assert rows(feed, end, again) == []
    assert len(rows(feed, again, table.feed().latest(again, NO_LIMIT))) == 100


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ("id int, item text", "no primary key"),
        ("id float8 PRIMARY KEY, item text", "no primary key|differ as texts"),
        ("id timestamptz PRIMARY KEY, item text", "differ as texts"),
        ("id numeric PRIMARY KEY, item text", "differ as texts"),
    ],
)
def test_what_cannot_be_read_so_is_read_first(
    postgres_server: PostgresServer, columns: str, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    table = Table(postgres_server, columns)
    try:
        feed = table.feed()
        assert feed.with_base(feed.now()) is None
        assert caplog.records
        (warning,) = [each.getMessage() for each in caplog.records]
        assert any(each in warning for each in why.split("|"))
        assert "keep all WAL" in warning
    finally:
        table.drop()


@pytest.mark.parametrize(
    "columns",
    [
        "id int, part text, item text, PRIMARY KEY (part, id)",
        "id numeric(6,2) PRIMARY KEY, item text",
        "id uuid PRIMARY KEY, item text",
        "id timestamp PRIMARY KEY, item text",
    ],
)
def test_keys_of_other_types(postgres_server: PostgresServer, columns: str) -> None:
    table = Table(postgres_server, columns)
    value = {
        "part": "i % 7, 'p''' || i, 'old'",
        "numeric": "i / 4.0, 'old'",
        "uuid": "md5(i::text)::uuid, 'old'",
        "timestamp": "'2026-01-01'::timestamp + i * interval '1.000001 s', 'old'",
    }
    kind = next(each for each in value if each in columns)
    try:
        table.run(f"INSERT INTO $t SELECT {value[kind]} FROM generate_series(1, 50) i")
        feed = table.feed()
        token = begin(feed)
        end = feed.latest(token, NO_LIMIT)
        table.run("UPDATE $t SET item = 'new' WHERE ctid IN (SELECT ctid FROM $t LIMIT 20)")
        assert [row[2] for row in rows(feed, token, end)] == ["old"] * 30
        assert [row[2] for row in rows(feed, end, feed.latest(end, NO_LIMIT))] == ["new"] * 20
    finally:
        table.drop()


def test_a_generated_column_is_refused_by_name(postgres_server: PostgresServer) -> None:
    table = Table(
        postgres_server,
        "id int PRIMARY KEY, item text, twice int GENERATED ALWAYS AS (id * 2) STORED",
    )
    try:
        with pytest.raises(
            SchemaError, match=r"column 'twice' of .* is generated.*option 'columns'"
        ):
            table.feed()
        feed = table.feed(reader={"columns": "id, item"})
        token = begin(feed)
        table.run("INSERT INTO $t (id, item) VALUES (1, 'x')")
        assert rows(feed, token, feed.latest(token, NO_LIMIT)) == [("insert", 1, "x")]
    finally:
        table.drop()


def test_columns_that_change_are_ignored_while_the_base_is_read(table: Table) -> None:
    table.run("INSERT INTO $t SELECT i, 'old', i FROM generate_series(1, 60) i")
    feed = table.feed(ignores=True)
    at = begin(feed)
    first = feed.latest(at, FeedLimit(rows=20))
    out = rows(feed, at, first)
    table.run(
        "ALTER TABLE $t ADD note text, DROP n; UPDATE $t SET note = 'x' WHERE id IN (5, 30, 55)"
    )
    out += rows(feed, first, middle := feed.latest(first, FeedLimit(rows=20)))
    table.run("ALTER TABLE $t DROP item")
    out += rows(feed, middle, feed.latest(middle, NO_LIMIT))
    assert sorted(played(out)) == list(range(1, 61))
    assert [item for key, item in sorted(played(out).items()) if key <= 20] == ["old"] * 20
    assert played(out)[60] is None, "read behind the change"


ORDERED = 'id text COLLATE "C" PRIMARY KEY, item text NOT NULL, UNIQUE (item, id)'
OTHER_ORDERS = {
    "another key": "DROP CONSTRAINT $t_pkey, ADD PRIMARY KEY (item, id)",
    "no key but another": "DROP CONSTRAINT $t_pkey",
    "another collation": 'ALTER id TYPE text COLLATE "und-x-icu"',
}


@pytest.fixture
def ordered(postgres_server: PostgresServer) -> Iterator[Table]:
    made = Table(postgres_server, ORDERED)
    made.run(
        "INSERT INTO $t SELECT CASE WHEN i % 2 = 0 THEN 'B' ELSE 'a' END || i, 'x' FROM generate_series(1, 50) i"
    )
    yield made
    made.drop()


@pytest.mark.parametrize("change", OTHER_ORDERS.values(), ids=OTHER_ORDERS)
def test_a_key_whose_order_changes_while_the_base_is_read(ordered: Table, change: str) -> None:
    """After the change, other rows follow a key."""
    feed = ordered.feed()
    token = begin(feed)
    first = feed.latest(token, FeedLimit(rows=20))
    ordered.run(f"ALTER TABLE $t {change}")
    for read in (lambda: rows(feed, token, first), lambda: feed.latest(first, NO_LIMIT)):
        with pytest.raises(
            SourceError, match=r"was by \(id text pg_catalog.C\) when the reading.*Reset the tunnel"
        ):
            read()


def test_a_key_whose_order_changes_between_two_chunks_of_a_range(
    ordered: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PgWatermarks, "chunk_rows", lambda _: 10)
    feed = ordered.feed()
    token = begin(feed)
    (split,) = feed.changes(token, feed.latest(token, NO_LIMIT))
    found = feed.read(split)
    next(found)
    ordered.run(f"ALTER TABLE $t {OTHER_ORDERS['another collation']}")
    with pytest.raises(SourceError, match="which of them are left to read is not known"):
        list(found)


@pytest.mark.parametrize(
    ("change", "read"),
    [("DROP item", 60), ("ADD note text", 60), ("ALTER n TYPE numeric(9,2)", None)],
)
def test_a_table_altered_between_two_chunks_of_a_range_is_looked_at_again(
    table: Table, monkeypatch: pytest.MonkeyPatch, change: str, read: int | None
) -> None:
    """What the rule says of the new columns happens: they are ignored, or refused by name."""
    monkeypatch.setattr(PgWatermarks, "chunk_rows", lambda _: 10)
    table.run("INSERT INTO $t SELECT i, 'old', i FROM generate_series(1, 60) i")
    feed = table.feed(ignores=True)
    token = begin(feed)
    (split,) = feed.changes(token, feed.latest(token, NO_LIMIT))
    found = feed.read(split)
    first = next(found)
    table.run(f"ALTER TABLE $t {change}")
    if read is None:
        with pytest.raises(SchemaError, match=r"column 'n' of table .* is decimal128"):
            list(found)
    else:
        assert first.num_rows + sum(batch.num_rows for batch in found) == read


@pytest.mark.parametrize("statement", ["count_of", "key_of"])
def test_a_table_altered_before_its_rows_are_counted_is_looked_at_again(
    table: Table, monkeypatch: pytest.MonkeyPatch, statement: str
) -> None:
    table.run("INSERT INTO $t SELECT i, 'old', i FROM generate_series(1, 60) i")
    feed = table.feed(ignores=True)
    changes = ["ALTER TABLE $t DROP n", "ALTER TABLE $t DROP item"]
    made = getattr(base_table, statement)

    def altered(*given: Any, **more: Any) -> str:
        if changes:
            table.run(changes.pop())
        return cast(str, made(*given, **more))

    monkeypatch.setattr(base_table, statement, altered)
    token = begin(feed)
    end = feed.latest(token, FeedLimit(rows=20))
    assert [key for _, key, _ in rows(feed, token, end)] == list(range(1, 21))
    assert not changes


def test_a_key_that_widens_while_the_base_is_read(table: Table) -> None:
    table.run("INSERT INTO $t SELECT i, 'old', i FROM generate_series(1, 60) i")
    feed = table.feed()
    token = begin(feed)
    first = feed.latest(token, FeedLimit(rows=20))
    found = rows(feed, token, first)
    table.run("ALTER TABLE $t ALTER id TYPE bigint")
    feed = table.feed(evolves=True)
    found += rows(feed, first, feed.latest(first, NO_LIMIT))
    assert sorted(row[1] for row in found) == list(range(1, 61))


@pytest.mark.parametrize("base", [{}, {"after": None}, "x", {"until": []}])
def test_a_damaged_base_is_told(table: Table, base: Any) -> None:
    feed = table.feed()
    (token,) = feed.now()
    with pytest.raises(SourceError, match="not a position in a PostgreSQL log"):
        feed.latest({**token, "base": base}, NO_LIMIT)


def test_a_commit_that_waits_for_its_standby_is_not_undone_by_a_chunk() -> None:
    """It is in the log, and no statement sees it yet: the row that a chunk reads is older than the log."""
    server = PostgresServer.create(synchronous_standby_names="nowhere", synchronous_commit="local")
    try:
        table = Table(server)
        table.run("INSERT INTO $t SELECT i, 'old', i FROM generate_series(1, 40) i")
        feed = table.feed()
        at = begin(feed)
        waiting = threading.Thread(
            target=lambda: table.run(
                "SET synchronous_commit = on; UPDATE $t SET item = 'new' WHERE id IN (5, 35)"
            )
        )
        waiting.start()
        waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
        for _ in range(100):
            if server.psql(waits) == "1":
                break
        assert server.psql(waits) == "1"
        out: list[tuple[Any, ...]] = []
        while "base" in at:
            end = feed.latest(at, FeedLimit(rows=15))
            out += rows(feed, at, end)
            feed.settle(end)
            at = end
        server.psql(
            "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
        )
        waiting.join()
        assert [row for row in out if row[0] != "read"] == [
            ("update", 5, "new"),
            ("update", 35, "new"),
        ]
        assert sorted(row[1] for row in out if row[0] == "read") == [
            n for n in range(1, 41) if n not in (5, 35)
        ]
        assert played(out) == state_of(table)
    finally:
        server.close()


class Writers:
    """Sessions that insert, update, delete, change keys and truncate until `stop` is set."""

    def __init__(self, table: Table, count: int, changes: int, keys: int) -> None:
        self.table, self.left, self.keys = table, changes, keys
        self.truncates = 40 / changes  # about one: after it there is little left to read
        self.lock = threading.Lock()
        self.over = threading.Event()
        self.threads = [
            threading.Thread(target=self._run, args=(number,)) for number in range(count)
        ]
        self.error: BaseException | None = None

    def __enter__(self) -> "Writers":
        for each in self.threads:
            each.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        for each in self.threads:
            each.join()
        if self.error is not None:
            raise self.error

    @property
    def busy(self) -> bool:
        return any(each.is_alive() for each in self.threads)

    def _run(self, number: int) -> None:
        import psycopg

        chance = random.Random(number)
        server = self.table.server
        try:
            with psycopg.connect(
                host=str(server.directory),
                port=server.port,
                user=server.user,
                dbname="postgres",
                autocommit=True,
            ) as session:
                while self._take(10):
                    with session.transaction():
                        for key in sorted(chance.sample(range(self.keys), 5)):
                            self._change(session, chance, key, number)
                    if number == 0 and chance.random() < self.truncates:
                        session.execute(f"TRUNCATE {self.table.name}")
        except psycopg.errors.DeadlockDetected:
            self._run(number + 100)
        except BaseException as error:
            self.error = error

    def _take(self, count: int) -> bool:
        with self.lock:
            self.left -= count
            return self.left > 0 and not self.over.is_set()

    def _change(self, session: Any, chance: random.Random, key: int, number: int) -> None:
        name, value = self.table.name, f"{number}-{chance.random()}"
        what = chance.random()
        if what < 0.75:
            session.execute(
                f"INSERT INTO {name} VALUES (%s, %s) ON CONFLICT (id) DO UPDATE SET item = EXCLUDED.item",
                (key, value),
            )
        else:
            session.execute(f"DELETE FROM {name} WHERE id = %s", (key,))


def follow(table: Table, changes: int, seed: int, base: int = 2_000) -> int:
    """Copy the table while it changes, with clients that die; returns how many ranges it took."""
    chance = random.Random(seed)
    table.run(f"INSERT INTO $t SELECT i, 'old', i FROM generate_series(0, {base - 1}) i")
    feed = table.feed()
    start = feed.now()
    table.run(f"SELECT pg_copy_logical_replication_slot('{table.name}', '{table.name}_all', false)")
    made = feed.with_base(start)
    assert made is not None
    at, out, ranges = made[0], list[tuple[Any, ...]](), 0
    with Writers(table, 4, changes, base) as writers:
        while True:
            done = not writers.busy
            end = feed.latest(at, FeedLimit(rows=chance.randrange(50, 400)))
            if done and end == at:
                break
            if chance.random() < 0.3:  # a client that dies in a range, or before its checkpoint
                for split in feed.changes(at, end):
                    for _ in feed.read(split):
                        break
                feed = table.feed()
            out += rows(feed, at, end)
            at, ranges = end, ranges + 1
            if chance.random() < 0.7:
                feed.settle(end)
    whole = table.feed(slot=f"{table.name}_all")
    events = rows(whole, start[0], whole.latest(start[0], NO_LIMIT))
    assert [row for row in out if row[0] != "read"] == events, "each event once, in commit order"
    reads = [row[1] for row in out if row[0] == "read"]
    assert len(reads) == len(set(reads)), "no row of the base twice"
    assert played(out) == state_of(table)
    return ranges


@pytest.mark.timeout(240)
def test_a_copy_beside_writers_and_clients_that_die_is_equal(table: Table) -> None:
    assert follow(table, 3_000, 1) > 5


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(5))
def test_copies_beside_many_changes_are_equal(table: Table, seed: int) -> None:
    assert follow(table, 40_000, seed, 20_000) > 20
