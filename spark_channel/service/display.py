"""Shows running jobs: a live line on a terminal, an output in a notebook, or log lines."""

import contextlib
import os
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, TextIO

from spark_channel.clock import SYSTEM_CLOCK, Clock
from spark_channel.plain_text import log_of, one_line
from spark_channel.progress import (
    JobProgress,
    JobStatus,
    StreamLog,
    TransferReport,
    before_lines,
    is_batch,
    progress_line,
    summary_lines,
)

if TYPE_CHECKING:
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

__all__ = [
    "VERBOSE",
    "LiveLine",
    "ProgressDisplay",
    "TerminalView",
    "choose_mode",
    "is_verbose",
    "live_line",
]

_log = log_of("spark_channel.progress")
_LIVE_SECONDS = 0.5
_LOG_SECONDS = 30.0
_NO_LINK = "run `spark-channel ui` on this host; the link has a token, so no log has it"
_SHORT_BATCH_SECONDS = 2.0
"""A micro-batch that runs no longer than this is shown when it is over: its line then has the final numbers."""
VERBOSE = "SPARK_CHANNEL_VERBOSE"
"""Set, displays are verbose."""
_BAR_WIDTH = 20
_NARROWEST = 80
"""A narrower terminal has no room for a bar beside the line."""
_COLOURS = (
    (r"dirty (?!0\b)[\d.]+[kMGTPE]?", "bold red"),
    (r"\b(?:failed|paused)\b", "bold red"),
    (r"\ball read\b|\bETA [\d:>h ]+", "cyan"),
    (r"[\d.]+[kMGTPE]?B?/s(?: of [\d.]+[kMGTPE]?B?/s)?", "green"),
    (r"waits:.*? target \d+ %", "dim"),
)


@dataclass(frozen=True, slots=True)
class LiveLine:
    """A job's line, and how far it is in percent: None = not known."""

    text: str
    percent: float | None = None


def live_line(status: JobStatus, name: str = "") -> LiveLine:
    """The line of a job, which begins with `name`. A read that is all read is not done: who takes its rows may lag."""
    all_read = status.spec.kind == "read" and status.percent == 100.0
    return LiveLine(name + progress_line(status), None if all_read else status.percent)


DisplayMode = Literal["auto", "terminal", "notebook", "log", "off"]


def choose_mode(stream: TextIO) -> Literal["terminal", "notebook", "log"]:
    """A notebook's kernel shows a cell; a terminal behind `stream` a live line; all else gets log lines."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is not None and getattr(shell, "kernel", None) is not None:
        return "notebook"
    try:
        return "terminal" if stream.isatty() else "log"
    except ValueError:  # closed
        return "log"


def is_verbose() -> bool:
    """Whether displays show the work of each job beside its result: the command line's `--verbose`."""
    return os.environ.get(VERBOSE, "") not in ("", "0")


class _DisplayTarget(Protocol):
    """Shows lines; called by one thread at a time."""

    every: float
    """Seconds between two calls of `show`."""
    keeps: bool
    """Whether what `show` shows stays: a log, where a line that takes another's place does not exist."""

    def say(self, lines: list[str]) -> None:
        """Print lines that stay."""

    def show(self, lines: list[LiveLine]) -> None:
        """Put the lines of all running jobs in place of those shown before."""

    def finish(self, report: TransferReport) -> None:
        """Print a job's summary."""

    def close(self) -> None: ...


