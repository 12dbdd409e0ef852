"""What DataX leaves in a target, a job leaves there too: against real servers in another time zone."""

import os
import sqlite3
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyarrow import dataset

from spark_channel.errors import ChannelError, SourceError, TargetError
from tests.connectors.mysql.shop import Shop
from tests.connectors.postgresql.pg import Pg, own_schema
from tests.datax.moved import move
from tests.servers.mariadb import MariadbServer
from tests.servers.postgres import PostgresServer


@pytest.fixture(scope="module")
def berlin() -> Iterator[MariadbServer]:
    """A server whose zone is its host's, where an hour of October comes twice."""
    before = os.environ.get("TZ")
    os.environ["TZ"] = "Europe/Berlin"
    try:
        server = MariadbServer.create()
    finally:
        if before is None:
            del os.environ["TZ"]
        else:
            os.environ["TZ"] = before
    yield server
    server.close()


@pytest.fixture
def shop(berlin: MariadbServer) -> Iterator[Shop]:
    database = f"shop_{uuid.uuid4().hex[:12]}"
    berlin.sql(f"CREATE DATABASE {database} CHARACTER SET utf8mb4")
    yield Shop(berlin, database)
    berlin.sql(f"DROP DATABASE {database}")


@pytest.fixture(scope="module")
def tokyo() -> Iterator[PostgresServer]:
    server = PostgresServer.create(timezone="Asia/Tokyo", datestyle="ISO, DMY")
    yield server
    server.close()


@pytest.fixture
def pg(tokyo: PostgresServer) -> Iterator[Pg]:
    with own_schema(tokyo) as made:
        yield made


def reads(shop: Shop, table: str = "t", *, more: str = "", **parameter: Any) -> dict[str, Any]:
    url = f"jdbc:mysql://127.0.0.1:{shop.server.port}/{shop.database}{more}"
    named = (
        {"querySql": parameter.pop("querySql")} if "querySql" in parameter else {"table": [table]}
    )
    login = {"username": shop.server.user, "password": shop.server.password}
    return {"column": ["*"], **login, "connection": [{"jdbcUrl": [url], **named}], **parameter}


def writes(shop: Shop, table: str = "u", *, more: str = "", **parameter: Any) -> dict[str, Any]:
    url = f"jdbc:mysql://127.0.0.1:{shop.server.port}/{shop.database}{more}"
    login = {"username": shop.server.user, "password": shop.server.password}
    return {
        "column": ["*"],
        **login,
        "connection": [{"jdbcUrl": url, "table": [table]}],
        **parameter,
    }


def from_pg(pg: Pg, table: str = "t", **parameter: Any) -> dict[str, Any]:
    url = f"jdbc:postgresql://127.0.0.1:{pg.server.port}/postgres?currentSchema={pg.schema}"
    named = (
        {"querySql": parameter.pop("querySql")} if "querySql" in parameter else {"table": [table]}
    )
    login = {"username": pg.server.user, "password": pg.server.password}
    return {"column": ["*"], **login, "connection": [{"jdbcUrl": [url], **named}], **parameter}


def to_pg(pg: Pg, table: str = "u", **parameter: Any) -> dict[str, Any]:
    url = f"jdbc:postgresql://127.0.0.1:{pg.server.port}/postgres?currentSchema={pg.schema}"
    login = {"username": pg.server.user, "password": pg.server.password}
    return {
        "column": ["*"],
        **login,
        "connection": [{"jdbcUrl": url, "table": [table]}],
        **parameter,
    }


def between(
    make_job: Any, reader: dict[str, Any], writer: dict[str, Any], kind: str = "mysql"
) -> Any:
    return make_job(f"{kind}reader", reader, f"{kind}writer", writer)


def lines(folder: Path) -> list[str]:
    """Return the lines of the files that a reader of the folder sees."""
    inside = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    found = [
        folder / path
        for path in inside
        if not any(part.startswith(("_", ".")) for part in path.parts)
    ]
    return sorted(line for path in found for line in path.read_text().splitlines())


# Time zones


