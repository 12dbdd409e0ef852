"""What is shown where, and that the program's own output is never touched."""

import io
import logging
import os
import pty
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from spark_channel.progress import Counters, JobProgress, JobSpec, Phase, TransferReport
from spark_channel.service import ProgressDisplay
from spark_channel.service.display import LiveLine, choose_mode
from tests.service.helpers import wait_for

SPEC = JobSpec(
    "read", name="flights", source="csv x", tasks=1, rows_expected=1000, rows_per_second=500
)


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(logging.INFO, logger="spark_channel.progress"):
        yield caplog


def run_job(display: ProgressDisplay, name: str = "j", spec: JobSpec = SPEC) -> JobProgress:
    progress = JobProgress(name, spec)
    display.job_opened(progress)
    counters = Counters(0, 1, rows_expected=1000)
    counters.pushed(1000, 8000)
    counters.enter(Phase.DONE)
    progress.update(counters.snapshot())
    progress.enter(Phase.DONE)
    display.job_closed(progress)
    return progress


def test_a_log_has_the_lines_before_and_the_summary(logged: pytest.LogCaptureFixture) -> None:
    with ProgressDisplay("log") as display:
        run_job(display)
    lines = [each.getMessage() for each in logged.records]
    assert lines[:2] == [
        "read flights: x (csv) -> Spark",
        "limit 500 rows/s for the whole job, about 1k rows",
    ]
    assert lines[2].startswith("read 1 000 rows (8kB) in ")


def test_a_verbose_log_says_how_the_work_was_done(
    logged: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_CHANNEL_VERBOSE", "1")
    with ProgressDisplay("log") as display:
        run_job(display)
    lines = [each.getMessage() for each in logged.records]
    assert lines[1] == "1 split, about 1k rows"
    assert lines[4].startswith("1 task, 1 attempt (0 retried)")


def test_a_log_has_a_line_each_half_minute_and_no_more(
    logged: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from spark_channel.service.display import _LogLines
    from spark_channel.testing import VirtualClock

    clock = VirtualClock()
    view = _LogLines(io.StringIO(), clock)
    for _ in range(100):
        view.show([LiveLine("12 % 3 rows")])
        clock.advance(1)
    assert [each.getMessage() for each in logged.records] == ["12 % 3 rows"] * 3


def test_without_logging_set_up_the_lines_go_to_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("spark_channel.progress"), "hasHandlers", lambda: False)
    stream = io.StringIO()
    with ProgressDisplay("log", stream=stream) as display:
        run_job(display)
    assert stream.getvalue().splitlines()[0] == "read flights: x (csv) -> Spark"
    assert "1 000 rows" in stream.getvalue()


def test_off_shows_nothing_and_starts_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    before = threading.active_count()
    with ProgressDisplay("off") as display:
        run_job(display)
        assert threading.active_count() == before
    assert capfd.readouterr() == ("", "")


def test_a_terminal_has_a_live_line_and_keeps_what_stays() -> None:
    stream = Terminal()
    display = ProgressDisplay(stream=stream)
    progress = JobProgress("j", SPEC)
    display.job_opened(progress)
    counters = Counters(0, 1, rows_expected=1000)
    counters.pushed(250, 2000)
    progress.update(counters.snapshot())
    wait_for(lambda: "25 % 250 rows" in stream.getvalue(), "the live line")
    display.job_closed(progress)
    display.close()
    text = stream.getvalue()
    assert "read flights: x (csv) -> Spark" in text
    assert "1 task, 1 attempt" not in text
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h")


def test_several_jobs_are_told_apart(logged: pytest.LogCaptureFixture) -> None:
    stream = Terminal()
    display = ProgressDisplay("terminal", stream=stream)
    jobs = [
        JobProgress(f"j{number}", JobSpec("read", name=f"table {number}")) for number in range(2)
    ]
    for job in jobs:
        display.job_opened(job)
    for job in jobs:
        job.enter(Phase.DONE)
        display.job_closed(job)
    display.close()
    for number in range(2):
        assert f"read table {number}: Spark -> Spark" in stream.getvalue()
    assert stream.getvalue().count("read 0 rows (0B)") == 2


def test_the_thread_ends_with_the_last_job_and_starts_with_the_next(
    logged: pytest.LogCaptureFixture,
) -> None:
    display = ProgressDisplay("log")
    for number in range(3):
        run_job(display, f"j{number}")
        for thread in threading.enumerate():
            if thread.name == "spark-channel-display":
                thread.join(30)
                assert not thread.is_alive()
    assert sum("1 000 rows" in each.getMessage() for each in logged.records) == 3
    display.close()
    run_job(display, "late")
    assert sum("1 000 rows" in each.getMessage() for each in logged.records) == 3


def test_a_display_that_fails_harms_no_job(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Terminal):
        def write(self, text: str) -> int:
            raise OSError("the terminal is gone")

    with ProgressDisplay("terminal", stream=Broken()) as display:
        run_job(display)
    assert "the progress display failed" in caplog.text


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """IPython as a kernel has it, which keeps what is displayed."""
    shown: list[tuple[str, Any]] = []

    class Handle:
        def update(self, what: Any) -> None:
            shown.append(("update", what))

    def display(what: Any, display_id: bool = False) -> Handle | None:
        shown.append(("new", what))
        return Handle() if display_id else None

    ipython = ModuleType("IPython")
    inside = ModuleType("IPython.display")
    vars(ipython)["get_ipython"] = lambda: SimpleNamespace(kernel=object())
    vars(inside)["display"] = display
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", inside)
    return shown


def test_a_notebook_has_one_output_that_is_updated_and_then_the_report(
    notebook: list[tuple[str, Any]],
) -> None:
    assert choose_mode(io.StringIO()) == "notebook"
    display = ProgressDisplay()
    progress = JobProgress("j", SPEC)
    display.job_opened(progress)
    progress.enter(Phase.DONE)
    display.job_closed(progress)
    display.close()
    assert "read flights" in repr(notebook[0][1])
    assert isinstance(notebook[-1][1], TransferReport) or isinstance(
        notebook[-2][1], TransferReport
    )
    lines = [what for kind, what in notebook if kind == "update"]
    assert all(hasattr(each, "_repr_html_") for each in lines)


def test_the_mode_follows_the_stream() -> None:
    assert choose_mode(Terminal()) == "terminal"
    assert choose_mode(io.StringIO()) == "log"
    closed = io.StringIO()
    closed.close()
    assert choose_mode(closed) == "log"


PROGRAM = """
import sys, threading
from spark_channel.progress import JobSpec, Phase
from spark_channel.service import ProgressDisplay, ServiceClient, ServiceServer
with ServiceServer() as server, ProgressDisplay() as display:
    server.jobs.subscribe(display)
    spec = JobSpec("read", name="flights", tasks=1, rows_expected=10)
    with ServiceClient(server.address, "j", spec) as client:
        counters = client.counters(0, 1, rows_expected=10)
        counters.pushed(5, 40)
        threading.Event().wait(1.5)
        print("a line of the program")
        counters.pushed(5, 40)
        counters.enter(Phase.DONE)
print("the last line")
"""


def run_on_terminal(**streams: Any) -> tuple[str, str]:
    """Run PROGRAM with stderr on a pseudo-terminal; returns (stdout when it is a pipe, the terminal)."""
    main, other = pty.openpty()
    stdout = streams.pop("stdout", other)
    process = subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=stdout, stderr=other)
    os.close(other)
    seen = b""
    while True:
        try:
            part = os.read(main, 65536)
        except OSError:  # the other side is closed
            break
        if not part:
            break
        seen += part
    os.close(main)
    piped = process.stdout.read().decode() if process.stdout is not None else ""
    if process.stdout is not None:
        process.stdout.close()
    assert process.wait(30) == 0, seen
    return piped, seen.decode()


