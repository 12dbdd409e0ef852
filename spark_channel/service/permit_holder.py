"""`PermitHolder`: one of the permits that a service hands out, held while a `with` block runs."""

import logging
import secrets
import threading
from collections.abc import Callable
from typing import Self

from spark_channel.clock import SYSTEM_CLOCK
from spark_channel.errors import LimitError, ServiceDeniedError, ServiceUnavailableError
from spark_channel.limits import AskPermit, Hold, Permit, Reply, Request, ReturnPermit, decode_reply, encode
from spark_channel.service.address import ServiceAddress
from spark_channel.service.connection import Connection

__all__ = ["PermitHolder"]

_log = logging.getLogger(__name__)

_TIMEOUT = 2.0
_RETRY = 0.5


class PermitHolder:
    """Waits in line for a permit, keeps it by its own thread, and gives it back at the end.

    `acquire` blocks for it: first come, first served, for as long as others hold them all; `cancel`, from any
    thread, ends that wait. The service takes back the permit of a process that is silent for 30 s.
    `before(timeout)` is called until it succeeds, before the first message.
    """

    def __init__(
        self,
        address: ServiceAddress,
        permits: str,
        *,
        before: Callable[[float], None] | None = None,
        timeout: float = 10.0,
        option: str = "maxConnections",
    ) -> None:
        self._connection = Connection(address)
        self._permits = permits
        self._before = before
        self._timeout = timeout
        self._option = option
        self._holder = secrets.token_hex(16)
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def acquire(self) -> None:
        """Block until the permit is here.

        Raises:
            ServiceUnavailableError: the service did not answer for `timeout` seconds.
            ServiceDeniedError: it refused.
            LimitError: `cancel` was called.
        """
        try:
            self._stand_in_line()
        except BaseException:
            self._connection.close()
            raise

    def _stand_in_line(self) -> None:
        heard = SYSTEM_CLOCK.now()
        while not self._ended.is_set():
            try:
                reply = self._send(AskPermit(self._permits, self._holder))
            except ServiceUnavailableError as error:
                if SYSTEM_CLOCK.now() - heard >= self._timeout:
                    raise ServiceUnavailableError(
                        f"option {self._option!r}: "
                        f"the service that counts connections has not answered for {self._timeout:g} s: "
                        f"{error}. The work stops rather than open one connection too many. "
                        f"Where Spark tasks cannot reach the driver's host, omit {self._option!r} and write "
                        "df.coalesce(n) with that number, or let so many tasks run at once (spark.cores.max)"
                    ) from None
                self._ended.wait(_RETRY)
                continue
            heard = SYSTEM_CLOCK.now()
            match reply:
                case Permit():
                    self._thread = threading.Thread(
                        target=self._renew, args=(reply.renew_in,), name="spark-channel-permit", daemon=True
                    )
                    self._thread.start()
                    return
                case Hold():
                    self._ended.wait(max(0.01, reply.retry_in))
                case _:
                    raise ServiceDeniedError(f"permits {self._permits!r}: {getattr(reply, 'message', reply)}")
        raise LimitError("the wait for a connection's permit was cancelled")

    def cancel(self) -> None:
        """End the wait in `acquire`; harmless elsewhere."""
        self._ended.set()

    def release(self) -> None:
        """Give the permit back, or the place in line; within 2 s. Again: harmless."""
        self._ended.set()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join(_TIMEOUT + _RETRY)
        try:
            self._send(ReturnPermit(self._permits, self._holder))
        except LimitError as error:
            _log.warning("a connection's permit is available to others only after 30 s: %s", error)
        finally:
            self._connection.close()

    def __enter__(self) -> Self:
        try:
            self.acquire()
        except BaseException:
            self.release()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        self.release()

    def _renew(self, renew_in: float) -> None:
        pause = renew_in / 2
        while not self._ended.wait(pause):
            try:
                self._send(AskPermit(self._permits, self._holder))
                pause = renew_in / 2
            except LimitError as error:
                _log.warning("a connection's permit could not be renewed: %s", error)
                pause = _RETRY

    def _send(self, request: Request) -> Reply:
        if self._before is not None:
            self._before(_TIMEOUT)
            self._before = None
        return decode_reply(self._connection.send("coordinator", encode(request), timeout=_TIMEOUT))
