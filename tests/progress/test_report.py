"""A report can be kept, read again, tabulated and drawn."""

import json
from dataclasses import replace

import pytest

from spark_channel.progress import JobProgress, JobSpec, LimitChange, Sample, TransferReport
from spark_channel.progress import report as shown
from spark_channel.progress.speed import by_the_second

REPORT = TransferReport(
    job="j",
    kind="transfer",
    phase="done",
    started_at="2026-01-01T00:00:00+00:00",
    seconds=4.0,
    rows=300,
    bytes=2400,
    rows_moved=300,
    bytes_moved=2400,
    rows_per_second_limit=100,
    limit_scope="the whole job",
    waits={"limit:rows": 1.5, "limit:paused": 0.5, "source": 1.0},
    samples=(Sample(1.0, 90.0, 720.0), Sample(3.0, 105.0, 840.0)),
)


def test_json_gives_the_same_report_back() -> None:
    assert TransferReport.from_json(REPORT.to_json()) == REPORT


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"job": "j"}', '{"surprise": 1}'])
def test_what_is_no_report_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        TransferReport.from_json(text)


def test_speed_is_measured_until_the_last_row() -> None:
    assert REPORT.moving_seconds == 3.0
    assert REPORT.rows_per_second == pytest.approx(100)
    assert REPORT.bytes_per_second == pytest.approx(800)
    assert replace(REPORT, samples=(), seconds=0.0).rows_per_second == 0.0


def test_speed_is_measured_from_when_the_first_task_began() -> None:
    """Spark needed 10 s to start its workers."""
    late = replace(REPORT, samples=(Sample(10.0, 0.0, 0.0), Sample(13.0, 100.0, 800.0)))
    assert late.moving_seconds == 3.0
    assert late.rows_per_second == pytest.approx(100)
    assert replace(REPORT, samples=(Sample(10.0, 0.0, 0.0),)).moving_seconds == 10.0


def test_waits_by_side() -> None:
    assert REPORT.waits_by_side == {"limit": 2.0, "source": 1.0}


def test_samples_as_a_table() -> None:
    frame = REPORT.to_pandas()
    assert list(frame.columns) == [
        "seconds",
        "rows_per_second",
        "bytes_per_second",
        "rows_written_per_second",
        "bytes_written_per_second",
    ]
    assert frame["rows_per_second"].tolist() == [90.0, 105.0]
    assert list(replace(REPORT, samples=()).to_pandas().columns) == list(frame.columns)


def test_the_plot_shows_speed_against_the_limit() -> None:
    mpl = pytest.importorskip("matplotlib")

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    ax = REPORT.plot()
    assert ax.get_ylabel() == "rows per second"
    assert [line.get_ydata()[0] for line in ax.get_lines()] == [100.0]  # type: ignore[index] # there is one
    by_bytes = replace(REPORT, rows_per_second_limit=None, bytes_per_second_limit=2_000_000)
    fresh = plt.figure().subplots()
    assert by_bytes.plot(fresh) is fresh
    assert fresh.get_ylabel() == "MB per second"
    replace(REPORT, samples=(), rows_per_second_limit=None).plot(plt.figure().subplots())
    plt.close("all")


def test_ipython_shows_the_summary() -> None:
    pretty = pytest.importorskip("IPython.lib.pretty").pretty

    assert pretty(REPORT) == str(REPORT)
    assert str(REPORT).startswith("copied 300 rows")


def test_html_is_escaped() -> None:
    html = replace(REPORT, where="<b>&")._repr_html_()
    assert "&lt;b&gt;&amp;" in html
    assert "<b>" not in html


def test_a_spec_travels_unchanged_and_nonsense_does_not() -> None:
    spec = JobSpec("write", target="t", commit="task", rows_per_second=5, tasks=0, rerun="again")
    assert JobSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec
    for change in (
        {"kind": "dance"},
        {"rows_per_second": 0},
        {"tasks": -1},
        {"x": 1},
        {"name": 5},
        {"name": "x" * 5000},
    ):
        with pytest.raises(ValueError):
            JobSpec.from_json({**spec.to_json(), **change})


def test_the_plot_shows_whole_seconds_however_unevenly_tasks_report() -> None:
    uneven = []
    for second in range(4):  # 100 rows/s, reported as a sliver of a second and the rest
        uneven += [Sample(second + 0.98, 50 / 0.98, 0.0), Sample(second + 1.0, 50 / 0.02, 0.0)]
    edges, speeds = by_the_second(uneven, "rows_per_second")
    assert edges == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert speeds == pytest.approx([100.0] * 4)
    assert by_the_second([], "rows_per_second") == ([], [])


