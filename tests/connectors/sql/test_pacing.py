"""The pieces of a limited read or write: how large they are, and when a server is given them. On a virtual clock."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_channel.connectors.sql.pacing import ReadPacer, WritePacer, adding_seconds
from spark_channel.connectors.sql.session import BatchSize
from spark_channel.testing import VirtualClock


class _Reader:
    """Statement after statement under a limit; a row costs the server so many seconds."""

    def __init__(
        self, speed: float, row_seconds: float, *, most: int = 10_000, empty: float = 0.0
    ) -> None:
        self.clock = VirtualClock()
        self.pacer = ReadPacer(0.001, seconds=5.0, empty_seconds=empty, clock=self.clock)
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
        began, left = self.clock.now(), min(self.most, self.pacer.statement_rows)
        asked = left
        self.pacer.begin(asked)
        while left:
            self.pacer.rest()
            rows, at = min(left, self.pacer.rows), self.clock.now()
            self.clock.sleep(self.empty + rows * self.row_seconds)
            self.pacer.took(rows, self.clock.now() - at)
            self.asked_at.append(at)
            self.sizes.append(rows)
            left -= rows
        ended = self.clock.now()
        self.clock.sleep(self._paid_at - ended)  # until the rows before these are paid
        self._paid_at = self.clock.now() + asked / self.speed
        self.pacer.handed_on(asked, ended - began, self.clock.now() - ended)
        return asked


def test_a_piece_keeps_the_server_busy_for_a_burst() -> None:
    reader = _Reader(20_000, 0.000004)
    reader.run(40)
    assert max(reader.sizes) == 240  # 1 ms
    slow = _Reader(20_000, 0.0001)
    slow.run(40)
    assert max(slow.sizes) == 48  # smaller ones cost more than they spare


def test_the_way_to_the_server_is_not_its_work() -> None:
    reader = _Reader(20_000, 0.000004, empty=0.0005)
    reader.run(40)
    assert max(reader.sizes) == 240


@pytest.mark.parametrize("way", [0.001, 0.002, 0.005, 0.02])
def test_a_long_way_makes_pieces_no_smaller_and_rows_no_dearer(way: float) -> None:
    reader = _Reader(20_000, 0.000_000_5, empty=way)
    reader.run(40)
    assert max(reader.sizes) >= 1_000
    assert reader.pacer.row_seconds in (0.0, pytest.approx(0.000_000_5))


def test_pieces_have_few_sizes() -> None:
    """A server's statistics keep each as another statement."""
    pacer = ReadPacer(0.001)
    sizes = set()
    for rows in range(1, 5_000):
        pacer.most_rows, pacer._rows = rows, rows
        assert 0 <= rows - pacer.rows <= rows / 8
        sizes.add(pacer.rows)
    assert len(sizes) <= 90


def test_a_busy_server_does_not_make_pieces_small() -> None:
    reader = _Reader(20_000, 0.000004)
    reader.run(40)
    for _ in range(5):
        reader.pacer.took(250, 0.5)
    assert reader.pacer.rows == 240


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
    before = reader.pacer.statement_rows
    reader.clock.sleep(3_600.0)
    reader.pacer.handed_on(before, 0.3, 3_600.0)
    assert reader.pacer.statement_rows == before


def test_a_first_piece_that_was_slow_does_not_make_all_others_small() -> None:
    """The network hides what a row costs in small pieces, so that their size would never grow."""
    reader = _Reader(20_000, 0.000_001, empty=0.0005)
    reader.pacer.took(250, 0.3)
    assert reader.pacer.rows == 96
    reader.run(20)
    assert reader.pacer.rows >= 500


class _Mover:
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
        WritePacer.moving(first, clock=self.clock).run(self.work, 0, end)
        assert [begin for begin, _ in self.ranges] == [0, *(end for _, end in self.ranges[:-1])]
        assert self.ranges[-1][1] == end
        return [end - begin for begin, end in self.ranges]


def test_pieces_take_a_millisecond_and_the_server_a_quarter_of_a_core() -> None:
    server = _Mover(0.00001)
    began = server.clock.now()
    assert max(server.add(10_000)) == 100
    assert 3.8 < (server.clock.now() - began) / server.worked < 4.1


