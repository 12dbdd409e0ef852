"""Several tables by one log, of which some join later or are read again, against a model with concurrent writers."""

import itertools
import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_channel.connectors.postgresql.log.columns import LogColumn, TableColumns
from spark_channel.connectors.postgresql.log.entries import differ
from spark_channel.connectors.postgresql.log.tables_token import TablePlace, TablesToken
from spark_channel.connectors.sql.feed.incremental_snapshot import (
    BaseProgress,
    ChunkRange,
    ChunkWindow,
    Key,
    read_windows,
)
from spark_channel.errors import SourceError, TunnelError
from tests.tunnel.table_model import Event, ModelChunk, ModelLog, Table, play

KEYS = 6
"""Keys of each table: table n has those from n * KEYS on."""

Row = tuple[str, Event]


def shape(**columns: int) -> TableColumns:
    return TableColumns(tuple(LogColumn(name, oid) for name, oid in columns.items()), ("id",))


SHAPE = shape(id=23)


def name_of(key: int) -> str:
    return f"t{key // KEYS}"


def number_of(name: str) -> int:
    return int(name[1:])


Unpublished = dict[str, dict[int, int]]
"""By table and transaction: how many of its changes came before the publication had the table. The log lacks them."""


class TableLog:
    """The chunks of one table, and the changes of all that are followed."""

    def __init__(
        self,
        log: ModelLog,
        name: str,
        followed: list[str],
        unpublished: Unpublished,
        begins: dict[str, int],
    ) -> None:
        self.log, self.name, self.followed, self.unpublished = log, name, followed, unpublished
        self.begins = begins
        self.low = number_of(name) * KEYS - 1

    def mark(self) -> int:
        return self.log.mark()

    def last(self) -> int | None:
        keys = [key for key in self.log.table.rows if name_of(key) == self.name]
        return max(keys, default=None)

    def bound(self, lower: Key | None, upper: Key, rows: int) -> Key | None:
        return self.log.bound(lower or (self.low,), upper, rows)

    def chunk(self, lower: Key | None, upper: Key, rows: int) -> "NamedChunk":
        return NamedChunk(self.log.chunk(lower or (self.low,), upper, rows), self.name)

    def events(self, after: int, upto: int, high: int, window: ChunkWindow) -> Iterator[Row]:
        return self.beside(after, upto, high, {self.name: window})

    def beside(
        self, after: int, upto: int, high: int, windows: Mapping[str, ChunkWindow]
    ) -> Iterator[Row]:
        log = self.log
        log.others()
        for each in list(log.table.log):
            assert each.commit is not None
            if each.commit < log.confirmed or each.commit >= max(high, upto):
                continue
            holding = {
                name: window
                for name, window in windows.items()
                if window.holds(each.commit >= after, each.number)
            }
            for place, event in enumerate(each.events):
                names = self.followed if event[0] == "truncate" else [name_of(event[1])]
                for name in names:
                    if name not in self.followed or place < self.unpublished[name].get(
                        each.number, 0
                    ):
                        continue
                    if each.commit < self.begins[name]:
                        continue
                    if name in holding:
                        if event[0] == "truncate":
                            holding[name].emptied()
                        else:
                            holding[name].changed((event[1],))
                    if after <= each.commit < upto:
                        yield name, event
        log.others()


class NamedChunk:
    def __init__(self, chunk: ModelChunk, name: str) -> None:
        self.inner, self.name = chunk, name
        self.last, self.nbytes, self.sees = chunk.last, chunk.nbytes, chunk.sees

    def kept(self, window: ChunkWindow) -> Iterator[Row]:
        for event in self.inner.kept(window):
            yield self.name, event


