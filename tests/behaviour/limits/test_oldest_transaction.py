"""How old the oldest transaction of a limited copy becomes, on its source and its target, and in a pause."""

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest

from spark_channel.connectors import WriteContext, find_connector
from spark_channel.limits import Pause, Resume
from spark_channel.options import CommitMode
from spark_channel.pipeline import DirtyBudget, GroupTransfer, TransferSource, TransferWork
from spark_channel.planning import Task, TaskGroup
from spark_channel.progress import DirtyLimit, JobSpec, Phase
from spark_channel.service import ServiceClient, ServiceServer
from spark_channel.transfers.limits import JobLimits
from spark_channel.transform import prepare
from tests.servers.postgres import PostgresServer

STATEMENT_SECONDS = 5.0
PAUSE_SECONDS = 15.0
OLDEST = """SELECT coalesce(max(extract(epoch FROM clock_timestamp() - xact_start)), 0), count(*),
coalesce(string_agg(state || ': ' || translate(left(query, 200), E'|\\n', '/ '), '; ' ORDER BY xact_start), '')
FROM pg_stat_activity
WHERE application_name LIKE 'spark-channel%' AND xact_start IS NOT NULL AND datname = current_database()"""
LOCKS = """SELECT count(*) FROM pg_locks l JOIN pg_stat_activity a USING (pid)
WHERE a.application_name LIKE 'spark-channel%' AND l.locktype <> 'virtualxid'"""


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[PostgresServer, PostgresServer]]:
    source = PostgresServer.create()
    try:
        target = PostgresServer.create()
        try:
            yield source, target
        finally:
            target.close()
    finally:
        source.close()


@dataclass
class Seen:
    """Four times a second, the age of this package's oldest transaction on both servers."""

    servers: tuple[PostgresServer, PostgresServer]
    oldest: float = 0.0
    work: str = ""
    looks: int = 0
    _ended: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def __enter__(self) -> "Seen":
        for server in self.servers:
            thread = threading.Thread(target=self._watch, args=(server,))
            thread.start()
            self._threads.append(thread)
        return self

    def __exit__(self, *_error: object) -> None:
        self._ended.set()
        for each in self._threads:
            each.join()

    def _watch(self, server: PostgresServer) -> None:
        while not self._ended.wait(0.25):
            ((seconds, _, work),) = server.rows(OLDEST)
            if float(seconds) > self.oldest:
                self.oldest, self.work = float(seconds), work
            self.looks += 1


RATES: dict[int, CommitMode] = {100: "task", 1_000: "job", 10_000: "task"}
"""Rows per second, and how the copy is committed."""


def _copied(
    servers: tuple[PostgresServer, PostgresServer],
    rate: int,
    seconds: float,
    together: threading.Barrier,
) -> Callable[[], None]:
    """A copy that lasts so many seconds at `rate`, with a pause in its middle. Copies begin and pause `together`.

    Returns what publishes it, in one transaction that takes four times as long as its work does.
    """
    source, target = servers
    commit = RATES[rate]
    rows = int(rate * seconds)
    table = f"t{rate}"
    source.psql(
        f"DROP TABLE IF EXISTS {table}; CREATE TABLE {table} AS SELECT n AS id, lpad(n::text, 30, '.') AS note "
        f"FROM generate_series(1, {rows}) AS n; ALTER TABLE {table} ADD PRIMARY KEY (id); VACUUM ANALYZE {table}"
    )
    target.psql(f"DROP TABLE IF EXISTS {table}; CREATE TABLE {table} (id int, note text)")
    reads = {
        **source.login,
        "dbtable": table,
        "rowsPerSecond": rate,
        "statementSeconds": STATEMENT_SECONDS,
    }
    writes = {**target.login, "dbtable": table, "rowsPerSecond": rate, "commit": commit}
    reader, _ = find_connector(reads, "reader").reader_with(reads)
    writer, _ = find_connector(writes, "writer").writer_with(writes)
    limits = JobLimits.from_options(writer.options)
    schema = reader.schema()
    reader.fetch_size = limits.fetch_size(2)
    # The rows of a task are added by one transaction, about 4 s a million of them on an idle machine.
    splits = reader.split(max(2, rows // 100_000))
    tasks = [Task(number, TransferSource.wrap(0, split)) for number, split in enumerate(splits)]
    job = uuid.uuid4().hex
    plan = writer.prepare(WriteContext(job, commit=commit), schema)
    work = TransferWork(
        (TransferSource(reader, prepare((), schema)),), ((writer, plan),), job, 100_000, 64 << 20
    )
    spec = JobSpec("transfer", tasks=len(tasks), **limits.of_spec())
    with ServiceServer() as service:
        name = service.jobs.open(spec)

        def pause() -> None:
            time.sleep(seconds / 3)
            service.limits.handle(Pause(f"job:{name}"))
            time.sleep(10.0)
            until = time.monotonic() + PAUSE_SECONDS - 10.0
            while time.monotonic() < until:
                assert [server.rows(OLDEST)[0][1:] for server in servers] == [("0", "")] * 2
                assert [server.psql(LOCKS) for server in servers] == ["0", "0"]
                held.append(True)
                time.sleep(0.5)
            together.wait()  # the others look, too
            service.limits.handle(Resume(f"job:{name}"))

        held: list[bool] = []
        failed: list[BaseException] = []

        def pausing() -> None:
            try:
                pause()
            except BaseException as error:
                together.abort()
                failed.append(error)
                service.limits.handle(Resume(f"job:{name}"))

        together.wait()
        paused = threading.Thread(target=pausing)
        paused.start()
        with ServiceClient(service.address, name, spec) as client:
            outcome = GroupTransfer(
                work,
                TaskGroup(0, tuple(tasks), 2),
                0,
                budget=DirtyBudget(DirtyLimit(0, None)),
                limiter=client.limiter("task 0"),
                counters=lambda task: client.counters(task.id, 0),
            ).run()
        paused.join()
        service.jobs.enter(name, Phase.DONE)
    assert not failed, failed
    assert held

    def publish() -> None:
        receipts = [task.receipt for task in outcome.tasks if task.receipt is not None]
        writer.commit(plan, receipts)
        assert target.psql(f"SELECT count(*), count(DISTINCT id) FROM {table}") == f"{rows}|{rows}"

    return publish


@pytest.mark.parametrize(
    "seconds", [15.0, pytest.param(600.0, marks=[pytest.mark.soak, pytest.mark.timeout(1_200)])]
)
def test_no_transaction_becomes_older_than_a_statement_may_last(
    servers: tuple[PostgresServer, PostgresServer], seconds: float
) -> None:
    """Copies at three speeds at the same time, each with a pause, which holds nothing of any of them."""
    together = threading.Barrier(len(RATES), timeout=60.0)
    with Seen(servers) as seen, ThreadPoolExecutor(len(RATES)) as pool:
        copies = [pool.submit(_copied, servers, rate, seconds, together) for rate in RATES]
        copied = [each.result() for each in copies]
    for publish in copied:
        publish()
    print(f"the oldest transaction of {seen.looks} looks was {seen.oldest:.2f} s: {seen.work}")
    assert seen.looks > 50
    assert seen.oldest <= STATEMENT_SECONDS + 1, seen.work
