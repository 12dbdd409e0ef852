"""The HTTP shell of the service: authentication, bounds, errors. On the standard library alone.

A request is judged by its head: without a token that opens something, not one byte of its body is kept. What a
stranger can make the service hold is a head of 16 KiB for each of at most 512 connections, for 10 s; with TLS also
what a handshake needs, which counts from the moment that a connection is there.
"""

import asyncio
import errno
import queue
import socket
import ssl
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from spark_channel.clock import SYSTEM_CLOCK
from spark_channel.plain_text import log_of
from spark_channel.service import protocol as wire
from spark_channel.service.protocol import NO_SCOPE, SERVICE_SCOPE, ServiceAddress, Tokens

__all__ = [
    "TOKEN_HEADER",
    "CallPool",
    "Caller",
    "Document",
    "Endpoint",
    "HttpServer",
]


_IDLE_THREAD_SECONDS = 2.0
_MOST = 2_200
"""Threads for listening clients (`MOST_LISTENERS`), and for other calls that wait."""
_log = log_of(__name__)
_LARGEST_HEAD = 16 << 10
_MOST_STRANGERS = 512
_MOST_WITH_TLS = 128
"""Each connection needs about 300 KiB during its handshake."""
_MOST_CONNECTIONS = 20_000
_BODY_OF_SCOPE = 64 << 10
"""The largest body with a token that opens no job: spending a limit takes less."""
_MOST_UNFINISHED = 64 << 20
"""Announced bytes of all bodies that have not come whole, which are held in memory."""
_HEAD_SECONDS = 10.0
_BODY_SECONDS = 30.0
_IDLE_SECONDS = 300.0
_DISCARD_BYTES = wire.LARGEST_BODY + (64 << 10)
_DISCARD_SECONDS = 2.0
_BACKLOG = 1024
_REASONS = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    413: "Content Too Large",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
}
TOKEN_HEADER = "x-spark-channel-token"  # noqa: S105 - the name of a header
"""It goes before `Authorization`, which proxies of notebooks use themselves. A page of another site cannot send it."""
_LONGEST_BACKLOG = 4 << 20
"""Bytes that wait for a caller who does not read; one with more is cut off."""
_NO_FILES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_JUDGED = ("authorization", TOKEN_HEADER, "content-length", "transfer-encoding", "connection")


class CallPool:
    """Daemon threads: one that is stuck in a call does not hold the end of the program."""

    def __init__(self, name: str, most: int = _MOST) -> None:
        self._name, self._most = name, most
        self._lock = threading.Lock()
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads: set[threading.Thread] = set()
        self._idle = 0
        self._ended = False

    def take(self, call: Callable[[], None]) -> bool:
        """Run `call` in a thread; False when all threads are busy, or the pool is closed."""
        with self._lock:
            if self._ended:
                return False
            if self._idle:
                self._idle -= 1
            elif len(self._threads) >= self._most:
                return False
            else:
                thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                try:
                    thread.start()
                except RuntimeError:
                    # The interpreter is ending, and since Python 3.12 starts no thread.
                    return False
                self._threads.add(thread)
            self._work.put(call)
        return True

    def end(self, seconds: float) -> bool:
        """Accept no more calls; return False when some did not end within `seconds`."""
        with self._lock:
            self._ended = True
            threads = list(self._threads)
        for _ in threads:
            self._work.put(None)
        until = SYSTEM_CLOCK.now() + seconds
        for thread in threads:
            thread.join(max(0.0, until - SYSTEM_CLOCK.now()))
        return not any(thread.is_alive() for thread in threads)

    def _run(self) -> None:
        try:
            while (call := self._next()) is not None:
                call()
                with self._lock:
                    self._idle += 1
        finally:
            with self._lock:
                self._threads.discard(threading.current_thread())

    def _next(self) -> Callable[[], None] | None:
        try:
            return self._work.get(timeout=_IDLE_THREAD_SECONDS)
        except queue.Empty:
            pass
        with self._lock:
            # A call that was put down for one who is idle is taken by one of them: it is there by now.
            try:
                return self._work.get_nowait()
            except queue.Empty:
                self._idle -= 1
                return None


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller: the scope of its token, and its address as the transport reports it."""

    scope: str
    peer: str


@dataclass(frozen=True, slots=True)
class Document:
    """An answer for other programs than spark-channel: a page for a browser, or metrics."""

    content_type: str
    content: bytes | Iterator[bytes]
    headers: tuple[str, ...] = ()


Endpoint = Callable[[bytes, Caller], bytes | Iterator[bytes] | Document]
"""Answers one action, at once or bit by bit; what is iterated raises nothing. `ValueError` = a request that
makes no sense; `PermissionError` = not with this token; the texts travel to the caller. Bodies are at most
`protocol.LARGEST_BODY`. The action of `GET /path?query` is "GET /path", and the query is its body."""


class _RejectionLog:
    """Logs refused calls at most once in ten seconds, with their number."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._next = 0.0

    def note(self, reason: str) -> None:
        with self._lock:
            self._count += 1
            now = SYSTEM_CLOCK.now()
            if now < self._next:
                return
            self._next = now + 10.0
            count, self._count = self._count, 0
        _log.warning("refused %d call%s, last: %s", count, "" if count == 1 else "s", reason)


