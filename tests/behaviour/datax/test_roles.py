"""Jobs with roles that may only change rows, on real servers: as with DataX, and with a ledger elsewhere."""

import logging
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from spark_channel.errors import BatchRefusedError, ChannelError, TargetError
from tests.behaviour.datax.test_as_datax import between, from_pg, reads, to_pg, writes
from tests.connectors.mysql.shop import Shop
from tests.connectors.postgresql.pg import Pg, own_schema
from tests.datax.moved import move
from tests.servers.mariadb import MariadbServer
from tests.servers.postgres import PostgresServer

PASSWORD = "only-rows"


@pytest.fixture
def shop(mariadb_server: MariadbServer) -> Iterator[Shop]:
    """With a role `<database>_w` that may change rows, and a database `<database>_o` where it may do everything."""
    name = f"s{uuid.uuid4().hex[:12]}"
    role = f"{name}_w"
    mariadb_server.sql(
        f"CREATE DATABASE {name} CHARACTER SET utf8mb4; CREATE DATABASE {name}_o; "
        f"CREATE USER {role}@'127.0.0.1' IDENTIFIED BY '{PASSWORD}'; "
        f"GRANT SELECT, INSERT, UPDATE, DELETE ON {name}.* TO {role}@'127.0.0.1'; "
        f"GRANT ALL ON {name}_o.* TO {role}@'127.0.0.1'"
    )
    yield Shop(mariadb_server, name)
    mariadb_server.sql(
        f"DROP DATABASE {name}; DROP DATABASE {name}_o; DROP USER {role}@'127.0.0.1'"
    )


@pytest.fixture
def pg(postgres_server: PostgresServer) -> Iterator[Pg]:
    """With a role `<schema>_w` that may change rows, and its schema `<schema>_o`."""
    with own_schema(postgres_server) as made:
        role, other = f"{made.schema}_w", f"{made.schema}_o"
        postgres_server.psql(
            f"CREATE ROLE {role} LOGIN PASSWORD '{PASSWORD}'; CREATE SCHEMA {other} AUTHORIZATION {role}; "
            f"GRANT USAGE ON SCHEMA {made.schema} TO {role}; ALTER DEFAULT PRIVILEGES IN SCHEMA {made.schema} "
            f"GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO {role}"
        )
        yield made
        postgres_server.psql(f"DROP SCHEMA {other} CASCADE; DROP OWNED BY {role}; DROP ROLE {role}")


def as_role(end: dict[str, Any], role: str) -> dict[str, Any]:
    return {**end, "username": role, "password": PASSWORD}


def mysql_job(make_job: Any, shop: Shop, **parameter: Any) -> dict[str, Any]:
    role = f"{shop.database}_w"
    made: dict[str, Any] = between(
        make_job, as_role(reads(shop), role), as_role(writes(shop, **parameter), role)
    )
    return made


def pg_job(make_job: Any, pg: Pg, **parameter: Any) -> dict[str, Any]:
    role = f"{pg.schema}_w"
    made: dict[str, Any] = between(
        make_job, as_role(from_pg(pg), role), as_role(to_pg(pg, **parameter), role), "postgresql"
    )
    return made


def tables(shop: Shop) -> set[str]:
    rows = shop.server.sql(
        f"SELECT CONCAT(table_schema, '.', table_name) FROM information_schema.tables "
        f"WHERE table_schema LIKE '{shop.database}%'"
    )
    return {each.removeprefix(shop.database) for each in rows.split()}


def pg_tables(pg: Pg) -> set[str]:
    rows = pg.psql(
        f"SELECT schemaname || '.' || tablename FROM pg_tables WHERE schemaname LIKE '{pg.schema}%'"
    )
    return {each.removeprefix(pg.schema) for each in rows.split()}


@pytest.mark.parametrize(
    ("mode", "found"),
    [
        ("insert", [("1", "a"), ("2", "b"), ("3", "c")]),
        ("update", [("1", "a"), ("2", "b"), ("3", "c")]),
        ("replace", [("1", "a"), ("2", "b"), ("3", "c")]),
        ("insert ignore", [("1", "old"), ("2", "b"), ("3", "c")]),
    ],
)
def test_a_role_of_mysql_that_may_only_change_rows(
    make_job: Any,
    shop: Shop,
    caplog: pytest.LogCaptureFixture,
    mode: str,
    found: list[tuple[str, ...]],
) -> None:
    shop.sql(
        "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(5)); CREATE TABLE u LIKE t; "
        "INSERT INTO t VALUES (1, 'a'), (2, 'b'), (3, 'c'); INSERT INTO u VALUES (1, 'old')"
    )
    pre = {"preSql": ["delete from u"]} if mode == "insert" else {}
    with caplog.at_level(logging.WARNING):
        move(mysql_job(make_job, shop, writeMode=mode, **pre))
    assert shop.rows("SELECT * FROM u ORDER BY id") == found
    assert tables(shop) == {".t", ".u"}
    assert "at least once" in caplog.text
    assert "CREATE" in caplog.text


