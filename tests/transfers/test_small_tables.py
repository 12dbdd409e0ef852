"""Small tables that are copied in groups: as if each was copied alone, also when runs fail, are killed or meet."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psycopg
import pytest

import spark_channel
from spark_channel.clock import utc_now
from spark_channel.connectors.base.session_pool import keeping_sessions
from spark_channel.connectors.base.small_tables import ReadTable, SmallTable, Together
from spark_channel.connectors.postgresql.session import PgSession, PgWriteSession
from spark_channel.connectors.postgresql.write import small_tables as publishing
from spark_channel.connectors.postgresql.write.small_tables import PostgresTogether
from spark_channel.errors import JobCancelledError, TargetError
from spark_channel.local import LocalMove
from spark_channel.replication import ReplicationReport
from spark_channel.replication.config import load_replication
from spark_channel.replication.groups import groups_of
from spark_channel.replication.plan import plan_replication
from spark_channel.replication.report import TableOutcome
from spark_channel.replication.table_run import RunSettings, TableRun
from spark_channel.replication.tables import find_tables
from spark_channel.transfers import small_tables as carrying
from tests.servers.postgres import PostgresServer

_TABLES = 12
_STAGED = "SELECT count(*) FROM pg_tables WHERE tablename LIKE 'spark\\_channel\\_st%' AND schemaname = 'small_dw'"


@pytest.fixture
def small(postgres_server: PostgresServer) -> Iterator[PostgresServer]:
    """A source schema of small tables, and a target schema."""
    gone = "DROP SCHEMA IF EXISTS small CASCADE; DROP SCHEMA IF EXISTS small_dw CASCADE;"
    tables = "".join(
        f"CREATE TABLE small.t{n} (id int PRIMARY KEY, note text);"
        f"INSERT INTO small.t{n} SELECT n, 'row ' || n FROM generate_series(1, 20) n;"
        for n in range(_TABLES)
    )
    postgres_server.psql(f"{gone} CREATE SCHEMA small; CREATE SCHEMA small_dw; {tables} ANALYZE")
    yield postgres_server
    postgres_server.psql(gone)


def _file(server: PostgresServer, **more: Any) -> dict[str, Any]:
    return {
        "source": server.login,
        "target": {**server.login, "currentSchema": "small_dw"},
        "defaults": {"object": "{table}"},
        "streams": {"small.*": {}},
        **more,
    }


def _incremental(server: PostgresServer, **more: Any) -> dict[str, Any]:
    defaults = {"mode": "incremental", "update_key": "id", "late_seconds": 0}
    return _file(server, defaults={"object": "{table}", **defaults, **more})


def _rows(server: PostgresServer, tables: Sequence[int] = range(_TABLES)) -> set[str]:
    """Count and sum of each of the tables: one value, where all are alike."""
    asked = " UNION ALL ".join(f"SELECT count(*), sum(id) FROM small_dw.t{n}" for n in tables)
    return set(server.psql(asked).splitlines())


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The tables that were published in groups, by their streams."""
    found: list[str] = []
    publish = PostgresTogether.publish

    def noted(self: PostgresTogether, tables: Sequence[SmallTable]) -> None:
        publish(self, tables)
        found.extend(each.stream.rpartition("/")[2] for each in tables if each.is_new)

    monkeypatch.setattr(PostgresTogether, "publish", noted)
    return found


def test_tables_that_are_made_and_tables_that_are_there_get_the_same_rows(
    small: PostgresServer, joined: list[str]
) -> None:
    small.psql(
        "CREATE TABLE small.odd (id uuid, j jsonb, a int[], n numeric, v varchar(5), t time, b bytea, d date);"
        "INSERT INTO small.odd VALUES ('00000000-0000-0000-0000-000000000001', '{\"a\": 1}', '{1,NULL}', 1.50, 'x', "
        "'10:00', '\\x00ff', '2026-01-01'), (NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);"
        'CREATE TABLE small."Mixed Case" ("the id" bigint); INSERT INTO small."Mixed Case" VALUES (7);'
        "CREATE TABLE small.nothing (id int); ANALYZE"
    )
    for run in range(2):
        joined.clear()
        report = spark_channel.replicate(None, _file(small))
        assert report.parked == []
        assert _rows(small) == {"20|210"}
        assert small.psql('SELECT * FROM small_dw."Mixed Case"') == "7"
        assert small.psql("SELECT count(*) FROM small_dw.nothing") == "0"
        shown = "SELECT id, j, a, n, v, t, b, d FROM {}.odd ORDER BY id NULLS LAST"
        assert small.psql(shown.format("small_dw")) == small.psql(shown.format("small"))
        assert {f"small.t{n}" for n in range(_TABLES)} | {"small.nothing"} <= set(joined)
        small.psql("UPDATE small.t1 SET note = 'again'" if run == 0 else "SELECT 1")
    assert small.psql("SELECT DISTINCT note FROM small_dw.t1") == "again"
    assert small.psql(_STAGED) == "0"


