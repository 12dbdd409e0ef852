"""Jobs between columns of different types, on real servers; and the table of docs/datax.md, which is made here."""

import os
import re
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from spark_channel.errors import ChannelError
from tests.behaviour.datax.test_as_datax import reads, writes
from tests.connectors.mysql.shop import Shop
from tests.datax.moved import move
from tests.servers.mariadb import MariadbServer

PAGE = Path(__file__).resolve().parents[3] / "docs" / "datax.md"
TYPES = {
    "TINYINT": "7",
    "INT": "7",
    "BIGINT": "7",
    "DOUBLE": "7.5",
    "DECIMAL(12,2)": "7.50",
    "VARCHAR(40)": "'7'",
    "DATETIME": "'2024-01-31 10:00:05'",
    "TIMESTAMP": "'2024-01-31 10:00:05'",
    "DATE": "'2024-01-31'",
    "TIME": "'10:00:05'",
    "BLOB": "'7'",
}
OF_TEXT = {
    "TIMESTAMP": "'2024-01-31 10:00:05'",
    "DATETIME": "'2024-01-31 10:00:05'",
    "DATE": "'2024-01-31'",
    "TIME": "'10:00:05'",
}
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


def test_the_good_rows_of_another_type_arrive_and_the_others_are_refused(
    shop: Shop, make_job: Any
) -> None:
    shop.server.sql(
        f"USE {shop.database}; CREATE TABLE t (id INT, n VARCHAR(20), d VARCHAR(20), w BIGINT, m DATETIME(6)); "
        "INSERT INTO t VALUES (1, '12.0', '2024-01-31', 5, '2024-01-31 10:00:05.5'), "
        "(2, 'x', '2024-01-31', 5, NULL), (3, '', 'never', 5, NULL), (4, '1e3', NULL, 300, NULL); "
        "CREATE TABLE u (id BIGINT, n INT, d DATE, w TINYINT, m VARCHAR(30))"
    )
    refused = move(job(shop, make_job))
    found = shop.server.sql(f"SELECT id, n, d, w, m FROM {shop.database}.u ORDER BY id")
    assert found.split("\t") == ["1", "12", "2024-01-31", "5", "2024-01-31 10:00:05"]
    reasons = {each.rows.to_pylist()[0]["id"]: each.reason for each in refused}
    assert {number: re.findall(r"'(\w)'", why)[0] for number, why in reasons.items()} == {
        2: "n",
        3: "d",
        4: "w",
    }


def test_instants_and_local_times_are_copied_by_the_clock_of_the_sessions(
    shop: Shop, make_job: Any
) -> None:
    """The target's session is in another zone, as with two servers."""
    shop.server.sql(
        f"USE {shop.database}; SET time_zone = '+00:00'; "
        "CREATE TABLE t (id INT, a TIMESTAMP NULL, b DATETIME, c TIMESTAMP NULL, d TIMESTAMP NULL, e VARCHAR(30)); "
        "INSERT INTO t VALUES (1, '2024-01-31 10:00:05', '2024-01-31 10:00:05', '2024-01-31 10:00:05', "
        "'2024-01-31 10:00:05', '2024-01-31 10:00:05'), (2, NULL, NULL, NULL, NULL, NULL); "
        "CREATE TABLE u (id INT, a DATETIME, b TIMESTAMP NULL, c VARCHAR(30), d DATE, e TIMESTAMP NULL)"
    )
    made = make_job(
        "mysqlreader",
        reads(shop, session=["set time_zone = '+02:00'"]),
        "mysqlwriter",
        writes(shop, session=["set time_zone = '-03:00'"]),
    )
    assert move(made) == []
    shown = shop.server.sql(
        f"USE {shop.database}; SET time_zone = '-03:00'; SELECT a, b, c, d, e FROM u WHERE id = 1"
    )
    read_at, local = "2024-01-31 12:00:05", "2024-01-31 10:00:05"
    assert shown.split("\t") == [read_at, local, read_at, "2024-01-31", local]
    assert (
        shop.server.sql(f"SELECT COUNT(*) FROM {shop.database}.u WHERE a IS NULL AND b IS NULL")
        == "1"
    )


