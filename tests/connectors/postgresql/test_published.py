"""What a publication and a replica identity leave out of the log: read so, or refused. psql says what is right."""

from collections.abc import Iterator
from typing import Any

import pytest

from spark_channel.connectors.base.feed import ChangeFeed, FeedLimit
from spark_channel.errors import OptionError, SourceError
from tests.connectors.postgresql.log.test_feed import Table, rows
from tests.connectors.postgresql.log.test_tables import Shop, begin, follow
from tests.servers.postgres import PostgresServer

NO_LIMIT = FeedLimit()
COLUMNS = "id int PRIMARY KEY, a int, item text, secret text"


@pytest.fixture
def table(postgres_server: PostgresServer, request: pytest.FixtureRequest) -> Iterator[Table]:
    made = Table(postgres_server, getattr(request, "param", COLUMNS))
    yield made
    made.drop()


@pytest.fixture
def shop(postgres_server: PostgresServer) -> Iterator[Shop]:
    made = Shop(postgres_server)
    made.run(f"CREATE TABLE $s.orders ({COLUMNS})")
    yield made
    made.drop()


def applied(copy: dict[Any, tuple[Any, ...]], found: list[dict[str, Any]], key: str = "id") -> None:
    """Change `copy` as a target would."""
    for row in found:
        if row["_op"] == "truncate":
            copy.clear()
        elif row["_op"] == "delete":
            copy.pop(row[key], None)
        else:
            copy[row[key]] = tuple(str(value) for name, value in row.items() if name[0] != "_")


def rows_by_key(server: PostgresServer, query: str, place: int = 0) -> dict[Any, tuple[Any, ...]]:
    """Rows as psql shows them."""
    lines = [line.split("|") for line in server.psql(query).splitlines()]
    return {int(each[place]): tuple(each) for each in lines}


def read_to_end(
    feed: ChangeFeed, at: Any, copy: dict[Any, tuple[Any, ...]], key: str = "id"
) -> Any:
    while (end := feed.latest(at, NO_LIMIT)) != at:
        applied(copy, rows(feed, at, end), key)
        at = end
    return at


PARTS = [
    ("", "WHERE (a > 10)", "*", "a > 10", True),
    ("(id, a, item)", "", "id, a, item", "true", False),
    ("(id, item)", "WHERE (id > 1 AND id < 50)", "id, item", "id > 1 AND id < 50", False),
]


@pytest.mark.parametrize("beside", [True, False])
@pytest.mark.parametrize(("columns", "condition", "selected", "where", "is_full"), PARTS)
def test_existing_rows_are_those_that_the_publication_has(
    table: Table,
    columns: str,
    condition: str,
    selected: str,
    where: str,
    is_full: bool,
    beside: bool,
) -> None:
    """Read beside the changes, and before them."""
    table.run(
        f"ALTER TABLE $t REPLICA IDENTITY {'FULL' if is_full else 'DEFAULT'}; "
        f"ALTER PUBLICATION $t SET TABLE $t {columns} {condition}; "
        "INSERT INTO $t SELECT i, i, 'old', 's' FROM generate_series(1, 60) i"
    )
    feed = table.feed()
    copy: dict[Any, tuple[Any, ...]] = {}
    (at,) = feed.now()
    if beside:
        made = feed.with_base([at])
        assert made is not None
        (at,) = made
    else:
        for split in feed.base([at], 2):
            for batch in feed.read(split):
                applied(copy, batch.to_pylist())
    select = f"SELECT {selected} FROM {table.name} WHERE {where}"
    if not beside:
        assert copy == rows_by_key(table.server, select)
    table.run("UPDATE $t SET item = 'first' WHERE id % 2 = 0")
    at = read_to_end(feed, at, copy)
    assert copy == rows_by_key(table.server, select)
    table.run(
        "UPDATE $t SET a = a + 5, item = 'new' WHERE id % 3 = 0; UPDATE $t SET a = 0 WHERE id = 20; "
        "DELETE FROM $t WHERE id = 30; INSERT INTO $t VALUES (100, 100, 'x', 's'), (0, 0, 'y', 's')"
    )
    read_to_end(table.feed(), at, copy)
    assert copy == rows_by_key(table.server, select)