class Sizes:
    def __init__(self, log: ModelLog) -> None:
        self.log = log

    def count(self, name: str, base: BaseProgress, most: int) -> int:
        low: int = (base.after or (number_of(name) * KEYS - 1,))[0]
        upper: int = base.until[0]
        return min(most, sum(low < key <= upper for key in self.log.table.rows))

    def bound(self, name: str, base: BaseProgress, rows: int) -> Key | None:
        return TableLog(self.log, name, [], {}, {}).bound(base.after, base.until, rows)


@dataclass
class Client:
    """Plans and reads ranges as the feed does; dies, and reads a range again."""

    table: Table
    log: ModelLog
    token: TablesToken
    joined: dict[str, int]
    unpublished: Unpublished
    ranges: list[tuple[int, list[Row]]] = field(default_factory=list)
    restarts: list[tuple[int, str]] = field(default_factory=list)
    """How many ranges there were when a table was to be read again."""
    shared: int = 0
    """The most tables that had a chunk in one range."""

    @classmethod
    def of(cls, table: Table, names: list[str]) -> "Client":
        table.settle()
        start = table.position = table.position + 10
        log = ModelLog(table, start)
        log.others()
        places = {}
        for name in names:
            last = TableLog(log, name, names, {}, {}).last()
            base = None if last is None else BaseProgress(None, (last,), start, start)
            places[name] = TablePlace(
                number_of(name), "", SHAPE, None if base is None else start, base
            )
        token = TablesToken(start, places, start, start)
        return cls(table, log, token, dict.fromkeys(names, start), {name: {} for name in names})

    def join(self, name: str) -> None:
        """The publication gets the table, or had it, and then the tunnel: which may be behind the log."""
        table, chance = self.table, self.table.chance
        is_new = chance.random() < 0.5
        known = {each.number: len(each.events) for each in [*table.open, *table.log]}
        self.unpublished[name] = known if is_new else {}
        self.log.others()
        self.token = self.token.joined(name, number_of(name), "", SHAPE, table.position)
        self.log.others()
        self.joined[name] = self.token.tables[name].since or 0

    def restart(self, name: str) -> None:
        self.token = self.token.restarted(name, number_of(name), "", SHAPE)
        self.restarts.append((len(self.ranges), name))

    def plan(self, chance: random.Random) -> TablesToken:
        log, old = self.log, self.token
        log.others()
        end = max(old.lsn, self.table.position - (30 if chance.random() < 0.2 else 0))
        if old.is_read:
            return old.seen(end, ())
        log.mark()
        after = old.seen(end, log.running())
        names = after.due() if chance.random() < 0.9 else []
        begun = [name for name in names if after.tables[name].base is not None]
        if begun:
            return after.with_chunks(begun, chance.randrange(1, 10), Sizes(log))
        for name in names:
            last = TableLog(log, name, [], {}, {}).last()
            after = after.started(name, None if last is None else BaseProgress(None, (last,)))
        return after

    def range(self, chance: random.Random) -> None:
        old, new = self.token, self.plan(chance)
        followed = list(old.tables)
        chunks = old.chunks_to(new)
        self.shared = max(self.shared, len(chunks))
        while True:
            found: list[Row] = []
            begins = old.begins() | {name: place.since for name, place, _ in chunks}
            logs = {
                name: TableLog(self.log, name, followed, self.unpublished, begins)
                for name, _, _ in chunks
            }
            ranges = [
                ChunkRange(name, logs[name], place.base.after, upper, chance.randrange(1, 4))
                for name, place, upper in chunks
            ]
            if ranges:
                beside = partial(logs[ranges[0].name].beside, old.lsn)
                found += read_windows(ranges, old.lsn, new.lsn, beside)
            if not chunks:
                log = TableLog(self.log, followed[0], followed, self.unpublished, old.begins())
                found += log.events(old.lsn, new.lsn, new.lsn, ChunkWindow(lambda _: True))
            if chance.random() < 0.8:
                break  # else it died before all was delivered, and reads it again
            for _ in range(chance.randrange(20)):
                self.table.step()
        self.ranges.append((old.lsn, found))
        self.token = TablesToken.read(json.loads(json.dumps(new.token())))
        if chance.random() < 0.8:
            self.log.confirmed = max(self.log.confirmed, self.token.confirmable)


