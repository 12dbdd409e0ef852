"""What people read, word by word."""

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_channel.progress import JobProgress, JobSpec, JobStatus, Phase, Sample, TransferReport
from spark_channel.progress.render import before_lines, progress_line
from spark_channel.progress.report import clock_time, short, summary_lines
from spark_channel.progress.speed import LimitChange

SPEC = JobSpec(
    "transfer",
    name="flights",
    source="csv /data/flights.csv",
    target="sqlite flights.db#flights",
    channels=4,
    tasks=20,
    rows_expected=33_500_000,
    commit="job",
    rows_per_second=100_000,
)
STATUS = JobStatus(
    job="j",
    spec=SPEC,
    phase=Phase.RUNNING,
    seconds=124.0,
    percent=37.9,
    rows=12_400_000,
    bytes=992_000_000,
    rows_moved=12_400_000,
    bytes_moved=992_000_000,
    rows_per_second=99_800.0,
    bytes_per_second=7_984_000.0,
    wait_shares={"limit": 0.71, "source": 0.03, "target": 0.26},
    dirty_rows=0,
    eta_seconds=199.2,
    tasks_done=7,
    tasks=20,
    attempts=8,
)
REPORT = TransferReport(
    job="j",
    kind="transfer",
    phase="done",
    started_at="2026-01-01T00:00:00+00:00",
    seconds=3.5,
    rows=336_776,
    bytes=28_100_000,
    rows_moved=336_776,
    bytes_moved=28_100_000,
    where="sqlite flights.db, table flights",
    commit="job",
    publish_seconds=0.13,
    tasks=20,
    attempts=21,
    retries=1,
    rows_per_second_limit=100_000,
    waits={"limit:rows": 7.1, "source": 0.3, "target": 2.6},
)


def test_the_progress_line() -> None:
    assert progress_line(STATUS) == (
        "37 % 12.4M rows 99.8k/s of 100k/s - waits: limit 71 % source 3 % target 26 % - ETA 3:20"
    )


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (
            {"percent": None, "eta_seconds": None, "wait_shares": {}},
            "12.4M rows 99.8k/s of 100k/s",
        ),
        (
            {"phase": Phase.PUBLISHING, "wait_shares": {}},
            "publishing - 12.4M rows 99.8k/s of 100k/s",
        ),
        (
            {"note": "paused", "wait_shares": {}, "rows_per_second": 0.0, "eta_seconds": None},
            "37 % 12.4M rows 0/s of 100k/s - paused",
        ),
        (
            {"spec": replace(SPEC, rows_per_second=None), "wait_shares": {}},
            "37 % 12.4M rows 99.8k/s - ETA 3:20",
        ),
        (
            {
                "spec": replace(SPEC, rows_per_second=None, bytes_per_second=8_000_000),
                "wait_shares": {},
            },
            "37 % 12.4M rows 7.98MB/s of 8MB/s - ETA 3:20",
        ),
    ],
)
def test_the_progress_line_leaves_out_what_is_unknown(change: dict[str, object], line: str) -> None:
    assert progress_line(replace(STATUS, **change)) == line  # type: ignore[arg-type] # mypy does not see what a mapping has


@given(st.tuples(*[st.floats(0, 1e9)] * 3).filter(lambda waits: sum(waits) > 1e-3))
def test_shares_add_up_to_100(waits: tuple[float, float, float]) -> None:
    total = sum(waits)
    shares = {
        side: each / total for side, each in zip(("limit", "source", "target"), waits, strict=True)
    }
    line = progress_line(replace(STATUS, wait_shares=shares))
    parts = line.split("waits: ")[1].split(" - ")[0].split()
    assert sum(int(part) for part in parts if part.isdigit()) == 100


