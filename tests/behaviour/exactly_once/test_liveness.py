"""What is staged stays while its run lives, and goes when the run is known to be dead, whatever a clock says."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from spark_channel.connectors import TaskWriter, WriteContext, WritePlan
from spark_channel.connectors.base.claims import Claim, Identity, is_alive
from spark_channel.errors import TargetError
from spark_channel.processes import describe_owner
from tests.behaviour.exactly_once.targets import KINDS, Target, open_target

ROWS = pa.record_batch({"id": pa.array([1, 2, 3], pa.int64())})
LONG_AGO, A_DAY_LATER = "2020-01-01T00:00:00Z", "2020-01-02T00:00:01Z"
ELSEWHERE = json.dumps({"machine": ["elsewhere", "", ""], "pid": 1, "started": "1"})
DEAD = json.dumps({**describe_owner(), "started": "1"})


@pytest.fixture(params=KINDS)
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Target]:
    for target in open_target(request.param, request, tmp_path):
        target.reset(True)
        yield target


def _begin(target: Target) -> tuple[WritePlan, TaskWriter]:
    writer = target.writer()
    plan = writer.prepare(WriteContext("long", commit="job"), ROWS.schema)
    attempt = writer.open(plan, 0, 1)
    attempt.write(ROWS)
    attempt.flush()
    assert target.staged()
    return plan, attempt


def _note(target: Target, column: str, value: str) -> None:
    if column == "beat_at":
        for token in map(Path, target.staged()):
            if token.name == "token":  # a run that stages in files shows life there
                os.utime(token, (0, 0))
    target.sql(f"UPDATE {target.claims} SET {column} = '{value}' WHERE owner = 'long'")


def _another_job_comes(target: Target) -> None:
    writer = target.writer()
    writer.abort(writer.prepare(WriteContext("another", commit="job"), ROWS.schema), None)


def _publish(target: Target, plan: WritePlan, attempt: TaskWriter) -> None:
    target.writer().commit(plan, [attempt.close()])
    assert sorted(target.seen()) == [1, 2, 3]
    assert target.staged() == []


def test_a_live_run_keeps_its_staging_when_the_clock_jumps(target: Target) -> None:
    plan, attempt = _begin(target)
    _note(target, "beat_at", LONG_AGO)
    _another_job_comes(target)
    _note(target, "doubted_at", A_DAY_LATER)
    _another_job_comes(target)
    _publish(target, plan, attempt)


def test_a_run_elsewhere_is_doubted_for_a_day_first(target: Target) -> None:
    plan, attempt = _begin(target)
    _note(target, "process", ELSEWHERE)
    _note(target, "beat_at", LONG_AGO)
    _another_job_comes(target)
    assert target.staged(), "one look is not enough: its clock may have jumped"
    _another_job_comes(target)
    assert target.staged(), "nor are two"
    _publish(target, plan, attempt)


def test_a_run_elsewhere_that_shows_life_again_is_not_doubted(target: Target) -> None:
    plan, attempt = _begin(target)
    _note(target, "process", ELSEWHERE)
    _note(target, "beat_at", LONG_AGO)
    _note(target, "doubted_at", A_DAY_LATER)
    again = target.writer().open(plan, 1, 2)
    again.write(ROWS)
    again.flush()
    again.rollback()
    _another_job_comes(target)
    _publish(target, plan, attempt)


def test_a_run_elsewhere_without_a_beat_for_two_days_is_dead(target: Target) -> None:
    _, attempt = _begin(target)
    _note(target, "process", ELSEWHERE)
    _note(target, "beat_at", LONG_AGO)
    _note(target, "doubted_at", A_DAY_LATER)
    _another_job_comes(target)
    assert target.staged() == []
    attempt.rollback()


def test_a_dead_process_is_known_at_once(target: Target) -> None:
    plan, attempt = _begin(target)
    _note(target, "process", DEAD)
    _another_job_comes(target)
    assert target.staged() == []
    with pytest.raises(TargetError):
        _run(target, plan)
    attempt.rollback()


def _run(target: Target, plan: WritePlan) -> None:
    attempt = target.writer().open(plan, 0, 2)
    try:
        attempt.write(ROWS)
        attempt.close()
    finally:
        attempt.rollback()


def test_a_batch_that_a_query_after_a_killed_one_writes_keeps_its_staging(target: Target) -> None:
    """It has the same name, and so the same claim, which the killed one took."""
    writer = target.writer()
    context = WriteContext("stream-orders-7", commit="job", stream=("orders", 7))
    writer.prepare(context, ROWS.schema)
    target.sql(f"UPDATE {target.claims} SET process = '{DEAD}' WHERE owner = 'stream-orders-7'")
    plan = writer.prepare(context, ROWS.schema)
    attempt = writer.open(plan, 0, 1)
    attempt.write(ROWS)
    attempt.flush()
    _another_job_comes(target)
    assert target.staged()
    _publish(target, plan, attempt)


def test_the_loser_of_a_pair_leaves_no_staging(target: Target) -> None:
    writer = target.writer()
    plans = [
        writer.prepare(WriteContext(name, commit="job", txn=("n", 1)), ROWS.schema)
        for name in ("a", "b")
    ]
    attempt = target.writer().open(plans[1], 0, 1)
    attempt.write(ROWS)
    writer.commit(plans[1], [attempt.close()])
    writer.abort(plans[0], None)
    assert target.staged() == []


@pytest.mark.parametrize(
    ("process", "beat_at", "doubted_at", "verdict"),
    [
        (json.dumps(describe_owner()), LONG_AGO, A_DAY_LATER, "live"),
        (DEAD, "2026-01-01T00:00:00Z", "", "dead"),
        (ELSEWHERE, "2026-01-01T00:00:00Z", "", "live"),
        (ELSEWHERE, LONG_AGO, "", "doubtful"),
        (ELSEWHERE, LONG_AGO, "2026-01-01T06:00:00Z", "doubtful"),
        (ELSEWHERE, LONG_AGO, A_DAY_LATER, "dead"),
        (ELSEWHERE, "2025-12-30T00:00:00Z", "2020-01-02T00:00:00Z", "doubtful"),
        ("", LONG_AGO, A_DAY_LATER, "dead"),
        ("not JSON", "2026-01-01T00:00:00Z", "", "live"),
    ],
)
def test_verdicts(process: str, beat_at: str, doubted_at: str, verdict: str) -> None:
    claim = Claim(
        Identity("t", "job", "j"), "j", process=process, beat_at=beat_at, doubted_at=doubted_at
    )
    assert is_alive(claim, "2026-01-01T12:00:00Z") == verdict