def run(seed: int, *, truncates: bool) -> Client:
    chance = random.Random(seed)
    table = Table(chance, 3 * KEYS, can_truncate=truncates)
    for _ in range(chance.randrange(200)):
        table.step()
    client = Client.of(table, ["t0", "t1"][: chance.randrange(1, 3)])
    changes = 0
    while changes < 3 or not client.token.is_read:
        if changes < 3 and chance.random() < 0.2:
            changes += 1
            name = f"t{chance.randrange(3)}"
            if name in client.token.tables:
                client.restart(name)
            else:
                client.join(name)
        client.range(chance)
        assert len(client.ranges) < 5_000, "it does not end"
    table.settle()
    table.is_quiet = True
    table.position += 100
    while client.token.lsn < table.position:
        client.range(chance)
    return client


def check(client: Client) -> None:
    out = [row for _, found in client.ranges for row in found]
    for name in client.token.tables:
        rows = [event for each, event in out if each == name]
        events = [
            event
            for each in client.table.log
            if each.commit is not None and each.commit >= client.joined[name]
            for place, event in enumerate(each.events)
            if (event[0] == "truncate" or name_of(event[1]) == name)
            and place >= client.unpublished[name].get(each.number, 0)
        ]
        assert [event for event in rows if event[0] != "read"] == events, (
            "each event once, in commit order"
        )
        applied: dict[int, int] = {}
        play(applied, rows)
        now = {key: value for key, value in client.table.rows.items() if name_of(key) == name}
        assert applied == now, "target and source are equal"
        marks = [0, *(place for place, each in client.restarts if each == name), len(client.ranges)]
        for start, end in itertools.pairwise(marks):
            reads = [
                event[1]
                for _, found in client.ranges[start:end]
                for each, event in found
                if each == name and event[0] == "read"
            ]
            assert len(reads) == len(set(reads)), "no existing row twice"
    state: dict[int, int] = {}
    commits = [(each.commit, each.events) for each in client.table.log]
    for after, found in client.ranges:
        changed = {event[1] for _, event in found if event[0] != "read"}
        while commits and (commits[0][0] or 0) < after:
            play(state, commits.pop(0)[1])
        for name, (what, key, value) in found:
            # If the publication got a table later, the log alone does not show the table's state.
            if what == "read" and not client.unpublished[name]:
                assert state.get(key) == value, "a row is what the log before its range made of it"
                assert key not in changed, "no key is in both the changes and the chunk of a range"


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32), st.booleans())
def test_tables_that_join_and_are_read_again_are_equal(seed: int, truncates: bool) -> None:
    check(run(seed, truncates=truncates))


@pytest.mark.soak
@pytest.mark.parametrize("part", range(4))
def test_tables_are_equal_in_many_histories(part: int) -> None:
    for seed in range(part * 5_000, (part + 1) * 5_000):
        check(run(seed, truncates=bool(seed % 2)))


def many(seeds: range) -> None:
    for seed in seeds:
        check(run(seed, truncates=False))


def test_tables_of_a_history_share_ranges() -> None:
    assert max(run(seed, truncates=False).shared for seed in range(50)) >= 2


def _eager(self: TablesToken) -> list[str]:
    return [name for name, each in self.tables.items() if each.since is not None]


def _early(self: TablesToken) -> list[str]:
    return [
        n
        for n, each in self.tables.items()
        if each.base or (each.since is not None and self.safe >= each.since)
    ]


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("due", _eager),
        ("due", _early),
        ("confirmable", property(lambda self: self.lsn)),
    ],
)
def test_the_model_finds_a_rule_that_is_too_weak(
    name: str, broken: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TablesToken, name, broken)
    with pytest.raises(AssertionError):
        many(range(3_000))


