"""Records the progress line of `spark-channel demo` in a terminal, as docs/images/progress.svg: an animated picture.

    python -m tests.benchmarks.picture_progress

The picture shows what the command wrote during its limited copy, at the times at which it wrote it.
"""

import fcntl
import os
import pty
import re
import struct
import sys
import tempfile
import termios
import time
from html import escape
from pathlib import Path

import pyte

COLUMNS, LINES = 104, 16
_WIDE = 8.4
PICTURE = Path(__file__).resolve().parents[2] / "docs" / "images" / "progress.svg"
_LONGEST = 1.0
"""A pause longer than this is shown so long: workers that start are no news to a reader."""
_COLOURS = {"green": "#2ea043", "red": "#e5534b", "brown": "#d29922", "default": "#d0d7de"}

NO_BREAK = "\u00a0"
"""Browsers draw several spaces as one, and stretch the rest of the line."""
Row = list[tuple[str, str, bool]]
Frame = tuple[Row, ...]


def record(*command: str, folder: str) -> list[tuple[float, str]]:
    """What `command`, run in `folder`, writes to a terminal, each piece with its second."""
    child, terminal = pty.fork()
    if child == 0:
        os.environ.update(TERM="xterm-256color", COLUMNS=str(COLUMNS), LINES=str(LINES))
        os.chdir(folder)
        os.execvp(command[0], command)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    began, pieces = time.monotonic(), []
    while True:
        try:
            data = os.read(terminal, 1 << 16)
        except OSError:  # Linux says so of a terminal whose last program has ended
            break
        if not data:
            break
        pieces.append((time.monotonic() - began, data.decode(errors="replace")))
    os.close(terminal)
    _, status = os.waitpid(child, 0)
    if status:
        raise RuntimeError(f"{command[0]} ended with {os.waitstatus_to_exitcode(status)}")
    return pieces


def frames(pieces: list[tuple[float, str]]) -> list[tuple[float, Frame]]:
    """The screen after each piece that changed it, from the copy's first line to its last; seconds since the first."""
    screen = pyte.Screen(COLUMNS, LINES)
    stream = pyte.Stream(screen)
    seen: list[tuple[float, Frame]] = []
    begun = False
    for second, piece in pieces:
        if not begun:
            place = re.search(r"\x1b\[1m2\. copy", piece)
            if place is None:
                continue
            begun, piece = True, piece[place.start() :]
        piece, *after = re.split(r"\s*\x1b\[1m3\. read", piece, maxsplit=1)
        stream.feed(piece)
        frame = tuple(_row(screen, line) for line in range(LINES))
        if not seen or seen[-1][1] != frame:
            seen.append((second, frame))
        if after:
            break
    shown, clock = [], 0.0
    for number, (second, frame) in enumerate(seen):
        if number:
            clock += min(_LONGEST, second - seen[number - 1][0])
        shown.append((clock, frame))
    return shown


def _row(screen: pyte.Screen, line: int) -> Row:
    """Runs of characters of one look: text, colour, bold."""
    runs: Row = []
    cells = screen.buffer[line]
    for column in range(COLUMNS):
        cell = cells[column]
        colour = _COLOURS.get(
            cell.fg, f"#{cell.fg}" if re.fullmatch("[0-9a-f]{6}", cell.fg) else "#d0d7de"
        )
        if runs and runs[-1][1:] == (colour, cell.bold):
            runs[-1] = (runs[-1][0] + cell.data, colour, cell.bold)
        else:
            runs.append((cell.data, colour, cell.bold))
    while runs and not runs[-1][0].strip():
        runs.pop()
    return runs


def svg(shown: list[tuple[float, Frame]]) -> str:
    """The frames as one picture that runs through them again and again."""
    used = max(number + 1 for _, frame in shown for number, row in enumerate(frame) if row)
    total = shown[-1][0] + 3.0
    width, height, step = COLUMNS * _WIDE + 32, used * 20 + 52, 20
    body = []
    for number, (second, frame) in enumerate(shown):
        until = shown[number + 1][0] if number + 1 < len(shown) else total
        lines = []
        for line, row in enumerate(frame):
            column, spans = 0, []
            for text, colour, bold in row:
                word = text.strip()
                if word:
                    x = 16 + (column + len(text) - len(text.lstrip())) * _WIDE
                    weight = ' font-weight="600"' if bold else ""
                    spans.append(
                        f'<tspan x="{x:.1f}" fill="{colour}"{weight} textLength="{len(word) * _WIDE:.1f}">'
                        f"{escape(word.replace(' ', NO_BREAK))}</tspan>"
                    )
                column += len(text)
            if spans:
                lines.append(f'<text y="{52 + line * step}">{"".join(spans)}</text>')
        values, times = _visible(second / total, until / total)
        body.append(
            f'<g opacity="{int(number == len(shown) - 1)}"><animate attributeName="opacity" calcMode="discrete" '
            f'dur="{total:.2f}s" repeatCount="indefinite" values="{values}" keyTimes="{times}"/>'
            f"{''.join(lines)}</g>"
        )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" role="img" '
        'aria-label="the progress line of spark-channel demo in a terminal" xml:space="preserve" '
        'font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, DejaVu Sans Mono, monospace" font-size="14">'
        f'<rect width="{width:.0f}" height="{height}" rx="10" fill="#0d1117"/>'
        '<circle cx="20" cy="18" r="6" fill="#ff5f57"/><circle cx="40" cy="18" r="6" fill="#febc2e"/>'
        '<circle cx="60" cy="18" r="6" fill="#28c840"/>' + "".join(body) + "</svg>\n"
    )


def _visible(begin: float, end: float) -> tuple[str, str]:
    if begin <= 0:
        return ("1;0", f"0;{end:.4f}") if end < 1 else ("1", "0")
    return ("0;1;0", f"0;{begin:.4f};{end:.4f}") if end < 1 else ("0;1", f"0;{begin:.4f}")


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        program = str(Path(sys.executable).with_name("spark-channel"))
        pieces = record(program, "demo", "--directory", ".", folder=folder)
    shown = frames(pieces)
    PICTURE.write_text(svg(shown), encoding="utf-8")
    print(
        f"{PICTURE}: {len(shown)} frames, {shown[-1][0]:.1f} s, {PICTURE.stat().st_size / 1000:.0f} kB"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
