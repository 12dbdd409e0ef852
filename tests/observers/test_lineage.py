"""OpenLineage events: what a receiver gets, and that a receiver holds nothing up."""

import json
import logging
import os
import pkgutil
import sqlite3
import threading
import time
from contextlib import closing
from enum import Enum
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import pyarrow as pa
import pytest

import spark_channel
from spark_channel.observers import has_lineage, lineage
from spark_channel.observers.lineage import (
    Dataset,
    LineageEvents,
    dataset_of,
    event_of,
)
from spark_channel.progress import JobProgress, JobSpec, Phase, Snapshot
from spark_channel.service import ServiceServer
from spark_channel.transform import Digest, Output, Select

pytest.importorskip("openlineage.client", reason="extra `openlineage`")
attrs = pytest.importorskip("attrs")

from openlineage.client import event_v2, generated  # noqa: E402 - the extra may be missing
from openlineage.client.generated.base import BaseFacet  # noqa: E402 - behind importorskip

SPEC = JobSpec(
    "transfer",
    name="copy-orders",
    source="postgresql postgresql://db:5432/shop#public.orders",
    target="csv /lake/orders",
    rows_per_second=1000,
    commit="job",
)
PARENT = "0198b2f0-0000-7000-8000-000000000001"


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the configuration of whoever runs the tests."""
    for name in [name for name in os.environ if name.startswith("OPENLINEAGE")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)


def run(server: ServiceServer, spec: JobSpec, phase: Phase, error: str = "") -> None:
    job = server.jobs.open(spec)
    counters = {
        "rows_pushed": 7,
        "rows_written": 7,
        "bytes_written": 70,
        "waits": {"limit:rows": 2},
    }
    snapshot = {"task": 0, "attempt": 0, "sequence": 1, "phase": "done", **counters}
    server.jobs.report(job, "one", [Snapshot.from_json(snapshot)])
    server.jobs.enter(job, phase, error=error)


def events(posted: list[bytes]) -> list[dict[str, Any]]:
    return [json.loads(each) for each in posted]


@pytest.mark.parametrize(
    ("text", "dataset"),
    [
        (SPEC.source, Dataset("postgres://db:5432", "shop.public.orders")),
        ("mysql mysql://db/shop#orders", Dataset("mysql://db", "shop.orders")),
        ("parquet s3://lake/raw/orders", Dataset("s3://lake", "raw/orders")),
        ("csv sftp://etl:***@host/a.csv", Dataset("sftp://host", "a.csv")),
        ("csv /lake/orders", Dataset("file", "/lake/orders")),
        ("sqlite flights.db#flights", Dataset("sqlite", "flights.db#flights")),
        ("generator", Dataset("generator", "generator")),
        ("csv /lake/a.csv and 11 more", Dataset("file", "/lake/a.csv")),
        ("mysql jdbc:mysql://db/shop#a and 2 more", Dataset("mysql://db", "shop.a")),
        ("", None),
    ],
)
def test_a_dataset_has_the_name_of_openlineage_s_conventions(
    text: str, dataset: Dataset | None
) -> None:
    assert dataset_of(text) == dataset


def test_what_turns_events_on_is_openlineage_s_own_configuration(tmp_path: Path) -> None:
    assert not has_lineage({})
    assert has_lineage({"OPENLINEAGE_URL": "http://x"})
    assert not has_lineage({"OPENLINEAGE_URL": "http://x", "OPENLINEAGE_DISABLED": "true"})
    (tmp_path / "openlineage.yml").write_text("transport: {type: console}")
    assert has_lineage({})


def test_a_user_without_a_home_or_without_access_to_it_has_no_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/" + "x" * 300)  # root may read all: a name too long fails, too
    assert not has_lineage({})
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 2)
    assert not has_lineage({})


def test_a_receiver_gets_the_start_and_the_end_of_each_job(
    receiver: tuple[str, list[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, posted = receiver
    monkeypatch.setenv("OPENLINEAGE_URL", url)
    monkeypatch.setenv("OPENLINEAGE_PARENT_ID", f"airflow/load.orders/{PARENT}")
    with ServiceServer() as server:
        run(server, SPEC, Phase.DONE)
        run(server, SPEC, Phase.FAILED, "the disk is full")
    start, done, again, failed = events(posted)
    assert [each["eventType"] for each in (start, done, again, failed)] == [
        "START",
        "COMPLETE",
        "START",
        "FAIL",
    ]
    assert start["run"]["runId"] == done["run"]["runId"] != failed["run"]["runId"]
    assert done["job"]["name"] == "copy-orders"
    assert done["inputs"][0]["name"] == "shop.public.orders"
    assert done["inputs"][0]["inputFacets"]["inputStatistics"]["rowCount"] == 7
    assert done["outputs"][0]["outputFacets"]["outputStatistics"]["rowCount"] == 7
    assert done["run"]["facets"]["parent"]["run"]["runId"] == PARENT
    assert done["run"]["facets"]["parent"]["job"]["name"] == "load.orders"
    own = done["run"]["facets"]["spark_channel"]
    assert own["limitRowsPerSecond"] == 1000
    assert own["waitSeconds"] == {"limit:rows": 2.0}
    assert own["commit"] == "job"
    assert failed["run"]["facets"]["errorMessage"]["message"] == "the disk is full"
    # commit=job: the target has no row of a job that failed
    assert "outputStatistics" not in failed["outputs"][0].get("outputFacets", {})


def checked(value: Any, kind: Any, where: str) -> None:
    """Hold plain JSON to be what a class of openlineage-python, which are made from the published schemas, declares."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        if value is None:
            assert type(None) in parts, where
            return
        (kind,) = (each for each in parts if each is not type(None))
        checked(value, kind, where)
    elif origin is list:
        assert isinstance(value, list), where
        for number, each in enumerate(value):
            checked(each, parts[0], f"{where}[{number}]")
    elif origin is dict:
        assert isinstance(value, dict), where
        for name, each in value.items():
            checked(each, class_of(each, parts[1]), f"{where}.{name}")
    elif attrs.has(kind):
        hints = {
            name.lstrip("_"): hint for name, hint in get_type_hints(kind).items() if name[0] != "_"
        }
        known = {each.name.lstrip("_"): each for each in attrs.fields(kind)}
        given = {name: each for name, each in value.items() if name[0] != "_"}
        if given.keys() - known.keys():
            assert issubclass(kind, BaseFacet), (where, given.keys() - known.keys())
        for name, field in known.items():
            if name in given:
                checked(given[name], hints.get(name, Any), f"{where}.{name}")
            else:
                assert field.default is not attrs.NOTHING or name in ("producer", "schemaURL"), (
                    f"{where} lacks {name}"
                )
    elif isinstance(kind, type) and issubclass(kind, Enum):
        assert value in {each.value for each in kind}, where
    elif kind is float:
        assert type(value) in (int, float), where
    elif kind is not Any and isinstance(kind, type):
        assert type(value) is kind, (where, value, kind)