@pytest.mark.parametrize(("columns", "condition", "selected", "where", "is_full"), PARTS)
def test_so_are_those_of_several_tables(
    shop: Shop, columns: str, condition: str, selected: str, where: str, is_full: bool
) -> None:
    shop.run(
        f"ALTER TABLE $s.orders REPLICA IDENTITY {'FULL' if is_full else 'DEFAULT'}; "
        f"ALTER PUBLICATION $s ADD TABLE $s.orders {columns} {condition}; "
        "INSERT INTO $s.orders SELECT i, i, 'old', 's' FROM generate_series(1, 60) i"
    )
    feed = shop.feed()
    copy: dict[Any, tuple[Any, ...]] = {}
    at, found = follow(feed, begin(feed))
    applied(copy, found)
    select = f"SELECT {selected} FROM {shop.name}.orders WHERE {where}"
    assert copy == rows_by_key(shop.server, select)
    shop.run("UPDATE $s.orders SET item = 'new', a = a + 5; DELETE FROM $s.orders WHERE id = 30")
    at = read_to_end(feed, at, copy)
    assert copy == rows_by_key(shop.server, select)
    shop.run("ALTER PUBLICATION $s SET TABLE $s.orders WHERE (id < 5)")
    with pytest.raises(SourceError, match="another row filter or column list"):
        feed.latest(at, NO_LIMIT)
    again = feed.joining(f"{shop.name}.orders", again=True)(at)
    copy.clear()
    applied(copy, follow(feed, again)[1])
    assert copy == rows_by_key(shop.server, f"SELECT * FROM {shop.name}.orders WHERE id < 5")


def test_a_column_that_the_publication_leaves_out_is_not_asked_for(table: Table) -> None:
    table.run("ALTER PUBLICATION $t SET TABLE $t (id, item)")
    with pytest.raises(OptionError, match=r"'columns' names secret, .*column list .*id, item only"):
        table.feed(reader={"columns": "id, secret"})
    table.run("INSERT INTO $t VALUES (1, 1, 'x', 's')")
    feed = table.feed(reader={"columns": "id"})
    assert feed.schema().names == ["id", "_op", "_lsn", "_commit_ts"]


@pytest.mark.parametrize(
    ("publish", "missing"),
    [
        ("insert", "update, delete, truncate"),
        ("insert, update, delete", "truncate"),
        ("update, delete, truncate", "insert"),
    ],
)
def test_a_publication_of_some_operations_is_refused(
    table: Table, shop: Shop, publish: str, missing: str
) -> None:
    table.run(f"ALTER PUBLICATION $t SET (publish = '{publish}')")
    shop.run(
        f"ALTER PUBLICATION $s ADD TABLE $s.orders; ALTER PUBLICATION $s SET (publish = '{publish}')"
    )
    refused = (
        rf"does not publish {missing}, so .*SET \(publish = 'insert, update, delete, truncate'\)"
    )
    with pytest.raises(SourceError, match=refused):
        table.feed()
    feed = shop.feed()
    with pytest.raises(SourceError, match=refused):
        feed.now()
    assert shop.run("SELECT count(*) FROM pg_replication_slots WHERE slot_name LIKE '$s%'") == "0"


def test_operations_that_were_missing_for_a_while_are_noticed(table: Table, shop: Shop) -> None:
    """Though the publication has them again: the changes between are not in the log."""
    shop.run("ALTER PUBLICATION $s ADD TABLE $s.orders")
    feed, several = table.feed(), shop.feed()
    (at,) = feed.now()
    both, _ = follow(several, begin(several))
    for publish, message in (
        ("insert", "does not publish update, delete, truncate"),
        ("insert, update, delete, truncate", r"altered by SET \(\.\.\.\)"),
    ):
        table.run(f"ALTER PUBLICATION $t SET (publish = '{publish}')")
        table.run("INSERT INTO $t VALUES (1, 1, 'x', 's'); UPDATE $t SET a = 2; DELETE FROM $t")
        shop.run(f"ALTER PUBLICATION $s SET (publish = '{publish}')")
        for one, token in ((feed, at), (several, both)):
            with pytest.raises(SourceError, match=message):
                one.latest(token, NO_LIMIT)
    with pytest.raises(SourceError, match="altered by SET"):
        table.feed().latest(at, NO_LIMIT)