def test_a_role_of_mysql_refuses_bad_rows_one_by_one(make_job: Any, shop: Shop) -> None:
    shop.sql(
        "CREATE TABLE t (id INT, v VARCHAR(5)); CREATE TABLE u (id INT PRIMARY KEY, v VARCHAR(1)); "
        "INSERT INTO t VALUES (1, 'a'), (2, 'long'), (NULL, 'b'), (4, 'd')"
    )
    job = mysql_job(make_job, shop, writeMode="insert ignore")
    with pytest.raises(BatchRefusedError, match="Data truncated"):
        # Of rows: the job's exit code is 3.
        move(job)
    assert shop.rows("SELECT * FROM u") == []


@pytest.mark.parametrize("commit", ["job", "task"])
def test_the_ledger_and_staging_of_mysql_in_another_database(
    make_job: Any, shop: Shop, commit: str
) -> None:
    shop.sql(
        "CREATE TABLE t (id INT PRIMARY KEY); CREATE TABLE u LIKE t; INSERT INTO t VALUES (1), (2)"
    )
    other = f"{shop.database}_o"
    job = mysql_job(make_job, shop, stagingSchema=other, ledgerTable=f"{other}.moved")
    for _ in range(2):
        move(job, commit=commit, txn="nightly:1")
    assert shop.rows("SELECT * FROM u ORDER BY id") == [("1",), ("2",)]
    kept = {"_o.moved_transfers"} if commit == "task" else set()
    assert tables(shop) == {".t", ".u", "_o.moved", "_o.moved_tasks", *kept}


def test_a_killed_job_of_another_database_leaves_no_staging(make_job: Any, shop: Shop) -> None:
    shop.sql(
        "CREATE TABLE t (id INT PRIMARY KEY); CREATE TABLE u LIKE t; INSERT INTO t VALUES (1), (2)"
    )
    job = mysql_job(make_job, shop, stagingSchema=f"{shop.database}_o")
    move(job, commit="job", txn="nightly:1", die_after=1)
    assert any("spark_channel_stage" in name for name in tables(shop))
    move(job, commit="job", txn="nightly:1")
    assert shop.rows("SELECT * FROM u ORDER BY id") == [("1",), ("2",)]
    assert not any("stage" in name for name in tables(shop))


def test_two_ledgers_leave_each_others_staging_alone(make_job: Any, shop: Shop, pg: Pg) -> None:
    shop.sql(
        "CREATE TABLE t (id INT PRIMARY KEY); CREATE TABLE u LIKE t; INSERT INTO t VALUES (1), (2)"
    )
    other = f"{shop.database}_o"
    first, second = (
        mysql_job(make_job, shop, stagingSchema=other, ledgerTable=f"{other}.{name}")
        for name in "ab"
    )
    move(first, commit="job", txn="x:1", die_after=1)
    staged = {name for name in tables(shop) if "spark_channel_st" in name}
    assert len(staged) == 1
    move(second, commit="job", txn="y:1")
    assert staged <= tables(shop)
    pg.psql(
        "CREATE TABLE t (id int primary key); CREATE TABLE u (id int); INSERT INTO t VALUES (1), (2)"
    )
    first, second = (pg_job(make_job, pg, ledgerTable=f"{pg.schema}_o.{name}") for name in "ab")
    for each in (first, second):
        each["job"]["content"][0]["writer"]["parameter"]["stagingSchema"] = f"{pg.schema}_o"
    move(first, commit="job", txn="x:1", die_after=1)
    staged = {name for name in pg_tables(pg) if "spark_channel_st" in name}
    assert len(staged) == 1
    move(second, commit="job", txn="y:1")
    assert staged <= pg_tables(pg)
    move(first, commit="job", txn="x:1")
    assert not any("spark_channel_st" in name for name in pg_tables(pg))


@pytest.mark.parametrize("mode", ["insert", "update"])
def test_a_role_of_postgresql_that_may_only_change_rows(
    make_job: Any, pg: Pg, caplog: pytest.LogCaptureFixture, mode: str
) -> None:
    pg.psql(
        "CREATE TABLE t (id int primary key, v text); CREATE TABLE u (id int primary key, v text); "
        "INSERT INTO t VALUES (1, 'a'), (2, 'b'); INSERT INTO u VALUES (1, 'old')"
    )
    pre = {"preSql": ["delete from u"]} if mode == "insert" else {}
    with caplog.at_level(logging.WARNING):
        move(
            pg_job(make_job, pg, writeMode=mode, postSql=["update @table set v = v || '!'"], **pre)
        )
    assert pg.psql("SELECT string_agg(id || v, ' ' ORDER BY id) FROM u") == "1a! 2b!"
    assert pg_tables(pg) == {".t", ".u"}
    assert "at least once" in caplog.text
    assert "permission denied for schema" in caplog.text


