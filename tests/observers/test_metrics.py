"""Metrics of jobs and shared limits, as Prometheus reads them."""

import http.client
import json
import re
import subprocess
import time
import urllib.request
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from spark_channel.limits import LimitStatus
from spark_channel.observers.metrics import JobMetrics, prometheus_text
from spark_channel.observers.notices import Outbox
from spark_channel.progress import JobProgress, JobSpec, Phase, Snapshot
from spark_channel.service import ServiceAddress, ServiceControl, ServiceServer, SharedLimit
from spark_channel.service.protocol import READ_SCOPE, scoped_token
from tests.servers.ports import free_port

pytest.importorskip("prometheus_client", reason="Prometheus' own client reads the metrics")

ROOT = Path(__file__).resolve().parents[2]
SPEC = JobSpec(
    "transfer",
    source="postgresql shop#orders",
    target='csv C:\\out "x"\n',
    tasks=2,
    rows_per_second=1000,
    lag={"rows": 7, "seconds": 1.5, "wal_kept_bytes": 10},
)


def parsed(text: bytes) -> dict[str, list[tuple[dict[str, str], float]]]:
    """Values by metric, as Prometheus' own client reads them."""
    from prometheus_client.parser import text_string_to_metric_families

    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(text.decode()):
        assert family.documentation
        assert family.type in ("counter", "gauge")
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def snapshot(task: int, sequence: int = 1, **more: object) -> Snapshot:
    return Snapshot.from_json(
        {"task": task, "attempt": 0, "sequence": sequence, "phase": "running", **more}
    )


def value(text: bytes, name: str, **labels: str) -> float:
    matching = [value for found, value in parsed(text)[name] if labels.items() <= found.items()]
    assert len(matching) == 1, (name, labels, parsed(text).get(name))
    return matching[0]


def scraped(address: ServiceAddress, token: str) -> tuple[int, bytes, str]:
    connection = http.client.HTTPConnection(address.host, address.port, timeout=10)
    try:
        connection.request("GET", "/metrics", headers={"Authorization": f"Bearer {token}"})
        answer = connection.getresponse()
        return answer.status, answer.read(), answer.getheader("Content-Type", "")
    finally:
        connection.close()


def test_a_running_job_and_its_rows_on_both_sides() -> None:
    metrics = JobMetrics()
    progress = JobProgress("abc", SPEC)
    metrics.job_opened(progress)
    progress.update(
        snapshot(
            0, rows_pushed=50, rows_written=40, dirty_rows=3, waits={"limit:rows": 2.5, "target": 1}
        )
    )
    text = prometheus_text(metrics.families())
    assert value(text, "spark_channel_rows_total", side="source") == 50
    assert value(text, "spark_channel_rows_total", side="target") == 40
    assert value(text, "spark_channel_refused_rows_total") == 3
    assert value(text, "spark_channel_wait_seconds_total", side="limit", reason="rows") == 2.5
    assert value(text, "spark_channel_limit_rows_per_second") == 1000
    assert value(text, "spark_channel_lag_seconds") == 1.5
    assert value(text, "spark_channel_jobs", phase="running") == 1
    assert value(text, "spark_channel_tasks", state="open") == 2


def test_a_job_that_runs_each_hour_continues_its_series_also_after_it_is_forgotten() -> None:
    metrics = JobMetrics()
    for number in range(150):
        progress = JobProgress(f"job{number}", SPEC)
        metrics.job_opened(progress)
        progress.update(snapshot(0, rows_pushed=10, rows_written=10))
        progress.enter(Phase.DONE)
        metrics.job_closed(progress)
        text = prometheus_text(metrics.families())
        assert value(text, "spark_channel_rows_total", side="target") == 10 * (number + 1)
    assert value(text, "spark_channel_jobs_finished_total", outcome="done") == 150


def test_a_job_that_goes_on_after_it_was_closed_counts_once() -> None:
    metrics = JobMetrics()
    progress = JobProgress("abc", SPEC)
    metrics.job_opened(progress)
    progress.update(snapshot(0, rows_pushed=10))
    progress.enter(Phase.FAILED)
    metrics.job_closed(progress)
    progress.reopen()
    metrics.job_opened(progress)
    progress.update(snapshot(0, 2, rows_pushed=30))
    progress.enter(Phase.DONE)
    metrics.job_closed(progress)
    text = prometheus_text(metrics.families())
    assert value(text, "spark_channel_rows_total", side="source") == 30
    assert value(text, "spark_channel_jobs_finished_total", outcome="failed") == 0
    assert value(text, "spark_channel_jobs_finished_total", outcome="done") == 1


