"""`spark-channel run`, `plan` and `check`, as they are typed."""

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.cli.typed import typed

ROOT = Path(__file__).resolve().parents[2]
CLI = [sys.executable, "-m", "spark_channel.cli"]
MASTER = ("--master", "local[2]", "--conf", "spark.ui.enabled=false")
LOCAL = ("--engine", "local")
ENGINES = pytest.mark.parametrize(
    "engine",
    [
        pytest.param(LOCAL, id="local"),
        pytest.param(
            MASTER, marks=[pytest.mark.spark, pytest.mark.newest, pytest.mark.soak], id="spark"
        ),
    ],
)
"""What the engine passes on only: each run of Spark starts a JVM."""
Engine = tuple[str, ...]


def environment(**more: str) -> dict[str, str]:
    return {
        **os.environ,
        "COLUMNS": "250",
        "PYTHONPATH": str(ROOT),
        "PYSPARK_PYTHON": sys.executable,
        **more,
    }


def run(*arguments: str, code: int = 0, command: list[str] = CLI, **more: str) -> str:
    done = subprocess.run(
        [*command, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
        env=environment(**more),
    )
    out = done.stdout + done.stderr
    assert done.returncode == code, out[-4000:]
    assert "Traceback" not in out, out[-4000:]
    return out


def job(folder: Path, reader: dict[str, Any], writer: dict[str, Any], **setting: Any) -> str:
    path = folder / "job.json"
    content = [{"reader": reader, "writer": writer}]
    path.write_text(json.dumps({"job": {"setting": setting, "content": content}}))
    return str(path)


def made_up(rows: int, value: str = "x") -> dict[str, Any]:
    columns = [{"type": "long", "random": "0,1000000"}, {"type": "string", "value": value}]
    return {"name": "streamreader", "parameter": {"column": columns, "sliceRecordCount": rows}}


def into_sqlite(path: Path, **more: Any) -> dict[str, Any]:
    connection = [{"jdbcUrl": f"jdbc:sqlite:{path}", "table": ["t"]}]
    parameter = {"column": ["id", "name"], "connection": connection, **more}
    return {"name": "sqlite3writer", "parameter": parameter}


def count(path: Path) -> tuple[int, int]:
    with closing(sqlite3.connect(path)) as connection:
        found: tuple[int, int] = connection.execute(
            "SELECT count(*), count(name) FROM t"
        ).fetchone()
        return found


def table(path: Path, definition: str = "id INTEGER, name TEXT") -> Path:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"CREATE TABLE t ({definition})")
    return path


@ENGINES
def test_a_job_runs_and_its_variables_are_put_in(tmp_path: Path, engine: Engine) -> None:
    path = table(tmp_path / "t.db")
    file = job(tmp_path, made_up(5000, "${who}"), into_sqlite(path), speed={"channel": "2"})
    out = run("run", file, *engine, "--verbose", "-p", "-Dwho=ada")
    assert count(path) == (10_000, 10_000)
    assert "copied 10 000 rows" in out
    assert "2 channels" in out


@ENGINES
def test_too_many_dirty_rows_end_with_3_and_are_kept(tmp_path: Path, engine: Engine) -> None:
    path = table(tmp_path / "t.db", "id INTEGER CHECK (id < 0), name TEXT")
    file = job(
        tmp_path, made_up(5000), into_sqlite(path), speed={"channel": 1}, errorLimit={"record": 10}
    )
    out = run("run", file, *engine, "--dirty-rows-path", str(tmp_path / "dirty"), code=3)
    assert "rows were refused, and maxDirtyRows is 10" in out
    assert list((tmp_path / "dirty").glob("*.parquet"))
    assert count(path) == (0, 0)


