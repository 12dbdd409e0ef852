"""The first minute of a session: what the first `count` and the first `save` take, and where their time goes.

Each figure is of new sessions in new processes, in turns; medians. `SPARK_CHANNEL_BENCH_BEFORE=/path/to/a/checkout`
measures another version beside this one.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

from spark_channel.cli.demo import unpack_flights
from tests.benchmarks import first_hour
from tests.benchmarks.harness import Row

ROOT = Path(__file__).resolve().parents[2]
ROUNDS = int(os.environ.get("SPARK_CHANNEL_BENCH_ROUNDS", "5"))
BEFORE = os.environ.get("SPARK_CHANNEL_BENCH_BEFORE", "")
OWN = ("lookup_data_sources", "create_data_source", "plan_data_source_read", "worker")
"""The Python processes of a first read, in their order."""

Found = dict[str, Any]


def prepare(folder: Path) -> None:
    import sqlite3

    rows = [(number, number, number / 2, str(number)) for number in range(first_hour.ROWS)]
    with closing(sqlite3.connect(folder / "first.db")) as connection, connection:
        connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, a INTEGER, b REAL, c TEXT)")
        connection.executemany("INSERT INTO t VALUES (?, ?, ?, ?)", rows)
    lines = ["id,a,b,c", *(",".join(map(str, row)) for row in rows)]
    (folder / "first.csv").write_text("\n".join(lines) + "\n", "utf-8")
    unpack_flights(folder)


def one(what: str, folder: Path, root: Path = ROOT) -> Found:
    environment = {**os.environ, "PYTHONPATH": str(root), "PYSPARK_PYTHON": sys.executable}
    command = [sys.executable, str(Path(first_hour.__file__)), what, str(folder)]
    done = subprocess.run(
        command, cwd=root, env=environment, capture_output=True, text=True, check=True, timeout=600
    )
    found: Found = json.loads(done.stdout.splitlines()[-1])
    return found


def rounds(folder: Path) -> dict[str, list[Found]]:
    """Each kind so often, none twice in a row."""
    versions = {"": ROOT, **({" before": Path(BEFORE)} if BEFORE else {})}
    kinds = [("count-channel", version) for version in versions] + [
        ("save", version) for version in versions
    ]
    kinds += [("count-short", ""), ("count-made_up", ""), ("count-empty", ""), ("count-csv", "")]
    if first_hour.SQLITE_JDBC.exists():
        kinds.append(("count-jdbc", ""))
    found: dict[str, list[Found]] = {what + version: [] for what, version in kinds}
    for number in range(ROUNDS):
        for what, version in kinds if number % 2 else reversed(kinds):
            found[what + version].append(one(what, folder, versions[version]))
    return found


def middle(runs: list[Found], *path: str) -> float:
    """The median of a figure that lies at `path`."""
    values = []
    for run in runs:
        value: Any = run
        for name in path:
            value = value.get(name, 0.0)
        values.append(float(value))
    return statistics.median(values)


def first_counts(found: dict[str, list[Found]]) -> list[Row]:
    rows = []
    for kind in [kind for kind in found if kind.startswith("count-")]:
        runs, name = found[kind], kind.removeprefix("count-")
        asked = "<= 4" if name == "channel" else ""
        whole = statistics.median(sum(run["seconds"].values()) for run in runs)
        cpu = statistics.median(
            sum(sum(step.values()) for step in run["cpu"].values()) for run in runs
        )
        steps = ", ".join(
            f"{step} {middle(runs, 'seconds', step):.2f}" for step in ("register", "load", "count")
        )
        rows.append(Row(f"first count, {name}", whole, asked, "s", f"{steps}; CPU {cpu:.1f} s"))
        asked = "<= 0.15" if name == "channel" else ""
        best = f"the shortest {min(run['best'] for run in runs):.3f}"
        rows.append(Row(f"count again, {name}", middle(runs, "warm"), asked, "s", best))
        rows += [
            Row(f"count again, {name}, {step}", middle(runs, "steps", step), "", "s")
            for step in runs[0].get("steps", {})
        ]
    return rows


def processes(found: dict[str, list[Found]]) -> list[Row]:
    """CPU of each Python process of a first read, without what Spark imports before it forks."""
    rows = []
    for kind in ("count-channel", "count-channel before", "count-made_up"):
        for process in OWN if kind in found else ():
            for part in ("daemon", "ours"):
                spent = statistics.median(
                    sum(step.get(f"{process}: {part}", 0.0) for step in run["cpu"].values())
                    for run in found[kind]
                )
                if part == "ours" or kind == "count-made_up":
                    what = "its fork" if part == "ours" else "Spark's imports"
                    rows.append(
                        Row(
                            f"{kind.removeprefix('count-')}, CPU of {process}, {what}",
                            spent,
                            "",
                            "s",
                        )
                    )
    return rows


def first_saves(found: dict[str, list[Found]]) -> list[Row]:
    rows = []
    for kind in ("save", "save before"):
        runs = found.get(kind, [])
        if not runs:
            continue
        paced = statistics.median(run["rows"] / first_hour.LIMIT for run in runs)
        ramp = (
            middle(runs, "seconds", "moving") - middle(runs, "seconds", "to the first row") - paced
        )
        rows += [
            Row(
                f"{kind}: before its own clock",
                middle(runs, "seconds", "before the clock"),
                "",
                "s",
            ),
            Row(
                f"{kind}: from there to the first task",
                middle(runs, "seconds", "to the first task"),
                "",
                "s",
            ),
            Row(
                f"{kind}: from there to the first row",
                middle(runs, "seconds", "to the first row"),
                "",
                "s",
            ),
            Row(
                f"{kind}: lost to the limit's start",
                ramp,
                "",
                "s",
                f"{paced:.1f} s are what the limit takes",
            ),
            Row(f"{kind}: publishing", middle(runs, "seconds", "publish"), "", "s"),
            Row(f"{kind}: all of it", middle(runs, "seconds", "save"), "", "s"),
        ]
    return rows


def main() -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="spark-channel-bench-") as name:
        folder = Path(name)
        prepare(folder)
        found = rounds(folder)
        return [*first_counts(found), *processes(found), *first_saves(found)]