def test_no_label_has_a_login() -> None:
    metrics = JobMetrics()
    spec = JobSpec("transfer", source="csv sftp://etl:***@host/a.csv", target="csv s3://KEY@b/a@b")
    metrics.job_opened(JobProgress("abc", spec))
    found = parsed(prometheus_text(metrics.families()))
    names = {labels["name"] for labels, _ in found["spark_channel_rows_total"]}
    assert names == {"csv sftp://host/a.csv -> csv s3://b/a@b"}


def test_the_number_of_series_is_bounded() -> None:
    metrics = JobMetrics()
    for number in range(1000):
        progress = JobProgress(f"job{number}", JobSpec("read", name=f"name {number}"))
        metrics.job_opened(progress)
        progress.update(snapshot(0, rows_pushed=1, waits={f"limit:odd{number}": 1}))
        if number % 2:
            progress.enter(Phase.DONE)
            metrics.job_closed(progress)
    found = parsed(prometheus_text(metrics.families()))
    assert (
        sum(
            amount
            for labels, amount in found["spark_channel_rows_total"]
            if labels["side"] == "source"
        )
        == 1000
    )
    assert all(len(samples) <= 2 * 202 for samples in found.values())
    assert {labels["reason"] for labels, _ in found["spark_channel_wait_seconds_total"]} == {
        "other"
    }


def test_the_service_shows_metrics_to_tokens_that_read(server: ServiceServer) -> None:
    address = server.address
    status, text, content_type = scraped(address, scoped_token(address.token, READ_SCOPE))
    assert status == 200
    assert content_type.startswith("text/plain; version=0.0.4")
    assert value(text, "spark_channel_jobs", phase="running") == 0
    assert scraped(address, "wrong")[0] == 401
    assert scraped(address, address.token)[0] == 200


def test_a_token_that_reads_changes_nothing(server: ServiceServer) -> None:
    reading = ServiceAddress(
        server.address.host, server.address.port, scoped_token(server.address.token, READ_SCOPE)
    )
    from tests.service.helpers import refusal

    for action, body in (("open_job", {"spec": {"kind": "read"}}), ("status", {}), ("limits", {})):
        assert "another purpose" in refusal(reading, action, body)


def test_the_token_of_a_file_reads_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "token"
    file.write_text("0123456789abcdef0123\n")
    monkeypatch.setenv("SPARK_CHANNEL_READ_TOKEN_FILE", str(file))
    with ServiceServer() as server:
        assert scraped(server.address, "0123456789abcdef0123")[0] == 200


@pytest.mark.parametrize(
    "content", ["", "short", "two words of a token", "token-\N{SNOWMAN}-of-other-letters"]
)
def test_a_file_without_a_token_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    from spark_channel.errors import OptionError

    file = tmp_path / "token"
    file.write_text(content, encoding="utf-8")
    monkeypatch.setenv("SPARK_CHANNEL_READ_TOKEN_FILE", str(file))
    with pytest.raises(OptionError, match="SPARK_CHANNEL_READ_TOKEN_FILE"):
        ServiceServer()


def test_a_shared_limit_has_metrics_and_shows_no_login(tmp_path: Path) -> None:
    with SharedLimit("orders-db", "10k") as limit:
        limit.pause()
        service = limit._serving().address
        _, text, _ = scraped(service, scoped_token(service.token, READ_SCOPE))
        assert (
            value(text, "spark_channel_shared_limit_rows_per_second", limit="orders-db") == 10_000
        )
        assert value(text, "spark_channel_shared_limit_paused", limit="orders-db") == 1
        assert service.token not in text.decode()


def every_metric() -> bytes:
    """All metrics, each with a value."""
    limit = SimpleNamespace(
        limit="orders-db",
        rows_per_second=1000,
        bytes_per_second=5000,
        effective_rows_per_second=900,
        effective_bytes_per_second=4000,
        paused=False,
        pressure="",
        jobs=1,
        client_count=2,
        waiting_count=1,
        spent_rows=5,
        spent_bytes=50,
    )
    metrics = JobMetrics(
        lambda _job: {"target:lag": (1.0, 2.0)}, lambda: [cast(LimitStatus, limit)]
    )
    metrics.more.append(Outbox("onFinish", lambda _item: None).family)
    for job, ends in (("abc", True), ("def", False)):
        lag = {**SPEC.lag, "bytes": 5}
        progress = JobProgress(job, replace(SPEC, bytes_per_second=5, lag=lag))
        metrics.job_opened(progress)
        progress.update(snapshot(0, rows_pushed=50, rows_written=40, waits={"limit:rows": 2.5}))
        progress.set_held({"target's replication_lag": 3.5})
        if ends:
            progress.enter(Phase.DONE)
            metrics.job_closed(progress)
    return prometheus_text(metrics.families())


