"""Plugins whose ends are other servers: the jobs of plugins.json, with what DataX wrote through the same servers."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.cli.typed import typed
from tests.datax.matrix import read_jobs
from tests.datax.plugin_ends import ENDS, End, rows_after, written_job

JOBS = [
    pytest.param(
        job,
        marks=pytest.mark.every_server if job["system"] == "hdfs" else (),
        id=f"{job['system']}: {job['what']}",
    )
    for job in read_jobs("plugins.json")
]

pytestmark = [pytest.mark.server, pytest.mark.full]


@pytest.fixture(scope="module")
def end_of() -> Iterator[Callable[[str], End]]:
    """One server at a time; the jobs are in their order."""
    with ExitStack() as held:
        opened: dict[str, End] = {}

        def get(system: str) -> End:
            if system not in opened:
                held.pop_all().close()
                opened.clear()
                opened[system] = held.enter_context(ENDS[system]())
            return opened[system]

        yield get


@pytest.mark.parametrize("job", JOBS)
def test_a_plugin_gives_the_rows_of_datax(
    job: dict[str, Any],
    tmp_path: Path,
    end_of: Callable[[str], End],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    end = end_of(job["system"])
    monkeypatch.setenv("TZ", "Asia/Shanghai")
    path, report = written_job(job, tmp_path, end), tmp_path / "report.json"
    done = typed("run", str(path), "--engine", "local", "--report", str(report))
    refused = json.loads(report.read_text())["rows_refused"]
    found = {"exit": done.exit_code, "refused": refused, "rows": rows_after(job, tmp_path, end)}
    expected = job.get("here", {key: job[key] for key in ("exit", "refused", "rows")})
    if "here" not in job and job["exit"]:
        found = {**found, "exit": min(found["exit"], 1), "refused": job["refused"]}
    assert found == expected