def one() -> TablesToken:
    return TablesToken(100, {"shop.a": TablePlace(1, "x", SHAPE)})


def test_a_table_joins_once_and_only_one_that_is_there_is_read_again() -> None:
    more = one().joined("shop.b", 2, "y", SHAPE)
    assert more.tables["shop.b"].since == 100
    with pytest.raises(TunnelError, match=r"has table 'shop\.b' already"):
        more.joined("shop.b", 2, "y", SHAPE)
    with pytest.raises(
        TunnelError, match=r"has no table 'shop\.c': it has shop\.a, shop\.b.*add-table"
    ):
        more.restarted("shop.c", 3, "z", SHAPE)


def test_a_table_is_followed_from_where_its_columns_were_looked_at() -> None:
    """Changes that the tunnel has not read yet may have others."""
    behind = one().joined("shop.b", 2, "y", SHAPE, 150)
    assert behind.begins() == {"shop.a": 100, "shop.b": 150}
    assert behind.restarted("shop.b", 2, "y", SHAPE).begins() == behind.begins()
    assert behind.seen(140, []).due() == []
    assert behind.seen(160, []).begins() == {"shop.a": 160, "shop.b": 160}
    assert one().joined("shop.b", 2, "y", SHAPE, 50).begins() == {"shop.a": 100, "shop.b": 100}


def test_a_table_that_came_back_to_its_publication_is_followed_from_where_it_was_there_again() -> (
    None
):
    """Transactions that ran then may have changed it before; its existing rows wait for their end."""
    known = one().held_by({1: ("r5",), 2: ("r6",)})
    assert TablesToken.read(json.loads(json.dumps(known.token()))) == known
    assert known.tables["shop.a"].entries == ("r5",)
    assert known.held_by({}) == known
    back = known.restarted("shop.a", 1, "x", SHAPE, 150, ("r7",)).tables["shop.a"]
    assert (back.since, back.entries) == (150, ("r7",))
    stayed = known.restarted("shop.a", 1, "x", SHAPE, 150, ("r5", "s8")).tables["shop.a"]
    assert (stayed.since, stayed.entries) == (100, ("r5", "s8"))


def test_a_table_that_has_other_columns_is_read_again_from_where_it_has_them() -> None:
    """Earlier changes in the log have others; unless the table continues with those of the log."""
    old, new = shape(id=23), shape(id=23, n=23)
    known = one().joined("shop.b", 2, "y", old)
    again = known.restarted("shop.b", 2, "z", new, 150).tables["shop.b"]
    assert (again.since, again.columns, again.shape) == (150, "z", new)
    evolved = known.restarted("shop.b", 2, "z", new, 150, (), lambda *_: True).tables["shop.b"]
    assert (evolved.since, evolved.columns, evolved.shape) == (100, "z", new)
    refused = known.restarted("shop.b", 2, "z", new, 150, (), lambda *_: False).tables["shop.b"]
    assert refused.since == 150
    made_again = known.restarted("shop.b", 3, "y", old, 150, (), lambda *_: True).tables["shop.b"]
    assert (made_again.oid, made_again.since) == (3, 150)


def test_a_table_is_removed_and_the_others_stay_where_they_are() -> None:
    both = one().joined("shop.b", 2, "y", SHAPE, 150)
    left = both.left("shop.b")
    assert (left.lsn, dict(left.tables), left.removed) == (100, dict(one().tables), ("shop.b",))
    assert left.is_read, "nothing else waits"
    assert TablesToken.read(json.loads(json.dumps(left.token()))) == TablesToken(
        100, one().tables, removed=("shop.b",)
    )
    assert left.joined("shop.b", 2, "y", SHAPE).removed == ()
    with pytest.raises(TunnelError, match=r"has no table 'shop\.c': it has shop\.a"):
        left.left("shop.c")
    with pytest.raises(TunnelError, match="only one"):
        left.left("shop.a")


