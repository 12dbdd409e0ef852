"""Ranges of about equal rows from estimates of a key's index, without a scan."""

from bisect import bisect_left
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_channel.connectors import FetchSize
from spark_channel.connectors.mysql.read import splitter
from spark_channel.connectors.mysql.read.ranges import even_ranges
from tests.connectors.mysql.shop import Shop

KEYS = st.sets(st.integers(-(2**63), 2**64 - 1), min_size=1, max_size=300)


@given(KEYS, st.integers(1, 40), st.floats(0.5, 2.0))
def test_any_keys_are_covered_once(keys: set[int], parts: int, wrong: float) -> None:
    """However wrong the estimates are."""
    ordered = sorted(keys)

    def estimate(start: int, end: int) -> int:
        rows = bisect_left(ordered, end) - bisect_left(ordered, start)
        return int(rows * (wrong if start % 2 else 1.0))

    ranges = even_ranges(ordered[0], ordered[-1], parts, estimate)
    assert 1 <= len(ranges) <= parts
    assert (ranges[0][0], ranges[-1][1]) == (ordered[0], ordered[-1] + 1)
    assert all(one[1] == other[0] for one, other in pairwise(ranges))
    assert all(start < end for start, end, _ in ranges)
    assert sum(share for *_, share in ranges) in (pytest.approx(1.0), 0.0), (
        "0: no row was estimated"
    )


@pytest.mark.parametrize("parts", [2, 4, 10, 100])
def test_skewed_keys_make_even_ranges(parts: int) -> None:
    """99 % of the keys are in 1 % of the range."""
    ordered = sorted({*range(5_000_000, 5_099_000), *range(0, 10_000_000, 10_000)})

    def estimate(start: int, end: int) -> int:
        return bisect_left(ordered, end) - bisect_left(ordered, start)

    counts = [
        estimate(start, end)
        for start, end, _ in even_ranges(ordered[0], ordered[-1], parts, estimate)
    ]
    assert len(counts) == parts
    assert sum(counts) == len(ordered)
    assert max(counts) <= 1.3 * min(counts)


@pytest.mark.parametrize(
    ("limited", "options"),
    [(False, {}), (True, {}), (True, {"where": "id % 2 = 0"}), (True, {"where": "id <= 25000000"})],
)
def test_a_table_is_cut_without_a_scan(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, limited: bool, options: dict[str, str]
) -> None:
    """A large one, and any under a limit, whatever the condition: COUNT(*) keeps a core busy for as long as a scan."""
    if not limited:
        monkeypatch.setattr(splitter, "_LARGE_BYTES", 1 << 20)
    shop.sql(
        "CREATE TABLE t (id BIGINT PRIMARY KEY, text VARCHAR(200)); INSERT INTO t "
        "SELECT IF(seq % 100, 50000000 + seq, seq * 1000), REPEAT('x', seq % 200) FROM seq_1_to_100000; ANALYZE TABLE t"
    )
    handled = "SELECT variable_value FROM information_schema.session_status WHERE variable_name = 'HANDLER_READ_NEXT'"
    reader = shop.reader(**options)
    reader.schema()
    if limited:
        reader.fetch_size = FetchSize(rows=100)
    with reader.connect("plan") as session:
        before = int(session.value(handled))
        found = reader.splits(session, 4)
        assert int(session.value(handled)) - before < 10_000, "rows were scanned"
    counts = [sum(batch.num_rows for batch in reader.read(split)) for split in found]
    expected = int(shop.rows(f"SELECT COUNT(*) FROM t WHERE {options.get('where', 'TRUE')}")[0][0])
    assert len(counts) == 4
    assert sum(counts) == expected
    if expected > 1_000:
        assert max(counts) <= 1.3 * min(counts)
    if not options:
        estimated = sum(split.rows or 0 for split in found)
        assert 80_000 <= estimated <= 120_000


def test_a_large_table_without_rows_is_no_split(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(splitter, "_LARGE_BYTES", 0)
    shop.sql("CREATE TABLE t (id BIGINT PRIMARY KEY)")
    reader = shop.reader()
    reader.schema()
    assert reader.split(4) == []
    shop.sql("INSERT INTO t VALUES (7)")
    assert [sum(batch.num_rows for batch in reader.read(split)) for split in reader.split(4)] == [1]
