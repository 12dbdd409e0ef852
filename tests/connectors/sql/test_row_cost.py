"""What a row costs a server is learned from the limited statements of a job, on both sides of it."""

import threading

import pytest

from spark_channel.connectors import FetchSize, Reader, WriteContext, Writer
from spark_channel.connectors.health import RowCost
from spark_channel.limits import Meter
from spark_channel.options import CommitMode
from spark_channel.pipeline import DirtyBudget, GroupTransfer, TransferSource, TransferWork
from spark_channel.planning import Task, TaskGroup
from spark_channel.progress import DirtyLimit
from spark_channel.transform import prepare
from tests.connectors.sql.mysql.conftest import Shop
from tests.connectors.sql.mysql.conftest import shop as shop  # noqa: PLC0414 - a fixture
from tests.connectors.sql.postgresql.conftest import Pg
from tests.connectors.sql.postgresql.conftest import pg as pg  # noqa: PLC0414 - a fixture

ROWS, SPEED = 20_000, 20_000
COMMITS = pytest.mark.parametrize("commit", ["job", "task"])
TABLES = (
    "CREATE TABLE s (id int PRIMARY KEY, v varchar(9)); CREATE TABLE t (id int PRIMARY KEY, v varchar(9));"
)


def test_the_least_counts_but_for_an_eighth() -> None:
    cost = RowCost()
    assert cost.seconds == 0.0
    for seconds in (0.0, 3.0, 1.0, 2.0, *[9.0] * 7):
        cost.add(seconds)
    assert cost.seconds == 2.0


def test_a_cost_that_changed_is_forgotten() -> None:
    cost = RowCost()
    for seconds in [1.0] * 40 + [5.0] * 40:
        cost.add(seconds)
    assert cost.seconds == 5.0


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
    for statement in (*TABLES.split(";")[:2], f"INSERT INTO s SELECT seq, 'x' FROM seq_1_to_{ROWS}"):
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
        limiter=Meter(rows_per_second=SPEED),
    ).run()
    writer.commit(plan, [task.receipt for task in outcome.tasks if task.receipt is not None])
    for each in (reader, writer):
        assert 0.0 < _row_seconds(each) < 0.001


def _row_seconds(end: Reader | Writer) -> float:
    made = end.health()
    assert made is not None
    with made as health:
        return health.sample().row_seconds
