"""The live line on a terminal: a bar, and colours where the terminal has them."""

import io
import re

import pytest

from spark_channel.progress import Counters, JobProgress, JobSpec, Phase
from spark_channel.service import ProgressDisplay
from spark_channel.service.display import LiveLine, TerminalView, live_line

LINE = "25 % 250 rows 99.8k/s of 100k/s - waits: limit 71 % source 3 % target 26 % - ETA 3:20"
COLOUR = re.compile(r"\x1b\[[\d;]*m")


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A terminal of 140 columns and 256 colours."""
    for name in ("NO_COLOR", "FORCE_COLOR", "COLORTERM", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "140")
    return monkeypatch


def shown(line: LiveLine) -> str:
    stream = Terminal()
    view = TerminalView(stream, every=0.5)
    view.show([line])
    view.close()
    return stream.getvalue()


def plain(text: str) -> str:
    return COLOUR.sub("", text)


def test_a_job_of_a_known_size_has_a_bar_as_long_as_its_percent(
    environment: pytest.MonkeyPatch,
) -> None:
    assert LINE in plain(shown(LiveLine(LINE, 25.0)))
    environment.setenv("NO_COLOR", "1")  # only what is done is drawn
    bars = [shown(LiveLine(LINE, percent)).split("25 %")[0] for percent in (10, 50, 100)]
    assert [each.count("━") for each in bars] == [2, 10, 20]


def test_a_job_of_an_unknown_size_has_none() -> None:
    assert "━" not in shown(LiveLine(LINE))


def test_a_read_that_is_all_read_has_none_since_its_rows_are_still_on_their_way() -> None:
    progress = JobProgress("j", JobSpec("read", tasks=1, rows_expected=10))
    counters = Counters(0, 1, rows_expected=10)
    counters.pushed(10, 80)
    progress.update(counters.snapshot())
    line = live_line(progress.status())
    assert (line.percent, line.text[:8]) == (None, "all read")


def test_refused_rows_stand_out() -> None:
    text = shown(LiveLine(LINE.replace("ETA", "dirty 12 - ETA")))
    assert "\x1b[1;31mdirty 12\x1b[0m" in text
    assert "\x1b[1;31m" not in shown(LiveLine(LINE))


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_a_terminal_without_colours_has_none(
    environment: pytest.MonkeyPatch, name: str, value: str
) -> None:
    coloured = re.compile(r"\x1b\[(?:\d+;)*(?:3|4|9)\d[;m]")
    assert coloured.search(shown(LiveLine(LINE, 25.0))) is not None
    environment.setenv(name, value)
    assert coloured.search(shown(LiveLine(LINE, 25.0))) is None


def test_a_narrow_terminal_keeps_its_room_for_the_line(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("COLUMNS", "60")
    assert "━" not in shown(LiveLine(LINE, 25.0))


@pytest.mark.parametrize(("phase", "colour"), [(Phase.DONE, "32"), (Phase.FAILED, "31")])
def test_a_summary_shows_at_a_glance_how_it_ended(phase: Phase, colour: str) -> None:
    stream = Terminal()
    with ProgressDisplay("terminal", stream=stream) as display:
        progress = JobProgress("j", JobSpec("read"))
        display.job_opened(progress)
        progress.enter(phase)
        display.job_closed(progress)
    assert re.search(rf"\x1b\[{colour}m(read|failed)", stream.getvalue())
