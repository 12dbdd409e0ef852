"""Each type of MariaDB and PostgreSQL into a text file, the same type, a text column and types of the other system.

matrix.json has a line for each job, with what DataX wrote (commit 60ea07b, OpenJDK 8u504, TZ=Asia/Shanghai). `here` is
there where other rows are written here, and `why` says why.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pymysql
import pytest

from tests.cli.typed import typed
from tests.servers.mariadb import MariadbServer
from tests.servers.postgres import PostgresServer

JOBS: list[dict[str, Any]] = json.loads(Path(__file__).with_name("matrix.json").read_text("utf-8"))
WHY = {
    "null": "NULL of a boolean, a bit or a year is NULL; DataX writes false or 0",
    "bits": "a bit string keeps its digits; DataX writes true or false",
    "fraction": "fractions of seconds are kept",
    "instant": "an instant stays one; DataX writes the machine's time into a session with another zone",
    "bytes": "bytes that are not UTF-8 are a dirty row; DataX writes U+FFFD",
    "zone": "a time of day with its zone goes between databases as a text",
    "fails": "DataX ends with an error, or refuses the row",
}
Ask = Callable[..., list[list[Any]]]


@pytest.fixture(scope="module")
def ask(mariadb_server: MariadbServer, postgres_server: PostgresServer) -> Any:
    server = mariadb_server
    login = {"host": "127.0.0.1", "port": server.port, "user": server.user}
    link = pymysql.connect(
        **login,
        password=server.password,
        database="shop",
        autocommit=True,
        charset="utf8mb4",
        conv={},
    )
    with (
        link,
        psycopg.connect(
            host="127.0.0.1",
            port=postgres_server.port,
            user=postgres_server.user,
            password=postgres_server.password,
            dbname="postgres",
            autocommit=True,
            prepare_threshold=None,  # a table of one name has other types in each job
        ) as other,
    ):
        cursor = link.cursor()
        cursor.execute("SET time_zone = '+08:00'")
        other.execute("SET timezone = 'Asia/Shanghai'")

        def run(kind: str, *statements: str) -> list[list[Any]]:
            rows: Any = []
            for text in statements:
                if kind == "mysql":
                    cursor.execute(text)
                    rows = cursor.fetchall()
                else:
                    done = other.execute(text)
                    rows = done.fetchall() if done.description else []
            shown = _plain if kind == "mysql" else lambda value: value
            return [[shown(value) for value in row] for row in rows]

        yield run


def _plain(value: Any) -> Any:
    return value.decode("utf8", "replace") if isinstance(value, bytes) else value


def _ends(
    job: dict[str, Any], folder: Path, mariadb: MariadbServer, postgres: PostgresServer
) -> tuple[dict[str, Any], dict[str, Any]]:
    urls: dict[str, tuple[MariadbServer | PostgresServer, str]] = {
        "mysql": (mariadb, f"jdbc:mysql://127.0.0.1:{mariadb.port}/shop"),
        "postgresql": (postgres, f"jdbc:postgresql://127.0.0.1:{postgres.port}/postgres"),
    }

    def half(kind: str, name: str, table: str) -> dict[str, Any]:
        server, url = urls[kind]
        connection = [{"jdbcUrl": [url] if name == "reader" else url, "table": [table]}]
        parameter = {"username": server.user, "password": server.password, "column": ["id", "v"]}
        return {"name": kind + name, "parameter": {**parameter, "connection": connection}}

    if job["to"][0] == "file":
        out = {"path": str(folder / "out"), "fileName": "o", "writeMode": "truncate"}
        writer = {"name": "txtfilewriter", "parameter": {**out, "fieldDelimiter": "|"}}
    else:
        writer = half(job["to"][0], "writer", "datax_t")
    return half(job["from"][0], "reader", "datax_s"), writer


def result(
    job: dict[str, Any], folder: Path, ask: Ask, mariadb: MariadbServer, postgres: PostgresServer
) -> dict[str, Any]:
    """`exit`, `refused` and `rows` of the job, as matrix.json has them."""
    (kind, declared, value), (target, made) = job["from"], job["to"]
    ask(
        kind,
        "DROP TABLE IF EXISTS datax_s",
        f"CREATE TABLE datax_s(id int primary key, v {declared})",
    )
    ask(kind, f"INSERT INTO datax_s VALUES (1, {value}), (2, NULL)")
    if target != "file":
        ask(
            target,
            "DROP TABLE IF EXISTS datax_t",
            f"CREATE TABLE datax_t(id int primary key, v {made})",
        )
    reader, writer = _ends(job, folder, mariadb, postgres)
    content = [{"reader": reader, "writer": writer}]
    text = {"job": {"setting": {"speed": {"channel": 1}}, "content": content}}
    (folder / "job.json").write_text(json.dumps(text))
    report = folder / "report.json"
    done = typed("run", str(folder / "job.json"), "--engine", "local", "--report", str(report))
    if target == "file":
        files = (folder / "out").glob("o__*")
        rows: Any = sorted(line for each in files for line in each.read_text().split("\n") if line)
        rows = None if done.exit_code else rows
    else:
        rows = ask(target, "SELECT * FROM datax_t ORDER BY 1")
    refused = json.loads(report.read_text())["rows_refused"]
    found = {"exit": done.exit_code, "refused": refused, "rows": rows}
    plain: dict[str, Any] = json.loads(json.dumps(found, default=str))
    return plain


def name_of(job: dict[str, Any]) -> str:
    return f"{job['from'][0]} {job['from'][1]} {job['from'][2]} to {' '.join(job['to'])}"


@pytest.mark.parametrize("job", JOBS, ids=name_of)
def test_a_type_arrives_as_with_datax(
    job: dict[str, Any],
    tmp_path: Path,
    ask: Ask,
    mariadb_server: MariadbServer,
    postgres_server: PostgresServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TZ", "Asia/Shanghai")
    found = result(job, tmp_path, ask, mariadb_server, postgres_server)
    expected = job.get("here", {key: job[key] for key in ("exit", "refused", "rows")})
    assert json.dumps(found) == json.dumps(expected)  # NaN is not equal to itself


def test_each_difference_has_a_reason() -> None:
    differ = [job for job in JOBS if "here" in job]
    assert all(job["why"] in WHY for job in differ)
    own = [job for job in differ if job["why"] != "fails"]
    ran = [job for job in JOBS if not (job["exit"] or job["refused"])]
    assert len(own) / len(ran) <= 0.15
