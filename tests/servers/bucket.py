"""A bucket of the tests' own: what of S3's protocol a reader asks for, on a free port of 127.0.0.1.

HEAD and GET of an object (ranges too), and ListObjectsV2 with prefix, delimiter and pages. Signatures are not checked.
"""

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

__all__ = ["NAME", "Bucket", "bucket"]

NAME = "arrivals"
_MOST_KEYS = 2
"""Objects in one answer to a listing: so few that any test has several pages."""


@dataclass
class Bucket:
    """Objects by key. `uri` is for an option `path`."""

    port: int
    objects: dict[str, tuple[bytes, datetime]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def uri(self, prefix: str) -> str:
        endpoint = f"127.0.0.1%3A{self.port}"
        return f"s3://{NAME}/{prefix}?scheme=http&region=eu-west-1&endpoint_override={endpoint}"

    def put(self, key: str, data: bytes, at: datetime) -> None:
        self.objects[key] = data, at


@contextmanager
def bucket() -> Iterator[Bucket]:
    """A bucket that is removed at the end."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.bucket = Bucket(server.server_port)  # type: ignore[attr-defined] # the test's own attribute
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.bucket  # type: ignore[attr-defined] # the test's own attribute
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Head and body in one packet: in two, the second waits 40 ms for an answer to the first.
    wbufsize = 1 << 16

    def do_HEAD(self) -> None:
        self._object(body=False)

    def do_GET(self) -> None:
        address = urlsplit(self.path)
        if address.path.strip("/") == NAME:
            self._list({name: values[0] for name, values in parse_qs(address.query).items()})
        else:
            self._object(body=True)

    def log_message(self, *arguments: object) -> None:
        pass

    @property
    def _bucket(self) -> Bucket:
        return self.server.bucket  # type: ignore[attr-defined, no-any-return]

    def _object(self, *, body: bool) -> None:
        key = unquote(urlsplit(self.path).path).removeprefix(f"/{NAME}").removeprefix("/")
        self._bucket.asked.append(f"{self.command} {key}")
        found = self._bucket.objects.get(key)
        if found is None and not (key == "" and not body):
            self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>" if body else b"")
            return
        data, at = found or (b"", datetime.now(UTC))
        headers = {
            "Last-Modified": format_datetime(at, usegmt=True),
            "ETag": _tag(data),
            "Accept-Ranges": "bytes",
        }
        given = self.headers.get("Range", "").removeprefix("bytes=")
        if not body or not given:
            self._answer(200, data, headers, body=body)
            return
        first, _, last = given.partition("-")
        start = int(first)
        end = min(int(last) if last else len(data) - 1, len(data) - 1)
        headers["Content-Range"] = f"bytes {start}-{end}/{len(data)}"
        self._answer(206, data[start : end + 1], headers)

    def _list(self, query: dict[str, str]) -> None:
        prefix, delimiter, after = (
            query.get(each, "") for each in ("prefix", "delimiter", "continuation-token")
        )
        self._bucket.asked.append(f"LIST {prefix} after {after!r}")
        contents, folders = [], set()
        for key in sorted(self._bucket.objects):
            rest = key.removeprefix(prefix)
            if not key.startswith(prefix) or key <= after:
                continue
            if delimiter and delimiter in rest:
                folders.add(prefix + rest.partition(delimiter)[0] + delimiter)
                continue
            contents.append(key)
        more, contents = len(contents) > _MOST_KEYS, contents[:_MOST_KEYS]
        parts = []
        for key in contents:
            data, at = self._bucket.objects[key]
            parts.append(
                f"<Contents><Key>{escape(key)}</Key><LastModified>{_listed(at)}</LastModified>"
                f"<ETag>{escape(_tag(data))}</ETag><Size>{len(data)}</Size></Contents>"
            )
        parts += [
            f"<CommonPrefixes><Prefix>{escape(each)}</Prefix></CommonPrefixes>" for each in folders
        ]
        if more:
            parts.append(f"<NextContinuationToken>{escape(contents[-1])}</NextContinuationToken>")
        text = (
            f"<ListBucketResult><Name>{NAME}</Name><Prefix>{escape(prefix)}</Prefix>"
            f"<KeyCount>{len(contents)}</KeyCount><IsTruncated>{str(more).lower()}</IsTruncated>"
            f"{''.join(parts)}</ListBucketResult>"
        )
        self._answer(200, text.encode(), {"Content-Type": "application/xml"})

    def _answer(
        self, status: int, data: bytes, headers: dict[str, str] | None = None, *, body: bool = True
    ) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if body:
            self.wfile.write(data)


def _listed(at: datetime) -> str:
    """With milliseconds, which `Last-Modified` does not have."""
    return f"{at.replace(tzinfo=None).isoformat(timespec='milliseconds')}Z"


def _tag(data: bytes) -> str:
    return f'"{hashlib.sha256(data).hexdigest()[:32]}"'
