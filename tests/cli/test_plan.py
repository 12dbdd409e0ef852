"""`check`: many files, every fault, what is missing, and with `--connect` both ends."""

import json
import re
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from spark_channel.cli.reach import KINDS, reach
from spark_channel.connectors.base.registry import all_connectors
from spark_channel.planning import Endpoint, TransferSpec
from tests.behaviour.datax.test_as_datax import to_pg
from tests.cli.cpu import cpu_of, imports
from tests.cli.test_run import CLI, ROOT
from tests.cli.typed import into_sqlite, made_up, typed, write_job
from tests.connectors.postgresql.pg import Pg, own_schema
from tests.servers.postgres import PostgresServer

CORPUS = ROOT / "tests" / "datax" / "corpus"


@pytest.fixture
def pg(postgres_server: PostgresServer) -> Iterator[Pg]:
    with own_schema(postgres_server) as made:
        yield made


def checked(*arguments: str) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(typed("check", *arguments, "--output", "json").stdout)
    return report


def table(path: Path, definition: str) -> Path:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"CREATE TABLE t ({definition})")
    return path


def test_a_folder_is_told_in_80_columns_with_totals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    shutil.copytree(CORPUS, tmp_path / "jobs")
    for number in range(2):
        write_job(
            tmp_path / "jobs" / f"ftp{number}.json", {"name": "otsreader"}, {"name": "OdpsWriter"}
        )
    done = typed("check", str(tmp_path / "jobs"))
    assert done.exit_code == 2
    words = [line.split() for line in done.stdout.splitlines() if len(line) > 80]
    assert all(len(each) <= 2 or each[0].endswith(".json:") for each in words), (
        "paths alone are longer"
    )
    files = len(list(CORPUS.glob("*.json")))
    assert f"{files + 2} jobs: " in done.stdout
    assert "2 refused" in done.stdout
    assert "plugins that are not here: otsreader (2), odpswriter (2)" in done.stdout


def test_every_fault_of_a_file_is_told(tmp_path: Path) -> None:
    reader = {
        "name": "streamreader",
        "parameter": {"column": [{"type": "text", "value": "x"}], "sliceRecordCount": 1},
    }
    writer = {"name": "txtfilewriter", "parameter": {"fileName": "x", "writeMode": "sideways"}}
    steps = [
        {"name": "dx_pad", "parameter": {"columnIndex": 0, "paras": ["up", "5", "0"]}},
        {"name": "dx_groovy", "parameter": {"columnIndex": 0, "paras": []}},
    ]
    content = [{"reader": reader, "writer": writer, "transformer": steps}]
    path = tmp_path / "job.json"
    path.write_text(
        json.dumps({"job": {"setting": {"errorLimit": {"record": 1}}, "content": content}})
    )
    (job,) = checked(str(path))["jobs"]
    faults = "\n".join(job["faults"])
    for place in (
        "reader.parameter.column[0].type",
        "writer.parameter",
        "transformer[0]",
        "transformer[1]",
    ):
        assert f"job.content[0].{place}" in faults, faults
    path.write_text(
        json.dumps(
            {
                "job": {
                    "setting": {"speed": {"channel": 0, "record": "x"}},
                    "content": [{"reader": {}}],
                }
            }
        )
    )
    (job,) = checked(str(path))["jobs"]
    faults = "\n".join(job["faults"])
    for place in (
        "job.setting.speed.channel",
        "job.setting.speed.record",
        "reader.name",
        "writer is missing",
    ):
        assert place in faults, faults


