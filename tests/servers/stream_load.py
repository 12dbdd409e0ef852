"""A frontend and a backend that answer Stream Loads as Doris and StarRocks document them: labels, redirects, states."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Loads:
    """`labels`: the rows of each load that counts. `faults`: what meets the next loads. `seen`: of each request."""

    columns: list[str]
    labels: dict[str, list[list[str | None]]] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    seen: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    redirect: str = ""
    login: str = ""
    lock: Any = field(default_factory=threading.Lock)

    @property
    def rows(self) -> list[list[str | None]]:
        return sorted((row for rows in self.labels.values() for row in rows), key=str)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    loads: Loads
    name: str

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that was cut."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None: ...

    def handle_expect_100(self) -> bool:
        # A frontend redirects before the rows are sent.
        return True if self.server.name == "fe" else super().handle_expect_100()

    def _answer(self, status: int, answer: Any, **headers: str) -> None:
        data = json.dumps(answer).encode()
        self.send_response(status)
        for name, value in {
            **headers,
            "Content-Length": str(len(data)),
            "Connection": "close",
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)
        self.close_connection = True

    def _note(self) -> bool:
        loads = self.server.loads
        loads.seen.append(
            (
                self.server.name,
                self.path,
                {name.lower(): value for name, value in self.headers.items()},
            )
        )
        if loads.login and self.headers.get("Authorization") != loads.login:
            self._answer(401, {"Status": "FAILED", "Message": "Access denied"})
            return False
        return True

    def do_GET(self) -> None:
        if self._note():
            if "/missing/" in self.path:
                self._answer(200, {"status": "FAILED", "exception": "No such table: missing"})
            else:
                columns = [{"name": name, "type": "VARCHAR"} for name in self.server.loads.columns]
                self._answer(200, {"status": 200, "properties": columns})

    def do_PUT(self) -> None:
        if not self._note():
            return
        loads = self.server.loads
        if self.server.name == "fe":
            if self.headers.get("Expect") != "100-continue":
                self._answer(
                    200, {"Status": "Fail", "Message": "The 100-continue header is missing"}
                )
            else:
                self._answer(307, {}, Location=loads.redirect + self.path)
            return
        body = self.rfile.read(int(self.headers["Content-Length"]))
        with loads.lock:
            fault = loads.faults.pop(0) if loads.faults else ""
            self._load(loads, self.headers["label"], body, fault)

    def _load(self, loads: Loads, label: str, body: bytes, fault: str) -> None:
        if fault == "cut":
            self.close_connection = True
            return
        if fault == "busy":
            self._answer(503, {})
            return
        if label in loads.labels:
            state = "RUNNING" if fault == "running" else "FINISHED"
            self._answer(
                200,
                {
                    "Status": "Label Already Exists",
                    "ExistingJobStatus": state,
                    "Message": f"label {label}",
                },
            )
            return
        rows: list[list[str | None]] = [
            [None if text == r"\N" else text for text in line.split("\x01")]
            for line in body.decode().split("\x02")[:-1]
        ]
        if any("unfit" in row for row in rows):
            self._answer(
                200,
                {
                    "Status": "Fail",
                    "Message": "too many filtered rows",
                    "NumberFilteredRows": 1,
                    "ErrorURL": "http://be/e",
                },
            )
            return
        loads.labels[label] = rows
        if fault == "lost":  # the rows are loaded, and the answer is lost
            self.close_connection = True
            return
        self._answer(
            200,
            {
                "Status": "Publish Timeout" if fault == "slow" else "Success",
                "NumberLoadedRows": len(rows),
            },
        )


@contextmanager
def stream_load_servers(columns: list[str]) -> Iterator[tuple[str, Loads]]:
    """(the frontend's url, what is loaded)."""
    loads = Loads(columns)
    servers = []
    for name in ("be", "fe"):
        server = _Server(("127.0.0.1", 0), _Handler)
        server.loads, server.name = loads, name
        threading.Thread(
            target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        ).start()
        servers.append(server)
    loads.redirect = servers[0].url
    try:
        yield servers[1].url, loads
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()