def test_a_busy_server_is_not_asked_for_smaller_pieces() -> None:
    """They would cost it more. It was so: one that is as busy as that was given one page at a time."""
    server = _Mover(0.00001)
    server.slow_from, server.slow = 20, 50.0
    sizes = server.add(10_000)
    assert 95 <= min(sizes[10:-1]) <= max(sizes) <= 100


def test_what_takes_long_is_not_cut_smaller_than_it_began() -> None:
    assert sorted(_Mover(0.01).add(100))[:-1] == [4] * 23, (
        "one larger piece shows that its rows take long"
    )


@pytest.mark.parametrize("first", [1, 4])
@pytest.mark.parametrize("slow", [1.0, 30.0])
def test_a_piece_that_takes_long_without_rows_is_not_cut_smaller(first: int, slow: float) -> None:
    """As into a table of many partitions: smaller pieces are only more. `slow`: the server is busy in between."""
    server, fixed = _Mover(0.00001), 0.02
    work = server.work

    def piece(begin: int, end: int) -> float | None:
        busy = slow if 20 < len(server.ranges) < 40 else 1.0
        server.clock.sleep(fixed * busy)
        return work(begin, end)

    server.work = piece  # type: ignore[method-assign] # for this server alone
    sizes = server.add(100_000, first)
    assert len(sizes) <= 80, sizes
    assert max(sizes) * server.unit_seconds <= 2 * fixed, "its rows take no longer than the rest"


def test_short_copies_that_take_long_without_rows_are_not_cut_smaller() -> None:
    clock, pieces = VirtualClock(), 0
    pacer, left = WritePacer(0.001, empty_seconds=0.0002, clock=clock), 100_000
    pacer.begin(left, 1.0)
    while left:
        pacer.rest()
        rows = min(left, pacer.rows)
        clock.sleep(0.03 + rows * 0.00001)
        pacer.took(rows, 0.03 + rows * 0.00001)
        left, pieces = left - rows, pieces + 1
    assert pieces <= 50


@pytest.mark.parametrize(
    ("parts", "halves"),
    [
        ((), 0.5),
        (((0.25, 0.5),), 2 / 3),
        (((0.5, 0.2), (0.9, 1.0)), 0.2),
        (((1.0, 1.0),), 0.5),
    ],
)
def test_rows_are_sent_as_they_came(parts: list[tuple[float, float]], halves: float) -> None:
    clock, at = VirtualClock(), dict[int, float]()

    def send(begin: int, end: int) -> None:
        at[begin] = clock.now()
        clock.sleep((end - begin) * 0.00001)

    pacer = WritePacer(0.001, clock=clock)
    pacer.run(send, 0, 10_000, spread=2.0)
    at.clear()
    began = clock.now()
    pacer.run(send, 0, 10_000, spread=2.0, parts=parts)
    half = min(at[begin] for begin in at if begin >= 5_000) - began
    assert half == pytest.approx(2.0 * halves, abs=0.05)
    assert clock.now() - began == pytest.approx(2.0, abs=0.05)


def test_the_rests_of_a_busy_server_are_bounded() -> None:
    """The transaction ends soon, however long a piece waits."""
    server = _Mover(0.00001)
    server.slow_from, server.slow = 20, 100.0
    began = server.clock.now()
    sizes = server.add(5_000)
    waited = sum(size * 0.001 for size in sizes[20:])
    assert server.clock.now() - began < waited + 14 * server.worked


