"""Every ```python block in README and docs runs unchanged, a page from top to bottom.

Only addresses of servers in examples are replaced, by those of the tests' own servers.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from spark_channel.datax import load_job
from spark_channel.replication.faults import check_replication
from tests import contents, source_map
from tests.servers.mariadb import MariadbServer
from tests.servers.opensearch import opensearch_server
from tests.servers.postgres import PostgresServer

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(
    r"^```(?:text|toml|yaml)\n# (\S+\.(?:py|toml|yml))\n(.*?)^```$", re.MULTILINE | re.DOTALL
)
LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)")
LIGHT = "--conf spark.ui.enabled=false --conf spark.sql.shuffle.partitions=2"
"""Less work for sessions that no example asks to be so."""
SERVERS = "DOCS_SERVERS"
"""The environment variable with the addresses of the tests' servers, as JSON, by those that examples name."""
POSTGRESQL = {
    "postgresql://db.example.com/shop": "shop",
    "postgresql://db.example.com:5432/shop": "shop",
    "postgresql://warehouse.example.com/marts": "marts",
    "postgresql://warehouse.example.com:5432/marts": "marts",
    "postgresql://localhost:5432/postgres": "quickstart",
}
"""Addresses of PostgreSQL in examples, and the databases that they are in a test."""
MYSQL = "mysql://mysql.example.com:3306/shop"
MONGODB = "mongodb://mongo.example.com:27017/shop"
ELASTICSEARCH = "https://search.example.com:9200"


def blocks(page: Path) -> list[tuple[int, str]]:
    """(line, code) of each block."""
    text = page.read_text(encoding="utf-8")
    return [
        (text.count("\n", 0, match.start()) + 2, match.group(1)) for match in BLOCK.finditer(text)
    ]


def needs_spark(page: Path) -> bool:
    return any("spark" in code.replace("spark_channel", "") for _, code in blocks(page))


def run(page: Path) -> None:
    namespace: dict[str, object] = {"__name__": "__main__"}
    for line, shown_code in blocks(page):
        code = shown_code
        for shown_address, address in json.loads(os.environ.get(SERVERS, "{}")).items():
            code = code.replace(shown_address, address)
        # blank lines ahead make tracebacks name the page's own lines
        exec(compile("\n" * (line - 1) + code, str(page), "exec"), namespace)


@pytest.fixture
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder as the current one, with the flights of the demo in it."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(ROOT / "tests" / "data" / "flights.csv", tmp_path / "flights.csv")
    return tmp_path


PLAIN = [page for page in PAGES if blocks(page) and not needs_spark(page)]
WITH_SPARK = [page for page in PAGES if blocks(page) and needs_spark(page)]


@pytest.mark.parametrize("page", PLAIN, ids=lambda page: page.name)
def test_the_examples_of_a_page_run(page: Path, empty_folder: Path) -> None:
    for name, text in FILE.findall(page.read_text(encoding="utf-8")):
        if name.endswith(".yml") and "/" not in name:
            (empty_folder / name).write_text(text)
    run(page)