class ProgressDisplay:
    """A `JobListener` that shows every job of a service: before, while it runs, after.

    On a terminal it writes to stderr, so that what the program prints to stdout can be piped; in a
    notebook to its own output that is updated; otherwise log lines of `spark_channel.progress` at
    INFO, one per job and 30 s, or the same lines on stderr where the program set up no logging. For a stream
    it shows the last micro-batch. A thread runs while a job does, and for a minute after a stream's last
    batch. A failure of the display ends the display, never a job.
    """

    def __init__(
        self,
        mode: DisplayMode = "auto",
        *,
        stream: TextIO | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.mode = mode
        self.link = ""
        """Where a browser shows the jobs, with its token; shown once, before a job, but not in a log."""
        self._stream = stream
        self._clock: Clock = clock or SYSTEM_CLOCK
        self._wake = threading.Condition()
        self._running: dict[str, JobProgress] = {}
        self._news: list[tuple[str, JobProgress]] = []
        self._streams = StreamLog(verbose=is_verbose())
        self._thread: threading.Thread | None = None
        self._showing = False
        self._closed = mode == "off"

    def job_opened(self, progress: JobProgress) -> None:
        """Show the job from now on."""
        self._add("opened", progress)

    def job_closed(self, progress: JobProgress) -> None:
        """Show the summary of the job, and then no more of it."""
        self._add("closed", progress)

    def flush(self, timeout: float = 2.0) -> None:
        """Wait until all that has happened so far is shown, for `timeout` seconds at most."""
        with self._wake:
            self._wake.wait_for(
                lambda: self._thread is None or not (self._news or self._showing), timeout
            )

    def close(self, timeout: float = 2.0) -> None:
        """Show the remaining updates, within `timeout` seconds, and end. Calling it again has no effect."""
        with self._wake:
            self._closed = True
            self._wake.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _add(self, event: str, progress: JobProgress) -> None:
        with self._wake:
            if self._closed:
                return
            self._news.append((event, progress))
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="spark-channel-display", daemon=True
                )
                try:
                    self._thread.start()
                except RuntimeError:
                    # The interpreter is ending, and since Python 3.12 starts no thread.
                    self._thread, self._closed = None, True
            self._wake.notify_all()
            ending = self._closed
        if ending:
            self._run()  # this thread shows the remaining updates

    def _run(self) -> None:
        view, stream = None, self._stream or sys.stderr
        try:
            view = self._view(stream)
            while self._step(view):
                pass
        except Exception:
            if getattr(stream, "closed", False):  # the program is ending
                _log.debug("the progress display ended with the stream that it wrote to")
            else:
                _log.exception("the progress display failed; the jobs continue without it")
            with self._wake:
                self._closed, self._showing = True, False
        finally:
            if view is not None:
                with contextlib.suppress(ValueError, OSError):  # the stream is closed
                    view.close()

    def _view(self, stream: TextIO) -> _DisplayTarget:
        mode = choose_mode(stream) if self.mode == "auto" else self.mode
        if mode == "terminal":
            return TerminalView(stream, _LIVE_SECONDS)
        return _Notebook() if mode == "notebook" else _LogLines(stream, self._clock)

    def _step(self, view: _DisplayTarget) -> bool:
        """Show one round; False when there is nothing left to do, and the thread ends."""
        with self._wake:
            news, self._news = self._news, []
            self._showing = True
        for event, progress in news:
            if event == "opened":
                self._opened(view, progress)
            elif self._running.pop(progress.job, None) is not None:
                self._over(view, progress)
        if lines := self._streams.silent(self._clock.now()):
            view.say(lines)
        view.show(self._lines(view))
        with self._wake:
            self._showing = False
            self._wake.notify_all()
            if not self._news and not self._closed and not self._idle():
                self._clock.wait(self._wake, view.every)
            if self._news:
                return True
            if not self._closed and not self._idle():
                return True
            self._thread = None
        if lines := self._streams.silent(self._clock.now(), all_of_them=True):
            view.show([])
            view.say(lines)
        return False

    def _idle(self) -> bool:
        return not self._running and self._streams.is_empty()

    def _opened(self, view: _DisplayTarget, progress: JobProgress) -> None:
        self._running[progress.job] = progress
        link, self.link = self.link, ""
        if link:
            view.say([f"watch and control: {_NO_LINK if view.keeps else link}"])
        if not is_batch(progress):
            view.say(before_lines(progress.job, progress.spec, verbose=is_verbose()))
        elif lines := self._streams.opened(progress, self._clock.now()):
            view.say(lines)

    def _over(self, view: _DisplayTarget, progress: JobProgress) -> None:
        if not is_batch(progress):
            view.show(self._lines(view))
            view.finish(progress.report())
            return
        now = self._clock.now()
        self._streams.closed(progress, now)
        if view.keeps and (lines := self._streams.due(now, view.every)):
            view.say(lines)

    def _lines(self, view: _DisplayTarget) -> list[LiveLine]:
        shown_jobs = [progress for progress in self._running.values() if self._is_shown(progress)]
        last = [] if view.keeps else self._streams.last()
        several = len(shown_jobs) + len(last) > 1
        lines = [
            live_line(
                progress.status(),
                f"{one_line(progress.spec.name or progress.job)}: " if several else "",
            )
            for progress in shown_jobs
        ]
        return lines + [LiveLine(line) for line in last]

    def _is_shown(self, progress: JobProgress) -> bool:
        if not is_batch(progress) or not self._streams.has_ended_one(progress):
            return True
        return progress.status().seconds > _SHORT_BATCH_SECONDS


