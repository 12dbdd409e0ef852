"""A source that is late now and then is read under a limit: how much of the limit is used. On a virtual clock."""

from collections.abc import Callable

import pytest

from tests.connectors.sql.limited_copy import LimitedCopy, jitter, never, pauses


@pytest.mark.parametrize("late", [never, jitter(1), pauses], ids=["quiet", "jitter", "pauses"])
@pytest.mark.parametrize("speed", [1_000, 8_000, 40_000, 200_000])
def test_a_limit_is_used_from_the_first_row_to_the_last(
    speed: int, late: Callable[[float], float]
) -> None:
    copy = LimitedCopy(speed, late)
    copy.run()
    assert copy.used() >= (0.95 if late is not never and speed == 200_000 else 0.98)
    assert copy.worst(1.0) <= 1.05
    assert copy.worst(10.0) <= 1.01
    assert copy.most_ahead <= 1.5


@pytest.mark.parametrize("rows", [1.0, 0.4, 0.05])
def test_a_change_of_task_costs_nothing(rows: float) -> None:
    """Tasks of so many seconds, each of which is opened in 20 ms."""
    copy = LimitedCopy(8_000, never, task_seconds=rows, open_seconds=0.02)
    copy.run()
    assert copy.used() >= 0.98


@pytest.mark.parametrize("speed", [8_000, 40_000, 200_000])
def test_the_first_rows_are_read_as_evenly_as_the_others(speed: int) -> None:
    """The rows that a read is ahead are read over half a second, and not at once."""
    copy = LimitedCopy(speed, never)
    copy.run()

    def rows(end: float) -> float:
        return sum(rows for at, rows in copy.asked if at < end) / speed

    assert rows(0.1) <= 0.3
    assert rows(0.5) <= 1.5


def test_a_pause_of_seconds_is_not_made_up_in_a_burst() -> None:
    copy = LimitedCopy(8_000, lambda at: 5.0 if 20.0 <= at < 20.1 else 0.0)
    copy.run()
    assert copy.worst(1.0) <= 1.05
    assert copy.used(27.0) >= 0.98