def test_a_condition_means_what_the_servers_zone_makes_of_it(make_job: Any, shop: Shop) -> None:
    shop.sql(
        "CREATE TABLE t (id INT PRIMARY KEY, ts TIMESTAMP NULL); CREATE TABLE u LIKE t; "
        "SET time_zone = '+00:00'; "
        "INSERT INTO t VALUES (1, '2024-01-31 06:00:00'), (2, '2024-01-31 07:00:00'), (3, '2024-01-31 08:00:00')"
    )
    move(between(make_job, reads(shop, where="ts >= '2024-01-31 08:00'"), writes(shop)))
    assert shop.rows("SELECT id, ts FROM u ORDER BY id") == [
        ("2", "2024-01-31 07:00:00"),
        ("3", "2024-01-31 08:00:00"),
    ]


@pytest.mark.parametrize("by", ["session", "url", "option"])
def test_a_job_may_set_the_zone_itself(make_job: Any, shop: Shop, by: str) -> None:
    shop.sql(
        "CREATE TABLE t (id INT PRIMARY KEY, ts TIMESTAMP NULL); CREATE TABLE u LIKE t; "
        "INSERT INTO t VALUES (1, '2024-01-31 06:00:00'), (2, '2024-01-31 07:00:00')"
    )
    reader = {
        "session": reads(
            shop, where="ts >= '2024-01-31 15:00'", session=["set time_zone = '+08:00'"]
        ),
        "url": reads(
            shop, where="ts >= '2024-01-31 15:00'", more="?sessionVariables=time_zone='%2B08:00'"
        ),
        "option": reads(shop, where="ts >= '2024-01-31 15:00'"),
    }[by]
    job = between(make_job, reader, writes(shop))
    if by == "option":
        taken = shop.read(where="ts >= '2024-01-31 15:00'", sessionTimeZone="+08:00")
        assert taken["id"].to_pylist() == [2]
        assert [str(value) for value in taken["ts"].to_pylist()] == ["2024-01-31 07:00:00+00:00"]
        return
    move(job)
    assert shop.rows("SELECT id FROM u") == [("2",)]


def test_instants_of_an_hour_that_comes_twice_stay_apart(shop: Shop) -> None:
    """02:30 comes twice in Berlin on 2024-10-27: at 00:30 and 01:30 UTC."""
    shop.sql(
        "CREATE TABLE t (id INT PRIMARY KEY, ts TIMESTAMP(6) NULL, KEY (ts)); CREATE TABLE u LIKE t; "
        "INSERT INTO t VALUES (1, '2024-10-27 00:30:00.000001'), (2, '2024-10-27 01:30:00.5'), (3, NULL)"
    )
    expected = ["2024-10-27 00:30:00.000001+00:00", "2024-10-27 01:30:00.500000+00:00", "None"]
    found = shop.read(where="id > 0")
    assert [str(value) for value in found.sort_by("id")["ts"].to_pylist()] == expected
    by_ts = shop.read(where="id > 0", partitionColumn="ts", advice=3)
    assert sorted(by_ts["id"].to_pylist()) == [1, 2, 3]
    shop.write(found, dbtable="u")
    assert shop.rows("SELECT ts FROM u ORDER BY id") == [
        ("2024-10-27 00:30:00.000001",),
        ("2024-10-27 01:30:00.500000",),
        ("NULL",),
    ]


def test_times_become_texts_of_the_servers_zone(make_job: Any, shop: Shop, tmp_path: Path) -> None:
    shop.sql("CREATE TABLE t (id INT PRIMARY KEY, ts TIMESTAMP NULL, d DATETIME)")
    shop.sql("INSERT INTO t VALUES (1, '2024-01-31 06:00:00', '2024-01-31 06:00:00')")
    target = {"path": str(tmp_path), "fileName": "out", "writeMode": "truncate"}
    move(make_job("mysqlreader", reads(shop), "txtfilewriter", target))
    assert lines(tmp_path) == ["1,2024-01-31 07:00:00,2024-01-31 06:00:00"]


def test_what_a_target_fills_in_is_of_its_zone(make_job: Any, shop: Shop) -> None:
    shop.sql(
        "CREATE TABLE t (id INT PRIMARY KEY); INSERT INTO t VALUES (1); "
        "CREATE TABLE u (id INT PRIMARY KEY, made DATETIME DEFAULT CURRENT_TIMESTAMP)"
    )
    move(between(make_job, reads(shop, column=["id"]), writes(shop, column=["id"])))
    hours = shop.sql("SELECT ROUND(TIMESTAMPDIFF(MINUTE, UTC_TIMESTAMP(), made) / 60) FROM u")
    assert hours in ("1", "2")


