"""Stores of the tests' own: object stores, each a process that speaks real HTTP, and HDFS.

S3 is SeaweedFS. The others are emulators, GCS gcp-storage-emulator and Azure Azurite: they prove the requests that are
sent, and that a conditional put to a name that exists is rejected. The GCS emulator ignores preconditions, and its XML
API neither lists nor deletes, nor reports when an object was written: a handler for each is added. Temporary
credentials of S3 are those of moto, which handles one request at a time here.
"""

import json
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.servers.hdfs import start_hdfs
from tests.servers.ports import free_port
from tests.servers.process import process_at_port
from tests.servers.seaweedfs import start_seaweedfs

__all__ = [
    "BUCKET",
    "KINDS",
    "STORES",
    "VERSIONED",
    "ObjectServer",
    "TemporaryKeys",
    "azure_key",
    "object_server",
    "start_azure",
    "start_checked_s3",
    "start_gcs",
    "start_s3",
]

KINDS = ("s3", "gcs", "azure")
STORES = (*KINDS, pytest.param("hdfs", marks=pytest.mark.every_server))
VERSIONED = "versioned s3"
"""A bucket of S3 that keeps what is replaced and removed."""
BUCKET, _VERSIONED = "box", "versions"
_AZURE_KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)
_ROOT = Path(__file__).resolve().parents[2]

S3 = """
import sys, threading
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server
app, lock = DomainDispatcherApplication(create_backend_app), threading.Lock()
def one_at_a_time(environ, start):
    with lock:
        return list(app(environ, start))
make_server("127.0.0.1", int(sys.argv[1]), one_at_a_time, threaded=True).serve_forever()
"""

CHECKED_S3 = """
import json, re, threading, time
used, refused, issued = {}, [], {}
made = app
def allowed(environ):
    name = re.search("Credential=([^/]+)/", environ.get("HTTP_AUTHORIZATION", ""))
    key = issued.get(name and name[1])
    if key is None or environ.get("HTTP_X_AMZ_SECURITY_TOKEN", "") != key["token"] or time.time() > key["expires"]:
        return False
    used[name[1]] = used.get(name[1], 0) + 1
    return key["writes"] or environ["REQUEST_METHOD"] in ("GET", "HEAD")
def app(environ, start):
    if environ["PATH_INFO"] == "/-/keys":
        issued.update(json.loads(environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0)) or "{}"))
        start("200 OK", [("Content-Type", "application/json")])
        return [json.dumps({"used": used, "refused": refused}).encode()]
    if issued and not allowed(environ):
        refused.append(environ["REQUEST_METHOD"] + " " + environ["PATH_INFO"])
        start("403 Forbidden", [("Content-Type", "application/xml")])
        return [b"<Error><Code>AccessDenied</Code><Message>not with these credentials</Message></Error>"]
    return made(environ, start)
"""
"""Goes between moto and its server: temporary credentials hold until their end, and those of a reader write nothing.

Signatures are not checked: a key is known by its id and its session token.
"""

GCS = """
import socketserver, sys, threading
from email.utils import formatdate
from http import HTTPStatus
from xml.sax.saxutils import escape
from gcp_storage_emulator import server
from gcp_storage_emulator.exceptions import NotFound
from gcp_storage_emulator.handlers import objects
honours = sys.argv[2] == "conditional"
def upload(request, response, storage, *args, **kwargs):
    if honours and request.get_header("x-goog-if-generation-match") == "0":
        try:
            storage.get_file_obj(request.params["bucket_name"], request.params["object_id"])
        except NotFound:
            pass
        else:
            response.status = HTTPStatus.PRECONDITION_FAILED
            return
    if request.data is None:
        request._data = b""  # an object without bytes
    objects.xml_upload(request, response, storage)
    response["ETag"] = '"1"'
def remove(request, response, storage, *args, **kwargs):
    objects.delete(request, response, storage)
    response.status = HTTPStatus.NO_CONTENT if response.status == HTTPStatus.OK else response.status
def listing(request, response, storage, *args, **kwargs):
    first = lambda name: (request.query.get(name) or [None])[0]
    files, prefixes = storage.get_file_list(request.params["bucket_name"], first("prefix"), first("delimiter"))
    after = first("start-after") or ""
    found = [each for each in files if each["name"] > after]
    entry = lambda each: (
        f"<Contents><Key>{escape(each['name'])}</Key><LastModified>{each['updated']}</LastModified>"
        f"<Size>{each['size']}</Size><ETag>1</ETag></Contents>"
    )
    inside = "".join(map(entry, found)) + "".join(
        f"<CommonPrefixes><Prefix>{escape(each)}</Prefix></CommonPrefixes>" for each in prefixes if each > after
    )
    response.write_file(f"<ListBucketResult>{inside}</ListBucketResult>".encode(), "application/xml")
def download(request, response, storage, *args, **kwargs):
    objects.download(request, response, storage)
    response["ETag"], response["Last-Modified"] = '"1"', formatdate(usegmt=True)
server.HANDLERS[-1][1].update(GET=download, PUT=upload, DELETE=remove)
server.HANDLERS += ((r"^/(?P<bucket_name>[-.\\w]+)$", {"GET": listing}),)
socketserver.TCPServer.request_queue_size = 128
made = server.create_server("127.0.0.1", int(sys.argv[1]), in_memory=True, default_bucket="box")
made.start()
threading.Event().wait()
"""