def test_a_wait_that_may_shrink_is_exported_when_the_job_has_ended() -> None:
    metrics, progress = JobMetrics(), JobProgress("abc", SPEC)
    waits = "spark_channel_wait_seconds_total"
    metrics.job_opened(progress)
    progress.update(snapshot(0, waits={"start": 2.0}))
    assert waits not in parsed(prometheus_text(metrics.families()))
    progress.update(snapshot(0, sequence=2, waits={"start": 0.5, "limit:share": 1.5}))
    progress.enter(Phase.DONE)
    metrics.job_closed(progress)
    assert value(prometheus_text(metrics.families()), waits, side="start") == 0.5


def test_promtool_finds_nothing_to_improve() -> None:
    text = every_metric()
    checked = subprocess.run(
        ["promtool", "check", "metrics"], input=text, capture_output=True, timeout=30, check=False
    )
    assert (checked.returncode, checked.stderr, checked.stdout) == (0, b"", b"")


def test_the_guide_names_each_metric_and_each_of_its_labels() -> None:
    guide = (ROOT / "docs/watch.md").read_text()
    rows = {
        name: cells[1]
        for line in guide.splitlines()
        if line.startswith("| `spark_channel_") and (cells := line.strip("| ").split(" | "))
        for name in re.findall(r"`(spark_channel_\w+)", cells[0])
    }
    for name, samples in parsed(every_metric()).items():
        assert set(re.findall(r"`(\w+)`", rows[name])) == set(samples[0][0]), name


def test_what_held_the_speed_of_a_running_job_is_counted_by_side_and_signal() -> None:
    text = every_metric()
    labels = {"side": "target", "signal": "replication_lag"}
    assert value(text, "spark_channel_held_seconds_total", **labels) == 7.0


def test_prometheus_scrapes_a_job(server: ServiceServer, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(scoped_token(server.address.token, READ_SCOPE))
    config = {
        "scrape_configs": [
            {
                "job_name": "spark-channel",
                "scrape_interval": "200ms",
                "scrape_timeout": "200ms",
                "authorization": {"credentials_file": str(tmp_path / "token")},
                "static_configs": [{"targets": [str(server.address)]}],
            }
        ]
    }
    (tmp_path / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
    with ServiceControl(server.address) as control:
        job = control.open_job(SPEC)
        server.jobs.report(job, "one", [snapshot(0, rows_pushed=50, rows_written=40)])
    port = free_port()
    process = subprocess.Popen(
        [
            "prometheus",
            f"--config.file={tmp_path}/prometheus.yml",
            f"--storage.tsdb.path={tmp_path}/data",
            f"--web.listen-address=127.0.0.1:{port}",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        query = f"http://127.0.0.1:{port}/api/v1/query?query=spark_channel_rows_total"
        end = time.monotonic() + 30
        found: list[dict[str, object]] = []
        while not found and time.monotonic() < end:
            try:
                with urllib.request.urlopen(query, timeout=5) as answer:
                    found = json.load(answer)["data"]["result"]
            except OSError:
                pass
            time.sleep(0.1)
    finally:
        process.kill()
        process.wait()
    assert {
        (each["metric"]["side"], each["value"][1])  # type: ignore[index] # there is one
        for each in found
    } == {("source", "50"), ("target", "40")}
    assert found[0]["metric"]["name"] == 'postgresql shop#orders -> csv C:\\out "x"\n'  # type: ignore[index] # there is one


def test_the_dashboard_asks_for_metrics_and_labels_that_exist() -> None:
    found = parsed(every_metric())
    dashboard = json.loads((ROOT / "docs/assets/grafana.json").read_text())
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    for expression in asked:
        (name,) = re.findall(r"spark_channel_\w+", expression)
        labels = set(found[name][0][0])
        if by := re.search(r" by \(([^)]*)\)", expression):
            assert set(by[1].split(", ")) <= labels, expression
    assert len(asked) > 8
