"""The page in a browser: its files, its live events, and changes of limits, on an address of this machine."""

import json
import threading
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from spark_channel.clock import SYSTEM_CLOCK
from spark_channel.errors import ChannelError, ServiceUnavailableError
from spark_channel.limits import Request
from spark_channel.observers.view import View, limit_request
from spark_channel.plain_text import log_of
from spark_channel.service.discovery import ServiceDirectory
from spark_channel.service.ended_jobs import ended_jobs
from spark_channel.service.http_server import Caller, Document, Endpoint, HttpServer
from spark_channel.service.launch import ServiceControl
from spark_channel.service.limit_control import ask_limit
from spark_channel.service.protocol import (
    CHANGE_SCOPE,
    READ_SCOPE,
    RequestError,
    ServiceAddress,
    Tokens,
    decode,
    encode,
    fields,
    identifier,
)

__all__ = ["PageServer", "RemoteView"]

_log = log_of(__name__)

_EVERY = 1.0
_MOST_VIEWERS = 32
_STREAM_SECONDS = 600.0
"""A browser opens the stream again when it ends."""
_TIMEOUT = 1.0
_SILENT_SECONDS = 10.0
"""A service that did not answer is left alone for so long."""
_SHUTDOWN_SECONDS = 3.0

_FILES = {
    "GET /": ("index.html", "text/html; charset=utf-8"),
    "GET /page.js": ("page.js", "text/javascript; charset=utf-8"),
    "GET /page.css": ("page.css", "text/css; charset=utf-8"),
    "GET /icon.svg": ("icon.svg", "image/svg+xml"),
}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'"
)
_SECURITY = (
    f"Content-Security-Policy: {_POLICY}",
    "X-Content-Type-Options: nosniff",
    "Referrer-Policy: no-referrer",
    "Cross-Origin-Opener-Policy: same-origin",
    "Cross-Origin-Resource-Policy: same-origin",
    "Cache-Control: no-store",
)


class RemoteView:
    """The view of a service in another process of this host."""

    def __init__(self, address: ServiceAddress) -> None:
        self._address = address
        self._control = ServiceControl(address, timeout=_TIMEOUT)
        self._silent_until = 0.0
        self._seen: dict[str, Any] = {"jobs": [], "limits": [], "detail": None}

    def watch(self, job: str | None, since: float) -> dict[str, Any]:
        """While the service does not answer, the page shows what it said last: its jobs go on."""
        if SYSTEM_CLOCK.now() < self._silent_until:
            return self._seen
        try:
            news = self._control.call("watch", {"job": job, "since": since})
        except ChannelError as error:
            _log.debug("the page does not ask %s for a while: %s", self._address, error)
            self._silent_until = SYSTEM_CLOCK.now() + _SILENT_SECONDS
            return self._seen
        self._seen = {**news, "detail": None}
        return news

    def change(self, request: Request) -> None:
        try:
            ask_limit(self._address, request)
        except ChannelError as error:
            raise ValueError(str(error)) from None

    def close(self) -> None:
        self._control.close()


class _EndedView:
    """The jobs of programs that have ended."""

    def __init__(self, directory: ServiceDirectory) -> None:
        self._directory = directory

    def watch(self, job: str | None, since: float) -> dict[str, Any]:
        del job, since  # their tasks and speeds are gone
        return {"jobs": ended_jobs(self._directory), "limits": [], "detail": None}

    def change(self, request: Request) -> None:
        raise ValueError(f"limit {request.limit} has ended")


class _HostViews:
    """The services of this user on this host, as they come and go."""

    def __init__(self, own_views: Mapping[ServiceAddress, View]) -> None:
        self._own = own_views
        self._directory = ServiceDirectory()
        self._lock = threading.Lock()
        self._remote: dict[ServiceAddress, RemoteView] = {}

    def all(self) -> list[View]:
        try:
            records = [self._directory.read(file) for file in self._directory.names()]
        except OSError:  # the directory went, as with the user's last login
            records = []
        addresses = {record.address for record in records if record is not None and record.live}
        with self._lock:
            for gone in self._remote.keys() - addresses:
                self._remote.pop(gone).close()
            for address in addresses - self._remote.keys() - self._own.keys():
                self._remote[address] = RemoteView(address)
            return [_EndedView(self._directory), *self._own.values(), *self._remote.values()]

    def close(self) -> None:
        with self._lock:
            while self._remote:
                self._remote.popitem()[1].close()


