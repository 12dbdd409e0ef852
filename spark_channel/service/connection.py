"""One HTTP connection to a service with deadlines, and a note of the services that did not answer lately."""

import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from spark_channel.clock import SYSTEM_CLOCK
from spark_channel.errors import ServiceDeniedError, ServiceUnavailableError
from spark_channel.plain_text import log_of
from spark_channel.service import protocol
from spark_channel.service.protocol import ServiceAddress

if TYPE_CHECKING:
    import ssl

__all__ = [
    "Connection",
    "answered_here",
    "failed_recently",
    "note_reached",
    "note_unreached",
]


_log = log_of(__name__)

_LARGEST_HEAD = 16 << 10
_LARGEST_PART = protocol.LARGEST_BODY
_CHUNK = 64 << 10
_OK, _OURS = 200, 500
_AT_ONCE = frozenset({"open_job", "report", "enter", "coordinator"})
"""What jobs send most, and what never waits."""


Answer = Callable[[ServiceAddress, str, bytes], bytes | None]
_here: dict[tuple[int, str, int, str | None], Answer] = {}
"""The services of this process, with its pid: a forked child inherits them, and not what they know."""
_SECONDS = 60.0
_MOST = 100


def answered_here(address: ServiceAddress, answer: Answer | None) -> None:
    """Let a service of this process answer connections of this process without a socket; None: no more.

    `answer` takes the address with the caller's token, the action and the body. It returns None for what it refuses:
    then the socket refuses it, and the service counts and logs that.
    """
    if answer is None:
        _here.pop(_place(address), None)
    else:
        _here[_place(address)] = answer


def _place(address: ServiceAddress) -> tuple[int, str, int, str | None]:
    return os.getpid(), address.host, address.port, address.tls_root


class Connection:
    """Connects at the first call. Thread-safe: calls at the same time have a socket each. No proxy is used.

    After a failed call the next one connects again.
    """

    def __init__(self, address: ServiceAddress) -> None:
        self.address = address
        self._lock = threading.Lock()
        self._idle: _BufferedSocket | None = None
        self._closed = 0
        self._tls: ssl.SSLContext | None = None

    def call(self, action: str, body: Mapping[str, Any], *, timeout: float = 5.0) -> dict[str, Any]:
        """Send `body` to `action` and return the answer, within `timeout` seconds.

        Raises:
            ServiceUnavailableError: no answer in time, or none that can be read.
            ServiceDeniedError: the token or the request was refused.
        """
        answer = self.send(action, protocol.encode(body), timeout=timeout)
        try:
            return protocol.decode(answer)
        except protocol.RequestError as error:
            raise ServiceUnavailableError(
                f"an answer of the service at {self.address} cannot be read: {error}"
            ) from None

    def send(self, action: str, body: bytes, *, timeout: float = 5.0) -> bytes:
        """`call` with bytes as they are."""
        ask = _here.get(_place(self.address)) if action in _AT_ONCE else None
        try:
            answer = None if ask is None else ask(self.address, action, body)
        except Exception as error:
            _log.error("action %r failed", action, exc_info=error)
            raise ServiceUnavailableError(
                f"the service at {self.address} failed on {action!r}: see the log of this process"
            ) from error
        if answer is None:
            return b"".join(self.stream(action, body, timeout=timeout))
        return answer

    def stream(self, action: str, body: bytes, *, timeout: float) -> Iterator[bytes]:
        """The parts of an answer as they come, all within `timeout` seconds; the same errors as `call`."""
        if not (self.address.token.isascii() and self.address.token.isprintable()):
            raise ServiceDeniedError(
                f"the token for the service at {self.address} is wrong: it has characters that no token has"
            )
        end = SYSTEM_CLOCK.now() + timeout
        open_wire: _BufferedSocket | None = None
        closed = self._closed
        try:
            open_wire = self._taken(end)
            status, parts = open_wire.ask(self._request(action, len(body)) + body, end)
            if status == _OK:
                yield from parts
            else:
                refusal = b"".join(parts)[:300].decode("utf-8", "replace")
                if status < _OURS:
                    raise ServiceDeniedError(
                        f"the service at {self.address} refused {action!r}: {refusal}"
                    )
                raise ServiceUnavailableError(
                    f"the service at {self.address} failed on {action!r}: {refusal}"
                )
        except (OSError, _WireError) as error:
            raise ServiceUnavailableError(
                f"no answer from the service at {self.address} to {action!r} in {timeout:g} s: "
                f"{_reason(error)}"
            ) from None
        finally:
            if open_wire is not None:
                self._give_back(open_wire, closed)

    def close(self) -> None:
        """Close; a later call connects again."""
        with self._lock:
            idle, self._idle = self._idle, None
            self._closed += 1
        if idle is not None:
            idle.close()

    def abandon(self) -> None:
        """Forget the connection: in a forked child it belongs to the parent, whose socket stays open."""
        idle, self._idle = self._idle, None
        self._lock = threading.Lock()
        if idle is not None:
            idle.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self.close()

    def _taken(self, end: float) -> "_BufferedSocket":
        with self._lock:
            idle, self._idle = self._idle, None
        if idle is not None:
            if idle.usable():
                return idle
            idle.close()
        return self._connected(end)

    def _give_back(self, one: "_BufferedSocket", closed: int) -> None:
        with self._lock:
            keeps = one.whole and self._idle is None and self._closed == closed
            if keeps:
                self._idle = one
        if not keeps:
            one.close()

    def _connected(self, end: float) -> "_BufferedSocket":
        plain = socket.create_connection((self.address.host, self.address.port), timeout=_left(end))
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self.address.tls_root is None:
                return _BufferedSocket(plain)
            plain.settimeout(_left(end))
            return _BufferedSocket(
                self._context().wrap_socket(plain, server_hostname=self.address.host)
            )
        except BaseException:
            plain.close()
            raise

    def _context(self) -> "ssl.SSLContext":
        if self._tls is None:
            import ssl

            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            context.load_verify_locations(cadata=self.address.tls_root)
            self._tls = context
        return self._tls

    def _request(self, action: str, length: int) -> bytes:
        return (
            f"POST /v1/{action} HTTP/1.1\r\nHost: {self.address}\r\n"
            f"Authorization: Bearer {self.address.token}\r\nContent-Length: {length}\r\n\r\n"
        ).encode()