@ENGINES
def test_refused_rows_are_told_and_a_named_load_is_written_once(
    tmp_path: Path, engine: Engine
) -> None:
    path = table(tmp_path / "t.db", "id INTEGER CHECK (id < 1), name TEXT")
    columns = [{"type": "long", "random": "0,1"}, {"type": "string", "value": "x"}]
    reader = {"name": "streamreader", "parameter": {"column": columns, "sliceRecordCount": 100}}
    file = job(tmp_path, reader, into_sqlite(path), speed={"channel": 1})
    arguments = ("run", file, *engine, "-p", "-Dday=2024-01-31", "--txn", "nightly")
    out = run(*arguments)
    there, _ = count(path)
    assert 0 < there < 100
    assert 'refused row {"id": 1, "name": "x"}: ' in out
    assert f"{100 - there} rows were refused" in out
    out = run(*arguments)
    assert count(path) == (there, there)
    assert "transaction id 'nightly:20240131' was published" in out


@ENGINES
def test_a_job_that_fails_ends_with_1_and_says_why(tmp_path: Path, engine: Engine) -> None:
    file = job(tmp_path, made_up(10), into_sqlite(tmp_path / "no" / "t.db"), speed={"channel": 1})
    assert "/no does not exist; make it" in run("run", file, *engine, code=2)


