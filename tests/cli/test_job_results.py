"""The results of a command's jobs: codes, counts and DataX's closing lines."""

from datetime import UTC, datetime

import pytest

from spark_channel.cli.exit_codes import BAD_INPUT, DONE, FAILED, INTERRUPTED
from spark_channel.cli.job_results import JobOutcome, RunOutcome, closing_table

BEGAN = datetime(2026, 1, 31, 12, tzinfo=UTC)


def run_of(*codes: int, ended: int | None = None) -> RunOutcome:
    jobs = [
        JobOutcome(BEGAN, 1.0, "job.json", "job", "done" if code == DONE else "failed", code)
        for code in codes
    ]
    return RunOutcome(BEGAN, 2.5, jobs, ended)


@pytest.mark.parametrize(
    ("codes", "code"),
    [
        ((), DONE),
        ((DONE, DONE), DONE),
        ((DONE, BAD_INPUT), BAD_INPUT),
        ((BAD_INPUT, BAD_INPUT), BAD_INPUT),
        ((BAD_INPUT, FAILED), FAILED),
    ],
)
def test_the_code_of_jobs_is_that_of_those_that_failed(codes: tuple[int, ...], code: int) -> None:
    assert run_of(*codes).code == code


def test_a_signal_has_the_last_word() -> None:
    assert run_of(DONE, BAD_INPUT, ended=INTERRUPTED).code == INTERRUPTED


def test_the_plain_form_counts_jobs() -> None:
    plain = run_of(DONE, FAILED).to_plain()
    assert (plain["jobs_done"], plain["jobs_failed"], plain["exit_code"]) == (1, 1, FAILED)
    assert plain["started_at"] == "2026-01-31T12:00:00.000Z"
    assert plain["ended_at"] == "2026-01-31T12:00:02.500Z"
    assert [job["state"] for job in plain["jobs"]] == ["done", "failed"]


def test_the_closing_table_has_seven_lines_of_datax() -> None:
    lines = closing_table(run_of(DONE)).split("\n")
    assert len(lines) == 7
    assert lines[2].split()[-1] == "2s"
    assert [line.split()[-1] for line in lines[3:]] == ["0B/s", "0rec/s", "0", "0"]


def test_no_time_is_no_speed() -> None:
    assert RunOutcome(BEGAN, 0.0).rows_per_second == 0.0
