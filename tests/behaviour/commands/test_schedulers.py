"""What schedulers read of a run: exit codes, JSON, DataX's closing table, and DataX's flags."""

import json
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.cli.typed import into_sqlite, made_up, typed, write_job

DATAX = [
    "任务启动时刻",
    "任务结束时刻",
    "任务总计耗时",
    "任务平均流量",
    "记录写入速度",
    "读出记录总数",
    "读写失败总数",
]


def table(path: Path, definition: str = "id INTEGER, name TEXT") -> Path:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"CREATE TABLE t ({definition})")
    return path


def test_the_closing_table_of_datax_is_for_those_who_ask_for_it(tmp_path: Path) -> None:
    file = write_job(tmp_path / "job.json", made_up(10), into_sqlite(table(tmp_path / "t.db")))
    assert typed("run", file).stdout == ""
    done = typed("run", file, "--datax-summary")
    lines = [line for line in done.stdout.splitlines() if ": " in line]
    figures = {
        label.strip(): value.strip() for label, _, value in (line.partition(": ") for line in lines)
    }
    assert list(figures) == DATAX
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", figures[DATAX[0]])
    assert re.fullmatch(r"[\d.]+s", figures[DATAX[2]])
    assert re.fullmatch(r"[\d.]+[KMGT]?B/s", figures[DATAX[3]])
    assert re.fullmatch(r"\d+rec/s", figures[DATAX[4]])
    assert (figures[DATAX[5]], figures[DATAX[6]]) == ("10", "0")


def test_output_json_is_one_line_and_nothing_else(tmp_path: Path) -> None:
    file = write_job(tmp_path / "job.json", made_up(10), into_sqlite(table(tmp_path / "t.db")))
    done = typed("run", file, "--output", "json", "--jobid", "42")
    assert done.stdout.count("\n") == 1
    report = json.loads(done.stdout)
    (job,) = report["jobs"]
    assert (job["file"], job["state"], job["rows_written"]) == (file, "done", 10)
    assert job["transfers"][0]["job"].startswith("42-")
    assert {"started_at", "ended_at", "seconds", "bytes_per_second"} <= set(job)


def test_refused_rows_are_counted_as_read(tmp_path: Path) -> None:
    column = [{"type": "long", "random": "0,1"}, {"type": "string", "value": "x"}]
    reader = {"name": "streamreader", "parameter": {"column": column, "sliceRecordCount": 200}}
    file = write_job(
        tmp_path / "job.json",
        reader,
        into_sqlite(table(tmp_path / "t.db", "id INTEGER CHECK (id < 1), name TEXT")),
    )
    report = json.loads(typed("run", file, "--output", "json").stdout)
    assert report["rows_read"] == 200
    assert report["rows_refused"] > 0
    assert report["rows_written"] == 200 - report["rows_refused"]


@pytest.mark.parametrize(
    "limit", [{"record": 0}, {"record": 3}, {"percentage": 0}, {"percentage": 0.01}]
)
def test_too_many_refused_rows_end_with_3_and_are_told(
    tmp_path: Path, limit: dict[str, Any]
) -> None:
    place = table(tmp_path / "t.db", "id INTEGER CHECK (id < 0), name TEXT")
    file = write_job(tmp_path / "job.json", made_up(100), into_sqlite(place), errorLimit=limit)
    done = typed("run", file, "--report", str(tmp_path / "r.json"))
    assert done.exit_code == 3, done.exception
    report = json.loads((tmp_path / "r.json").read_text())
    assert (report["exit_code"], report["jobs"][0]["state"]) == (3, "failed")
    with closing(sqlite3.connect(place)) as connection:
        assert connection.execute("SELECT count(*) FROM t").fetchone() == (0,)


def test_flags_of_datax_are_taken_or_told(tmp_path: Path) -> None:
    file = write_job(tmp_path / "job.json", made_up(1, "${day}"), {"name": "streamwriter"})
    flags = ("-j", "-Xms1G -Xmx1G", "-m", "standalone", "--loglevel", "info", "-p", "-Dday=1")
    done = typed("run", *flags, file)
    assert done.exit_code == 0, done.output
    assert "note: --jvm has no effect" in done.output
    assert "note: --mode standalone has no effect" in done.output
    wrong = typed("run", file, "-p", "-Dday=1", "--loglevel", "loud")
    assert wrong.exit_code == 2
    assert "'--loglevel' got 'loud'" in str(wrong.exception)


def test_a_report_that_cannot_be_written_is_told_before_a_row_moves(tmp_path: Path) -> None:
    place = table(tmp_path / "t.db")
    file = write_job(tmp_path / "job.json", made_up(1), into_sqlite(place))
    (tmp_path / "file").write_text("")
    done = typed("run", file, "--report", str(tmp_path / "file" / "r.json"))
    assert done.exit_code == 2
    assert "'--report'" in str(done.exception)
    with closing(sqlite3.connect(place)) as connection:
        assert connection.execute("SELECT count(*) FROM t").fetchone() == (0,), "before a row moves"