def test_a_read_that_has_all_rows_gives_no_time_left() -> None:
    """A write under a limit takes them from the channel long after."""
    read = replace(
        STATUS, spec=replace(SPEC, kind="read"), percent=100.0, eta_seconds=0.0, wait_shares={}
    )
    assert progress_line(read) == "all read, 12.4M rows 99.8k/s of 100k/s"


def test_the_speed_of_the_summary_names_the_time_it_is_of() -> None:
    """336 776 rows in 8.9 s are no 96.2k rows/s: Spark needed 5.4 s to start its workers."""
    late = replace(REPORT, seconds=8.9, samples=(Sample(5.4, 0.0, 0.0), Sample(8.9, 96_221.7, 0.0)))
    assert late.moving_seconds == pytest.approx(3.5, abs=0.05)
    assert summary_lines(late)[0] == (
        "copied 336 776 rows (28.1MB) in 8.9 s: 96.2k rows/s of 100k rows/s allowed (96.2 %) over the 3.5 s in "
        "which rows moved"
    )


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        ((20_000, 10_000, 100_000_000), "the limit changed between 10k rows/s and 100M rows/s"),
        ((None, 100_000), "the limit changed between 100k rows/s and no limit"),
        ((100_000, 100_000), "of 100k rows/s allowed (96.2 %)"),
    ],
)
def test_the_summary_of_a_limit_that_changed_names_its_bounds(
    limits: tuple[int | None, ...], text: str
) -> None:
    changes = tuple(LimitChange(float(n), rows, None) for n, rows in enumerate(limits))
    paused = LimitChange(9.0, 0, None, "paused")
    report = replace(REPORT, rows_per_second_limit=limits[-1], changes=(*changes, paused))
    assert summary_lines(report)[0].endswith(text)


def _unused(*speeds: float, **more: object) -> str:
    """The line of the summary of a job that had these speeds in each half second, under a limit of 1 000 rows/s."""
    samples = tuple(Sample((n + 1) / 2, each, 8 * each) for n, each in enumerate(speeds))
    rows = round(sum(speeds) / 2)
    report = replace(
        REPORT, seconds=samples[-1].seconds, samples=samples, rows=rows, rows_moved=rows
    )
    given = {"rows_per_second_limit": 1_000, "waits": {}, **more}
    report = replace(report, **given)  # type: ignore[arg-type] # mypy does not see what a mapping has
    return next((line for line in summary_lines(report) if "not used" in line), "")


def test_the_summary_says_when_the_limit_was_not_used() -> None:
    assert _unused(500, *[1_000] * 7, 400) == (
        "12.2 % of the limit was not used: 0.25 s of the first second, 0.3 s of the last one"
    )
    assert _unused(
        *[1_000] * 4, *[200] * 4, *[1_000] * 4, waits={"source": 3.0, "target": 1.0}
    ) == ("26.7 % of the limit was not used: 1.6 s between (waits for the source)")
    shared = {"limit_scope": "shared limit shop", "waits": {"source": 0.1, "limit:turn": 3.0}}
    assert _unused(*[500] * 8, **shared) == (
        "50.0 % of the limit was not used: 0.5 s of the first second, 0.5 s of the last one, "
        "1.0 s between (other jobs had it)"
    )
    assert _unused(500, 600) == (
        "45.0 % of the limit was not used: 0.25 s of the first second, 0.2 s of the last one"
    )


def test_a_limit_that_was_used_or_changed_is_not_explained() -> None:
    assert _unused(*[990] * 8) == ""
    changed = (LimitChange(0.0, 1_000, None), LimitChange(2.0, 100, None))
    assert _unused(*[1_000] * 4, *[100] * 4, changes=changed) == ""
    assert _unused(*[500] * 8, phase="failed") == ""
    assert _unused(*[500] * 8, rows_per_second_limit=None) == ""
    by_bytes = _unused(
        *[500] * 8, rows_per_second_limit=None, bytes_per_second_limit=8_000, bytes_moved=16_000
    )
    assert by_bytes.startswith("50.0 % of the limit was not used: ")