class HttpServer:
    """Listens from the moment it is made, in a separate thread; the program's signals stay its own."""

    def __init__(
        self,
        address: ServiceAddress,
        endpoints: Mapping[str, Endpoint],
        tokens: Tokens,
        tls: ssl.SSLContext | None = None,
        *,
        inline: frozenset[str] = frozenset(),
        public: frozenset[str] = frozenset(),
    ) -> None:
        self.endpoints = endpoints
        self.public = public
        """Actions that need no token, since everyone may know their answer."""
        self.inline = inline
        """Actions that never wait: they are answered by the thread that reads, which costs half."""
        self.tokens = tokens
        self.refusals = _RejectionLog()
        self.pool = CallPool("spark-channel-call")
        self._tls = tls
        self._socket = _listening(address)
        self.port = int(self._socket.getsockname()[1])
        self.strangers: OrderedDict[_Call | _Handshake, None] = OrderedDict()
        self.calls: set[_Call | _Handshake] = set()
        self.unfinished = 0
        """Announced bytes of bodies that have not come whole."""
        self.loop = asyncio.new_event_loop()
        self.loop.set_exception_handler(self._failed)
        self._server: asyncio.Server | None = None
        self._stopped = False
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="spark-channel-http", daemon=True)
        self._thread.start()
        self._ready.wait()

    def shutdown(self, seconds: float) -> bool:
        """Stop listening and end the connections; False when a call was still under way after `seconds`."""
        end = SYSTEM_CLOCK.now() + seconds
        self._soon(self._stop_listening)
        ended = self.pool.end(seconds)  # their answers still leave
        self._soon(self.loop.stop)
        self._thread.join(max(0.1, end - SYSTEM_CLOCK.now()))
        return ended and not self._thread.is_alive()

    def _soon(self, callback: Callable[[], None]) -> None:
        try:
            self.loop.call_soon_threadsafe(callback)
        except RuntimeError:
            pass  # it has ended

    def _failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """What asyncio would log with a traceback: it cannot accept, and tries again each second."""
        error = context.get("exception")
        if isinstance(error, OSError) and error.errno in _NO_FILES:
            self.refusals.note(f"{error.strerror}: raise the limit of open files (ulimit -n)")
        elif not self._stopped:  # then its next try finds the socket closed
            loop.default_exception_handler(context)

    def _stop_listening(self) -> None:
        self._stopped = True
        if self._server is not None:
            self._server.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self._server = self.loop.run_until_complete(
                self.loop.create_server(self._connection, sock=self._socket, backlog=_BACKLOG)
            )
            self._ready.set()
            self.loop.run_forever()
        finally:
            self._ready.set()
            self._stop_listening()
            for call in list(self.calls):
                call.abort()
            tasks = asyncio.all_tasks(self.loop)
            for task in tasks:
                task.cancel()
            self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            self.loop.run_until_complete(asyncio.sleep(0))
            self.loop.close()

    def _connection(self) -> "_Call | _Handshake":
        return _Call(self) if self._tls is None else _Handshake(self, self._tls)

    def admit(self, who: "_Call | _Handshake") -> bool:
        """Count a connection that has shown no token; False = there are too many. The oldest gives way."""
        if len(self.calls) >= _MOST_CONNECTIONS:
            return False
        self.calls.add(who)
        self.strangers[who] = None
        most = _MOST_STRANGERS if self._tls is None else _MOST_WITH_TLS
        if len(self.strangers) > most:
            oldest, _ = self.strangers.popitem(last=False)
            self.refusals.note(f"{most} connections without a token; the oldest was cut")
            oldest.abort()
        return True

    def dismiss(self, who: "_Call | _Handshake") -> None:
        self.calls.discard(who)
        self.strangers.pop(who, None)


