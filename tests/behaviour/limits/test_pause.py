"""During a pause, this package holds no transaction and no lock open in the source or in the target."""

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from spark_channel.connectors import FetchSize, Reader, WriteContext, Writer
from spark_channel.limits import RateLimiter
from spark_channel.options import CommitMode
from spark_channel.pipeline import DirtyBudget, GroupTransfer, TransferSource, TransferWork
from spark_channel.planning import Task, TaskGroup
from spark_channel.progress import DirtyLimit
from spark_channel.transform import prepare
from tests.connectors.mysql.shop import (
    Shop,
    transactions,
)
from tests.connectors.postgresql.pg import (
    Pg,
)

ROWS = 4_000
SPEED = 2_000
PAUSES = pytest.mark.parametrize("pause", [2.0, pytest.param(10.0, marks=pytest.mark.soak)])
COMMITS = pytest.mark.parametrize("commit", ["job", "task"])


@PAUSES
@COMMITS
def test_on_postgresql(pg: Pg, pause: float, commit: CommitMode) -> None:
    pg.psql(
        f"CREATE TABLE s (id int PRIMARY KEY, v text); INSERT INTO s SELECT n, 'x' FROM generate_series(1, {ROWS}) n;"
        "CREATE TABLE t (id int PRIMARY KEY, v text)"
    )
    ours = "application_name LIKE 'spark-channel%'"

    def held() -> str:
        return pg.psql(
            f"SELECT string_agg(application_name || ' ' || state, ', ') FROM pg_stat_activity WHERE {ours} "
            "AND (xact_start IS NOT NULL OR backend_xmin IS NOT NULL OR state <> 'idle')"
        ) + pg.psql(
            f"SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid) WHERE {ours} AND locktype = 'relation'"
        )

    samples = _transfer(pg.reader("s"), pg.writer("t", rowsPerSecond=SPEED), held, pause, commit)
    assert set(samples) == {"\\N0"}
    assert pg.staged() == []
    assert pg.psql("SELECT count(*), count(DISTINCT id) FROM t") == f"{ROWS}|{ROWS}"


@PAUSES
@COMMITS
def test_on_mariadb(shop: Shop, pause: float, commit: CommitMode) -> None:
    shop.sql(
        f"CREATE TABLE s (id INT PRIMARY KEY, v VARCHAR(9)); INSERT INTO s SELECT seq, 'x' FROM seq_1_to_{ROWS};"
        "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(9))"
    )

    def held() -> str:
        return str(
            (
                transactions(shop),
                shop.rows(
                    "SELECT command FROM information_schema.processlist WHERE user = 'tester' AND command <> 'Sleep'"
                ),
            )
        )

    samples = _transfer(
        shop.reader("s"), shop.writer("t", rowsPerSecond=SPEED), held, pause, commit
    )
    assert set(samples) == {"([], [])"}
    assert shop.rows("SELECT COUNT(*), COUNT(DISTINCT id) FROM t") == [(str(ROWS), str(ROWS))]


def _transfer(
    reader: Reader, writer: Writer, held: Callable[[], str], pause: float, commit: CommitMode
) -> list[str]:
    """What was held through a pause in the middle of a transfer, each 100 ms."""
    schema = reader.schema()
    reader.fetch_size = FetchSize(rows=SPEED // 4)
    splits = reader.split(2)
    context = WriteContext("paused", commit=commit)
    plan = writer.prepare(context, schema)
    work = TransferWork(
        (TransferSource(reader, prepare((), schema)),),
        ((writer, plan),),
        "paused",
        1 << 20,
        64 << 20,
    )
    tasks = tuple(
        Task(number, TransferSource.wrap(0, split)) for number, split in enumerate(splits)
    )
    limit = RateLimiter(rows_per_second=SPEED)
    found: list[Any] = []
    moving = threading.Thread(
        target=lambda: found.append(
            GroupTransfer(
                work, TaskGroup(0, tasks, 2), 1, budget=DirtyBudget(DirtyLimit()), limiter=limit
            ).run()
        )
    )
    moving.start()
    try:
        time.sleep(ROWS / SPEED / 2)
        limit.set_rates(0.001, None)
        # Paid rows are staged: a chunk is a second's rows. An open transaction is silent for 1.5 s.
        time.sleep(2.5)
        samples, end = [], time.monotonic() + pause
        while time.monotonic() < end:
            samples.append(held())
            time.sleep(0.1)
        assert moving.is_alive(), "the pause began too late"
    finally:
        limit.set_rates(None, None)
        moving.join(60)
    (outcome,) = found
    writer.commit(plan, [each.receipt for each in outcome.tasks])
    return samples
