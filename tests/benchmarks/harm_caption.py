"""What README says under the picture of `bench_harm`: medians of all rounds, never one round's figures alone."""

import textwrap
from dataclasses import dataclass
from pathlib import Path

__all__ = ["BEGIN", "END", "README", "HarmFigures", "caption", "put_into_readme", "spaced"]

README = Path(__file__).resolve().parents[2] / "README.md"
BEGIN, END = "<!-- picture -->\n", "<!-- /picture -->\n"


@dataclass(frozen=True, slots=True)
class HarmFigures:
    """Medians over `rounds`: p99 in milliseconds, and rows per second. `limit` is the copy's own."""

    rounds: int
    rows: int
    limit: int
    idle_ms: float
    jdbc_ms: float
    limited_ms: float
    jdbc_speed: float
    limited_speed: float


def spaced(number: float) -> str:
    return f"{number:,.0f}".replace(",", " ")


def caption(of: HarmFigures) -> str:
    what = "p99 latency of an application while rows are copied out of its database and into it"
    slow, fast = of.rows / of.limited_speed, of.rows / of.jdbc_speed
    text = (
        f"*An application's transactions (pgbench) while {spaced(of.rows)} rows are copied out of its PostgreSQL and "
        f"into it. A line is the median of {of.rounds} rounds, in a band of all. "
        f"Median p99 of all rounds: {of.idle_ms:.2f} ms idle; "
        f"{of.jdbc_ms:.1f} ms beside Spark's JDBC source; {of.limited_ms:.1f} ms beside spark-channel at "
        f"{spaced(of.limit)} rows/s. The price is time: {slow:.0f} s instead of {fast:.0f} s. "
        "[Method and all results](docs/benchmarks.md).*"
    )
    lines = textwrap.fill(text, 132, break_long_words=False, break_on_hyphens=False)
    return f"![{what}](docs/images/harm.png)\n\n{lines}\n"


def put_into_readme(of: HarmFigures) -> None:
    """Between its marks: the picture, and the medians."""
    head, rest = README.read_text(encoding="utf-8").split(BEGIN, 1)
    _, tail = rest.split(END, 1)
    README.write_text(f"{head}{BEGIN}{caption(of)}{END}{tail}", encoding="utf-8")
