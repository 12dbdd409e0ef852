"""Refused rows: the limit they are held against, what is kept of them, and as what text."""

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_channel.connectors import Receipt
from spark_channel.errors import DirtyRowsError, OptionError
from spark_channel.options import WriteOptions
from spark_channel.pipeline import (
    DirtyBudget,
    DirtyLog,
    DirtyStore,
    TaskDirtyRows,
    TaskOutcome,
    dirty_limit_of,
)
from spark_channel.pipeline.dirty import DIRTY_SCHEMA, merged_reasons, row_text
from spark_channel.progress import Counters, DirtyLimit, JobProgress, JobSpec, Phase, Snapshot
from tests.pipeline.fakes import batch


@pytest.mark.parametrize(
    ("options", "limit"),
    [
        ({}, DirtyLimit(0)),
        ({"maxDirtyRows": "0"}, DirtyLimit(0)),
        ({"maxDirtyRows": "10k"}, DirtyLimit(10_000)),
        ({"maxDirtyRows": "Unlimited"}, DirtyLimit(None)),
        ({"maxDirtyFraction": "0.02"}, DirtyLimit(None, 0.02)),
        ({"maxDirtyFraction": "0.02", "maxDirtyRows": "5"}, DirtyLimit(5, 0.02)),
    ],
)
def test_the_limit_is_what_the_options_say(options: dict[str, str], limit: DirtyLimit) -> None:
    parsed, _ = WriteOptions.parse(options)
    assert dirty_limit_of(parsed) == limit
    assert limit.tolerant == parsed.tolerates_dirty_rows


@pytest.mark.parametrize(
    "options",
    [
        {"maxDirtyRows": "-1"},
        {"maxDirtyRows": "few"},
        {"maxDirtyRows": "1.5"},
        {"maxDirtyFraction": "1.1"},
        {"maxDirtyFraction": "-0.1"},
        {"maxDirtyFraction": "nan"},
        {"dirtyRowsPath": " "},
    ],
)
def test_a_limit_that_makes_no_sense_is_refused(options: dict[str, str]) -> None:
    (name,) = options
    with pytest.raises(OptionError, match=f"option '{name}'"):
        WriteOptions.parse(options)


def test_a_share_is_judged_against_what_is_expected_and_at_the_end_against_what_came() -> None:
    limit = DirtyLimit(None, 0.01)
    assert limit.exceeded(11, 100) == ""
    assert limit.exceeded(10, 100, 1000) == ""
    assert "11 rows were refused of about 1000 (1.1 %)" in limit.exceeded(11, 100, 1000)
    assert limit.exceeded(11, 5000, 1000) == ""
    assert "1 row was refused of 99 " in limit.exceeded(1, 99, final=True)
    assert limit.exceeded(1, 100, final=True) == ""
    assert DirtyLimit(None, 0.0).exceeded(1, 0) != ""
    assert DirtyLimit(None).exceeded(10**9, 10**9, final=True) == ""


def test_the_job_as_a_whole_stops_and_a_failed_attempt_does_not_count() -> None:
    progress = JobProgress("j", JobSpec("write", max_dirty_rows=10))
    progress.update(Snapshot(task=0, attempt=0, sequence=1, dirty_rows=6))
    progress.update(Snapshot(task=0, attempt=0, sequence=2, dirty_rows=6, phase=Phase.FAILED))
    progress.update(Snapshot(task=0, attempt=1, sequence=1, dirty_rows=6))
    assert progress.stop_reason == ""
    progress.update(Snapshot(task=1, attempt=2, sequence=1, dirty_rows=5))
    assert progress.stop_reason == "11 rows were refused, and maxDirtyRows is 10"
    progress.update(Snapshot(task=1, attempt=2, sequence=2, dirty_rows=5, phase=Phase.FAILED))
    assert progress.stop_reason != ""


def test_the_budget_ends_with_the_row_that_is_too_many() -> None:
    budget = DirtyBudget(DirtyLimit(2), hint=". See there")
    budget.spend(2, "bad")
    with pytest.raises(
        DirtyRowsError, match=r"3 rows were refused.*The last one: worse. See there"
    ):
        budget.spend(1, "worse")


