"""The live line on a terminal: a bar, and colours where the terminal has them."""

import io
import logging
import re

import pytest

from spark_channel.progress import Counters, JobProgress, JobSpec, Phase
from spark_channel.service import ProgressDisplay
from spark_channel.service.live_line import LiveLine, live_line
from spark_channel.service.terminal import TerminalView
from tests.service.helpers import wait_for

LINE = "25 % 250 rows 99.8k/s of 100k/s - waits: limit 71 % source 3 % target 26 % - dirty 0 - ETA 3:20"
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


def test_a_job_of_a_known_size_has_a_bar_as_long_as_its_percent(environment: pytest.MonkeyPatch) -> None:
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
    text = shown(LiveLine(LINE.replace("dirty 0", "dirty 12")))
    assert "\x1b[1;31mdirty 12\x1b[0m" in text
    assert "\x1b[1;31m" not in shown(LiveLine(LINE))


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_a_terminal_without_colours_has_none(environment: pytest.MonkeyPatch, name: str, value: str) -> None:
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


def test_what_else_writes_there_is_silent_while_a_line_is_shown() -> None:
    stream = Terminal()
    heard: list[tuple[bool, str]] = []
    display = ProgressDisplay(
        "terminal", stream=stream, hush=lambda hushed: heard.append((hushed, stream.getvalue()))
    )
    progress = JobProgress("j", JobSpec("read", name="flights"))
    display.job_opened(progress)
    wait_for(lambda: "0 rows" in stream.getvalue(), "the live line")
    assert [each for each, _ in heard] == [True]
    progress.enter(Phase.DONE)
    display.job_closed(progress)
    wait_for(lambda: len(heard) == 2, "the end of the silence")
    display.close()
    (first, before), (second, after) = heard
    assert (first, before) == (True, "")
    assert not second
    assert "0 tasks, 0 attempts" in after


def test_a_log_silences_it_while_it_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("spark_channel.progress"), "hasHandlers", lambda: False)
    written: list[tuple[str, bool]] = []
    silent: list[bool] = [False]

    class Stream(io.StringIO):
        def write(self, text: str) -> int:
            written.append((text, silent[-1]))
            return len(text)

    with ProgressDisplay("log", stream=Stream(), hush=silent.append) as display:
        progress = JobProgress("j", JobSpec("read"))
        display.job_opened(progress)
        wait_for(lambda: len(silent) == 3, "the end of the silence")
        progress.enter(Phase.DONE)
        display.job_closed(progress)
    assert len(written) >= 2
    assert all(was_silent for _, was_silent in written)
    assert silent == [False, True, False, True, False]