class _Handshake(asyncio.Protocol):
    """One connection until its TLS handshake is done. asyncio's own server reports a connection only after that."""

    def __init__(self, shell: HttpServer, tls: ssl.SSLContext) -> None:
        self._shell, self._tls = shell, tls
        self._transport: asyncio.Transport | None = None
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if not self._shell.admit(self):
            self.abort()
            return
        self._transport.pause_reading()
        self._task = self._shell.loop.create_task(self._secure(self._transport))

    def connection_lost(self, _error: Exception | None) -> None:
        self._shell.dismiss(self)

    def abort(self) -> None:
        self._shell.dismiss(self)
        task, self._task = self._task, None
        if task is not None:
            task.cancel()  # it holds the buffers of the handshake
        if self._transport is not None:
            self._transport.abort()

    async def _secure(self, transport: asyncio.Transport) -> None:
        call = _Call(self._shell)
        try:
            secured = await self._shell.loop.start_tls(
                transport, call, self._tls, server_side=True, ssl_handshake_timeout=_HEAD_SECONDS
            )
        except OSError:  # ssl.SSLError, a connection that ended, no handshake in time
            self.abort()
            return
        self._shell.dismiss(self)
        if secured is not None and not secured.is_closing() and not transport.is_closing():
            call.connection_made(secured)
            call.go_on()  # what came with the end of the handshake


