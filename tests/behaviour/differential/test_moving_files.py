"""Files that move, grow and change between the plan of a range and its read: all of a range's rows, or an error.

Each file has rows of its own, so a row that is lost or doubled shows which file it was of.
"""

import itertools
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_channel.connectors import load_reader
from spark_channel.connectors.base.feed import ChangeFeed, FeedLimit, FeedOptions
from spark_channel.errors import ChannelError
from tests.behaviour.differential.lengths import either_length, examples

SECOND = 1_000_000_000
LATE = 3_600.0
OFFSETS = (0, 0, 1, -1, -30, -600, 30, 600, 7_200, 400 * 86_400)
"""Seconds behind and ahead of the clock: not as far behind as a file counts as too late."""

steps = st.lists(
    st.tuples(
        st.sampled_from(["add", "add", "touch", "grow", "replace", "remove", "return", "return"]),
        st.integers(0, 9),
        st.sampled_from(OFFSETS),
    ),
    max_size=4,
)


@dataclass(frozen=True)
class Version:
    """A file as it was: its bytes, its time and its rows."""

    data: bytes
    mtime_ns: int
    rows: tuple[int, ...]


@dataclass
class Arrivals:
    folder: Path
    now_ns: int = field(default_factory=time.time_ns)
    there: dict[str, Version] = field(default_factory=dict)
    removed: dict[str, Version] = field(default_factory=dict)
    acted_on: set[str] = field(default_factory=set)
    numbers: Any = field(default_factory=itertools.count)

    def put(self, name: str, version: Version) -> None:
        path = self.folder / name
        other = self.folder / f".{name}"
        other.write_bytes(version.data)
        os.utime(other, ns=(version.mtime_ns, version.mtime_ns))
        other.rename(path)
        self.there[name] = version
        self.acted_on.add(name)

    def remove(self, name: str) -> None:
        (self.folder / name).unlink()
        self.acted_on.add(name)
        self.removed[name] = self.there.pop(name)

    def made(self, rows: tuple[int, ...], offset: int) -> Version:
        sink = pa.BufferOutputStream()
        pq.write_table(pa.table({"n": pa.array(rows, pa.int64())}), sink)
        # A file that is written anew has another time, as in a real folder.
        mtime_ns = self.now_ns + offset * SECOND + next(self.numbers)
        return Version(sink.getvalue().to_pybytes(), mtime_ns, rows)

    def act(self, what: str, number: int, offset: int) -> None:
        names = sorted(self.there)
        if what == "add" or not names:
            row = next(self.numbers)
            self.put(f"{number}-{row}.parquet", self.made((row,) * (1 + number % 3), offset))
            return
        if what == "return":
            absent = sorted(self.removed.keys() - self.there.keys())
            if absent:
                name = absent[number % len(absent)]
                self.put(name, self.removed.pop(name))
            return
        name = names[number % len(names)]
        old = self.there[name]
        if what == "remove":
            self.remove(name)
        elif what == "touch":
            self.put(name, Version(old.data, self.made((), offset).mtime_ns, old.rows))
        elif what == "grow":
            self.put(name, self.made((*old.rows, next(self.numbers)), offset))
        else:
            self.put(name, self.made((next(self.numbers),) * len(old.rows), offset))


def _feed(folder: Path) -> ChangeFeed:
    reader, _ = load_reader({"reader": "parquet", "path": str(folder)})
    reader.schema()
    return reader.feed(FeedOptions(late_seconds=LATE))


def _read(feed: ChangeFeed, splits: Any) -> list[int]:
    batches = (batch for split in splits for batch in feed.read(split))
    return sorted(value for batch in batches for value in batch.column("n").to_pylist())


def _replayed(
    arrivals: Arrivals,
    feed: ChangeFeed,
    token: Any,
    end: Any,
    acts: tuple[list[tuple[str, int, int]], list[tuple[str, int, int]]],
) -> list[int] | ChannelError:
    """The rows of a range that is read while files change: before it is divided, and after that."""
    try:
        for act in acts[0]:
            arrivals.act(*act)
        splits = feed.changes(token, end)
        for act in acts[1]:
            arrivals.act(*act)
        return _read(feed, splits)
    except ChannelError as error:
        return error


@pytest.mark.parametrize("named", [True, False], ids=["named", "counted"])
@either_length
def test_a_range_is_its_files_or_an_error_that_names_one(
    tmp_path: Path, named: bool, length: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not named:
        monkeypatch.setattr("spark_channel.connectors.files.feed._NAMED", 0)
    folders = itertools.count()
    outcomes = {"equal": 0, "refused": 0}

    @examples(length, quick=20)
    @given(st.lists(st.tuples(steps, steps, steps, st.integers(0, 4)), min_size=1, max_size=6))
    def check(rounds: list[Any]) -> None:
        folder = tmp_path / str(next(folders))
        folder.mkdir()
        arrivals = Arrivals(folder)
        arrivals.act("add", 0, 0)
        feed = _feed(folder)
        (token,) = feed.earliest()
        delivered: dict[str, tuple[int, ...]] = {}
        for before, planned, divided, most in [*rounds, ([], [], [], 0)]:
            for act in before:
                arrivals.act(*act)
            there = dict(arrivals.there)
            end = feed.latest(token, FeedLimit(rows=most or None))
            if end == token:
                assert not set(there) - set(delivered), "a file that is there waits for ever"
                continue
            count = end["count"]
            order = sorted(
                set(there) - set(delivered), key=lambda name: (there[name].mtime_ns, name)
            )
            took = {name: there[name] for name in order[:count]}
            right = sorted(row for version in took.values() for row in version.rows)
            assert len(took) == count, "a file is taken twice"
            arrivals.acted_on.clear()
            found = _replayed(arrivals, feed, token, end, (planned, divided))
            # A file that was removed and put back may be refused: it is another one to the storage.
            changed = sorted(arrivals.acted_on & took.keys())
            if isinstance(found, ChannelError):
                assert changed, found
                assert not named or any(name in str(found) for name in changed), found
                outcomes["refused"] += 1
                for name in changed:
                    arrivals.put(name, took[name])
                found = _read(feed, feed.changes(token, end))
            else:
                outcomes["equal"] += 1
            assert found == right
            delivered |= {name: version.rows for name, version in took.items()}
            token = end
        assert set(arrivals.there) <= set(delivered)

    check()
    assert min(outcomes.values()) > 0
