"""A web service: it answers as a test says, and notes what it is asked."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit


@dataclass(frozen=True)
class Asked:
    """One request; of a parameter that occurs several times, the last."""

    method: str
    target: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes


Answer = tuple[int, dict[str, str], bytes]


def as_json(found: Any, status: int = 200, **headers: str) -> Answer:
    """Answer with `found`: a text is sent unchanged."""
    return status, headers, found.encode() if isinstance(found, str) else json.dumps(found).encode()


class WebServer(ThreadingHTTPServer):
    """`faults` meet the next requests; None closes the connection. `answer` is for all others."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.seen: list[Asked] = []
        self.faults: list[Answer | None] = []
        self.answer: Callable[[Asked], Answer] = lambda _: as_json([])

    @property
    def port(self) -> int:
        return self.server_address[1]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/api/orders"

    def clear(self) -> None:
        self.seen.clear()
        self.faults.clear()
        self.answer = lambda _: as_json([])

    def has_pages(
        self, rows: list[Any], *, most: int = 1_000_000, beyond: Answer | None = None
    ) -> None:
        """Rows by parameters `page` and `size`, at most `most` of them; `beyond` is what is behind the last page."""

        def answer(asked: Asked) -> Answer:
            given = asked.query if asked.method == "GET" else json.loads(asked.body)
            size = min(most, int(given.get("size", most)))
            start = (int(given.get("page", 1)) - 1) * size
            some = rows[start : start + size]
            return (
                as_json({"code": 0, "data": {"items": some}}) if some or beyond is None else beyond
            )

        self.answer = answer

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that was cut."""


class _Handler(BaseHTTPRequestHandler):
    server: WebServer
    protocol_version = "HTTP/1.1"
    # One packet for an answer: with two, each waits for the other side's delayed acknowledgement.
    wbufsize = 1 << 16

    def _answer(self) -> None:
        parts = urlsplit(self.path)
        asked = Asked(
            self.command,
            self.path,
            parts.path,
            {
                name: values[-1]
                for name, values in parse_qs(parts.query, keep_blank_values=True).items()
            },
            {name.lower(): text for name, text in self.headers.items()},
            self.rfile.read(int(self.headers.get("Content-Length") or 0)),
        )
        self.server.seen.append(asked)
        found = self.server.faults.pop(0) if self.server.faults else self.server.answer(asked)
        if found is None:
            self.close_connection = True
            return
        status, headers, body = found
        self.send_response(status)
        for name, text in {
            "Content-Type": "application/json",
            **headers,
            "Content-Length": str(len(body)),
        }.items():
            self.send_header(name.replace("_", "-"), text)
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = _answer  # noqa: N815 - as the library asks

    def log_message(self, *_: Any) -> None: ...


@contextmanager
def web_server() -> Iterator[WebServer]:
    with WebServer() as server:
        thread = threading.Thread(
            target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        )
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join(10)