@pytest.mark.spark
@pytest.mark.newest
@pytest.mark.timeout(900)
def test_the_spark_examples_of_all_pages_run(
    empty_folder: Path, postgres_server: PostgresServer, mariadb_server: MariadbServer
) -> None:
    from tests.servers.ferretdb import ferret_server

    prepare(postgres_server)
    prepare_mysql(mariadb_server)
    with ferret_server() as mongo, opensearch_server() as elastic:
        mongo.put(
            "orders",
            [{"status": status, "customer": n} for n, status in enumerate(["paid", "open"] * 50)],
        )
        elastic.relay.login = "ApiKey secret"
        elastic.put(
            "logs-2024",
            {
                str(n): {
                    "at": datetime(2024, 1, 31, tzinfo=UTC).isoformat(),
                    "level": level,
                    "http": {"status": n},
                }
                for n, level in enumerate(["info", "error"] * 50)
            },
        )
        postgresql = f"postgresql://127.0.0.1:{postgres_server.port}"
        servers = {
            **{shown: f"{postgresql}/{database}" for shown, database in POSTGRESQL.items()},
            MYSQL: mariadb_server.url.replace("/shop", "/docs"),
            MONGODB: mongo.url,
            ELASTICSEARCH: elastic.url,
        }
        secrets = {"SHOP_PASSWORD": "secret", "ELASTIC_API_KEY": "secret"}
        in_a_process(WITH_SPARK, empty_folder, {SERVERS: json.dumps(servers), **secrets})
        assert len(mongo.documents("paid_orders")) == len(elastic.documents("errors")) == 50
    quickstart = (ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8")
    statements = re.findall(r'^psql .* -c "(.*)"$', quickstart, re.MULTILINE)
    assert [each.split()[0] for each in statements] == ["SELECT", "CREATE", "DROP"]
    for statement in statements:  # the last one removes what the page made
        postgres_server.psql(statement, database="quickstart")
    assert (
        postgres_server.psql(
            "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'", database="quickstart"
        )
        == "0"
    )


@pytest.mark.spark  # runs where these servers run for the examples
@pytest.mark.newest
def test_the_statements_for_a_dba_run(
    postgres_server: PostgresServer, mariadb_server: MariadbServer
) -> None:
    dba = (ROOT / "docs" / "dba.md").read_text(encoding="utf-8")
    statements = re.findall(
        r"^```sql\n-- (PostgreSQL|MySQL)(.*?)^```$", dba, re.MULTILINE | re.DOTALL
    )
    assert [system for system, _ in statements] == ["PostgreSQL", "PostgreSQL", "MySQL"]
    postgres_server.psql("CREATE DATABASE dba")
    postgres_server.psql("CREATE SCHEMA shop; CREATE TABLE shop.orders (id bigint)", database="dba")
    for system, text in statements:
        if system == "PostgreSQL":
            postgres_server.psql(f"--{text}", database="dba")
        else:
            mariadb_server.sql(f"DO 0; -- {text}")


def test_the_job_of_the_datax_guide_can_be_read() -> None:
    page = (ROOT / "docs" / "migrate.md").read_text(encoding="utf-8")
    (job,) = re.findall(r"^```json\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert load_job(json.loads(job), {"day": "2026-11-01"}).spec.channels == 3
    names = [
        *re.findall(r"--txn (\w+)$", page, re.MULTILINE),
        *re.findall(r'"txn": "(\w+):', page),
    ]
    assert len(set(names)) == len(names) == 2, (
        "a reader runs both, and the second would write nothing"
    )


def prepare(server: PostgresServer) -> None:
    """The databases, tables and roles that examples name."""
    server.psql(
        "CREATE ROLE etl LOGIN PASSWORD 'secret'; CREATE ROLE postgres SUPERUSER LOGIN PASSWORD 'secret'"
    )
    for database in ("shop", "marts", "quickstart"):
        server.psql(f"CREATE DATABASE {database} OWNER etl")
    server.psql(
        "CREATE TABLE orders (id bigint PRIMARY KEY, customer int, total numeric(10, 2), placed_at timestamptz);"
        "INSERT INTO orders SELECT n, n % 97, n % 1000, timestamptz '2026-10-31' + n * interval '10 minutes'"
        " FROM generate_series(1, 2000) n; GRANT SELECT ON orders TO etl",
        database="shop",
    )
    migrate = (ROOT / "docs" / "migrate.md").read_text(encoding="utf-8")
    (made,) = re.findall(r'^psql .* -c "(CREATE TABLE .*)"$', migrate, re.MULTILINE)
    server.psql(f"{made}; ALTER TABLE orders_of_a_day OWNER TO etl", database="marts")


def prepare_mysql(server: MariadbServer) -> None:
    """What the examples of docs/mysql.md name."""
    server.sql(
        "CREATE DATABASE docs; USE docs;"
        "CREATE USER etl@'127.0.0.1' IDENTIFIED BY 'secret'; GRANT ALL ON docs.* TO etl@'127.0.0.1';"
        "CREATE TABLE orders (id BIGINT PRIMARY KEY, customer INT);"
        "INSERT INTO orders SELECT seq, seq % 97 FROM seq_1_to_2000"
    )


def in_a_process(pages: list[Path], folder: Path, more: dict[str, str]) -> None:
    """Run the pages in their own process: relative paths are those of the folder in which Spark's JVM started."""
    code = "import sys; from tests.test_docs import run_all; run_all(sys.argv[1:])"
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, pages)],
        cwd=folder,
        env={
            **os.environ,
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": str(ROOT),
            "PYSPARK_SUBMIT_ARGS": f"{LIGHT} pyspark-shell",
            **more,
        },
        capture_output=True,
        text=True,
        timeout=890,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]


