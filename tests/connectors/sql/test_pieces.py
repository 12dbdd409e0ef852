"""The pieces of a limited statement: how large they are, and when they are asked for."""

import pytest

from spark_channel.connectors.sql.session import PacedFetch
from spark_channel.testing import VirtualClock


class _Reader:
    """Statement after statement under a limit; a row costs the server so many seconds."""

    def __init__(
        self, speed: float, row_seconds: float, *, most: int = 10_000, empty: float = 0.0
    ) -> None:
        self.clock = VirtualClock()
        self.pieces = PacedFetch(0.001, seconds=5.0, empty_seconds=empty, clock=self.clock)
        self.speed, self.row_seconds, self.most, self.empty = speed, row_seconds, most, empty
        self.asked_at: list[float] = []
        self.sizes: list[int] = []
        self._paid_at = 0.0

    def run(self, statements: int) -> int:
        """The rows."""
        rows = 0
        for _ in range(statements):
            self.asked_at, self.sizes = [], []
            rows += self.statement()
        return rows

    def statement(self) -> int:
        began, left = self.clock.now(), min(self.most, self.pieces.statement_rows)
        asked = left
        self.pieces.begin(asked)
        while left:
            self.pieces.rest()
            rows, at = min(left, self.pieces.rows), self.clock.now()
            self.clock.sleep(self.empty + rows * self.row_seconds)
            self.pieces.took(rows, self.clock.now() - at)
            self.asked_at.append(at)
            self.sizes.append(rows)
            left -= rows
        ended = self.clock.now()
        self.clock.sleep(self._paid_at - ended)  # until the rows before these are paid
        self._paid_at = self.clock.now() + asked / self.speed
        self.pieces.handed_on(asked, ended - began, self.clock.now() - ended)
        return asked


def test_a_piece_keeps_the_server_busy_for_a_burst() -> None:
    reader = _Reader(20_000, 0.000004)
    reader.run(40)
    assert max(reader.sizes) == 250  # 1 ms
    slow = _Reader(20_000, 0.0001)
    slow.run(40)
    assert max(slow.sizes) == 50  # smaller ones cost more than they spare


def test_the_way_to_the_server_is_not_its_work() -> None:
    reader = _Reader(20_000, 0.000004, empty=0.0005)
    reader.run(40)
    assert max(reader.sizes) == 250


@pytest.mark.parametrize("way", [0.001, 0.002, 0.005, 0.02])
def test_a_long_way_makes_pieces_no_smaller_and_rows_no_dearer(way: float) -> None:
    reader = _Reader(20_000, 0.000_000_5, empty=way)
    reader.run(40)
    assert max(reader.sizes) >= 1_000
    assert reader.pieces.row_seconds in (0.0, pytest.approx(0.000_000_5))


def test_a_busy_server_does_not_make_pieces_small() -> None:
    reader = _Reader(20_000, 0.000004)
    reader.run(40)
    for _ in range(5):
        reader.pieces.took(250, 0.5)
    assert reader.pieces.rows == 250


def test_pieces_are_spread_evenly_over_most_of_the_time() -> None:
    reader = _Reader(20_000, 0.000001)
    reader.run(40)
    gaps = [
        after - before for before, after in zip(reader.asked_at, reader.asked_at[1:], strict=False)
    ]
    assert 6_500 < sum(reader.sizes) < 7_500  # the rows of 0.35 s
    assert max(gaps) - min(gaps) < 0.002
    assert 0.2 < reader.asked_at[-1] - reader.asked_at[0] < 0.35


def test_the_limit_is_used() -> None:
    reader = _Reader(20_000, 0.000001)
    reader.run(20)
    began = reader.clock.now()
    assert reader.run(40) / (reader.clock.now() - began) > 0.98 * 20_000


def test_a_reader_that_is_waited_for_does_not_rest() -> None:
    """The limit was raised, or there is none that matters."""
    reader = _Reader(20_000, 0.000001)
    reader.run(20)
    reader.speed = 1e9
    reader.run(12)
    began = reader.clock.now()
    assert reader.run(20) / (reader.clock.now() - began) > 0.98 * 1_000_000


def test_a_statement_has_as_many_rows_as_the_speed_allows() -> None:
    """The rows of one fetch are unknown where the speed is to be found."""
    reader = _Reader(2_000, 0.000001, most=50_000)
    reader.run(40)
    assert 600 <= sum(reader.sizes) <= 800
    reader.speed = 40_000
    reader.run(40)
    assert 12_000 <= sum(reader.sizes) <= 16_000


def test_a_pause_tells_nothing_of_the_speed() -> None:
    reader = _Reader(20_000, 0.000001)
    reader.run(20)
    before = reader.pieces.statement_rows
    reader.clock.sleep(3_600.0)
    reader.pieces.handed_on(before, 0.3, 3_600.0)
    assert reader.pieces.statement_rows == before


def test_a_first_piece_that_was_slow_does_not_make_all_others_small() -> None:
    """The network hides what a row costs in small pieces, so that their size would never grow."""
    reader = _Reader(20_000, 0.000_001, empty=0.0005)
    reader.pieces.took(250, 0.3)
    assert reader.pieces.rows == 50
    reader.run(20)
    assert reader.pieces.rows >= 500