def test_pieces_that_are_late_are_larger_for_as_long() -> None:
    """A server that is far away takes so many rows in time; one that is not gets no larger pieces."""
    sizes = dict[float, list[int]]()
    for way in (0.0, 0.02):
        clock, seen = VirtualClock(), list[int]()

        def send(begin: int, end: int, seen: list[int] = seen, way: float = way) -> None:
            seen.append(end - begin)
            clock.sleep(way + (end - begin) * 0.00001)  # noqa: B023 - called before the next one

        pacer = WritePacer(0.001, empty_seconds=way, clock=clock)
        pacer.run(send, 0, 10_000, spread=1.0)
        pacer.run(send, 0, 10_000, spread=1.0)
        assert clock.now() < 2.1
        sizes[way] = seen[len(seen) // 2 :]
    assert max(sizes[0.0]) == 100
    assert max(sizes[0.02]) in range(200, 401)


def test_late_pieces_of_a_near_server_are_at_most_twice_as_large() -> None:
    """They are late because the server waits for a core, and would keep it for longer."""
    clock, sizes = VirtualClock(), list[int]()

    def send(begin: int, end: int) -> float:
        sizes.append(end - begin)
        clock.sleep(0.1)  # of which it works so long:
        return 0.0002 + (end - begin) * 0.00001

    pacer = WritePacer(0.001, empty_seconds=0.0002, clock=clock)
    pacer.run(send, 0, 10_000, spread=0.1)
    assert max(sizes[len(sizes) // 2 :]) in range(190, 201)


def test_nothing_is_nothing() -> None:
    mover = _Mover(1.0)
    WritePacer.moving(4, clock=mover.clock).run(mover.work, 5, 5)
    assert mover.ranges == []


@pytest.mark.parametrize("seconds", [0.5, 2.0, 10.0])
@pytest.mark.parametrize("work", [0.1, 0.5, 0.9])
def test_a_lane_reads_on_while_the_rows_of_its_last_task_are_added(
    seconds: float, work: float
) -> None:
    """`work`: the part of a task's time that the server needs to add its rows. The reader is one task ahead at most."""
    read = opened = closed = 0.0
    for _ in range(20):
        read = max(read, opened) + seconds  # it is read from when the task before is taken
        opened = max(closed, read - seconds)
        begun = max(read, opened)
        spread = adding_seconds(begun - opened, 10.0, overlapped=True)
        closed = begun + max(spread, work * seconds) + 0.02  # its commit
    assert 20 * seconds / read > 0.99


LIMIT, LANES = 8_000, 8


def _added(seconds: float, starts_at: float, *, overlapped: bool) -> list[tuple[float, int]]:
    """When one lane adds how many rows: ten tasks, whose rows come in so many seconds at its part of the limit."""
    clock, added, rows = VirtualClock(), list[tuple[float, int]](), int(seconds * LIMIT / LANES)

    def add(begin: int, end: int) -> None:
        added.append((clock.now(), end - begin))
        clock.sleep((end - begin) * 0.0001)

    clock.sleep(starts_at)
    came = clock.now()
    for _ in range(10):
        came += seconds
        clock.sleep(max(0.0, came - clock.now()))
        spread = adding_seconds(seconds, 10.0, overlapped=overlapped)
        WritePacer.moving(4, clock=clock).run(add, 0, rows, spread=spread)
        assert clock.now() - came <= spread + 0.01
        came = came if overlapped else clock.now()
    return added


def _worst_second(added: list[tuple[float, int]]) -> int:
    rows = 0
    worst, first = 0, 0
    added.sort()
    for at, more in added:
        rows += more
        while added[first][0] <= at - 1.0:
            rows -= added[first][1]
            first += 1
        worst = max(worst, rows)
    return worst


@pytest.mark.parametrize("apart", [0.0, 0.3], ids=["at once", "one after the other"])
@pytest.mark.parametrize("seconds", [0.5, 1.5, 2.5, 5.0])
@pytest.mark.parametrize(("overlapped", "times"), [(True, 1.05), (False, 5.0)])
def test_the_most_rows_that_are_added_in_a_second(
    overlapped: bool, times: float, seconds: float, apart: float
) -> None:
    """Of a task whose next one is read meanwhile, and of one that is waited for, in times of the limit."""
    added = [
        each
        for lane in range(LANES)
        for each in _added(seconds, lane * apart, overlapped=overlapped)
    ]
    assert sum(rows for _, rows in added) == 10 * LANES * int(seconds * LIMIT / LANES)
    piece = max(rows for _, rows in added)
    if overlapped:  # and within four seconds
        times = max(times, seconds / (seconds - 0.04), seconds / 4)
    assert _worst_second(added) <= times * LIMIT + LANES * piece


def test_a_server_that_stands_still_is_not_sent_what_was_due_meanwhile() -> None:
    """After a stall of a second a window of a second has 1.1 times the speed; it had twice as much."""
    clock, sent = VirtualClock(), list[tuple[float, int]]()

    def send(begin: int, end: int) -> None:
        sent.append((clock.now(), end - begin))
        clock.sleep(1.0 if begin == 800 else 0.001)

    WritePacer.moving(40, burst_seconds=0.001, clock=clock).run(send, 0, 4_000, spread=4.0)
    assert clock.now() == pytest.approx(4.9, abs=0.05)
    assert _worst_second(sent) <= 1_100


@pytest.mark.parametrize("room", [8.0, 3.0, 0.5])
def test_tasks_of_which_few_fit_into_the_channel_are_added_sooner(room: float) -> None:
    """Their reader waits for the target, and the limit is not used meanwhile."""
    part = {8.0: 0.96, 3.0: 0.8, 0.5: 0.5}[room]
    assert adding_seconds(0.2, 8.0, overlapped=True) == pytest.approx(0.16)
    assert adding_seconds(2.0, room, overlapped=True) == pytest.approx(2.0 * part)


@pytest.mark.parametrize(
    ("took", "overlapped", "seconds"),
    [(5.0, False, 1.0), (60.0, False, 2.0), (5.0, True, 4.0), (60.0, True, 4.0)],
)
def test_how_long_adding_the_rows_of_a_long_task_takes(
    took: float, overlapped: bool, seconds: float
) -> None:
    assert adding_seconds(took, 10.0, overlapped=overlapped) == pytest.approx(seconds)


MOST = BatchSize(10_000, 1_000_000)


def _run(pacer: ReadPacer, row_seconds: float, *, empty: float = 0.0, times: int = 20) -> int:
    for _ in range(times):
        rows = pacer.statement_rows
        _answer(pacer, rows, empty + rows * row_seconds)
    return pacer.statement_rows


def _answer(pacer: ReadPacer, came: int, seconds: float, *, width: int = 100) -> None:
    asked = pacer.statement_rows
    pacer.begin(asked)
    pacer.took(came, seconds)
    pacer.answered(asked, came, came * width, seconds)


def _whole(width: int = 0, *, burst: float = 0.0, empty: float = 0.0) -> ReadPacer:
    """Each statement is one piece."""
    pacer = ReadPacer(burst, in_pieces=False, empty_seconds=empty, clock=VirtualClock())
    pacer.fits(MOST, width)
    return pacer


def test_it_begins_with_what_may_be_fetched_at_once() -> None:
    assert _whole(0).statement_rows == 10_000
    assert _whole(1_000).statement_rows == 1_000


def test_a_statement_lasts_no_longer_than_it_may() -> None:
    assert _run(_whole(0), 0.01) * 0.01 <= 2.5
    assert _run(_whole(0), 60.0) == 1


def test_it_grows_again_when_the_server_is_faster() -> None:
    pacer = _whole(0)
    assert _run(pacer, 0.1) < 100
    assert _run(pacer, 0.00001) == 10_000


def test_rows_wider_than_expected_are_fewer() -> None:
    pacer = _whole(100)
    _answer(pacer, 10_000, 0.1, width=10_000)
    assert pacer.statement_rows == 200  # 1 MB of half of what a row has


def test_a_server_works_for_one_burst_at_a_time() -> None:
    """20 us a row: 5 ms are 250 rows, less often than it is cheap to ask."""
    pacer = _whole(0, burst=0.005)
    assert _run(pacer, 0.000002) == 2_500
    assert _run(_whole(0, burst=0.005), 0.00002) == 10_000 // 32


def test_a_server_works_for_one_burst_at_a_time_also_where_the_job_waits_for_it() -> None:
    pacer = _whole(0, burst=0.005)
    assert _run(pacer, 0.000002) == 2_500
    for outside in (1.0, 1.0, *[0.0] * 10):  # first the limit is waited for, and then no more
        pacer.handed_on(pacer.statement_rows, 0.005, outside)
        _answer(pacer, pacer.statement_rows, pacer.statement_rows * 0.000002)
        assert pacer.statement_rows == 2_500


def test_the_way_to_the_server_is_not_the_work_of_a_statement() -> None:
    far = _whole(0, burst=0.005, empty=0.05)
    assert _run(far, 0.000002, empty=0.05) in range(2_490, 2_511)


def test_a_statement_of_few_rows_does_not_say_what_a_row_costs() -> None:
    pacer = _whole(0, burst=0.005, empty=0.001)
    assert _run(pacer, 0.000002, empty=0.001) in range(2_490, 2_511)
    _answer(pacer, 3, 0.001_000_03)
    _answer(pacer, 3, 0.000_9)
    assert pacer.statement_rows in range(2_490, 2_511)


def test_a_busy_server_is_not_asked_more_often() -> None:
    """The least that was seen counts: fewer rows a statement are more statements."""
    pacer = _whole(0, burst=0.005)
    _run(pacer, 0.000002)
    _answer(pacer, pacer.statement_rows, 0.5)
    assert pacer.statement_rows == 2_500


def test_what_a_time_limit_ended_is_not_asked_for_again() -> None:
    pacer = _whole(0)
    pacer.ended(10_000, 0)
    assert pacer.statement_rows == 2_500
    assert _run(pacer, 0.00001) == 5_000
    pacer.ended(5_000, 800)
    assert pacer.statement_rows == 800
    assert _run(pacer, 0.00001) == 800
    pacer.ended(1, 0)
    assert pacer.statement_rows == 1


COSTS = st.lists(st.floats(0.0, 0.6), max_size=30)
"""Seconds that pieces take, one after the other; those behind these take 0.1 ms."""


@given(
    count=st.integers(0, 20_000),
    spread=st.one_of(st.none(), st.floats(0.0, 3.0)),
    first=st.integers(1, 300),
    costs=COSTS,
    reported=st.booleans(),
)
def test_each_row_is_written_once_and_what_is_late_is_caught_up_with_for_40_ms_only(
    count: int, spread: float | None, first: int, costs: list[float], reported: bool
) -> None:
    clock, left, ends, later = VirtualClock(), list(reversed(costs)), 0.0, 0.0
    ranges: list[tuple[int, int]] = []

    def work(begin: int, end: int) -> float | None:
        nonlocal ends, later
        began, cost = clock.now(), left.pop() if left else 0.0001
        if spread is not None:
            due = later + spread * begin / count
            if begin:
                later += max(0.0, ends - due - 0.04)
            # The clock has whole nanoseconds.
            assert began == pytest.approx(max(due, ends), abs=1e-7)
        elif ranges:
            assert began - ends <= 0.5 + 1e-9
        ranges.append((begin, end))
        clock.sleep(cost)
        ends = clock.now()
        return cost if reported else None

    WritePacer.moving(first, clock=clock).run(work, 0, count, spread=spread)
    assert [begin for begin, _ in ranges] == [0, *(end for _, end in ranges)][: len(ranges)]
    assert (ranges[-1][1] if ranges else 0) == count
    assert all(0 < end - begin <= 4_096 for begin, end in ranges)


@given(
    in_pieces=st.booleans(),
    burst=st.sampled_from([0.0, 0.0003, 0.005]),
    speed=st.sampled_from([0.0, 50.0, 40_000.0]),
    most=st.integers(1, 50_000),
    statements=st.lists(
        st.tuples(st.floats(0.0, 8.0), st.floats(0.0, 5.0), st.booleans()), max_size=20
    ),
)
def test_a_statement_always_asks_for_rows_that_fit_and_rests_for_half_a_second_at_most(
    in_pieces: bool,
    burst: float,
    speed: float,
    most: int,
    statements: list[tuple[float, float, bool]],
) -> None:
    """However long it takes, whoever ends it, and whatever waits behind it."""
    clock = VirtualClock()
    pacer = ReadPacer(burst, in_pieces=in_pieces, speed=speed, clock=clock)
    pacer.fits(BatchSize(most, 1 << 30), 100)
    for seconds, outside, is_ended in statements:
        asked, began, rested, came = pacer.statement_rows, clock.now(), 0.0, 0
        assert 1 <= asked <= most
        pacer.begin(asked)
        while came < asked:
            rested += pacer.rest()
            rows = min(pacer.rows, asked - came)
            assert rows >= 1
            clock.sleep(seconds * rows / asked)
            pacer.took(rows, seconds * rows / asked)
            came += rows
            if is_ended:
                pacer.ended(asked, came)
                break
        assert rested <= 0.5
        if not is_ended:
            pacer.answered(asked, came, came * 100, clock.now() - began - rested)
        inside = clock.now() - began
        clock.sleep(outside)
        pacer.handed_on(came, inside, outside)