@pytest.mark.parametrize(
    ("sent", "code", "engine"),
    [
        pytest.param(signal.SIGINT, 130, LOCAL, id="interrupt-local"),
        pytest.param(signal.SIGTERM, 143, LOCAL, id="terminate-local"),
        pytest.param(
            *(signal.SIGINT, 130, MASTER),
            marks=[pytest.mark.spark, pytest.mark.newest],
            id="interrupt-spark",
        ),
        pytest.param(
            *(signal.SIGTERM, 143, MASTER),
            marks=[pytest.mark.spark, pytest.mark.newest, pytest.mark.soak],
            id="terminate-spark",
        ),
    ],
)
def test_an_interrupted_job_ends_with_its_code_and_leaves_nothing(
    tmp_path: Path, sent: signal.Signals, code: int, engine: Engine
) -> None:
    target = tmp_path / "out"
    writer = {
        "name": "txtfilewriter",
        "parameter": {
            "path": str(target),
            "fileName": "x",
            "writeMode": "append",
            "fieldDelimiter": ",",
        },
    }
    file = job(tmp_path, made_up(1_000_000), writer, speed={"channel": 1, "record": 20_000})
    process = subprocess.Popen(
        [*CLI, "run", file, *engine],
        cwd=ROOT,
        stderr=subprocess.STDOUT,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if "limit 20k rows/s" in line:
                break
        process.send_signal(sent)
        out, _ = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == code, out
    assert "failed after" in out
    if sent is signal.SIGINT:
        assert ": interrupted" in out
    assert f"spark-channel: {'interrupted' if sent is signal.SIGINT else 'terminated'}" in out
    assert "Traceback" not in out
    assert list(tmp_path.rglob("*.csv")) == []


@pytest.mark.spark
@pytest.mark.newest
def test_it_runs_under_spark_submit(tmp_path: Path) -> None:
    path = table(tmp_path / "t.db")
    file = job(tmp_path, made_up(100), into_sqlite(path), speed={"channel": 1})
    submit = Path(sys.executable).with_name("spark-submit")
    main = str(ROOT / "spark_channel" / "cli" / "__main__.py")
    out = run("--master", "local[1]", main, "run", file, command=[str(submit)])
    assert "copied 100 rows" in out
    assert count(path) == (100, 100)


def test_a_plan_is_told_and_moves_nothing(tmp_path: Path) -> None:
    path = table(tmp_path / "t.db")
    file = job(tmp_path, made_up(500), into_sqlite(path), speed={"channel": 4, "record": 1000})
    for command in (["plan", file], ["run", file, "--dry-run"]):
        out = run(*command)
        assert re.search(r"about 2k rows, [\d.]+kB, in 20 splits over 4 channels\n", out)
        assert "limit: 1k rows/s; dirty rows: any number" in out
        assert "id int64, name string" in out
    assert count(path) == (0, 0)


def test_a_plan_says_by_what_a_value_of_many_rows_is_divided(tmp_path: Path) -> None:
    source = table(tmp_path / "s.db", "id INTEGER PRIMARY KEY, name TEXT")
    with closing(sqlite3.connect(source)) as connection, connection:
        rows = ((number, "open" if number % 10 else str(number)) for number in range(5_000))
        connection.executemany("INSERT INTO t VALUES (?, ?)", rows)
    connected = [{"jdbcUrl": [f"jdbc:sqlite:{source}"], "table": ["t"]}]
    reader = {"column": ["id", "name"], "connection": connected, "splitPk": "name"}
    target = into_sqlite(table(tmp_path / "t.db"))
    file = job(
        tmp_path, {"name": "sqlite3reader", "parameter": reader}, target, speed={"channel": 2}
    )
    assert re.search(
        r"'name' has the same value, .*: they are \d+ splits by rowid\n", run("plan", file)
    )


def test_each_content_is_planned_when_asked_for(tmp_path: Path) -> None:
    content = {"reader": made_up(5), "writer": {"name": "streamwriter"}}
    path = tmp_path / "two.json"
    path.write_text(
        json.dumps({"job": {"setting": {"speed": {"channel": 1}}, "content": [content, content]}})
    )
    assert "left out: job.content[1]" in run("plan", str(path))
    out = run("plan", str(path), "--all-content")
    assert out.count("in 5 splits over 1 channel") == 2, out


def test_a_job_with_a_spark_format_is_shown_without_secrets() -> None:
    out = run("plan", str(ROOT / "tests" / "datax" / "corpus" / "oracle_to_sqlserver.json"))
    assert "runs as a DataFrame" in out
    assert "password='***'" in out


@pytest.mark.parametrize(
    ("text", "arguments", "why"),
    [
        ('{"job": {"content": [}', [], "line 1, column"),
        ("{}", [], "job"),
        (
            '{"job": {"content": [{"writer": {"name": "streamwriter"}}]}}',
            [],
            r"job.content[0].reader is missing",
        ),
        ('{"job": {"content": [{"reader": {"name": "${r}"}}]}}', [], "${r} is not set"),
        ("JOB channel 0", [], "speed.channel got 0"),
        ("JOB channel -1", [], "speed.channel got -1"),
        ('JOB channel "two"', [], "speed.channel got 'two'"),
        ("JOB record 9223372036854775808", [], "speed.record got 9223372036854775808"),
        ('JOB errorLimit {"record": -1}', [], "errorLimit.record got -1"),
        ('JOB errorLimit {"percentage": 1.1}', [], "errorLimit.percentage got 1.1"),
        ("JOB channel 1", ["--conf", "nonsense"], "option '--conf' got 'nonsense'"),
        ("JOB channel 1", ["-p", "nonsense"], "option '-p' got 'nonsense'"),
    ],
)
def test_bad_input_ends_with_2(tmp_path: Path, text: str, arguments: list[str], why: str) -> None:
    if text.startswith("JOB"):
        _, key, value = text.split(" ", 2)
        setting = (
            {key: json.loads(value)} if key == "errorLimit" else {"speed": {key: json.loads(value)}}
        )
        file = job(tmp_path, made_up(5), {"name": "streamwriter"}, **setting)
    else:
        file = str(tmp_path / "job.json")
        Path(file).write_text(text)
    result = typed("run", file, *arguments)
    assert result.exit_code == 2
    assert why in f"{result.output} {result.exception}"


def test_bad_input_is_told_without_a_traceback(tmp_path: Path) -> None:
    assert "speed.channel got 0" in run(
        "run", job(tmp_path, made_up(5), {"name": "streamwriter"}, speed={"channel": 0}), code=2
    )


def test_a_split_that_does_not_go_1_to_1_names_both_numbers(tmp_path: Path) -> None:
    source = table(tmp_path / "s.db")
    with closing(sqlite3.connect(source)) as connection, connection:
        connection.execute("INSERT INTO t VALUES (1, 'a')")
    reader = {
        "name": "sqlite3reader",
        "parameter": {
            "column": ["id", "name"],
            "connection": [{"jdbcUrl": [f"jdbc:sqlite:{source}"], "table": ["t"]}],
        },
    }
    for name in ("t0", "t1", "t2"):
        with closing(sqlite3.connect(source)) as connection, connection:
            connection.execute(f"CREATE TABLE {name} (id INTEGER, name TEXT)")
    connections = [{"jdbcUrl": f"jdbc:sqlite:{source}", "table": ["t0", "t1", "t2"]}]
    writer = {
        "name": "sqlite3writer",
        "parameter": {"column": ["id", "name"], "connection": connections},
    }
    out = run("plan", job(tmp_path, reader, writer), code=2)
    assert "1 split and 3 writer parts" in out


def test_a_transformer_on_a_column_that_is_not_there_ends_with_2(tmp_path: Path) -> None:
    file = tmp_path / "job.json"
    step = {"name": "dx_pad", "parameter": {"columnIndex": 9, "paras": ["l", "5", "0"]}}
    content = {"reader": made_up(5), "writer": {"name": "streamwriter"}, "transformer": [step]}
    file.write_text(json.dumps({"job": {"content": [content]}}))
    assert "job.content[0].transformer[0] (dx_pad): pad: no column 9" in run(
        "plan", str(file), code=2
    )


def test_jobs_are_checked_a_row_each(tmp_path: Path) -> None:
    good = job(tmp_path, made_up(5), {"name": "streamwriter"}, speed={"channel": 1})
    bad = tmp_path / "bad.json"
    bad.write_text(
        '{"job": {"content": [{"reader": {"name": "otsreader"}, "writer": {"name": "streamwriter"}}]}}'
    )
    oracle = str(ROOT / "tests" / "datax" / "corpus" / "oracle_to_sqlserver.json")
    out = run("check", good, str(bad), oracle, code=2)
    for line in (f"{good}: runs", f"{bad}: refused", f"{oracle}: needs a driver"):
        assert line in out.splitlines()
    assert "Oracle's JDBC driver" in out
    run("check", good)


@pytest.mark.parametrize("commit", ["job", "task"])
def test_a_killed_job_that_is_run_again_adds_no_row_twice(tmp_path: Path, commit: str) -> None:
    source, path = table(tmp_path / "s.db"), table(tmp_path / "t.db")
    with closing(sqlite3.connect(source)) as connection, connection:
        connection.executemany("INSERT INTO t VALUES (?, 'x')", [(n,) for n in range(3000)])
    reader = {
        "name": "sqlite3reader",
        "parameter": {
            "column": ["id", "name"],
            "splitPk": "id",
            "connection": [{"jdbcUrl": [f"jdbc:sqlite:{source}"], "table": ["t"]}],
        },
    }
    slow = job(tmp_path, reader, into_sqlite(path), speed={"channel": 1, "record": 400})
    arguments = ("--txn", "nightly:1", "--commit", commit, "--engine", "local")
    process = subprocess.Popen(
        [*CLI, "run", slow, *arguments],
        cwd=ROOT,
        stderr=subprocess.STDOUT,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if "limit 400 rows/s" in line:
                break
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=3)  # amid the rows: all of them take 7.5 s
    finally:
        process.kill()
        process.communicate()
    fast = job(tmp_path, reader, into_sqlite(path), speed={"channel": 1})
    for _ in range(2):
        run("run", fast, *arguments)
        with closing(sqlite3.connect(path)) as connection:
            assert connection.execute("SELECT count(*), count(DISTINCT id) FROM t").fetchone() == (
                3000,
                3000,
            )
    assert [each.name for each in tmp_path.iterdir() if "stag" in each.name] == []
