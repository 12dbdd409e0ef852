"""Clocks: texts of times, and the part of a step's time that its size does not change."""

import threading
from datetime import UTC, datetime

import pytest

from spark_channel.clock import (
    SYSTEM_CLOCK,
    FixedSeconds,
    connecting,
    seconds_connecting,
    utc_text,
)


def test_texts_compare_as_their_times_do() -> None:
    times = [datetime(2026, 1, 31, 9, tzinfo=UTC), datetime(2026, 1, 31, 10, tzinfo=UTC)]
    assert [utc_text(time) for time in times] == ["2026-01-31T09:00:00Z", "2026-01-31T10:00:00Z"]
    assert utc_text(times[0], "milliseconds") == "2026-01-31T09:00:00.000Z"


def test_the_fixed_part_is_found_from_two_sizes() -> None:
    fixed = FixedSeconds()
    assert fixed.took(100, 1.1) == pytest.approx(1.1)
    assert fixed.took(200, 1.2) == pytest.approx(0.2)
    assert fixed.seconds == pytest.approx(1.0)


def test_steps_of_about_one_size_say_nothing_of_it() -> None:
    fixed = FixedSeconds()
    fixed.took(100, 1.0)
    assert fixed.took(110, 2.0) == pytest.approx(2.0)
    assert fixed.seconds == 0.0


def test_a_larger_step_that_was_faster_makes_no_negative_time() -> None:
    fixed = FixedSeconds()
    fixed.took(100, 5.0)
    assert fixed.took(200, 1.0) >= 0.0
    assert 0.0 <= fixed.seconds <= 1.0


def test_connecting_counts_a_nested_block_once_and_each_thread_apart() -> None:
    before = seconds_connecting()
    began = SYSTEM_CLOCK.now()
    with connecting(), connecting():
        SYSTEM_CLOCK.sleep(0.02)
    spent = seconds_connecting() - before
    assert 0.02 <= spent <= SYSTEM_CLOCK.now() - began
    elsewhere: list[float] = []
    thread = threading.Thread(target=lambda: elsewhere.append(seconds_connecting()))
    thread.start()
    thread.join()
    assert elsewhere == [0.0]
