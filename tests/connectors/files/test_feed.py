"""Files that arrive, as a change feed."""

import hashlib
import json
import os
import pickle
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_channel.connectors import load_reader
from spark_channel.connectors.base.feed import ChangeFeed, FeedLimit, FeedOptions
from spark_channel.connectors.files.reader import CsvReader
from spark_channel.errors import OptionError, SchemaError, SourceError, TunnelError

NO_LIMIT = FeedLimit()
SECOND = 1_000_000_000
START = 1_700_000_000 * SECOND


def arrive(folder: Path, name: str, rows: list[int], *, at: int = 0, **columns: Any) -> Path:
    path = folder / name
    pq.write_table(pa.table({"n": pa.array(rows, pa.int64()), **columns}), path)
    os.utime(path, ns=(START + at * SECOND, START + at * SECOND))
    return path


def feed_of(
    folder: Path, partitions: int = 1, late: float | None = None, **options: str
) -> ChangeFeed:
    reader, _ = load_reader({"reader": "parquet", "path": str(folder), **options})
    return reader.feed(FeedOptions(partitions=partitions, late_seconds=late))


def rows(feed: ChangeFeed, after: Any, upto: Any) -> list[int]:
    copy: ChangeFeed = pickle.loads(pickle.dumps(feed))
    splits = feed.changes(after, upto)
    return sorted(n for s in splits for b in copy.read(s) for n in b.column("n").to_pylist())


def test_files_that_arrive_are_read_once(tmp_path: Path) -> None:
    arrive(tmp_path, "a.parquet", [1, 2], at=1)
    feed = feed_of(tmp_path)
    (start,) = feed.earliest()
    (first,) = feed.now()
    assert rows(feed, start, first) == [1, 2]
    assert feed.latest(first, NO_LIMIT) == first
    arrive(tmp_path, "b.parquet", [3], at=5)
    arrive(tmp_path, "_hidden.parquet", [9], at=5)
    second = feed.latest(first, NO_LIMIT)
    assert rows(feed, first, second) == [3]
    arrive(tmp_path, "c.parquet", [4], at=9)
    assert rows(feed, first, second) == [3], "a range stays what it was"


def test_a_file_that_arrives_late_is_found(tmp_path: Path) -> None:
    arrive(tmp_path, "a.parquet", [1], at=1000)
    feed = feed_of(tmp_path, late=60)
    (token,) = feed.now()
    arrive(tmp_path, "older.parquet", [2], at=950)
    arrive(tmp_path, "ancient.parquet", [3], at=900)
    assert rows(feed, token, feed.latest(token, NO_LIMIT)) == [2]


def test_without_late_files_the_offset_has_a_constant_size(tmp_path: Path) -> None:
    sizes = []
    for late in (0, 3_600):
        folder = tmp_path / str(late)
        folder.mkdir()
        feed = feed_of(folder, late=late)
        (token,) = feed.earliest()
        for number in range(100):
            arrive(folder, f"{number:03}.parquet", [number], at=number)
            token = feed.latest(token, NO_LIMIT)
            if number in (9, 99):
                sizes.append(len(json.dumps({**token, "seen": 0})))
    few, many, few_late, many_late = sizes
    assert few == many
    assert 18 * 90 <= many_late - few_late <= 21 * 90, (
        "about 20 bytes for each file in these seconds"
    )


def test_a_limit_takes_the_oldest_files_and_at_least_one(tmp_path: Path) -> None:
    for number in range(5):
        arrive(tmp_path, f"{number}.parquet", [number] * 10, at=number)
    feed = feed_of(tmp_path)
    token, seen = feed.earliest()[0], []
    while (end := feed.latest(token, FeedLimit(rows=25))) != token:
        seen.append(rows(feed, token, end))
        token = end
    assert seen == [[0] * 10 + [1] * 10, [2] * 10 + [3] * 10, [4] * 10]
    tight = feed.latest(feed.earliest()[0], FeedLimit(nbytes=1))
    assert rows(feed, feed.earliest()[0], tight) == [0] * 10


def test_a_text_file_counts_its_lines_under_a_limit(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"{number}.jsonl").write_text('{"n": 1}\n' * 10)
        os.utime(tmp_path / f"{number}.jsonl", ns=(START + number, START + number))
    reader, _ = load_reader({"reader": "json", "path": str(tmp_path)})
    feed = reader.feed(FeedOptions())
    token = feed.latest(feed.earliest()[0], FeedLimit(rows=20))
    assert len(rows(feed, feed.earliest()[0], token)) == 20


def test_partitions_deal_the_files_out(tmp_path: Path) -> None:
    for number in range(20):
        arrive(tmp_path, f"{number}.parquet", [number], at=number)
    feed = feed_of(tmp_path, partitions=3)
    starts, ends = feed.earliest(), feed.now()
    parts = [rows(feed, start, end) for start, end in zip(starts, ends, strict=True)]
    assert sorted(n for part in parts for n in part) == list(range(20))
    assert all(parts)


