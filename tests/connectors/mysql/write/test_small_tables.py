"""Small tables that are copied in groups, on each server: as if each was copied alone, also when runs fail or are
killed.
"""

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import spark_channel
from spark_channel.clock import utc_now
from spark_channel.connectors.base.small_tables import SmallTable, Together
from spark_channel.connectors.mysql.session import LostConnectionError, MysqlWriteSession
from spark_channel.connectors.mysql.write import small_tables as publishing
from spark_channel.connectors.mysql.write.small_tables import MysqlTogether
from spark_channel.connectors.mysql.write.table_locks import table_lock
from spark_channel.connectors.sql.write.group_claims import GroupClaims
from spark_channel.errors import TargetError
from spark_channel.replication import ReplicationReport
from spark_channel.replication.config import load_replication
from spark_channel.replication.report import TableOutcome
from spark_channel.replication.table_run import RunSettings, TableRun
from spark_channel.replication.tables import find_tables
from spark_channel.transfers import small_tables as carrying
from tests.servers.mariadb import MariadbServer, MysqlServer

_TABLES = 8


@dataclass
class _Small:
    """A source database of small tables, and a target database."""

    server: MariadbServer
    source: str
    target: str

    def file(self, **more: Any) -> dict[str, Any]:
        url = self.server.url.rpartition("/")[0]
        return {
            "source": {**self.server.login, "url": f"{url}/{self.source}"},
            "target": {**self.server.login, "url": f"{url}/{self.target}"},
            "defaults": {"object": "{table}"},
            "streams": {"*": {}},
            **more,
        }

    def sql(self, statement: str) -> str:
        """`SOURCE.` and `TARGET.` in it are the databases."""
        return self.server.sql(
            statement.replace("SOURCE.", f"{self.source}.").replace("TARGET.", f"{self.target}.")
        )

    def rows(self, tables: Sequence[int] = range(_TABLES)) -> set[str]:
        """Count and sum of each of the tables: one value, where all are alike."""
        asked = (f"SELECT COUNT(*), SUM(id) FROM TARGET.t{n}" for n in tables)
        return set(self.sql(" UNION ALL ".join(asked)).splitlines())

    def tables(self) -> set[str]:
        return set(self.sql(f"SHOW TABLES FROM {self.target}").splitlines())


@pytest.fixture
def small(mariadb_server: MariadbServer) -> Iterator[_Small]:
    own = uuid.uuid4().hex[:10]
    made = _Small(mariadb_server, f"small_{own}", f"small_{own}_dw")
    values = ", ".join(f"({n}, 'row {n}')" for n in range(1, 21))
    tables = "".join(
        f"CREATE TABLE SOURCE.t{n} (id INT PRIMARY KEY, note VARCHAR(40), KEY by_note (note));"
        f"INSERT INTO SOURCE.t{n} VALUES {values};"
        for n in range(_TABLES)
    )
    databases = "".join(
        f"CREATE DATABASE {name} CHARACTER SET utf8mb4;" for name in (made.source, made.target)
    )
    made.sql(databases + tables)
    yield made
    made.sql(f"DROP DATABASE {made.source}; DROP DATABASE {made.target}")


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The tables that were published in groups."""
    found: list[str] = []
    publish = MysqlTogether.publish

    def noted(self: MysqlTogether, tables: Sequence[SmallTable]) -> None:
        publish(self, tables)
        found.extend(each.stream.rpartition(".")[2] for each in tables if each.is_new)

    monkeypatch.setattr(MysqlTogether, "publish", noted)
    return found


_WHOLE = """
CREATE TABLE SOURCE.whole{n} (id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT, kind ENUM('a', 'it''s') NOT NULL DEFAULT 'a'
    COMMENT 'of, (what)', amount DECIMAL(10,2) DEFAULT 0.00 CHECK (amount >= 0),
  twice DECIMAL(12,2) GENERATED ALWAYS AS (amount * 2) STORED,
  changed TIMESTAMP(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3) ON UPDATE CURRENT_TIMESTAMP(3), b BLOB, note TEXT,
  PRIMARY KEY (id), UNIQUE KEY by_kind (kind, id), KEY by_note (note(20))) COMMENT='table {n}';
