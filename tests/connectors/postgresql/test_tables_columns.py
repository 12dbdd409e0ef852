"""Several tables by one slot, whose columns change, on a real server."""

import random
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from spark_channel.connectors.base.feed import ChangeFeed, FeedLimit
from spark_channel.connectors.postgresql.log.tables import TablesFeed
from spark_channel.errors import SchemaError
from tests.connectors.postgresql.log.test_tables import NO_LIMIT, Shop, begin, follow, waits
from tests.servers.postgres import PostgresServer

OWN = ("_op", "_lsn", "_commit_ts", "_table")


@pytest.fixture
def shop(postgres_server: PostgresServer) -> Iterator[Shop]:
    made = Shop(postgres_server, "orders", "items")
    yield made
    made.drop()


def batches(feed: ChangeFeed, after: Any, upto: Any, name: str = "items") -> list[pa.RecordBatch]:
    """Those of one table."""
    return [
        batch
        for split in feed.changes(after, upto)
        for batch in feed.read(split)
        if batch["_table"][0].as_py().endswith(f".{name}")
    ]


def brief(found: list[pa.RecordBatch]) -> list[dict[str, Any]]:
    """The rows, without what is the feed's own, but with the operation."""
    return [
        {name: value for name, value in row.items() if name == "_op" or name not in OWN}
        for batch in found
        for row in batch.to_pylist()
    ]


def kinds(batch: pa.RecordBatch) -> dict[str, str]:
    return {each.name: str(each.type) for each in batch.schema if each.name not in OWN}


def test_a_table_evolves_while_it_is_followed(shop: Shop) -> None:
    """Rows from before a change have the columns of then, and rows behind it the new ones; without a restart."""
    feed = shop.feed(mode="evolve")
    at, _ = follow(feed, begin(feed))
    shop.run(
        "INSERT INTO $s.items VALUES (1, 'a'); ALTER TABLE $s.items ADD n smallint DEFAULT 7; "
        "INSERT INTO $s.items VALUES (2, 'b', 1); INSERT INTO $s.orders VALUES (1, 'x'); "
        "ALTER TABLE $s.items RENAME item TO label; ALTER TABLE $s.items ALTER n TYPE numeric(9,2); "
        "UPDATE $s.items SET n = 2.25 WHERE id = 1; "
        "ALTER TABLE $s.items DROP label; DELETE FROM $s.items WHERE id = 2; TRUNCATE $s.items"
    )
    end = feed.latest(at, NO_LIMIT)
    found = batches(feed, at, end)
    assert [kinds(each) for each in found] == [
        {"id": "int32", "item": "string"},
        {"id": "int32", "item": "string", "n": "int16"},
        {"id": "int32", "label": "string", "n": "decimal128(9, 2)"},
        {"id": "int32", "n": "decimal128(9, 2)"},
    ]
    assert [
        (str(each["n"]) if "n" in each else None, each["_op"], each["id"]) for each in brief(found)
    ] == [
        (None, "insert", 1),
        ("1", "insert", 2),
        ("2.25", "update", 1),
        ("None", "delete", 2),
        ("None", "truncate", None),
    ]
    assert [kinds(each) for each in batches(feed, at, end, "orders")] == [
        {"id": "int32", "item": "string"}
    ]
    again = shop.feed(mode="evolve")
    assert [each.to_pylist() for each in batches(again, at, end)] == [
        each.to_pylist() for each in found
    ]
    shop.run("INSERT INTO $s.items VALUES (3, 0)")
    assert brief(batches(feed, end, feed.latest(end, NO_LIMIT)))[0]["id"] == 3


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (
            "ALTER item TYPE int USING 5",
            "has column 'item' of another type.*Run .*tunnel resnapshot",
        ),
        ("ALTER id TYPE smallint", "column 'id' of another type"),
        ("DROP id, ADD no int GENERATED ALWAYS AS IDENTITY PRIMARY KEY", "lost key column 'id'"),
        ("DROP CONSTRAINT items_pkey, ADD no serial PRIMARY KEY", "new key column 'no'"),
        ("ADD many int[]", "is an array.*onSchemaChange=ignore"),
        (
            "ADD twice int GENERATED ALWAYS AS (id * 2) STORED",
            "is generated.*onSchemaChange=ignore",
        ),
        ("ADD _op text", "column '_op', which is a name of the feed's own.*onSchemaChange=ignore"),
    ],
)
def test_what_a_table_cannot_evolve_to_is_told_before_a_range_is_planned(
    shop: Shop, change: str, what: str
) -> None:
    shop.run("INSERT INTO $s.items VALUES (1, 'a')")
    feed = shop.feed(mode="evolve")
    at, _ = follow(feed, begin(feed))
    shop.run(
        f"INSERT INTO $s.items VALUES (2, 'b'); ALTER TABLE $s.items {change}; INSERT INTO $s.orders VALUES (1, 'x')"
    )
    with pytest.raises(SchemaError, match=rf"{shop.name}\.items'.*{what}"):
        feed.latest(at, NO_LIMIT)