@dataclass
class ObjectServer:
    """`uri(prefix)` is for an option `path`; `environment` holds the credentials."""

    kind: str
    port: int
    environment: Mapping[str, str]
    bucket: str = BUCKET

    def uri(self, prefix: str) -> str:
        address = f"127.0.0.1%3A{self.port}"
        if self.kind == "hdfs":
            return f"hdfs://127.0.0.1:{self.port}/{prefix}"
        if self.kind == "s3":
            return f"s3://{self.bucket}/{prefix}?scheme=http&region=us-east-1&endpoint_override={address}"
        if self.kind == "gcs":
            return f"gs://anonymous@{BUCKET}/{prefix}?scheme=http&endpoint_override={address}&retry_limit_seconds=10"
        hosts = f"blob_storage_authority={address}&dfs_storage_authority={address}"
        return f"abfs://{BUCKET}@devstoreaccount1.dfs.core.windows.net/{prefix}?enable_tls=false&{hosts}"


@dataclass(frozen=True)
class TemporaryKeys:
    """The keys of a server at `port` that checks them. Before the first one is issued, it checks none."""

    port: int

    def issue(self, name: str, token: str, *, expires: float, writes: bool) -> None:
        key = {"token": token, "expires": expires, "writes": writes}
        _request("POST", self._url, json.dumps({name: key}).encode())

    def seen(self) -> dict[str, Any]:
        """`used`: how often by name; `refused`: requests."""
        return dict(json.loads(_request("POST", self._url, b"{}")))

    @property
    def _url(self) -> str:
        return f"http://127.0.0.1:{self.port}/-/keys"


@contextmanager
def start_s3(bucket: str = BUCKET) -> Iterator[ObjectServer]:
    with start_seaweedfs(bucket, versioned=bucket == _VERSIONED) as server:
        yield ObjectServer("s3", server.port, server.environment, bucket)


@contextmanager
def _start_versioned() -> Iterator[ObjectServer]:
    with start_s3(_VERSIONED) as server:
        yield server


@contextmanager
def start_checked_s3() -> Iterator[TemporaryKeys]:
    """moto, which lets in what was issued: temporary keys."""
    port = free_port()
    program = S3.replace("def one_at", f"{CHECKED_S3}\ndef one_at", 1)
    with process_at_port([sys.executable, "-c", program, str(port)], port):
        _request("PUT", f"http://127.0.0.1:{port}/{BUCKET}")
        yield TemporaryKeys(port)


@contextmanager
def start_gcs(*, conditional: bool = True) -> Iterator[ObjectServer]:
    port = free_port()
    how = "conditional" if conditional else "ignores"
    with process_at_port([sys.executable, "-c", GCS, str(port), how], port):
        yield ObjectServer("gcs", port, {})


def azurite() -> str:
    """The program. `.ci/servers` installs it.

    Raises:
        RuntimeError: it is not installed.
    """
    own = _ROOT / "artifacts" / "azurite" / "node_modules" / ".bin" / "azurite-blob"
    found = str(own) if own.exists() else shutil.which("azurite-blob")
    if found is None:
        raise RuntimeError("Azurite is not installed; run .ci/servers")
    return found


def azure_key() -> str:
    """The emulator's well-known key."""
    return _AZURE_KEY


@contextmanager
def start_azure() -> Iterator[ObjectServer]:
    port = free_port()
    command = [
        azurite(),
        "--inMemoryPersistence",
        "--blobHost",
        "127.0.0.1",
        "--blobPort",
        str(port),
        "--silent",
        "--skipApiVersionCheck",
        "--disableTelemetry",
    ]
    with process_at_port(command, port):
        import pyarrow.fs as pafs

        address = f"127.0.0.1:{port}"
        pafs.AzureFileSystem(
            "devstoreaccount1",
            account_key=_AZURE_KEY,
            blob_storage_authority=address,
            blob_storage_scheme="http",
            dfs_storage_authority=address,
            dfs_storage_scheme="http",
        ).create_dir(BUCKET)
        yield ObjectServer(
            "azure",
            port,
            {
                "AZURE_STORAGE_ACCOUNT_KEY": _AZURE_KEY,
                "AZURITE_BLOB_STORAGE_URL": f"http://{address}",
            },
        )


@contextmanager
def _start_hdfs() -> Iterator[ObjectServer]:
    with start_hdfs() as port:
        yield ObjectServer("hdfs", port, {})


@contextmanager
def object_server(kind: str) -> Iterator[ObjectServer]:
    start = {
        "s3": start_s3,
        VERSIONED: _start_versioned,
        "gcs": start_gcs,
        "azure": start_azure,
        "hdfs": _start_hdfs,
    }
    with start[kind]() as found:
        yield found


def _request(method: str, url: str, body: bytes | None = None) -> bytes:
    from urllib.request import Request, urlopen

    with urlopen(Request(url, body, method=method), timeout=30) as answer:
        return bytes(answer.read())
