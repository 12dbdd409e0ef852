"""Logical replication as a change feed, held against what PostgreSQL's own tools say."""

import itertools
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from spark_channel.connectors import load_reader
from spark_channel.connectors.base.feed import ChangeFeed, FeedLimit, FeedOptions
from spark_channel.connectors.base.session_pool import keeping_sessions
from spark_channel.connectors.postgresql.log import feed as postgresql_feed
from spark_channel.connectors.postgresql.log import slot as replication
from spark_channel.connectors.postgresql.log.feed import ReplicationFeed
from spark_channel.connectors.postgresql.session import PgReadSession
from spark_channel.errors import ChannelError, OptionError, SchemaError, SourceError
from spark_channel.testing import VirtualClock
from tests.servers.postgres import PostgresServer, programs

NO_LIMIT = FeedLimit()
_numbers = itertools.count()


class Table:
    """A table with its own publication and slot."""

    def __init__(
        self, server: PostgresServer, columns: str = "id int PRIMARY KEY, item text, n numeric(8,2)"
    ):
        self.server = server
        self.name = f"followed_{next(_numbers)}"
        server.psql(
            f"CREATE TABLE {self.name} ({columns}); CREATE PUBLICATION {self.name} FOR TABLE {self.name}"
        )

    def run(self, statement: str) -> None:
        self.server.psql(statement.replace("$t", self.name))

    def feed(self, **options: Any) -> ChangeFeed:
        given = {**self.server.login, "dbtable": self.name, **options.pop("reader", {})}
        reader, _ = load_reader(given)
        return reader.feed(FeedOptions(**{"slot": self.name, "publication": self.name, **options}))

    def drop(self) -> None:
        self.server.psql(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots "
            f"WHERE slot_name LIKE '{self.name}%'; "
            f"DROP PUBLICATION IF EXISTS {self.name}; DROP TABLE {self.name}"
        )


@pytest.fixture
def table(postgres_server: PostgresServer) -> Iterator[Table]:
    made = Table(postgres_server)
    yield made
    made.drop()


def rows(feed: ChangeFeed, after: Any, upto: Any) -> list[dict[str, Any]]:
    return [
        row
        for split in feed.changes(after, upto)
        for batch in feed.read(split)
        for row in batch.to_pylist()
    ]


