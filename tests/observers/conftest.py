"""As for the service: a server, a private runtime directory, nothing left behind; and a receiver of notices."""

import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.service.conftest import no_thread_is_left, runtime_directory, server, silent_port

__all__ = ["no_thread_is_left", "receiver", "runtime_directory", "server", "silent_port"]


@pytest.fixture
def receiver() -> Iterator[tuple[str, list[bytes]]]:
    """A url, and what was posted to it."""
    posted: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            posted.append(self.rfile.read(int(self.headers["Content-Length"])))
            answers = {"broken": 500, "denied": 401, "moved": 302}
            self.send_response(answers.get(re.split("[/?]", self.path)[1], 204))
            self.send_header("Location", "/login")
            self.end_headers()

        def do_GET(self) -> None:
            """The page to which a redirect leads."""
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", posted
        server.shutdown()
        thread.join()
