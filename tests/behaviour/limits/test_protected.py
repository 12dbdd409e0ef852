"""A copy with `protect=auto` and no limit, as one Spark task runs it: from a table of PostgreSQL into another."""

import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

import spark_channel
from spark_channel.connectors import WriteContext, find_connector
from spark_channel.connectors.base.session_pool import keeping_sessions
from spark_channel.connectors.postgresql.options import PostgresWriteOptions
from spark_channel.connectors.postgresql.session import PgReadSession, PgSession, PgWriteSession
from spark_channel.errors import SourceError
from spark_channel.limits import LimitStatus, StatusRequest
from spark_channel.pipeline import DirtyBudget, GroupTransfer, TransferSource, TransferWork
from spark_channel.planning import Task, TaskGroup
from spark_channel.progress import DirtyLimit, JobSpec, Phase, TransferReport
from spark_channel.service import ServiceClient, ServiceServer
from spark_channel.transfers.limits import JobLimits
from spark_channel.transform import prepare
from tests.servers.postgres import PostgresServer

ROWS = 150_000


@pytest.fixture(scope="module")
def filled() -> Iterator[PostgresServer]:
    server = PostgresServer.create()
    try:
        server.psql(
            "CREATE TABLE t AS SELECT n AS id, n % 97 AS v, lpad(n::text, 30, '.') AS note "
            f"FROM generate_series(1, {ROWS}) AS n; ALTER TABLE t ADD PRIMARY KEY (id); VACUUM ANALYZE t"
        )
        yield server
    finally:
        server.close()


class Copy:
    """One run; `statuses` are of its limit, twice a second."""

    def __init__(self, server: PostgresServer, rows: int = ROWS, **options: Any) -> None:
        self.server = server
        server.psql("DROP TABLE IF EXISTS copy; CREATE TABLE copy (LIKE t)")
        given = {**server.login, **options}
        self.reader, _ = find_connector(given, "reader").reader_with(
            {**given, "dbtable": "t", "where": f"id <= {rows}"}
        )
        self.writer, _ = find_connector(given, "writer").writer_with(
            {**given, "dbtable": "copy", "commit": "task"}
        )
        self.job = uuid.uuid4().hex
        self.statuses: list[LimitStatus] = []
        self.oldest: list[float] = []

    def run(self) -> TransferReport:
        limits = JobLimits.from_options(self.writer.options).watching(self.reader, self.writer)
        schema = self.reader.schema()
        self.reader.fetch_size = limits.fetch_size(2)
        splits = self.reader.split(4)
        tasks = [Task(number, TransferSource.wrap(0, split)) for number, split in enumerate(splits)]
        plan = self.writer.prepare(WriteContext(self.job, commit="task"), schema)
        work = TransferWork(
            (TransferSource(self.reader, prepare((), schema)),),
            ((self.writer, plan),),
            "copy",
            100_000,
            64 << 20,
        )
        spec = JobSpec("transfer", tasks=len(tasks), **limits.of_spec())
        with ServiceServer() as service:
            job = service.jobs.open(spec)
            ended = threading.Event()
            watching = threading.Thread(target=self._watch, args=(service, job, ended))
            watching.start()
            try:
                with ServiceClient(service.address, job, spec) as client:
                    client.watch_health(
                        {"source": self.reader.health, "target": self.writer.health}
                    )
                    outcome = GroupTransfer(
                        work,
                        TaskGroup(0, tuple(tasks), 2),
                        0,
                        budget=DirtyBudget(DirtyLimit(0, None)),
                        limiter=client.limiter("task 0"),
                        counters=lambda task: client.counters(task.id, 0),
                    ).run()
                self.writer.commit(
                    plan, [task.receipt for task in outcome.tasks if task.receipt is not None]
                )
            finally:
                ended.set()
                watching.join()
            service.jobs.enter(job, Phase.DONE)
            return service.jobs.find(job).report()

    def _watch(self, service: ServiceServer, job: str, ended: threading.Event) -> None:
        while not ended.wait(0.3):
            found = service.limits.handle(StatusRequest(f"job:{job}"))
            assert isinstance(found, LimitStatus)
            self.statuses.append(found)
            self.oldest += [
                float(seconds)
                for (seconds,) in self.server.rows(
                    "SELECT extract(epoch FROM now() - xact_start) FROM pg_stat_activity "
                    "WHERE application_name = 'spark-channel read' AND xact_start IS NOT NULL"
                )
            ]


