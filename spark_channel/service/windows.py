"""Windows of a limit: which speed holds at which time of the week, and what applies it."""

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from typing import Protocol, Self
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from spark_channel.clock import SYSTEM_CLOCK, Clock, utc_now
from spark_channel.errors import OptionError
from spark_channel.option_types import parse_amount
from spark_channel.plain_text import log_of
from spark_channel.service.shared_limit import MOST_JOBS, SharedLimit, parse_rates

__all__ = [
    "NO_WINDOW",
    "Applied",
    "Speeds",
    "Window",
    "WindowKeeper",
    "parse_window",
    "parse_windows",
    "seconds_for",
    "seconds_to_next_minute",
    "speeds_at",
    "speeds_of",
    "windowed_limit",
    "zone_of",
]

_UNLIMITED = 10**12
"""Rows per second of a shared limit that holds nothing up: it always has a speed."""
_log = log_of(__name__)

NO_WINDOW = "no window"
"""What a change of the limit says that no window makes."""

_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_TAKES = "days, times and a limit, such as 'Mon-Fri 08:00-18:00 5k', '22:00-06:00 64MB' or 'Sat-Sun unlimited'"
_DAY = "(?:mon|tue|wed|thu|fri|sat|sun)"
_WINDOW = re.compile(
    rf"(?:(?P<days>{_DAY}(?:-{_DAY})?(?:,{_DAY}(?:-{_DAY})?)*)\s+)?"
    r"(?:(?P<start>\d{2}:\d{2})-(?P<end>\d{2}:\d{2})\s+)?(?P<limit>\S+)"
)


@dataclass(frozen=True, slots=True)
class Speeds:
    """Rows and Arrow bytes per second; None = unlimited. `paused`: nothing passes."""

    rows: int | None = None
    nbytes: int | None = None
    paused: bool = False

    def __str__(self) -> str:
        if self.paused:
            return "paused"
        texts = [f"{self.rows} rows/s"] if self.rows is not None else []
        texts += [f"{self.nbytes} B/s"] if self.nbytes is not None else []
        return " and ".join(texts) or "unlimited"


@dataclass(frozen=True, slots=True)
class Window:
    """One window. `start` is included, `end` is not; they are times of the wall clock, and equal ones are a whole day.

    A window whose end is before its start ends on the next day; `days` are those on which it begins, 0 is Monday.
    """

    days: frozenset[int]
    start: time
    end: time
    speeds: Speeds
    text: str

    def holds(self, local: datetime) -> bool:
        """Whether a time of the wall clock is in the window."""
        at, day = local.time(), local.weekday()
        if self.start < self.end:
            return day in self.days and self.start <= at < self.end
        if self.start == self.end == time():
            return day in self.days
        return (day in self.days and at >= self.start) or (
            (day - 1) % 7 in self.days and at < self.end
        )


def zone_of(name: str) -> ZoneInfo:
    """
    Raises:
        ValueError: the system knows no such zone.
    """
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError("the name of a time zone, such as Europe/Berlin or UTC") from None


def parse_window(text: str) -> Window:
    """The window that a text names: a limit in rows per second, with B at its end in bytes, `unlimited` or `pause`.

    Raises:
        ValueError: what a window may be.
    """
    match = _WINDOW.fullmatch(text.strip().lower())
    if match is None:
        raise ValueError(_TAKES)
    start, end = _time(match["start"]), _time(match["end"])
    if match["start"] and start == end:
        raise ValueError(f"{_TAKES}; for a whole day, omit the times")
    return Window(_days(match["days"]), start, end, _speeds(match["limit"]), text.strip())


def _time(text: str | None) -> time:
    if text is None or text == "24:00":
        return time()
    hour, minute = map(int, text.split(":"))
    try:
        return time(hour, minute)
    except ValueError:
        raise ValueError(f"{_TAKES}; {text} is not a time") from None


def _days(text: str | None) -> frozenset[int]:
    if text is None:
        return frozenset(range(7))
    days: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        start, end = _DAYS.index(first), _DAYS.index(last or first)
        days |= {day % 7 for day in range(start, end + 1 if end >= start else end + 8)}
    return frozenset(days)


def _speeds(text: str) -> Speeds:
    if text == "unlimited":
        return Speeds()
    if text in ("pause", "0"):
        return Speeds(paused=True)
    try:
        if text.endswith("b"):
            return Speeds(nbytes=parse_amount(text.upper().replace("I", "i"), bytes_=True))
        return Speeds(rows=parse_amount(text))
    except ValueError:
        raise ValueError(f"{_TAKES}; {text!r} is not a limit") from None


def speeds_at(
    windows: Sequence[Window], otherwise: Speeds, moment: datetime, zone: ZoneInfo
) -> tuple[Speeds, str]:
    """The speeds at `moment`, a time with a zone, and the window that says so; the first one that holds counts."""
    local = moment.astimezone(zone)
    for window in windows:
        if window.holds(local):
            return window.speeds, window.text
    return otherwise, ""


def seconds_to_next_minute(moment: datetime) -> float:
    """Windows begin and end at whole minutes, and so does every change of a clock: looking once a minute is enough."""
    return 60.0 - moment.second - moment.microsecond / 1e6


