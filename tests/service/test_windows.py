"""Windows of a limit: the wall clock, also where it is changed, and what applies them."""

import threading
from datetime import UTC, datetime, timedelta

import pytest

from spark_channel.errors import OptionError
from spark_channel.service import SharedLimit
from spark_channel.service.windows import (
    Applied,
    Speeds,
    WindowKeeper,
    parse_window,
    parse_windows,
    seconds_for,
    seconds_to_next_minute,
    speeds_at,
    zone_of,
)
from spark_channel.testing import VirtualClock

BERLIN = zone_of("Europe/Berlin")
SLOW = Speeds(rows=5_000)
FAST = Speeds(rows=50_000)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("window", "inside", "outside"),
    [  # times in UTC; Berlin is 1 h ahead in winter, 2 h in summer
        (
            "Mon-Fri 08:00-18:00 5k",
            ["2026-01-05 07:00", "2026-07-03 15:59"],
            ["2026-01-05 06:59", "2026-07-03 16:00"],
        ),
        (
            "Sat-Sun 5k",
            ["2026-01-02 23:00", "2026-01-04 22:59"],
            ["2026-01-02 22:59", "2026-01-04 23:00"],
        ),
        ("Fri-Mon 5k", ["2026-01-02 00:00", "2026-01-05 00:00"], ["2026-01-06 00:00"]),
        (
            "22:00-06:00 5k",
            ["2026-01-01 21:00", "2026-01-02 04:59"],
            ["2026-01-02 05:00", "2026-01-02 20:59"],
        ),
        (
            "Sun 22:00-06:00 5k",
            ["2026-01-04 21:00", "2026-01-05 04:59"],
            ["2026-01-05 21:00", "2026-01-04 04:00"],
        ),
        ("18:00-24:00 5k", ["2026-01-01 17:00", "2026-01-01 22:59"], ["2026-01-01 23:00"]),
        # The clock jumps from 02:00 to 03:00 at 01:00 UTC: such a time is not there.
        ("02:15-02:45 5k", ["2026-03-28 01:15"], ["2026-03-29 00:30", "2026-03-29 01:30"]),
        (
            "01:30-03:30 5k",
            ["2026-03-29 00:30", "2026-03-29 01:29"],
            ["2026-03-29 00:29", "2026-03-29 01:30"],
        ),
        # It goes back from 03:00 to 02:00 at 01:00 UTC: such a time is there twice.
        (
            "02:15-02:45 5k",
            ["2026-10-25 00:15", "2026-10-25 01:44"],
            ["2026-10-25 00:45", "2026-10-25 01:14"],
        ),
        (
            "Mon,Wed-Thu 10:00-11:00 5k",
            ["2026-01-05 09:30", "2026-01-08 09:30"],
            ["2026-01-06 09:30"],
        ),
    ],
)
def test_a_window_holds_by_the_wall_clock(
    window: str, inside: list[str], outside: list[str]
) -> None:
    windows = [parse_window(window)]
    for text in inside:
        assert speeds_at(windows, FAST, at(text), BERLIN) == (SLOW, window), text
    for text in outside:
        assert speeds_at(windows, FAST, at(text), BERLIN) == (FAST, ""), text


@pytest.mark.parametrize(
    ("text", "speeds"),
    [
        ("unlimited", Speeds()),
        ("Sat pause", Speeds(paused=True)),
        ("Sat 0", Speeds(paused=True)),
        ("00:00-01:00 64MB", Speeds(nbytes=64_000_000)),
        ("00:00-01:00 64MiB", Speeds(nbytes=64 << 20)),
        ("1.5M", Speeds(rows=1_500_000)),
    ],
)
def test_the_limit_of_a_window(text: str, speeds: Speeds) -> None:
    assert parse_window(text).speeds == speeds


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Mon",
        "Mon-",
        "Funday 5k",
        "08:00 5k",
        "08:00-18:00",
        "8:00-18:00 5k",
        "08:60-09:00 5k",
        "08:00-08:00 5k",
        "5 k",
    ],
)
def test_what_is_no_window(text: str) -> None:
    with pytest.raises(ValueError, match="such as"):
        parse_window(text)


def test_the_first_window_that_holds_counts() -> None:
    windows = [parse_window("Mon 12:00-13:00 pause"), parse_window("Mon-Fri 5k")]
    assert speeds_at(windows, FAST, at("2026-01-05 12:30"), zone_of("UTC"))[0].paused
    assert speeds_at(windows, FAST, at("2026-01-05 13:00"), zone_of("UTC"))[0] == SLOW