def test_the_steps_of_a_transfer_use_the_same_sessions(
    filled: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server of one core works for 5 to 15 ms for a new one."""
    opened: list[str] = []
    set_up = PgSession._set_up

    def counted(session: PgSession) -> None:
        opened.append(session._name)
        set_up(session)

    monkeypatch.setattr(PgSession, "_set_up", counted)
    filled.psql("DROP TABLE IF EXISTS copy; CREATE TABLE copy (LIKE t)")
    side = {"name": "postgresql", **filled.login}
    reader = {**side, "dbtable": "t", "where": "id <= 1000"}
    writer = {**side, "dbtable": "copy"}
    spark_channel.transfer(None, reader, writer, channels=1, commit="task", protect="auto")
    assert filled.psql("SELECT count(*) FROM copy") == "1000"
    assert len(opened) <= 5, opened


def test_a_role_without_a_connection_left_gets_one_that_nobody_uses(filled: PostgresServer) -> None:
    filled.psql("CREATE ROLE few LOGIN PASSWORD 'few'")
    login = {"url": filled.url, "user": "few", "password": "few", "dbtable": "t"}
    options, _ = PostgresWriteOptions.parse(login)

    def lent(kind: type[PgSession]) -> PgSession:
        return kind.lent(options, failure=SourceError, purpose="test")

    with keeping_sessions():
        with lent(PgReadSession):
            pass
        filled.psql("ALTER ROLE few CONNECTION LIMIT 1")
        with lent(PgWriteSession) as session:
            assert session.value("SELECT 1") == 1
            with pytest.raises(SourceError, match="no connection left: lower 'channels'"):
                lent(PgWriteSession)
    filled.psql("DROP ROLE few")


def test_a_copy_finds_its_speed_in_short_statements_and_brings_each_row_once(
    filled: PostgresServer,
) -> None:
    before = set(threading.enumerate())
    copy = Copy(filled, protect="auto", pressure="work<1")
    report = copy.run()
    assert filled.psql("SELECT count(*), count(DISTINCT id), sum(v) FROM copy") == filled.psql(
        "SELECT count(*), count(DISTINCT id), sum(v) FROM t"
    )
    speeds = [each.effective_rows_per_second or 0.0 for each in copy.statuses]
    assert speeds[0] <= 10_000
    assert max(speeds) > 10_000
    assert all(each.rows_per_second is None for each in copy.statuses)
    assert max(copy.oldest, default=0.0) < 3.0  # though it was read as slowly as it was
    assert report.limit_scope == "the whole job"
    assert filled.connections() == 0
    left = set(threading.enumerate()) - before
    assert not [each for each in left if each.name.startswith("spark-channel")]


def test_the_jobs_own_work_holds_it_and_is_named(filled: PostgresServer) -> None:
    copy = Copy(filled, protect="auto", pressure="work<0.005", rows=15_000)
    report = copy.run()
    assert filled.psql("SELECT count(*), count(DISTINCT id) FROM copy") == "15000|15000"
    assert {name.partition("'s ")[2] for name in report.held} >= {"work"}
    assert "work" in str(report)


def test_sessions_of_the_application_that_wait_slow_it_down_and_are_named(
    filled: PostgresServer,
) -> None:
    """A bound of the user's alone: no more than one session of others may wait."""
    copy = Copy(filled, rowsPerSecond="40k", pressure="waiting_sessions<1")
    filled.psql("CREATE TABLE IF NOT EXISTS hot (n int); INSERT INTO hot VALUES (1)")
    begun = threading.Thread(
        target=filled.psql, args=("BEGIN; UPDATE hot SET n = 1; SELECT pg_sleep(5); COMMIT",)
    )
    waiting = [
        threading.Thread(target=filled.psql, args=("UPDATE hot SET n = 2",)) for _ in range(3)
    ]
    begun.start()
    time.sleep(0.5)
    for each in waiting:
        each.start()
    try:
        report = copy.run()
    finally:
        for each in (begun, *waiting):
            each.join()
    assert filled.psql("SELECT count(*) FROM copy") == str(ROWS)
    speeds = [each.effective_rows_per_second or 0.0 for each in copy.statuses]
    assert min(speeds) <= 10_000
    assert speeds[-1] >= 2 * min(speeds)  # the sessions have ended
    assert any("waiting_sessions 3, at most 1" in each.pressure for each in copy.statuses)
    assert {name.partition("'s ")[2] for name in report.held} == {"waiting_sessions"}
    assert "waiting_sessions" in str(report)