def seconds_for(
    windows: Sequence[Window],
    otherwise: Speeds,
    begin: datetime,
    zone: ZoneInfo,
    *,
    rows: float,
    nbytes: float | None,
    most: timedelta = timedelta(days=28),
) -> float | None:
    """How long `rows` and `nbytes` last at the limit from `begin` on; None = longer than `most`, 0 without a limit."""
    left_rows, left_bytes, moment = float(rows), float(nbytes or 0), begin.astimezone(UTC)
    end = moment + most
    while moment < end:
        speeds, _ = speeds_at(windows, otherwise, moment, zone)
        span = seconds_to_next_minute(moment)
        if not speeds.paused:
            needed = max(
                left_rows / speeds.rows if speeds.rows else 0.0,
                left_bytes / speeds.nbytes if speeds.nbytes else 0.0,
            )
            if needed <= span:
                return (moment - begin.astimezone(UTC)).total_seconds() + needed
            share = span / needed
            left_rows -= left_rows * share
            left_bytes -= left_bytes * share
        moment += timedelta(seconds=span)
    return None


class WindowKeeper:
    """Applies windows to a limit while a `with` block runs: `apply(speeds)` is called when they change.

    `changes` are the windows that held, with their times, for a report. An `apply` that fails is tried again a minute
    later.
    """

    def __init__(
        self,
        windows: Sequence[Window],
        otherwise: Speeds,
        zone: ZoneInfo,
        apply: Callable[[Speeds], object],
        *,
        clock: Clock = SYSTEM_CLOCK,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        self._windows, self._otherwise, self._zone = tuple(windows), otherwise, zone
        self._apply, self._clock, self._now = apply, clock, now
        self._wake = threading.Condition()
        self._ended = False
        self._held: Speeds | None = None
        self._thread: threading.Thread | None = None
        self.changes: list[tuple[datetime, str, Speeds]] = []

    def __enter__(self) -> Self:
        self.look()
        if self._windows:
            self._thread = threading.Thread(
                target=self._run, name="spark-channel-windows", daemon=True
            )
            self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        with self._wake:
            self._ended = True
            self._wake.notify_all()
        if self._thread is not None:
            self._thread.join()

    def look(self) -> None:
        """Apply the speeds of now, if they are not those that hold."""
        moment = self._now()
        speeds, text = speeds_at(self._windows, self._otherwise, moment, self._zone)
        if speeds == self._held:
            return
        self._apply(speeds)
        self._held = speeds
        self.changes.append((moment, text or NO_WINDOW, speeds))
        _log.info("limit: %s (%s)", speeds, text or NO_WINDOW)

    def _run(self) -> None:
        while True:
            with self._wake:
                if not self._ended:
                    self._clock.wait(self._wake, seconds_to_next_minute(self._now()))
                if self._ended:
                    return
            try:
                self.look()
            except Exception:
                _log.warning("the limit's window could not be applied; trying again", exc_info=True)


def parse_windows(
    texts: Sequence[str], timezone: str, option: str
) -> tuple[tuple[Window, ...], ZoneInfo]:
    """The windows and the zone of a command's options.

    Raises:
        OptionError: one makes no sense, or a zone without windows; `option` is the name of the windows' option.
    """
    try:
        zone = zone_of(timezone)
    except ValueError as error:
        raise OptionError(
            f"option '--timezone' got {timezone!r}; it takes {error}", option="--timezone"
        ) from None
    if timezone != "UTC" and not texts:
        raise OptionError(
            f"option '--timezone' is the zone of {option!r}, which is missing: give both, or omit it",
            option="--timezone",
        )
    windows = []
    for text in texts:
        try:
            windows.append(parse_window(text))
        except ValueError as error:
            raise OptionError(
                f"option {option!r} got {text!r}; it takes {error}", option=option, got=text
            ) from None
    return tuple(windows), zone


def speeds_of(rows: str | None, nbytes: str | None) -> Speeds:
    """The speeds that a command's options name.

    Raises:
        OptionError: one is not a speed.
    """
    return Speeds() if rows is None and nbytes is None else Speeds(*parse_rates(rows, nbytes))


@contextmanager
def windowed_limit(
    name: str,
    otherwise: Speeds,
    windows: Sequence[Window],
    zone: ZoneInfo,
    *,
    max_jobs: int = MOST_JOBS,
) -> Iterator[tuple[SharedLimit, WindowKeeper]]:
    """A shared limit that is served in a `with` block, and changed as the windows say."""
    first = otherwise if otherwise != Speeds() else Speeds(_UNLIMITED)
    with (
        SharedLimit(name, first.rows, first.nbytes, max_jobs=max_jobs) as shared,
        WindowKeeper(windows, otherwise, zone, Applied(shared)) as keeper,
    ):
        yield shared, keeper


class Changeable(Protocol):
    """A limit of this process, or of another one."""

    def set(self, rows_per_second: int | None, bytes_per_second: int | None) -> object: ...

    def pause(self) -> object: ...

    def resume(self) -> object: ...


class Applied:
    """Applies speeds to a limit; it does not end a pause that it did not begin."""

    def __init__(self, shared: Changeable) -> None:
        self._shared = shared
        self._paused = False

    def __call__(self, speeds: Speeds) -> None:
        if speeds.paused:
            self._shared.pause()
        else:
            unlimited = speeds == Speeds()
            self._shared.set(_UNLIMITED if unlimited else speeds.rows, speeds.nbytes)
            if self._paused:
                self._shared.resume()
        self._paused = speeds.paused
