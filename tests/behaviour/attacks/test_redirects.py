"""A redirect takes no login to another server: by each connector, exporter and notice that speaks HTTP."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import spark_channel
from spark_channel.progress import JobSpec, Phase
from spark_channel.service import ServiceServer
from tests.behaviour.attacks.test_logins import Options, _clickhouse, _elastic, _load, _web, log_in
from tests.behaviour.attacks.test_other_ways_in import _iceberg, _store
from tests.behaviour.attacks.traps import PASSWORD, Authority, Heard, trap
from tests.servers.rogue import rogue

# A client that leaves in the middle: Python leaves its socket to the garbage collector.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning"
)

STATUSES = [
    "301 Moved Permanently",
    "302 Found",
    "303 See Other",
    "307 Temporary Redirect",
    "308 Permanent Redirect",
]

CONNECTORS: dict[str, Callable[[int], Options]] = {
    "ClickHouse": lambda port: _clickhouse("clickhouse://127.0.0.1:PORT/d", port),
    "Elasticsearch": lambda port: _elastic("http", port),
    "key of Elasticsearch": lambda port: {
        "name": "elasticsearch",
        "url": f"http://127.0.0.1:{port}",
        "index": "t",
        "apiKey": PASSWORD,
        "retryTimeout": "0.01",
    },
    "web service": lambda port: _web("http", port),
    "token of a web service": lambda port: {
        "name": "http",
        "url": f"http://127.0.0.1:{port}/",
        "token": PASSWORD,
        "retryTimeout": "0.01",
    },
    "headers of a web service": lambda port: {
        "name": "http",
        "url": f"http://127.0.0.1:{port}/",
        "headers": json.dumps({"X-Api-Key": PASSWORD, "Cookie": f"s={PASSWORD}"}),
        "params": json.dumps({"api_key": PASSWORD}),
        "retryTimeout": "0.01",
    },
    "Stream Load": lambda port: _load("http", port, backends="be.example"),
    "Iceberg's catalog, token": lambda port: _iceberg("http", port, token=PASSWORD),
    "Iceberg's catalog, credential": lambda port: _iceberg(
        "http", port, credential=f"u:{PASSWORD}"
    ),
    "files in a store": lambda port: _store("http", port, "csv"),
    "Delta in a store": lambda port: _store("http", port, "delta"),
}


def notify(monkeypatch: pytest.MonkeyPatch, port: int) -> None:
    monkeypatch.setenv("SPARK_CHANNEL_ON_FINISH", f"http://u:{PASSWORD}@127.0.0.1:{port}/")


def push(monkeypatch: pytest.MonkeyPatch, port: int) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="extra `otel`")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", f"api-key={PASSWORD}")


def lineage(monkeypatch: pytest.MonkeyPatch, port: int) -> None:
    pytest.importorskip("openlineage.client", reason="extra `openlineage`")
    monkeypatch.setenv("OPENLINEAGE_URL", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("OPENLINEAGE_API_KEY", PASSWORD)


def several_lineages(monkeypatch: pytest.MonkeyPatch, port: int) -> None:
    pytest.importorskip("openlineage.client", reason="extra `openlineage`")
    inner = {
        "type": "http",
        "url": f"http://127.0.0.1:{port}",
        "custom_headers": {"X-Api-Key": PASSWORD},
        "retry": {"total": 0},
    }
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__TYPE", "composite")
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__TRANSPORTS", json.dumps({"one": inner}))


NOTICES = {
    "notice of a job's end": notify,
    "OpenTelemetry": push,
    "OpenLineage": lineage,
    "OpenLineage's composite": several_lineages,
}

SPEAK_HTTP = {
    "connectors/base/network.py": "connections for the others",
    "connectors/clickhouse/session.py": "ClickHouse",
    "connectors/delta/entry.py": "Delta in a store",
    "connectors/delta/features.py": "Delta in a store",
    "connectors/delta/lake_table.py": "Delta in a store",
    "connectors/delta/reader.py": "Delta in a store",
    "connectors/delta/table.py": "Delta in a store",
    "connectors/elasticsearch/client.py": "Elasticsearch",
    "connectors/files/filesystem.py": "files in a store",
    "connectors/http/client.py": "web service",
    "connectors/iceberg/catalog.py": "Iceberg's catalog, token",
    "connectors/iceberg/guard.py": "Iceberg's catalog, token",
    "connectors/iceberg/lake_table.py": "Iceberg's catalog, token",
    "connectors/stream_load/client.py": "Stream Load",
    "observers/lineage.py": "OpenLineage",
    "observers/metrics.py": "OpenTelemetry",
    "observers/notices.py": "notice of a job's end",
}


def test_each_module_that_speaks_http_to_other_servers_is_tried() -> None:
    folder = Path(spark_channel.__file__).parent
    client = re.compile(
        r"^ *(?:from|import) (?:http\.client|urllib\.request|urllib3|requests|aiohttp|httpx|clickhouse_connect"
        r"|openlineage\.client|opentelemetry\.exporter|pyiceberg\.catalog|deltalake)\b",
        re.MULTILINE,
    )
    makes = re.compile(client.pattern + r"|FileSystem\.from_uri|S3FileSystem\(", re.MULTILINE)
    found = {
        str(path.relative_to(folder))
        for path in folder.rglob("*.py")
        if makes.search(path.read_text(encoding="utf-8"))
    }
    assert found == set(SPEAK_HTTP)
    tried = {*CONNECTORS, *NOTICES, "connections for the others"}
    assert set(SPEAK_HTTP.values()) <= tried


@contextmanager
def redirecting(status: str, tmp_path: Path) -> Iterator[tuple[int, Heard, list[bytes]]]:
    """(port of a server that redirects all, what the other server heard, what the first one heard)."""
    authority = Authority(tmp_path / "ours")
    with trap("http", "no TLS", authority, authority, "") as heard:
        asked: list[bytes] = []

        def speak(client: Any) -> None:
            client.settimeout(5)
            while data := client.recv(65_536):
                asked.append(data)
                client.sendall(
                    f"HTTP/1.1 {status}\r\nLocation: http://localhost:{heard.port}/\r\n"
                    "Content-Length: 0\r\nConnection: close\r\n\r\n".encode()
                )

        with rogue(speak) as port:
            yield port, heard, asked


@pytest.mark.parametrize("way", CONNECTORS)
@pytest.mark.parametrize("status", STATUSES)
def test_a_redirect_takes_no_login_to_another_server(way: str, status: str, tmp_path: Path) -> None:
    with redirecting(status, tmp_path) as (port, heard, asked):
        log_in(CONNECTORS[way](port))
    assert asked
    assert not heard.has_password


@pytest.mark.parametrize("way", NOTICES)
@pytest.mark.parametrize("status", STATUSES)
def test_a_redirect_takes_no_login_of_a_notice_to_another_server(
    way: str, status: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    with redirecting(status, tmp_path) as (port, heard, asked):
        NOTICES[way](monkeypatch, port)
        with ServiceServer() as server:
            job = server.jobs.open(JobSpec("transfer", name="n", target="csv a"))
            server.jobs.enter(job, Phase.DONE)
    assert Heard(data=bytearray(b"".join(asked))).has_password
    assert not heard.has_password
    assert heard.connections == 0


def test_a_push_follows_no_redirect_with_an_exporter_that_would(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exporters before 1.40 left it to the session, whose headers are a login."""
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="extra `otel`")
    import requests
    from opentelemetry.exporter.otlp.proto.http import metric_exporter

    given: list[requests.Session] = []

    def exporter(session: requests.Session) -> Any:
        given.append(session)
        raise RuntimeError("not needed")

    monkeypatch.setattr(metric_exporter, "OTLPMetricExporter", exporter)
    with redirecting("307 Temporary Redirect", tmp_path) as (port, heard, asked):
        push(monkeypatch, port)
        with ServiceServer():
            pass
        (session,) = given
        session.headers["api-key"] = PASSWORD
        with pytest.raises(requests.TooManyRedirects):
            session.post(f"http://127.0.0.1:{port}/", data=b"x")
    assert PASSWORD.encode() in b"".join(asked)
    assert heard.connections == 0