@pytest.mark.parametrize("mode", ["fail", "evolve", "ignore"])
@pytest.mark.parametrize("is_made_again", [False, True], ids=["altered", "made again"])
def test_a_table_that_is_refused_is_read_again_and_the_others_continue(
    shop: Shop, mode: str, is_made_again: bool
) -> None:
    shop.run("INSERT INTO $s.items VALUES (1, 'a'), (2, 'b')")
    feed = shop.feed(mode=mode)
    at, _ = follow(feed, begin(feed))
    shop.run("UPDATE $s.items SET item = 'before'; INSERT INTO $s.orders VALUES (1, 'x')")
    if is_made_again:
        shop.run("DROP TABLE $s.items")
        shop.add("items", "id int PRIMARY KEY, item int")
        shop.run("INSERT INTO $s.items VALUES (1, 5), (2, 5)")
    else:
        shop.run("ALTER TABLE $s.items ALTER item TYPE int USING 5")
    with pytest.raises(Exception, match="tunnel resnapshot"):
        feed.latest(at, NO_LIMIT)
    at = shop.feed(mode=mode).joining(f"{shop.name}.items", again=True)(at)
    shop.run("UPDATE $s.items SET item = 6 WHERE id = 2; INSERT INTO $s.orders VALUES (2, 'y')")
    orders, items = [], []
    while waits(at):
        end = feed.latest(at, NO_LIMIT)
        orders += brief(batches(feed, at, end, "orders"))
        items += brief(batches(feed, at, end))
        feed.settle(end)
        at = end
    assert [row["id"] for row in orders] == [1, 2], "nothing of the others is lost, or comes twice"
    assert [row["_op"] for row in items] == ["update", "read", "read"]
    assert {row["id"]: row["item"] for row in items} == {1: 5, 2: 6}


def test_a_tunnel_that_ended_with_an_error_continues_without_loss_when_it_may(shop: Shop) -> None:
    feed = shop.feed()
    at, _ = follow(feed, begin(feed))
    shop.run("INSERT INTO $s.items VALUES (1, 'a'); ALTER TABLE $s.items ADD n int")
    shop.run("INSERT INTO $s.items VALUES (2, 'b', 2); INSERT INTO $s.orders VALUES (1, 'x')")
    for each in (feed, shop.feed()):
        with pytest.raises(
            SchemaError,
            match=rf"'{shop.name}\.items' has a new column 'n' .*onSchemaChange=evolve .*ignore .*tunnel resnapshot",
        ):
            each.latest(at, NO_LIMIT)
    evolving = shop.feed(mode="evolve")
    end = evolving.latest(at, NO_LIMIT)
    assert brief(batches(evolving, at, end)) == [
        {"_op": "insert", "id": 1, "item": "a"},
        {"_op": "insert", "id": 2, "item": "b", "n": 2},
    ]
    shop.run("INSERT INTO $s.items VALUES (3, 'c', 3)")
    last = feed.latest(end, NO_LIMIT)
    assert brief(batches(feed, end, last)) == [{"_op": "insert", "id": 3, "item": "c", "n": 3}]
    ignoring = shop.feed(mode="ignore")
    assert [list(row) for row in brief(batches(ignoring, at, ignoring.latest(at, NO_LIMIT)))] == [
        ["id", "item", "_op"]
    ] * 3


