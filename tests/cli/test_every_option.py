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
