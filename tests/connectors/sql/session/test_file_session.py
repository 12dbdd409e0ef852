"""Sessions on database files that are kept between the tables of a run."""

import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import pytest

from spark_channel import transfer
from spark_channel.connectors.base.session_pool import keeping_sessions
from spark_channel.connectors.duckdb.session import DuckdbSession
from spark_channel.connectors.sql.session import FileSession
from spark_channel.connectors.sqlite.session import SqliteSession
from spark_channel.errors import SourceError, TargetError

_MAKE = "CREATE TABLE t (v INTEGER); INSERT INTO t VALUES ({})"


def _sqlite(path: Path, value: int) -> None:
    connection = sqlite3.connect(path)
    connection.executescript(_MAKE.format(value))
    connection.close()


def _duckdb(path: Path, value: int) -> None:
    with duckdb.connect(str(path)) as connection:
        connection.execute(_MAKE.format(value))


_Make = Callable[[Path, int], None]
_Kept = Callable[..., FileSession]
_KINDS = [
    pytest.param(_sqlite, partial(SqliteSession.kept, mode="ro"), id="sqlite"),
    pytest.param(_duckdb, DuckdbSession.kept, id="duckdb"),
]


def _lent(kept: _Kept, path: Path, failure: type[Any] = SourceError, **more: Any) -> FileSession:
    return kept(path, lock_timeout=1.0, failure=failure, **more)


@pytest.mark.parametrize(("make", "kept"), _KINDS)
def test_a_file_is_opened_once_for_those_who_use_it_in_turns(
    tmp_path: Path, make: _Make, kept: _Kept
) -> None:
    path = tmp_path / "t"
    make(path, 1)
    with _lent(kept, path) as alone:
        pass
    with keeping_sessions():
        with _lent(kept, path) as first:
            assert first is not alone
        with _lent(kept, path, TargetError) as second:
            assert second is first
            with _lent(kept, path) as beside:
                assert beside is not first
            with pytest.raises(TargetError):
                second.rows("SELECT * FROM none")
        with _lent(kept, path, init=["SELECT 1"]) as other:
            assert other not in (first, beside)
        with pytest.raises(SourceError), _lent(kept, path) as failed:
            failed.rows("SELECT * FROM none")
        with _lent(kept, path) as last:
            assert last is not failed


@pytest.mark.parametrize(("make", "kept"), _KINDS)
def test_a_file_that_was_replaced_is_opened_again(tmp_path: Path, make: _Make, kept: _Kept) -> None:
    path, other = tmp_path / "t", tmp_path / "other"
    make(path, 1)
    make(other, 2)
    with keeping_sessions():
        with _lent(kept, path) as session, _lent(kept, path):
            assert session.value("SELECT v FROM t") == 1
        other.replace(path)
        with _lent(kept, path) as session:
            assert session.value("SELECT v FROM t") == 2


def test_a_sqlite_session_in_a_transaction_is_not_kept(tmp_path: Path) -> None:
    path = tmp_path / "t"
    _sqlite(path, 1)
    with keeping_sessions():
        with _lent(partial(SqliteSession.kept, mode="rw"), path) as session:
            session.execute("BEGIN IMMEDIATE")
        with _lent(partial(SqliteSession.kept, mode="rw"), path) as other:
            other.execute("UPDATE t SET v = 2")  # which the first one's lock would refuse


_TRIGGER = "CREATE TEMP TRIGGER gone AFTER INSERT ON main.u BEGIN DELETE FROM u; END"


@pytest.mark.parametrize(
    ("option", "script"),
    [("startSql", "CREATE TEMP TABLE u (v)"), ("preSql", _TRIGGER), ("postSql", _TRIGGER)],
)
def test_what_the_users_sql_leaves_in_a_sqlite_session_is_not_there_for_the_next_table(
    tmp_path: Path, option: str, script: str
) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    _sqlite(source, 1)
    connection = sqlite3.connect(target)
    connection.executescript("CREATE TABLE t (v INTEGER); CREATE TABLE u (v INTEGER)")
    with keeping_sessions():
        for table, scripts in (("t", {option: script}), ("u", {}), ("t", {option: script})):
            report = transfer(
                None,
                {"url": f"sqlite:{source}", "dbtable": "t"},
                {"url": f"sqlite:{target}", "dbtable": table, **scripts},
            )
            assert report.rows == 1
    with closing(connection):
        assert connection.execute("SELECT v FROM u").fetchall() == [(1,)]
        assert connection.execute("SELECT v FROM t").fetchall() == [(1,), (1,)]


def _tables(session: DuckdbSession) -> int:
    return int(session.value(f"SELECT count(*) FROM {session.catalog('duckdb_tables')}"))


def test_a_kept_duckdb_session_makes_way_for_one_that_writes_the_file(tmp_path: Path) -> None:
    path = tmp_path / "t"
    _duckdb(path, 1)
    with keeping_sessions():
        with DuckdbSession.kept(path, lock_timeout=1, failure=SourceError) as session:
            assert _tables(session) == 1
        with DuckdbSession(path, read_only=False, lock_timeout=0, failure=TargetError) as writing:
            writing.execute("CREATE TABLE u (v INTEGER)")
            assert _tables(writing) == 2
        with DuckdbSession.kept(path, lock_timeout=1, failure=SourceError) as session:
            assert _tables(session) == 2


@pytest.mark.parametrize("name", ["t.duckdb", "link.duckdb"])
def test_a_job_whose_source_and_target_are_one_duckdb_file_ends(tmp_path: Path, name: str) -> None:
    path, other_name = tmp_path / "t.duckdb", tmp_path / name
    _duckdb(path, 1)
    if other_name != path:
        other_name.symlink_to(path)
    source = {"url": f"duckdb:{other_name}", "lockTimeout": "1"}
    target = {"url": f"duckdb:{path}", "lockTimeout": "1"}
    with keeping_sessions():
        for before, after in (("t", "u"), ("u", "w")):
            report = transfer(None, {**source, "dbtable": before}, {**target, "dbtable": after})
            assert report.rows == 1


def test_another_process_reads_a_duckdb_file_while_its_sessions_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "t.duckdb"
    _duckdb(path, 7)
    read = f"import duckdb; print(duckdb.connect({str(path)!r}, read_only=True).execute('FROM t').fetchall()[0][0])"
    with keeping_sessions():
        with _lent(DuckdbSession.kept, path):
            pass
        ended = subprocess.run(
            [sys.executable, "-c", read], capture_output=True, text=True, check=True
        )
    assert ended.stdout.strip() == "7"