def test_the_plot_marks_pauses_and_changes_and_shows_both_ends() -> None:
    plt = pytest.importorskip("matplotlib.pyplot")

    report = replace(
        REPORT,
        samples=(Sample(1.0, 100.0, 800.0, 50.0, 400.0), Sample(3.0, 40.0, 320.0, 65.0, 520.0)),
        changes=(
            LimitChange(0.0, 100, None),
            LimitChange(1.0, 100, None, "paused"),
            LimitChange(2.0, 50, None),
        ),
    )
    assert TransferReport.from_json(report.to_json()) == report
    ax = report.plot(plt.figure().subplots())
    (limit,) = ax.get_lines()
    assert list(limit.get_xdata()) == [0.0, 1.0, 2.0, 3.0]  # type: ignore[arg-type] # an array
    assert list(limit.get_ydata()) == [100.0, 100.0, 50.0, 50.0]  # type: ignore[arg-type] # an array
    assert [text.get_text() for text in ax.texts] == ["paused"]
    legend = ax.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["source", "target", "limit"]
    plt.close("all")


def test_html_holds_the_picture() -> None:
    pytest.importorskip("matplotlib")
    assert "<svg" in REPORT._repr_html_()
    assert "<svg" not in replace(REPORT, samples=())._repr_html_()


def test_what_has_no_optional_fields_is_read_and_written_alike() -> None:
    kept = (
        '{"job": "j", "kind": "transfer", "phase": "done", "started_at": "2026-01-01T00:00:00+00:00", "seconds": 4, '
        '"rows": 300, "bytes": 2400, "rows_moved": 300, "bytes_moved": 2400, "source": "", "target": "", "where": "", '
        '"commit": "", "publish_seconds": 0.0, "rows_dirty": 0, "dirty_rows_path": "", "tasks": 0, "attempts": 0, '
        '"retries": 0, "rows_per_second_limit": 100, "bytes_per_second_limit": null, "limit_scope": "the whole job", '
        '"waits": {"limit:rows": 1.5}, "samples": [{"seconds": 1.0, "rows_per_second": 90.0, '
        '"bytes_per_second": 720.0, "rows_written_per_second": 0.0, "bytes_written_per_second": 0.0}], '
        '"changes": [{"seconds": 0.0, "rows_per_second": 100, "bytes_per_second": null, "note": ""}], '
        '"error": "", "rerun": ""}'
    )
    report = TransferReport.from_json(kept)
    assert report.samples == (Sample(1.0, 90.0, 720.0),)
    assert report.changes == (LimitChange(0.0, 100, None),)
    assert json.loads(report.to_json()) == {**json.loads(kept), "seconds": 4.0}
    sent = {"kind": "write", "target": "t", "rows_per_second": 5, "tasks": 0}
    assert JobSpec.from_json(sent).to_json() == sent


def test_an_error_names_the_field_and_shows_no_value() -> None:
    with pytest.raises(ValueError, match="a job has 'rows_per_second' wrong") as caught:
        JobSpec.from_json({"kind": "write", "rows_per_second": "hunter2"})
    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_cell_shows_a_report_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The live display has shown it when it is the cell's value, too."""
    capture = pytest.importorskip("IPython.utils.capture")
    monkeypatch.setattr(shown, "_cells", [])
    with capture.capture_output() as outside:
        REPORT._ipython_display_()
        REPORT._ipython_display_()
    assert outside.stdout.count("'text/plain'") == 2, "outside of a notebook there are no cells"
    for _cell in range(2):
        shown.begin_cell()
        with capture.capture_output() as inside:
            REPORT._ipython_display_()
            REPORT._ipython_display_()
        assert inside.stdout.count("'text/plain'") == 1


def test_what_held_the_speed_is_in_the_report_and_survives_json() -> None:
    job = JobProgress("j", JobSpec("read", protect=True))
    assert "held" not in json.loads(job.report().to_json())
    job.set_held({"target's replication_lag": 18.2, "source's wakeup": 3.0})
    report = job.report()
    assert report.held == {"source's wakeup": 3.0, "target's replication_lag": 18.2}
    assert (
        "slowed down by the source's wakeup for 3.0 s, target's replication_lag for 18.2 s"
        in str(report)
    )
    assert json.loads(report.to_json())["held"] == report.held
