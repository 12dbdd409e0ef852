"""CPU of a command, as a multiple of what importing the libraries that every command needs takes in the same run."""

import resource
import subprocess
import sys
from collections.abc import Sequence

from tests.cli.test_run import ROOT, environment

__all__ = ["cpu_of", "imports"]

IMPORTS = "import pyarrow, pyarrow.compute, pydantic, typer"
"""0.25 s on the machine of docs/benchmarks.md."""


def cpu_of(command: Sequence[str], *, check: bool = True) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, cwd=ROOT, capture_output=True, env=environment(), check=check)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def imports() -> float:
    return min(cpu_of([sys.executable, "-c", IMPORTS]) for _ in range(3))