def test_rows_are_kept_with_reason_task_and_target(tmp_path: Path) -> None:
    store = DirtyStore.prepare(str(tmp_path / "dirty"), "j", "sqlite x.db#t")
    counters = Counters(3, 9)
    log = DirtyLog(DirtyBudget(DirtyLimit(None)), 3, 9, store=store, job="j", counters=counters)
    for number in range(1500):
        log.refuse(batch(number, 1), f"why {number}")
    part = log.finish()
    lost = DirtyLog(DirtyBudget(DirtyLimit(None)), 3, 10, store=store, job="j")
    lost.refuse(batch(0, 1200), "lost")
    lost.rollback()
    store.publish([part])
    store.drop()
    files = list((tmp_path / "dirty").glob("*.parquet"))
    table = pa.concat_tables(pq.read_table(path) for path in files)
    assert table.schema.names == DIRTY_SCHEMA.names
    assert table.num_rows == part.rows == counters.snapshot().dirty_rows == 1500
    assert json.loads(table["row"][1499].as_py()) == {"n": 1499}
    assert set(table["task"].to_pylist()) == {3}
    assert set(table["target"].to_pylist()) == {"sqlite x.db#t"}
    assert (len(part.samples), part.reasons) == (3, {"why 0": 1500})


def test_every_value_has_a_text() -> None:
    row = pa.record_batch(
        {
            "n": pa.array([None], pa.int64()),
            "f": [float("nan")],
            "b": [b"\x00\xff"],
            "d": [date(2024, 1, 31)],
            "t": pa.array([datetime(2024, 1, 31, 12, tzinfo=UTC)], pa.timestamp("us", "UTC")),
            "m": [Decimal("1.20")],
            "l": [[1, 2]],
            "far": pa.array([2**62], pa.timestamp("us")),
            "s": ['"é'],
        }
    )
    text = json.loads(row_text(row))
    assert len(text.pop("far")) > 10
    assert text == {
        "n": None,
        "f": "nan",
        "b": "AP8=",
        "d": "2024-01-31",
        "t": "2024-01-31T12:00:00+00:00",
        "m": "1.20",
        "l": [1, 2],
        "s": '"é',
    }


def test_what_a_task_refused_is_in_its_receipt() -> None:
    receipt = Receipt(3, 1, rows=10, nbytes=80, dirty_rows=2)
    assert TaskOutcome(3, receipt).dirty.into(receipt) == receipt
    both = TaskDirtyRows(5, ()).into(receipt)
    assert (both.rows, both.dirty_rows) == (10, 7)


def test_reasons_are_counted_by_kind_and_samples_show_each_kind() -> None:
    """On SQLite, PostgreSQL and MySQL: tests/behaviour/reports/test_refused_reasons.py."""
    log = DirtyLog(DirtyBudget(DirtyLimit(None)), 0, 0)
    for number in range(500):
        log.refuse(batch(number, 1), f"Duplicate entry 'a-{number}b' for key 'PRIMARY'")
    log.refuse(batch(7, 1), "column 'n': 'he says: seven' cannot be stored")
    part = log.finish()
    assert part.reasons == {
        "Duplicate entry 'a-0b' for key 'PRIMARY'": 500,
        "column 'n': 'he says: seven' cannot be stored": 1,
    }
    assert len(part.samples) == 4
    more = {"Duplicate entry 'z-9' for key 'PRIMARY'": 1, "Duplicate entry 'z' for key 'name'": 3}
    assert merged_reasons([part.reasons, more]) == {
        "Duplicate entry 'a-0b' for key 'PRIMARY'": 501,
        "Duplicate entry 'z' for key 'name'": 3,
        "column 'n': 'he says: seven' cannot be stored": 1,
    }


@pytest.mark.parametrize(
    ("one", "other", "is_one_kind"),
    [
        ("Duplicate entry 'it's' for key 'k'", "Duplicate entry 'is' for key 'k'", True),
        ("Duplicate entry 'a'' for key 'k'", "Duplicate entry '' for key 'k'", True),
        ("value -1.5e3 is too low at row 7", "value 12 is too low at row 30", True),
        ('invalid: "' + "a" * 2_000, 'invalid: "' + "b" * 2_000, True),
        ("NOT NULL constraint failed: t.line1", "NOT NULL constraint failed: t.line2", False),
        ("too long for varchar(2)", "too long for varchar(30)", False),
        ("CHECK constraint failed: n > 0", "CHECK constraint failed: n > 10", False),
    ],
)
def test_a_kind_is_without_values_and_with_names(one: str, other: str, is_one_kind: bool) -> None:
    assert merged_reasons([{one: 5, other: 3}]) == ({one: 8} if is_one_kind else {one: 5, other: 3})


def test_kinds_of_reasons_are_bounded() -> None:
    log = DirtyLog(DirtyBudget(DirtyLimit(None)), 0, 0)
    for number in range(1000):
        log.refuse(batch(0, 1), "x" * number)
    part = log.finish()
    assert part.rows == 1000
    assert len(part.reasons) == 100
