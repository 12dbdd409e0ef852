"""What earlier jobs cost the next one: claims share rows, old ones go in batches, no statement looks at all of them.

The rows of thousands of jobs are made from one that a job has written, and counted are rows and statements.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pytest

from spark_channel.connectors import WriteContext, WritePlan
from spark_channel.connectors.sql.write.claim_upkeep import PER_ROW
from spark_channel.connectors.sql.write.claims import Claims
from spark_channel.connectors.sqlite.session import SqliteSession
from tests.behaviour.exactly_once.targets import KINDS, Target, open_target

_SCHEMA = pa.schema([("id", pa.int64())])
_LONG_AGO = "2025-01-01T00:00:00+00:00"
_SERVERS = [pytest.param(kind, marks=pytest.mark.full) for kind in KINDS[2:]]


@pytest.fixture(params=[*KINDS[:2], *_SERVERS])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Target]:
    for opened in open_target(request.param, request, tmp_path / "shop"):
        (tmp_path / "shop").mkdir()
        opened.reset(True)
        yield opened


@dataclass
class Jobs:
    target: Target
    count: int = 0

    def run(self, *versions: int, name: str = "nightly") -> list[bool]:
        """Write one row as each version; whether it was new. Without versions: one job without a transaction id."""
        return [self._job((name, version)) for version in versions] or [self._job(None)]

    def _job(self, txn: tuple[str, int] | None) -> bool:
        writer = self.target.writer()
        plan = self.prepared(txn)
        if plan.published_at is not None:
            return False
        task = writer.open(plan, 0, 1)
        task.write(pa.record_batch([pa.array([self.count], pa.int64())], schema=_SCHEMA))
        writer.commit(plan, [task.close()])
        return True

    def prepared(self, txn: tuple[str, int] | None) -> WritePlan:
        self.count += 1
        context = WriteContext(f"job-{self.count}", commit="job", txn=txn)
        return self.target.writer().prepare(context, _SCHEMA)

    def claims(self, kind: str) -> int:
        query = f"SELECT COUNT(*) FROM {self.target.claims} WHERE kind = '{kind}'"
        return int(self.target.sql(query)[0][0])

    def age(self, state: str = "published") -> None:
        self.target.sql(
            f"UPDATE {self.target.claims} SET published_at = '{_LONG_AGO}' WHERE state = '{state}'"
        )


def test_old_versions_share_rows_and_a_rerun_of_each_is_a_no_op(target: Target) -> None:
    jobs = Jobs(target)
    versions = (1, 2, 3, 7, PER_ROW - 1, PER_ROW, -5, 20_251_129_1015)
    assert all(jobs.run(*versions))
    jobs.age()
    assert jobs.run(100) == [True]
    assert (jobs.claims("txn"), jobs.claims("versions")) == (1, 4)
    assert not any(jobs.run(*versions))
    assert jobs.run(4, 20_251_129_1016) == [True, True]
    assert jobs.run(1, name="another") == [True]
    jobs.age()
    assert jobs.run(5) == [True]
    assert not any(jobs.run(*versions, 4, 5, 100, 20_251_129_1016))
    assert sum(target.seen().values()) == len(versions) + 5
    assert target.staged() == []


def test_a_driver_that_wakes_up_after_its_version_has_no_row_publishes_nothing(
    target: Target,
) -> None:
    jobs = Jobs(target)
    sleeper, plan = target.writer(), jobs.prepared(("nightly", 9))
    task = sleeper.open(plan, 0, 1)
    task.write(pa.record_batch([pa.array([77], pa.int64())], schema=_SCHEMA))
    receipt = task.close()
    assert jobs.run(9) == [True]
    jobs.age()
    jobs.run(10)
    assert (jobs.claims("txn"), jobs.claims("versions")) == (1, 1)
    sleeper.commit(plan, [receipt])
    assert 77 not in target.seen()
    assert sum(target.seen().values()) == 2


def test_a_version_whose_row_has_another_name_than_its_key_keeps_it(tmp_path: Path) -> None:
    """As a database leaves it that cuts or changes texts: its bit would be where no rerun looks."""
    (target,) = open_target("sqlite", None, tmp_path)  # type: ignore[arg-type] # asks for no fixture
    target.reset(True)
    jobs = Jobs(target)
    jobs.run(9)
    target.sql(f"UPDATE {target.claims} SET name = 'nightl' WHERE kind = 'txn'")
    jobs.age()
    assert jobs.run(10, 9) == [True, False]
    assert sum(target.seen().values()) == 2


def test_a_version_that_was_shared_between_the_look_and_the_claim_is_published(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where another run claims, publishes and tidies in between: the first look finds nothing."""
    jobs = Jobs(target)
    jobs.run(9)
    jobs.age()
    jobs.run(10)
    monkeypatch.setattr(Claims, "_locked", lambda *_arguments: None)
    plan = jobs.prepared(("nightly", 9))
    monkeypatch.undo()
    assert plan.published_at is not None
    assert (jobs.claims("txn"), sum(target.seen().values())) == (1, 2)


def _multiply(jobs: Jobs, kind: str, count: int) -> None:
    """Copies of the one published claim of this kind."""
    columns = (
        "target, kind, name, version, owner, epoch, state, batch, published_at, row_count, byte_count, process, "
        "beat_at, doubted_at, generation"
    )
    claims = jobs.target.claims
    for number in range(count):
        jobs.target.sql(
            f"INSERT INTO {claims} (claim, {columns}) SELECT 'copy{number:05}', {columns} FROM {claims} "
            f"WHERE kind = '{kind}' AND claim NOT LIKE 'copy%'"
        )


