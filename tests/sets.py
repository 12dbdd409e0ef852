"""Which tests `make test` runs, and which only `make test-all`: chosen from what each costs and which lines it covers.

`tests/sets.tsv` has a line for each function, or whole file, that the rule does not cover: a test is in the quick set,
and takes less than half a second. To choose anew (pytest-cov is no part of the environment):

    .venv/bin/pip install pytest-cov
    .venv/bin/python -m pytest -n 2 -m 'not soak and not every_server and not spark' --times artifacts/times.tsv \\
        --cov=spark_channel --cov-context=test --cov-report=
    .venv/bin/python -m tests.sets artifacts/times.tsv .coverage
"""

import heapq
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

__all__ = ["SLOW_SECONDS", "Cost", "choose", "full_files", "has_full", "more_tests", "set_of"]

ROOT = Path(__file__).resolve().parents[1]
SETS = Path(__file__).parent / "sets.tsv"
SLOW_SECONDS = 0.5
"""CPU seconds from which a test names its set."""
_BUDGET = 420.0
"""CPU seconds of all tests of the quick set, as measured with coverage, which doubles them."""
_WAIT_COSTS = 0.1
"""What a second of waiting costs, in CPU seconds: servers work meanwhile, which is not measured."""
_CHEAP = 0.1
"""Tests below these CPU seconds are in the quick set, whatever they cover."""
_LINES = 0.98
"""The share of all covered lines from which on a test is chosen for no line of its own."""

_ALWAYS = (
    "tests/test_",  # of the whole repository: layers, names, pages, options, secrets
    "tests/limits/test_coordinator_any_history.py",
    "tests/cli/test_copying.py::test_a_file_goes_to_a_database_and_on_to_files",
    "tests/cli/test_copying.py::test_tables_of_postgresql",
    "tests/connectors/mysql/write/test_database.py",
    "tests/spark/test_read.py",
    "tests/spark/test_write.py",
)
_NOT_QUICK = (
    # Separate programs, or environments of their own.
    "tests/test_docs.py",
    "tests/test_first_five_minutes.py",
    "tests/test_install.py",
    "tests/test_site.py",
    "tests/notebooks/",
    "tests/behaviour/hosts/",
    # Servers and programs that `make test` does not install.
    "tests/connectors/postgresql/test_versions.py",
)
_QUICK_SERVERS = {"postgres", "mariadb", "fixtures", "installed", "sockets", "rogue", "certificate"}
"""Modules of `tests.servers` whose programs `make test` installs, or that are Python."""


@dataclass
class Cost:
    """What a test function, with all its parameters, costs and covers."""

    cpu: float = 0.0
    wall: float = 0.0
    tests: int = 0
    lines: set[tuple[str, int]] = field(default_factory=set)

    @property
    def seconds(self) -> float:
        return self.cpu + _WAIT_COSTS * self.wall


@cache
def _sets() -> Mapping[str, str]:
    rows = [line.split("\t") for line in SETS.read_text("utf-8").splitlines() if line[:1] != "#"]
    return {name: kind for kind, name in rows}


def set_of(nodeid: str) -> str:
    """`full`, `quick`, or "" for a test that names none, which is quick."""
    name = function_of(nodeid)
    return _sets().get(name) or _sets().get(name.split("::")[0], "")


def function_of(nodeid: str) -> str:
    """A test's name without its parameters."""
    return nodeid.split("[", 1)[0]


@cache
def full_files() -> frozenset[str]:
    """Files of which `make test` runs no test."""
    return frozenset(name for name, kind in _sets().items() if kind == "full" and "::" not in name)


@cache
def _with_full() -> frozenset[str]:
    return frozenset(name.split("::")[0] for name, kind in _sets().items() if kind == "full")


def has_full(file: str) -> bool:
    """Whether `make test-all` runs a test of the file."""
    return file in _with_full()


def more_tests() -> str:
    """How many tests `make test-all` adds, as they were when the sets were chosen."""
    first = SETS.read_text("utf-8").split("\n", 1)[0]
    return re.sub(r"^# ", "", first)