def test_a_variable_that_is_not_set_is_a_note(tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    write_job(path, made_up(1, "${day}"), {"name": "${w}"}, speed={"channel": "N"})
    path.write_text(path.read_text().replace('"N"', "${n}"))
    report = checked(str(path))
    assert report["totals"] == {"runs": 1, "needs a driver": 0, "refused": 0}
    notes = "\n".join(report["jobs"][0]["notes"])
    assert "${n}, ${day}, ${w} not set: give -p" in notes
    assert "depends on" in notes
    assert "job.content[0].writer.name" in notes
    path.write_text(path.read_text().replace('"streamreader"', '"nonesuch"'))
    (job,) = checked(str(path))["jobs"]
    assert (job["state"], job["missing"]) == ("refused", ["nonesuch", "${w}"])


def test_a_condition_keeps_the_name_of_a_variable_that_is_not_set(tmp_path: Path) -> None:
    reader = {
        "name": "sqlite3reader",
        "parameter": {
            "column": ["id", "name"],
            "where": "day = '${day}' AND hour = ${hour}",
            "connection": [{"jdbcUrl": [f"jdbc:sqlite:{tmp_path}/s.db"], "table": ["t"]}],
        },
    }
    file = write_job(tmp_path / "job.json", reader, into_sqlite(tmp_path / "t.db"))
    (job,) = checked(file)["jobs"]
    assert "reader runs where: day = '${day}' AND hour = ${hour}" in job["runs"]
    assert "${day}, ${hour} not set: give -p" in job["notes"]
    (job,) = checked(file, "-p", "-Dday=2026-01-01 -Dhour=7")["jobs"]
    assert "reader runs where: day = '2026-01-01' AND hour = 7" in job["runs"]


@pytest.mark.parametrize(
    ("definition", "why"),
    [("id INTEGER, name TEXT", ""), ("id INTEGER", "name"), ("", "does not exist")],
)
def test_connect_looks_at_the_target(tmp_path: Path, definition: str, why: str) -> None:
    path = tmp_path / "t.db"
    if definition:
        table(path, definition)
    else:
        sqlite3.connect(path).close()
    file = write_job(tmp_path / "job.json", made_up(1), into_sqlite(path))
    assert checked(file)["jobs"][0]["state"] == "runs"
    (job,) = checked(file, "--connect")["jobs"]
    assert job["state"] == ("refused" if why else "runs"), job
    assert why in "".join(job["faults"])
    for command in (["plan", file], ["run", file, "--dry-run"]):
        assert (typed(*command).exit_code == 0) == (not why)


def test_connect_asks_for_the_right_to_insert(tmp_path: Path, pg: Pg) -> None:
    role = f"reader_{pg.schema}"
    pg.server.psql(
        f"CREATE TABLE {pg.schema}.u (id bigint, name text); CREATE ROLE {role} LOGIN PASSWORD 'x'; "
        f"GRANT USAGE, CREATE ON SCHEMA {pg.schema} TO {role}; GRANT SELECT ON {pg.schema}.u TO {role}"
    )
    try:
        login = {"username": role, "password": "x", "column": ["id", "name"]}
        writer = {"name": "postgresqlwriter", "parameter": {**to_pg(pg), **login}}
        file = write_job(tmp_path / "job.json", made_up(1), writer)
        (job,) = checked(file, "--connect")["jobs"]
        assert job["state"] == "refused"
        grant = f"GRANT INSERT ON {pg.schema}.u TO {role}"
        assert grant in "".join(job["faults"])
        pg.server.psql(f"GRANT INSERT ON {pg.schema}.u TO {role}")
        assert checked(file, "--connect")["jobs"][0]["state"] == "runs"
        assert (
            pg.server.psql(f"SELECT count(*) FROM pg_tables WHERE schemaname = '{pg.schema}'")
            == "1"
        )
        pg.server.psql(f"REVOKE INSERT ON {pg.schema}.u FROM {role}")
        ran = typed("run", file)
        assert ran.exit_code == 2
        assert grant in f"{ran.output}{ran.exception}"
        assert "moved" not in ran.output
    finally:
        pg.server.psql(f"DROP OWNED BY {role} CASCADE; DROP ROLE {role}")


@pytest.mark.soak
@pytest.mark.real_time
def test_1186_files_take_as_long_as_twenty_times_the_imports(tmp_path: Path) -> None:
    """3 s where the imports take 0.25; up to 16 times beside other work, since these share more of a cache."""
    names = sorted(CORPUS.glob("*.json"))
    for number in range(1186):
        shutil.copy(names[number % len(names)], tmp_path / f"{number}.json")
    report = tmp_path / "report"
    command = f'"$@" check {tmp_path} --output json > {report}'
    taken = min(cpu_of(["sh", "-c", command, "check", *CLI], check=False) for _ in range(2))
    assert sum(json.loads(report.read_text())["totals"].values()) == 1186
    assert taken <= 20 * imports()


def test_what_a_job_would_run_is_told_without_a_login(tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    reader = {
        "name": "postgresqlreader",
        "parameter": {
            "username": "etl",
            "password": "hunter2secret",
            "connection": [
                {
                    "querySql": ["select * from orders where password='hunter2secret'"],
                    "jdbcUrl": ["jdbc:postgresql://db.example:5433/shop?password=hunter2secret"],
                }
            ],
        },
    }
    write_job(path, reader, into_sqlite(tmp_path / "t.db", preSql=["delete from t"]))
    report = checked(str(path))
    (job,) = report["jobs"]
    runs = "\n".join(job["runs"])
    assert "reader runs query: select * from orders" in runs
    assert "reader connects to" in runs
    assert "db.example:5433/shop" in runs
    assert "writer runs startSql: " in runs or "writer runs preSql: " in runs
    assert "delete from t" in runs
    assert str(tmp_path / "t.db") in runs
    assert "hunter2secret" not in json.dumps(report)
    shown = " ".join(typed("check", str(path)).stdout.split())
    assert "reader runs query" in shown
    assert "hunter2secret" not in shown


def test_what_a_file_of_replicate_would_run_is_told_too(tmp_path: Path) -> None:
    path = tmp_path / "shop.yml"
    path.write_text(
        f"""
source: {{url: 'postgresql://etl:hunter2secret@db.example/shop', sslrootcert: /ca.pem}}
target: {{url: 'sqlite:{tmp_path}/t.db'}}
defaults: {{target_options: {{sessionInitStatement: "PRAGMA cache_size = 1"}}}}
streams:
  shop.orders: {{where: "day > 3", source_options: {{password: '${{file:/secret}}'}}}}
"""
    )
    (job,) = checked(str(path))["jobs"]
    assert job["state"] == "runs", job
    lines = "\n".join(job["runs"])
    for said in (
        "db.example/shop",
        "source uses sslrootcert: /ca.pem",
        f"{tmp_path}/t.db",
        "defaults: target runs sessionInitStatement: PRAGMA cache_size = 1",
        "shop.orders runs where: day > 3",
        "shop.orders: source reads the file that option password names",
    ):
        assert said in lines
    assert "hunter2secret" not in lines


def test_places_in_properties_are_told_and_secrets_are_not() -> None:
    properties = '{"uri": "https://u:hunter2@catalog", "token": "hunter2", "x": "hunter2"}'
    ends = (
        Endpoint("iceberg", {"catalogProperties": properties}),
        Endpoint("adbc", {"driver": "/lib/x.so", "uri": "host=h password=hunter2"}),
    )
    lines = "\n".join(reach(TransferSpec(*ends)))
    assert "catalog" in lines
    assert "writer loads driver: /lib/x.so" in lines
    assert "hunter2" not in lines


NOT_TOLD = {
    *("dialect", "limitPerMark", "sharedLimitToken", "timeout", "transactionTimeout"),
}
"""They speak of servers and SQL, and name none."""


def test_each_option_that_names_more_than_rows_is_told() -> None:
    """An option whose description speaks of SQL, files, hosts or code has to be one that `check` knows."""
    told = {name.lower() for names in KINDS.values() for name in names}
    strange = set()
    for connector in all_connectors():
        for half in ("reader", "writer"):
            if getattr(connector, half) is None:
                continue
            for name, field in connector.options_class(half).model_fields.items():
                words = (field.description or "").split(";")[0]
                if re.search(r"\b(SQL|file of|PEM|hosts?|brokers|driver|uri)\b", words):
                    strange.add(field.alias or name)
    assert {name for name in strange if name.lower() not in told} <= NOT_TOLD
    assert len(strange) > 20
