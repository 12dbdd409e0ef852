"""What PostgreSQL has since version 18."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from spark_channel.connectors.base.feed import FeedLimit
from spark_channel.errors import ChannelError, SchemaError, SourceError
from tests.connectors.postgresql.log.test_feed import Table, rows
from tests.connectors.postgresql.log.test_tables import Shop, begin, follow
from tests.connectors.postgresql.pg import Pg
from tests.connectors.postgresql.test_published import applied, read_to_end
from tests.servers.postgres import PostgresServer

GENERATED = (
    "id int PRIMARY KEY, a int, twice int GENERATED ALWAYS AS (a * 2) STORED, "
    "thrice int GENERATED ALWAYS AS (a * 3) VIRTUAL"
)
PUBLISHED = [
    "ALTER PUBLICATION $t SET (publish_generated_columns = stored)",
    "ALTER PUBLICATION $t SET TABLE $t (id, a, twice)",
]


@pytest.fixture(scope="module")
def postgres_server() -> Iterator[PostgresServer]:
    server = PostgresServer.create(version="18")
    server.psql("CREATE EXTENSION btree_gist")
    yield server
    server.close()


def ints(*values: int) -> pa.Array:
    return pa.array(values, pa.int32())


@pytest.mark.parametrize("published", PUBLISHED, ids=["stored", "listed"])
@pytest.mark.parametrize("columns", ["id, a", "id, a, twice"])
def test_generated_columns_that_are_published_are_followed_or_left_out(
    postgres_server: PostgresServer, published: str, columns: str
) -> None:
    table = Table(postgres_server, GENERATED)
    try:
        table.run(f"{published}; INSERT INTO $t (id, a) VALUES (1, 1), (2, 2)")
        feed = table.feed(reader={"columns": columns})
        (at,) = feed.now()
        made = feed.with_base([at])
        assert made is not None
        table.run("INSERT INTO $t (id, a) VALUES (3, 3); UPDATE $t SET a = 5 WHERE id = 2")
        copy: dict[Any, tuple[Any, ...]] = {}
        read_to_end(feed, made[0], copy)
        found = postgres_server.psql(f"SELECT {columns} FROM {table.name}").splitlines()
        assert sorted(copy.values()) == sorted(tuple(line.split("|")) for line in found)
        with pytest.raises(SchemaError, match=r"'thrice' .*is generated, and its values are not"):
            table.feed().now()
    finally:
        table.drop()


def test_so_are_those_of_several_tables(postgres_server: PostgresServer) -> None:
    shop = Shop(postgres_server)
    try:
        columns = GENERATED.rpartition(",")[0]
        shop.run(
            f"CREATE TABLE $s.orders ({columns}); ALTER PUBLICATION $s ADD TABLE $s.orders; "
            "ALTER PUBLICATION $s SET (publish_generated_columns = stored); INSERT INTO $s.orders (id, a) VALUES (1, 1)"
        )
        feed = shop.feed()
        at, found = follow(feed, begin(feed))
        shop.run("UPDATE $s.orders SET a = 7")
        copy: dict[Any, tuple[Any, ...]] = {}
        applied(copy, found)
        read_to_end(feed, at, copy)
        assert copy == {1: ("1", "7", "14")}
    finally:
        shop.drop()


OVERLAPS = "id int, during daterange, v int, PRIMARY KEY (id, during WITHOUT OVERLAPS)"
YEAR, NEXT = "[2024-01-01,2025-01-01)", "[2025-01-01,2026-01-01)"


def test_a_key_without_overlaps_is_read_and_appended_to(pg: Pg) -> None:
    pg.psql(
        f"CREATE TABLE t ({OVERLAPS}); INSERT INTO t SELECT g, '{YEAR}', g FROM generate_series(1, 50) g"
    )
    assert pg.read("t", advice=3).num_rows == 50
    assert pg.read("t", rowsPerSecond="10k").num_rows == 50
    row = pa.table({"id": ints(1), "during": [NEXT], "v": ints(9)})
    pg.write(row)
    assert pg.psql("SELECT v FROM t WHERE id = 1 ORDER BY during").split() == ["1", "9"]
    with pytest.raises(ChannelError, match="conflicting key value"):
        pg.write(row)
    assert pg.psql("SELECT count(*) FROM t") == "51"


@pytest.mark.parametrize("mode", ["upsert", "skipExisting", "apply"])
@pytest.mark.parametrize("key", [{}, {"keyColumns": "id, during"}], ids=["", "named"])
def test_rows_are_not_matched_by_a_key_without_overlaps(
    pg: Pg, mode: str, key: dict[str, Any]
) -> None:
    pg.psql(f"CREATE TABLE t ({OVERLAPS})")
    given: dict[str, Any] = {"id": ints(1), "during": [YEAR], "v": ints(9)}
    given |= {"_op": ["update"]} if mode == "apply" else {}
    message = r"has the key \(id, during WITHOUT OVERLAPS\).*ON CONFLICT cannot use"
    with pytest.raises(ChannelError, match=message):
        pg.write(pa.table(given), writeMode=mode, **key)


def test_changes_of_a_table_with_such_a_key_name_their_rows(
    postgres_server: PostgresServer,
) -> None:
    table = Table(postgres_server, OVERLAPS)
    try:
        feed = table.feed()
        (at,) = feed.now()
        table.run(
            f"INSERT INTO $t VALUES (1, '{YEAR}', 1), (2, '{YEAR}', 2); "
            f"UPDATE $t SET during = '{NEXT}' WHERE id = 1; DELETE FROM $t WHERE id = 2"
        )
        found = rows(feed, at, feed.latest(at, FeedLimit()))
        assert [(row["_op"], row["id"], row["during"]) for row in found] == [
            ("insert", 1, YEAR),
            ("insert", 2, YEAR),
            ("delete", 1, YEAR),
            ("update", 1, NEXT),
            ("delete", 2, YEAR),
        ]
    finally:
        table.drop()


def test_constraints_that_are_not_enforced_change_no_other_table(pg: Pg) -> None:
    pg.psql(
        "CREATE TABLE t (id int PRIMARY KEY, CHECK (id > 10) NOT ENFORCED); INSERT INTO t VALUES (1); CREATE TABLE c "
        "(id int, t int REFERENCES t ON DELETE CASCADE NOT ENFORCED); INSERT INTO c VALUES (1, 1), (2, 77)"
    )
    pg.write(pa.table({"id": ints(2)}), overwrite=True)
    assert (pg.psql("SELECT id FROM t"), pg.psql("SELECT count(*) FROM c")) == ("2", "2")


def test_uuids_of_the_server_and_a_temporal_reference(pg: Pg) -> None:
    pg.psql("CREATE TABLE u (id uuid PRIMARY KEY DEFAULT uuidv7(), v int)")
    pg.write(pa.table({"v": ints(*range(300))}), dbtable="u")
    found = pg.read("u", advice=4)
    assert sorted(found.column("v").to_pylist()) == list(range(300))
    pg.psql(
        f"CREATE TABLE t ({OVERLAPS}); INSERT INTO t VALUES (1, '{YEAR}', 1); CREATE TABLE r (t int, during daterange, "
        "FOREIGN KEY (t, PERIOD during) REFERENCES t (id, PERIOD during))"
    )
    pg.write(pa.table({"t": ints(1), "during": [YEAR]}), dbtable="r")
    with pytest.raises(ChannelError, match="violates foreign key"):
        pg.write(pa.table({"t": ints(1), "during": [NEXT]}), dbtable="r")
    assert pg.psql("SELECT count(*) FROM r") == "1"


def test_a_slot_that_was_idle_for_too_long_is_told_and_made_again() -> None:
    server = PostgresServer.create(version="18", idle_replication_slot_timeout="1s")
    try:
        table = Table(server)
        feed = table.feed()
        (at,) = feed.now()
        table.run("INSERT INTO $t VALUES (1, 'a', 1)")
        server.psql("SELECT pg_sleep(1.5); CHECKPOINT")  # which looks for slots that were idle
        with pytest.raises(
            SourceError, match=r"invalidated: .*idle_replication_slot_timeout.*Reset"
        ):
            feed.latest(at, FeedLimit())
        (again,) = feed.now()
        table.run("INSERT INTO $t VALUES (2, 'b', 2)")
        assert [row["id"] for row in rows(feed, again, feed.latest(again, FeedLimit()))] == [2]
    finally:
        server.close()
