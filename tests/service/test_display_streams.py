"""How streams are shown: one line for the last micro-batch, not the lines of a job for each."""

import io
import logging
import threading

import pytest

from spark_channel.progress import Counters, JobProgress, JobSpec, Phase
from spark_channel.service import ProgressDisplay


def run_batch(display: ProgressDisplay, number: int, rows: int = 100) -> None:
    spec = JobSpec("read", name="orders", source="sqlite shop.db#orders", tasks=1, batch=number)
    progress = JobProgress(f"job-{number}", spec)
    display.job_opened(progress)
    counters = Counters(0, 1)
    counters.pushed(rows, 8 * rows)
    counters.enter(Phase.DONE)
    progress.update(counters.snapshot())
    progress.enter(Phase.DONE)
    display.job_closed(progress)


def test_a_log_has_the_first_batch_and_the_last(caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level(logging.INFO, logger="spark_channel.progress"),
        ProgressDisplay("log") as display,
    ):
        for number in range(20):
            run_batch(display, number)
    lines = [each.getMessage() for each in caplog.records]
    assert lines[:2] == ["stream orders: shop.db orders -> Spark", "no limit"]
    assert len(lines) == 4
    assert "batch 0: 100 rows (800B)" in lines[2]
    assert "batch 19: 100 rows (800B)" in lines[3]
    assert lines[3].endswith("2 000 rows in 20 batches")


def test_a_terminal_keeps_the_last_batch_of_a_stream() -> None:
    stream = io.StringIO()
    with ProgressDisplay("terminal", stream=stream) as display:
        for number in range(20):
            run_batch(display, number)
    shown = " ".join(stream.getvalue().split())  # a narrow terminal folds the line
    assert shown.startswith("stream orders: shop.db orders -> Spark no limit")
    assert shown.count("2 000 rows in 20 batches") == 1
    assert shown.count("read ") == 0


def test_jobs_beside_a_stream_are_shown_as_ever(caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level(logging.INFO, logger="spark_channel.progress"),
        ProgressDisplay("log") as display,
    ):
        run_batch(display, 0)
        job = JobProgress("j", JobSpec("write", name="copy", target="csv x"))
        display.job_opened(job)
        job.enter(Phase.DONE)
        display.job_closed(job)
    lines = [each.getMessage() for each in caplog.records]
    assert "write copy: Spark -> x (csv)" in lines
    assert sum(line.startswith("wrote 0 rows") for line in lines) == 1
    assert sum(line.startswith("orders - batch 0") for line in lines) == 1


def test_a_stream_whose_terminal_is_gone_ends_without_a_word(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As at the end of a program: the display has no stream left to write to."""
    stream = Terminal()
    with (
        caplog.at_level(logging.INFO, logger="spark_channel"),
        ProgressDisplay("terminal", stream=stream) as display,
    ):
        run_batch(display, 0)
        assert stream.written.wait(30)
        stream.close()
    assert [each for each in caplog.records if each.levelno > logging.INFO] == []


class Terminal(io.StringIO):
    """Signals each write."""

    def __init__(self) -> None:
        super().__init__()
        self.written = threading.Event()

    def write(self, text: str) -> int:
        self.written.set()
        return super().write(text)
