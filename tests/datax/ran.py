"""Runs a job file as a user does, by `spark-channel run`, without Spark."""

import json
from pathlib import Path
from typing import Any

from tests.cli.typed import typed

__all__ = ["ran"]


def ran(folder: Path, job: dict[str, Any], *, code: int = 0) -> dict[str, Any]:
    """The report of the run; `code` is what the command ends with."""
    file, report = folder / "job.json", folder / "report.json"
    file.write_text(json.dumps(job))
    done = typed("run", str(file), "--engine", "local", "--report", str(report))
    assert done.exit_code == code, done.output
    found: dict[str, Any] = json.loads(report.read_text())
    return found