def test_a_table_keeps_its_columns_where_changes_are_ignored(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    """Also when its client starts again: a range has the same rows whoever reads it."""
    feed = shop.feed(mode="ignore")
    at, _ = follow(feed, begin(feed))
    shop.run(
        "INSERT INTO $s.items VALUES (1, 'a'); ALTER TABLE $s.items ADD n int[]; "
        "INSERT INTO $s.items VALUES (2, 'b', '{1}'); ALTER TABLE $s.items DROP item; "
        "INSERT INTO $s.items VALUES (3, '{2}')"
    )
    end = feed.latest(at, NO_LIMIT)
    expected = [
        {"_op": "insert", "id": 1, "item": "a"},
        {"_op": "insert", "id": 2, "item": "b"},
        {"_op": "insert", "id": 3, "item": None},
    ]
    assert brief(batches(feed, at, end)) == expected
    assert brief(batches(shop.feed(mode="ignore"), at, end)) == expected
    messages = [
        each.getMessage() for each in caplog.records if "onSchemaChange=ignore" in each.getMessage()
    ]
    assert sorted(each.split("column ")[1].split(" ")[0] for each in messages) == [
        "'item'",
        "'n'",
    ], "once each"
    shop.run("INSERT INTO $s.items VALUES (4)")
    later = shop.feed(mode="ignore")
    last = later.latest(end, NO_LIMIT)
    assert brief(batches(later, end, last)) == [{"_op": "insert", "id": 4, "item": None}]
    shop.run("ALTER TABLE $s.items DROP n; INSERT INTO $s.items VALUES (5)")
    evolving = shop.feed(mode="evolve")
    assert brief(batches(evolving, last, evolving.latest(last, NO_LIMIT))) == [
        {"_op": "insert", "id": 5}
    ]
    shop.run("ALTER TABLE $s.items ALTER id TYPE bigint")
    with pytest.raises(
        SchemaError, match=r"column 'id' of .*items'.*onSchemaChange=evolve.*resnapshot"
    ):
        later.latest(last, NO_LIMIT)


@pytest.mark.parametrize("mode", ["fail", "ignore", "evolve"])
def test_columns_that_change_while_existing_rows_are_read(shop: Shop, mode: str) -> None:
    """A range that was assigned is read all the same; the next one fails, where that is asked for."""
    shop.run("INSERT INTO $s.items SELECT i, 'old' FROM generate_series(1, 250) i")
    feed = shop.feed("$s.items", mode=mode)
    at = begin(feed)
    end = feed.latest(at, FeedLimit(rows=100))
    shop.run(
        "ALTER TABLE $s.items ADD n int DEFAULT 7, DROP item; UPDATE $s.items SET n = 8 WHERE id = 1"
    )
    found = batches(shop.feed("$s.items", mode=mode), at, end)
    expected = {"id", "n"} if mode == "evolve" else {"id", "item"}
    assert {name for each in found for name in kinds(each)} == expected
    assert sorted(row["id"] for row in brief(found)) == list(range(2, 101)), (
        "the row that changed comes later"
    )
    if mode == "fail":
        with pytest.raises(SchemaError, match=r"items' has lost column 'item'"):
            feed.latest(end, NO_LIMIT)
        end = feed.joining(f"{shop.name}.items", again=True)(end)
        found = []
    while waits(end):
        after = feed.latest(end, FeedLimit(rows=100))
        found += batches(feed, end, after)
        end = after
    state = {row["id"]: row.get("n") for row in brief(found)}
    assert state.keys() == set(range(1, 251))
    if mode != "ignore":
        assert (state[1], state[250]) == (8, 7)


def test_a_change_between_two_chunks_of_one_range(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    from spark_channel.connectors.sql.feed import base_chunk

    monkeypatch.setattr(base_chunk, "_CHUNK_ROWS", 100)
    shop.run("INSERT INTO $s.items SELECT i, 'old' FROM generate_series(1, 300) i")
    feed = shop.feed("$s.items", mode="evolve")
    at = begin(feed)
    (split,) = feed.changes(at, feed.latest(at, NO_LIMIT))
    found: list[pa.RecordBatch] = []
    for batch in feed.read(split):
        if not found:
            shop.run("ALTER TABLE $s.items ADD n int DEFAULT 7")
        found.append(batch)
    assert [(list(kinds(each)), each.num_rows) for each in found] == [
        (["id", "item"], 100),
        (["id", "item", "n"], 100),
        (["id", "item", "n"], 100),
    ]


def test_a_refused_change_is_not_handed_out(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when it is made between the look at the tables and at the log: a range that has it could never be read."""
    feed = shop.feed()
    at, _ = follow(feed, begin(feed))
    original = TablesFeed._planned

    def planned(*given: Any) -> Any:
        shop.run(
            "ALTER TABLE $s.items ADD IF NOT EXISTS n int; INSERT INTO $s.items VALUES (1, 'a', 1)"
        )
        return original(*given)

    monkeypatch.setattr(TablesFeed, "_planned", planned)
    with pytest.raises(SchemaError, match="new column 'n'"):
        feed.latest(at, NO_LIMIT)


@pytest.mark.parametrize("mode", ["fail", "ignore"])
def test_columns_that_changed_and_changed_back_are_seen_in_the_log(shop: Shop, mode: str) -> None:
    feed = shop.feed(mode=mode)
    at, _ = follow(feed, begin(feed))
    shop.run(
        "ALTER TABLE $s.items ALTER item TYPE int USING 1; INSERT INTO $s.items VALUES (1, 5); "
        "ALTER TABLE $s.items ALTER item TYPE text USING item::text; INSERT INTO $s.items VALUES (2, 'b')"
    )
    end = feed.latest(at, NO_LIMIT)
    with pytest.raises(SchemaError, match=r"column 'item' of another type.*onSchemaChange=evolve"):
        batches(feed, at, end)
    found = brief(batches(shop.feed(mode="evolve"), at, end))
    assert [(row["id"], row["item"]) for row in found] == [(1, 5), (2, "b")]
    shop.run("INSERT INTO $s.items VALUES (3, 'c')")
    assert brief(batches(feed, end, feed.latest(end, NO_LIMIT)))[0]["item"] == "c"


def test_types_of_the_log_are_those_of_a_read(shop: Shop) -> None:
    """Also of the user's own types, and of rows from before such a type was dropped."""
    shop.run(
        "CREATE TYPE $s.mood AS ENUM ('sad', 'ok'); CREATE DOMAIN $s.small AS numeric(5,2); "
        "CREATE DOMAIN $s.many AS bigint"
    )
    shop.add(
        "all",
        "id bigint PRIMARY KEY, e $s.mood, d $s.small, b bool, r real, x bytea, day date, tm time, "
        "ts timestamp, tz timestamptz, j jsonb, u uuid, num numeric(20,4), free numeric, c char(3), v varchar(9), "
        "i interval",
    )
    feed = shop.feed("$s.all", mode="evolve")
    (at,) = feed.now()
    shop.run(
        "INSERT INTO $s.all VALUES (1, 'ok', 1.25, true, 1.5, '\\x00ff', '2026-02-03', '12:34:56', "
        "'2026-02-03 04:05:06', '2026-02-03 04:05:06+02', '{}', '00000000-0000-0000-0000-000000000001', 1.5, 2.5, "
        "'ab', 'v', '1 day'); ALTER TABLE $s.all ADD m $s.many; UPDATE $s.all SET m = 5"
    )
    end = feed.latest(at, NO_LIMIT)
    old, new = batches(shop.feed("$s.all", mode="evolve"), at, end, "all")
    reader = shop.reader(dbtable=f"{shop.name}.all")
    plain = reader.schema()
    assert new.schema.names[: len(plain)] == plain.names
    assert [field.type for field in new.schema][: len(plain)] == [field.type for field in plain]
    (read,) = [
        row
        for split in reader.split(1)
        for batch in reader.read(split)
        for row in batch.to_pylist()
    ]
    assert {name: new.to_pylist()[0][name] for name in read} == read
    assert {
        **old.to_pylist()[0],
        "m": 5,
        "_op": "",
        "_lsn": "",
        "_commit_ts": "",
        "_table": "",
    } == {
        **new.to_pylist()[0],
        "_op": "",
        "_lsn": "",
        "_commit_ts": "",
        "_table": "",
    }
    shop.run("ALTER TABLE $s.all DROP m; DROP DOMAIN $s.many")
    _, again = batches(shop.feed("$s.all", mode="evolve"), at, end, "all")
    assert again.to_pylist()[0]["m"] == "5"


def test_with_replica_identity_full_a_key_that_changes_is_told_with_any_columns(shop: Shop) -> None:
    shop.run("ALTER TABLE $s.items REPLICA IDENTITY FULL; INSERT INTO $s.items VALUES (1, 'a')")
    feed = shop.feed(mode="evolve")
    at, _ = follow(feed, begin(feed))
    shop.run(
        "UPDATE $s.items SET id = 2; ALTER TABLE $s.items DROP item, ADD n int; UPDATE $s.items SET id = 3, n = 1"
    )
    found = brief(batches(feed, at, feed.latest(at, NO_LIMIT)))
    assert found == [
        {"_op": "delete", "id": 1, "item": "a"},
        {"_op": "update", "id": 2, "item": "a"},
        {"_op": "delete", "id": 2, "n": None},
        {"_op": "update", "id": 3, "n": 1},
    ]


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(1, 20))]
)
def test_a_copy_is_equal_whatever_columns_its_tables_get_and_lose(shop: Shop, seed: int) -> None:
    """Changes and existing rows, of two tables, with ALTER TABLE at any place of any range."""
    chance = random.Random(seed)
    names = {"orders": ["item"], "items": ["item"]}
    shop.run(
        "INSERT INTO $s.orders SELECT i, 'old' FROM generate_series(1, 200) i;"
        "INSERT INTO $s.items SELECT i, 'old' FROM generate_series(1, 200) i"
    )
    feed = shop.feed(mode="evolve")
    at = begin(feed)
    number = 0
    renamed: set[str] = set()
    copy: dict[str, dict[int, dict[str, Any]]] = {"orders": {}, "items": {}}

    def take(end: Any) -> None:
        for split in feed.changes(at, end):
            for batch in feed.read(split):
                rows = copy[batch["_table"][0].as_py().rpartition(".")[2]]
                for row in batch.to_pylist():
                    if row["_op"] == "delete":
                        rows.pop(row["id"], None)
                    else:
                        rows.setdefault(row["id"], {}).update(row)
        feed.settle(end)

    def change() -> None:
        nonlocal number
        statements = []
        for _ in range(chance.randrange(1, 12)):
            number += 1
            name = chance.choice(list(names))
            table, key, what = f"$s.{name}", chance.randrange(1, 260), chance.random()
            if what < 0.12:
                statements.append(
                    f"ALTER TABLE {table} ADD c{number} {chance.choice(['smallint', 'text'])}"
                )
                names[name].append(f"c{number}")
            elif what < 0.2 and len(names[name]) > 1:
                lost = names[name].pop(chance.randrange(len(names[name])))
                statements.append(f"ALTER TABLE {table} DROP {lost}")
            elif what < 0.25:
                place = chance.randrange(len(names[name]))
                statements.append(f"ALTER TABLE {table} RENAME {names[name][place]} TO c{number}")
                names[name][place] = f"c{number}"
                renamed.add(f"c{number}")
            elif what < 0.4:
                statements.append(f"DELETE FROM {table} WHERE id = {key}")
            else:
                columns = ", ".join(["id", *names[name]])
                values = ", ".join([str(key), *(f"'{number}'" for _ in names[name])])
                sets = ", ".join(f"{each} = EXCLUDED.{each}" for each in names[name])
                statements.append(
                    f"INSERT INTO {table} ({columns}) VALUES ({values}) ON CONFLICT (id) DO UPDATE SET {sets}"
                )
            if chance.random() < 0.1:
                statements.append("COMMIT; BEGIN")
        shop.run("BEGIN;" + ";".join(statements) + "; COMMIT")

    for _ in range(25):
        change()
        end = feed.latest(at, FeedLimit(rows=40))
        change()
        if chance.random() < 0.3:
            feed = shop.feed(mode="evolve")
        take(end)
        at = end
    while waits(at) or feed.latest(at, NO_LIMIT) != at:
        end = feed.latest(at, FeedLimit(rows=40))
        take(end)
        at = end
    for name, columns in names.items():
        listed = ", ".join(["id", *(f"{each}::text" for each in columns)])
        lines = [
            line.split("|") for line in shop.run(f"SELECT {listed} FROM $s.{name}").splitlines()
        ]
        assert copy[name].keys() == {int(line[0]) for line in lines}
        for line in lines:
            mine = copy[name][int(line[0])]
            for column, text in zip(columns, line[1:], strict=True):
                value = mine.get(column)
                # A renamed column is a new one: its values from before are not in the log.
                if value is not None or column not in renamed:
                    assert ("\\N" if value is None else str(value)) == text
