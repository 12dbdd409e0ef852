"""A run that is paused while it holds the claim's lock: who takes over does not wait for it to wake."""

import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_channel.connectors import WriteContext
from spark_channel.connectors.sql.write import postgresql_claims
from spark_channel.connectors.sql.write.claims import Claims
from spark_channel.errors import SupersededError, TargetError
from spark_channel.options import CommitMode
from tests.behaviour.exactly_once.targets import Target, open_target

_SCHEMA = pa.schema([("id", pa.int64())])
_TIMEOUT = 30.0


@pytest.fixture(params=["postgresql", "adbc"])
def target(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Target]:
    soon = "SET LOCAL idle_in_transaction_session_timeout = '1s'"
    monkeypatch.setattr(postgresql_claims, "END_WHEN_SILENT", soon)
    for target in open_target(request.param, request, tmp_path):
        target.reset(True)
        yield target


def _write(target: Target, job: str, commit: CommitMode) -> None:
    writer = target.writer()
    plan = writer.prepare(WriteContext(job, commit=commit, txn=("n", 1)), _SCHEMA)
    attempt = writer.open(plan, 0, 1)
    try:
        attempt.write(pa.record_batch({"id": pa.array([1, 2], pa.int64())}))
        receipt = attempt.close()
    finally:
        attempt.rollback()
    writer.commit(plan, [receipt])


@pytest.mark.parametrize(("commit", "step"), [("job", "publish"), ("task", "add_task")])
def test_a_paused_run_holds_its_claim_for_seconds(
    target: Target, monkeypatch: pytest.MonkeyPatch, commit: CommitMode, step: str
) -> None:
    paused, wake = threading.Event(), threading.Event()
    original = getattr(Claims, step)

    def pause(claims: Claims, held: Any, *args: Any, **more: Any) -> Any:
        if held.owner == "paused" and not paused.is_set():
            paused.set()
            assert wake.wait(_TIMEOUT * 2)
        return original(claims, held, *args, **more)

    monkeypatch.setattr(Claims, step, pause)
    with ThreadPoolExecutor(2) as pool:
        try:
            first = pool.submit(_write, target, "paused", commit)
            assert paused.wait(_TIMEOUT)
            pool.submit(_write, target, "later", commit).result(_TIMEOUT)
        finally:
            wake.set()
        if commit == "job":
            first.result(_TIMEOUT)  # it finds its pair published
        else:  # a driver of ADBC says that its connection is lost, and Spark's next attempt gets the rest
            with pytest.raises(SupersededError if target.kind == "postgresql" else TargetError):
                first.result(_TIMEOUT)
    assert target.seen() == Counter([1, 2])
    assert target.staged() == []