def test_claims_of_another_role_are_not_used(
    make_job: Any, pg: Pg, caplog: pytest.LogCaptureFixture
) -> None:
    pg.psql("CREATE TABLE t (id int); CREATE TABLE u (id int); INSERT INTO t VALUES (1)")
    move(between(make_job, from_pg(pg), to_pg(pg), "postgresql"))
    with caplog.at_level(logging.WARNING):
        move(pg_job(make_job, pg))
    assert pg.psql("SELECT count(*) FROM u") == "2"
    assert "owns it" in caplog.text


@pytest.mark.parametrize("commit", ["job", "task"])
def test_the_ledger_and_staging_of_postgresql_in_another_schema(
    make_job: Any, pg: Pg, commit: str
) -> None:
    pg.psql("CREATE TABLE t (id int); CREATE TABLE u (id int); INSERT INTO t VALUES (1), (2)")
    job = pg_job(make_job, pg, stagingSchema=f"{pg.schema}_o")
    for _ in range(2):
        move(job, commit=commit, txn="nightly:1")
    assert pg.psql("SELECT count(*) FROM u") == "2"
    assert {name for name in pg_tables(pg) if not name.startswith("_o.")} == {".t", ".u"}


def test_what_asks_for_a_ledger_is_refused_without_one(make_job: Any, pg: Pg, shop: Shop) -> None:
    pg.psql("CREATE TABLE t (id int); CREATE TABLE u (id int); INSERT INTO t VALUES (1)")
    shop.sql("CREATE TABLE t (id INT); CREATE TABLE u LIKE t; INSERT INTO t VALUES (1)")
    for job in (pg_job(make_job, pg), mysql_job(make_job, shop)):
        with pytest.raises(TargetError, match="stagingSchema"):
            move(job, name="third", commit="job")
        with pytest.raises(TargetError, match="stagingSchema"):
            move(job, txn="nightly:1")
    with pytest.raises(ChannelError, match="a transaction id needs tables"):
        move(pg_job(make_job, pg, ledger="none"), txn="nightly:1")
    assert pg.psql("SELECT count(*) FROM u") == "0"
    assert shop.rows("SELECT * FROM u") == []


def test_a_new_table_of_postgresql_is_staged_elsewhere(pg: Pg) -> None:
    import pyarrow as pa

    writer = pg.writer("made", stagingSchema=f"{pg.schema}_o")
    context = pg.context(job="job")
    plan = writer.prepare(context, pa.schema([("id", pa.int32())]))
    task = writer.open(plan, 0, 0)
    task.write(pa.RecordBatch.from_pydict({"id": pa.array([1, 2], pa.int32())}))
    writer.commit(plan, [task.close()])
    assert pg.psql("SELECT count(*) FROM made") == "2"
    assert not any("stage" in name for name in pg_tables(pg))


def test_the_first_lines_tell_of_it(pg: Pg) -> None:
    import pyarrow as pa

    from spark_channel.progress import JobSpec
    from spark_channel.progress.render import before_lines

    pg.psql("CREATE TABLE u (id int)")
    schema = pa.schema([("id", pa.int32())])
    plans = [
        pg.writer("u", ledger=each).prepare(pg.context(), schema) for each in ("required", "none")
    ]
    assert [plan.at_least_once for plan in plans] == [False, True]
    messages = [
        "\n".join(before_lines("a", JobSpec("transfer", commit="task", at_least_once=each)))
        for each in (False, True)
    ]
    assert "each task's rows once" in messages[0]
    assert "at least once, a retried task can add its rows twice" in messages[1]


def test_a_role_that_may_not_stage_commits_by_task_and_says_so(
    make_job: Any, shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    """The tables of claims are there, as an administrator makes them; a job that may leave out no row stages."""
    shop.sql("CREATE TABLE t (id INT); CREATE TABLE u LIKE t; INSERT INTO t VALUES (1)")
    made = between(make_job, reads(shop), writes(shop))
    made["job"]["setting"]["errorLimit"] = {"record": 0}
    with caplog.at_level(logging.WARNING):
        move(made)
    assert "commit=task" not in caplog.text
    job = mysql_job(make_job, shop)
    job["job"]["setting"]["errorLimit"] = {"record": 0}
    with caplog.at_level(logging.WARNING):
        move(job, name="second")
    assert shop.rows("SELECT * FROM u") == [("1",), ("1",)]
    assert "at least once" not in caplog.text
    assert "(commit=task): for all rows or none" in caplog.text
    assert "run GRANT CREATE" in caplog.text
    with pytest.raises(TargetError, match=r"GRANT CREATE.*or set 'commit' to task"):
        move(job, name="third", commit="job")
