"""The pieces in which staged rows are added."""

from spark_channel.connectors.sql.session import in_pieces
from spark_channel.testing import VirtualClock


class _Server:
    def __init__(self, unit_seconds: float) -> None:
        self.clock = VirtualClock()
        self.unit_seconds = unit_seconds
        self.ranges: list[tuple[int, int]] = []
        self.worked = 0.0
        self.slow_from, self.slow = 1 << 60, 1.0

    def work(self, begin: int, end: int) -> float | None:
        self.ranges.append((begin, end))
        took = (end - begin) * self.unit_seconds
        self.worked += took
        self.clock.sleep(took * (self.slow if len(self.ranges) > self.slow_from else 1.0))
        return None

    def add(self, end: int, first: int = 4) -> list[int]:
        """The lengths of the pieces."""
        in_pieces(self.work, 0, end, first=first, most=4_096, clock=self.clock)
        assert [begin for begin, _ in self.ranges] == [0, *(end for _, end in self.ranges[:-1])]
        assert self.ranges[-1][1] == end
        return [end - begin for begin, end in self.ranges]


def test_pieces_take_a_millisecond_and_the_server_a_quarter_of_a_core() -> None:
    server = _Server(0.00001)
    began = server.clock.now()
    assert max(server.add(10_000)) == 100
    assert 3.8 < (server.clock.now() - began) / server.worked < 4.1


def test_a_busy_server_is_not_asked_for_smaller_pieces() -> None:
    """They would cost it more. It was so: one that is as busy as that was given one page at a time."""
    server = _Server(0.00001)
    server.slow_from, server.slow = 20, 50.0
    sizes = server.add(10_000)
    assert 95 <= min(sizes[10:-1]) <= max(sizes) <= 100


def test_what_takes_long_is_not_cut_smaller_than_it_began() -> None:
    assert set(_Server(0.01).add(100)) == {4}


def test_the_rests_of_a_busy_server_are_bounded() -> None:
    """The transaction ends soon, however long a piece waits."""
    server = _Server(0.00001)
    server.slow_from, server.slow = 20, 100.0
    began = server.clock.now()
    sizes = server.add(5_000)
    waited = sum(size * 0.001 for size in sizes[20:])
    assert server.clock.now() - began < waited + 14 * server.worked


def test_nothing_is_nothing() -> None:
    in_pieces(_Server(1.0).work, 5, 5, first=4, most=8)