def test_fractions_of_a_second_that_a_column_cannot_hold_are_no_refusal(
    shop: Shop, make_job: Any
) -> None:
    shop.server.sql(
        f"USE {shop.database}; CREATE TABLE t (a DATETIME(6), b TIME(6), c VARCHAR(9)); "
        "INSERT INTO t VALUES ('2024-01-31 10:00:05.25', '10:00:05.25', 'x '); "
        "CREATE TABLE u (a DATETIME, b TIME, c CHAR(9))"
    )
    assert move(job(shop, make_job)) == []
    shown = shop.server.sql(f"SELECT a, b, CONCAT(c, '|') FROM {shop.database}.u")
    assert shown.split("\t") == ["2024-01-31 10:00:05", "10:00:05", "x|"]


def test_columns_of_the_same_type_have_no_step(shop: Shop, make_job: Any) -> None:
    from contextlib import ExitStack

    from spark_channel.datax import load_job
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
    if given == "BIGINT" and kind in OF_TEXT:
        return "1706695205000"  # 10:00:05 UTC
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


def alike(values: Mapping[str, tuple[str, ...]]) -> list[list[str]]:
    """The names with the same values, together."""
    names: dict[tuple[str, ...], list[str]] = {}
    for name, each in values.items():
        names.setdefault(each, []).append(name)
    return list(names.values())


def test_the_table_of_type_pairs_is_what_a_run_gives(
    shop: Shop, make_job: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SPARK_CHANNEL_WRITE_DOCS=1 writes it into the page."""
    monkeypatch.setenv("TZ", "UTC")
    cells = {(given, kind): pair(shop, make_job, given, kind) for given in TYPES for kind in TYPES}
    columns = alike({kind: tuple(cells[given, kind] for given in TYPES) for kind in TYPES})
    rows = alike({given: tuple(cells[given, kinds[0]] for kinds in columns) for given in TYPES})
    heads = ["from, to", *map(", ".join, columns)]
    lines = [heads]
    lines += [
        [", ".join(given), *(cells[given[0], kinds[0]] for kinds in columns)] for given in rows
    ]
    head, *body = (f"| {' | '.join(line)} |" for line in lines)
    made = "\n".join([head, "|---" * len(heads) + "|", *body])
    text = PAGE.read_text()
    found = re.search(r"<!-- type pairs -->\n(.*?)\n<!-- end -->", text, re.DOTALL)
    assert found is not None
    if os.environ.get("SPARK_CHANNEL_WRITE_DOCS"):
        PAGE.write_text(text[: found.start(1)] + made + text[found.end(1) :])
    else:
        assert found[1] == made


@pytest.mark.parametrize("kind", ["sqlite", "duckdb"])
def test_values_are_converted_into_database_files(make_job: Any, tmp_path: Path, kind: str) -> None:
    target, source = tmp_path / f"u.{kind}", tmp_path / "in.txt"
    source.write_text("1,12.0,2024-01-31 10:00:05,1.005\n2,x,2024-01-31,1\n3,,,\n")
    create = "CREATE TABLE u (id BIGINT, n INTEGER, m TIMESTAMP, d DECIMAL(9,2))"
    _sql(kind, target, create)
    read = {"path": str(source), "column": ["*"], "csvReaderConfig": {"trimWhitespace": False}}
    write = {
        "column": ["id", "n", "m", "d"],
        "connection": [{"jdbcUrl": f"jdbc:{kind}:{target}", "table": ["u"]}],
    }
    setting = {"errorLimit": {"record": 0}}
    refused = move(make_job("txtfilereader", read, "rdbmswriter", write, setting=setting))
    assert [(each.rows.num_rows, re.findall(r"'(\w)'", each.reason)) for each in refused] == [
        (1, ["n"])
    ]
    assert _sql(
        kind,
        target,
        "SELECT id, n, substr(CAST(m AS VARCHAR), 1, 19), d IS NULL FROM u ORDER BY id",
    ) == [
        (1, 12, "2024-01-31 10:00:05", False),
        (3, None, None, True),
    ]


def _sql(kind: str, path: Path, statement: str) -> list[tuple[Any, ...]]:
    if kind == "sqlite":
        import sqlite3

        connection: Any = sqlite3.connect(path)
    else:
        import duckdb

        connection = duckdb.connect(str(path))
    try:
        found: list[tuple[Any, ...]] = connection.execute(statement).fetchall()
        if kind == "sqlite":
            connection.commit()
        return found
    finally:
        connection.close()
