"""Draws the pictures of docs/images that show how things work: `python -m tests.pictures`."""

from collections.abc import Iterator
from html import escape
from pathlib import Path

from tests.systems_table import reached

__all__ = ["pictures"]

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
WIDTH = 960
STYLE = """
    .bg{fill:#ffffff} .axis{stroke:#868e96;stroke-width:1.5;fill:none}
    .grid{stroke:#dee2e6;stroke-width:1} .row{fill:#f1f3f5}
    .t1{fill:#1c7ed6} .t2{fill:#74c0fc} .t3{fill:#495057} .t4{fill:#ced4da}
    .edge{stroke:#ffffff;stroke-width:2}
    .good{stroke:#2f9e44;stroke-width:4;fill:none}
    .hot{stroke:#e8590c;stroke-width:4;fill:none;stroke-dasharray:9 5}
    .box{fill:#f8f9fa;stroke:#adb5bd;stroke-width:1.5} .valve{fill:#fff4e6;stroke:#e8590c;stroke-width:2}
    .long{fill:#e8590c} .short{fill:#2f9e44} .mark{stroke:#e03131;stroke-width:2;stroke-dasharray:4 4}
    .full{fill:#2f9e44} .half{fill:#b2f2bb;stroke:#2f9e44;stroke-width:1.5}
    .open{fill:none;stroke:#868e96;stroke-width:1.5;stroke-dasharray:4 3}
    text{fill:#212529;font-size:14px} .h{font-weight:600;font-size:16px} .s{font-size:13px;fill:#495057}
    .on{fill:#ffffff;font-size:13px}
    .arrow{stroke:#868e96;stroke-width:2;fill:none;marker-end:url(#n)} #n path{fill:#868e96}
    @media (prefers-color-scheme: dark){
      .bg{fill:#161b22} .grid{stroke:#30363d} .row{fill:#21262d} .box{fill:#21262d;stroke:#6e7681}
    .valve{fill:#3d2410;stroke:#ff922b}
      .t3{fill:#adb5bd} .t4{fill:#495057} .edge{stroke:#161b22} .half{fill:#10301b;stroke:#51cf66}
    .good{stroke:#51cf66} .hot{stroke:#ff922b}
      text{fill:#e6edf3} .s{fill:#adb5bd}
    }
"""