@given(
    rows=st.integers(1, 10**12),
    launching=st.floats(0, 10_000),
    moving=st.floats(0.1, 10_000),
    after=st.floats(0, 10_000),
)
def test_the_rows_of_a_summary_by_its_seconds_are_its_speed(
    rows: int, launching: float, moving: float, after: float
) -> None:
    ends = round(launching + moving, 3)
    samples = (Sample(round(launching, 3), 0.0, 0.0), Sample(ends, rows / moving, 0.0))
    report = replace(
        REPORT,
        rows=rows,
        rows_moved=rows,
        seconds=ends + after,
        samples=samples,
        rows_per_second_limit=None,
    )
    first = summary_lines(report)[0]
    words = re.fullmatch(
        r"copied [\d ]+ rows? \(.*?\) in (.+?): ([\d.]+)([kMGTPE]?) rows/s(?: over the (.+?) in which rows moved)?",
        first,
    )
    assert words is not None, first
    whole, speed, unit, part = words.groups()
    shown = float(speed) * 1000 ** " kMGTPE".index(unit or " ")
    assert rows / _seconds(part or whole) == pytest.approx(shown, rel=0.0125, abs=0.05)


def test_a_job_too_short_to_measure_has_no_speed() -> None:
    """10 rows were read in 0.0 s at 0 rows/s."""
    short_one = replace(
        REPORT,
        rows=10,
        rows_moved=10,
        bytes=80,
        seconds=0.0,
        samples=(),
        rows_per_second_limit=None,
    )
    assert summary_lines(short_one)[0] == "copied 10 rows (80B) in less than 1 ms"
    longer = replace(
        short_one, seconds=0.002, samples=(Sample(0.001, 0.0, 0.0), Sample(0.001, 0.0, 0.0))
    )
    assert summary_lines(longer)[0] == "copied 10 rows (80B) in 0.002 s: 5k rows/s"


def _seconds(text: str) -> float:
    if text.endswith(" s"):
        return float(text[:-2])
    return float(sum(int(each) * 60**place for place, each in enumerate(reversed(text.split(":")))))


def test_three_lines_before() -> None:
    assert before_lines("j", SPEC) == [
        "transfer flights: /data/flights.csv -> flights.db flights",
        "4 channels over 20 splits, about 33.5M rows, commit=job: all rows or none, visible in one step",
        "limit 100k rows/s for the whole job",
    ]
    by_files = replace(SPEC, at_least_once=True)
    assert before_lines("j", by_files)[1].endswith(
        "commit=job: at least once, hidden until the end, then file by file"
    )
    shared = JobSpec(
        "read", source="t", bytes_per_second=64_000_000, limit_scope="shared limit orders-db"
    )
    assert before_lines("j7", shared) == [
        "read j7: t -> Spark",
        "size unknown before it runs",
        "limit 64MB/s for shared limit orders-db",
    ]
    assert before_lines("j", JobSpec("write", target="t"))[2] == "no limit"
    both = JobSpec(
        "write",
        target="t",
        rows_per_second=50_000,
        shared_rows_per_second=20_000,
        limit_scope="shared limit orders-db",
    )
    assert before_lines("j", both)[2] == "limit 20k rows/s for shared limit orders-db"
    unheard = JobSpec("write", target="t", limit_scope="shared limit orders-db")
    assert before_lines("j", unheard)[2] == "limit: shared limit orders-db"


def test_a_line_has_no_speed_while_no_row_moves() -> None:
    said = "pause of 4 s before another look at 1 differing key"
    progress = JobProgress("j", JobSpec("verify", source="s", target="t"))
    progress.enter(Phase.RUNNING, building=said)
    assert progress_line(progress.status()) == f"0 rows - {said}"
    progress.enter(Phase.RUNNING)
    assert progress_line(progress.status()) == "0 rows 0/s"


