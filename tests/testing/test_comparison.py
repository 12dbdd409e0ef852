"""What the conformance kit compares with: it sees what is lost, doubled and left open."""

import threading
from pathlib import Path

import pyarrow as pa
import pytest

from spark_channel.testing.comparison import expect, held_resources, rows_of, same_rows

TABLE = pa.table({"id": [1, 2, 2], "name": ["a", "b", "b"]})


def test_rows_are_counted_whatever_their_order() -> None:
    same_rows(rows_of(TABLE.take([2, 0, 1])), rows_of(TABLE), "in another order")
    assert sum(rows_of(TABLE).values()) == 3


def test_a_lost_and_a_doubled_row_are_told() -> None:
    with pytest.raises(AssertionError, match=r"later: 1 rows missing .* 1 rows too many"):
        same_rows(rows_of(TABLE.take([1, 2, 2])), rows_of(TABLE), "later")


def test_what_does_not_hold_fails_with_its_message() -> None:
    expect([0], "not said")
    with pytest.raises(AssertionError, match="no row"):
        expect([], "no row")


def test_an_open_file_and_a_thread_that_stays_are_told(tmp_path: Path) -> None:
    before = held_resources()
    before.expect_no_more("at once")
    with (tmp_path / "open").open("w"), pytest.raises(AssertionError, match=r"still open: .*open"):
        before.expect_no_more("with a file")
    ended = threading.Event()
    thread = threading.Thread(target=ended.wait)
    thread.start()
    ended.set()
    before.expect_no_more("a thread that ends is awaited")
    assert not thread.is_alive()
