"""Five hundred micro-batches of one query: the last one calls, keeps and claims what an early one does."""

import gc
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from spark_channel.connectors import Receipt, WriteContext
from tests.behaviour.exactly_once.targets import Target, open_target
from tests.behaviour.growth.work import counting

pytestmark = pytest.mark.full

_BATCHES, _COUNTED = 500, 10
_SCHEMA = pa.schema([("id", pa.int64())])
_KINDS = [
    "sqlite",
    *(pytest.param(kind, marks=pytest.mark.soak) for kind in ("postgresql", "mysql", "duckdb")),
]


@pytest.fixture
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Target]:
    for opened in open_target(request.param, request, tmp_path / "shop"):
        (tmp_path / "shop").mkdir()
        opened.reset(True)
        yield opened


def _batch(target: Target, number: int) -> None:
    """As Spark runs it: each task prepares the write by itself, and a writer made anew publishes."""
    receipts: list[Receipt] = []
    for task in range(2):
        writer = target.writer()
        context = WriteContext(f"job-{number}", commit="job", stream=("query", number))
        plan = writer.prepare(context, _SCHEMA)
        attempt = writer.open(plan, task, task)
        attempt.write(pa.record_batch([pa.array([2 * number + task], pa.int64())], schema=_SCHEMA))
        receipts.append(attempt.close())
    target.writer().commit(plan, receipts)


def _calls(target: Target, first: int) -> int:
    with counting() as calls:
        for number in range(first, first + _COUNTED):
            _batch(target, number)
        return calls()


def _claims(target: Target) -> int:
    return int(target.sql(f"SELECT COUNT(*) FROM {target.claims}")[0][0])


def _objects() -> int:
    gc.collect()
    return len(gc.get_objects())


@pytest.mark.timeout(600)
@pytest.mark.parametrize("target", _KINDS, indirect=True)
def test_the_five_hundredth_batch_costs_what_an_early_one_does(target: Target) -> None:
    for number in range(_COUNTED):  # the first ones import, and make the tables of claims
        _batch(target, number)
    early, kept = _calls(target, _COUNTED), _objects()
    assert _claims(target) <= 2, "one of the query, one of the table"
    for number in range(2 * _COUNTED, _BATCHES - _COUNTED):
        _batch(target, number)
    late = _calls(target, _BATCHES - _COUNTED)
    assert late <= 1.1 * early, (early, late)
    assert _claims(target) <= 2
    assert _objects() <= kept + 1_000, "less than three objects for each batch"
    assert sorted(target.seen()) == list(range(2 * _BATCHES))
    assert target.staged() == []