@pytest.mark.parametrize(
    "begin", ["2026-01-05 06:59:30", "2026-03-29 00:59", "2026-10-25 00:10", "2026-01-04 22:00"]
)
def test_how_long_rows_last_is_what_a_count_by_the_second_says(begin: str) -> None:
    windows = [
        parse_window("Mon-Fri 08:00-18:00 5"),
        parse_window("02:30-03:30 pause"),
        parse_window("Sun 100"),
    ]
    moment, otherwise = at(begin), Speeds(rows=50)
    rows = left = 400_000.0
    seconds = 0
    while left > 0:
        speeds, _ = speeds_at(windows, otherwise, moment + timedelta(seconds=seconds), BERLIN)
        left -= 0 if speeds.paused else speeds.rows or rows
        seconds += 1
    found = seconds_for(windows, otherwise, moment, BERLIN, rows=rows, nbytes=None)
    assert found == pytest.approx(seconds, abs=2)


def test_a_limit_that_is_always_paused_never_ends() -> None:
    assert (
        seconds_for([parse_window("pause")], FAST, at("2026-01-01"), BERLIN, rows=1, nbytes=None)
        is None
    )
    assert seconds_for([], Speeds(), at("2026-01-01"), BERLIN, rows=10**9, nbytes=1) == 0


def test_the_limit_is_changed_and_a_failure_is_tried_again() -> None:
    moment = [at("2026-01-05 06:59")]
    applied: list[tuple[str, Speeds]] = []
    fails = [False]

    def apply(speeds: Speeds) -> None:
        if fails[0]:
            fails[0] = False
            raise OSError("the service does not answer")
        applied.append((f"{moment[0]:%H:%M}", speeds))

    windows = [parse_window("Mon-Fri 08:00-08:02 5k")]
    keeper = WindowKeeper(windows, FAST, BERLIN, apply, now=lambda: moment[0])
    for minute in range(5):
        fails[0] = minute == 1
        try:
            keeper.look()
        except OSError:
            assert minute == 1
        moment[0] += timedelta(minutes=1)
    assert applied == [("06:59", FAST), ("07:01", SLOW), ("07:02", FAST)]
    assert [text for _, text, _ in keeper.changes] == ["no window", windows[0].text, "no window"]


def test_a_thread_looks_once_a_minute() -> None:
    clock, looked = VirtualClock(), threading.Semaphore(0)
    begin = at("2026-01-05 06:59:30")

    def now() -> datetime:
        return begin + timedelta(seconds=clock.now())

    windows = [parse_window("Mon-Fri 08:00-08:02 5k")]
    keeper = WindowKeeper(windows, FAST, BERLIN, lambda _: looked.release(), clock=clock, now=now)
    with keeper:
        assert looked.acquire(timeout=10)
        clock.wait_until_blocked(
            [t for t in threading.enumerate() if t.name == "spark-channel-windows"]
        )
        clock.advance(31)
        assert looked.acquire(timeout=10)
    assert [speeds for _, _, speeds in keeper.changes] == [FAST, SLOW]


def test_a_shared_limit_follows_the_windows() -> None:
    with SharedLimit("test-windows", 100) as shared:
        apply = Applied(shared)
        seen = []
        for speeds in (SLOW, Speeds(paused=True), Speeds(), Speeds(nbytes=64), FAST):
            apply(speeds)
            status = shared.status()
            seen.append((status.rows_per_second, status.bytes_per_second, status.paused))
    assert seen == [
        (5_000, None, False),
        (5_000, None, True),
        (10**12, None, False),
        (None, 64, False),
        (50_000, None, False),
    ]


@pytest.mark.parametrize(
    ("texts", "zone", "why"),
    [
        (["Mon 5 k"], "UTC", "'--window' got 'Mon 5 k'; it takes days"),
        ([], "Mars", "'--timezone' got 'Mars'"),
        ([], "Europe/Berlin", "'--timezone' is the zone of '--window', which is missing"),
    ],
)
def test_an_option_that_is_no_window(texts: list[str], zone: str, why: str) -> None:
    with pytest.raises(OptionError, match=why):
        parse_windows(texts, zone, "--window")


def test_a_minute_ends_where_the_next_begins() -> None:
    assert seconds_to_next_minute(at("2026-01-01 00:00:59.5")) == pytest.approx(0.5)
    assert seconds_to_next_minute(at("2026-01-01 00:01:00")) == 60
