"""`spark-channel copy`: what its two places mean, and copies as they are typed."""

import json
import os
import shlex
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

import spark_channel
from spark_channel.cli.copying import CopyOptions, copy
from spark_channel.cli.endpoints import parse_place
from spark_channel.cli.exit_codes import exit_code
from spark_channel.cli.run import RunOptions
from spark_channel.errors import ChannelError, OptionError
from tests.cli.test_run import CLI, ROOT, environment, run
from tests.cli.typed import typed
from tests.connectors.postgresql.pg import Pg, own_schema
from tests.servers.mariadb import MariadbServer
from tests.servers.postgres import PostgresServer


@pytest.mark.parametrize("more", [[], ["--schema", "keys"]])
def test_a_new_table_takes_keys_of_its_source(tmp_path: Path, more: list[str]) -> None:
    source, target = tmp_path / "source.db", tmp_path / "target.db"
    with closing(sqlite3.connect(source)) as shop, shop:
        shop.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, code TEXT NOT NULL)")
        shop.execute("INSERT INTO orders VALUES (1, 'a'), (2, 'b')")
    places = [f"{source}?dbtable=orders", f"{target}?dbtable=orders"]
    done = typed("copy", *places, *more)
    assert done.exit_code == 0, done.output
    with closing(sqlite3.connect(target)) as copied:
        for row in ((2, "'c'"), (3, "NULL")):
            with pytest.raises(sqlite3.IntegrityError):
                copied.execute(f"INSERT INTO orders VALUES ({row[0]}, {row[1]})")


def test_indexes_are_left_to_a_file_of_statements(tmp_path: Path) -> None:
    source, target, after = (tmp_path / name for name in ("s.db", "t.db", "after.sql"))
    with closing(sqlite3.connect(source)) as shop:
        shop.executescript(
            "CREATE TABLE t (id INT, v TEXT); CREATE INDEX by_v ON t (v); INSERT INTO t VALUES (1, 'a')"
        )
    places = [f"{source}?dbtable=t", f"{target}?dbtable=t"]
    done = typed("copy", *places, "--schema", "full", "--schema-after", str(after))
    assert done.exit_code == 0, done.output
    named = "SELECT name FROM pragma_index_list('t')"
    with closing(sqlite3.connect(target)) as copied:
        assert copied.execute(named).fetchall() == []
        copied.executescript(after.read_text())
        assert copied.execute(named).fetchall() == [("by_v",)]
    refused = typed("copy", *places, "--schema", "columns", "--schema-after", str(after))
    assert refused.exit_code == 2
    assert "createTable=columns makes no indexes" in str(refused.exception or refused.output)


@pytest.mark.parametrize(
    ("target", "level", "says"),
    [
        ("t.db?dbtable=t", "all", "'--schema' got 'all'; it takes one of: columns, keys, full"),
        (
            "csv:out",
            "keys",
            "'--schema' is for tables of databases, Delta, Iceberg and Parquet, and the target is csv",
        ),
    ],
)
def test_a_schema_that_the_target_cannot_have_is_named_as_typed(
    tmp_path: Path, target: str, level: str, says: str
) -> None:
    done = typed("copy", f"{tmp_path}/s.db?dbtable=t", target, "--schema", level)
    assert done.exit_code == 2
    assert says in str(done.exception or done.output)


@pytest.mark.parametrize("command", ["copy", "verify", "replicate"])
def test_how_the_work_was_done_is_printed_where_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    source, target = tmp_path / "source.db", tmp_path / "target.db"
    for path in (source, target):
        with closing(sqlite3.connect(path)) as shop, shop:
            shop.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
    file = tmp_path / "shop.yml"
    file.write_text(f"source: {{path: {source}}}\ntarget: {{path: {target}}}\nstreams: {{'*': }}\n")
    places = [f"{source}?dbtable=orders", f"{target}?dbtable=orders"]
    given = places if command == "copy" else [str(file)]
    for more, shown in ([], ""), (["--verbose"], "1"):
        monkeypatch.setenv("SPARK_CHANNEL_VERBOSE", "")  # which the option sets for the process
        assert typed(command, *given, *more).exit_code == 0
        assert os.environ["SPARK_CHANNEL_VERBOSE"] == shown