def class_of(value: Any, kind: Any) -> Any:
    """The class of a facet that names its schema; `kind` for other values."""
    if not (isinstance(value, dict) and "_schemaURL" in value):
        return kind
    name = value["_schemaURL"].rpartition("/")[2]
    for module in pkgutil.iter_modules(generated.__path__):
        found = getattr(import_module(f"{generated.__name__}.{module.name}"), name, None)
        if found is not None:
            assert found._get_schema() == value["_schemaURL"]
            return found
    assert value["_schemaURL"].startswith("urn:spark-channel:"), value["_schemaURL"]
    return kind


def test_events_say_which_columns_are_made_of_which_and_fit_openlineage_s_schemas(
    receiver: tuple[str, list[bytes]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    url, posted = receiver
    monkeypatch.setenv("OPENLINEAGE_URL", url)
    monkeypatch.setenv("OPENLINEAGE_PARENT_ID", f"airflow/load.orders/{PARENT}")
    (tmp_path / "in.csv").write_text("id,name,card\n1,ada,4242\n2,bob,4343\n")
    spark_channel.transfer(
        None,
        reader={"name": "csv", "path": str(tmp_path / "in.csv"), "header": True},
        writer={"name": "csv", "path": str(tmp_path / "out")},
        transformers=[
            Select(
                (
                    Output("id", "number", pa.int64()),
                    Output("name"),
                    Output("card", "card_hash"),
                    Output(None, "origin", constant="shop"),
                )
            ),
            Digest("card_hash", "sha1"),
        ],
        rows_per_second=1000,
        job_id="copy-orders",
    )
    started, done = events(posted)
    for event in (started, done):
        checked(event, event_v2.RunEvent, "event")
    with pytest.raises(AssertionError):
        checked({**done, "eventType": "ENDED"}, event_v2.RunEvent, "event")
    (read,), (written,) = done["inputs"], done["outputs"]
    assert [field["name"] for field in read["facets"]["schema"]["fields"]] == ["id", "name", "card"]
    assert [(field["name"], field["type"]) for field in written["facets"]["schema"]["fields"]] == [
        ("number", "int64"),
        ("name", "string"),
        ("card_hash", "string"),
        ("origin", "string"),
    ]
    lineage = written["facets"]["columnLineage"]["fields"]
    assert {
        name: [each["field"] for each in flow["inputFields"]] for name, flow in lineage.items()
    } == {
        "number": ["id"],
        "name": ["name"],
        "card_hash": ["card"],
    }
    assert lineage["name"]["transformationType"] == "IDENTITY"
    assert lineage["card_hash"]["transformationType"] == "MASKED"
    (source,) = lineage["card_hash"]["inputFields"]
    assert (source["namespace"], source["name"]) == (read["namespace"], read["name"])
    assert source["transformations"][0]["masking"] is True


def test_events_of_a_replication_s_tables_name_it_and_its_masks(
    receiver: tuple[str, list[bytes]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    url, posted = receiver
    monkeypatch.setenv("OPENLINEAGE_URL", url)
    with closing(sqlite3.connect(tmp_path / "shop.db")) as shop:
        shop.executescript("CREATE TABLE a (id INTEGER, card TEXT); INSERT INTO a VALUES (1, 'x')")
    replication = {
        "source": {"url": f"sqlite:{tmp_path}/shop.db"},
        "target": {"url": f"sqlite:{tmp_path}/lake.db"},
        "streams": {"a": {"columns": {"card": "sha256"}}},
        "limit": {"rows_per_second": 1000},
    }
    report = spark_channel.replicate(None, replication)
    started, done = events(posted)
    assert done["eventType"] == "COMPLETE"
    assert done["run"]["facets"]["spark_channel"]["replication"] == f"replicate {report.run_id}"
    fields = done["outputs"][0]["facets"]["columnLineage"]["fields"]
    assert {name: each["transformationType"] for name, each in fields.items()} == {
        "id": "IDENTITY",
        "card": "MASKED",
    }
    checked(started, event_v2.RunEvent, "event")


def test_a_comparison_reads_both_ends_and_writes_neither() -> None:
    progress = JobProgress("abc", JobSpec("verify", source="csv /a", target="csv /b"))
    event = event_of("COMPLETE", PARENT, "2026-01-01T00:00:00+00:00", progress.status())
    assert [each.name for each in event.inputs] == ["/a", "/b"]
    assert event.outputs == []


def test_a_job_that_the_program_s_end_cut_off_was_aborted(
    receiver: tuple[str, list[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, posted = receiver
    monkeypatch.setenv("OPENLINEAGE_URL", url)
    with ServiceServer() as server:
        server.jobs.open(JobSpec("read", source="csv a"))
    assert [each["eventType"] for each in events(posted)] == ["START", "ABORT"]


def test_a_clock_that_is_set_back_ends_no_run_before_its_start(
    receiver: tuple[str, list[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, posted = receiver
    monkeypatch.setenv("OPENLINEAGE_URL", url)
    times = iter(["2026-03-01T12:00:00.000000+00:00", "2026-03-01T11:00:00.000000+00:00"])
    monkeypatch.setattr(lineage, "_now", lambda: next(times))
    with ServiceServer() as server:
        run(server, SPEC, Phase.DONE)
    start, end = events(posted)
    assert end["eventTime"] >= start["eventTime"]


@pytest.mark.parametrize(("endpoint", "why"), [("moved", "302, a redirect"), ("denied", "401")])
def test_an_event_that_is_not_taken_is_no_success_and_no_log_has_the_login(
    receiver: tuple[str, list[bytes]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    endpoint: str,
    why: str,
) -> None:
    url, posted = receiver
    monkeypatch.setenv("OPENLINEAGE_URL", url.replace("//", "//etl:opensesame@"))
    monkeypatch.setenv("OPENLINEAGE_ENDPOINT", f"{endpoint}?key=opensesame")
    caplog.set_level(logging.DEBUG, "spark_channel")
    events = LineageEvents()
    events.job_opened(JobProgress("1", SPEC))
    events.outbox.close()
    assert events.outbox.counts() == {"sent": 0, "failed": 1, "dropped": 0}
    assert len(posted) == 1
    assert f"the receiver answered {why}" in caplog.text
    assert "opensesame" not in caplog.text


def test_a_receiver_that_does_not_answer_delays_the_end_by_a_bounded_time_and_fails_no_job(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OPENLINEAGE_URL", "http://127.0.0.1:1")
    monkeypatch.setattr("spark_channel.observers.notices._END_SECONDS", 0.3)
    hangs = threading.Event()
    with caplog.at_level(logging.WARNING), ServiceServer() as server:
        (observer,) = server._observers
        assert isinstance(observer, LineageEvents)
        observer._client = SimpleNamespace(emit=lambda _event: hangs.wait(30))
        began = time.monotonic()
        for _ in range(20):
            run(server, SPEC, Phase.DONE)
        assert time.monotonic() - began < 2
    assert time.monotonic() - began < 10
    hangs.set()
    assert observer.outbox.counts()["dropped"] >= 38
    assert "openlineage was dropped" in caplog.text
