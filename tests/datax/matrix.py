"""The jobs that DataX and spark-channel both ran, and what DataX wrote.

matrix.json: each type of MariaDB and PostgreSQL into a text file, the same type, a text column and types of the other
system. jobs.json: text files, transformers, write modes, dirty rows, splits, constants and speeds. A line is a job,
with what DataX wrote (commit 60ea07b, OpenJDK 8u504, TZ=Asia/Shanghai): `exit`, `refused` and `rows`. `here` is there
where something else comes here, and `why` is a key of `differences.WHY`. `python -m tests.datax.renew` runs DataX.
"""

import bz2
import gzip
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pymysql

from tests.servers.mariadb import MariadbServer
from tests.servers.postgres import PostgresServer

__all__ = ["JOBS", "Databases", "name_of", "prepare", "read_jobs", "rows_after"]

FILES = ("matrix.json", "jobs.json")
Job = dict[str, Any]


def read_jobs(name: str) -> list[Job]:
    """The jobs of one of `FILES`, as they are written there."""
    jobs: list[Job] = json.loads(Path(__file__).with_name(name).read_text("utf-8"))
    return jobs


JOBS = [job for name in FILES for job in read_jobs(name)]


def name_of(job: Job) -> str:
    """The name of its test."""
    if "from" in job:
        return f"{job['from'][0]} {job['from'][1]} {job['from'][2]} to {' '.join(job['to'])}"
    return f"{job['part']}: {job['what']}"


class Databases:
    """Both servers, with a session of each to fill and read tables, in the zone in which DataX ran."""

    def __init__(self, mariadb: MariadbServer, postgres: PostgresServer) -> None:
        self.servers: dict[str, MariadbServer | PostgresServer] = {
            "mysql": mariadb,
            "postgresql": postgres,
        }
        self.urls = {
            "mysql": f"jdbc:mysql://127.0.0.1:{mariadb.port}/shop?useSSL=false&characterEncoding=utf8",
            "postgresql": f"jdbc:postgresql://127.0.0.1:{postgres.port}/postgres",
        }

    @contextmanager
    def open(self) -> Iterator[None]:
        """The sessions, for the time of the block."""
        mariadb, postgres = self.servers["mysql"], self.servers["postgresql"]
        login = {"host": "127.0.0.1", "port": mariadb.port, "user": mariadb.user}
        link = pymysql.connect(
            **login,
            password=mariadb.password,
            database="shop",
            autocommit=True,
            charset="utf8mb4",
            conv={},
        )
        with (
            link,
            psycopg.connect(
                host="127.0.0.1",
                port=postgres.port,
                user=postgres.user,
                password=postgres.password,
                dbname="postgres",
                autocommit=True,
                prepare_threshold=None,  # a table of one name has other types in each job
            ) as other,
        ):
            self._mysql, self._postgresql = link.cursor(), other
            self._mysql.execute("SET time_zone = '+08:00'")
            other.execute("SET timezone = 'Asia/Shanghai'")
            yield

    def ask(self, kind: str, *statements: str) -> list[list[Any]]:
        """The rows of the last statement. A table that is made replaces one of its name."""
        rows: Any = []
        for text in statements:
            made = re.match(r"create table (\w+)", text, re.IGNORECASE)
            for part in [f"DROP TABLE IF EXISTS {made[1]}", text] if made else [text]:
                rows = self._ask(kind, part)
        shown = _plain if kind == "mysql" else lambda value: value
        return [[shown(value) for value in row] for row in rows]

    def _ask(self, kind: str, text: str) -> Any:
        if kind == "mysql":
            self._mysql.execute(text)
            return self._mysql.fetchall()
        done = self._postgresql.execute(text)
        return done.fetchall() if done.description else []

    def plugin(self, half: str, given: Job) -> Job:
        """`given`, the name and parameters of a plugin, with `table`, `tables` and `querySql` in connections."""
        kind = given["name"].removesuffix(half).replace("rdbms", "postgresql")
        if kind not in self.urls:
            return given
        parameter = {
            "username": self.servers[kind].user,
            "password": self.servers[kind].password,
            **given["parameter"],
        }
        url = [self.urls[kind]] if half == "reader" else self.urls[kind]
        tables = parameter.pop("tables", None) or [parameter.pop("table", None)]
        query = parameter.pop("querySql", None)
        if query is not None:
            parameter["connection"] = [{"jdbcUrl": url, "querySql": query}]
        else:
            parameter["connection"] = [{"jdbcUrl": url, "table": names} for names in tables]
        return {"name": given["name"], "parameter": parameter}


