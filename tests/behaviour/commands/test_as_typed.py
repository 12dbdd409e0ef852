"""The command line, as a user types it."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


def run(*arguments: str, code: int = 0) -> str:
    """stdout and stderr of `spark-channel ARGUMENTS`, which ends with `code`."""
    done = subprocess.run(
        [sys.executable, "-m", "spark_channel.cli", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "COLUMNS": "200"},
    )
    out = done.stdout + done.stderr
    assert done.returncode == code, out
    assert "Traceback" not in out
    return out


@pytest.fixture(autouse=True)
def runtime_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run").mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))


def test_the_version_is_the_packages() -> None:
    assert run("--version").startswith("spark-channel 0.")


def test_connectors_are_listed_in_a_line_each_and_one_with_all_that_is_known() -> None:
    lines = run("connectors").splitlines()
    for name, words in {
        "sqlite": ["yes", "yes", "stable"],
        "http": ["yes", "-", "experimental"],
    }.items():
        (line,) = [line for line in lines if f" {name} " in line]
        assert [cell.strip() for cell in line.split("│")[2:-1]] == words
    assert max(map(len, lines)) <= 80
    one = run("connectors", "mysql")
    assert re.search(
        r"tested against: MariaDB 10\.11.*\nother systems: MySQL \(stable, MySQL 9", one
    )
    assert ".parquet" in run("connectors", "parquet")
    assert "'mysq' is not a connector; there are: adbc, arrow" in run("connectors", "mysq", code=2)
    (found,) = json.loads(run("connectors", "postgresql", "--output", "json"))
    assert (found["name"], found["reads"], found["writes"]) == ("postgresql", True, True)


def test_limits_of_an_idle_host_are_none() -> None:
    assert "limit" in run("limits", "list")


@pytest.mark.parametrize(
    "command", [["show"], ["pause"], ["resume"], ["set", "--rows-per-second", "5"]]
)
def test_a_limit_that_is_not_there_is_named(command: list[str]) -> None:
    assert "no limit 'orders-db' runs on this host" in run("limits", *command, "orders-db", code=2)


def test_a_limit_without_a_speed_is_refused() -> None:
    assert "give --rows-per-second" in run("limits", "serve", "orders-db", code=2)


def test_an_unknown_command_ends_with_2() -> None:
    run("fly", code=2)
