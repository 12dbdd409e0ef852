"""A live line on a terminal, with a bar and colours where the terminal has them."""

import sys
from collections.abc import Sequence
from typing import TextIO

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from spark_channel.progress import TransferReport, summary_lines
from spark_channel.service.live_line import LiveLine

__all__ = ["TerminalView"]

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


class TerminalView:
    """Live lines under what is printed.

    The colours follow the terminal: none with NO_COLOR or TERM=dumb, nor where `stream` is not a terminal.
    """

    keeps = False

    def __init__(self, stream: TextIO, every: float) -> None:
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
        first, *rest = summary_lines(report)
        self._console.print(Text(first, style="red" if report.phase == "failed" else "green"))
        self.say(rest)

    def close(self) -> None:
        if self._started:
            self._live.stop()

    def _table(self, lines: Sequence[LiveLine]) -> Table:
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
    def _bar(percent: float | None) -> ProgressBar | Text:
        if percent is None:
            return Text()
        return ProgressBar(total=100.0, completed=percent, width=_BAR_WIDTH)