class _WireError(Exception):
    """The received bytes are not an answer, or end too early."""


class _BufferedSocket:
    """A socket and what was read of it; `whole` while no answer is under way."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._buffer = bytearray()
        self.whole = True

    def usable(self) -> bool:
        """Whether the idle connection is still open: a server closes one that is idle for long."""
        try:
            self._socket.setblocking(False)
            self._socket.recv(1)
        except (BlockingIOError, InterruptedError):
            return True
        except OSError as error:  # TLS has its own word for "nothing yet"
            return type(error).__name__ == "SSLWantReadError"
        return False

    def ask(self, request: bytes, end: float) -> tuple[int, Iterator[bytes]]:
        """Send, and return (status, the parts of the answer); they must be taken to the end."""
        self.whole = False
        self._socket.settimeout(_left(end))
        try:
            self._socket.sendall(request)
        except (BrokenPipeError, ConnectionResetError):
            pass  # a refusal may have come before all was sent
        head = self._until(b"\r\n\r\n", _LARGEST_HEAD, end).decode("latin-1").split("\r\n")
        version, _, status = head[0].partition(" ")
        if version != "HTTP/1.1" or not status[:3].isdigit():
            raise _WireError("what was received is not an answer of a service")
        headers = {
            name.lower(): value.strip()
            for name, _, value in (line.partition(":") for line in head[1:])
        }
        closes = headers.get("connection", "").lower() == "close"
        if headers.get("transfer-encoding") == "chunked":
            return int(status[:3]), self._chunks(end, closes)
        length = headers.get("content-length", "")
        if not (length.isascii() and length.isdigit()) or int(length) > _LARGEST_PART:
            raise _WireError("the length of the answer makes no sense")
        return int(status[:3]), self._body(int(length), end, closes)

    def close(self) -> None:
        self.whole = False
        self._socket.close()

    def _body(self, length: int, end: float, closes: bool) -> Iterator[bytes]:
        yield self._exactly(length, end)
        self.whole = not closes

    def _chunks(self, end: float, closes: bool) -> Iterator[bytes]:
        while True:
            size = self._until(b"\r\n", 32, end)
            try:
                length = int(size, 16)
            except ValueError:
                raise _WireError("a part of the answer has no length") from None
            if not 0 <= length <= _LARGEST_PART:
                raise _WireError("the length of the answer makes no sense")
            part = self._exactly(length + 2, end)[:-2]
            if not length:
                break
            yield part
        self.whole = not closes

    def _until(self, mark: bytes, most: int, end: float) -> bytes:
        while (index := self._buffer.find(mark)) < 0:
            if len(self._buffer) > most:
                raise _WireError("what was received is not an answer of a service")
            self._more(end)
        line = bytes(self._buffer[:index])
        del self._buffer[: index + len(mark)]
        return line

    def _exactly(self, length: int, end: float) -> bytes:
        while len(self._buffer) < length:
            self._more(end)
        body = bytes(self._buffer[:length])
        del self._buffer[:length]
        return body

    def _more(self, end: float) -> None:
        self._socket.settimeout(_left(end))
        data = self._socket.recv(_CHUNK)
        if not data:
            raise _WireError("the connection was closed")
        self._buffer += data


def _left(end: float) -> float:
    remaining = end - SYSTEM_CLOCK.now()
    if remaining <= 0:
        raise TimeoutError("timed out")
    return remaining


def _reason(error: Exception) -> str:
    return str(error).splitlines()[0][:300] if str(error) else type(error).__name__


_lock = threading.Lock()
_until: dict[tuple[str, int], float] = {}


def note_unreached(address: ServiceAddress) -> None:
    """Note that the service at `address` did not answer within the timeout.

    Spark runs one task after the other in a Python worker: without this note, each would wait for the same timeout.
    """
    with _lock:
        if len(_until) >= _MOST:
            _until.clear()
        _until[address.host, address.port] = SYSTEM_CLOCK.now() + _SECONDS


def note_reached(address: ServiceAddress) -> None:
    """Note that the service at `address` answered."""
    if _until:
        with _lock:
            _until.pop((address.host, address.port), None)


def failed_recently(address: ServiceAddress | None) -> bool:
    """Whether this process tried to reach it in the last minute, and did not."""
    if address is None or not _until:
        return False
    with _lock:
        return _until.get((address.host, address.port), 0.0) > SYSTEM_CLOCK.now()
