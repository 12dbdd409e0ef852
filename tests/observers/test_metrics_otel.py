"""Metrics that are pushed by OpenTelemetry's protocol."""

import logging
import os
import time
from pathlib import Path

import pytest

from spark_channel.observers import metrics
from spark_channel.progress import JobSpec, Phase, Snapshot
from spark_channel.service import ServiceServer

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="extra `otel`")
metrics_sdk = pytest.importorskip("opentelemetry.sdk.metrics._internal")


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)


def test_what_turns_the_push_on_is_opentelemetry_s_own_configuration() -> None:
    endpoint = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}
    assert metrics.is_push_configured(endpoint)
    assert not metrics.is_push_configured({**endpoint, "OTEL_SDK_DISABLED": "true"})
    assert not metrics.is_push_configured({})


def test_the_last_numbers_of_a_job_are_pushed(
    receiver: tuple[str, list[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, posted = receiver
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
    with ServiceServer() as server:
        job = server.jobs.open(JobSpec("transfer", name="copy-orders", target="csv a"))
        snapshot = {"task": 0, "attempt": 0, "phase": "done", "rows_pushed": 9, "rows_written": 7}
        server.jobs.report(job, "one", [Snapshot.from_json({**snapshot, "sequence": 1})])
        server.jobs.enter(job, Phase.DONE)
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
        ExportMetricsServiceRequest,
    )

    request = ExportMetricsServiceRequest.FromString(posted[-1])
    metrics = {
        metric.name: metric
        for resource in request.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }
    (resource,) = request.resource_metrics
    named = {each.key: each.value.string_value for each in resource.resource.attributes}
    assert named["service.name"] == "spark-channel"
    assert named["service.instance.id"]
    assert all(each.unit for each in metrics.values())
    rows = metrics["spark_channel.rows"]
    assert rows.unit == "{row}"
    assert rows.sum.is_monotonic
    found = {
        tuple(sorted((each.key, each.value.string_value) for each in point.attributes)): (
            point.as_double or point.as_int
        )
        for point in rows.sum.data_points
    }
    assert found == {
        (("kind", "transfer"), ("name", "copy-orders"), ("side", "source")): 9,
        (("kind", "transfer"), ("name", "copy-orders"), ("side", "target")): 7,
    }
    assert metrics["spark_channel.commit_seconds"].unit == "s"


def test_an_endpoint_that_redirects_is_named_as_one_that_takes_nothing(
    receiver: tuple[str, list[bytes]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    url, posted = receiver
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", f"{url}/moved")
    with ServiceServer():
        pass
    assert posted
    assert "answered 302, a redirect" in caplog.text


def test_an_endpoint_that_does_not_answer_delays_the_end_by_a_bounded_time(
    silent_port: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{silent_port}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    monkeypatch.setattr(metrics, "_END_SECONDS", 1.0)
    with caplog.at_level(logging.CRITICAL), ServiceServer():
        began = time.monotonic()
    assert time.monotonic() - began < 5


def test_the_end_of_the_program_waits_for_the_service_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """OpenTelemetry's own handler comes first, and waits 30 s for an endpoint that does not answer."""
    registered: list[object] = []
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setattr(metrics_sdk, "register", registered.append)
    push = metrics.MetricPush(list)
    push.close()
    assert registered == []
