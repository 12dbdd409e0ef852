"""Jobs between columns of different types, on real servers; and the table of docs/datax.md, which is made here."""

import os
import re
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_channel.errors import ChannelError
from tests.connectors.sql.mysql.conftest import Shop
from tests.jobs.moved import move
from tests.jobs.test_as_datax import reads, writes
from tests.servers.mariadb import MariadbServer

PAGE = Path(__file__).resolve().parents[2] / "docs" / "datax.md"
TYPES = {
    "TINYINT": "7", "INT": "7", "BIGINT": "7", "DOUBLE": "7.5", "DECIMAL(12,2)": "7.50", "VARCHAR(40)": "'7'",
    "DATETIME": "'2024-01-31 10:00:05'", "DATE": "'2024-01-31'", "TIME": "'10:00:05'", "BLOB": "'7'",
}  # fmt: skip
OF_TEXT = {"DATETIME": "'2024-01-31 10:00:05'", "DATE": "'2024-01-31'", "TIME": "'10:00:05'"}
WHOLE = ("TINYINT", "INT", "BIGINT")


@pytest.fixture
def shop(mariadb_server: MariadbServer) -> Iterator[Shop]:
    database = f"shop_{uuid.uuid4().hex[:12]}"
    mariadb_server.sql(f"CREATE DATABASE {database} CHARACTER SET utf8mb4")
    yield Shop(mariadb_server, database)
    mariadb_server.sql(f"DROP DATABASE {database}")


def job(shop: Shop, make_job: Any) -> dict[str, Any]:
    made: dict[str, Any] = make_job("mysqlreader", reads(shop), "mysqlwriter", writes(shop))
    return made


def test_the_good_rows_of_another_type_arrive_and_the_others_are_refused(shop: Shop, make_job: Any) -> None:
    shop.server.sql(
        f"USE {shop.database}; CREATE TABLE t (id INT, n VARCHAR(20), d VARCHAR(20), w BIGINT, m DATETIME(6)); "
        "INSERT INTO t VALUES (1, '12.0', '2024-01-31', 5, '2024-01-31 10:00:05.5'), "
        "(2, 'x', '2024-01-31', 5, NULL), (3, '', 'never', 5, NULL), (4, '1e3', NULL, 300, NULL); "
        "CREATE TABLE u (id BIGINT, n INT, d DATE, w TINYINT, m VARCHAR(30))"
    )
    refused = move(job(shop, make_job))
    found = shop.server.sql(f"SELECT id, n, d, w, m FROM {shop.database}.u ORDER BY id")
    assert found.split("\t") == ["1", "12", "2024-01-31", "5", "2024-01-31 10:00:05"]
    told = {each.rows.to_pylist()[0]["id"]: each.reason for each in refused}
    assert {number: re.findall(r"'(\w)'", why)[0] for number, why in told.items()} == {2: "n", 3: "d", 4: "w"}


def test_columns_of_the_same_type_have_no_step(shop: Shop, make_job: Any) -> None:
    from contextlib import ExitStack

    from spark_channel.jobs import load_job
    from spark_channel.transfers.options import job_options
    from spark_channel.transfers.plan import open_transfer

    shop.server.sql(
        f"USE {shop.database}; CREATE TABLE t (id INT, n VARCHAR(20), m DATETIME(6), b TINYINT(1)); "
        "CREATE TABLE u LIKE t"
    )
    with ExitStack() as held:
        opened = open_transfer(job_options(load_job(job(shop, make_job)).spec, {}), 1, held)
    assert opened.sources[0].pipeline.steps == ()


def sample(given: str, kind: str) -> str:
    """A value that both types have, where there is one."""
    if given == "VARCHAR(40)":
        return OF_TEXT.get(kind, TYPES[given])
    return "7" if given in ("DOUBLE", "DECIMAL(12,2)") and kind in WHOLE else TYPES[given]


def pair(shop: Shop, make_job: Any, given: str, kind: str) -> str:
    shop.server.sql(
        f"USE {shop.database}; DROP TABLE IF EXISTS t, u; CREATE TABLE t (a {given}); "
        f"INSERT INTO t VALUES ({sample(given, kind)}); CREATE TABLE u (a {kind})"
    )
    try:
        refused = move(job(shop, make_job), name=f"{given} {kind}")
    except ChannelError:
        return "refused"
    assert refused == [], f"{given} to {kind}: {refused}"
    return shop.server.sql(f"SELECT a FROM {shop.database}.u")


def test_the_table_of_type_pairs_is_what_a_run_gives(shop: Shop, make_job: Any) -> None:
    """SPARK_CHANNEL_WRITE_DOCS=1 writes it into the page."""
    lines = [f"| from, to | {' | '.join(TYPES)} |", "|---" * (len(TYPES) + 1) + "|"]
    for given in TYPES:
        cells = [pair(shop, make_job, given, kind) for kind in TYPES]
        lines.append(f"| {given} | {' | '.join(cells)} |")
    made = "\n".join(lines)
    text = PAGE.read_text()
    found = re.search(r"<!-- type pairs -->\n(.*?)\n<!-- end -->", text, re.DOTALL)
    assert found is not None
    if os.environ.get("SPARK_CHANNEL_WRITE_DOCS"):
        PAGE.write_text(text[: found.start(1)] + made + text[found.end(1) :])
    else:
        assert found[1] == made