def test_the_summary() -> None:
    assert summary_lines(REPORT) == [
        "copied 336 776 rows (28.1MB) in 3.5 s: 96.2k rows/s of 100k rows/s allowed (96.2 %)",
        "the rows are in sqlite flights.db, table flights, published in 0.13 s (commit=job)",
        "20 tasks, 21 attempts (1 retried); waits: limit 71 % source 3 % target 26 %; dirty 0",
    ]


def test_the_summary_says_how_many_rows_were_refused_why_and_where_they_are() -> None:
    reasons = {"NOT NULL constraint failed: t.total": 20_000, "x" * 300: 5_000}
    refused = replace(
        REPORT, rows_dirty=30_000, dirty_rows_path="/kept/refused", dirty_reasons=reasons
    )
    assert summary_lines(refused, verbose=False)[-1] == (
        "30 000 rows were refused, kept in /kept/refused: NOT NULL constraint failed: t.total (20 000 rows); "
        f"{'x' * 160}... (5 000 rows); other reasons (5 000 rows)"
    )
    assert TransferReport.from_json(refused.to_json()) == refused
    one = replace(REPORT, rows_dirty=1, retries=0)
    assert summary_lines(one, verbose=False)[-1] == "1 row was refused"


def test_a_limit_that_never_slowed_the_job_is_no_wait() -> None:
    """A throttle counts no other waits, so that a first grant of a few milliseconds was all of them."""
    passed = replace(REPORT, kind="throttle", waits={"limit:grant": 0.03})
    assert not [line for line in summary_lines(passed) if "waits" in line]
    slowed = replace(passed, waits={"limit:rows": 3.0, "limit:grant": 0.03})
    assert [line for line in summary_lines(slowed) if "waits: limit 100 %" in line]


def test_the_summary_of_a_failure_says_what_was_moved_and_what_stands() -> None:
    failed = replace(
        REPORT,
        phase="failed",
        error="no space left",
        rows=0,
        rows_moved=120_000,
        bytes_moved=10_000_000,
    )
    first, second = summary_lines(failed)[:2]
    assert first == "failed after 120 000 rows (10MB) moved in 3.5 s: no space left"
    assert second.startswith("20 tasks")
    by_task = replace(failed, commit="task", rows=80_000)
    assert (
        summary_lines(by_task)[1]
        == "80 000 rows are in sqlite flights.db, table flights (commit=task)"
    )


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (7, "7"),
        (0.25, "0.2"),
        (99.94, "99.9"),
        (999, "999"),
        (999.6, "1k"),
        (1000, "1k"),
        (1049, "1.05k"),
        (99_800, "99.8k"),
        (100_000, "100k"),
        (999_499, "999k"),
        (999_500, "1M"),
        (12_400_000, "12.4M"),
        (2**63, "9.22E"),
    ],
)
def test_short_numbers(value: float, text: str) -> None:
    assert short(value) == text


@given(st.floats(0, 1e18))
def test_short_numbers_are_near_and_short(value: float) -> None:
    text = short(value)
    assert len(text) <= 5
    units = {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
    number = float(text.rstrip("kMGTPE")) * units.get(text[-1], 1)
    assert number == pytest.approx(value, rel=0.006, abs=0.06)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0:00"), (0.1, "0:01"), (59.5, "1:00"), (200, "3:20"), (3600, "1:00:00"), (1e9, ">99 h")],
)
def test_clock_time(seconds: float, text: str) -> None:
    assert clock_time(seconds) == text


def test_before_a_job_it_is_said_that_its_speed_follows_the_health_of_its_ends() -> None:
    assert before_lines("j", JobSpec("read", protect=True))[-1] == (
        "no limit; as the health of source and target allows"
    )
    spec = JobSpec("read", rows_per_second=50_000, pressure={"replication_lag": 10.0})
    assert (
        before_lines("j", spec)[-1]
        == "limit 50k rows/s for the whole job; replication_lag at most 10"
    )