@pytest.mark.parametrize(
    ("columns", "key", "change"),
    [
        ("id int, item text", "id", "UPDATE $t SET id = 2"),
        ("id int, item text", "item", "UPDATE $t SET item = '7'"),
        (
            "id int PRIMARY KEY DEFERRABLE INITIALLY DEFERRED, item text",
            "id",
            "UPDATE $t SET id = 2",
        ),
        ("id int PRIMARY KEY, item text UNIQUE", "item", "UPDATE $t SET item = '7'"),
        ("id int PRIMARY KEY, item text UNIQUE", "id", "UPDATE $t SET id = 2"),
    ],
)
def test_with_replica_identity_full_the_row_of_the_old_key_is_deleted(
    postgres_server: PostgresServer, columns: str, key: str, change: str
) -> None:
    """Whichever of its columns the target has as its key."""
    table = Table(postgres_server, columns)
    try:
        table.run("ALTER TABLE $t REPLICA IDENTITY FULL; INSERT INTO $t VALUES (1, '5')")
        feed = table.feed()
        copy: dict[Any, tuple[Any, ...]] = {"5" if key == "item" else 1: ("1", "5")}
        (at,) = feed.now()
        table.run(f"{change}; INSERT INTO $t VALUES (9, '9'); DELETE FROM $t WHERE id = 9")
        read_to_end(feed, at, copy, key)
        found = rows_by_key(postgres_server, f"SELECT id, item FROM {table.name}", key == "item")
        assert {int(name): row for name, row in copy.items()} == found
    finally:
        table.drop()


def test_an_update_of_no_key_column_is_one_row(table: Table) -> None:
    table.run("ALTER TABLE $t REPLICA IDENTITY FULL; INSERT INTO $t VALUES (1, 1, 'x', 's')")
    feed = table.feed()
    (at,) = feed.now()
    table.run("UPDATE $t SET a = 2")
    assert [row["_op"] for row in rows(feed, at, feed.latest(at, NO_LIMIT))] == ["update"]


INDEX = (
    "ALTER TABLE $t ALTER item SET NOT NULL; CREATE UNIQUE INDEX $t_i ON $t (item); "
    "ALTER TABLE $t REPLICA IDENTITY USING INDEX $t_i"
)


def test_an_index_that_is_not_the_key_is_refused_as_replica_identity(table: Table) -> None:
    table.run(f"{INDEX}; INSERT INTO $t VALUES (1, 1, '5', 's')")
    with pytest.raises(
        SourceError, match=r"USING INDEX on item, .* update of id does .*leave id out .*'columns'"
    ):
        table.feed()
    feed = table.feed(reader={"columns": "item, a"})
    copy: dict[Any, tuple[Any, ...]] = {"5": ("5", "1")}
    (at,) = feed.now()
    table.run("UPDATE $t SET id = 2, item = '6'; INSERT INTO $t VALUES (3, 3, '3', 's')")
    table.run("DELETE FROM $t WHERE id = 3")
    applied(copy, rows(feed, at, feed.latest(at, NO_LIMIT)), "item")
    assert copy == {"6": ("6", "1")}


def test_a_replica_identity_that_changes_is_noticed(table: Table, shop: Shop) -> None:
    shop.run("ALTER PUBLICATION $s ADD TABLE $s.orders")
    feed, several = table.feed(), shop.feed()
    (at,), (both,) = feed.now(), several.now()
    for one, name in ((table, "$t"), (shop, "$s.orders")):
        one.run(
            f"INSERT INTO {name} VALUES (1, 1, 'x', 's'); {INDEX.replace('$t_i', 'by_item')}; "
            f"UPDATE {name} SET id = 2".replace("$t", name)
        )
        if one is table:
            one.run("ALTER INDEX by_item RENAME TO $t_i")
    for each, token in ((feed, at), (several, both)):
        with pytest.raises(
            SourceError, match=r"does not name its row's id: .*identity has changed"
        ):
            rows(each, token, each.latest(token, NO_LIMIT))
