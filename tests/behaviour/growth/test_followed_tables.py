"""Many followed tables: what a range of one of them writes, and how many ranges the first run takes."""

import json
import sqlite3
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spark_channel.connectors.base.feed import FeedLimit, FeedOptions
from spark_channel.connectors.base.registry import load_reader
from spark_channel.connectors.postgresql import PostgresReader
from spark_channel.connectors.postgresql.log.columns import LogColumn, TableColumns
from spark_channel.connectors.postgresql.log.tables_token import TablePlace, TablesToken
from spark_channel.connectors.postgresql.session import PgReadSession
from spark_channel.connectors.sql.feed.incremental_snapshot import BaseProgress, Key
from spark_channel.connectors.sqlite.session import SqliteSession
from spark_channel.tunnel.records import Channel, Client, TunnelRecord, TunnelType
from spark_channel.tunnel.state_machine import checkpoint, hand_out
from spark_channel.tunnel.store import SqliteStore
from tests.servers.postgres import PostgresServer

_SHAPE = TableColumns((LogColumn("id", 23), LogColumn("name", 25)), ("id",))
_ROWS = 5


def token_of(tables: int) -> TablesToken:
    """Small tables of which no row is read, whose sizes no server knows."""
    base = BaseProgress(None, (_ROWS,))
    places = {
        f"shop.t{number}": TablePlace(number, f"digest {number}", _SHAPE, 100, base)
        for number in range(tables)
    }
    return TablesToken(200, places, 150, 150)


def store_of(path: Path, tables: int) -> tuple[SqliteStore, Channel]:
    store = SqliteStore(path / "store.db", wall=lambda: 1.0)
    record = TunnelRecord("many", "id-1", TunnelType.BASE_AND_STREAM, "source", "columns", 0.0)
    store.create(record, [Channel("stream-0", 0, token=token_of(tables).token())])
    store.connect("many", Client("a"))
    (channel,) = store.heartbeat("many", "a", ())
    return store, channel


def written_by_a_range(path: Path, tables: int) -> int:
    """Bytes in statements that fix the end of a range of one table, and take its checkpoint."""
    path.mkdir()
    store, _ = store_of(path, tables + 1)  # of which others are left to read
    token = TablesToken.read(store.state("many").channels["stream-0"].token)
    end = token.advanced("shop.t0", None, _ROWS).token()
    nbytes, rows = 0, SqliteSession.rows

    def counted(session: SqliteSession, sql: str, parameters: Any = ()) -> Any:
        nonlocal nbytes
        if sql.startswith(("INSERT", "UPDATE", "DELETE")):
            nbytes += len(sql) + sum(len(str(each)) for each in parameters)
        return rows(session, sql, parameters)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SqliteSession, "rows", counted)
        store.hand_out("many", "a", "stream-0", 0, end)
        store.checkpoint("many", "a", "stream-0", 0, end)
    assert store.state("many").channels["stream-0"].token == end
    return nbytes


class _Sizes:
    def count(self, name: str, base: BaseProgress, most: int) -> int:
        return min(most, _ROWS)

    def bound(self, name: str, base: BaseProgress, rows: int) -> Key | None:
        raise AssertionError(f"{name} is small")


def ranges_of_small_tables(_path: Path, tables: int) -> int:
    token, ranges = token_of(tables), 0
    while not token.is_read:
        token, ranges = token.with_chunks(token.due(), 10_000, _Sizes()), ranges + 1
    return ranges


def _as_before(path: Path, channel: Channel) -> None:
    """Write the channel as a version did that kept the places of all tables in its token."""

    def text(token: Mapping[str, Any] | None) -> str:
        return "" if token is None else json.dumps(token)

    with sqlite3.connect(path / "store.db") as session:
        session.execute("DROP TABLE spark_channel_tunnel_places")
        session.execute(
            "UPDATE spark_channel_tunnel_channels SET params = ?, token = ?, pending = ?",
            (json.dumps({"$after": channel.after}), text(channel.token), text(channel.pending)),
        )


