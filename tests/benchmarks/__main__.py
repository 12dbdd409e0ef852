"""`make bench`: the table of all benchmarks, each figure a ratio measured in this run.

`python -m tests.benchmarks channel carrier` runs the modules named, `bench_channel` and `bench_carrier`. Without names
it runs all but those that download what they measure, or need a program of another project. A whole run writes the
figures that are in `docs/figures.json`, and puts them into the pages that show them.
"""

import importlib
import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path

from tests import figures
from tests.benchmarks.harness import print_table

_BY_NAME = frozenset({"bench_datax", "bench_peers", "bench_schemas"})
"""Run only when they are named."""


def chosen(names: Sequence[str]) -> list[str]:
    """The modules that `names` mean; without any, those that need nothing more."""
    modules = sorted(path.stem for path in Path(__file__).parent.glob("bench_*.py"))
    wanted = [f"bench_{name.removeprefix('bench_')}" for name in names]
    unknown = sorted(set(wanted) - set(modules))
    if unknown:
        sys.exit(f"no benchmark {', '.join(unknown)}; there are {', '.join(modules)}")
    return wanted or [name for name in modules if name not in _BY_NAME]


def main() -> None:
    wanted = chosen(sys.argv[1:])
    load = os.getloadavg()[0]
    print(
        f"Python {platform.python_version()}, {os.cpu_count()} cores, load {load:.1f} at the start"
    )
    for name in wanted:
        print(f"\n{name.removeprefix('bench_')}", flush=True)
        rows = list(importlib.import_module(f"tests.benchmarks.{name}").main())
        print_table(rows)
        if not any(name.startswith("SPARK_CHANNEL_BENCH_") for name in os.environ):
            figures.record(name.removeprefix("bench_"), rows)


if __name__ == "__main__":
    main()