def test_what_existing_rows_wait_for() -> None:
    known = one().joined("shop.b", 2, "y", SHAPE, 150)
    assert known.awaited() == [], "it is not known yet"
    waits = known.seen(160, [7, 8])
    assert (waits.awaited(), waits.doubt) == (["shop.b"], (7, 8))
    assert waits.seen(170, [8, 9]).awaited() == ["shop.b"]
    assert waits.seen(170, []).awaited() == []
    assert one().awaited() == []


def test_columns_are_kept() -> None:
    kept = TableColumns((LogColumn('a "b, c"', 1700, 524294), LogColumn("id", 23)), ("id",))
    token = one().reshaped({"shop.a": ("z", kept)})
    noted = token.token()
    assert noted["tables"]["shop.a"]["shape"] == {
        "columns": [['a "b, c"', 1700, 524294], ["id", 23]],
        "key": ["id"],
    }
    assert TablesToken.read(json.loads(json.dumps(noted))) == token
    kept = TableColumns(kept.columns, ("id",), ("id", 'a "b, c"'))
    token = one().reshaped({"shop.a": ("z", kept)})
    assert TablesToken.read(json.loads(json.dumps(token.token()))) == token


def test_entries_of_an_older_version_are_those_without_a_transaction() -> None:
    assert not differ(("r5",), ("r5@77",))
    assert differ(("r5",), ("r6@77",))
    assert differ(("r5@76",), ("r5@77",))
    assert not differ((), ("r5@77",))


def test_the_log_is_kept_from_where_a_table_joined() -> None:
    waits = one().joined("shop.b", 2, "y", SHAPE)
    assert (waits.confirmable, waits.due()) == (100, [])
    doubt = waits.seen(150, [7])
    assert (doubt.confirmable, doubt.due()) == (100, [])
    safe = doubt.seen(200, [])
    assert (safe.confirmable, safe.due()) == (200, ["shop.b"])
    begun = safe.started("shop.b", BaseProgress(None, (9,)))
    assert safe.chunks_to(begun) == []
    done = begun.advanced("shop.b", None, 5)
    assert begun.chunks_to(done) == [("shop.b", begun.tables["shop.b"], (9,))]
    assert done.is_read
    assert done.token() == {
        "lsn": "00000000/000000C8",
        "tables": {
            "shop.a": {"oid": 1, "columns": "x", "shape": SHAPE.noted()},
            "shop.b": {"oid": 2, "columns": "y", "shape": SHAPE.noted()},
        },
    }


PLACE = {"oid": 1, "columns": "x", "shape": SHAPE.noted()}


@pytest.mark.parametrize(
    "damage",
    [
        {"tables": {}},
        {"tables": None},
        {"tables": {"a": {}}},
        {"tables": {"a": {"oid": 1, "columns": "x"}}},
        {"lsn": 7},
        {"base": None},
        {"base": {"doubt": ["x"]}},
        {"tables": {"a": {**PLACE, "base": {"after": None}}}},
        {"tables": {"a": {**PLACE, "entries": [5]}}},
        {
            "tables": {
                "a": {"oid": 1, "columns": "x", "shape": {"columns": [["id", "23"]], "key": []}}
            }
        },
        {"tables": {"a": {"oid": 1, "columns": "x", "shape": {"columns": [], "key": []}}}},
        {"tables": {"a": {"oid": 1, "columns": "x", "shape": {"columns": [["id"]], "key": []}}}},
        {"tables": {"a": {"oid": 1, "columns": "x", "shape": {"columns": [["id", 23]]}}}},
    ],
)
def test_a_damaged_token_is_told(damage: dict[str, Any]) -> None:
    token = {**one().joined("b", 2, "y", SHAPE).token(), **damage}
    with pytest.raises(SourceError, match="not a position of several tables"):
        TablesToken.read(token)
