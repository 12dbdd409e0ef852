"""A stream keeps one row that moves forward only; an overwrite fences the tasks of other jobs off its table."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from spark_channel.connectors import Receipt, WriteContext, WritePlan
from spark_channel.errors import SupersededError
from tests.behaviour.exactly_once.targets import KINDS, Target, open_target


@pytest.fixture(params=KINDS)
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Target]:
    for target in open_target(request.param, request, tmp_path):
        target.reset(True)
        yield target


def _rows(*ids: int) -> pa.RecordBatch:
    return pa.record_batch({"id": pa.array(ids, pa.int64())})


def _stage(target: Target, context: WriteContext, *ids: int) -> tuple[WritePlan, list[Receipt]]:
    writer = target.writer()
    plan = writer.prepare(context, _rows().schema)
    attempt = writer.open(plan, 0, 1)
    attempt.write(_rows(*ids))
    return plan, [attempt.close()]


def _batch(number: int) -> WriteContext:
    return WriteContext(f"stream-q-{number}", commit="job", stream=("q", number))


def test_a_stream_has_one_row_that_never_goes_back(target: Target) -> None:
    held_back = _stage(target, _batch(0), 0)
    for number in (0, 1, 2):
        plan, receipts = _stage(target, _batch(number), number)
        target.writer().commit(plan, receipts)
    target.writer().commit(*held_back)  # a driver that hung since the first batch
    again = _stage(target, _batch(1), 1)
    assert again[0].published_at is not None
    target.writer().commit(*again)
    assert target.seen() == Counter([0, 1, 2])
    assert target.sql(f"SELECT kind, batch FROM {target.claims} WHERE kind <> 'table'") == [
        ("stream", "2")
    ]
    target.sql(
        f"UPDATE {target.claims} SET published_at = '2020-01-01T00:00:00Z' WHERE kind = 'stream'"
    )
    _stage(target, _batch(2), 2)  # a query that is started again years later
    assert target.seen() == Counter([0, 1, 2])
    assert target.staged() == []


def test_a_batch_takes_nothing_over_from_the_one_before_it(
    target: Target, caplog: pytest.LogCaptureFixture
) -> None:
    for number in (0, 1):
        plan, receipts = _stage(target, _batch(number), number)
        target.writer().commit(plan, receipts)
    assert "takes the claim" not in caplog.text
    _stage(target, _batch(2), 2)
    _stage(target, replace(_batch(2), job="another-run"), 2)
    assert "another-run takes the claim" in caplog.text


def test_an_overwrite_fences_the_tasks_of_an_append_off(target: Target) -> None:
    if target.kind == "duckdb":
        pytest.skip("DuckDB has no commit=task")
    writer = target.writer()
    plan = writer.prepare(WriteContext("append", commit="task"), _rows().schema)
    first, late = writer.open(plan, 0, 1), writer.open(plan, 1, 2)
    first.write(_rows(1))
    receipts = [first.close()]
    other, staged = _stage(target, WriteContext("overwrite", commit="job", overwrite=True), 7, 8)
    target.writer().commit(other, staged)
    late.write(_rows(2))
    with pytest.raises(SupersededError, match="was overwritten by another job"):
        late.close()
    late.rollback()
    writer.abort(plan, receipts)
    assert target.seen() == Counter([7, 8])


def _run(target: Target, plan: WritePlan, number: int) -> Receipt:
    attempt = target.writer().open(plan, 0, number)
    try:
        attempt.write(_rows(number))
        return attempt.close()
    finally:
        attempt.rollback()


def test_of_two_overwrites_by_task_the_later_one_stays(target: Target) -> None:
    if target.kind == "duckdb":
        pytest.skip("DuckDB has no commit=task")
    writer = target.writer()
    plans = [
        writer.prepare(WriteContext(name, commit="task", overwrite=True), _rows().schema)
        for name in ("one", "two")
    ]
    receipt = _run(target, plans[1], 2)
    with pytest.raises(SupersededError):
        _run(target, plans[0], 1)
    writer.commit(plans[1], [receipt])
    assert target.seen() == Counter([2])


def test_who_took_over_is_named(target: Target) -> None:
    writer = target.writer()
    if target.kind == "duckdb":
        context = WriteContext("monday", commit="job", txn=("nightly", 7))
        plan, receipts = _stage(target, context, 1)
    else:
        context, receipts = WriteContext("monday", commit="task", txn=("nightly", 7)), []
        plan = writer.prepare(context, _rows().schema)
    writer.prepare(replace(context, job="monday again"), _rows().schema)
    with pytest.raises(
        SupersededError, match=r"transaction id 'nightly:7'.*'monday again' took over"
    ) as caught:
        writer.commit(plan, receipts) if receipts else _run(target, plan, 1)
    assert (caught.value.owner, caught.value.successor) == ("monday", "monday again")
    assert not target.seen()


@pytest.mark.parametrize("overwrite", [False, True], ids=["append", "overwrite"])
def test_a_run_whose_rows_were_overwritten_begins_anew_when_it_is_run_again(
    target: Target, overwrite: bool
) -> None:
    if target.kind == "duckdb":
        pytest.skip("DuckDB has no commit=task")
    context = WriteContext("monday", commit="task", overwrite=overwrite, txn=("nightly", 7))
    writer = target.writer()
    plan = writer.prepare(context, _rows().schema)
    _run(target, plan, 1)
    other, staged = _stage(target, WriteContext("tuesday", commit="job", overwrite=True), 8)
    target.writer().commit(other, staged)
    late = writer.open(plan, 1, 2)
    late.write(_rows(2))
    with pytest.raises(SupersededError, match="was overwritten by another job"):
        late.close()
    late.rollback()
    found = writer.unfinished(context)
    assert found is None, "nothing of it is left to be continued"
    plan = writer.prepare(replace(context, job="monday again"), _rows().schema)
    assert writer.committed(plan, 0) is None
    writer.commit(plan, [_run(target, plan, 1)])
    assert target.seen() == Counter([1] if overwrite else [1, 8])
    assert target.staged() == []