@pytest.mark.parametrize(
    ("text", "name", "options"),
    [
        ("flights.csv", "csv", {"path": "flights.csv"}),
        ("a/b.csv.gz?delimiter=;", "csv", {"path": "a/b.csv.gz", "delimiter": ";"}),
        ("csv:flights", "csv", {"path": "flights"}),
        ("csv:", "csv", {}),
        ("csv:data?.csv", "csv", {"path": "data?.csv"}),
        ("parquet:///lake/orders", "parquet", {"path": "/lake/orders"}),
        ("parquet:/lake/orders", "parquet", {"path": "/lake/orders"}),
        ("PARQUET:s3://lake/orders", "parquet", {"path": "s3://lake/orders"}),
        ("s3://lake/x#2.parquet", "parquet", {"path": "s3://lake/x#2.parquet"}),
        ("sftp://u@h/x.csv", "csv", {"path": "sftp://u@h/x.csv"}),
        ("C:\\data\\x.csv", "csv", {"path": "C:\\data\\x.csv"}),
        ("sqlite:f.db?dbtable=t", "sqlite", {"url": "sqlite:f.db", "dbtable": "t"}),
        ("f.db?dbtable=t", "sqlite", {"path": "f.db", "dbtable": "t"}),
        (
            "postgresql://u@db:1/shop?keepalives_idle=5&dbtable=a.%22b%26c%22",
            "postgresql",
            {"url": "postgresql://u@db:1/shop?keepalives_idle=5", "dbtable": 'a."b&c"'},
        ),
        (
            "jdbc:postgresql://db/shop?dbtable=t&FetchSize=10",
            "postgresql",
            {"url": "jdbc:postgresql://db/shop", "dbtable": "t", "FetchSize": "10"},
        ),
        (
            "mariadb://db/shop?query=SELECT%201",
            "mysql",
            {"url": "mariadb://db/shop", "query": "SELECT 1"},
        ),
        ("delta:s3://lake/t?versionAsOf=3", "delta", {"path": "s3://lake/t", "versionAsOf": "3"}),
        ("iceberg:shop.orders?catalog=c", "iceberg", {"dbtable": "shop.orders", "catalog": "c"}),
        (
            "elasticsearch:http://h:9200?index=x",
            "elasticsearch",
            {"url": "http://h:9200", "index": "x"},
        ),
        ("https://api.example.com/v1?page=2", "http", {"url": "https://api.example.com/v1?page=2"}),
        ("kafka:?topic=x", "kafka", {"topic": "x"}),
        ("generator:?rows=3", "generator", {"url": "generator:", "rows": "3"}),
    ],
)
def test_a_place(text: str, name: str, options: dict[str, Any]) -> None:
    found = parse_place("reader", text, {})
    assert (found.name, found.options) == (name, options)


@pytest.mark.parametrize(
    ("half", "text", "why"),
    [
        ("reader", " ", "SOURCE is empty"),
        ("reader", "parqet:/x", "SOURCE begins with 'parqet:'.*did you mean 'parquet:'"),
        (
            "writer",
            "lake/orders",
            "TARGET 'lake/orders' does not say its format.*parquet:lake/orders",
        ),
        ("writer", "http://h/x", "connector 'http' has no writer"),
        ("reader", "discard:", "connector 'discard' has no reader"),
        (
            "reader",
            "x.csv?delimitr=,",
            "'delimitr', which is not an option of csv; did you mean 'delimiter'",
        ),
        (
            "writer",
            "sqlite:x.db?dbtabel=t",
            "'dbtabel', which is not .* sqlite; did you mean 'dbtable'",
        ),
        ("writer", "sqlit:x.db?dbtable=t", "TARGET begins with 'sqlit:'.*did you mean 'sqlite:'"),
        ("writer", "day-10:00.db?dbtable=t", "write ./ before a path that has a colon"),
        ("reader", "x.csv?header=true&Header=false", "option 'Header' is given twice"),
        (
            "reader",
            "kafka:orders",
            "SOURCE has 'orders' behind 'kafka:', which takes options alone",
        ),
    ],
)
def test_a_place_that_makes_no_sense(
    half: Literal["reader", "writer"], text: str, why: str
) -> None:
    with pytest.raises(OptionError, match=why):
        parse_place(half, text, {})