class _Notebook:
    """An updating output of the cell that started the job, then the report's own picture of itself."""

    every = _LIVE_SECONDS
    keeps = False

    def __init__(self) -> None:
        from IPython.display import display

        self._display: Any = display
        self._handle: Any = None

    def say(self, lines: list[str]) -> None:
        self._display(_Lines(lines))

    def show(self, lines: list[LiveLine]) -> None:
        texts = _Lines([line.text for line in lines])
        if self._handle is None:
            if lines:
                self._handle = self._display(texts, display_id=True)
        else:
            self._handle.update(texts)
            if not lines:
                self._handle = None

    def finish(self, report: TransferReport) -> None:
        self._display(report)

    def close(self) -> None:
        """The output stays."""


class _Lines:
    """Lines that a notebook shows as they are."""

    def __init__(self, lines: list[str]) -> None:
        self._lines = lines

    def __repr__(self) -> str:
        return "\n".join(self._lines)

    def _repr_html_(self) -> str:
        import re
        from html import escape

        lines = "<br>".join(escape(line) for line in self._lines)
        linked = re.sub(
            r"(http://\S+)", r'<a href="\1" target="_blank" rel="noreferrer">\1</a>', lines
        )
        return f"<code>{linked}</code>"


class _LogLines:
    """One line per job and 30 s, by standard logging where the program has set it up.

    That is decided once: a library's first `logging.warning` in mid-job sets it up, too, and INFO would be lost.
    """

    every = _LOG_SECONDS
    keeps = True

    def __init__(self, stream: TextIO, clock: Clock) -> None:
        self._stream = stream
        self._clock = clock
        self._next = clock.now() + self.every
        self._to_log = _log.hasHandlers()

    def say(self, lines: list[str]) -> None:
        if self._to_log:
            for line in lines:
                _log.info(line)
        else:
            self._stream.write("".join(f"{line}\n" for line in lines))
            self._stream.flush()

    def show(self, lines: list[LiveLine]) -> None:
        now = self._clock.now()
        if lines and now >= self._next:
            self._next = now + self.every
            self.say([line.text for line in lines])

    def finish(self, report: TransferReport) -> None:
        self.say(summary_lines(report, verbose=is_verbose()))

    def close(self) -> None:
        """Do nothing: log lines stay."""


class TerminalView:
    """Live lines under what is printed.

    The colours follow the terminal: none with NO_COLOR or TERM=dumb, nor where `stream` is not a terminal.
    """

    keeps = False

    def __init__(self, stream: TextIO, every: float) -> None:
        # Rich is imported where it is used: a job without a terminal does not pay for it.
        from rich.console import Console
        from rich.live import Live

        self.every = every
        self._console = Console(file=stream, highlight=False, soft_wrap=False)
        # What the program prints appears above the line. A redirected stdout goes to stderr, so that is
        # done only where both are a terminal.
        both = sys.stdout.isatty() and stream is sys.stderr
        self._live = Live(
            console=self._console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=both,
            redirect_stderr=stream is sys.stderr,
        )
        self._started = False

    def say(self, lines: list[str]) -> None:
        from rich.text import Text

        for line in lines:
            self._console.print(Text(line))

    def show(self, lines: Sequence[LiveLine]) -> None:
        if lines and not self._started:
            self._live.start()
            self._started = True
        if self._started:
            self._live.update(self._table(lines), refresh=True)
            if not lines:
                self._live.stop()
                self._started = False

    def finish(self, report: TransferReport) -> None:
        from rich.text import Text

        first, *details = summary_lines(report, verbose=is_verbose())
        self._console.print(Text(first, style="red" if report.phase == "failed" else "green"))
        self.say(details)

    def close(self) -> None:
        if self._started:
            self._live.stop()

    def _table(self, lines: Sequence[LiveLine]) -> "Table":
        from rich.table import Table
        from rich.text import Text

        table = Table.grid(padding=(0, 1))
        bars = self._console.width >= _NARROWEST and any(line.percent is not None for line in lines)
        if bars:
            table.add_column(width=_BAR_WIDTH)
        table.add_column()
        for line in lines:
            text = Text(line.text)
            for pattern, style in _COLOURS:
                text.highlight_regex(pattern, style)
            table.add_row(*([self._bar(line.percent)] if bars else []), text)
        return table

    @staticmethod
    def _bar(percent: float | None) -> "ProgressBar | Text":
        from rich.progress_bar import ProgressBar
        from rich.text import Text

        if percent is None:
            return Text()
        return ProgressBar(total=100.0, completed=percent, width=_BAR_WIDTH)
