"""Conditional puts to a store whose connections end before the answer."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from spark_channel.connectors.files import conditional_put
from spark_channel.connectors.files.filesystem import Location, locate

ENTRY = "box/out/_spark_channel/1.json"


@pytest.fixture(autouse=True)
def _login(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")


class Store(ThreadingHTTPServer):
    """As much of S3 as a conditional put needs. `cuts`: what becomes of the next puts before their connection ends."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.objects: dict[str, bytes] = {}
        self.cuts: list[str] = []
        self.puts = 0

    @property
    def place(self) -> Location:
        return locate(
            f"s3://box/out?scheme=http&region=us-east-1&endpoint_override=127.0.0.1:{self.server_port}"
        )


class Handler(BaseHTTPRequestHandler):
    server: Store
    protocol_version = "HTTP/1.1"

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        name = self.path.split("?")[0].strip("/")
        self.server.puts += 1
        cut = self.server.cuts.pop(0) if self.server.cuts else ""
        is_new = name not in self.server.objects
        if is_new and cut != "lost":
            self.server.objects[name] = b"another's" if cut == "overtaken" else body
        if cut:
            self.close_connection = True
            return
        self._answer(200 if is_new else 412)

    def do_GET(self) -> None:
        self._answer(200, self.server.objects[self.path.split("?")[0].strip("/")])

    def _answer(self, status: int, body: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", '"1"')
        self.send_header("Last-Modified", "Mon, 23 Nov 2026 10:00:00 GMT")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def _running() -> Iterator[Store]:
    with Store() as store:
        thread = threading.Thread(target=store.serve_forever)
        thread.start()
        try:
            yield store
        finally:
            store.shutdown()
            thread.join()


@pytest.mark.parametrize("times", [1, 3])
def test_a_put_whose_connection_ended_is_sent_again(times: int) -> None:
    with _running() as store:
        store.cuts = ["lost"] * times
        assert conditional_put.put_new(store.place, ENTRY, b"mine")
        assert store.objects == {ENTRY: b"mine"}
        assert store.puts == times + 1


def test_a_put_that_was_accepted_before_its_connection_ended_is_there_once() -> None:
    """The store answers that the object exists; the log recognises its own entry by its id."""
    with _running() as store:
        store.cuts = ["lost", "accepted"]
        assert not conditional_put.put_new(store.place, ENTRY, b"mine")
        assert store.objects == {ENTRY: b"mine"}


def test_an_object_of_another_is_not_taken_for_the_put_whose_connection_ended() -> None:
    with _running() as store:
        store.cuts = ["overtaken"]
        assert not conditional_put.put_new(store.place, ENTRY, b"mine")
        assert store.objects == {ENTRY: b"another's"}


def test_a_store_that_never_answers_is_left_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conditional_put, "_CUT_OFF_SECONDS", 0.5)
    with _running() as store:
        store.cuts = ["lost"] * 1_000
        with pytest.raises(OSError, match="HTTP error"):
            conditional_put.put_new(store.place, ENTRY, b"mine")
        assert store.puts > 1


def test_a_check_whose_answers_are_lost_blames_no_store() -> None:
    with _running() as store:
        store.cuts = ["accepted", "lost"]
        conditional_put.check_conditional(store.place, ENTRY)
        store.objects.clear()
        store.cuts = ["", "accepted"]
        conditional_put.check_conditional(store.place, ENTRY)