@pytest.mark.parametrize(
    "text",
    [
        "u:hunter2secret@h/db",
        "shop://u:hunter2secret@h/db",
        "postgresql://u:x?user=hunter2secret@h/db",
        "csv//u:hunter2secret@h/db",
    ],
)
def test_no_password_is_shown(text: str) -> None:
    with pytest.raises(OptionError) as shown:
        parse_place("reader", text, {})
    assert "hunter2" not in str(shown.value)


@given(
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1),
    st.text("ab/?#&;=%+ é", min_size=1),
)
def test_a_percent_encoded_value_arrives_as_it_was(value: str, null: str) -> None:
    encoded = f"dbtable={quote(value, safe='')}"
    found = parse_place("reader", f"postgresql://db/shop?{encoded}&keepalives_idle=5", {})
    assert found.options == {"url": "postgresql://db/shop?keepalives_idle=5", "dbtable": value}
    found = parse_place("reader", f"x.csv?nullValue={quote(null, safe='')}", {"header": "true"})
    assert found.options == {"path": "x.csv", "nullValue": null, "header": "true"}


def test_a_file_goes_to_a_database_and_on_to_files(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("id,name\n1,a\n2,NA\n3,c\n")
    database, out = tmp_path / "t.db", tmp_path / "out"
    table = f"sqlite:{database}?dbtable=t"
    given = ("--txn", "first:2026-01-31", "-o", "reader.nullValue=NA")
    for _ in range(2):  # the second run has nothing to add
        run("copy", f"csv:{tmp_path}/in.csv", table, *given)
    with closing(sqlite3.connect(database)) as connection:
        assert connection.execute("SELECT id, name FROM t ORDER BY id").fetchall() == [
            (1, "a"),
            (2, None),
            (3, "c"),
        ]
    part = ("--where", "id > 1", "--columns", "id", "--mode", "overwrite")
    report = tmp_path / "report.json"
    said = run(
        "copy",
        table,
        f"parquet:{out}?compression=zstd",
        *part,
        "--rows-per-second",
        "20k",
        "--channels",
        "2",
        "--report",
        str(report),
    )
    assert "20k rows/s" in said
    assert sorted(pq.read_table(out).to_pylist(), key=lambda row: row["id"]) == [
        {"id": 2},
        {"id": 3},
    ]
    assert json.loads(report.read_text())["rows_written"] == 2


@pytest.mark.spark
@pytest.mark.newest
def test_with_spark(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In this process, whose session it finds and would stop."""
    stopped: list[bool] = []
    monkeypatch.setattr("spark_channel.spark.engine.ending_on_signals", lambda: None)
    monkeypatch.setattr(SparkSession, "stop", lambda _session: stopped.append(True))
    (tmp_path / "in.csv").write_text("id,name\n1,a\n2,b\n")
    done = typed(
        "copy",
        f"{tmp_path}/in.csv",
        f"parquet:{tmp_path}/out",
        "--master",
        "local[2]",
        "--rows-per-second",
        "20k",
    )
    assert done.exit_code == 0, done.output
    assert stopped == [True]
    report = spark_channel.last_report()
    assert report is not None
    assert report.rows_per_second_limit == 20_000
    assert pq.read_table(tmp_path / "out").num_rows == 2


def test_rows_that_were_there_are_named(tmp_path: Path) -> None:
    source, target = tmp_path / "a.csv", f"{tmp_path / 'b.db'}?dbtable=t"
    source.write_text("id\n1\n2\n")
    for place in (target, f"parquet:{tmp_path / 'lake'}"):
        said = [typed("copy", str(source), place).output for _ in range(2)]
        assert ["added to 2 rows that were there" in each for each in said] == [False, True]
    again = [typed("copy", str(source), target, "--txn", "t:1") for _ in range(2)]
    assert [each.exit_code for each in again] == [0, 0]
    assert ["that were there" in each.output for each in again] == [True, False]
    replaced = typed("copy", str(source), target, "--mode", "overwrite")
    assert replaced.exit_code == 0
    assert "that were there" not in replaced.output


def test_the_first_example_of_the_page(tmp_path: Path) -> None:
    """As a shell takes it."""
    page = (ROOT / "docs" / "copy.md").read_text(encoding="utf-8")
    line = next(each for each in page.splitlines() if each.startswith("spark-channel copy flights"))
    (tmp_path / "flights.csv").write_text("id,tail\n1,NA\n2,N1\n")
    command = [*CLI, *shlex.split(line)[1:]]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        env=environment(),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    with closing(sqlite3.connect(tmp_path / "flights.db")) as connection:
        assert connection.execute("SELECT * FROM flights").fetchall() == [(1, None), (2, "N1")]


def test_a_dry_run_moves_nothing(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("id\n1\n")
    said = run(
        "copy", f"{tmp_path}/in.csv", f"parquet:{tmp_path}/out", "--dry-run", "--protect", "auto"
    )
    assert "columns: id int" in said
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (
            ("-o", "rows=3"),
            "option '-o' got 'rows'; it takes reader.NAME=VALUE or writer.NAME=VALUE",
        ),
        (
            ("--mode", "replace"),
            "option '--mode' got 'replace'; it takes one of: append, overwrite",
        ),
        (("--txn", "x"), "option '--txn' got 'x'; it takes NAME:VERSION"),
        (("--txn", "x:1", "-o", "writer.txn=y:1"), "'--txn' is given twice"),
        (
            ("--txn", "x:1", "-o", "writer.txnappid=y"),
            "options 'txn' and 'txnAppId' name one write and differ; give only 'txn'",
        ),
        (
            ("--rows-per-second", "1k", "-o", "writer.rowsPerSecond=2k"),
            "'--rows-per-second' is given twice",
        ),
        (("--conf", "x"), "option '--conf' got 'x'"),
        (("--max-dirty-rows", "-1"), "option '--max-dirty-rows' got"),
    ],
)
def test_an_option_that_makes_no_sense(given: tuple[str, ...], why: str, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("id\n1\n")
    said = run("copy", f"{tmp_path}/in.csv", f"parquet:{tmp_path}/out", *given, code=2)
    assert why in said
    assert not (tmp_path / "out").exists()


@pytest.fixture
def pg(postgres_server: PostgresServer) -> Iterator[Pg]:
    with own_schema(postgres_server) as made:
        yield made


def test_tables_of_postgresql(pg: Pg, tmp_path: Path) -> None:
    pg.psql(
        "CREATE TABLE t (id int, v text); INSERT INTO t VALUES (1, 'a'), (2, 'b'); CREATE TABLE u (id int, v text)"
    )
    login = pg.server.login
    at = f"{login['url']}?user={login['user']}&password={login.get('password', '')}"
    run("copy", f"{at}&dbtable={pg.schema}.t", f"{at}&dbtable={pg.schema}.u", "--commit", "job")
    assert pg.psql("SELECT count(*), min(v), max(v) FROM u") == "2|a|b"


def test_a_window_holds_the_copy(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("id\n" + "1\n" * 60)
    table = f"sqlite:{tmp_path}/t.db?dbtable=t"
    began = time.monotonic()
    said = run("copy", f"csv:{tmp_path}/in.csv", table, "--window", "40", "--rows-per-second", "1M")
    assert time.monotonic() - began > 0.5
    assert "shared limit run-" in said
    assert ": 40 rows/s (40)" in said


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("sqlite:shop.db?dbtable=none", "sqlite:out.db?dbtable=t"),
        ("sqlite:none.db?dbtable=t", "sqlite:out.db?dbtable=t"),
        ("none.csv", "sqlite:out.db?dbtable=t"),
        ("duckdb:none.duckdb?dbtable=t", "sqlite:out.db?dbtable=t"),
        ("sqlite:shop.db?dbtable=t", "sqlite:none/out.db?dbtable=t"),
        ("sqlite:shop.db?dbtable=t", "sqlite:out.db?dbtable=none&createTable=false"),
        ("sqlite:shop.db?dbtable=t", "sqlite:out.db?dbtable=t&preSql=DELETE FROM none"),
    ],
)
def test_what_is_not_there_is_no_reason_to_try_again(
    source: str, target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with closing(sqlite3.connect("shop.db")) as connection:
        connection.executescript("CREATE TABLE t (id INTEGER); INSERT INTO t VALUES (1)")
    with pytest.raises(ChannelError) as met:
        copy(source, target, CopyOptions(), RunOptions())
    assert exit_code(met.value) == 2, met.value


@pytest.mark.parametrize("more", [[], ["--dry-run"]])
def test_a_right_that_is_missing_in_postgresql_is_no_reason_to_try_again(
    more: list[str], tmp_path: Path, postgres_server: PostgresServer
) -> None:
    (tmp_path / "t.csv").write_text("id\n1\n")
    with own_schema(postgres_server) as pg:
        role = f"poor_{pg.schema}"
        pg.psql(
            f"CREATE ROLE {role} LOGIN PASSWORD 'x'; GRANT USAGE ON SCHEMA {pg.schema} TO {role}"
        )
        login = {**pg.options(dbtable=f"{pg.schema}.t"), "user": role, "password": "x"}
        url = str(login.pop("url"))
        try:
            options = [each for name in login for each in ("-o", f"writer.{name}={login[name]}")]
            done = typed("copy", str(tmp_path / "t.csv"), url, *options, *more)
            said = f"{done.output} {done.exception}"
            assert done.exit_code == 2, said
            assert f"GRANT CREATE ON SCHEMA {pg.schema} TO {role}" in said
        finally:
            pg.psql(f"DROP OWNED BY {role}; DROP ROLE {role}")


@pytest.mark.parametrize("more", [[], ["--dry-run"]])
def test_a_right_that_is_missing_in_mariadb_is_no_reason_to_try_again(
    more: list[str], tmp_path: Path, mariadb_server: MariadbServer
) -> None:
    (tmp_path / "t.csv").write_text("id\n1\n")
    name = f"poor_{os.getpid()}"
    mariadb_server.sql(
        f"CREATE DATABASE {name}; CREATE USER {name}@'%' IDENTIFIED BY 'x'; GRANT SELECT ON {name}.* TO {name}@'%'"
    )
    try:
        place = f"mysql://127.0.0.1:{mariadb_server.port}/{name}?dbtable=t"
        login = {"user": name, "password": "x", **mariadb_server.trust}
        options = [each for key in login for each in ("-o", f"writer.{key}={login[key]}")]
        done = typed("copy", str(tmp_path / "t.csv"), place, *options, *more)
        said = f"{done.output} {done.exception}"
        assert done.exit_code == 2, said
        assert "GRANT" in said
    finally:
        mariadb_server.sql(f"DROP USER {name}@'%'; DROP DATABASE {name}")


def test_a_folder_that_cannot_be_made_is_no_reason_to_try_again(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("id\n1\n")
    (tmp_path / "file").write_text("")
    for place in (f"parquet:{tmp_path}/file/out", f"sqlite:{tmp_path}/file/t.db?dbtable=t"):
        done = typed("copy", str(tmp_path / "t.csv"), place)
        assert done.exit_code == 2, f"{done.output} {done.exception}"