def test_old_jobs_leave_in_batches_of_bounded_size(tmp_path: Path) -> None:
    for target in open_target("sqlite", None, tmp_path):  # type: ignore[arg-type] # asks for no fixture
        target.reset(True)
        jobs = Jobs(target)
        jobs.run()
        jobs.age()
        _multiply(jobs, "job", 250)
        left: list[int] = []
        for _ in range(4):
            jobs.run()
            left.append(jobs.claims("job") - len(left) - 1)
        assert left == [151, 51, 0, 0]


@pytest.mark.parametrize("named", [True, False], ids=["txn", "job"])
def test_a_job_runs_as_many_statements_after_a_thousand_as_after_ten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: bool
) -> None:
    """And none of them looks at the rows of all claims: the planner has a key or the index for each."""
    (target,) = open_target("sqlite", None, tmp_path)  # type: ignore[arg-type] # asks for no fixture
    target.reset(True)
    jobs = Jobs(target)
    first = (1,) if named else ()
    jobs.run(*first)
    sent: list[tuple[str, Any]] = []
    rows = SqliteSession.rows

    def counted(session: SqliteSession, sql: str, parameters: Any = ()) -> Any:
        sent.append((sql, parameters))
        return rows(session, sql, parameters)

    monkeypatch.setattr(SqliteSession, "rows", counted)
    counts = []
    for earlier, more in ((10, 10), (1000, 990)):
        monkeypatch.undo()
        _multiply(Jobs(target), "txn" if named else "job", more if earlier == 10 else 0)
        if earlier == 1000:
            _many(tmp_path / "shop.db", more)
        monkeypatch.setattr(SqliteSession, "rows", counted)
        sent.clear()
        jobs.run(*((earlier,) if named else ()))
        counts.append(len(sent))
        with closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
            for sql, parameters in sent:
                if "spark_channel_claims" in sql and sql.startswith(("SELECT", "UPDATE", "DELETE")):
                    plan = connection.execute(f"EXPLAIN QUERY PLAN {sql}", parameters).fetchall()
                    assert not any("SCAN spark_channel_claims" in str(step) for step in plan), sql
    assert counts[0] == counts[1], counts


def _many(path: Path, count: int) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        names = [row[1] for row in connection.execute("PRAGMA table_info(spark_channel_claims)")]
        columns = ", ".join(name for name in names if name != "claim")
        connection.execute(
            "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n LIMIT ?) "
            f"INSERT INTO spark_channel_claims (claim, {columns}) SELECT 'many' || n, {columns} "
            "FROM n, spark_channel_claims WHERE claim = 'copy00001'",
            (count,),
        )


@pytest.mark.full
@pytest.mark.parametrize("kind", ["sqlite", "postgresql", "mysql"])
def test_a_table_of_an_earlier_version_gets_its_index_with_the_next_job(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    for target in open_target(kind, request, tmp_path):
        target.reset(True)
        jobs = Jobs(target)
        jobs.run(1)
        _drop_index(target)
        jobs.run(2)
        assert _has_index(target)
        assert jobs.run(1, 2, 3) == [False, False, True]


@pytest.mark.full
@pytest.mark.parametrize("kind", ["postgresql", "mysql"])
def test_the_index_waits_for_no_long_transaction(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Behind its wait all other jobs would queue, and the transaction may be the publication of a big one."""
    for target in open_target(kind, request, tmp_path):
        target.reset(True)
        jobs = Jobs(target)
        jobs.run(1)
        _drop_index(target)
        with session_of(target) as session, session.cursor() as cursor:
            cursor.execute("BEGIN")
            cursor.execute(f"UPDATE {target.claims} SET epoch = epoch WHERE claim = ''")
            assert jobs.run(2) == [True]
            assert not _has_index(target)
        assert jobs.run(3, 2) == [True, False]
        assert _has_index(target)


def _index(target: Target) -> str:
    return f"{target.schema}spark_channel_claims_published"


def _drop_index(target: Target) -> None:
    of_mysql = f"ALTER TABLE {target.claims} DROP INDEX {_index(target)}"
    target.sql(of_mysql if target.kind == "mysql" else f"DROP INDEX {_index(target)}")


def _has_index(target: Target) -> bool:
    asked = {
        "sqlite": "SELECT 1 FROM sqlite_master WHERE name = 'spark_channel_claims_published'",
        "postgresql": f"SELECT 1 FROM pg_class WHERE oid = to_regclass('{_index(target)}')",
        "mysql": "SELECT DISTINCT 1 FROM information_schema.statistics WHERE table_schema = 'protocol' "
        "AND index_name = 'spark_channel_claims_published'",
    }
    return target.sql(asked[target.kind]) == [("1",)]


def session_of(target: Target) -> Any:
    """A session of an independent client, which is closed without a commit."""
    options = target.options
    if target.kind == "mysql":
        import pymysql

        url = urlsplit(options["url"])
        return pymysql.connect(
            host=url.hostname,
            port=url.port,
            user=options["user"],
            password=options["password"],
            database="protocol",
        )
    import psycopg

    url = options["url"].removeprefix("jdbc:")
    session = psycopg.connect(url, user=options["user"], password=options["password"])
    session.autocommit = True  # BEGIN is a statement
    return closing(session)