def test_what_the_program_prints_into_a_pipe_is_untouched() -> None:
    piped, terminal = run_on_terminal(stdout=subprocess.PIPE)
    assert piped == "a line of the program\nthe last line\n"
    assert "50 % 5 rows" in terminal
    assert "read 10 rows" in terminal
    assert "a line of the program" not in terminal


def test_on_one_terminal_the_programs_lines_stay_readable() -> None:
    _, terminal = run_on_terminal()
    lines = [line.rpartition("\x1b[2K")[2] for line in terminal.split("\r\n")]
    assert "a line of the program" in lines
    assert "the last line" in [line.rpartition("\x1b[?25h")[2] for line in lines]


def test_without_a_terminal_stdout_is_untouched_too(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "a line of the program\nthe last line\n"
    assert "read 10 rows" in done.stderr
    assert "\x1b" not in done.stderr


def test_a_stream_that_was_closed_ends_the_display_without_a_word(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stream = io.StringIO()
    display = ProgressDisplay("terminal", stream=stream)
    stream.close()
    with caplog.at_level(logging.INFO, "spark_channel"):
        display.job_opened(JobProgress("j", JobSpec("read")))
        display.close()
    assert caplog.text == ""


AT_THE_END = """
import atexit, sys, threading
from spark_channel.progress import JobSpec
from spark_channel.service import ProgressDisplay, ServiceServer
server, display = ServiceServer("127.0.0.1"), ProgressDisplay("log")
server.jobs.subscribe(display)
server.start()
if sys.argv[1] == "running":
    server.jobs.open(JobSpec("write", target="t"), "j")
atexit.register(display.close)
atexit.register(server.stop)

def no_more(self):
    raise RuntimeError("can't create new thread at interpreter shutdown")

atexit.register(setattr, threading.Thread, "start", no_more)  # runs first; so does Python from 3.12.1 on
"""


@pytest.mark.parametrize("job", ["none", "running"])
def test_a_script_ends_without_a_thread_that_python_no_longer_starts(job: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", AT_THE_END, job],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "new thread" not in done.stderr
    assert "Traceback" not in done.stderr
    assert ("failed after" in done.stderr) == (job == "running")


def test_a_flush_waits_until_what_has_happened_is_shown() -> None:
    stream = io.StringIO()
    with ProgressDisplay("terminal", stream=stream) as display:
        for number in range(5):
            run_job(display, f"j{number}")
            display.flush()
            assert stream.getvalue().count("read 1 000 rows") == number + 1
        display.flush()


def test_the_link_to_the_page_is_on_a_terminal_once_and_in_no_log(
    logged: pytest.LogCaptureFixture,
) -> None:
    for mode, shown in (("terminal", True), ("log", False)):
        terminal = Terminal()
        with ProgressDisplay(mode, stream=terminal) as display:  # type: ignore[arg-type] # a stand-in
            display.link = "http://127.0.0.1:8000/#secret-token"
            run_job(display, "one")
            run_job(display, "two")
        said = terminal.getvalue() + logged.text
        assert said.count("#secret-token") == (1 if shown else 0)
        assert ("spark-channel ui" in said) is not shown
