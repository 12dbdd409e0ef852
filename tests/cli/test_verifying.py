"""Several tables: those of a replication file, and the entries of a job."""

import json
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import spark_channel
from tests.cli.test_run import CLI, environment
from tests.cli.typed import typed

FILE = """
source: {{url: "sqlite:{0}/shop.db"}}
target: {{url: "sqlite:{0}/marts.db"}}
defaults:
  object: "shop_{{table}}"
  columns: {{"*.email": "hmac(${{env:PII_KEY}})", "*.phone": drop, "*.born": "null"}}
  load_columns: true
streams:
  "*":
  orders: {{mode: incremental, update_key: id}}
limit: {{rows_per_second: 1M}}
"""


def change(path: Path, script: str) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.executescript(script)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PII_KEY", "0123456789abcdef0123456789abcdef")
    change(
        tmp_path / "shop.db",
        """CREATE TABLE users (id INTEGER PRIMARY KEY, email TEXT, phone TEXT, born DATE);
        INSERT INTO users VALUES (1, 'ann@example.com', '1', '2000-01-01'), (2, 'bob', NULL, NULL);
        CREATE TABLE orders (id INTEGER PRIMARY KEY, user_id INTEGER);
        INSERT INTO orders VALUES (1, 1), (2, 1);
        CREATE TABLE things (id INTEGER)""",
    )
    made = tmp_path / "shop.yml"
    made.write_text(FILE.format(tmp_path))
    spark_channel.replicate(None, str(made))
    return made


def test_the_tables_of_a_replication_file_are_equal_behind_its_masks(file: Path) -> None:
    done = typed("verify", str(file), "--output", "json")
    assert done.exit_code == 0, done.output
    found = {each["name"]: each["report"] for each in json.loads(done.stdout)["tables"]}
    assert {name: each["equal"] for name, each in found.items()} == {
        "users -> shop_users": 2,
        "orders -> shop_orders": 2,
        "things -> shop_things": 0,
    }
    users = found["users -> shop_users"]
    assert users["key"] == ["id"]
    assert users["notes"][:2] == [
        "masked columns are compared by the mask's output: email (hmac), born (null)",
        "columns that the file leaves out are not compared: phone",
    ]
    assert "mode incremental" in found["orders -> shop_orders"]["notes"][0]


def test_equal_tables_are_a_line_each(file: Path) -> None:
    done = subprocess.run(
        [*CLI, "verify", str(file)],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment(),
        check=True,
    )
    *tables, last = done.stdout.splitlines()
    names = ("orders -> shop_orders", "things -> shop_things", "users -> shop_users")
    assert tuple(sorted(each.split(":")[0] for each in tables)) == names
    assert last == "3 tables: 3 equal"
    # the progress of a run of many seconds, and nothing of single tables
    assert all(" tables done, " in line for line in done.stderr.splitlines())


def test_one_table_that_cannot_be_compared_does_not_end_the_others(
    file: Path, tmp_path: Path
) -> None:
    change(
        tmp_path / "marts.db",
        "UPDATE shop_users SET email = 'x' WHERE id = 2; DROP TABLE shop_things",
    )
    report = tmp_path / "r.parquet"
    done = typed("verify", str(file), "--confirm", "0", "--report", str(report))
    assert done.exit_code == 3
    assert "the target has no table shop_things: replicate it first" in done.stdout
    assert done.stdout.rstrip().endswith("3 tables: 1 equal, 1 different, 1 not known")
    (row,) = pq.read_table(report).to_pylist()
    assert (row["table"], row["columns"]) == ("users -> shop_users", ["email"])
    assert "bob" not in row["source"]
    assert typed("verify", str(file), "--select", "things").exit_code == 1
    assert typed("verify", str(file), "--select", "orders").exit_code == 0


def test_a_table_that_cannot_be_repaired_is_compared_and_says_why(
    file: Path, tmp_path: Path
) -> None:
    arguments = ("verify", str(file), "--confirm", "0", "--repair", "--select", "things")
    assert typed(*arguments).exit_code == 0
    change(tmp_path / "shop.db", "INSERT INTO things VALUES (1)")
    done = typed(*arguments)
    assert done.exit_code == 3, done.output
    said = " ".join(done.stdout.split())
    assert "nothing was repaired: " in said
    assert (
        "Name columns that identify each row with '--key' (for a table of a replication file"
        in said
    )
    assert " 1 table: 1 different" in said


def test_a_masked_table_is_repaired_with_masked_values(file: Path, tmp_path: Path) -> None:
    change(
        tmp_path / "marts.db",
        "CREATE UNIQUE INDEX own ON shop_users (id); UPDATE shop_users SET email = 'x' WHERE id = 2",
    )
    repaired = typed("verify", str(file), "--confirm", "0", "--repair", "--select", "users")
    assert repaired.exit_code == 0, repaired.output
    with closing(sqlite3.connect(tmp_path / "marts.db")) as db:
        assert all(len(email) == 64 for (email,) in db.execute("SELECT email FROM shop_users"))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--key", "id"], "option '--key' is for one table"),
        (["--where", "id > 1"], "a replication file says itself what it reads"),
        (["--source", "a.db?dbtable=t"], "a replication file names both sides"),
        (["--select", "nope"], "--select nope matches no table"),
    ],
)
def test_options_of_one_table_are_refused_beside_a_file(
    file: Path, more: list[str], message: str
) -> None:
    done = typed("verify", str(file), *more)
    assert done.exit_code == 2
    assert message in str(done.exception)


def test_each_entry_of_a_job_is_compared(file: Path, tmp_path: Path) -> None:
    def end(half: str, database: str, table: str) -> dict[str, object]:
        url = f"jdbc:sqlite:{tmp_path / database}"
        connection = {"jdbcUrl": [url] if half == "reader" else url, "table": [table]}
        return {
            "name": f"sqlite3{half}",
            "parameter": {"column": ["id", "user_id"], "connection": [connection]},
        }

    change(tmp_path / "marts.db", "CREATE TABLE other AS SELECT * FROM shop_orders")
    content = [
        {"reader": end("reader", "shop.db", "orders"), "writer": end("writer", "marts.db", name)}
        for name in ("shop_orders", "nothing", "other")
    ]
    job = tmp_path / "job.json"
    job.write_text(json.dumps({"job": {"setting": {}, "content": content}}))
    done = typed("verify", str(job), "--output", "json")
    found = json.loads(done.stdout)
    assert done.exit_code == 1
    assert [each["outcome"] for each in found["tables"]] == ["equal", "unknown", "equal"]
    assert "nothing" in found["tables"][1]["why"]
    assert "option '--select' names tables" in str(
        typed("verify", str(job), "--select", "a").exception
    )