class PageServer:
    """Serves the page on 127.0.0.1 until `stop`: all jobs and limits of this user on this host.

    Two random tokens open it: one reads, the other one changes limits, too. `own_views` are the services of this
    process, which need no call.

    Raises:
        ServiceUnavailableError: the port cannot be bound.
    """

    def __init__(
        self, own_views: Mapping[ServiceAddress, View] | None = None, port: int = 0
    ) -> None:
        self._views = _HostViews(own_views or {})
        self._tokens = Tokens()
        self._read = self._tokens.add(READ_SCOPE)
        self._change = self._tokens.add(CHANGE_SCOPE)
        self._wake = threading.Condition()
        self._news = 0
        self._viewers = 0
        self._ended = False
        here = Path(__file__).parent / "static"
        files = {
            action: Document(kind, (here / name).read_bytes(), _SECURITY)
            for action, (name, kind) in _FILES.items()
        }
        endpoints: dict[str, Endpoint] = {
            **{action: partial(_same, document) for action, document in files.items()},
            "GET /events": self._events,
            "limit": self._limit,
        }
        try:
            self._shell = HttpServer(
                ServiceAddress("127.0.0.1", port, self._change),
                endpoints,
                self._tokens,
                inline=frozenset(files),
                public=frozenset(files),
            )
        except OSError as error:
            raise ServiceUnavailableError(
                f"the page cannot listen on 127.0.0.1:{port} ({error}); give a free port"
            ) from None

    @property
    def address(self) -> str:
        """The address without a token."""
        return f"http://127.0.0.1:{self._shell.port}/"

    def link(self, *, change: bool) -> str:
        """The address with a token, behind a `#`: a browser does not send it to the server or to a proxy."""
        return f"{self.address}#{self._change if change else self._read}"

    def stop(self) -> None:
        """End the page. Calling it again has no effect."""
        with self._wake:
            if self._ended:
                return
            self._ended = True
            self._wake.notify_all()
        if not self._shell.shutdown(_SHUTDOWN_SECONDS):
            _log.warning("a viewer of the page was cut off")
        self._views.close()

    def _limit(self, body: bytes, caller: Caller) -> bytes:
        if caller.scope != CHANGE_SCOPE:
            raise PermissionError(
                "this token reads the page; ask the owner of the job for the one that changes"
            )
        body_fields = decode(body)
        fields(
            body_fields,
            required=("limit", "action"),
            optional=("rows_per_second", "bytes_per_second"),
        )
        request = limit_request(body_fields)
        for view in self._views.all():
            if any(limit["name"] == request.limit for limit in view.watch(None, 0.0)["limits"]):
                try:
                    view.change(request)
                except ValueError as error:
                    raise RequestError(str(error)) from None
                with self._wake:
                    self._news += 1
                    self._wake.notify_all()
                return encode({})
        raise RequestError(f"limit {request.limit} has ended")

    def _events(self, query: bytes, caller: Caller) -> Document:
        if caller.scope not in (READ_SCOPE, CHANGE_SCOPE):
            raise PermissionError("this token is for another purpose")
        parameters = parse_qs(query.decode("ascii", "replace"))
        job, once = parameters.get("job", [""])[0], "once" in parameters
        if job:
            identifier(job, "job")
        with self._wake:
            if self._viewers >= _MOST_VIEWERS:
                raise RequestError(f"{_MOST_VIEWERS} browsers show this page already: close one")
            self._viewers += 1
        stream = self._stream(job or None, caller.scope == CHANGE_SCOPE, once)
        return Document("text/event-stream; charset=utf-8", stream, _SECURITY)

    def _stream(self, job: str | None, can_change: bool, once: bool) -> Iterator[bytes]:
        """A viewer's events, each second: what changed since the last one. `once`: the present state, and no more.

        The viewer was counted; the server iterates in any case.
        """
        try:
            yield _event("hello", {"can_change": can_change})
            differences = _Differences()
            end = SYSTEM_CLOCK.now() + _STREAM_SECONDS
            while True:
                with self._wake:
                    last_news = self._news
                yield differences.event(
                    [view.watch(job, differences.since) for view in self._views.all()]
                )
                if once:
                    return
                with self._wake:
                    if self._news == last_news and not self._ended:
                        self._wake.wait(_EVERY)
                    if self._ended or SYSTEM_CLOCK.now() >= end:
                        return
        finally:
            with self._wake:
                self._viewers -= 1


class _Differences:
    """Remembers the state that one viewer has seen, so that it is sent only changes."""

    def __init__(self) -> None:
        self.since = 0.0
        self._jobs: dict[str, Any] = {}
        self._tasks: dict[str, Any] = {}
        self._every = 0.0

    def event(self, parts: list[dict[str, Any]]) -> bytes:
        jobs = {job["job"]: job for part in parts for job in part["jobs"]}
        # Of two services with a limit of one name, the first one is shown, as a change goes there.
        limits = {limit["name"]: limit for part in reversed(parts) for limit in part["limits"]}
        news: dict[str, Any] = {
            "order": list(jobs),
            "jobs": [job for name, job in jobs.items() if self._jobs.get(name) != job],
            "limits": list(limits.values()),
        }
        self._jobs = jobs
        detail = next((part["detail"] for part in parts if part["detail"] is not None), None)
        if detail is not None:
            news["detail"] = self._detail(detail)
        return _event("state", news)

    def _detail(self, detail: dict[str, Any]) -> dict[str, Any]:
        tasks = {task[0]: task for task in detail["tasks"]}
        changed = [task for key, task in tasks.items() if self._tasks.get(key) != task]
        detail["gone"] = list(self._tasks.keys() - tasks.keys())
        self._tasks = tasks
        if detail["every"] != self._every:  # samples were merged: all of them are sent once more
            first, self._every = self._every == 0.0, detail["every"]
            self.since = 0.0
            if not first:
                return {**detail, "tasks": changed, "samples": [], "since": None}
        if detail["samples"]:
            self.since = detail["samples"][-1][0]
        return {**detail, "tasks": changed}


def _same(document: Document, _body: bytes, _caller: Caller) -> Document:
    return document


def _event(name: str, data: Mapping[str, Any]) -> bytes:
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return f"event: {name}\ndata: {text}\n\n".encode("utf-8", "replace")