def test_postgresqls_sessions_have_the_machines_zone_and_the_servers_dates(
    make_job: Any, pg: Pg, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "Asia/Shanghai")
    pg.psql(
        "CREATE TABLE t (id int PRIMARY KEY, ts timestamptz); CREATE TABLE u (LIKE t, made timestamp DEFAULT now()); "
        "INSERT INTO t VALUES (1, '2024-02-01 15:00+09'), (2, '2024-02-01 16:00+09')"
    )
    job = between(
        make_job,
        from_pg(pg, column=["id", "ts"], where="ts >= '1/2/2024 14:30'"),
        to_pg(pg, column=["id", "ts"]),
        "postgresql",
    )
    move(job)
    assert pg.psql("SELECT id, ts AT TIME ZONE 'UTC' FROM u") == "2|2024-02-01 07:00:00"
    assert (
        pg.psql("SELECT round(extract(epoch FROM made - (now() AT TIME ZONE 'UTC')) / 3600) FROM u")
        == "8"
    )
    taken = pg.read(where="ts >= '2024-02-01 06:30'", sessionTimeZone="UTC")
    assert [str(value) for value in taken["ts"].to_pylist()] == ["2024-02-01 07:00:00+00:00"]


def test_postgresqls_times_become_texts_of_the_machines_zone(
    make_job: Any, pg: Pg, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "Asia/Shanghai")
    pg.psql(
        "CREATE TABLE t (id int, ts timestamptz); INSERT INTO t VALUES (1, '2024-02-01 06:00Z')"
    )
    target = {"path": str(tmp_path), "fileName": "out", "writeMode": "truncate"}
    move(make_job("postgresqlreader", from_pg(pg), "txtfilewriter", target))
    assert lines(tmp_path) == ["1,2024-02-01 14:00:00"]


# Modes and types


def test_a_mode_that_a_job_writes_holds(make_job: Any, shop: Shop) -> None:
    shop.sql(
        "CREATE TABLE t (v VARCHAR(10)); CREATE TABLE u (v VARCHAR(3)); INSERT INTO t VALUES ('abcdef')"
    )
    with pytest.raises(ChannelError, match="truncated"):
        move(
            make_job(
                "mysqlreader",
                reads(shop),
                "mysqlwriter",
                writes(shop),
                setting={"errorLimit": {"record": 0}},
            )
        )
    job = make_job(
        "mysqlreader",
        reads(shop),
        "mysqlwriter",
        writes(shop, session=["set session sql_mode=''"]),
        setting={"errorLimit": {"record": 0}},
    )
    move(job)
    assert shop.rows("SELECT v FROM u") == [("abc",)]


def test_tinyint_1_is_a_number(make_job: Any, shop: Shop) -> None:
    shop.sql(
        "CREATE TABLE t (id INT, n TINYINT(1)); CREATE TABLE u LIKE t; INSERT INTO t VALUES (1, 7), (2, -1), (3, 1)"
    )
    move(between(make_job, reads(shop), writes(shop)))
    assert shop.rows("SELECT n FROM u ORDER BY id") == [("7",), ("-1",), ("1",)]


# The target's table


def test_a_table_that_is_not_there_is_an_error(make_job: Any, shop: Shop) -> None:
    shop.sql("CREATE TABLE t (id INT); INSERT INTO t VALUES (1)")
    with pytest.raises(TargetError, match=r"table 'u' does not exist"):
        move(between(make_job, reads(shop), writes(shop)))
    assert shop.rows("SHOW TABLES LIKE 'u'") == []


def test_pre_sql_makes_the_table_and_what_the_reader_reads(make_job: Any, shop: Shop) -> None:
    shop.sql("CREATE TABLE t (id INT, ready INT DEFAULT 0); INSERT INTO t (id) VALUES (1), (2)")
    steps = [
        "drop table if exists @table",
        "create table @table (id int primary key)",
        "update t set ready = 1",
    ]
    job = between(
        make_job, reads(shop, column=["id"], where="ready = 1"), writes(shop, preSql=steps)
    )
    move(job)
    move(job, name="again")
    assert shop.rows("SELECT id FROM u ORDER BY id") == [("1",), ("2",)]