def svg(title: str, description: str, height: int, shapes: list[str]) -> str:
    """One picture on its own ground, so that it is readable on a page of any colour."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" aria-labelledby="t d" '
        'font-family="system-ui, -apple-system, Segoe UI, Roboto, Helvetica, Arial, sans-serif">\n'
        f'  <title id="t">{escape(title)}</title>\n  <desc id="d">{escape(description)}</desc>\n'
        f"  <style>{STYLE}  </style>\n"
        '  <defs><marker id="n" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0L10 5L0 10z"/></marker></defs>\n'
        f'  <rect class="bg" width="{WIDTH}" height="{height}" rx="8"/>\n'
        + "".join(f"  {shape}\n" for shape in shapes)
        + "</svg>\n"
    )


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    of_kind = f' class="{kind}"' if kind else ""
    of_anchor = f' text-anchor="{anchor}"' if anchor != "start" else ""
    return f'<text x="{x:g}" y="{y:g}"{of_kind}{of_anchor}>{escape(words)}</text>'


def rect(kind: str, x: float, y: float, width: float, height: float, radius: float = 0) -> str:
    return f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{radius:g}"/>'


def line(kind: str, *points: tuple[float, float]) -> str:
    return f'<polyline class="{kind}" points="{" ".join(f"{x:g},{y:g}" for x, y in points)}"/>'


def one_limit() -> str:
    """Shares of four tasks over ten seconds, as bands that make up the limit."""
    left, top, wide, high, limit = 90, 70, 800, 240, 20.0
    steps: list[tuple[float, float, list[float]]] = [  # from, to, thousand rows/s of each task
        (0, 3, [5, 5, 5, 5]),
        (3, 5, [6.67, 0, 6.67, 6.66]),
        (5, 6.5, [5, 5, 5, 5]),
        (6.5, 7, [5, 5, 5, 0]),
        (7, 8.5, [6.67, 6.67, 6.66, 0]),
        (8.5, 10, [5, 5, 5, 5]),
    ]
    shapes = [
        text(left, 32, "One limit of 20 000 rows/s over four tasks", "h"),
        text(
            left,
            54,
            "The service hands out shares; their sum is the limit, whatever the tasks do.",
            "s",
        ),
    ]
    for begin, end, shares in steps:
        height = 0.0
        for number, share in enumerate(shares, 1):
            part = share / limit * high
            if part:
                shapes.append(
                    rect(
                        f"t{number} edge",
                        left + begin / 10 * wide,
                        top + high - height - part,
                        (end - begin) / 10 * wide,
                        part,
                    )
                )
            height += part
    shapes += [line("axis", (left, top), (left, top + high), (left + wide, top + high))]
    shapes += [
        text(left - 10, top + high * (1 - n / 20) + 5, f"{n}k", "s", "end")
        for n in (0, 5, 10, 15, 20)
    ]
    shapes += [
        text(left + n / 10 * wide, top + high + 20, f"{n} s", "s", "middle")
        for n in range(0, 11, 2)
    ]
    for number, words in enumerate(("task 1", "task 2", "task 3", "task 4"), 1):
        shapes.append(
            text(
                left + 12,
                top + high - (number - 0.5) * high / 4 + 5,
                words,
                "on" if number in (1, 3) else "",
            )
        )
    for at, words in (
        (3, "task 2 waits for its source"),
        (6.5, "task 4 is killed"),
        (8.5, "it runs again"),
    ):
        x = left + at / 10 * wide
        shapes += [
            line("mark", (x, top - 6), (x, top + high)),
            text(x + 5, top + high + 44, words, "s"),
        ]
        shapes.append(line("mark", (x, top + high), (x, top + high + 46)))
    shapes.append(
        text(
            left,
            top + high + 72,
            "The share of a killed task comes back after its horizon, here 0.5 s: until then "
            "less than the limit is used, never more.",
            "s",
        )
    )
    return svg(
        "One limit over four tasks",
        "Four tasks share 20 000 rows per second. When one waits, the others get its share. "
        "When one is killed, its share returns after half a second.",
        top + high + 90,
        shapes,
    )


def statements() -> str:
    """What a read holds on the server over a minute: one transaction, or short statements."""
    left, wide = 200, 720
    shapes = [
        text(30, 32, "One long statement, and many short ones", "h"),
        text(
            30,
            54,
            "Both read the same rows in 60 s. Each bar is a transaction that the server holds open.",
            "s",
        ),
        text(30, 110, "Spark's JDBC source"),
        rect("long", left, 92, wide, 26, 3),
        text(left + wide / 2, 110, "one transaction for 60 s", "on", "middle"),
        text(30, 140, "VACUUM", "s"),
        rect("open", left, 126, wide, 18, 3),
        text(left + wide / 2, 140, "removes nothing that died after the read began", "s", "middle"),
        text(30, 200, "spark-channel"),
        text(30, 218, "under a limit", "s"),
    ]
    count = 24
    paused = range(11, 18)
    for number in range(count):
        x = left + number * wide / count
        if number not in paused:
            shapes.append(rect("short", x, 182, wide / count * 0.45, 26, 2))
    begin, end = left + paused[0] * wide / count, left + (paused[-1] + 1) * wide / count
    shapes += [
        rect("open", begin, 182, end - begin - 8, 26, 3),
        text((begin + end) / 2 - 4, 200, "paused: nothing is open", "s", "middle"),
        text(30, 240, "VACUUM", "s"),
        *(
            rect(
                "t1",
                left + number * wide / count + wide / count * 0.5,
                222,
                wide / count * 0.4,
                18,
                2,
            )
            for number in range(count)
        ),
        line("axis", (left, 262), (left + wide, 262)),
        *(text(left + n / 6 * wide, 282, f"{n * 10} s", "s", "middle") for n in range(7)),
        text(
            30,
            316,
            "A statement of spark-channel ends after at most statementSeconds (5 s under a "
            "limit), mostly within milliseconds.",
            "s",
        ),
    ]
    return svg(
        "One long statement against many short ones",
        "A JDBC read holds one transaction for a minute, and vacuum waits. A limited read of "
        "spark-channel makes short statements with rests, and holds nothing while it is paused.",
        336,
        shapes,
    )


def visible_rows() -> str:
    """What readers of the target see over time, by commit mode, with a crash in the middle."""
    left, top, wide, high = 90, 84, 800, 200

    def at(second: float, rows: float) -> tuple[float, float]:
        return left + second / 12 * wide, top + high * (1 - rows / 8)

    stairs: list[tuple[float, float]] = [(0, 0)]
    for second, rows in ((1, 1), (2, 2), (3, 3), (7, 4), (8, 5), (9, 6), (10, 7), (11, 8)):
        stairs += [(second, stairs[-1][1]), (second, rows)]
    stairs.append((12, 8))
    crash, again = 4.0, 6.0
    shapes = [
        text(left, 32, "What readers of the target see, while eight tasks write", "h"),
        text(
            left,
            54,
            "The driver is killed after 4 s, and the write is run again with its transaction id.",
            "s",
        ),
        line("axis", (left, top), (left, top + high), (left + wide, top + high)),
        *(
            text(left - 10, at(0, n)[1] + 5, words, "s", "end")
            for n, words in ((0, "none"), (4, "half"), (8, "all rows"))
        ),
        *(text(at(n, 0)[0], top + high + 20, f"{n} s", "s", "middle") for n in range(0, 13, 2)),
        line("mark", at(crash, 0), at(crash, 8)),
        text(at(crash, 0)[0] + 6, top + 14, "killed", "s"),
        line("mark", at(again, 0), at(again, 8)),
        text(at(again, 0)[0] + 6, top + 14, "run again", "s"),
        line("hot", *(at(*point) for point in stairs)),
        line("good", at(0, 0), at(11.4, 0), at(11.4, 8), at(12, 8)),
        line("hot", (left, top + high + 50), (left + 50, top + high + 50)),
        text(
            left + 60,
            top + high + 55,
            "commit=task: the rows of each task, when it ends; they stay after the crash",
        ),
        line("good", (left, top + high + 76), (left + 50, top + high + 76)),
        text(left + 60, top + high + 81, "commit=job: nothing, then all rows in one step"),
    ]
    return svg(
        "What readers see by commit mode",
        "With commit=task visible rows grow task by task and stay after a crash. With "
        "commit=job readers see none until all are published.",
        top + high + 104,
        shapes,
    )


def where_to_limit() -> str:
    """The four places of a limit, as valves between source, Spark and target."""
    shapes = [
        text(30, 32, "Where a limit can be set, and what it slows", "h"),
        rect("box", 30, 70, 180, 70, 6),
        text(120, 111, "source", "h", "middle"),
        rect("box", 390, 70, 180, 70, 6),
        text(480, 111, "Spark", "h", "middle"),
        rect("box", 750, 70, 180, 70, 6),
        text(840, 111, "target", "h", "middle"),
        line("arrow", (210, 105), (390, 105)),
        line("arrow", (570, 105), (750, 105)),
        rect("box", 370, 165, 220, 40, 6),
        text(480, 190, "transfer, without Spark's rows", "s", "middle"),
        line("arrow", (120, 140), (120, 185), (370, 185)),
        line("arrow", (590, 185), (840, 185), (840, 142)),
    ]
    for number, (x, y) in enumerate(((300, 105), (660, 105), (300, 185), (480, 70)), 1):
        shapes.append(f'<circle class="valve" cx="{x}" cy="{y}" r="17"/>')
        shapes.append(text(x, y + 5, str(number), "h", "middle"))
    rows = (
        ("", "limit", "slows", "does not slow"),
        (
            "1",
            "a read: rowsPerSecond of spark.read",
            "the source",
            "the target: it takes rows as they come",
        ),
        (
            "2",
            "a write: rowsPerSecond of df.write",
            "the target",
            "the source: it is read at full speed",
        ),
        ("3", "a transfer: rows_per_second", "source and target, by one limit", ""),
        (
            "4",
            "throttle(df), for a source that is not ours",
            "how fast Spark takes rows",
            "what Spark's source fetches ahead",
        ),
    )
    for number, cells in enumerate(rows):
        y = 250 + number * 30
        if number % 2:
            shapes.append(rect("row", 30, y - 20, 900, 30))
        for x, cell in zip((44, 80, 420, 660), cells, strict=True):
            shapes.append(text(x, y, cell, "s" if number == 0 else ""))
    return svg(
        "Where to set the limit",
        "A limit of a read slows the source, one of a write slows the target, one of a "
        "transfer slows both, and throttle slows how fast Spark takes rows.",
        400,
        shapes,
    )


def delivery() -> str:
    """Each target with its delivery by commit mode, and how it was tested."""
    found: dict[str, tuple[dict[str, str], str]] = {}
    for _, _, of in reached():
        if of.delivery:
            found[of.system] = (
                {str(mode): promise for mode, promise in of.delivery.items()},
                of.maturity,
            )
    shapes = [
        text(30, 32, "How often a target has each row", "h"),
        text(
            30,
            54,
            "once: also when a job runs again with its transaction id. Once in a run: when a task "
            "runs again.",
            "s",
        ),
        text(520, 86, "commit=job", "h", "middle"),
        text(690, 86, "commit=task", "h", "middle"),
        text(790, 86, "maturity", "h"),
    ]
    kinds = {"once": "full", "once in a run": "half", "at least once": "open"}
    for number, (system, (by_mode, maturity)) in enumerate(found.items()):
        y = 100 + number * 28
        if number % 2:
            shapes.append(rect("row", 30, y, 900, 28))
        shapes += [text(44, y + 19, system), text(790, y + 19, maturity, "s")]
        for x, mode in ((520, "job"), (690, "task")):
            promise = by_mode.get(mode)
            if promise is None:
                shapes.append(text(x, y + 19, "-", "s", "middle"))
                continue
            shapes.append(rect(kinds[promise], x - 62, y + 4, 124, 20, 10))
            shapes.append(text(x, y + 18, promise, "on" if promise == "once" else "s", "middle"))
    return svg(
        "Delivery by target",
        "; ".join(
            f"{system}: "
            + ", ".join(f"{promise} with commit={mode}" for mode, promise in by_mode.items())
            for system, (by_mode, _) in found.items()
        ),
        120 + len(found) * 28,
        shapes,
    )


def pictures() -> Iterator[tuple[Path, str]]:
    """Each picture's file and what belongs there."""
    yield IMAGES / "one-limit.svg", one_limit()
    yield IMAGES / "statements.svg", statements()
    yield IMAGES / "visible-rows.svg", visible_rows()
    yield IMAGES / "where-to-limit.svg", where_to_limit()
    yield IMAGES / "delivery.svg", delivery()


if __name__ == "__main__":
    for path, picture in pictures():
        path.write_text(picture, encoding="utf-8")