def test_base_and_changes_cover_every_file_once(tmp_path: Path) -> None:
    arrive(tmp_path, "a.parquet", [1], at=1)
    feed = feed_of(tmp_path, partitions=2)
    tokens = feed.now()
    arrive(tmp_path, "b.parquet", [2], at=2)
    base = [
        n for s in feed.base(tokens, 2) for b in feed.read(s) for n in b.column("n").to_pylist()
    ]
    assert base == [1]
    after = [n for token in tokens for n in rows(feed, token, feed.latest(token, NO_LIMIT))]
    assert after == [2]


def test_lag_is_told_in_bytes_and_seconds(tmp_path: Path) -> None:
    path = arrive(tmp_path, "a.parquet", [1], at=1)
    feed = feed_of(tmp_path)
    lag = feed.lag(feed.earliest()[0])
    assert lag.nbytes == path.stat().st_size
    assert lag.seconds is not None
    assert lag.seconds > 1000
    assert feed.lag(feed.now()[0]).nbytes == 0


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"m": pa.array([1])}, "new column 'm'"),
        ({"n": pa.array(["text"])}, "column 'n' as string; its stream began with int64"),
        ({"n": None, "k": pa.array([1])}, "new column 'k'"),
    ],
)
def test_a_file_with_other_columns_is_an_error(tmp_path: Path, columns: Any, message: str) -> None:
    arrive(tmp_path, "a.parquet", [1], at=1)
    feed = feed_of(tmp_path)
    (token,) = feed.now()
    made = {"n": pa.array([2], pa.int64()), **columns}
    pq.write_table(
        pa.table({k: v for k, v in made.items() if v is not None}), tmp_path / "b.parquet"
    )
    with pytest.raises(SchemaError, match=message):
        feed.latest(token, NO_LIMIT)


def test_a_file_without_a_column_is_an_error(tmp_path: Path) -> None:
    arrive(tmp_path, "a.parquet", [1], at=1, m=pa.array([1]))
    feed = feed_of(tmp_path)
    (token,) = feed.now()
    arrive(tmp_path, "b.parquet", [1], at=2)
    with pytest.raises(SchemaError, match="lacks column 'm'"):
        feed.latest(token, NO_LIMIT)


@pytest.mark.parametrize(
    "token", [{}, {"cursor": 1}, {"part": 3, "parts": 2, "until": 0, "recent": []}]
)
def test_a_damaged_token_is_named(tmp_path: Path, token: dict[str, Any]) -> None:
    arrive(tmp_path, "a.parquet", [1])
    with pytest.raises(SourceError, match="not a position among arriving files"):
        feed_of(tmp_path).latest(token, NO_LIMIT)


def test_an_offset_from_the_future_is_an_error(tmp_path: Path) -> None:
    arrive(tmp_path, "a.parquet", [1])
    ahead = {"part": 0, "parts": 1, "until": 10**19, "recent": []}
    with pytest.raises(SourceError, match="more than a day ahead"):
        feed_of(tmp_path).latest(ahead, NO_LIMIT)


def test_files_have_no_cursor_column(tmp_path: Path) -> None:
    arrive(tmp_path, "a.parquet", [1])
    reader, _ = load_reader({"reader": "parquet", "path": str(tmp_path)})
    with pytest.raises(OptionError, match="'cursorColumn' is for tables"):
        reader.feed(FeedOptions(cursor_column="n"))


def test_a_file_that_was_away_while_others_were_taken_is_not_read_again(tmp_path: Path) -> None:
    archive = tmp_path / "_archive"
    archive.mkdir()
    arrive(tmp_path, "a.parquet", [1], at=0)
    feed = feed_of(tmp_path, late=60)
    (token,) = feed.now()
    (tmp_path / "a.parquet").rename(archive / "a.parquet")
    for number in (1, 2):
        arrive(tmp_path, f"{number}.parquet", [number * 10], at=20 * number)
        token = feed.latest(token, NO_LIMIT)
    os.utime(archive / "a.parquet", ns=(START + 41 * SECOND, START + 41 * SECOND))
    (archive / "a.parquet").rename(tmp_path / "a.parquet")
    assert feed.latest(token, NO_LIMIT) == token
    (left, right) = feed.divide(token)
    assert [feed.latest(half, NO_LIMIT) for half in (left, right)] == [left, right]


def test_a_file_that_is_gone_is_forgotten_after_late_seconds(tmp_path: Path) -> None:
    feed = feed_of(tmp_path, late=60)
    (token,) = feed.earliest()
    for number in range(10):
        path = arrive(tmp_path, f"{number}.parquet", [number], at=50 * number)
        token = feed.latest(token, NO_LIMIT)
        path.unlink()
        assert len(token["recent"]) + len(token["gone"]) <= 4