@pytest.mark.parametrize("script", ["truncate table @table", "delete from u where id > 0;"])
def test_a_job_that_cannot_run_empties_nothing(make_job: Any, shop: Shop, script: str) -> None:
    """As in DataX, which looks at both ends before preSql."""
    shop.sql(
        "CREATE TABLE t (id INT, v VARCHAR(9), g JSON); CREATE TABLE u (id INT, v VARCHAR(9)); "
        "INSERT INTO u VALUES (1, 'kept'); CREATE TABLE time (id DATE, v VARCHAR(9)); INSERT INTO t (id) VALUES (2)"
    )
    columns: dict[str, Any] = {"column": ["id", "v"]}
    ends: list[tuple[dict[str, Any], dict[str, Any]]] = [
        (reads(shop, table="nowhere", **columns), columns),
        (reads(shop, column=["id", "nothing"]), columns),
        (reads(shop, column=["id", "v", "g"]), columns),
        (reads(shop, **columns), {"column": ["id", "other"]}),
        (reads(shop, table="time", **columns), columns),
    ]
    for reader, writer in ends:
        with pytest.raises(ChannelError):
            move(between(make_job, reader, writes(shop, preSql=[script], **writer)))
        assert shop.rows("SELECT v FROM u") == [("kept",)]
    move(between(make_job, reads(shop, **columns), writes(shop, preSql=[script], **columns)))
    assert shop.rows("SELECT * FROM u") == [("2", "NULL")]


def test_truncate_in_pre_sql(make_job: Any, shop: Shop) -> None:
    shop.sql(
        "CREATE TABLE t (id INT); CREATE TABLE u LIKE t; INSERT INTO t VALUES (1); INSERT INTO u VALUES (9)"
    )
    job = make_job(
        "mysqlreader",
        reads(shop),
        "mysqlwriter",
        writes(shop, preSql=["truncate table @table"]),
        setting={"errorLimit": {"record": 0}},
    )
    move(job)
    assert shop.rows("SELECT id FROM u") == [("1",)]


@pytest.mark.parametrize(
    ("mode", "left"),
    [
        ("update", [("1", "9", "new", "kept"), ("3", "1", "last", "NULL")]),
        ("replace", [("2", "9", "new", "NULL"), ("4", "1", "last", "NULL")]),
        ("insert ignore", [("1", "9", "old", "kept"), ("3", "1", "first", "NULL")]),
    ],
)
def test_rows_meet_every_unique_key(
    make_job: Any, shop: Shop, mode: str, left: list[tuple[str, ...]]
) -> None:
    """The auto-increment key is not written; `code` is unique too."""
    shop.sql(
        "CREATE TABLE t (n INT, code INT, v VARCHAR(9)); "
        "INSERT INTO t VALUES (1, 9, 'new'), (2, 1, 'first'), (3, 1, 'last'); "
        "CREATE TABLE u (id INT AUTO_INCREMENT PRIMARY KEY, code INT UNIQUE, v VARCHAR(9), own VARCHAR(9)); "
        "INSERT INTO u (code, v, own) VALUES (9, 'old', 'kept')"
    )
    reader = reads(shop, querySql=["select code, v from t order by n"])
    move(between(make_job, reader, writes(shop, column=["code", "v"], writeMode=mode)))
    found = shop.rows("SELECT id, code, v, own FROM u ORDER BY id")
    assert [row[1:] for row in found] == [row[1:] for row in left]


def test_an_ordinary_transfer_runs_no_part_of_start_sql_twice(shop: Shop) -> None:
    shop.sql("CREATE TABLE t (id INT)")
    writer = shop.writer(
        startSql='["insert into t values (1); insert into t values (2)", "select broken from t"]'
    )
    with pytest.raises(TargetError, match="broken"):
        writer.begin()
    assert shop.rows("SELECT id FROM t") == [("1",), ("2",)]


def test_a_source_table_that_is_not_there_is_an_error(make_job: Any, shop: Shop) -> None:
    shop.sql("CREATE TABLE u (id INT)")
    with pytest.raises(SourceError, match="'t'"):
        move(between(make_job, reads(shop), writes(shop)))


def test_pre_sql_of_postgresql(make_job: Any, pg: Pg) -> None:
    pg.psql("CREATE TABLE t (id int); INSERT INTO t VALUES (1), (2)")
    steps = [
        "drop table if exists @table; create table @table (id int)",
        "delete from t where id = 2",
    ]
    move(between(make_job, from_pg(pg), to_pg(pg, preSql=steps), "postgresql"))
    assert pg.psql("SELECT id FROM u") == "1"