def choose(
    costs: Mapping[str, Cost], *, with_spark: Iterable[str], other_servers: Iterable[str]
) -> set[str]:
    """The functions of the quick set.

    First those that must be in it and those that cost next to nothing, then what covers the most new lines for its
    seconds, while the budget lasts.

    Args:
        costs: by test function.
        with_spark, other_servers: files with Spark, and files of servers that `make test` does not install. Both are
            in the quick set only if `_ALWAYS` names them.
    """
    apart = {*with_spark, *other_servers}
    quick, rest = set(), {}
    for name, cost in costs.items():
        if name.startswith(_NOT_QUICK):
            continue
        file = name.split("::")[0]
        if name.startswith(_ALWAYS) or (file not in apart and cost.seconds < _CHEAP):
            quick.add(name)
        elif file not in apart:
            rest[name] = cost
    spent = sum(costs[name].seconds for name in quick)
    covered: set[tuple[str, int]] = set().union(*(costs[name].lines for name in quick))
    enough = _LINES * len(set().union(*(cost.lines for cost in costs.values())))
    # What a test adds only shrinks while others are chosen: the best is known as soon as its number is a present one.
    queue = [(-len(cost.lines) / cost.seconds, name) for name, cost in rest.items()]
    heapq.heapify(queue)
    while queue and len(covered) < enough:
        _, name = heapq.heappop(queue)
        cost = rest[name]
        gain = len(cost.lines - covered) / cost.seconds
        if gain and queue and gain < -queue[0][0]:
            heapq.heappush(queue, (-gain, name))
        elif gain and spent + cost.seconds <= _BUDGET:
            quick.add(name)
            covered |= cost.lines
            spent += cost.seconds
    return quick


def _measured(times: Path, coverage_file: Path) -> tuple[dict[str, Cost], set[tuple[str, int]]]:
    """The cost of each test function, and the lines that imports run, whatever is tested."""
    from coverage import CoverageData  # type: ignore[import-not-found, unused-ignore]

    costs: dict[str, Cost] = defaultdict(Cost)
    for line in times.read_text("utf-8").splitlines():
        nodeid, cpu, wall = line.rsplit("\t", 2)
        cost = costs[function_of(nodeid)]
        cost.cpu += float(cpu)
        cost.wall += float(wall)
        cost.tests += 1
    data = CoverageData(str(coverage_file))
    data.read()
    imported = set()
    for path in data.measured_files():
        for number, contexts in data.contexts_by_lineno(path).items():
            for context in contexts:
                name = function_of(context.rsplit("|", 1)[0])
                if name in costs:
                    costs[name].lines.add((path, number))
                elif not name:
                    imported.add((path, number))
    return dict(costs), imported


def _other_servers(file: str) -> bool:
    text = (ROOT / file).read_text("utf-8")
    return not set(re.findall(r"\btests\.servers\.(\w+)", text)) <= _QUICK_SERVERS


def main(times: str, coverage_file: str) -> None:
    """Write `tests/sets.tsv`, and say what the quick set costs and covers."""
    from tests.conftest import has_spark

    costs, imported = _measured(Path(times), Path(coverage_file))
    by_file: dict[str, list[str]] = defaultdict(list)
    for name in costs:
        by_file[name.split("::")[0]].append(name)
    quick = choose(
        costs,
        with_spark=[file for file in by_file if has_spark(ROOT / file)],
        other_servers=[file for file in by_file if _other_servers(file)],
    )
    rows = []
    for file, names in by_file.items():
        if not quick.intersection(names):
            rows.append(("full", file))
            continue
        rows += [("full", name) for name in names if name not in quick]
        slow = [name for name in names if costs[name].cpu / costs[name].tests >= SLOW_SECONDS]
        rows += [("quick", name) for name in slow if name in quick]
    spark_files = [
        path.relative_to(ROOT).as_posix()
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        if has_spark(path)
    ]
    rows += [
        ("full", file)
        for file in spark_files
        if file not in by_file and not file.startswith(_ALWAYS)
    ]
    left = [cost for name, cost in costs.items() if name not in quick]
    lines = imported.union(*(cost.lines for cost in costs.values()))
    kept = imported.union(*(costs[name].lines for name in quick))
    spent = sum(costs[name].seconds for name in quick)
    share = (
        f"{len(kept) / len(lines):.1%} of the lines that tests without Spark cover"
        if lines
        else "no lines"
    )
    sizes = [sum(costs[name].tests for name in quick), sum(cost.tests for cost in left)]
    SETS.write_text(
        f"# {sizes[1]:,} tests more than the {sizes[0]:,} of the quick set, which cover {share}\n".replace(
            ",", " ", 2
        )
        + "".join(f"{kind}\t{name}\n" for kind, name in sorted(rows, key=lambda row: row[1])),
        "utf-8",
    )
    everything = sum(cost.seconds for cost in costs.values())
    print(f"quick: {sizes[0]} of {sum(sizes)} tests, {spent:.0f} of {everything:.0f} s, {share}")


if __name__ == "__main__":
    main(*sys.argv[1:3])
