"""Options of the commands that other tests do not use, between files of this machine."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pyarrow.orc as po
import pytest
import yaml

from spark_channel.service import SharedLimit
from tests.cli.test_run import run
from tests.cli.typed import into_sqlite, typed, write_job

ROWS = 40


@pytest.fixture
def table(tmp_path: Path) -> str:
    with closing(sqlite3.connect(tmp_path / "s.db")) as db:
        db.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, doc TEXT, name TEXT)")
        db.executemany(
            "INSERT INTO t VALUES (?, ?, ?)", [(n, f'{{"n":{n}}}', f"N{n} ") for n in range(ROWS)]
        )
        db.commit()
    return f"sqlite:{tmp_path}/s.db?dbtable=t"


def test_options_of_copy(table: str, tmp_path: Path) -> None:
    target = f"sqlite:{tmp_path}/t.db?dbtable=t"
    refused = tmp_path / "refused"
    said = run(
        *("copy", table, target, "--bytes-per-second", "10MB"),
        *("--window", "1M", "--timezone", "Europe/Berlin"),
        *("--dirty-rows-path", str(refused), "--engine", "local", "--output", "json"),
    )
    report = json.loads(said[said.index("{") : said.rindex("}") + 1])
    assert str(ROWS) in json.dumps(report)
    with SharedLimit("every-option", "1M"):
        run("copy", table, target, "--mode", "overwrite", "--shared-limit", "every-option")
    with closing(sqlite3.connect(tmp_path / "t.db")) as db:
        assert db.execute("SELECT count(*) FROM t").fetchone() == (ROWS,)


def test_options_of_verify(table: str, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "t.db")) as db:
        db.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, doc TEXT, name TEXT)")
        db.executemany(
            "INSERT INTO t VALUES (?, ?, ?)",
            [(n, f'{{ "n": {n} }}', f"N{n} ") for n in range(ROWS)],
        )
        db.commit()
    ends = ("--source", table, "--target", f"sqlite:{tmp_path}/t.db?dbtable=t", "--key", "id")
    run("verify", *ends, "--channels", "2", code=3)
    run(
        *("verify", *ends, "--json", "doc", "--engine", "local", "--channels", "2"),
        *("--rows-per-second", "1M", "--bytes-per-second", "100MB", "--protect", "off"),
    )
    with SharedLimit("every-option", "1M"):
        run("verify", *ends, "--json", "doc", "--shared-limit", "every-option")


def test_options_of_replicate(table: str, tmp_path: Path) -> None:
    file = tmp_path / "all.yml"
    file.write_text(
        yaml.safe_dump(
            {
                "source": {"url": f"sqlite:{tmp_path}/s.db"},
                "target": {"url": f"sqlite:{tmp_path}/t.db"},
                "streams": {"t": {"mode": "incremental", "update_key": "id"}},
            }
        )
    )
    with SharedLimit("every-option", "1M"):
        run("replicate", str(file), "--engine", "local", "--shared-limit", "every-option")
    with closing(sqlite3.connect(tmp_path / "s.db")) as db:
        db.execute("DELETE FROM t WHERE id = 0")
        db.commit()
    run("replicate", str(file), "--once")
    with closing(sqlite3.connect(tmp_path / "t.db")) as db:
        assert db.execute("SELECT count(*) FROM t").fetchone() == (ROWS,)
        run("replicate", str(file), "--full-refresh", "--once")
        assert db.execute("SELECT count(*) FROM t").fetchone() == (ROWS - 1,)


def test_stripes_have_the_size_that_was_asked_for(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "s.db")) as db:
        db.execute("CREATE TABLE t (v TEXT)")
        db.executemany("INSERT INTO t VALUES (hex(randomblob(500)))", [()] * 12_000)
        db.commit()
    source = f"sqlite:{tmp_path}/s.db?dbtable=t"
    run("copy", source, f"orc:{tmp_path}/o?stripeBytes=200kB", "--channels", "1")
    files = (tmp_path / "o").glob("*.orc")
    assert max(po.ORCFile(each).nstripes for each in files) > 1


def test_options_of_one_end_or_in_the_other_form_of_text(tmp_path: Path) -> None:
    for name, text in (("s", "caf\u00e9"), ("t", "cafe\u0301")):
        with closing(sqlite3.connect(tmp_path / f"{name}.db")) as db:
            db.execute("CREATE TABLE names (id INTEGER PRIMARY KEY, name TEXT)")
            db.execute("INSERT INTO names VALUES (1, ?)", (text,))
            db.commit()
    ends = ("--source", f"sqlite:{tmp_path}/s.db", "--target", f"sqlite:{tmp_path}/t.db")
    tables = ("-o", "reader.dbtable=names", "-o", "writer.dbtable=names")
    assert typed("verify", *ends, *tables, "--confirm", "0").exit_code == 3
    same = typed("verify", *ends, *tables, "--text", "nfc", "--confirm", "0")
    assert (same.exit_code, "rows: 1 equal" in same.stdout) == (0, True)


@pytest.mark.parametrize("command", ["verify", "replicate"])
@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--conf", "spark.ui.enabled=false"), "--conf spark.ui.enabled is a setting of Spark"),
        (("--conf", "nonsense"), "it takes a setting of Spark as name=value"),
        (("--master", "local[2]"), "--master local[2] names a Spark"),
    ],
)
def test_options_of_spark_ask_for_spark(
    table: str, tmp_path: Path, command: str, given: tuple[str, str], said: str
) -> None:
    file = tmp_path / "all.yml"
    file.write_text(
        yaml.safe_dump(
            {
                "source": {"url": f"sqlite:{tmp_path}/s.db"},
                "target": {"url": f"sqlite:{tmp_path}/t.db"},
                "streams": {"t": {"mode": "full"}},
            }
        )
    )
    places = [str(file)] if command == "replicate" else ["--source", table, "--target", table]
    refused = typed(command, *places, "--engine", "local", *given)
    assert refused.exit_code == 2
    assert said in str(refused.exception)
    assert not (tmp_path / "t.db").exists()


def test_a_demo_with_another_limit_reads_it_before_spark_starts(tmp_path: Path) -> None:
    refused = typed("demo", "--rows-per-second", "fast", "--directory", str(tmp_path / "new"))
    assert refused.exit_code == 2
    assert "option '--rows-per-second' got 'fast'" in str(refused.exception)
    assert not (tmp_path / "new").exists()


def test_options_of_jobs_in_files(table: str, tmp_path: Path) -> None:
    reader = {
        "name": "sqlite3reader",
        "parameter": {
            "column": ["id", "name"],
            "connection": [{"jdbcUrl": [f"jdbc:sqlite:{tmp_path}/s.db"], "table": ["${table}"]}],
        },
    }
    writer = into_sqlite(tmp_path / "t.db", preSql=["DELETE FROM t"])
    job = write_job(tmp_path / "jobs" / "job.json", reader, writer)
    with closing(sqlite3.connect(tmp_path / "t.db")) as db:
        db.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, name TEXT)")
        db.commit()
    given = ("-p", "-Dtable=t")
    planned = typed("plan", job, *given)
    assert (planned.exit_code, f"{tmp_path}/s.db t" in planned.stdout) == (0, True), planned.stdout
    assert typed("plan", job).exit_code == 2, "the job has no value for its table"
    converted = typed("convert", job, *given)
    assert converted.exit_code == 0, converted.output
    assert list(yaml.safe_load(converted.stdout)["streams"]) == ["t"]
    report = tmp_path / "report.json"
    limit = ("--bytes-per-second", "7MB", "--report", str(report))
    done = typed("run", job, *given, "--engine", "local", *limit)
    assert done.exit_code == 0, done.output
    (ran,) = json.loads(report.read_text())["jobs"]
    assert "'bytes_per_second_limit': 7000000" in str(ran)