def test_pre_sql_of_sqlite(make_job: Any, tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE t (id INTEGER)")
        database.execute("INSERT INTO t VALUES (1)")
    end = [{"jdbcUrl": [f"jdbc:sqlite:{path}"], "table": ["t"]}]
    target = [{"jdbcUrl": f"jdbc:sqlite:{path}", "table": ["u"]}]
    reader = {"column": ["*"], "connection": end}
    with pytest.raises(TargetError, match="table 'u' does not exist"):
        move(between(make_job, reader, {"column": ["*"], "connection": target}, "sqlite3"))
    writer = {"column": ["*"], "connection": target, "preSql": ["create table @table (id integer)"]}
    move(between(make_job, reader, writer, "sqlite3"))
    with sqlite3.connect(path) as database:
        assert database.execute("SELECT id FROM u").fetchall() == [(1,)]


# Idempotent jobs


@pytest.mark.parametrize("commit", ["job", "task"])
def test_a_killed_job_that_is_run_again_doubles_no_row(
    make_job: Any, shop: Shop, commit: str
) -> None:
    shop.sql(
        "CREATE TABLE t (id INT PRIMARY KEY); CREATE TABLE u (id INT); INSERT INTO t SELECT seq FROM seq_1_to_400"
    )
    writer = writes(shop, preSql=["truncate table @table"] if commit == "job" else [])
    job = between(make_job, reads(shop, splitPk="id"), writer)
    once: dict[str, Any] = {"commit": commit, "txn": "nightly:2024-01-31"}
    move(job, name="killed", die_after=1, **once)
    move(job, name="again", **once)
    assert shop.sql("SELECT COUNT(*), COUNT(DISTINCT id) FROM u") == "400\t400"
    move(job, name="once more", **once)
    assert shop.sql("SELECT COUNT(*) FROM u") == "400"
    move(job, name="tomorrow", commit=commit, txn="nightly:2024-02-01")
    assert shop.sql("SELECT COUNT(*) FROM u") == ("400" if commit == "job" else "800")


def test_a_job_that_commits_at_once_shows_no_row_before(make_job: Any, pg: Pg) -> None:
    pg.psql(
        "CREATE TABLE t (id int); INSERT INTO t VALUES (1); CREATE TABLE u (id int); INSERT INTO u VALUES (7)"
    )
    writer = to_pg(pg, preSql=["delete from @table"])
    job = make_job(
        "postgresqlreader", from_pg(pg), "postgresqlwriter", writer, setting={"commit": "job"}
    )
    move(job, die_after=0)
    assert pg.psql("SELECT id FROM u") == "7"
    move(job, name="again")
    assert pg.psql("SELECT id FROM u") == "1"


# Files


HIVE = [
    {"name": "id", "type": "int"},
    {"name": "v", "type": "string"},
    {"name": "at", "type": "string"},
    {"name": "ts", "type": "timestamp"},
    {"name": "d", "type": "date"},
    {"name": "x", "type": "double"},
]


def hive_source(shop: Shop) -> None:
    shop.sql(
        "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(20), at DATETIME(3), ts TIMESTAMP NULL, d DATE, x DOUBLE); "
        "INSERT INTO t VALUES "
        "(1, 'say \"so\", a\\\\b', '2022-12-28 00:00:00.25', '2022-12-28 06:00:00', '2022-12-28', 100), "
        "(2, NULL, NULL, NULL, NULL, NULL), "
        "(3, ' x ', '2022-12-28 12:00:01', '2022-12-28 06:00:00', '2022-12-28', 1e10)"
    )


def test_hdfswriter_writes_raw_text(make_job: Any, shop: Shop, tmp_path: Path) -> None:
    hive_source(shop)
    target = {
        "defaultFS": "",
        "path": str(tmp_path),
        "fileName": "f",
        "fileType": "text",
        "writeMode": "append",
        "fieldDelimiter": ",",
        "column": HIVE,
        "nullFormat": "\\N",
    }
    move(make_job("mysqlreader", reads(shop), "hdfswriter", target))
    assert lines(tmp_path) == [
        '1,say "so", a\\b,2022-12-28 00:00:00,2022-12-28 07:00:00,2022-12-28,100.0',
        "2,,,,,",
        "3, x ,2022-12-28 12:00:01,2022-12-28 07:00:00,2022-12-28,1.0E10",
    ]


@pytest.mark.parametrize("kind", ["orc", "parquet"])
def test_a_datetime_that_is_declared_a_string(
    make_job: Any, shop: Shop, tmp_path: Path, kind: str
) -> None:
    hive_source(shop)
    target = {
        "defaultFS": "",
        "path": str(tmp_path),
        "fileName": "f",
        "fileType": kind,
        "writeMode": "append",
        "fieldDelimiter": ",",
        "column": HIVE,
    }
    move(make_job("mysqlreader", reads(shop), "hdfswriter", target))
    found = (
        dataset.dataset([str(path) for path in tmp_path.glob(f"*.{kind}")], format=kind)
        .to_table()
        .sort_by("id")
    )
    assert found["at"].to_pylist() == ["2022-12-28 00:00:00", None, "2022-12-28 12:00:01"]
    assert [str(value) for value in found["ts"].to_pylist()] == [
        "2022-12-28 07:00:00",
        "None",
        "2022-12-28 07:00:00",
    ]


def test_txtfilewriter_writes_null_and_no_quotes(make_job: Any, shop: Shop, tmp_path: Path) -> None:
    hive_source(shop)
    target = {
        "path": str(tmp_path),
        "fileName": "f",
        "writeMode": "truncate",
        "header": ["id", "v"],
    }
    move(
        make_job(
            "mysqlreader", reads(shop, column=["id", "v"], where="id < 3"), "txtfilewriter", target
        )
    )
    assert set(lines(tmp_path)) == {'1,say "so", a\\b', "2,null", "id,v"}


def test_txtfilewriter_quotes_in_csv(make_job: Any, shop: Shop, tmp_path: Path) -> None:
    hive_source(shop)
    target = {
        "path": str(tmp_path),
        "fileName": "f",
        "writeMode": "truncate",
        "fileFormat": "csv",
        "nullFormat": "-",
    }
    move(make_job("mysqlreader", reads(shop, column=["id", "v"]), "txtfilewriter", target))
    assert lines(tmp_path) == ['1,"say ""so"", a\\b"', "2,-", "3,x"]


def test_zero_dates_are_null(make_job: Any, shop: Shop) -> None:
    shop.sql(
        "SET sql_mode = ''; CREATE TABLE t (id INT PRIMARY KEY, d DATE, dt DATETIME, ts TIMESTAMP NULL); "
        "CREATE TABLE u LIKE t; INSERT INTO t VALUES (1, '0000-00-00', '0000-00-00', '0000-00-00'), "
        "(2, '2024-01-31', '2024-01-31', '2024-01-31')"
    )
    move(between(make_job, reads(shop, where="id > 0"), writes(shop)))
    assert shop.rows("SELECT * FROM u ORDER BY id") == [
        ("1", "NULL", "NULL", "NULL"),
        ("2", "2024-01-31", "2024-01-31 00:00:00", "2024-01-31 00:00:00"),
    ]
    with pytest.raises(SourceError, match="zeroDates"):
        move(between(make_job, reads(shop, more="?zeroDateTimeBehavior=exception"), writes(shop)))


def test_the_next_url_is_taken_where_the_first_has_no_such_database(
    make_job: Any, shop: Shop
) -> None:
    shop.sql("CREATE TABLE t (id INT PRIMARY KEY); INSERT INTO t VALUES (1); CREATE TABLE u LIKE t")
    reader = reads(shop)
    (right,) = reader["connection"][0]["jdbcUrl"]
    wrong = right.replace(shop.database, "no_such_database")
    reader["connection"][0]["jdbcUrl"] = ["jdbc:mysql://127.0.0.1:1/x", wrong, right]
    move(between(make_job, reader, writes(shop)))
    assert shop.rows("SELECT id FROM u") == [("1",)]
    reader["connection"][0]["jdbcUrl"] = [wrong, wrong]
    with pytest.raises(SourceError, match=r"none of 2 urls can be read: .*no_such_database"):
        move(between(make_job, reader, writes(shop)))


EXPRESSIONS = [
    "id",
    "replace(replace(v, char(10), ''), char(13), '')",
    "v regexp '^a'",
    "(select max(w.n) from w where w.id = t.id)",
    "concat_ws('-', id, ifnull(v, 'none'))  -- a comment",
    "date_format(d, '%Y/%m/%d %H:%i')",
    "if(v is null, 'no', 'yes') known",
]


@pytest.mark.parametrize("split", ["", "id"])
def test_expressions_mean_what_the_server_makes_of_them(
    make_job: Any, shop: Shop, tmp_path: Path, split: str
) -> None:
    shop.sql(
        "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(9), d DATETIME); CREATE TABLE w (id INT, n INT); "
        "INSERT INTO w VALUES (1, 5), (1, 7); "
        "INSERT INTO t VALUES (1, 'a\\nb\\r', '2024-01-31 07:05:00'), (2, NULL, NULL)"
    )
    target = {
        "path": str(tmp_path),
        "fileName": "f",
        "writeMode": "truncate",
        "fieldDelimiter": "|",
    }
    reader = reads(
        shop, column=EXPRESSIONS, where="v regexp 'b' or char(10) = '\\n' -- all", splitPk=split
    )
    move(make_job("mysqlreader", reader, "txtfilewriter", target))
    shown = shop.sql("SELECT CONCAT('1-', v) FROM t WHERE id = 1")
    assert shown.startswith("1-a")
    text = "\n".join(path.read_bytes().decode() for path in sorted(tmp_path.glob("f__*")))
    assert "1|ab|1|7|1-a\nb\r|2024/01/31 07:05|yes" in text
    assert "2|null|null|null|2-none|null|no" in text


def test_a_condition_of_a_table_is_sent_as_it_is_written(make_job: Any, shop: Shop) -> None:
    shop.sql(
        "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(9)); CREATE TABLE u LIKE t; "
        "INSERT INTO t VALUES (1, 'a\\n'), (2, 'b')"
    )
    where = "locate(char(10), v) > 0 # only these"
    move(between(make_job, reads(shop, where=where), writes(shop)))
    assert shop.rows("SELECT id FROM u") == [("1",)]


def test_a_query_is_sent_as_it_is_written(make_job: Any, shop: Shop) -> None:
    shop.sql(
        "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(9)); CREATE TABLE u LIKE t; "
        "INSERT INTO t VALUES (1, 'a\\n'), (2, 'b')"
    )
    query = "select id, replace(v, char(10), '') v from t where v rlike '^a' -- the last"
    move(between(make_job, reads(shop, querySql=[query]), writes(shop)))
    assert shop.rows("SELECT * FROM u") == [("1", "a")]


def test_every_column_of_two_tables_goes_by_position(make_job: Any, shop: Shop, pg: Pg) -> None:
    """`id` and `v` occur twice, which only the database knows."""
    tables = (
        "CREATE TABLE a (id INT, v VARCHAR(9)); CREATE TABLE b (id INT, v VARCHAR(9), v_3 INT); "
        "INSERT INTO a VALUES (1, 'x'); INSERT INTO b VALUES (1, 'y', 7); "
        "CREATE TABLE u (c0 INT, c1 VARCHAR(9), c2 INT, c3 VARCHAR(9), c4 INT)"
    )
    query = "select a.*, b.* from a join b on a.id = b.id -- both"
    columns = ["c0", "c1", "c2", "c3", "c4"]
    shop.sql(tables)
    move(between(make_job, reads(shop, querySql=[query]), writes(shop, column=columns)))
    assert shop.rows("SELECT * FROM u") == [("1", "x", "1", "y", "7")]
    pg.psql(tables)
    with_first = f"with a as (select 1 as id, 'x'::text as v) {query}"
    move(
        between(
            make_job, from_pg(pg, querySql=[with_first]), to_pg(pg, column=columns), "postgresql"
        )
    )
    assert pg.psql("SELECT * FROM u") == "1|x|1|y|7"


def test_whole_numbers_become_times(
    make_job: Any, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As DataX's LongColumn: milliseconds since 1970; a DATETIME shows them in the zone of this machine."""
    monkeypatch.setenv("TZ", "Asia/Shanghai")
    shop.sql(
        "CREATE TABLE t (a BIGINT, b BIGINT); CREATE TABLE u (a DATETIME(3), b TIMESTAMP(3) NULL); "
        "INSERT INTO t VALUES (1706695205250, 1706695205250), (NULL, NULL)"
    )
    move(between(make_job, reads(shop), writes(shop)))
    shown = shop.rows("SELECT a, UNIX_TIMESTAMP(b) FROM u WHERE a IS NOT NULL")
    assert shown == [("2024-01-31 18:00:05.250", "1706695205.250")]