INSERT INTO SOURCE.whole{n} (id, amount, b, note) VALUES (1, 1, x'00ff', 'a\\nb'), (2, 2, NULL, ''), (900, 3, '', 'c');
"""


@pytest.mark.parametrize("level", ["columns", "keys", "full"])
def test_tables_that_are_made_and_tables_that_are_there_get_the_same_rows(
    small: _Small, joined: list[str], level: str
) -> None:
    small.sql(_WHOLE.format(n=1) + "CREATE TABLE SOURCE.nothing (id INT)")
    file = small.file(defaults={"object": "{table}", "schema": level}, parallel=1)
    for run in range(2):
        joined.clear()
        assert spark_channel.replicate(None, file).parked == []
        assert small.rows() == {"20\t210"}
        assert {f"t{n}" for n in range(_TABLES)} | {"nothing"} <= set(joined)
        # A generated column of a table that is there: such a table is written alone.
        assert ("whole1" in joined) == (run == 0 or level != "full")
        for table in ("whole1", "t1", "nothing"):
            shown = "SELECT id, amount, CAST(changed AS DATETIME(3)), HEX(b), note FROM {}.whole1 ORDER BY id"
            if table == "whole1":
                assert small.sql(shown.format("TARGET")) == small.sql(shown.format("SOURCE"))
            if level == "full":
                made = (
                    small.sql(f"SHOW CREATE TABLE {each}.{table}") for each in ("SOURCE", "TARGET")
                )
                assert len(set(made)) == 1
        if run == 0:
            small.sql("UPDATE SOURCE.t1 SET note = 'again'")
    assert small.sql("SELECT DISTINCT note FROM TARGET.t1") == "again"


@pytest.mark.real_server("MySQL", "mysql")
def test_a_type_that_the_target_shows_under_another_name_sends_no_table_alone(
    small: _Small, mysql_server: MysqlServer, joined: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """MariaDB makes LONGTEXT of JSON."""
    made = "id INT PRIMARY KEY, kept JSON, at DATETIME DEFAULT CURRENT_TIMESTAMP"
    values = """(1, '{"a": 1}', '2026-01-01'), (2, NULL, '2026-01-02')"""
    mysql_server.sql(
        f"CREATE DATABASE {small.source} COLLATE utf8mb4_unicode_ci; USE {small.source};"
        + "".join(
            f"CREATE TABLE j{n} ({made}); INSERT INTO j{n} VALUES {values};" for n in range(_TABLES)
        )
    )
    source = {
        **mysql_server.login,
        "url": f"{mysql_server.url.rpartition('/')[0]}/{small.source}",
    }
    defaults = {"object": "{table}", "schema": "full"}
    file = small.file(source=source, defaults=defaults, parallel=1)
    with caplog.at_level(logging.INFO):
        report = spark_channel.replicate(None, file)
    mysql_server.sql(f"DROP DATABASE {small.source}")
    assert report.parked == []
    assert sorted(joined) == [f"j{n}" for n in range(_TABLES)]
    assert "is copied alone" not in caplog.text
    for n in range(_TABLES):
        assert small.sql(f"SELECT id, kept, DATE(at) FROM TARGET.j{n} ORDER BY id") == (
            '1\t{"a": 1}\t2026-01-01\n2\tNULL\t2026-01-02'
        )


def test_a_table_has_its_own_report_its_own_job_and_its_own_position(
    small: _Small, joined: list[str]
) -> None:
    reports = [spark_channel.replicate(None, small.file()) for _ in range(2)]
    assert len(joined) == 2 * _TABLES
    for report in reports:
        found = [each.report for each in report.tables if each.report is not None]
        assert len({each.job for each in found}) == _TABLES
        assert {each.rows_moved for each in found} == {20}
    kept = small.sql(
        "SELECT kind, COUNT(*), MIN(epoch), MAX(epoch), COUNT(DISTINCT batch), SUM(row_count) "
        "FROM TARGET.spark_channel_claims GROUP BY kind ORDER BY kind"
    )
    assert [line.split("\t") for line in kept.splitlines()] == [
        ["stream", "8", "2", "2", "1", "160"],
        ["table", "8", "2", "2", "0", "0"],
    ]


def test_what_is_refused_is_parked_alone(small: _Small, joined: list[str]) -> None:
    small.sql(
        "CREATE TABLE TARGET.t3 (id INT CHECK (id < 10), note VARCHAR(40)); INSERT INTO TARGET.t3 VALUES (1, 'old');"
        "CREATE VIEW TARGET.t4 AS SELECT 1 AS id; CREATE TABLE TARGET.t5 (id INT, note VARCHAR(40)) ENGINE=MyISAM;"
    )
    report = spark_channel.replicate(None, small.file(parallel=1))
    assert sorted(each.object for each in report.parked) == ["t3", "t4", "t5"]
    assert small.sql("SELECT * FROM TARGET.t3") == "1\told"
    others = [n for n in range(_TABLES) if n not in (3, 4, 5)]
    assert small.rows(others) == {"20\t210"}
    assert sorted(joined) == sorted(f"t{n}" for n in others)


def test_triggers_and_cascades_of_a_target_are_met_by_a_copy_of_it_alone(
    small: _Small, joined: list[str]
) -> None:
    small.sql(
        "CREATE TABLE TARGET.t1 (id INT PRIMARY KEY, note VARCHAR(40)); CREATE TABLE TARGET.t2 LIKE TARGET.t1;"
        "CREATE TRIGGER TARGET.own BEFORE INSERT ON TARGET.t1 FOR EACH ROW SET NEW.note = 'own';"
        "CREATE TABLE TARGET.child (id INT, FOREIGN KEY (id) REFERENCES TARGET.t2 (id) ON DELETE CASCADE);"
        "INSERT INTO TARGET.t2 VALUES (1, 'x'); INSERT INTO TARGET.child VALUES (1)"
    )
    report = spark_channel.replicate(None, small.file(parallel=1))
    assert [each.object for each in report.parked] == ["t2"]
    assert small.sql("SELECT * FROM TARGET.child") == "1"
    assert small.sql("SELECT DISTINCT note FROM TARGET.t1") == "own"
    assert {"t1", "t2"}.isdisjoint(joined)
    assert len(joined) == _TABLES - 2


@pytest.mark.parametrize(
    ("name", "statement"),
    [
        ("publish", "ALTER TABLE TARGET.t2 MODIFY id BIGINT"),
        ("publish", "DROP TABLE TARGET.t2"),
        ("reading", "ALTER TABLE SOURCE.t2 MODIFY note VARCHAR(50)"),
    ],
    ids=["a target is altered", "a target is dropped", "a source is altered"],
)
def test_what_happens_to_one_table_of_a_group_harms_no_other(
    small: _Small, monkeypatch: pytest.MonkeyPatch, joined: list[str], name: str, statement: str
) -> None:
    assert spark_channel.replicate(None, small.file()).parked == []
    joined.clear()
    original = getattr(MysqlTogether, name)
    done: list[int] = []

    def first(self: MysqlTogether, *given: Any, **more: Any) -> Any:
        if not done:
            done.append(1)
            small.sql(statement)
        return original(self, *given, **more)

    monkeypatch.setattr(MysqlTogether, name, first)
    report = spark_channel.replicate(None, small.file(parallel=1))
    assert report.parked == []
    assert sorted(joined) == sorted(f"t{n}" for n in range(_TABLES) if n != 2)
    assert small.rows() == {"20\t210"}


def test_a_target_that_another_job_publishes_is_waited_for_alone(
    small: _Small, monkeypatch: pytest.MonkeyPatch, joined: list[str]
) -> None:
    """Its lock is free again when the group has ended."""
    writer = _group(small, [5])[1][0].writer
    holder = MysqlWriteSession(writer.options, TargetError)  # type: ignore[arg-type] # a MySQL writer's
    lock = table_lock(f"{small.target}.t5")
    holder.rows("SELECT GET_LOCK(%s, 0)", [lock])
    publish = MysqlTogether.publish

    def freed(self: MysqlTogether, tables: Sequence[SmallTable]) -> None:
        publish(self, tables)
        holder.close()

    monkeypatch.setattr(MysqlTogether, "publish", freed)
    assert spark_channel.replicate(None, small.file(parallel=1)).parked == []
    assert sorted(joined) == sorted(f"t{n}" for n in range(_TABLES) if n != 5)
    assert small.rows() == {"20\t210"}


@pytest.mark.parametrize("kind", ["grown", "unreadable"])
def test_a_table_that_cannot_be_read_to_its_end_is_copied_alone(
    small: _Small, joined: list[str], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    if kind == "grown":
        monkeypatch.setattr("spark_channel.transfers.small_tables._MOST_READ", 2_000)
        values = ", ".join(f"({n}, 'row')" for n in range(21, 1000))
        small.sql(f"INSERT INTO SOURCE.t6 VALUES {values}")
    else:
        small.sql("ALTER TABLE SOURCE.t6 ADD day DATE")
        small.sql("SET SESSION sql_mode = ''; UPDATE SOURCE.t6 SET day = '0000-00-00' WHERE id = 7")
    report = spark_channel.replicate(None, small.file(parallel=1))
    assert [each.stream.rpartition(".")[2] for each in report.parked] == (
        ["t6"] if kind == "unreadable" else []
    )
    assert sorted(joined) == [f"t{n}" for n in range(_TABLES) if n != 6]
    assert small.rows([n for n in range(_TABLES) if n != 6]) == {"20\t210"}
    if kind == "grown":
        assert small.rows([6]) == {f"999\t{999 * 1000 // 2}"}


@pytest.mark.parametrize("key", [None, ["id"], ["note"]])
def test_first_increments_are_copied_in_groups_and_later_ones_follow(
    small: _Small, joined: list[str], key: list[str] | None
) -> None:
    defaults = {"mode": "incremental", "update_key": "id", "late_seconds": 0}
    file = small.file(defaults={"object": "{table}", **defaults, "primary_key": key}, parallel=1)
    first = spark_channel.replicate(None, file)
    assert first.parked == []
    assert {(each.rows, each.position) for each in first.tables} == {(20, 20)}
    # A table whose rows are matched by another key than its primary key gets that key alone.
    assert len(joined) == (0 if key == ["note"] else _TABLES)
    small.sql("INSERT INTO SOURCE.t1 VALUES (21, 'new'), (22, 'newer')")
    again = spark_channel.replicate(None, file)
    assert again.parked == []
    assert {each.object: each.rows for each in again.tables if each.state == "done"} == {
        "t1": 2 if key is None else 3  # the row at the position is matched again
    }
    assert small.rows([1]) == {"22\t253"}
    assert small.rows([n for n in range(_TABLES) if n != 1]) == {"20\t210"}
    # Another stream replaces the rows: the first one does not go on as if they were its own.
    assert spark_channel.replicate(None, small.file()).parked == []
    parked = spark_channel.replicate(None, file).parked
    assert len(parked) == _TABLES
    assert all("no record of this stream" in each.why for each in parked)


def test_a_transaction_that_lasts_too_long_is_followed_by_another_one(
    small: _Small, monkeypatch: pytest.MonkeyPatch, joined: list[str]
) -> None:
    monkeypatch.setattr(publishing, "LONGEST_SECONDS", -1)
    written: list[int] = []
    write = MysqlTogether.write

    def noted(self: MysqlTogether, *given: Any, **more: Any) -> list[SmallTable]:
        new = write(self, *given, **more)
        written.append(len(new))
        return new

    monkeypatch.setattr(MysqlTogether, "write", noted)
    for _ in range(2):
        assert spark_channel.replicate(None, small.file(parallel=1)).parked == []
        assert small.rows() == {"20\t210"}
    assert written == [1] * 2 * _TABLES
    assert len(joined) == 2 * _TABLES


def test_new_tables_of_a_group_that_fails_are_dropped(
    small: _Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise TargetError("no")

    monkeypatch.setattr(GroupClaims, "publish_all", refuse)
    together, tables = _group(small, [1, 2])
    together.publish(tables)
    assert ["refused" in str(each.why) for each in tables] == [True, True]
    assert small.tables() == {"spark_channel_claims", "spark_channel_tasks"}


@pytest.mark.parametrize("stored", [True, False])
def test_a_commit_without_an_answer_loses_and_doubles_nothing(
    small: _Small, monkeypatch: pytest.MonkeyPatch, *, stored: bool
) -> None:
    original = MysqlWriteSession.commit
    lost: list[int] = []

    def commit(self: MysqlWriteSession) -> None:
        if lost:
            original(self)
            return
        lost.append(1)
        if stored:
            original(self)
        self.abandon()
        raise LostConnectionError("the connection is lost")

    spark_channel.replicate(None, small.file(), select=["*.t0"])  # makes the tables of claims
    monkeypatch.setattr(MysqlWriteSession, "commit", commit)
    report = spark_channel.replicate(None, small.file(parallel=1))
    assert lost
    assert report.parked == []
    assert small.rows() == {"20\t210"}
    monkeypatch.undo()
    assert {each.rows for each in spark_channel.replicate(None, small.file()).tables} == {20}
    assert small.rows() == {"20\t210"}


_KILLED = """
import os, signal, sys
import spark_channel
from spark_channel.connectors.mysql.write import small_tables as together
from spark_channel.connectors.mysql.session import MysqlWriteSession
from spark_channel.connectors.mysql.write import database as writing
from spark_channel.connectors.sql import SqlWriter