@pytest.mark.parametrize("key", [None, ["id"], ["note"]])
def test_first_increments_are_copied_in_groups_and_later_ones_follow(
    small: PostgresServer, joined: list[str], key: list[str] | None
) -> None:
    file = {**_incremental(small, primary_key=key), "parallel": 1}
    small.psql("CREATE TABLE small.none (id int PRIMARY KEY, note text); ANALYZE small.none")
    first = spark_channel.replicate(None, file)
    assert first.parked == []
    found = {each.object: (each.rows, each.position) for each in first.tables}
    assert found.pop("none")[0] == 0
    assert {*found.values()} == {(20, 20)}
    # A table whose rows are matched by another key than its primary key gets that key alone.
    assert len(joined) == (0 if key == ["note"] else _TABLES + 1)
    small.psql("INSERT INTO small.t1 VALUES (21, 'new'), (22, 'newer')")
    small.psql("INSERT INTO small.none VALUES (5, 'first')")
    again = spark_channel.replicate(None, file)
    assert again.parked == []
    done = {each.object: each.rows for each in again.tables if each.state == "done"}
    assert done == {
        "t1": 2 if key is None else 3,
        "none": 1,
    }  # the row at the position is matched again
    assert _rows(small, [1]) == {"22|253"}
    assert _rows(small, [n for n in range(_TABLES) if n != 1]) == {"20|210"}
    # Another stream replaces the rows: the first one does not go on as if they were its own.
    assert spark_channel.replicate(None, _file(small)).parked == []
    parked = spark_channel.replicate(None, file).parked
    assert len(parked) == _TABLES + 1
    assert all("no record of this stream" in each.why for each in parked)
    assert spark_channel.replicate(None, file, full_refresh=True).parked == []
    assert _rows(small, [1]) == {"22|253"}
    assert small.psql(_STAGED) == "0"


def test_a_first_increment_whose_rows_a_part_of_the_primary_key_matches_gets_that_part_as_its_key(
    small: PostgresServer, joined: list[str]
) -> None:
    small.psql("ALTER TABLE small.t1 DROP CONSTRAINT t1_pkey, ADD PRIMARY KEY (id, note)")
    file = {**_incremental(small, primary_key=["id"]), "parallel": 1}
    assert spark_channel.replicate(None, file).parked == []
    assert len(joined) == _TABLES - 1
    small.psql(
        "UPDATE small.t1 SET note = 'moved' WHERE id = 20; INSERT INTO small.t1 VALUES (21, 'x')"
    )
    assert spark_channel.replicate(None, file).parked == []
    assert _rows(small, [1]) == {"21|231"}
    assert small.psql("SELECT note FROM small_dw.t1 WHERE id = 20") == "moved"


