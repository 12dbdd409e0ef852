"""Several jobs in one command: all of them run, and one summary lists them."""

import ctypes
import json
import platform
import signal
import sqlite3
import subprocess
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_run import CLI, ROOT, environment
from tests.cli.typed import into_sqlite, made_up, typed, write_job


def tables(path: Path, *names: str, definition: str = "id INTEGER, name TEXT") -> Path:
    with closing(sqlite3.connect(path)) as connection, connection:
        for name in names:
            connection.execute(f"CREATE TABLE {name} ({definition})")
    return path


def counted(path: Path, table: str) -> int:
    with closing(sqlite3.connect(path)) as connection:
        return int(connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0])


def test_a_folder_of_jobs_runs_and_one_report_tells_of_all(tmp_path: Path) -> None:
    places = {name: tables(tmp_path / f"{name}.db", "t") for name in ("a", "b", "c")}
    for number, (name, place) in enumerate(places.items(), 1):
        write_job(tmp_path / "jobs" / name / "copy.json", made_up(10 * number), into_sqlite(place))
    (tmp_path / "jobs" / "readme.txt").write_text("not a job")
    done = typed(
        "run",
        str(tmp_path / "jobs"),
        "--parallel",
        "2",
        "--report",
        str(tmp_path / "out" / "run.json"),
    )
    assert done.exit_code == 0, done.output
    assert [counted(place, "t") for place in places.values()] == [10, 20, 30]
    assert "3 of 3 jobs done" in done.output
    report = json.loads((tmp_path / "out" / "run.json").read_text())
    assert (report["exit_code"], report["jobs_done"], report["jobs_failed"]) == (0, 3, 0)
    assert (report["rows_read"], report["rows_written"], report["rows_refused"]) == (60, 60, 0)
    assert [(each["job"], each["rows_written"]) for each in report["jobs"]] == [
        ("copy", 10),
        ("copy-2", 20),
        ("copy-3", 30),
    ]
    assert report["rows_per_second"] == pytest.approx(60 / report["seconds"], rel=0.01, abs=0.06)
    assert list((tmp_path / "out").iterdir()) == [tmp_path / "out" / "run.json"]


def test_a_job_that_fails_or_cannot_be_read_keeps_no_other_from_running(tmp_path: Path) -> None:
    place = tables(tmp_path / "t.db", "t")
    write_job(tmp_path / "jobs" / "1.json", made_up(5), into_sqlite(tmp_path / "no" / "t.db"))
    (tmp_path / "jobs" / "2.json").write_text("{")
    write_job(tmp_path / "jobs" / "3.json", made_up(5), into_sqlite(place))
    done = typed("run", str(tmp_path / "jobs"), "--output", "json")
    assert done.exit_code == 2
    assert counted(place, "t") == 5
    report = json.loads(done.stdout.splitlines()[-1])  # before click 8.2 with what goes to stderr
    assert [(each["state"], each["exit_code"]) for each in report["jobs"]] == [
        ("failed", 2),
        ("not run", 2),
        ("done", 0),
    ]
    assert "does not exist; make it" in report["jobs"][0]["error"]
    assert "not JSON" in report["jobs"][1]["error"]
    assert (report["jobs_done"], report["jobs_failed"], report["rows_written"]) == (1, 2, 5)


def test_jobs_that_fail_for_one_reason_end_with_its_code(tmp_path: Path) -> None:
    for name in ("1", "2"):
        (tmp_path / f"{name}.json").write_text("{")
    assert typed("run", str(tmp_path / "1.json"), str(tmp_path / "2.json")).exit_code == 2


def test_a_folder_without_jobs_is_refused(tmp_path: Path) -> None:
    done = typed("run", str(tmp_path))
    assert done.exit_code == 2
    assert "has no job files" in str(done.exception)


@pytest.mark.parametrize("parallel", ["1", "3"])
def test_one_limit_holds_for_all_jobs_together(tmp_path: Path, parallel: str) -> None:
    rows, rate = 200, 600
    for name in ("a", "b", "c"):
        place = tables(tmp_path / f"{name}.db", "t")
        write_job(tmp_path / "jobs" / f"{name}.json", made_up(rows), into_sqlite(place))
    start = time.monotonic()
    done = typed(
        "run", str(tmp_path / "jobs"), "--parallel", parallel, "--rows-per-second", str(rate)
    )
    assert done.exit_code == 0, done.output
    assert time.monotonic() - start >= 0.9 * (3 * rows / rate) - 0.2
    assert all(counted(tmp_path / f"{name}.db", "t") == rows for name in ("a", "b", "c"))


def test_two_limits_for_all_jobs_contradict_each_other(tmp_path: Path) -> None:
    file = write_job(tmp_path / "job.json", made_up(1), {"name": "streamwriter"})
    done = typed("run", file, "--rows-per-second", "5", "--shared-limit", "orders")
    assert done.exit_code == 2
    assert "'--shared-limit'" in str(done.exception)


def test_two_jobs_of_one_load_into_one_table_are_two_loads(tmp_path: Path) -> None:
    place = tables(tmp_path / "t.db", "t")
    files = [
        write_job(tmp_path / f"{name}.json", made_up(5), into_sqlite(place)) for name in ("a", "b")
    ]
    for _ in range(2):
        done = typed("run", *files, "--txn", "nightly:7")
        assert done.exit_code == 0, done.output
        assert counted(place, "t") == 10
    alone = typed("run", files[0], "--txn", "nightly/a:7", "--output", "json")
    assert json.loads(alone.stdout)["rows_written"] == 0
    assert counted(place, "t") == 10


def test_the_only_job_that_cannot_be_read_is_in_the_report_too(tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text("{")
    done = typed("run", str(tmp_path / "job.json"), "--report", str(tmp_path / "r.json"))
    assert done.exit_code == 2
    report: dict[str, Any] = json.loads((tmp_path / "r.json").read_text())
    assert (report["exit_code"], report["jobs"][0]["error_type"]) == (2, "JobFileError")


def signal_another_thread(process: subprocess.Popen[str], sent: int) -> None:
    """As the system may do it: to a thread that is not the main one."""
    number = {"x86_64": 234, "aarch64": 131}[platform.machine()]
    others = {int(each.name) for each in Path(f"/proc/{process.pid}/task").iterdir()} - {
        process.pid
    }
    assert ctypes.CDLL(None).syscall(number, process.pid, max(others), sent) == 0


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_ends_all_jobs_and_leaves_nothing(
    tmp_path: Path, sent: signal.Signals, code: int
) -> None:
    files = []
    for name in ("a", "b", "c"):
        writer = {
            "name": "txtfilewriter",
            "parameter": {"path": str(tmp_path / name), "fileName": "x", "writeMode": "append"},
        }
        files.append(write_job(tmp_path / "jobs" / f"{name}.json", made_up(1_000_000), writer))
    process = subprocess.Popen(
        [
            *CLI,
            "run",
            *files,
            "--parallel",
            "2",
            "--rows-per-second",
            "2k",
            "--report",
            str(tmp_path / "r.json"),
        ],
        cwd=ROOT,
        stderr=subprocess.STDOUT,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    try:
        assert process.stdout is not None
        begun = 0
        for line in process.stdout:
            begun += "limit 2k rows/s" in line
            if begun == 2:
                break
        signal_another_thread(process, sent)
        out, _ = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == code, out
    assert "Traceback" not in out
    report = json.loads((tmp_path / "r.json").read_text())
    assert [each["state"] for each in report["jobs"]] == ["failed", "failed", "not run"]
    assert report["exit_code"] == code
    assert list(tmp_path.rglob("*.csv")) == []