class _NeverSearched(list[str]):
    def __contains__(self, name: object) -> bool:
        raise AssertionError("each file searches the names that were taken: quadratic in the files")


def test_a_look_with_nothing_new_searches_no_list(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"{number}.csv").write_text(f"id\n{number}\n")
    feed = CsvReader(CsvReader.Options(path=str(tmp_path))).feed(FeedOptions())
    token = feed.latest(feed.earliest()[0], FeedLimit())
    token = {**token, "recent": _NeverSearched(token["recent"])}
    assert feed.latest(token, FeedLimit()) == token
    assert feed.changes(token, token) == []
    assert feed.lag(token).nbytes == 0


def test_a_file_with_a_time_ahead_hides_no_later_file(tmp_path: Path) -> None:
    """As one that a server with a wrong clock wrote, hours or a year ahead."""
    for ahead in (7_200, 400 * 86_400):
        folder = tmp_path / str(ahead)
        folder.mkdir()
        now = time.time_ns() // SECOND - START // SECOND
        arrive(folder, "ahead.parquet", [1], at=now + ahead)
        feed = feed_of(folder, late=60)
        (token,) = feed.now()
        arrive(folder, "later.parquet", [2], at=now)
        second = feed.latest(token, NO_LIMIT)
        assert rows(feed, token, second) == [2]
        assert (feed.lag(token).seconds or 0) >= 0
        assert feed.latest(second, NO_LIMIT) == second
        (folder / "ahead.parquet").unlink()
        arrive(folder, "last.parquet", [3], at=now + 1)
        assert rows(feed, second, feed.latest(second, NO_LIMIT)) == [3]


def test_a_planned_range_is_the_same_files_or_an_error_that_names_one(tmp_path: Path) -> None:
    first, other = arrive(tmp_path, "a.parquet", [1], at=1), tmp_path / "b.parquet"
    arrive(tmp_path, "b.parquet", [2], at=1_000_000)
    feed = feed_of(tmp_path, late=60)
    (start,) = feed.earliest()
    end = feed.latest(start, NO_LIMIT)
    arrive(tmp_path, "in_between.parquet", [3], at=500)
    assert rows(feed, start, end) == [1, 2], "a file that came too late for the range is not in it"
    arrive(tmp_path, "b.parquet", [2, 2], at=1_000_001)
    with pytest.raises(TunnelError, match=r"b\.parquet was changed"):
        feed.changes(start, end)
    arrive(tmp_path, "b.parquet", [2], at=1_000_000)
    first.rename(tmp_path.parent / "moved.parquet")
    with pytest.raises(TunnelError, match=r"a\.parquet was removed"):
        feed.changes(start, end)
    other.unlink()
    with pytest.raises(TunnelError, match="removed"):
        feed.changes(start, end)


def test_a_range_of_more_files_than_its_token_names_misses_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_channel.connectors.files.feed._NAMED", 2)
    for number in range(4):
        arrive(tmp_path, f"{number}.parquet", [number], at=number)
    feed = feed_of(tmp_path)
    (start,) = feed.earliest()
    end = feed.latest(start, NO_LIMIT)
    assert "took" in end
    assert not end["took"]
    assert rows(feed, start, end) == [0, 1, 2, 3]
    arrive(tmp_path, "2.parquet", [2, 2], at=4)
    with pytest.raises(TunnelError, match="some of them were changed"):
        feed.changes(start, end)
    (tmp_path / "2.parquet").unlink()
    with pytest.raises(TunnelError, match="1 of 4 files"):
        feed.changes(start, end)


def test_a_path_is_taken_once(tmp_path: Path) -> None:
    """As by Spark's file source, while the file is remembered."""
    arrive(tmp_path, "a.parquet", [1], at=1)
    feed = feed_of(tmp_path)
    (token,) = feed.now()
    arrive(tmp_path, "a.parquet", [1], at=30)
    assert feed.latest(token, NO_LIMIT) == token
    arrive(tmp_path, "a.parquet", [1, 2], at=60)
    assert feed.latest(token, NO_LIMIT) == token


def test_a_position_of_an_earlier_version_is_continued(tmp_path: Path) -> None:
    path = arrive(tmp_path, "a.parquet", [1], at=1)
    arrive(tmp_path, "b.parquet", [2], at=2)
    feed = feed_of(tmp_path)
    root, info = (
        feed.changes(*feed.earliest(), *feed.now())[0].params["pieces"][0]["root"],
        path.stat(),
    )
    name = f"{root}\0{path}\0{info.st_size}\0{info.st_mtime_ns}"
    digest = hashlib.blake2b(name.encode(), digest_size=8).hexdigest()
    old = {"part": 0, "parts": 1, "until": info.st_mtime_ns, "recent": [digest]}
    assert rows(feed, old, feed.latest(old, NO_LIMIT)) == [2]
