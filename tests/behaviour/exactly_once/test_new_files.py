"""Two runs of one write that make one new database file: each stages, and makes the file, in a separate place."""

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest

from spark_channel.connectors import Receipt, WriteContext, WritePlan, Writer
from spark_channel.errors import CommitError, SupersededError
from tests.behaviour.exactly_once.targets import Target, open_target

_SCHEMA = pa.schema([("id", pa.int64())])


@pytest.fixture(params=["sqlite", "duckdb"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Target]:
    for target in open_target(request.param, request, tmp_path):
        target.reset(False)
        yield target


def _staged(
    target: Target, job: str, *ids: int, txn: tuple[str, int] = ("n", 1)
) -> tuple[Writer, WritePlan, list[Receipt]]:
    writer = target.writer()
    plan = writer.prepare(WriteContext(job, txn=txn), _SCHEMA)
    attempt = writer.open(plan, 0, 1)
    attempt.write(pa.record_batch({"id": pa.array(ids, pa.int64())}))
    return writer, plan, [attempt.close()]


def test_an_older_run_that_fails_takes_nothing_from_the_later_one(target: Target) -> None:
    older, older_plan, older_receipts = _staged(target, "older", 1, 2)
    later, plan, receipts = _staged(target, "later", 1, 2)
    older.abort(older_plan, list(older_receipts))
    later.commit(plan, receipts)
    assert target.seen() == Counter([1, 2])
    assert target.staged() == []


def test_a_run_that_dies_in_the_middle_is_not_linked_by_another(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    older, older_plan, older_receipts = _staged(target, "older", 1, 2)
    later, plan, receipts = _staged(target, "later", 1, 2)
    link = os.link

    def begin_the_other(*names: Any) -> None:
        """The older run has made its file, and is about to give it its name."""

        def die(*_: Any) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(cast(Any, later).database, "publish", die)
        with pytest.raises(KeyboardInterrupt):
            later.commit(plan, receipts)
        link(*names)

    monkeypatch.setattr(os, "link", begin_the_other)
    older.commit(older_plan, older_receipts)
    assert target.seen() == Counter([1, 2])
    later.abort(plan, list(receipts))
    assert target.staged() == []


def test_a_run_whose_file_another_job_has_made_leaves_no_staging(target: Target) -> None:
    late, plan, receipts = _staged(target, "late", 1, 2)
    first, first_plan, first_receipts = _staged(target, "first", 3, txn=("other", 1))
    first.commit(first_plan, first_receipts)
    late.commit(plan, receipts)
    assert target.seen() == Counter([1, 2, 3])
    assert target.staged() == []


def test_a_run_that_fails_in_a_file_that_another_job_has_made_gives_its_claim_back(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    late, plan, receipts = _staged(target, "late", 1, 2)
    first, first_plan, first_receipts = _staged(target, "first", 3, txn=("other", 1))
    first.commit(first_plan, first_receipts)

    def fail(*_: Any) -> None:
        raise CommitError("the disk is full")

    monkeypatch.setattr(cast(Any, late).database, "publish", fail)
    with pytest.raises(CommitError, match="the disk is full"):
        late.commit(plan, receipts)
    late.abort(plan, list(receipts))
    owners = target.sql(f"SELECT owner FROM {target.claims} WHERE kind = 'txn' AND state = 'open'")
    assert owners == [("",)]
    assert target.staged() == []


def test_a_late_commit_takes_nothing_from_a_run_that_came_after_it(target: Target) -> None:
    """The file was made after the late one was prepared: whoever holds a claim in it came later, and wins."""
    late, late_plan, late_receipts = _staged(target, "late", 1, 2)
    first, first_plan, first_receipts = _staged(target, "first", 3, txn=("other", 1))
    first.commit(first_plan, first_receipts)
    later, plan, receipts = _staged(target, "later", 1, 2)
    with pytest.raises(SupersededError, match="run 'later'"):
        late.commit(late_plan, late_receipts)
    late.abort(late_plan, list(late_receipts))
    later.commit(plan, receipts)
    assert target.seen() == Counter([1, 2, 3])
    assert target.staged() == []