def _plain(value: Any) -> Any:
    return value.decode("utf8", "replace") if isinstance(value, bytes) else value


def _spelled(job: Job) -> Job:
    """A job of types, as one of jobs.json."""
    if "from" not in job:
        return job
    (kind, declared, value), (target, made) = job["from"], job["to"]
    columns = ["id", "v"]
    whole: Job = {
        kind: [
            f"CREATE TABLE datax_s(id int primary key, v {declared})",
            f"INSERT INTO datax_s VALUES (1, {value}), (2, NULL)",
        ],
        "reader": {
            "name": f"{kind}reader",
            "parameter": {"column": columns, "table": ["datax_s"]},
        },
    }
    if target == "file":
        out = {"path": "{WORK}/out", "fileName": "o", "writeMode": "truncate"}
        writer: Job = {"name": "txtfilewriter", "parameter": {**out, "fieldDelimiter": "|"}}
        return {**whole, "writer": writer}
    table = f"CREATE TABLE datax_t(id int primary key, v {made})"
    whole[target] = [*whole.get(target, []), table]
    writer = {"name": f"{target}writer", "parameter": {"column": columns, "table": ["datax_t"]}}
    return {**whole, "writer": writer, "rows_of": f"{target}: SELECT * FROM datax_t ORDER BY 1"}


def prepare(job: Job, folder: Path, databases: Databases) -> Path:
    """Make the files and tables of a job in `folder` and in `databases`; its job.json."""
    job = _spelled(job)
    (folder / "out").mkdir(parents=True)
    for name, data in job.get("files", {}).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        is_hex = data.startswith("hex:")
        (folder / name).write_bytes(bytes.fromhex(data[4:]) if is_hex else data.encode())
    for kind in databases.urls:
        databases.ask(kind, *job.get(kind, []))
    content = {half: databases.plugin(half, job[half]) for half in ("reader", "writer")}
    if "steps" in job:
        content["transformer"] = job["steps"]
    setting = job.get("setting", {"speed": {"channel": 1}})
    whole = {"job": {"setting": setting, "content": [content]}}
    whole.update({key: job[key] for key in ("core", "common") if key in job})
    text = json.dumps(whole).replace("{WORK}", str(folder))
    (folder / "job.json").write_text(text)
    return folder / "job.json"


def rows_after(job: Job, folder: Path, databases: Databases) -> list[Any]:
    """What is in the target: rows of the table, or the lines of the files without order (with `names`, by file)."""
    job = _spelled(job)
    rows: list[Any]
    if "rows_of" in job:
        kind, _, query = job["rows_of"].partition(": ")
        rows = databases.ask(kind, query)
    else:
        paths = [
            path
            for path in sorted((folder / "out").rglob("*"))
            if path.is_file() and not any(part.startswith("_spark") for part in path.parts)
        ]
        if "names" in job:
            # What follows `fileName__` is unique; here a suffix follows, too.
            names = [re.sub(r"__[0-9a-f].*", "__*", path.name) for path in paths]
            rows = sorted([name, *_lines(path)] for name, path in zip(names, paths, strict=True))
        else:
            lines = (line for path in paths for line in _lines(path))
            rows = [*sorted(lines)]
    plain: list[Any] = json.loads(json.dumps(rows, default=str))
    return plain


def _lines(path: Path) -> list[str]:
    data = path.read_bytes()
    if data.startswith(b"\x1f\x8b"):
        data = gzip.decompress(data)
    elif data.startswith(b"BZh"):
        data = bz2.decompress(data)
    return [line for line in data.decode("utf-8", "backslashreplace").split("\n") if line]