class _Call(asyncio.Protocol):
    """One connection: one request after the other, each judged by its head before its body is read."""

    def __init__(self, shell: HttpServer) -> None:
        self._shell = shell
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._peer = ""
        self._action = ""
        self._query = b""
        self._caller: Caller | None = None
        self._missing = 0
        """Bytes of the body that have not come; meaningful while `_caller` is set."""
        self._reserved = 0
        """Its part of `HttpServer.unfinished`."""
        self._discard = -1
        """Bytes that may still be thrown away before the connection is cut; -1 = it is not about to be."""
        self._busy = False
        self._full = False
        """Whether so much of the answers was not read yet that the next request waits."""
        self._closes = False
        self._timer: asyncio.TimerHandle | None = None

    # --- what asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        name = transport.get_extra_info("peername") or ("", 0)
        self._peer = f"{name[0]}:{name[1]}"
        if not self._shell.admit(self):
            self.abort()
            return
        self._abort_after(_HEAD_SECONDS)

    def connection_lost(self, _error: Exception | None) -> None:
        self._stop_timer()
        self._shell.dismiss(self)
        self._reserve(0)
        self._transport = None
        self._buffer.clear()

    def data_received(self, data: bytes) -> None:
        if self._discard >= 0:
            self._discard -= len(data)
            if self._discard < 0:
                self.abort()
            return
        if self._caller is None and not self._buffer:
            self._abort_after(
                _HEAD_SECONDS
            )  # a head that has begun comes whole, also on a kept connection
        self._buffer += data
        self.go_on()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._full = True

    def resume_writing(self) -> None:
        self._full = False
        if not self._busy and self._discard < 0:
            self._next()

    def abort(self) -> None:
        self._stop_timer()
        self._shell.dismiss(self)
        self._reserve(0)
        self._buffer.clear()
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()

    # --- one request

    def go_on(self) -> None:
        """Process the bytes that have arrived."""
        if self._transport is None or self._busy or self._full:
            return
        if self._caller is None and not self._read_head():
            return
        if self._caller is None or len(self._buffer) < self._missing:
            return
        body, self._buffer = bytes(self._buffer[: self._missing]), self._buffer[self._missing :]
        self._busy = True
        self._reserve(0)
        self._stop_timer()
        # Nothing more is read while the request is carried out: a caller asks one thing at a time.
        self._transport.pause_reading()
        self._perform(self._action, body or self._query, self._caller)

    def _read_head(self) -> bool:
        """Judge the head in the buffer; False while it is not whole, or after it was refused."""
        end = self._buffer.find(b"\r\n\r\n", 0, _LARGEST_HEAD)
        if end < 0:
            if len(self._buffer) >= _LARGEST_HEAD:
                self._refuse(431, f"the head of a request has at most {_LARGEST_HEAD} bytes")
            return False
        head = bytes(self._buffer[:end])
        del self._buffer[: end + 4]
        try:
            action, headers = _parsed(head)
        except ValueError as error:
            self._refuse(400, str(error))
            return False
        own_token = headers.get(TOKEN_HEADER)
        authorization = headers.get("authorization") if own_token is None else f"Bearer {own_token}"
        scope = None if authorization is None else self._shell.tokens.scope_of(authorization)
        action, _, query = action.partition("?")
        if scope is None and action in self._shell.public:
            scope = NO_SCOPE
        if scope is None:
            self._refuse(
                401, "the request has no token" if authorization is None else "the token is wrong"
            )
            return False
        if scope != NO_SCOPE:
            self._shell.strangers.pop(self, None)
        reads = action.startswith("GET ")
        length = headers.get("content-length", "0" if reads else "")
        if "transfer-encoding" in headers or not (
            length.isascii() and length.isdigit() and len(length) < 19
        ):
            self._refuse(400, "a request has a Content-Length")
            return False
        if reads and int(length):
            self._refuse(400, "a GET has no body")
            return False
        counts = scope == SERVICE_SCOPE or wire.owns_jobs(scope)
        most = wire.LARGEST_BODY if counts else _BODY_OF_SCOPE
        if int(length) > most:
            self._refuse(413, f"a body with this token has at most {most} bytes")
            return False
        if self._shell.unfinished + int(length) > _MOST_UNFINISHED:
            self._refuse(503, "the service is busy: too many requests have not come whole")
            return False
        self._reserve(int(length))
        self._closes = headers.get("connection", "").lower() == "close"
        self._action, self._caller, self._missing = action, Caller(scope, self._peer), int(length)
        self._query = query.encode()
        self._abort_after(_BODY_SECONDS)
        return True

    def _reserve(self, count: int) -> None:
        self._shell.unfinished += count - self._reserved
        self._reserved = count

    def _perform(self, action: str, body: bytes, caller: Caller) -> None:
        endpoint = self._shell.endpoints.get(action)
        if endpoint is None:
            self._answered(*self._refused(wire.RequestError("unknown action"), action))
        elif action in self._shell.inline:
            self._answered(*self._called(endpoint, body, caller))
        elif not self._shell.pool.take(lambda: self._called_by_hand(endpoint, body, caller)):
            self._answered(500, b"the service is busy: too many calls wait")

    def _called(
        self, endpoint: Endpoint, body: bytes, caller: Caller
    ) -> tuple[int, bytes | Iterator[bytes] | Document]:
        try:
            return 200, endpoint(body, caller)
        except Exception as error:
            return self._refused(error, self._action)

    def _refused(self, error: Exception, action: str) -> tuple[int, bytes]:
        match error:
            case PermissionError():
                self._shell.refusals.note(f"{error} ({self._peer})")
                return 403, str(error).encode()
            case ValueError():
                reason = str(error.args[0]) if error.args else "the request makes no sense"
                self._shell.refusals.note(f"{reason} ({self._peer})")
                return 400, reason.encode("utf-8", "replace")
        _log.error("action %r failed", action, exc_info=error)
        return 500, b"the service failed on this action; see its log"

    def _called_by_hand(self, endpoint: Endpoint, body: bytes, caller: Caller) -> None:
        """Run an action that may wait, in another thread than the event loop's."""
        status, answer = self._called(endpoint, body, caller)
        headers = _headers_of(answer)
        answer = answer.content if isinstance(answer, Document) else answer
        if isinstance(answer, bytes):
            self._soon(self._answered, status, answer, headers)
            return
        self._soon(self._begin_parts, headers)
        try:
            for part in answer:
                if self._transport is None:
                    break
                self._soon(self._part, part)
        finally:
            close = getattr(answer, "close", None)
            if close is not None:
                close()
            self._soon(self._end_parts)

    def _soon(self, callback: Callable[..., None], *arguments: object) -> None:
        try:
            self._shell.loop.call_soon_threadsafe(callback, *arguments)
        except RuntimeError:
            pass  # the service has ended

    # --- answers

    def _answered(
        self,
        status: int,
        answer: bytes | Iterator[bytes] | Document,
        headers: tuple[str, ...] = (),
    ) -> None:
        if isinstance(answer, Document):
            self._answered(status, answer.content, _headers_of(answer))
        elif isinstance(answer, bytes):
            length = f"Content-Length: {len(answer)}"
            self._write(_head(status, (length, *headers), self._closes) + answer)
            self._finish()
        else:  # an endpoint that may not be waited for gave bits: they are here already
            self._answered(status, b"".join(answer), headers)

    def _begin_parts(self, headers: tuple[str, ...]) -> None:
        self._write(_head(200, ("Transfer-Encoding: chunked", *headers), self._closes))

    def _part(self, part: bytes) -> None:
        if part:
            self._write(b"%x\r\n%s\r\n" % (len(part), part))
        waiting = 0 if self._transport is None else self._transport.get_write_buffer_size()
        if waiting > _LONGEST_BACKLOG:
            self.abort()

    def _end_parts(self) -> None:
        self._write(b"0\r\n\r\n")
        self._finish()

    def _write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def _finish(self) -> None:
        """Finish the answered request, and prepare for the next one."""
        is_stranger = self._caller is None or self._caller.scope == NO_SCOPE
        self._busy, self._caller, self._missing = False, None, 0
        if self._transport is None:
            return
        self._abort_after(_HEAD_SECONDS if is_stranger or self._buffer else _IDLE_SECONDS)
        if self._closes:
            self._transport.close()
        elif not self._full:
            self._next()

    def _next(self) -> None:
        """Read the next request."""
        if self._transport is None or self._transport.is_closing():
            return
        self._transport.resume_reading()
        if self._buffer:
            self._shell.loop.call_soon(self.go_on)

    def _refuse(self, status: int, reason: str) -> None:
        """Answer with the reason, discard further bytes, and close the connection.

        A connection that is closed with bytes unread is reset, and the caller would not see the answer: so a
        bounded number of them is thrown away first.
        """
        self._shell.refusals.note(f"{reason} ({self._peer})")
        text = reason.encode()
        self._write(_head(status, (f"Content-Length: {len(text)}",), closes=True) + text)
        self._buffer.clear()
        self._discard = _DISCARD_BYTES
        try:
            if self._transport is not None and self._transport.can_write_eof():
                self._transport.write_eof()
        except OSError:  # the caller has reset the connection
            self.abort()
            return
        self._abort_after(_DISCARD_SECONDS)

    def _abort_after(self, seconds: float) -> None:
        self._stop_timer()
        self._timer = self._shell.loop.call_later(seconds, self.abort)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _listening(address: ServiceAddress) -> socket.socket:
    family, kind, protocol, _, bind_address = socket.getaddrinfo(
        address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listening = socket.socket(family, kind, protocol)
    try:
        # A port that was served a moment ago may be bound again; one that is served now may not.
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(bind_address)
        listening.listen(_BACKLOG)
        listening.setblocking(False)
    except BaseException:
        listening.close()
        raise
    return listening


def _parsed(head: bytes) -> tuple[str, dict[str, str]]:
    """(action, headers) of `POST /v1/ACTION HTTP/1.1`, or of `GET /path HTTP/1.1`, and its lines.

    Raises:
        ValueError: it is something else.
    """
    lines = head.decode("latin-1").split("\r\n")
    method, _, path_and_version = lines[0].partition(" ")
    path, _, version = path_and_version.partition(" ")
    posts = method == "POST" and path.startswith("/v1/")
    reads = method == "GET" and path.startswith("/")
    if not (posts or reads) or version != "HTTP/1.1":
        raise ValueError("this is not a request to the service")
    headers: dict[str, str] = {}
    for line in lines[1:]:
        name, colon, value = line.partition(":")
        name = name.lower()
        again = name in headers and name in _JUDGED
        if not colon or not name or again or not name.isprintable() or " " in name:
            raise ValueError("this is not a request to the service")
        headers[name] = value.strip()
    return path.removeprefix("/v1/") if posts else f"GET {path}", headers


def _headers_of(answer: object) -> tuple[str, ...]:
    if not isinstance(answer, Document):
        return ()
    return (f"Content-Type: {answer.content_type}", *answer.headers)


def _head(status: int, headers: tuple[str, ...], closes: bool) -> bytes:
    lines = (f"HTTP/1.1 {status} {_REASONS[status]}", *headers)
    close = ("Connection: close",) if closes else ()
    return "\r\n".join((*lines, *close, "", "")).encode()
