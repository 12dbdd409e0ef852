"""A run with `schema: full` is killed at a random moment, also while it builds indexes; the next one ends equal."""

import json
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.behaviour.schemas.test_schemas import dumped
from tests.cli.test_run import CLI
from tests.servers.postgres import PostgresServer

ROWS = 60_000
SMALL = "".join(
    f"CREATE TABLE small{n} (id serial PRIMARY KEY, v int NOT NULL CHECK (v > 0), note text UNIQUE);"
    f"CREATE INDEX ON small{n} (v DESC); INSERT INTO small{n} (v, note) SELECT g, g FROM generate_series(1, 500) g;"
    for n in range(12)
)
"""Copied in groups."""
SOURCE = f"""
CREATE SCHEMA shop; SET search_path = shop;
CREATE TABLE people (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text UNIQUE,
  boss bigint REFERENCES people);
CREATE TABLE orders (id bigserial PRIMARY KEY, person bigint NOT NULL REFERENCES people,
  amount numeric(12,2), note text);
CREATE INDEX ON orders (person, amount DESC);
CREATE INDEX ON orders (lower(note));
CREATE UNIQUE INDEX ON orders (note, id) WHERE amount > 5;
INSERT INTO people (name) SELECT 'p' || g FROM generate_series(1, {ROWS // 6}) g;
INSERT INTO orders (person, amount, note)
  SELECT 1 + g % {ROWS // 6}, g, md5(g::text) FROM generate_series(1, {ROWS}) g;
{SMALL}
ANALYZE;
"""
_STATE = """
SELECT (SELECT count(*) || ' ' || sum(id) FROM shop.orders), (SELECT count(*) || ' ' || sum(id) FROM shop.people),
  (SELECT count(*) FROM pg_index WHERE NOT indisvalid), {}
""".format(", ".join(f"(SELECT count(*) || ' ' || sum(v) FROM shop.small{n})" for n in range(12)))


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    made = PostgresServer.create()
    made.psql("CREATE DATABASE from_here")
    made.psql(SOURCE, database="from_here")
    yield made
    made.close()


def begun(server: PostgresServer, folder: Path) -> list[str]:
    """An empty target, and the command that fills it."""
    server.psql("DROP DATABASE IF EXISTS into_here WITH (FORCE)")
    server.psql("CREATE DATABASE into_here")
    server.psql("CREATE SCHEMA shop", database="into_here")
    file = folder / "shop.yml"
    content = {
        "source": login(server, "from_here"),
        "target": login(server, "into_here"),
        "defaults": {"schema": "full", "object": "{table}"},
        "streams": {"shop.*": {}},
    }
    file.write_text(json.dumps(content))  # which is YAML, too
    return [*CLI, "replicate", str(file)]


@pytest.fixture(scope="module")
def longest(server: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> float:
    """How many seconds a run takes that nothing kills."""
    command, began = begun(server, tmp_path_factory.mktemp("whole")), time.monotonic()
    subprocess.run(command, check=True, capture_output=True)
    return time.monotonic() - began


def login(server: PostgresServer, database: str) -> dict[str, Any]:
    place = server.url.rpartition("/")[0]
    return {**server.login, "url": f"{place}/{database}", "currentSchema": "shop"}


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(50))
def test_a_killed_run_is_made_good_by_the_next_one(
    server: PostgresServer, longest: float, tmp_path: Path, seed: int
) -> None:
    command = begun(server, tmp_path)
    run = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        run.wait(random.Random(seed).uniform(0.1 * longest, longest))
    except subprocess.TimeoutExpired:
        run.send_signal(signal.SIGKILL)
        run.wait()
    subprocess.run(command, check=True, capture_output=True)
    assert server.psql(_STATE, database="into_here") == server.psql(_STATE, database="from_here")
    assert dumped(server, "into_here") == dumped(server, "from_here")
    staged = (
        "SELECT count(*) FROM pg_class WHERE relname LIKE 'spark_channel_stage%' AND relkind = 'r'"
    )
    assert server.psql(staged, database="into_here") == "0"
