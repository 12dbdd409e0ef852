"""The jobs that DataX ran, run here: the same rows, or those that a row of the table of differences explains."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.typed import typed
from tests.datax.differences import WHY
from tests.datax.matrix import JOBS, Databases, name_of, prepare, read_jobs, rows_after
from tests.servers.mariadb import MariadbServer
from tests.servers.postgres import PostgresServer


@pytest.fixture(scope="module")
def databases(
    mariadb_server: MariadbServer, postgres_server: PostgresServer
) -> Iterator[Databases]:
    both = Databases(mariadb_server, postgres_server)
    with both.open():
        yield both


def outcome(job: dict[str, Any], folder: Path, databases: Databases) -> dict[str, Any]:
    """`exit`, `refused` and `rows` of the job, as jobs.json has them."""
    path, report = prepare(job, folder, databases), folder / "report.json"
    done = typed("run", str(path), "--engine", "local", "--report", str(report))
    refused = json.loads(report.read_text())["rows_refused"]
    rows = rows_after(job, folder, databases)
    return {"exit": done.exit_code, "refused": refused, "rows": rows}


@pytest.mark.parametrize("job", JOBS, ids=name_of)
def test_a_job_gives_the_rows_of_datax(
    job: dict[str, Any], tmp_path: Path, databases: Databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "Asia/Shanghai")
    found = outcome(job, tmp_path, databases)
    expected = job.get("here", {key: job[key] for key in ("exit", "refused", "rows")})
    if "here" not in job and job["exit"]:
        # DataX ends with 1 for everything, and does not say how many rows were refused.
        found = {**found, "exit": min(found["exit"], 1), "refused": job["refused"]}
    assert json.dumps(found) == json.dumps(expected)  # NaN is not equal to itself


def test_each_difference_is_a_row_of_the_table() -> None:
    assert {job["why"] for job in (*JOBS, *read_jobs("plugins.json")) if "here" in job} == set(WHY)


def test_nine_of_ten_jobs_that_datax_carries_out_give_the_same_rows() -> None:
    jobs = [*JOBS, *read_jobs("plugins.json")]
    ran = [job for job in jobs if not (job["exit"] or job.get("why") == "fails")]
    assert sum("here" in job for job in ran) / len(ran) <= 0.1
