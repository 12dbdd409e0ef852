"""`spark-channel replicate` and `check`, as they are typed."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from spark_channel.replication.config import json_schema
from tests.cli.test_run import run

KEY = "0123456789abcdef0123"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
        connection.executescript(
            "CREATE TABLE users (id INTEGER PRIMARY KEY, email TEXT);"
            "INSERT INTO users VALUES (1, 'open-1'), (2, 'open-2');"
            "CREATE TABLE orders (id INTEGER PRIMARY KEY); INSERT INTO orders VALUES (1), (2), (3);"
        )
    made = tmp_path / "shop.yml"
    made.write_text(
        f"""
source: {{url: "sqlite:{tmp_path}/shop.db"}}
target: {{url: "sqlite:{tmp_path}/dw.db"}}
defaults: {{columns: {{"*.email": "hmac(${{env:PII_KEY}})"}}}}
streams:
  users:
  orders: {{mode: incremental, update_key: id}}
limit: {{rows_per_second: 50k, windows: ["unlimited"]}}
"""
    )
    return made


def test_a_file_from_its_check_to_its_reset(file: Path) -> None:
    assert "1 runs" in run("check", str(file))
    plan = run("replicate", str(file), "--dry-run", PII_KEY=KEY)
    assert "creates" in plan
    assert "ends" in plan
    assert not (file.parent / "dw.db").exists()
    report = file.parent / "report.json"
    said = run("replicate", str(file), "--report", str(report), PII_KEY=KEY)
    assert "2 tables: 2 done; 5 rows" in said
    assert "unlimited (unlimited)" in said
    assert json.loads(report.read_text())["rows"] == 5
    output = run("replicate", str(file), "--select", "orders", "--output", "json", PII_KEY=KEY)
    found = json.loads(next(line for line in output.splitlines() if line.startswith("{")))
    assert [each["state"] for each in found["tables"]] == ["unchanged"]
    status = run("replicate", "status", str(file), "--output", "json", PII_KEY=KEY)
    listed = json.loads(next(line for line in status.splitlines() if line.startswith("[")))
    assert {each["stream"]: each["rows"] for each in listed} == {"users": 2, "orders": 3}
    assert "orders is reset" in run("replicate", "reset", str(file), "orders", PII_KEY=KEY)
    assert "1 done; 3 rows" in run("replicate", str(file), "--select", "orders", PII_KEY=KEY)
    assert "orders is not parked" in run("replicate", "resume", str(file), "orders", PII_KEY=KEY)


def test_without_windows_the_limit_has_no_line_of_changes(file: Path) -> None:
    file.write_text(file.read_text().replace(', windows: ["unlimited"]', ""))
    said = run("replicate", str(file), PII_KEY=KEY)
    assert "2 tables: 2 done" in said
    assert "limit from" not in said


def test_bad_input_has_exit_code_2_and_a_parked_table_3(file: Path) -> None:
    assert "PII_KEY is not set" in run("replicate", str(file), code=3)
    assert "takes a YAML file" in run("replicate", str(file), "x", code=2)
    assert json.loads(run("replicate", "schema")) == json.loads(json_schema())
    text = file.read_text()
    file.write_text(text.replace("update_key", "updatekey").replace("users:", "users: {mode: ful}"))
    said = run("check", str(file), code=2)
    assert "updatekey" in said
    assert "'ful'" in said
    file.write_text(text.replace("url: ", "ulr: 1, url: ", 1))
    assert "ulr" in run("check", str(file), code=2)


def test_a_selection_without_a_table_copies_none(file: Path) -> None:
    """The empty value of a shell's variable would take all tables, also with --full-refresh."""
    assert "names no table" in run("replicate", str(file), "--select", "", code=2, PII_KEY=KEY)
    assert not (file.parent / "dw.db").exists()
    for more in ((), ("--dry-run",)):
        said = run("replicate", str(file), "--select", "x*", *more, code=2, PII_KEY=KEY)
        assert "no table is copied: --select x* matches no table" in said
    file.write_text(file.read_text().replace("  users:\n", ""))
    said = run("replicate", str(file), "--select", "users", code=2, PII_KEY=KEY)
    assert "--select users matches tables that no stream copies" in said


def test_a_plan_has_the_words_of_the_file(file: Path) -> None:
    text = file.read_text().replace("defaults:", "defaults: {}\n#").replace("key: id", "key: email")
    file.write_text(text.replace("orders:", "users:").replace("  users:\n", "", 1))
    for more in ((), ("--dry-run",)):
        said = run("replicate", str(file), *more, code=3)
        assert "update_key names 'email' of type string" in said


def test_the_duration_of_a_plan_has_the_wait_for_late_rows(file: Path) -> None:
    text = file.read_text().replace("update_key: id}", "update_key: id, late_seconds: 90}")
    file.write_text(text)
    plan = run("replicate", str(file), "--dry-run", PII_KEY=KEY)
    assert "duration: 1 min 30 s at this limit, 1 min 30 s of it to wait for rows that are" in plan


def test_a_selection_names_the_nearest_table(file: Path) -> None:
    for name, nearest in (("user", "users"), ("orderz", "orders")):
        said = run("replicate", str(file), "--select", name, code=2, PII_KEY=KEY)
        assert f"--select {name} matches no table of the source; did you mean '{nearest}'?" in said


def test_a_run_that_fails_before_its_first_table_has_a_report(file: Path) -> None:
    report = file.parent / "report.json"
    (file.parent / "shop.db").unlink()
    said = run("replicate", str(file), "--report", str(report), code=2, PII_KEY=KEY)
    assert "shop.db" in said
    kept = json.loads(report.read_text())
    assert kept["exit_code"] == 2
    assert "shop.db" in kept["error"]
    assert kept["tables"] == []
    assert "failed, exit code 2: " in run("report", str(report))
