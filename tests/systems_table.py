"""Makes the tables of systems in docs/compatibility.md and docs/commits.md: `python -m tests.systems_table`.

They come from what the connectors declare in the registry.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import get_args

from spark_channel.connectors.base.connector import AlsoReaches, Connector, Delivery
from spark_channel.connectors.base.registry import all_connectors
from spark_channel.options import CommitMode

__all__ = ["link_of", "own_connectors", "pages"]

ROOT = Path(__file__).resolve().parents[1]
FOR_TESTS = {"generator", "discard"}
FILES = "Parquet, CSV, JSON lines, ORC, Arrow files on a disk"
TITLES = {
    "postgresql": "PostgreSQL",
    "mysql": "MariaDB",
    "sqlite": "SQLite",
    "duckdb": "DuckDB",
    "redis": "Redis",
    "kafka": "Kafka",
    "elasticsearch": "OpenSearch",
    "parquet": FILES,
    "csv": FILES,
    "json": FILES,
    "orc": FILES,
    "arrow": FILES,
    "delta": "Delta Lake on a disk",
    "iceberg": "Apache Iceberg on a disk",
    "adbc": "ADBC drivers of PostgreSQL and SQLite",
    "clickhouse": "ClickHouse",
    "http": "Web services (JSON over HTTP)",
    "mongodb": "MongoDB",
    "streamload": "Doris, StarRocks, SelectDB",
}
"""In the order of the table."""
TOGETHER = {
    "embedded": {"sqlite", "duckdb", "adbc"},
    "lakehouse": {"delta", "iceberg"},
    "services": {
        "redis",
        "clickhouse",
        "mongodb",
        "elasticsearch",
        "kafka",
        "streamload",
        "http",
    },
}
"""Pages with a section for each of several connectors."""
FEEDS = {
    "cursorColumn": "cursor column",
    "slot": "logical replication",
    "binlog": "binary log",
    "files that arrive": "new files",
    "new versions": "new versions",
    "new snapshots": "new snapshots",
    "new records": "new records",
}
DISK = " on a disk"
"""The end of the name of a system that other stores hold, too."""
HEAD = "| System | Stream from | Delivery | Maturity: tested against |\n|---|---|---|---|\n"


def link_of(connector: str) -> str:
    """The page of a connector, with its section where it shares the page."""
    for page, sharing in TOGETHER.items():
        if connector in sharing:
            return f"{page}.md#{connector}"
    return f"{connector}.md"


def own_connectors() -> dict[str, Connector]:
    return {
        each.name: each
        for each in all_connectors()
        if (each.reader or each.writer or "").startswith("spark_channel.")
        and each.name not in FOR_TESTS
    }


def delivery_text(delivery: Mapping[CommitMode, Delivery]) -> str:
    """One promise for all modes, or the one of each mode."""
    promises = set(delivery.values())
    if len(promises) > 1:
        return ", ".join(f"{promise} with `commit={mode}`" for mode, promise in delivery.items())
    return promises.pop() if promises else "-"


def reached() -> Iterator[tuple[str, Connector, AlsoReaches]]:
    """Each system with its page, its connector, and what that declares of it, in the order of the tables."""
    found = own_connectors()
    for name, title in TITLES.items():
        each = found[name]
        page = "files.md" if title == FILES else link_of(name)
        for of in (AlsoReaches(title, each.maturity, each.tested), *each.also):
            yield page, each, replace(of, delivery=of.delivery or each.delivery)


def table() -> str:
    lines: dict[str, None] = {}  # the formats of files have the same rows
    for page, each, of in reached():
        feeds = ", ".join(FEEDS[feed] for feed in each.feed)
        only = "" if each.reader and each.writer else " (read)" if each.reader else " (write)"
        maturity = f"**{of.maturity}**: {of.tested}"
        cells = [
            f"[{of.system}]({page}){only}",
            feeds or "no",
            delivery_text(of.delivery),
            maturity,
        ]
        lines[f"| {' | '.join(cells)} |\n"] = None
    return HEAD + "".join(lines)


def delivery_table() -> str:
    """The targets of each promise."""
    targets: dict[Delivery, dict[str, None]] = {promise: {} for promise in get_args(Delivery)}
    first: dict[str, AlsoReaches] = {}
    for page, _, of in reached():
        begun = first.setdefault(page, of)
        if of is not begun and begun.delivery == of.delivery and DISK in begun.system:
            continue  # elsewhere than on a disk
        is_mixed = len(set(of.delivery.values())) > 1
        for mode, promise in of.delivery.items():
            targets[promise][
                f"[{of.system.removesuffix(DISK)}]({page})" + f" with `commit={mode}`" * is_mixed
            ] = None
    lines = [f"| **{promise}** | {'; '.join(found)} |\n" for promise, found in targets.items()]
    return "| delivery | targets |\n|---|---|\n" + "".join(lines)


def pages() -> dict[Path, tuple[str, str]]:
    """Each page in its current and in its correct form."""
    made = {}
    for path, mark, inside in (
        (ROOT / "docs" / "compatibility.md", "systems", table()),
        (ROOT / "docs" / "commits.md", "delivery", delivery_table()),
    ):
        text = path.read_text(encoding="utf-8")
        begin, end = f"<!-- {mark} -->\n", f"<!-- /{mark} -->\n"
        head, rest = text.split(begin, 1)
        made[path] = text, f"{head}{begin}{inside}{end}{rest.split(end, 1)[1]}"
    return made


def main() -> None:
    for path, (_, wanted) in pages().items():
        path.write_text(wanted, encoding="utf-8")


if __name__ == "__main__":
    main()