def dies(cls, name, when, after=0):
    original, called = getattr(cls, name), []
    def method(self, *args, **more):
        called.append(args)
        if len(called) > after and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        found = original(self, *args, **more)
        if len(called) > after:
            os.kill(os.getpid(), signal.SIGKILL)
        return found
    setattr(cls, name, method)

if sys.argv[1] == "alone":
    dies(writing, "make_table", "after")
publish = together.MysqlTogether.publish
def first(self, tables):
    dies(*{
        "made": (together.MysqlTogether, "_try", "before"),
        "claims": (together.GroupClaims, "take_all", "after"),
        "rows": (together.RowSender, "load", "before", 2),
        "published": (together.GroupClaims, "publish_all", "after"),
        "before": (MysqlWriteSession, "commit", "before"),
        "committed": (MysqlWriteSession, "commit", "after"),
    }[sys.argv[1]])
    publish(self, tables)
together.MysqlTogether.publish = first
spark_channel.replicate(None, sys.argv[2])
"""


@pytest.mark.parametrize("point", ["committed", "made", "alone"])
def test_first_increments_that_are_killed_where_their_tables_are_made_come_with_the_next_run(
    small: _Small, tmp_path: Path, point: str
) -> None:
    file = tmp_path / "small.yml"
    defaults = {"object": "{table}", "mode": "incremental", "update_key": "id", "late_seconds": 0}
    streams: dict[str, Any] = {
        f"{small.source}.t{n}": {} for n in range(1 if point == "alone" else _TABLES)
    }
    file.write_text(json.dumps(small.file(parallel=1, defaults=defaults, streams=streams)))
    killed = subprocess.run(
        [sys.executable, "-c", _KILLED, point, str(file)],
        env={**os.environ, "PYTHONPATH": str(Path(spark_channel.__file__).parents[2])},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()[-2000:]
    # "committed": the claims of the streams, before the tables are made.
    assert any(each.startswith("t") for each in small.tables()) is (point != "committed")
    report = spark_channel.replicate(None, str(file))
    assert [each.why for each in report.parked] == []
    assert small.rows(range(len(streams))) == {"20\t210"}


@pytest.mark.parametrize("point", ["made", "claims", "rows", "published", "before", "committed"])
def test_a_run_that_is_killed_in_a_group_loses_and_doubles_nothing(
    small: _Small, tmp_path: Path, point: str
) -> None:
    file = tmp_path / "small.yml"
    defaults = {"object": "{table}", "schema": "full"}
    file.write_text(json.dumps(small.file(parallel=2, defaults=defaults)))
    spark_channel.replicate(None, str(file), select=["*.t1", "*.t7"])
    small.sql("UPDATE SOURCE.t1 SET id = id + 100")
    root = str(Path(spark_channel.__file__).parents[2])
    killed = subprocess.run(
        [sys.executable, "-c", _KILLED, point, str(file)],
        env={**os.environ, "PYTHONPATH": root},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()[-2000:]
    there = small.tables()
    for n in range(_TABLES):
        if f"t{n}" in there:  # one that was made is seen empty, as where it is copied alone
            assert small.rows([n]) <= {"20\t210", "20\t2210", "0\tNULL"}
    report = spark_channel.replicate(None, str(file))
    assert report.parked == []
    assert small.rows([n for n in range(_TABLES) if n != 1]) == {"20\t210"}
    assert small.rows([1]) == {"20\t2210"}
    assert {f"t{n}" for n in range(_TABLES)} | {
        "spark_channel_claims",
        "spark_channel_tasks",
    } == small.tables()
    for n in range(_TABLES):
        made = {small.sql(f"SHOW CREATE TABLE {each}.t{n}") for each in ("SOURCE", "TARGET")}
        assert len(made) == 1


# Groups as the connector has them.


def _group(small: _Small, numbers: Sequence[int]) -> tuple[Together, list[SmallTable]]:
    """The tables, looked up and read."""
    found = {each.object: each for each in find_tables(load_replication(small.file())).copies}
    report = ReplicationReport("run", utc_now())
    runs: list[TableRun] = []
    for number in numbers:
        copy = found[f"t{number}"]
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


def _publish(group: tuple[Together, list[SmallTable]], position: int) -> list[SmallTable]:
    for table in group[1]:
        table.position = position
    group[0].publish(group[1])
    return group[1]


def test_a_rerun_and_an_older_run_add_nothing(small: _Small) -> None:
    assert [each.is_new for each in _publish(_group(small, [1, 2, 3]), 20)] == [True] * 3
    for position in (20, 10):
        group = _group(small, [3, 2, 1])
        for table in group[1]:
            table.batches = []
        later = _publish(group, position)
        assert [(each.is_new, each.why) for each in later] == [(False, None)] * 3
        assert all(each.published_at for each in later)
    assert small.rows([1, 2, 3]) == {"20\t210"}
    asked = "SELECT DISTINCT batch FROM TARGET.spark_channel_claims WHERE kind = 'stream'"
    assert small.sql(asked) == "20"


def test_rows_that_were_read_before_another_run_published_do_not_replace_its_rows(
    small: _Small,
) -> None:
    _publish(_group(small, [1, 2, 3]), 5)
    first = _group(small, [1, 2, 3])
    small.sql("UPDATE SOURCE.t1 SET note = CONCAT(note, ' new')")
    assert [each.is_new for each in _publish(_group(small, [1, 2]), 10)] == [True, True]
    slow = _publish(first, 20)
    shown = "SELECT GROUP_CONCAT(note ORDER BY id) FROM {}.t1"
    assert small.sql(shown.format("TARGET")) == small.sql(shown.format("SOURCE"))
    assert [each.is_new for each in slow] == [False, False, True]
    assert "another run" in str(slow[0].why)


def test_groups_that_overlap_in_another_order_lose_and_double_nothing(small: _Small) -> None:
    """The second round has claims and tables that are there, the first one makes them."""
    for begin in (10, 20, 30):
        groups = [_group(small, order) for order in (range(8), range(7, 2, -1), [5, 0, 7, 2])]
        ready = threading.Barrier(len(groups))
        failed: list[Exception] = []

        def publish(group: tuple[Together, list[SmallTable]], position: int) -> None:
            ready.wait()  # noqa: B023 - the threads end in this round
            try:
                _publish(group, position)
            except Exception as error:
                failed.append(error)  # noqa: B023 - the thread ends in the same turn

        threads = [
            threading.Thread(target=publish, args=(each, begin + number))
            for number, each in enumerate(groups)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
        assert not failed
        done = [table for _, tables in groups for table in tables if table.published_at is not None]
        assert done
        there = small.tables()
        some = [n for n in range(_TABLES) if f"t{n}" in there]
        assert small.rows(some) <= {"20\t210"}
    assert spark_channel.replicate(None, small.file()).parked == []
    assert small.rows() == {"20\t210"}


def test_a_group_under_a_limit_is_paid_table_by_table(
    small: _Small, monkeypatch: pytest.MonkeyPatch, joined: list[str]
) -> None:
    monkeypatch.setattr(carrying, "_LONGEST_SECONDS", 0)
    limit = {"rows_per_second": 1_000}
    report = spark_channel.replicate(None, small.file(limit=limit, parallel=1))
    assert report.parked == []
    assert {each.rows for each in report.tables} == {20}
    assert len(joined) == _TABLES
    assert small.rows() == {"20\t210"}


def test_a_small_table_of_a_group_takes_few_statements(
    small: _Small, monkeypatch: pytest.MonkeyPatch, joined: list[str]
) -> None:
    """Beside its rows none of each table that is there, and three of one that is made."""

    def questions() -> int:
        return int(small.sql("SHOW GLOBAL STATUS LIKE 'Queries'").split("\t")[1])

    file = small.file(parallel=1, defaults={"object": "{table}", "schema": "full"})
    spark_channel.replicate(None, file, select=["*.t0", "*.t1"])
    counted = []
    for some in (["*.t2", "*.t3"], [f"*.t{n}" for n in range(2, _TABLES)]):
        small.sql("DROP TABLE IF EXISTS TARGET.t2, TARGET.t3")
        joined.clear()
        begun = questions()
        assert spark_channel.replicate(None, file, select=some).parked == []
        counted.append(questions() - begun)
        assert len(joined) == len(some)
    assert (counted[1] - counted[0]) / 4 < 30, counted
