"""Chunks between watermarks, against a model of a table with concurrent writers."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_channel.connectors.sql.feed.incremental_snapshot import BaseProgress, ChunkWindow
from tests.tunnel.table_model import Client, Table, play


def run(seed: int, keys: int, *, truncates: bool) -> tuple[Client, int]:
    """A tunnel from its creation until everything is read; returns its client, and where it began."""
    chance = random.Random(seed)
    table = Table(chance, keys, can_truncate=truncates)
    for _ in range(chance.randrange(200)):
        table.step()
    client = Client.of(table)
    start = client.at
    while client.base is not None:
        client.range(chance)
    for _ in range(3):
        client.range(chance)
    table.settle()
    table.is_quiet = True
    table.position += 100
    while client.at < table.position:
        client.range(chance)
    return client, start


def check(client: Client, start: int) -> None:
    table = client.table
    events = [
        event
        for each in table.log
        if each.commit is not None and each.commit >= start
        for event in each.events
    ]
    assert [event for event in client.out if event[0] != "read"] == events, (
        "each event once, in commit order"
    )
    reads = [event[1] for event in client.out if event[0] == "read"]
    assert len(reads) == len(set(reads)), "no row of the base twice"
    applied: dict[int, int] = {}
    play(applied, client.out)
    assert applied == table.rows, "target and source are equal"
    state: dict[int, int] = {}
    commits = [(each.commit, each.events) for each in table.log]
    for after, found in client.ranges:
        changed = {event[1] for event in found if event[0] != "read"}
        while commits and (commits[0][0] or 0) < after:
            play(state, commits.pop(0)[1])
        for what, key, value in found:
            if what == "read":
                assert state.get(key) == value, "a row is what the log before its range made of it"
                assert key not in changed, "no key is in both the changes and the chunk of a range"


def many(seeds: range, *, truncates: bool) -> None:
    for seed in seeds:
        check(*run(seed, 12, truncates=truncates))


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([3, 12, 40]), st.booleans())
def test_source_and_target_are_equal(seed: int, keys: int, truncates: bool) -> None:
    check(*run(seed, keys, truncates=truncates))


@pytest.mark.soak
@pytest.mark.parametrize("part", range(4))
def test_source_and_target_are_equal_in_many_histories(part: int) -> None:
    for seed in range(part * 10_000, (part + 1) * 10_000):
        check(*run(seed, (3, 12, 40)[seed % 3], truncates=bool(seed % 2)))


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("holds", lambda _self, is_new, _: is_new),
        ("holds", lambda self, _, transaction: not self._sees(transaction)),
        ("changed", lambda *_: None),
        ("emptied", lambda *_: None),
    ],
)
def test_the_model_finds_a_window_that_is_too_small(
    name: str, broken: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ChunkWindow, name, broken)
    with pytest.raises(AssertionError):
        many(range(3_000), truncates=True)


def test_the_model_finds_a_log_that_is_confirmed_too_far(monkeypatch: pytest.MonkeyPatch) -> None:
    def eager(self: BaseProgress, end: int, _: object) -> BaseProgress:
        return BaseProgress(self.after, self.until, end, end)

    monkeypatch.setattr(BaseProgress, "confirmable", eager)
    with pytest.raises(AssertionError):
        many(range(3_000), truncates=False)


def test_the_log_is_safe_up_to_what_has_ended() -> None:
    base = BaseProgress(None, (9,), 100, 100)
    base = base.confirmable(200, [5, 7])
    assert (base.safe, base.doubt_at, base.doubt) == (100, 200, (5, 7))
    base = base.confirmable(300, [7, 8])
    assert (base.safe, base.doubt_at, base.doubt) == (100, 200, (7,))
    base = base.confirmable(400, [8])
    assert (base.safe, base.doubt_at, base.doubt) == (200, 400, (8,))
    assert base.confirmable(500, []).safe == 500
