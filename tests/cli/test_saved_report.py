"""`spark-channel report FILE`."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from spark_channel.cli.app import complete
from spark_channel.progress import Sample, TransferReport
from spark_channel.serialization import to_plain
from tests.cli.typed import typed

REPORT = TransferReport(
    job="j",
    kind="transfer",
    phase="done",
    started_at="2026-01-01T00:00:00+00:00",
    seconds=4.0,
    rows=300,
    bytes=2400,
    rows_moved=300,
    bytes_moved=2400,
    rows_per_second_limit=100,
    samples=(Sample(3.0, 100.0, 800.0),),
)


def test_a_kept_report_is_shown_and_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "r.json").write_text(REPORT.to_json())
    done = CliRunner().invoke(
        complete(()), ["report", str(tmp_path / "r.json"), "--picture", str(tmp_path / "r.svg")]
    )
    assert done.exit_code == 0, done.output
    assert str(REPORT) in done.output
    assert (tmp_path / "r.svg").read_text().startswith("<svg")


def test_the_report_of_a_command_is_shown_and_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "a.csv").write_text("id\n1\n2\n")
    file, picture = str(tmp_path / "r.json"), tmp_path / "r.svg"
    done = typed("copy", f"{tmp_path}/a.csv", f"parquet:{tmp_path}/b", "--report", file)
    assert done.exit_code == 0, done.output
    shown = typed("report", file, "--picture", str(picture))
    assert shown.exit_code == 0, shown.output
    assert "copied 2 rows" in shown.output
    assert picture.read_text().startswith("<svg")


def test_the_report_of_a_failed_command_shows_the_failed_job(tmp_path: Path) -> None:
    file = str(tmp_path / "r.json")
    done = typed("copy", f"{tmp_path}/nothing.csv", f"parquet:{tmp_path}/b", "--report", file)
    assert done.exit_code == 2
    shown = typed("report", file)
    assert shown.exit_code == 0, shown.output
    assert "failed, exit code 2: " in shown.output
    assert f"{tmp_path}/nothing.csv does not exist" in shown.output


def test_the_report_of_several_jobs_and_of_tables_names_each(tmp_path: Path) -> None:
    job = {"state": "done", "exit_code": 0, "error": "", "transfers": [to_plain(REPORT)]}
    jobs = [
        {"file": "a.json", **job},
        {"file": "b.json", **job, "state": "not run", "transfers": []},
    ]
    (tmp_path / "r.json").write_text(json.dumps({"jobs": jobs}))
    shown = typed("report", str(tmp_path / "r.json")).output
    assert "a.json: done\ncopied 300 rows" in shown
    assert "b.json: not run" in shown
    done = {"stream": "s.a", "state": "done", "rows": 300, "why": "", "transfer": to_plain(REPORT)}
    parked = {"stream": "s.b", "state": "parked", "rows": 0, "why": "no right", "transfer": None}
    (tmp_path / "r.json").write_text(json.dumps({"tables": [done, parked]}))
    shown = typed("report", str(tmp_path / "r.json")).output
    assert "s.a: done, 300 rows\ncopied 300 rows" in shown
    assert "s.b: parked, 0 rows: no right" in shown


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "cannot be read: No such file"),
        ("[]", "no report"),
        ('{"x": 1}', "no report"),
        ('{"tables": [{"name": "t", "outcome": "equal"}]}', "it is of verify"),
        ('{"jobs": []}', "names no job and no table"),
        ('{"tables": []}', "names no job and no table"),
        ('{"jobs": 7}', "field 'jobs' is missing, or of another kind than list"),
        ('{"jobs": [7]}', "field 'transfers' is missing"),
        ('{"jobs": [{"file": "a", "transfers": []}]}', "field 'state' is missing"),
        ('{"jobs": [{"file": "a", "state": "failed", "transfers": []}]}', "field 'exit_code'"),
        ('{"jobs": [{"file": "a", "state": "done", "transfers": [{}]}]}', "a report has"),
        ('{"tables": [{"stream": "s.a", "state": "done", "rows": 1}]}', "field 'why' is missing"),
        ('{"tables": [{"stream": "s", "state": "done", "why": "", "rows": "1"}]}', "field 'rows'"),
    ],
)
def test_what_is_no_report_is_bad_input(tmp_path: Path, content: str | None, says: str) -> None:
    if content is not None:
        (tmp_path / "r.json").write_text(content)
    done = CliRunner().invoke(complete(()), ["report", str(tmp_path / "r.json")])
    assert done.exit_code == 2
    assert says in done.output
