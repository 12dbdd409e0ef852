"""The limited statements of a job measure what a row costs the server, in the source and in the target."""

import threading

import pytest

from spark_channel.connectors import FetchSize, Reader, WriteContext, Writer
from spark_channel.connectors.base.health import RowCost, seconds_per_row
from spark_channel.limits import RateLimiter
from spark_channel.options import CommitMode
from spark_channel.pipeline import DirtyBudget, GroupTransfer, TransferSource, TransferWork
from spark_channel.planning import Task, TaskGroup
from spark_channel.progress import DirtyLimit
from spark_channel.transform import prepare
from tests.connectors.mysql.shop import (
    Shop,
)
from tests.connectors.postgresql.pg import (
    Pg,
)

ROWS, SPEED = 20_000, 20_000
COMMITS = pytest.mark.parametrize("commit", ["job", "task"])
TABLES = "CREATE TABLE s (id int PRIMARY KEY, v varchar(9)); CREATE TABLE t (id int PRIMARY KEY, v varchar(9));"


def test_the_median_counts_once_there_are_some() -> None:
    cost = RowCost()
    for seconds in (9.0, 0.0, None, 1.0, 2.0):
        cost.add(seconds)
    assert cost.seconds == 0.0
    cost.add(1.5)
    assert cost.seconds == 1.5


def test_a_cost_that_changed_is_forgotten() -> None:
    cost = RowCost()
    for seconds in [1.0] * 40 + [5.0] * 8:
        cost.add(seconds)
    assert cost.seconds == 5.0


def test_few_rows_and_a_long_way_tell_nothing() -> None:
    assert seconds_per_row(49, 1.0, 0.0) is None
    assert seconds_per_row(100, 0.010, 0.008) is None
    assert seconds_per_row(100, 0.010, 0.005) == pytest.approx(0.00005)
    assert seconds_per_row(100, 0.010, 0.020) is None


def test_threads_may_add_while_one_asks() -> None:
    cost = RowCost()

    def add() -> None:
        for _ in range(2_000):
            cost.add(1.0)

    threads = [threading.Thread(target=add) for _ in range(4)]
    for each in threads:
        each.start()
    while any(each.is_alive() for each in threads):
        assert cost.seconds in (0.0, 1.0)
    for each in threads:
        each.join()


@COMMITS
def test_on_postgresql(pg: Pg, commit: CommitMode) -> None:
    pg.psql(f"{TABLES} INSERT INTO s SELECT n, 'x' FROM generate_series(1, {ROWS}) AS n")
    _assert_known(pg.reader("s"), pg.writer("t", rowsPerSecond=SPEED), commit)


@COMMITS
def test_on_mariadb(shop: Shop, commit: CommitMode) -> None:
    for statement in (
        *TABLES.split(";")[:2],
        f"INSERT INTO s SELECT seq, 'x' FROM seq_1_to_{ROWS}",
    ):
        shop.sql(statement)
    _assert_known(shop.reader("s"), shop.writer("t", rowsPerSecond=SPEED), commit)


def _assert_known(reader: Reader, writer: Writer, commit: CommitMode) -> None:
    schema = reader.schema()
    reader.fetch_size = FetchSize(rows=SPEED // 4)
    tasks = tuple(Task(n, TransferSource.wrap(0, split)) for n, split in enumerate(reader.split(2)))
    plan = writer.prepare(WriteContext("cost", commit=commit), schema)
    work = TransferWork(
        (TransferSource(reader, prepare((), schema)),), ((writer, plan),), "cost", 1 << 20, 64 << 20
    )
    for each in (reader, writer):
        assert _row_seconds(each) == 0.0
    outcome = GroupTransfer(
        work,
        TaskGroup(0, tasks, 2),
        1,
        budget=DirtyBudget(DirtyLimit()),
        limiter=RateLimiter(rows_per_second=SPEED),
    ).run()
    writer.commit(plan, [task.receipt for task in outcome.tasks if task.receipt is not None])
    for each in (reader, writer):
        assert 0.0 < _row_seconds(each) < 0.01


def _row_seconds(end: Reader | Writer) -> float:
    made = end.health()
    assert made is not None
    with made as health:
        return health.sample().row_seconds
