"""The job of docs/migrate.md runs as it is pasted: the page's JSON, and its commands in their order."""

import json
import os
import re
import shlex
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.cli.typed import typed
from tests.servers.postgres import PostgresServer

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "migrate.md").read_text(encoding="utf-8")
ADDRESSES = ("db.example.com:5432/shop", "warehouse.example.com:5432/marts")


def test_the_datax_job_of_the_page(
    postgres_server: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    login = postgres_server.login
    ((host, database),) = re.findall(r"postgresql://([^/]*)/(\w+)", login["url"])
    job, *_ = re.findall(r"^```json\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    for address in ADDRESSES:
        assert address in job
        job = job.replace(address, f"{host}/{database}")
    job = job.replace('"etl"', json.dumps(login["user"]))
    job = job.replace('"plain text"', json.dumps(login["password"]))
    Path("job.json").write_text(job)
    (made,) = re.findall(r'^psql .* -c "(CREATE TABLE .*)"$', PAGE, re.MULTILINE)
    postgres_server.psql(
        "DROP TABLE IF EXISTS orders, orders_of_a_day;"
        "CREATE TABLE orders (id bigint PRIMARY KEY, customer bigint, total numeric(10, 2), placed_at date);"
        "INSERT INTO orders SELECT n, n % 97, n % 1000, date '2026-10-31' + n % 3 FROM generate_series(1, 900) n;"
        + made
    )
    section = PAGE[PAGE.index("## DataX") : PAGE.index("### ", PAGE.index("## DataX"))]
    commands = re.findall(r"^spark-channel ([^#\n]*)", section, re.MULTILINE)
    assert [each.split()[0] for each in commands] == ["check", "plan", "run", "run"]
    for command in commands:
        done = typed(*shlex.split(command))
        assert done.exit_code == 0, (command, done.output)
    assert postgres_server.psql("SELECT count(*) FROM orders_of_a_day") == "600"
    again = typed(*shlex.split(commands[-1]))
    assert again.exit_code == 0, again.output
    assert postgres_server.psql("SELECT count(*) FROM orders_of_a_day") == "600"
    postgres_server.psql("DROP TABLE orders, orders_of_a_day")


def test_the_replication_of_its_page_goes_from_check_to_end(
    postgres_server: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (ROOT / "docs" / "replicate.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    (file,) = re.findall(r"^```yaml\n(# nightly\.yml\n.*?)^```$", page, re.MULTILINE | re.DOTALL)
    host = f"127.0.0.1:{postgres_server.port}"
    file = re.sub(r"(db|warehouse)\.example\.com:5432", host, file)
    login = postgres_server.login
    Path("nightly.yml").write_text(file.replace("user: etl", f"user: {login['user']}"))
    monkeypatch.setenv("SHOP_PASSWORD", login["password"])
    postgres_server.psql("CREATE DATABASE shop")
    postgres_server.psql("CREATE DATABASE marts")
    postgres_server.psql(
        "CREATE SCHEMA crm; CREATE TABLE crm.users (id int PRIMARY KEY);"
        "CREATE TABLE crm.orders (id int PRIMARY KEY, total int);"
        "INSERT INTO crm.users VALUES (1); INSERT INTO crm.orders VALUES (1, 10), (2, 20)",
        database="shop",
    )
    commands = page[page.index("spark-channel check nightly.yml") :].split("```")[0].splitlines()
    assert [each.split()[1] for each in commands] == [
        *("check", "replicate", "-d", "replicate", "replicate", "verify", "replicate")
    ]
    shown = ""
    try:
        for number, command in enumerate(commands):
            words = shlex.split(command, comments=True)
            if words[0] == "psql":
                assert words[-1] in shown  # as the page says
                postgres_server.psql(words[-1], database="shop")
                continue
            done = typed(*words[1:])
            shown = done.output
            # the dry run finds that the publication is missing
            assert done.exit_code == (3 if number == 1 else 0), (command, done.output)
        rows = postgres_server.psql("SELECT total FROM orders ORDER BY id", database="marts")
        assert rows.split() == ["10", "20"]
        slots = "SELECT count(*) FROM pg_replication_slots WHERE database = 'shop'"
        assert postgres_server.psql(slots) == "0"
    finally:
        for database in ("shop", "marts"):
            postgres_server.psql(f"DROP DATABASE {database} WITH (FORCE)")


def test_the_examples_of_the_pages_read_the_quickstart_s_table() -> None:
    """Their conditions and columns are those of the table that the page makes."""
    quickstart = (ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8")
    made, *_ = re.findall(r"selectExpr\((\"id\", .*?)\)\n", quickstart, re.DOTALL)
    columns = {a or b for a, b in re.findall(r"AS (\w+)\"|\"(\w+)\"", made)}
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for page in (PAGE, readme):
        for where in re.findall(r'"?where"?[=:, (]+"([^"]*)"', page):
            named = set(re.findall(r"([a-z_]+)(?= *(?:>=|<=|[<>=]))", where))
            assert named <= columns, where


def test_each_json_block_is_json() -> None:
    found = 0
    for page in sorted((ROOT / "docs").glob("*.md")):
        text = page.read_text(encoding="utf-8")
        for block in re.findall(r"^```json\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
            json.loads(block)
            found += 1
    assert found


def test_the_first_night(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The script of the page, twice in one night, and on one that its target refuses."""
    page = (ROOT / "docs" / "first-night.md").read_text(encoding="utf-8")
    assert page.count("\n") <= 100
    monkeypatch.chdir(tmp_path)
    made, *_ = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    exec(compile(made, "first-night.md", "exec"), {})
    (script,) = re.findall(r"^```bash\n(# nightly\.sh\n.*?)^```$", page, re.MULTILINE | re.DOTALL)
    Path("nightly.sh").write_text(script)
    path = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}

    def night(day: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "nightly.sh", day], env=path, capture_output=True, text=True, check=False
        )

    def rows() -> tuple[int, int]:
        with closing(sqlite3.connect("marts.db")) as marts:
            (count,) = marts.execute("SELECT count(*) FROM orders").fetchone()
        return count, pq.read_table("lake/orders").num_rows

    first = night("2026-01-01")
    assert first.returncode == 0, first.stderr
    assert rows() == (3_000, 3_000)
    again = night("2026-01-01")
    assert again.returncode == 0, again.stderr
    assert rows() == (3_000, 3_000)
    assert json.loads(Path("marts-2026-01-01.json").read_text())["rows_read"] == 0
    with closing(sqlite3.connect("marts.db")) as marts:
        marts.execute("CREATE UNIQUE INDEX one_total ON orders (total) WHERE day > '2026-01-01'")
    refused = night("2026-01-02")
    assert refused.returncode == 3, refused.stderr
    assert rows() == (3_000, 3_000)
    option = script.replace("' marts", "' marts -o writer.passwort=x")
    assert option != script
    Path("nightly.sh").write_text(option)
    misspelt = night("2026-01-03")
    assert misspelt.returncode == 2, misspelt.stderr
    assert "passwort" in misspelt.stderr
    (check,) = re.findall(r"^spark-channel (verify .*)$", page, re.MULTILINE)
    assert typed(*shlex.split(check)).exit_code == 0