def brief(found: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [(row["_op"], row["id"], row["item"]) for row in found]


def test_every_change_comes_in_commit_order(table: Table) -> None:
    feed = table.feed()
    (start,) = feed.now()
    assert feed.latest(start, NO_LIMIT) == start
    table.run(
        "INSERT INTO $t VALUES (1, 'a', 1.25), (2, NULL, NULL); UPDATE $t SET item = 'b' WHERE id = 1; "
        "UPDATE $t SET id = 3 WHERE id = 1; DELETE FROM $t WHERE id = 2; TRUNCATE $t; "
        "BEGIN; INSERT INTO $t VALUES (9, 'never', 0); ROLLBACK"
    )
    end = feed.latest(start, NO_LIMIT)
    found = rows(feed, start, end)
    assert brief(found) == [
        ("insert", 1, "a"),
        ("insert", 2, None),
        ("update", 1, "b"),
        ("delete", 1, None),
        ("update", 3, "b"),
        ("delete", 2, None),
        ("truncate", None, None),
    ]
    assert str(found[0]["n"]) == "1.25"
    assert [row["_lsn"] for row in found] == sorted(row["_lsn"] for row in found)
    assert found[0]["_commit_ts"] is not None
    assert rows(feed, start, end) == found, "a range can be read again"
    feed.settle(end)
    assert feed.latest(end, NO_LIMIT) == end
    with pytest.raises(SourceError, match="another reader has advanced it"):
        feed.latest(start, NO_LIMIT)


def test_a_limit_cuts_between_transactions(table: Table) -> None:
    feed = table.feed()
    (token,) = feed.now()
    for number in range(6):
        table.run(f"INSERT INTO $t VALUES ({number}, 'x', 0), ({number + 100}, 'y', 0)")
    seen = []
    while (end := feed.latest(token, FeedLimit(rows=5))) != token:
        seen.append(len(rows(feed, token, end)))
        feed.settle(end)
        token = end
    assert sum(seen) == 12
    assert len(seen) >= 3
    assert all(count % 2 == 0 for count in seen)


@pytest.mark.parametrize("limit", [FeedLimit(rows=5), NO_LIMIT])
def test_a_slot_that_lags_behind_the_checkpoint_hides_nothing(
    table: Table, limit: FeedLimit
) -> None:
    """As a client leaves it that was killed after its checkpoint, before the slot was advanced."""
    feed = table.feed()
    (token,) = feed.now()
    for number in range(20):
        table.run(f"INSERT INTO $t VALUES ({number}, 'x', 0)")
    token = feed.latest(token, NO_LIMIT)
    assert feed.latest(token, limit) == token
    table.run("INSERT INTO $t VALUES (100, 'y', 0)")
    end = feed.latest(token, limit)
    assert brief(rows(feed, token, end)) == [("insert", 100, "y")]


def test_base_and_changes_hold_every_row(table: Table) -> None:
    table.run("INSERT INTO $t SELECT i, 'old', i FROM generate_series(1, 100) i")
    feed = table.feed()
    (token,) = feed.now()
    table.run("UPDATE $t SET item = 'new' WHERE id <= 10")
    base = [row for s in feed.base([token], 2) for b in feed.read(s) for row in b.to_pylist()]
    assert {row["_op"] for row in base} == {"insert"}
    state = {row["id"]: row["item"] for row in base}
    state |= {row["id"]: row["item"] for row in rows(feed, token, feed.latest(token, NO_LIMIT))}
    assert state == {n: "new" if n <= 10 else "old" for n in range(1, 101)}


def test_types_come_as_a_read_brings_them(postgres_server: PostgresServer) -> None:
    table = Table(
        postgres_server,
        "id bigint PRIMARY KEY, b bool, r real, d double precision, t text, x bytea, day date, tm time, "
        "ts timestamp, tz timestamptz, j jsonb, u uuid, num numeric(20,4), c char(3), v varchar(9)",
    )
    try:
        feed = table.feed()
        (token,) = feed.now()
        table.run(
            "INSERT INTO $t VALUES (1, true, 1.5, 0.1, E'\\u00e4\\n''', '\\x00ff', '2026-02-03', '12:34:56.789', "
            "'2026-02-03 04:05:06.000007', '2026-02-03 04:05:06.5+02', '{\"a\": 1}', "
            "'00000000-0000-0000-0000-000000000001', 12345.6789, 'ab', 'v'), "
            "(2, false, 'NaN', 'Infinity', '', '', '0001-01-01', '00:00', '1969-12-31 23:59:59', "
            "'9999-12-31 00:00:00+00', 'null', NULL, -0.0001, '', NULL); INSERT INTO $t (id) VALUES (3)"
        )
        changed = rows(feed, token, feed.latest(token, NO_LIMIT))
        reader, _ = load_reader({**table.server.login, "dbtable": table.name})
        reader.schema()
        plain = [row for s in reader.split(1) for b in reader.read(s) for row in b.to_pylist()]
        names = list(plain[0])
        assert repr([[row[name] for name in names] for row in changed]) == repr(
            [[row[name] for name in names] for row in sorted(plain, key=lambda row: row["id"])]
        )
    finally:
        table.drop()


def test_the_changes_are_those_of_pg_recvlogical(table: Table) -> None:
    """PostgreSQL's own client, on a copy of the slot, gives the same changes of the same transactions."""
    feed = table.feed()
    (token,) = feed.now()
    table.run(
        f"SELECT pg_copy_logical_replication_slot('{table.name}', '{table.name}_copy', false, 'test_decoding')"
    )
    for number in range(50):
        table.run(
            f"INSERT INTO $t VALUES ({number}, 'item {number}', {number}); "
            f"UPDATE $t SET item = 'other' WHERE id = {number // 2}; DELETE FROM $t WHERE id = {number - 7}"
        )
    end = feed.latest(token, NO_LIMIT)
    mine = [
        f"{row['_op'].upper()}:{row['id']}:{row['item'] if row['_op'] != 'delete' else ''}"
        for row in rows(feed, token, end)
    ]
    done = subprocess.run(
        [
            str(programs() / "pg_recvlogical"),
            "-h",
            str(table.server.directory),
            "-p",
            str(table.server.port),
            "-U",
            table.server.user,
            "-d",
            "postgres",
            "--slot",
            f"{table.name}_copy",
            "--start",
            "--no-loop",
            f"--endpos={end['lsn']}",
            "-f",
            "-",
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    import re

    theirs = []
    for line in done.stdout.splitlines():
        found = re.match(
            r"table public\.\w+: (\w+): id\[integer\]:(\d+)(?: item\[text\]:'(.*?)')?", line
        )
        if found:
            theirs.append(f"{found[1]}:{found[2]}:{found[3] or ''}")
    assert mine == theirs
    assert len(mine) > 100


def test_a_value_that_is_not_in_the_log_is_asked_for(table: Table) -> None:
    table.run("ALTER TABLE $t ALTER item SET STORAGE EXTERNAL")
    feed = table.feed()
    (token,) = feed.now()
    table.run("INSERT INTO $t VALUES (1, repeat('x', 10000), 1); UPDATE $t SET n = 2")
    with pytest.raises(SourceError, match=r"left column 'item' as it was.*REPLICA IDENTITY FULL"):
        rows(feed, token, feed.latest(token, NO_LIMIT))
    without = table.feed(reader={"columns": "id, n"})
    found = rows(without, token, without.latest(token, NO_LIMIT))
    assert [(row["_op"], row["id"], int(row["n"])) for row in found] == [
        ("insert", 1, 1),
        ("update", 1, 2),
    ]


def test_with_replica_identity_full_such_a_value_is_there(table: Table) -> None:
    table.run(
        "ALTER TABLE $t ALTER item SET STORAGE EXTERNAL; ALTER TABLE $t REPLICA IDENTITY FULL"
    )
    feed = table.feed()
    (token,) = feed.now()
    table.run(
        "INSERT INTO $t VALUES (1, repeat('x', 10000), 1); UPDATE $t SET n = 2; UPDATE $t SET id = 5"
    )
    found = rows(feed, token, feed.latest(token, NO_LIMIT))
    assert [(row["_op"], row["id"]) for row in found] == [
        ("insert", 1),
        ("update", 1),
        ("delete", 1),
        ("update", 5),
    ]
    assert all(row["item"] == "x" * 10000 for row in found)


def test_a_dropped_slot_is_told(table: Table) -> None:
    feed = table.feed()
    (token,) = feed.now()
    feed.close()
    with pytest.raises(
        SourceError, match=r"does not exist in .* changes since it was dropped are lost"
    ):
        feed.latest(token, NO_LIMIT)


def test_a_publication_without_the_table_or_none_is_told(table: Table) -> None:
    table.run("ALTER PUBLICATION $t DROP TABLE $t")
    with pytest.raises(SourceError, match=r"does not hold table .*ADD TABLE"):
        table.feed()
    with pytest.raises(SourceError, match="publication 'nope' does not exist"):
        table.feed(publication="nope")
    with pytest.raises(OptionError, match="'slot' needs 'publication'"):
        table.feed(publication=None)


@pytest.mark.parametrize(
    ("change", "what", "restarted"),
    [
        ("ALTER PUBLICATION $t DROP TABLE $t", "no longer holds", "does not hold table"),
        ("DROP PUBLICATION $t", "no longer holds", r"publication \S+ does not exist"),
        ("DROP PUBLICATION $t; CREATE PUBLICATION $t", "no longer holds", "does not hold table"),
        (
            "ALTER PUBLICATION $t DROP TABLE $t; UPDATE $t SET item = 'lost'; ALTER PUBLICATION $t ADD TABLE $t",
            "the entry of",
            "the entry of",
        ),
        (
            "DROP PUBLICATION $t; CREATE PUBLICATION $t FOR ALL TABLES",
            "the entry of",
            "the entry of",
        ),
    ],
)
def test_a_table_that_left_the_publication_is_told(
    table: Table, change: str, what: str, restarted: str
) -> None:
    """Also when it came back between two looks, or while no stream ran."""
    feed = table.feed()
    (start,) = feed.now()
    table.run("INSERT INTO $t VALUES (1, 'a', 1)")
    end = feed.latest(start, NO_LIMIT)
    table.run(change)
    assert brief(rows(feed, start, end)) == [("insert", 1, "a")], "it was there at that position"
    with pytest.raises(
        SourceError, match=rf"{what} table 'public.{table.name}'.*[Rr]eset the tunnel"
    ):
        feed.latest(end, NO_LIMIT)
    with pytest.raises(SourceError, match=restarted):
        table.feed().latest(end, NO_LIMIT)


def test_a_table_that_stays_in_the_publication_is_followed_whatever_else_changes_there(
    table: Table,
) -> None:
    feed = table.feed()
    (at,) = feed.now()
    at = {"lsn": at["lsn"]}  # as `startingOffsets` gives it
    seen = []
    for number, change in enumerate(
        (
            "CREATE TABLE $t_other (id int); ALTER PUBLICATION $t ADD TABLE $t_other",
            "ALTER PUBLICATION $t SET TABLE $t",
            "ALTER PUBLICATION $t ADD TABLES IN SCHEMA public",
            "ALTER PUBLICATION $t DROP TABLE $t",
            "DROP TABLE $t_other",
        )
    ):
        table.run(f"{change}; INSERT INTO $t VALUES ({number}, 'x', 0)")
        at = feed.latest(at, NO_LIMIT)
        seen.append([each[0] for each in at["entries"]])
    assert seen == [["r"], ["r"], ["r", "s"], ["s"], ["s"]]
    table.run(
        "ALTER PUBLICATION $t DROP TABLES IN SCHEMA public; ALTER PUBLICATION $t ADD TABLE $t"
    )
    with pytest.raises(SourceError, match="the entry of"):
        feed.latest(at, NO_LIMIT)


def test_the_publication_is_looked_at_by_one_statement(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server sent its version when the session was set up."""
    feed = table.feed()
    (at,) = feed.now()
    asked = []
    original = PgReadSession.rows

    def rows_of(self: PgReadSession, sql: str) -> list[tuple[Any, ...]]:
        asked.append(sql)
        return original(self, sql)

    monkeypatch.setattr(PgReadSession, "rows", rows_of)
    feed.latest(at, NO_LIMIT)
    assert len([sql for sql in asked if "pg_publication" in sql]) == 1
    assert not [sql for sql in asked if "server_version_num" in sql.lower()]


def test_a_feed_leaves_few_idle_sessions_in_a_run_that_keeps_them(table: Table) -> None:
    """A run that follows tables for days asks its feed each second."""
    feed = table.feed()
    (at,) = feed.now()
    with keeping_sessions():
        for number in range(4):
            table.run(f"INSERT INTO $t VALUES ({number}, 'a', 1)")
            before, at = at, feed.latest(at, NO_LIMIT)
            assert len(rows(feed, before, at)) == 1
            feed.settle(at)
        idle = table.server.psql(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'spark-channel%'"
        )
    assert int(idle) <= 2


def test_a_partition_is_in_a_publication_by_a_table_above_it(
    postgres_server: PostgresServer,
) -> None:
    table = Table(postgres_server, "id int PRIMARY KEY, item text) PARTITION BY RANGE (id")
    try:
        table.run("CREATE TABLE $t_a PARTITION OF $t DEFAULT")
        feed = table.feed(reader={"dbtable": f"{table.name}_a"})
        (at,) = feed.now()
        table.run("INSERT INTO $t VALUES (1, 'a')")
        at = feed.latest(at, NO_LIMIT)
        table.run("ALTER PUBLICATION $t DROP TABLE $t; ALTER PUBLICATION $t ADD TABLE $t")
        with pytest.raises(SourceError, match="the entry of"):
            feed.latest(at, NO_LIMIT)
    finally:
        table.drop()


def test_a_server_that_keeps_no_logical_log_is_told() -> None:
    server = PostgresServer.create(wal_level="replica")
    try:
        with pytest.raises(SourceError, match="wal_level = replica; logical replication needs"):
            Table(server).feed()
    finally:
        server.close()


@pytest.mark.parametrize(
    "token",
    [
        {},
        {"cursor": 1},
        {"lsn": "x"},
        {"lsn": 5},
        {"lsn": "0/1", "x": 1},
        {"lsn": "0/1", "entries": "r1"},
    ],
)
def test_a_damaged_token_is_told(table: Table, token: dict[str, Any]) -> None:
    with pytest.raises(SourceError, match="not a position in a PostgreSQL log"):
        table.feed().latest(token, NO_LIMIT)


def test_an_offset_from_the_future_is_told(table: Table) -> None:
    feed = table.feed()
    feed.now()
    with pytest.raises(SourceError, match="the offset is from the future"):
        feed.latest({"lsn": "FFFF/0"}, NO_LIMIT)


def test_types_of_the_users_own_come_as_a_read_brings_them(postgres_server: PostgresServer) -> None:
    number = next(_numbers)
    postgres_server.psql(
        f"CREATE TYPE mood_{number} AS ENUM ('sad', 'it''s'); CREATE DOMAIN small_{number} AS int CHECK (VALUE < 10); "
        f"CREATE DOMAIN label_{number} AS varchar(9); CREATE TYPE pair_{number} AS (a int, b text)"
    )
    table = Table(
        postgres_server,
        f"id int PRIMARY KEY, e mood_{number}, d small_{number}, l label_{number}, p pair_{number}, r int4range",
    )
    try:
        feed = table.feed()
        (token,) = feed.now()
        table.run(
            "INSERT INTO $t VALUES (1, 'it''s', 5, 'x', ROW(1, 'two, \"three\"'), '[1,5)'); INSERT INTO $t VALUES (2)"
        )
        found = rows(feed, token, feed.latest(token, NO_LIMIT))
        reader, _ = load_reader({**postgres_server.login, "dbtable": table.name})
        plain = [
            row
            for split in reader.split(1)
            for batch in reader.read(split)
            for row in batch.to_pylist()
        ]
        assert [{name: row[name] for name in plain[0]} for row in found] == plain
        assert plain[0]["d"] == 5
        table.run("ALTER TABLE $t ADD many int[]")
        with pytest.raises(SchemaError, match=r"column 'many' of .* is an array"):
            table.feed()
    finally:
        table.drop()


def test_a_partitioned_table_is_followed_by_its_root(
    postgres_server: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    table = Table(
        postgres_server, "id int, item text, PRIMARY KEY (id, item)) PARTITION BY LIST (item"
    )
    try:
        table.run(
            "CREATE TABLE $t_a PARTITION OF $t FOR VALUES IN ('a'); "
            "CREATE TABLE $t_b PARTITION OF $t FOR VALUES IN ('b')"
        )
        with pytest.raises(SourceError, match=r"SET \(publish_via_partition_root = true\)"):
            table.feed()
        table.run("ALTER PUBLICATION $t SET (publish_via_partition_root = true)")
        feed = table.feed()
        (token,) = feed.now()
        assert feed.with_base([token]) is None
        assert "it is partitioned" in caplog.text
        table.run(
            "INSERT INTO $t VALUES (1, 'a'), (2, 'b'); UPDATE $t SET item = 'b' WHERE id = 1; TRUNCATE $t; "
            "INSERT INTO $t_a VALUES (3, 'a')"
        )
        assert brief(rows(feed, token, feed.latest(token, NO_LIMIT))) == [
            ("insert", 1, "a"),
            ("insert", 2, "b"),
            ("delete", 1, "a"),
            ("insert", 1, "b"),
            ("truncate", None, None),
            ("insert", 3, "a"),
        ]
    finally:
        table.drop()


def test_a_table_that_was_renamed_is_not_taken_for_one_of_its_name(table: Table) -> None:
    feed = table.feed()
    (token,) = feed.now()
    table.run("INSERT INTO $t VALUES (1, 'a', 1); ALTER TABLE $t RENAME TO $t_old")
    with pytest.raises(ChannelError, match=f"{table.name}"):
        feed.latest(token, NO_LIMIT)
    table.run("CREATE TABLE $t (LIKE $t_old INCLUDING ALL); INSERT INTO $t VALUES (2, 'b', 1)")
    with pytest.raises(
        SourceError, match=r"is another table than the one that the stream began with.*Reset"
    ):
        feed.latest(token, NO_LIMIT)
    with pytest.raises(SourceError, match="does not hold table"):
        table.feed()
    table.run("DROP TABLE $t; ALTER TABLE $t_old RENAME TO $t")
    assert brief(rows(feed, token, feed.latest(token, NO_LIMIT))) == [("insert", 1, "a")]


@pytest.mark.parametrize(
    ("identity", "deleted"),
    [("USING INDEX $t_n", (None, "1.00")), ("FULL", ("a", "1.00"))],
)
def test_a_delete_has_what_the_replica_identity_names(
    table: Table, identity: str, deleted: Any
) -> None:
    table.run(
        f"ALTER TABLE $t ALTER n SET NOT NULL; CREATE UNIQUE INDEX $t_n ON $t (n); "
        f"ALTER TABLE $t REPLICA IDENTITY {identity}"
    )
    feed = table.feed(reader={"columns": "item, n"})
    (token,) = feed.now()
    table.run("INSERT INTO $t VALUES (1, 'a', 1); DELETE FROM $t")
    _, row = rows(feed, token, feed.latest(token, NO_LIMIT))
    assert (row["item"], str(row["n"])) == deleted


def test_a_table_without_a_key_is_followed_by_what_is_appended(
    postgres_server: PostgresServer,
) -> None:
    """Its updates and deletes are refused by its own server."""
    table = Table(postgres_server, "id int, item text")
    try:
        feed = table.feed()
        (token,) = feed.now()
        table.run("INSERT INTO $t VALUES (1, 'a'), (1, 'a')")
        with pytest.raises(Exception, match="replica identity"):
            table.run("DELETE FROM $t")
        assert brief(rows(feed, token, feed.latest(token, NO_LIMIT))) == [("insert", 1, "a")] * 2
    finally:
        table.drop()


def test_columns_that_change_are_taken_by_the_next_start(table: Table) -> None:
    """Rows of the log from before have NULL in a column that is new, and none of one that was dropped."""
    feed = table.feed(evolves=True)
    (token,) = feed.now()
    table.run(
        "INSERT INTO $t VALUES (1, 'a', 1); ALTER TABLE $t ADD note text; INSERT INTO $t VALUES (2, 'b', 1, 'x')"
    )
    with pytest.raises(SchemaError, match=r"new column 'note'.*Start it again"):
        feed.latest(token, NO_LIMIT)
    with pytest.raises(SchemaError, match=r"new column 'note'.*Start it again"):
        rows(feed, token, feed.end()[0])  # a range that was planned just before
    feed = table.feed(evolves=True)
    end = feed.latest(token, NO_LIMIT)
    found = rows(feed, token, end)
    assert [(row["id"], row["item"], row["note"]) for row in found] == [
        (1, "a", None),
        (2, "b", "x"),
    ]
    table.run(
        "ALTER TABLE $t DROP item; ALTER TABLE $t ALTER id TYPE bigint; ALTER TABLE $t RENAME n TO m; "
        "INSERT INTO $t VALUES (5000000000, 2, 'y'); UPDATE $t SET id = 7 WHERE id = 2; TRUNCATE $t"
    )
    assert [row["item"] for row in rows(feed, token, end)] == ["a", "b"]
    with pytest.raises(SchemaError, match="column 'id'"):
        feed.latest(token, NO_LIMIT)
    feed = table.feed(evolves=True)
    found = rows(feed, token, feed.latest(token, NO_LIMIT))
    assert [(row["_op"], row["id"], row["m"] is None, row["note"]) for row in found] == [
        ("insert", 1, True, None),
        ("insert", 2, True, "x"),
        ("insert", 5_000_000_000, False, "y"),
        ("delete", 2, True, None),
        ("update", 7, False, "x"),
        ("truncate", None, True, None),
    ]
    table.run("INSERT INTO $t VALUES (8, 1, 'z'); ALTER TABLE $t ALTER note TYPE int USING 5")
    with pytest.raises(
        SchemaError, match=r"column 'note' of .*another type|column 'note' of another type"
    ):
        rows(table.feed(evolves=True), token, feed.end()[0])


def test_columns_that_change_are_ignored_without_a_restart(
    table: Table, caplog: pytest.LogCaptureFixture
) -> None:
    feed = table.feed(ignores=True)
    (token,) = feed.now()
    table.run(
        "INSERT INTO $t VALUES (1, 'a', 1); ALTER TABLE $t ADD note text; INSERT INTO $t VALUES (2, 'b', 1, 'x'); "
        "ALTER TABLE $t DROP item; INSERT INTO $t VALUES (3, 2, 'y'); UPDATE $t SET id = 4 WHERE id = 2"
    )
    end = feed.latest(token, NO_LIMIT)
    found = rows(feed, token, end)
    assert [(row["_op"], row["id"], row["item"], row["n"] is None) for row in found] == [
        ("insert", 1, "a", False),
        ("insert", 2, "b", False),
        ("insert", 3, None, False),
        ("delete", 2, None, True),
        ("update", 4, None, False),
    ]
    assert "note" not in found[0]
    assert feed.latest(end, NO_LIMIT) == end
    messages = [each.getMessage() for each in caplog.records]
    assert sorted(each.split("column ")[1].split(" ")[0] for each in messages) == [
        "'item'",
        "'note'",
    ], "once each"
    table.run("ALTER TABLE $t ALTER n TYPE numeric(12,4); INSERT INTO $t VALUES (5, 1.2345)")
    with pytest.raises(SchemaError, match=r"column 'n'.*Start it again"):
        feed.latest(end, NO_LIMIT)
    again = table.feed(ignores=True)
    assert str(rows(again, end, again.latest(end, NO_LIMIT))[0]["n"]) == "1.2345"


@pytest.mark.parametrize("mode", ["ignores", "evolves"])
def test_a_key_that_the_log_lacks_is_told(table: Table, mode: str) -> None:
    feed = table.feed(**{mode: True})
    (token,) = feed.now()
    table.run(
        "INSERT INTO $t VALUES (1, 'a', 1); "
        "ALTER TABLE $t DROP id, ADD no int GENERATED ALWAYS AS IDENTITY PRIMARY KEY; INSERT INTO $t VALUES ('b', 2)"
    )
    with pytest.raises(SchemaError, match=r"lost column 'id'|new column 'no'"):
        feed.latest(token, NO_LIMIT)
    again = table.feed(**{mode: True})
    with pytest.raises(SchemaError, match="no key column 'no' in the log"):
        rows(again, token, again.latest(token, NO_LIMIT))


def test_columns_that_were_chosen_stay_whatever_the_table_gets(table: Table) -> None:
    feed = table.feed(evolves=True, reader={"columns": "id, n"})
    (token,) = feed.now()
    table.run(
        "ALTER TABLE $t ADD note text; INSERT INTO $t VALUES (2, 'b', 1, 'x'); ALTER TABLE $t DROP item"
    )
    table.run("INSERT INTO $t VALUES (3, 2, 'x')")
    assert [row["id"] for row in rows(feed, token, feed.latest(token, NO_LIMIT))] == [2, 3]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("ADD note text", "new column 'note'"),
        ("DROP n", "lost column 'n'"),
        ("ALTER n TYPE text", "column 'n'"),
    ],
)
def test_a_changed_schema_names_the_column(table: Table, change: str, message: str) -> None:
    feed = table.feed()
    (token,) = feed.now()
    table.run(f"ALTER TABLE $t {change}; INSERT INTO $t (id) VALUES (1)")
    with pytest.raises(SchemaError, match=message):
        feed.latest(token, NO_LIMIT)
    with pytest.raises(SchemaError, match=message):
        list(feed.read(feed.changes(token, {"lsn": "FFFF/0"})[0]))


def test_lag_is_told(table: Table) -> None:
    feed = table.feed()
    (token,) = feed.now()
    table.run("INSERT INTO $t SELECT i, 'x', 0 FROM generate_series(1, 1000) i")
    lag = feed.lag(token)
    assert lag.nbytes is not None
    assert lag.nbytes > 10_000
    assert lag.rows == 1000
    assert lag.seconds is not None
    assert 0 <= lag.seconds < 60
    end = feed.latest(token, NO_LIMIT)
    behind = feed.lag(end)  # the slot was not advanced, and shows them still
    assert (behind.rows, behind.seconds) == (0, 0.0)
    table.run("DELETE FROM $t WHERE id <= 10; UPDATE $t SET item = 'y' WHERE id = 11")
    assert feed.lag(end).rows == 11


def test_the_lag_of_a_slot_that_is_read_is_not_waited_for(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_channel.connectors.postgresql.log.feed._LAG_BUSY_SECONDS", 0.1)
    feed = table.feed()
    (token,) = feed.now()
    table.run("INSERT INTO $t SELECT i, repeat('x', 100), 0 FROM generate_series(1, 200000) i")
    with holding(table):
        lag = feed.lag(token)
    assert (lag.rows, lag.seconds) == (None, None)
    assert lag.kept is not None
    assert lag.kept > 1 << 20


@contextmanager
def holding(table: Table) -> Iterator[None]:
    """Another session reads from the table's slot."""
    server = table.server
    look = f"SELECT active FROM pg_replication_slots WHERE slot_name = '{table.name}'"

    def wait_until(active: str) -> None:
        until = time.monotonic() + 30
        while server.psql(look) != active:
            assert time.monotonic() < until
            time.sleep(0.02)

    with subprocess.Popen(
        [
            str(programs() / "pg_recvlogical"),
            "-h",
            str(server.directory),
            "-p",
            str(server.port),
            "-U",
            server.user,
            "-d",
            "postgres",
            "--slot",
            table.name,
            "--start",
            "-o",
            "proto_version=1",
            "-o",
            f"publication_names={table.name}",
            "-f",
            "/dev/null",
            "--no-loop",
        ]
    ) as reader:
        try:
            wait_until("t")
            yield
        finally:
            reader.terminate()
    wait_until("f")  # the server notices a moment later, and drops no slot that is read


def test_a_slot_does_not_keep_what_other_tables_write(table: Table) -> None:
    feed = table.feed()
    (token,) = feed.now()
    table.run(
        "CREATE TABLE elsewhere AS SELECT i, repeat(md5(i::text), 20) FROM generate_series(1, 30000) i; "
        "DROP TABLE elsewhere"
    )
    end = feed.latest(token, FeedLimit(rows=10))
    assert end != token
    assert rows(feed, token, end) == []
    assert feed.latest(end, NO_LIMIT) == end
    feed.settle(end)
    behind = feed.lag(end).nbytes
    assert behind is not None
    assert behind < 1 << 20
    table.run("INSERT INTO $t VALUES (1, 'a', 0)")
    assert brief(rows(feed, end, feed.latest(end, NO_LIMIT))) == [("insert", 1, "a")]


def test_a_log_that_nothing_was_written_to_is_not_looked_at_again(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, last_of = 0, ReplicationFeed._last_of

    def counted(*given: Any) -> int | None:
        nonlocal looks
        looks += 1
        return last_of(*given)

    monkeypatch.setattr(ReplicationFeed, "_last_of", counted)
    feed = table.feed()
    (token,) = feed.now()
    table.run("CREATE TABLE elsewhere (n int); DROP TABLE elsewhere")
    for _ in range(5):
        assert feed.latest(token, NO_LIMIT) == token
    assert looks <= 2, "the server itself may have written to its log meanwhile"
    table.run("INSERT INTO $t VALUES (1, 'a', 0)")
    end = feed.latest(token, NO_LIMIT)
    assert brief(rows(feed, token, end)) == [("insert", 1, "a")]


@contextmanager
def _slow_looks(
    monkeypatch: pytest.MonkeyPatch, seconds: float, *, waits: float = 0.0
) -> Iterator[VirtualClock]:
    """A look at a slot takes `seconds`, after another reader has kept it for so long as `waits`."""
    clock = VirtualClock()
    monkeypatch.setattr(postgresql_feed, "_MUCH_KEPT", 1)
    for module in (postgresql_feed, replication):
        monkeypatch.setattr(module, "SYSTEM_CLOCK", clock)
    read, is_busy = PgReadSession.rows, waits > 0

    def slow(self: PgReadSession, sql: str, *given: Any) -> Any:
        nonlocal is_busy
        if "peek_binary_changes" not in sql:
            return read(self, sql, *given)
        if is_busy:
            is_busy = False
            clock.advance(waits)
            raise SourceError(f"the slot {replication.BUSY} 1")
        clock.advance(seconds)
        return read(self, sql, *given)

    monkeypatch.setattr(PgReadSession, "rows", slow)
    yield clock


@pytest.mark.parametrize(
    ("seconds", "waits", "rest"),
    [(2.0, 0.0, 18.0), (2.0, 50.0, 18.0), (600.0, 0.0, 30.0)],
    ids=["nine times a look", "a wait for the slot is no look", "half a minute at most"],
)
def test_the_rest_of_a_slot_is_bounded(
    table: Table, monkeypatch: pytest.MonkeyPatch, seconds: float, waits: float, rest: float
) -> None:
    feed = table.feed()
    (token,) = feed.now()
    with _slow_looks(monkeypatch, seconds, waits=waits) as clock:
        table.run("CREATE TABLE elsewhere (n int); DROP TABLE elsewhere")
        assert feed.latest(token, NO_LIMIT) == token
        table.run("INSERT INTO $t VALUES (1, 'a', 0)")
        clock.advance(rest - 1.0)
        assert feed.latest(token, NO_LIMIT) == token
        clock.advance(1.0)
        assert feed.latest(token, NO_LIMIT) != token


def test_the_rest_of_a_slot_ends_when_the_server_keeps_less(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed = table.feed()
    (begin,) = feed.now()
    for number in range(3):  # the slot can restart from a checkpoint that it has passed
        table.run("CHECKPOINT")
        table.run(f"INSERT INTO $t VALUES ({number}, 'a', 0)")
    token = feed.latest(begin, NO_LIMIT)
    with _slow_looks(monkeypatch, 2.0):
        table.run("CREATE TABLE elsewhere (n int); DROP TABLE elsewhere")
        assert feed.latest(token, NO_LIMIT) == token
        feed.settle(token)
        table.run("INSERT INTO $t VALUES (9, 'a', 0)")
        assert feed.latest(token, NO_LIMIT) != token


def test_looks_rest_while_an_open_transaction_keeps_much_of_the_log(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to a given end it is looked at all the same, as by a run that ends when all is read."""
    clock = VirtualClock()
    for module in (postgresql_feed, replication):
        monkeypatch.setattr(module, "SYSTEM_CLOCK", clock)
    monkeypatch.setattr(postgresql_feed, "_MUCH_KEPT", 1)
    peeked = replication.peek

    def slow(*given: Any, **more: Any) -> Any:
        answer = peeked(*given, **more)
        clock.advance(2.0)
        return answer

    monkeypatch.setattr(postgresql_feed, "peek", slow)
    monkeypatch.setattr(replication, "peek", slow)
    feed = table.feed()
    (token,) = feed.now()
    table.run("CREATE TABLE elsewhere (n int); DROP TABLE elsewhere")
    assert feed.latest(token, NO_LIMIT) == token
    table.run("INSERT INTO $t VALUES (1, 'a', 0)")
    assert feed.latest(token, NO_LIMIT) == token
    (goal,) = feed.end()
    assert feed.latest(token, NO_LIMIT, goal) != token
    clock.advance(18.0)
    assert feed.latest(token, NO_LIMIT) != token


def test_a_cursor_column_works_here_too(table: Table) -> None:
    table.run("INSERT INTO $t SELECT i, 'x', 0 FROM generate_series(1, 100) i")
    feed = table.feed(slot=None, publication=None, cursor_column="id", late_seconds=0.0)
    (token,) = feed.now()
    base = [row["id"] for s in feed.base([token], 3) for b in feed.read(s) for row in b.to_pylist()]
    assert sorted(base) == list(range(1, 101))
    table.run("INSERT INTO $t SELECT i, 'x', 0 FROM generate_series(101, 130) i")
    seen = []
    while (end := feed.latest(token, FeedLimit(rows=12))) != token:
        seen.append([row["id"] for row in rows(feed, token, end)])
        token = end
    assert [len(each) for each in seen] == [12, 12, 6]
    assert sorted(n for each in seen for n in each) == list(range(101, 131))
    assert feed.lag({"cursor": "100"}).rows == 30
    with pytest.raises(
        SourceError, match=r"is at id = '500', and the highest value in the table is '130'"
    ):
        feed.latest({"cursor": "500"}, NO_LIMIT)
    with pytest.raises(OptionError, match="names 'no'"):
        table.feed(slot=None, publication=None, cursor_column="no")


def test_a_cursor_of_numbers_with_decimals(table: Table) -> None:
    table.run("INSERT INTO $t SELECT i, 'x', i / 4.0 FROM generate_series(-20, 20) i")
    feed = table.feed(slot=None, publication=None, cursor_column="n", late_seconds=0.0)
    (now,) = feed.now()
    end = feed.latest({"cursor": "-1.75"}, NO_LIMIT, now)
    assert sorted(row["id"] for row in rows(feed, {"cursor": "-1.75"}, end)) == list(range(-6, 21))


def test_a_text_is_no_cursor_whatever_it_is_read_as(table: Table) -> None:
    """'1000' after '999' would never arrive."""
    reader = {"customSchema": "item BIGINT"}
    with pytest.raises(OptionError, match="'1000' comes before '999'"):
        table.feed(slot=None, publication=None, cursor_column="item", reader=reader)


def test_what_is_read_as_its_text_is_no_cursor(table: Table) -> None:
    table.run("ALTER TABLE $t ADD i interval NOT NULL DEFAULT '1 day'")
    with pytest.raises(OptionError, match="names 'i' of type interval"):
        table.feed(slot=None, publication=None, cursor_column="i")