def test_a_first_increment_that_another_run_has_published_is_not_copied_again(
    small: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other run begins when this one has planned its tables, and reads more rows."""
    file, look = _incremental(small), PostgresTogether.look
    begun: list[Any] = []

    def later(self: PostgresTogether, tables: Sequence[SmallTable]) -> None:
        if not begun:
            begun.append(tables)
            small.psql("INSERT INTO small.t1 VALUES (21, 'new')")
            assert spark_channel.replicate(None, file, select=["small.t1"]).parked == []
        look(self, tables)

    monkeypatch.setattr(PostgresTogether, "look", later)
    report = spark_channel.replicate(None, {**file, "parallel": 1})
    assert begun
    assert [each.object for each in report.parked] in (["t1"], [])
    assert _rows(small, [1]) == {"21|231"}
    assert _rows(small, [n for n in range(_TABLES) if n != 1]) == {"20|210"}
    report = spark_channel.replicate(None, file)
    assert report.parked == []
    assert _rows(small, [1]) == {"21|231"}


def test_tables_of_several_schema_levels_are_in_groups_of_their_own(
    small: PostgresServer, joined: list[str]
) -> None:
    for n in range(_TABLES):
        small.psql(f"CREATE INDEX by_note{n} ON small.t{n} (note)")
    streams: dict[str, Any] = {"small.*": {"schema": "keys"}}
    streams |= {f"small.t{n}": {"schema": "full"} for n in (2, 3)}
    file = {**_file(small, streams=streams), "parallel": 1}
    assert spark_channel.replicate(None, file).parked == []
    assert len(joined) == _TABLES
    made = small.psql(
        "SELECT tablename FROM pg_indexes WHERE indexname LIKE 'by_note%' AND schemaname = 'small_dw'"
    )
    assert sorted(made.splitlines()) == ["t2", "t3"]


def test_a_table_has_its_own_report_its_own_job_and_its_own_position(
    small: PostgresServer, joined: list[str]
) -> None:
    first = spark_channel.replicate(None, _file(small))
    again = spark_channel.replicate(None, _file(small))
    assert len(joined) == 2 * _TABLES
    for report in (first, again):
        assert {each.rows for each in report.tables} == {20}
        found = [each.report for each in report.tables if each.report is not None]
        assert len({each.job for each in found}) == _TABLES
        assert {each.rows_moved for each in found} == {20}
        assert all(
            each.target.endswith(f'#"{name}"')
            for each, name in zip(found, (t.object for t in report.tables), strict=True)
        )
    kept = small.psql(
        "SELECT kind, count(*), min(epoch), max(epoch), count(DISTINCT batch), sum(row_count) "
        "FROM small_dw.spark_channel_claims GROUP BY kind ORDER BY kind"
    )
    assert kept.splitlines() == ["stream|12|2|2|1|240", "table|12|2|2|0|0"]


_WHOLE = """
CREATE TABLE small.whole{n} (id bigserial PRIMARY KEY, kind int NOT NULL DEFAULT 7 CHECK (kind > 0),
  code varchar(5) UNIQUE, parent bigint REFERENCES small.whole{n}, number int GENERATED ALWAYS AS IDENTITY);
CREATE INDEX whole{n}_lower ON small.whole{n} (lower(code) DESC) WHERE kind > 1;
COMMENT ON TABLE small.whole{n} IS 'it''s {n}';
INSERT INTO small.whole{n} (code) VALUES ('a'), ('b'), (NULL);
"""
_DEFINED = """
SELECT string_agg(replace(d, '{schema}.', ''), '|' ORDER BY d) FROM (
  SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = '{schema}.{table}'::regclass UNION ALL
  SELECT indexdef FROM pg_indexes WHERE schemaname = '{schema}' AND tablename = '{table}' UNION ALL
  SELECT concat_ws(' ', column_name, data_type, character_maximum_length, is_nullable, column_default, is_identity)
    FROM information_schema.columns WHERE table_schema = '{schema}' AND table_name = '{table}' UNION ALL
  SELECT obj_description('{schema}.{table}'::regclass)) AS found (d)
"""


def test_tables_of_a_group_have_their_whole_definition_and_one_that_is_refused_is_made_alone(
    small: PostgresServer, joined: list[str]
) -> None:
    made = "".join(_WHOLE.format(n=n) for n in range(3))
    small.psql(
        f"{made} CREATE FUNCTION small.fine(int) RETURNS boolean IMMUTABLE LANGUAGE sql AS 'SELECT true';"
        "CREATE TABLE small.refused (id int PRIMARY KEY, v int, CONSTRAINT judged CHECK (small.fine(v)));"
        "CREATE INDEX ON small.refused (v); INSERT INTO small.refused VALUES (1, 2); ANALYZE"
    )
    # A function that is gone when the table is made: as on a server that lacks it.
    streams: dict[str, Any] = {"small.whole*": {}, "small.refused": {}}
    defaults = {"object": "{table}", "schema": "full"}
    file = _file(small, defaults=defaults, streams=streams, parallel=1)
    looked = PostgresTogether.look

    def look(self: PostgresTogether, tables: Sequence[SmallTable]) -> None:
        looked(self, tables)
        small.psql(
            "ALTER TABLE small.refused DROP CONSTRAINT judged; DROP FUNCTION small.fine(int)"
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PostgresTogether, "look", look)
        report = spark_channel.replicate(None, file)
    assert [table.state for table in report.tables] == ["done"] * 4, report
    assert sorted(joined) == ["small.whole0", "small.whole1", "small.whole2"]
    for table in ("whole0", "whole1", "whole2", "refused"):
        source, target = (
            small.psql(_DEFINED.format(schema=schema, table=table))
            for schema in ("small", "small_dw")
        )
        assert target == source
        assert "INDEX" in source
    small.psql("INSERT INTO small.whole1 (code) VALUES ('c'), ('d')")
    joined.clear()
    assert spark_channel.replicate(None, file).exit_code == 0
    assert len(joined) == 4
    assert (
        small.psql("INSERT INTO small_dw.whole1 (code) VALUES ('e') RETURNING id, number") == "6|6"
    )


def test_a_group_under_a_limit_and_each_dry_run_name_the_indexes_of_new_tables(
    small: PostgresServer, joined: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    small.psql("".join(_WHOLE.format(n=n) for n in range(2)) + "ANALYZE")
    defaults = {"object": "{table}", "schema": "full"}
    limit = {"rows_per_second": 1_000}
    file = _file(small, defaults=defaults, streams={"small.whole*": {}}, parallel=1, limit=limit)
    plans = plan_replication(load_replication(file), RunSettings(), parallelism=1).tables
    with caplog.at_level("WARNING"):
        caplog.clear()
        assert spark_channel.replicate(None, file).exit_code == 0
    assert sorted(joined) == ["small.whole0", "small.whole1"]
    (said,) = [text for text in caplog.messages if "no limit slows down" in text]
    for plan in plans:
        assert any(build.startswith("index ") for build in plan.builds)
        assert ", ".join(plan.builds) in said


def test_a_table_that_is_refused_is_parked_alone(
    small: PostgresServer, joined: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    small.psql(
        "CREATE TABLE small_dw.t3 (id int CHECK (id < 10), note text); INSERT INTO small_dw.t3 VALUES (1, 'old');"
        "CREATE VIEW small_dw.t4 AS SELECT 1 AS id"
    )
    report = spark_channel.replicate(None, _file(small))
    assert sorted(each.stream for each in report.parked) == ["small.t3", "small.t4"]
    assert "violates check constraint" in next(
        e.why for e in report.parked if e.stream == "small.t3"
    )
    assert small.psql("SELECT * FROM small_dw.t3") == "1|old"
    assert sum("t3 was there before" in each for each in caplog.messages) == 1
    others = [n for n in range(_TABLES) if n not in (3, 4)]
    assert _rows(small, others) == {"20|210"}
    assert sorted(joined) == sorted(f"small.t{n}" for n in others)
    assert small.psql(_STAGED) == "0"


def test_a_target_that_is_in_use_waits_alone(
    small: PostgresServer, monkeypatch: pytest.MonkeyPatch, joined: list[str]
) -> None:
    spark_channel.replicate(None, _file(small))
    joined.clear()
    publish = PostgresTogether.publish

    def published(self: PostgresTogether, tables: Sequence[SmallTable]) -> None:
        publish(self, tables)
        if any(each.stream.endswith("small.t5") for each in tables):
            user.rollback()

    monkeypatch.setattr(PostgresTogether, "publish", published)
    with psycopg.connect(**_login(small)) as user:
        user.execute("LOCK TABLE small_dw.t5 IN ACCESS SHARE MODE")
        report = spark_channel.replicate(None, _file(small))
    assert report.parked == []
    assert _rows(small) == {"20|210"}
    assert "small.t5" not in joined
    assert len(joined) == _TABLES - 1


def test_a_target_that_was_altered_since_it_was_looked_up_is_copied_alone(
    small: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark_channel.replicate(None, _file(small))
    publish = PostgresTogether.publish

    def altered(self: PostgresTogether, tables: Sequence[SmallTable]) -> None:
        if any(each.stream.endswith("small.t2") for each in tables):
            small.psql("ALTER TABLE small_dw.t2 ALTER COLUMN id TYPE real")
        publish(self, tables)

    monkeypatch.setattr(PostgresTogether, "publish", altered)
    report = spark_channel.replicate(None, _file(small))
    assert [each.stream for each in report.parked] in ([], ["small.t2"])
    assert small.psql("SELECT min(id), max(id) FROM small_dw.t2") == "1|20"
    assert _rows(small, [0, 1, 3]) == {"20|210"}


_GONE = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'spark-channel read'"


@pytest.mark.parametrize(
    ("statement", "parked", "alone"),
    [(_GONE, [], 1), ("DROP TABLE small.t5", ["small.t5"], 1), ("DROP TABLE small_dw.t5", [], 1)],
    ids=["the source goes away", "a source table is dropped", "a target is dropped"],
)
def test_what_happens_to_one_table_in_the_middle_of_a_group_harms_no_other(
    small: PostgresServer,
    monkeypatch: pytest.MonkeyPatch,
    joined: list[str],
    statement: str,
    parked: list[str],
    alone: int,
) -> None:
    assert spark_channel.replicate(None, _file(small)).parked == []
    joined.clear()
    small.psql("UPDATE small.t1 SET id = -id")
    read, reads = carrying._read, []

    def noted(*each: Any) -> None:
        reads.append(each)
        if len(reads) == 4:
            small.psql(statement)
        read(*each)

    monkeypatch.setattr(carrying, "_read", noted)
    report = spark_channel.replicate(None, {**_file(small), "parallel": 1})
    assert [each.stream for each in report.parked] == parked
    assert len(joined) == _TABLES - alone
    assert _rows(small, [n for n in range(_TABLES) if n != 1]) == {"20|210"}
    assert _rows(small, [1]) == {"20|-210"}
    left = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'spark-channel%' AND state LIKE 'idle i%'"
    assert small.psql(left) == "0"


@pytest.mark.parametrize("outcome", ["stored", "stored later", "lost"])
def test_a_commit_without_an_answer_loses_and_doubles_nothing(
    small: PostgresServer, monkeypatch: pytest.MonkeyPatch, outcome: str
) -> None:
    original = PgWriteSession.rows
    lost: list[threading.Timer | None] = []

    def finish(connection: Any) -> None:
        with connection:
            connection.execute("COMMIT")

    def rows(self: PgWriteSession, sql: str, parameters: Sequence[Any] = ()) -> Any:
        if sql != "COMMIT" or "publish together" not in self._name or len(lost) > 1:
            return original(self, sql, parameters)
        connection = self._connection
        timer = None
        if outcome == "stored":
            connection.execute(sql)
        elif outcome == "stored later":
            timer = threading.Timer(1, finish, [connection])
            timer.start()
            self._connection = None
        lost.append(timer)
        self.close()
        raise TargetError("gone") from ConnectionError("the connection is lost")

    spark_channel.replicate(None, _file(small), select=["small.t0"])  # makes the tables of claims
    monkeypatch.setattr(PgWriteSession, "rows", rows)
    report = spark_channel.replicate(None, _file(small))
    for timer in lost:
        if timer is not None:
            timer.join()
    assert lost
    assert report.parked == []
    assert _rows(small) == {"20|210"}
    assert len(_positions(small)) <= 2
    monkeypatch.undo()
    report = spark_channel.replicate(None, _file(small))
    assert {each.rows for each in report.tables} == {20}
    assert _rows(small) == {"20|210"}
    assert small.psql(_STAGED) == "0"


_KILLED = """
import os, signal, sys
import spark_channel
from spark_channel.connectors.sql.write.group_claims import GroupClaims
from spark_channel.connectors.postgresql.session import PgSession, PgWriteSession

def dies(cls, name, when, after=0):
    original, called = getattr(cls, name), []
    def method(self, *args, **more):
        counts = cls is not PgWriteSession or "publish together" in self._name
        counts = counts and (name != "rows" or args[0] == "COMMIT")
        if counts:
            called.append(args)
        if counts and len(called) > after and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        found = original(self, *args, **more)
        if counts and len(called) > after:
            os.kill(os.getpid(), signal.SIGKILL)
        return found
    setattr(cls, name, method)

dies(*{
    "claims": (GroupClaims, "take_all", "after"),
    "rows": (PgWriteSession, "copy", "before", 4),
    "published": (GroupClaims, "publish_all", "after"),
    "before": (PgWriteSession, "rows", "before"),
    "committed": (PgWriteSession, "rows", "after"),
}[sys.argv[1]])
spark_channel.replicate(None, sys.argv[2])
"""


@pytest.mark.parametrize("point", ["claims", "rows", "published", "before", "committed"])
def test_a_run_that_is_killed_in_a_group_loses_and_doubles_nothing(
    small: PostgresServer, tmp_path: Path, point: str
) -> None:
    file = tmp_path / "small.yml"
    file.write_text(json.dumps({**_file(small), "parallel": 2}))
    spark_channel.replicate(None, str(file), select=["small.t1", "small.t7"])
    small.psql("UPDATE small.t1 SET id = id + 100")
    root = str(Path(spark_channel.__file__).parents[1])
    killed = subprocess.run(
        [sys.executable, "-c", _KILLED, point, str(file)],
        env={**os.environ, "PYTHONPATH": root},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()[-2000:]
    for n in range(_TABLES):
        if small.psql(f"SELECT to_regclass('small_dw.t{n}') IS NOT NULL") == "t":
            assert _rows(small, [n]) <= {"20|210", "20|2210"}
    report = spark_channel.replicate(None, str(file))
    assert report.parked == []
    assert _rows(small, [n for n in range(_TABLES) if n != 1]) == {"20|210"}
    assert _rows(small, [1]) == {"20|2210"}
    assert small.psql(_STAGED) == "0"


@pytest.mark.parametrize("point", ["rows", "published", "committed"])
def test_a_run_that_is_killed_in_a_group_of_first_increments_loses_and_doubles_nothing(
    small: PostgresServer, tmp_path: Path, point: str
) -> None:
    file = tmp_path / "small.yml"
    file.write_text(json.dumps({**_incremental(small), "parallel": 2}))
    spark_channel.replicate(None, str(file), select=["small.t1"])
    root = str(Path(spark_channel.__file__).parents[1])
    killed = subprocess.run(
        [sys.executable, "-c", _KILLED, point, str(file)],
        env={**os.environ, "PYTHONPATH": root},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()[-2000:]
    small.psql("; ".join(f"INSERT INTO small.t{n} VALUES (21, 'new')" for n in range(_TABLES)))
    report = spark_channel.replicate(None, str(file))
    assert report.parked == []
    assert _rows(small) == {"21|231"}
    assert small.psql(_STAGED) == "0"


# Groups as the connector has them.


def _login(server: PostgresServer) -> dict[str, Any]:
    return {
        "host": "127.0.0.1",
        "port": server.port,
        "user": server.user,
        "password": server.password,
        "dbname": "postgres",
    }


def _group(server: PostgresServer, numbers: Sequence[int]) -> tuple[Together, list[SmallTable]]:
    """The tables, looked up and read."""
    found = {each.stream: each for each in find_tables(load_replication(_file(server))).copies}
    report = ReplicationReport("run", utc_now())
    runs: list[TableRun] = []
    for number in numbers:
        copy = found[f"small.t{number}"]
        outcome = TableOutcome(copy.stream, copy.object, copy.mode)
        like = runs[0] if runs else None
        runs.append(TableRun(copy, outcome, RunSettings(), report, like=like))
    together, tables = runs[0].together(), [each.small_table() for each in runs]
    assert together is not None
    together.look(tables)
    with together.reading(at_once=True) as read_rows:
        for table in tables:
            table.batches = list(read_rows(table))
            table.rows = sum(each.num_rows for each in table.batches)
    assert [each.why for each in tables] == [None] * len(tables)
    return together, tables


def _positions(server: PostgresServer) -> set[str]:
    asked = "SELECT DISTINCT batch FROM small_dw.spark_channel_claims WHERE kind = 'stream'"
    return set(server.psql(asked).splitlines())


def test_a_rerun_and_an_older_run_add_nothing(small: PostgresServer) -> None:
    together, tables = _group(small, [1, 2, 3])
    for table in tables:
        table.position = 20
    together.publish(tables)
    assert [each.is_new for each in tables] == [True] * 3
    for position in (20, 10):
        together, later = _group(small, [3, 2, 1])
        for table in later:
            table.position, table.batches = position, []
        together.publish(later)
        assert [(each.is_new, each.why) for each in later] == [(False, None)] * 3
        assert all(each.published_at for each in later)
    assert _rows(small, [1, 2, 3]) == {"20|210"}
    assert _positions(small) == {"20"}


def test_rows_that_were_read_before_another_run_published_do_not_replace_its_rows(
    small: PostgresServer,
) -> None:
    """The other run began earlier, read later, and published first."""

    def publish(group: tuple[Together, list[SmallTable]], position: int) -> list[SmallTable]:
        for table in group[1]:
            table.position = position
        group[0].publish(group[1])
        return group[1]

    publish(_group(small, [1, 2, 3]), 5)
    first = _group(small, [1, 2, 3])
    small.psql("UPDATE small.t1 SET note = note || ' new'")
    assert [each.is_new for each in publish(_group(small, [1, 2]), 10)] == [True, True]
    slow = publish(first, 20)
    shown = "SELECT string_agg(note, ',' ORDER BY id) FROM {}.t1"
    assert small.psql(shown.format("small_dw")) == small.psql(shown.format("small"))
    assert [each.is_new for each in slow] == [False, False, True]
    assert [each.published_at is None for each in slow] == [True, True, False]
    assert "another run" in str(slow[0].why)
    report = spark_channel.replicate(None, _file(small))
    assert report.parked == []
    assert _rows(small) == {"20|210"}


def test_groups_that_overlap_in_another_order_do_not_wait_for_each_other(
    small: PostgresServer,
) -> None:
    """The second round has claims and tables that are there, the first one makes them."""
    for begin in (10, 20, 30):
        groups = [_group(small, order) for order in (range(12), range(11, 3, -1), [5, 0, 7, 2])]
        ready = threading.Barrier(len(groups))
        failed: list[Exception] = []

        def publish(together: Together, tables: list[SmallTable], position: int) -> None:
            for table in tables:
                table.position = position
            ready.wait()  # noqa: B023 - the threads end in this round
            try:
                with keeping_sessions():
                    together.publish(tables)
            except Exception as error:
                failed.append(error)  # noqa: B023 - the thread ends in the same turn

        threads = [
            threading.Thread(target=publish, args=(*each, begin + number))
            for number, each in enumerate(groups)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert not any(isinstance(each, TargetError) and "deadlock" in str(each) for each in failed)
        done = [table for _, tables in groups for table in tables if table.published_at is not None]
        assert done
        for _, tables in groups:
            for table in tables:
                assert "deadlock" not in str(table.why)
    spark_channel.replicate(None, _file(small))
    assert _rows(small) == {"20|210"}


def test_a_single_run_that_prepared_before_a_group_adds_nothing(small: PostgresServer) -> None:
    from spark_channel.connectors import WriteContext
    from spark_channel.errors import SupersededError

    _, tables = _group(small, [1])
    assert tables[0].schema is not None
    context = WriteContext(
        "single", "job", overwrite=True, stream=(tables[0].stream, 10), alone=True
    )
    plan = tables[0].writer.prepare(context, tables[0].schema)
    task = tables[0].writer.open(plan, 0, 0)
    receipt = task.close()
    together, tables = _group(small, [1, 2])
    for table in tables:
        table.position = 20
    together.publish(tables)
    assert [each.is_new for each in tables] == [True, True]
    try:
        tables[0].writer.commit(plan, [receipt])
    except SupersededError:
        pass
    tables[0].writer.abort(plan, [receipt])
    assert _rows(small, [1, 2]) == {"20|210"}
    assert small.psql(_STAGED) == "0"


# What a group holds, and for how long.


def test_a_locked_source_table_holds_up_no_other_and_no_application(
    small: PostgresServer, monkeypatch: pytest.MonkeyPatch, joined: list[str]
) -> None:
    """The application alters a table that the group is to read, then one that it has read."""
    begun, done = threading.Event(), threading.Event()
    seconds: list[float] = []
    failed: list[Exception] = []
    look = PostgresTogether.look

    def alter() -> None:
        try:
            with psycopg.connect(**_login(small)) as user:
                user.execute("LOCK TABLE small.t5 IN ACCESS EXCLUSIVE MODE")
                begun.set()
                waits = (
                    "SELECT 1 FROM pg_locks WHERE relation = 'small.t5'::regclass AND NOT granted"
                )
                with psycopg.connect(**_login(small), autocommit=True) as other:
                    while not other.execute(waits).fetchone():
                        time.sleep(0.01)
                began = time.monotonic()
                user.execute("LOCK TABLE small.t1 IN ACCESS EXCLUSIVE MODE")
                seconds.append(time.monotonic() - began)
                done.wait(3)
        except Exception as error:
            failed.append(error)

    def looked(self: PostgresTogether, tables: Sequence[SmallTable]) -> None:
        look(self, tables)
        if not begun.is_set():
            thread.start()
            begun.wait(10)

    monkeypatch.setattr(PostgresTogether, "look", looked)
    thread = threading.Thread(target=alter)
    report = spark_channel.replicate(None, {**_file(small), "parallel": 1})
    done.set()
    thread.join()
    assert not failed
    assert seconds[0] < 0.5
    assert report.parked == []
    assert "small.t5" not in joined
    assert len(joined) == _TABLES - 1
    assert _rows(small) == {"20|210"}


def test_a_table_is_paid_before_the_next_one_is_read(
    small: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    read, pay = carrying._read, carrying._pay

    def noted_read(*each: Any) -> None:
        events.append("read")
        read(*each)

    def noted_pay(*each: Any) -> float:
        events.append("paid")
        return pay(*each)

    monkeypatch.setattr(carrying, "_read", noted_read)
    monkeypatch.setattr(carrying, "_pay", noted_pay)
    monkeypatch.setattr(carrying, "_LONGEST_SECONDS", 0)
    published: list[int] = []
    publish = PostgresTogether.publish

    def noted(self: PostgresTogether, tables: Sequence[SmallTable]) -> None:
        published.append(len(tables))
        publish(self, tables)

    monkeypatch.setattr(PostgresTogether, "publish", noted)
    limit = {"rows_per_second": 1_000}
    report = spark_channel.replicate(None, {**_file(small, limit=limit), "parallel": 1})
    assert report.parked == []
    assert events == ["read", "paid"] * _TABLES
    assert published == [1] * _TABLES
    assert {each.rows for each in report.tables} == {20}
    assert _rows(small) == {"20|210"}


@pytest.mark.parametrize("error", [RuntimeError("no"), JobCancelledError("the run was ended")])
def test_what_was_published_before_a_group_fails_is_not_copied_again(
    small: PostgresServer, monkeypatch: pytest.MonkeyPatch, joined: list[str], error: Exception
) -> None:
    read, alone, reads = carrying._read, LocalMove.__call__, []

    def failing(read_rows: ReadTable, table: SmallTable) -> None:
        reads.append(table)
        if len(reads) == 4:
            raise error
        read(read_rows, table)

    def noted(self: LocalMove, spec: Any, more: Mapping[str, Any]) -> Any:
        copied.append(spec)
        return alone(self, spec, more)

    copied: list[Any] = []
    monkeypatch.setattr(carrying, "_read", failing)
    monkeypatch.setattr(carrying, "_LONGEST_SECONDS", -1)
    monkeypatch.setattr(LocalMove, "__call__", noted)
    report = spark_channel.replicate(None, {**_file(small), "parallel": 1})
    assert (len(joined), len(copied)) == (3, _TABLES - 3)
    assert [(each.state, each.rows) for each in report.tables] == [("done", 20)] * _TABLES
    assert _rows(small) == {"20|210"}


def test_a_transaction_that_lasts_too_long_is_given_up(
    small: PostgresServer, monkeypatch: pytest.MonkeyPatch, joined: list[str]
) -> None:
    monkeypatch.setattr(publishing, "LONGEST_SECONDS", -1)
    report = spark_channel.replicate(None, _file(small))
    assert report.parked == []
    assert joined == []
    assert _rows(small) == {"20|210"}


@pytest.mark.parametrize(("own", "holds"), [("0", "5s"), ("3s", "3s"), ("1min", "5s")])
def test_each_statement_at_the_tables_is_bounded(
    small: PostgresServer, monkeypatch: pytest.MonkeyPatch, own: str, holds: str
) -> None:
    found: set[str] = set()
    copy = PgWriteSession.copy

    def noted(self: PgWriteSession, *each: Any) -> None:
        if "together" in self._name:
            found.add(str(self.value("SHOW statement_timeout")))
        copy(self, *each)

    monkeypatch.setattr(PgWriteSession, "copy", noted)
    small.psql(f"ALTER ROLE CURRENT_USER SET statement_timeout = '{own}'")
    try:
        report = spark_channel.replicate(None, _file(small))
    finally:
        small.psql("ALTER ROLE CURRENT_USER RESET statement_timeout")
    assert report.parked == []
    assert found == {holds}


# What is grouped.


def test_two_tables_with_one_target_are_not_in_one_transaction(
    small: PostgresServer, joined: list[str]
) -> None:
    streams = {"small.*": {}, "small.t0": {"object": "small_dw.t1"}}
    for _ in range(2):  # the second run replaces what the first one has made
        joined.clear()
        report = spark_channel.replicate(None, {**_file(small, streams=streams), "parallel": 1})
        assert report.parked == []
        assert _rows(small, [1]) == {"20|210"}
        assert len(joined) == _TABLES - 1


def test_tables_with_options_of_their_own_are_copied_alone(
    small: PostgresServer, joined: list[str]
) -> None:
    streams: Mapping[str, Any] = {
        "small.*": {},
        "small.t1": {"target_options": {"batchSize": "100"}},
        "small.t2": {"columns": {"*.note": "drop"}},
        "small.t3": {"where": "id < 5"},
        "small.t4": {"load_columns": "true"},
    }
    report = spark_channel.replicate(None, _file(small, streams=dict(streams)))
    assert report.parked == []
    assert sorted(joined) == sorted(f"small.t{n}" for n in (0, *range(5, _TABLES)))
    assert _rows(small, [1, 2, 4, 5]) == {"20|210"}
    assert _rows(small, [3]) == {"4|10"}


def test_a_table_that_has_grown_since_the_catalog_was_read_is_copied_alone(
    small: PostgresServer, joined: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_channel.transfers.small_tables._MOST_READ", 2_000)
    small.psql("INSERT INTO small.t6 SELECT n, 'row' FROM generate_series(21, 1000) n")
    report = spark_channel.replicate(None, _file(small))
    assert report.parked == []
    assert "small.t6" not in joined
    assert len(joined) == _TABLES - 1
    assert small.psql("SELECT count(*) FROM small_dw.t6") == "1000"


def test_values_outside_of_the_rows_count(small: PostgresServer, joined: list[str]) -> None:
    """A group that reads a table of long values to no end has read rows which nobody paid."""
    small.psql(
        "ALTER TABLE small.t6 ALTER COLUMN note SET STORAGE EXTERNAL; UPDATE small.t6 SET note = repeat('x', 50000)"
    )
    report = spark_channel.replicate(None, _file(small))
    assert report.parked == []
    assert report.tables[0].stream == "small.t6"  # the largest comes first
    assert "small.t6" not in joined
    assert len(joined) == _TABLES - 1


def test_groups_are_bounded_and_leave_each_thread_one(small: PostgresServer) -> None:
    copies = dict(enumerate(find_tables(load_replication(_file(small))).copies))
    assert sorted(map(len, groups_of(4, copies))) == [3, 3, 3, 3]
    assert sorted(map(len, groups_of(1, copies))) == [_TABLES]


@pytest.mark.parametrize("speed", [None, 100_000])
def test_a_small_table_of_a_group_takes_few_statements(
    small: PostgresServer, monkeypatch: pytest.MonkeyPatch, joined: list[str], speed: int | None
) -> None:
    """Tables are read in one transaction where no limit is waited for in it, and made or emptied by one statement."""
    sent: list[str] = []
    reads: list[str] = []
    affected, begin = PgWriteSession.affected, PgSession.begin

    def noted(self: PgWriteSession, sql: str) -> Any:
        sent.append(sql)
        return affected(self, sql)

    def noted_begin(self: PgSession, modes: str = "", *first: str) -> None:
        if self._name == "spark-channel read":
            reads.append("; ".join(first))
        begin(self, modes, *first)

    monkeypatch.setattr(PgWriteSession, "affected", noted)
    monkeypatch.setattr(PgSession, "begin", noted_begin)
    limit = {} if speed is None else {"limit": {"rows_per_second": speed}}
    file = {**_file(small, **limit), "parallel": 1, "defaults": {}}
    for most in (36, 30):  # the first run makes the tables of claims, too
        sent.clear()
        reads.clear()
        joined.clear()
        assert spark_channel.replicate(None, file).parked == []
        assert len(joined) == _TABLES
        assert len(sent) < most, sent  # none of each table
        assert len(reads) == (1 if speed is None else _TABLES)
        # A process that is stopped in the middle holds no table for long.
        assert speed is not None or "idle_in_transaction_session_timeout = '5s'" in reads[0]