def test_a_store_of_an_earlier_version_is_read_and_converted_by_its_first_write(
    tmp_path: Path,
) -> None:
    store, channel = store_of(tmp_path, 3)
    tokens = [TablesToken.read(channel.token)]
    for name in ("shop.t0", "shop.t1", "shop.t2"):
        tokens.append(tokens[-1].advanced(name, None, _ROWS))
    start, first, second, third = (each.token() for each in tokens)
    known = replace(store.state("many").channels["stream-0"], pending=first, after=second)
    _as_before(tmp_path, known)
    assert store.state("many").channels["stream-0"] == known
    assert store.hand_out("many", "a", "stream-0", 0, third) == first, "its range is fixed"
    assert store.state("many").channels["stream-0"] == known
    store.checkpoint("many", "a", "stream-0", 0, first)
    store.hand_out("many", "a", "stream-0", 2 - 1, third)
    found = store.state("many").channels["stream-0"]
    assert (found.token, found.pending, found.after) == (first, second, None)
    with sqlite3.connect(tmp_path / "store.db") as session:
        ((row,),) = session.execute("SELECT token FROM spark_channel_tunnel_channels")
        assert "shop.t1" not in row
        rows = session.execute("SELECT id, said FROM spark_channel_tunnel_places ORDER BY place")
        assert {name: json.loads(said) for name, said in rows} == first["tables"]
        assert start["tables"] != first["tables"]


def test_the_store_keeps_what_the_state_machine_makes_of_several_tables(tmp_path: Path) -> None:
    store, channel = store_of(tmp_path, 4)
    state = store.state("many")
    token = TablesToken.read(channel.token)
    for number in range(4):
        ends = [token.advanced(f"shop.t{number}", None, _ROWS)]
        ends.append(replace(ends[0], lsn=ends[0].lsn + 5))
        for sequence, end in enumerate(ends, 2 * number):
            store.hand_out("many", "a", "stream-0", sequence, end.token())
            state = hand_out(state, "a", "stream-0", sequence, end.token())
            assert store.state("many").channels == state.channels
        for sequence, end in enumerate(ends, 2 * number):
            store.checkpoint("many", "a", "stream-0", sequence, end.token())
            at = store.state("many").channels["stream-0"].checkpointed_at
            state = checkpoint(state, "a", "stream-0", sequence, end.token(), at)
            assert store.state("many").channels == state.channels
        token = ends[-1]
    joined = store.continued(
        "many", lambda old: TablesToken.read(old).joined("b", 9, "d", _SHAPE).token()
    )
    left = store.continued("many", lambda old: TablesToken.read(old).left("shop.t1").token())
    channels = store.state("many").channels
    assert list(channels[left].token["tables"]) == ["shop.t0", "shop.t2", "shop.t3", "b"]
    assert channels["stream-0"].until == token.token()
    assert channels[joined].until == channels[joined].token


def asked_by_a_first_run(
    server: PostgresServer, patch: pytest.MonkeyPatch, tables: int
) -> dict[str, int]:
    """How often the server goes through the publication, and through the slot's log, until all rows are read."""
    name = f"growth_{tables}"
    made = (
        f"CREATE TABLE {name}.t{number} (id int PRIMARY KEY); INSERT INTO {name}.t{number} VALUES (1), (2);"
        for number in range(tables)
    )
    listed = ", ".join(f"{name}.t{number}" for number in range(tables))
    server.psql(
        f"CREATE SCHEMA {name}; {''.join(made)} CREATE PUBLICATION {name} FOR TABLE {listed}"
    )
    counts = {"pg_publication_tables": 0, "pg_logical_slot_peek_binary_changes": 0}

    def counted(method: str) -> None:
        asked = getattr(PgReadSession, method)

        def made(session: PgReadSession, sql: str, *more: Any) -> Any:
            for what in counts:
                counts[what] += what in sql
            return asked(session, sql, *more)

        patch.setattr(PgReadSession, method, made)

    counted("rows")
    counted("stream")
    reader, _ = load_reader({**server.login, "dbtable": "any"})
    assert isinstance(reader, PostgresReader)
    options = FeedOptions(slot=name, publication=name, tables=f"{name}.*", has_base=True)
    feed, rows = reader.tables_feed(options), 0
    begun = feed.with_base(feed.now())
    assert begun is not None
    (token,) = begun
    while not TablesToken.read(token).is_read:
        token, start = feed.latest(token, FeedLimit(rows=10_000)), token
        for split in feed.changes(start, token):
            rows += sum(batch.num_rows for batch in feed.read(split))
    feed.close()
    server.psql(f"DROP PUBLICATION {name}; DROP SCHEMA {name} CASCADE")
    assert rows == 2 * tables
    return counts


def test_small_tables_share_each_look_at_the_publication_and_at_the_log(
    postgres_server: PostgresServer,
) -> None:
    found = []
    for tables in (2, 20):
        with pytest.MonkeyPatch.context() as patch:
            found.append(asked_by_a_first_run(postgres_server, patch, tables))
    assert found[0] == found[1]