def run_all(pages: list[str]) -> None:
    for page in pages:
        print(f"--- {page}", flush=True)
        run(Path(page))


LENGTHS = {
    110: ("README", "dba"),
    120: ("compatibility", "protect"),
    160: ("commits", "limits", "replicate", "streams"),
    180: ("embedded", "how-it-works", "operations"),
    190: ("benchmarks",),
    200: ("api", "connectors", "deploy", "files", "lakehouse", "mysql", "postgresql", "tunnel"),
    220: ("guarantees", "migrate"),
    270: ("options", "services", "services-options"),
    280: ("cli",),
    400: ("datax",),
}
"""The most lines of pages that may not have 150."""


@pytest.mark.parametrize(
    "page", [*PAGES, *(ROOT / "docs" / "reference").glob("*.md")], ids=lambda page: page.name
)
def test_a_page_is_not_longer_than_its_readers_bear(page: Path) -> None:
    most = next((lines for lines, names in LENGTHS.items() if page.stem in names), 150)
    lines = source_map.without_table(page.read_text(encoding="utf-8")).splitlines()
    contents_lines = 2 * any(line.startswith(contents.BEGINS) for line in lines)
    assert len(lines) - contents_lines <= most


FOLDED = re.compile(r"<details markdown>.*?</details>", re.DOTALL)
MOST_WORDS = 45_000


def words(page: Path) -> int:
    """The words of a page outside of folded tables, with a letter or a digit."""
    text = FOLDED.sub("", page.read_text(encoding="utf-8"))
    return sum(1 for word in text.split() if re.search(r"\w", word))


def test_the_pages_are_not_more_than_people_read() -> None:
    by_page = {page.name: words(page) for page in {*PAGES, *contents.pages()}}
    assert sum(by_page.values()) <= MOST_WORDS, sorted(by_page.items(), key=lambda each: -each[1])


@pytest.mark.parametrize("page", contents.pages(), ids=lambda page: page.name)
def test_a_long_page_begins_with_its_contents(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert text == contents.with_contents(text), "run: python -m tests.contents"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_to_other_pages_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_code_block_of_a_page_is_closed(page: Path) -> None:
    """One that is not shows the rest of its page as code."""
    fences = re.findall(r"^ *```(.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(fences) % 2 == 0
    assert not any(fences[1::2]), "the end of a block names no language"


FILES = [
    (page, match) for page in PAGES for match in FILE.finditer(page.read_text(encoding="utf-8"))
]


@pytest.mark.parametrize(("page", "match"), FILES, ids=lambda each: getattr(each, "name", None))
def test_a_file_that_a_page_shows_can_be_read(page: Path, match: re.Match[str]) -> None:
    name, text = match.groups()
    if name.endswith(".py"):
        compile(text, f"{page.name}: {name}", "exec")
    elif name.endswith(".toml"):
        tomllib.loads(text)
    else:
        assert yaml.safe_load(text)


@pytest.mark.parametrize("match", [match for page, match in FILES if page.name == "recipes.md"])
def test_a_recipe_is_a_file_without_a_fault(match: re.Match[str], empty_folder: Path) -> None:
    name, text = match.groups()
    (empty_folder / name).write_text(text)
    assert check_replication(empty_folder / name)[0] == []
