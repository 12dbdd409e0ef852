"""What a task has of the service's limits: grants that it spends, and permits that it holds."""

import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Self

from spark_channel.clock import SYSTEM_CLOCK
from spark_channel.errors import (
    ChannelError,
    LimitError,
    ServiceDeniedError,
    ServiceUnavailableError,
)
from spark_channel.limits import (
    LeaseLimiter,
    Leave,
    LimitChanged,
    Permit,
    PermitRequest,
    PermitReturn,
    Rejected,
    Reply,
    Request,
    RetryLater,
    StaticShare,
    Subscribe,
    decode_reply,
    encode,
)
from spark_channel.plain_text import log_of
from spark_channel.service.connection import (
    Connection,
    failed_recently,
    note_reached,
    note_unreached,
)
from spark_channel.service.protocol import (
    FLUSH_SECONDS,
    GRACE_SECONDS,
    LISTEN_SECONDS,
    ServiceAddress,
    SharedLimitAddress,
)

__all__ = ["LeaseClient", "PermitLease", "leased"]

_log = log_of(__name__)

_TIMEOUT = 2.0
_LISTEN_AGAIN = 2.0
_RETRY = 0.5


@contextmanager
def leased(
    find: Callable[[], SharedLimitAddress], job: str, name: str, timeout: float
) -> Iterator[LeaseLimiter]:
    """What spends a shared limit in a `with` block, for work that continues when the limit is served again.

    `find` returns where it is, now and after each failure: a limit that is served again may have another port.
    A payment raises `ServiceUnavailableError` when the limit has not answered for `timeout` seconds, 2 at least.
    """
    limit = find()
    client = LeaseClient(
        limit.service,
        limit.name,
        job,
        name,
        before=None,
        timeout=max(timeout, _TIMEOUT),
        find=find,
    )
    try:
        yield client.limiter
    finally:
        client.begin_close(SYSTEM_CLOCK.now() + FLUSH_SECONDS)
        client.join(FLUSH_SECONDS + GRACE_SECONDS)


def _advice(limit: str, address: ServiceAddress) -> str:
    """What to do about a limit whose service has ended."""
    from spark_channel.service.limits import is_of_job

    if is_of_job(limit):
        return (
            "Option limitFallback is 'fail', or it is not known how many tasks run at once: look at the network from "
            "the executors to the driver's host, or set rowsPerSecondPerTask or bytesPerSecondPerTask, which need no "
            "service"
        )
    return (
        f"If it has ended, start it again (`spark-channel limits serve {limit}` with its speed); else look at the "
        f"network to {address.host}:{address.port}. Then run the job again"
    )


class LeaseClient:
    """Fetches grants for `limiter` until `begin_close`, which gives back the rest of the last one.

    Where so many share the limit that asks are far apart, a second thread listens for changes; it ends when
    the service has received the end, or after a minute when it does not answer.

    `before(timeout)` is called before the first message, and again after a failure, until it succeeds.
    """

    def __init__(
        self,
        address: ServiceAddress,
        limit: str,
        job: str,
        name: str,
        *,
        before: Callable[[float], None] | None,
        timeout: float,
        static: StaticShare | None = None,
        find: Callable[[], SharedLimitAddress] | None = None,
    ) -> None:
        self.connection = Connection(address)
        self.limiter = LeaseLimiter(
            limit,
            job,
            name,
            timeout=timeout,
            static=static,
            begins_static=failed_recently(address),
            advice=_advice(limit, address),
        )
        self._static, self._limit, self._find = static, limit, find
        self._has_warned = False
        self._before = self._introduce = before
        self._request_timeout = min(_TIMEOUT, timeout / 2)
        self._ended = threading.Event()
        self._listener: threading.Thread | None = None
        self._thread = threading.Thread(target=self._run, name="spark-channel-lease", daemon=True)
        self._thread.start()

    def begin_close(self, until: float) -> None:
        """End the payments. The thread ends when the service knows, or cannot be reached."""
        del until  # one message, which has its own bound
        self._ended.set()
        self.limiter.close()

    def join(self, timeout: float) -> None:
        """Wait until the service knows of the end; not for one that has not answered the last request."""
        if self.limiter.is_silent:
            return
        end = SYSTEM_CLOCK.now() + timeout
        self._thread.join(timeout)
        if self._listener is not None and not self._thread.is_alive():
            self._listener.join(max(0.0, end - SYSTEM_CLOCK.now()))

    def _run(self) -> None:
        try:
            while (request := self.limiter.next_request()) is not None:
                if not self._carry(request) or isinstance(request, Leave):
                    return
        except Exception as error:
            _log.exception("the messenger of a limit failed")
            self.limiter.fail(LimitError(f"the limit cannot be kept: {error}"))
        finally:
            self.connection.close()

    def _carry(self, request: Request) -> bool:
        """Return False when the service does not expect this client, so that no `Leave` is needed."""
        try:
            reply = self._ask(request)
        except ServiceUnavailableError as error:
            self._before = self._introduce  # the service may have forgotten the job meanwhile
            self.limiter.failed(request, error)
            self._warn_static(error)
            self._look_again(error)
        except ServiceDeniedError as error:
            self.limiter.fail(error)
            return False
        else:
            self.limiter.receive(request, reply)
            note_reached(self.connection.address)
            self._listen_if_seldom()
            self._has_warned &= self._find is None
        return True

    def _look_again(self, error: ServiceUnavailableError) -> None:
        if self._find is None:
            return
        with suppress(ChannelError):  # it is not served now
            service = self._find().service
            if service != self.connection.address:
                self.connection.close()
                self.connection = Connection(service)
        if not self._has_warned:
            self._has_warned = True
            _log.warning(
                "the service that keeps limit %r does not answer, and the work waits for it: %s. %s",
                self._limit,
                error,
                _advice(self._limit, self.connection.address),
            )

    def _warn_static(self, error: ServiceUnavailableError) -> None:
        if self._static is None or not self.limiter.is_static:
            return
        note_unreached(self.connection.address)
        if not self._has_warned:
            self._has_warned = True
            rows, nbytes = self._static.paces
            speeds = [f"{rows:,.1f} rows/s"] if rows is not None else []
            speeds += [f"{nbytes:,.0f} bytes/s"] if nbytes is not None else []
            _log.warning(
                "static limit: this task keeps %s, 1/%d of the job's limit, since the service is out of reach: %s",
                " and ".join(speeds),
                self._static.tasks,
                error,
            )

    def _listen_if_seldom(self) -> None:
        listens = self._listener is not None and self._listener.is_alive()
        if not listens and self.limiter.listen() is not None:
            self._listener = threading.Thread(
                target=self._listen, name="spark-channel-listen", daemon=True
            )
            self._listener.start()

    def _listen(self) -> None:
        with Connection(self.connection.address) as connection:
            while not self._ended.is_set() and (request := self.limiter.listen()) is not None:
                if again_in := self._hear(connection, request):
                    self._ended.wait(again_in)

    def _hear(self, connection: Connection, request: Subscribe) -> float:
        """Return the seconds until the next attempt to listen."""
        timeout = LISTEN_SECONDS + self._request_timeout
        try:
            for data in connection.stream("listen", encode(request), timeout=timeout):
                answer = decode_reply(data)
                if isinstance(answer, (LimitChanged, Rejected)):
                    self.limiter.limit_changed(request, answer)
                if isinstance(answer, LimitChanged) and answer.again_in is not None:
                    return answer.again_in
        except (ServiceUnavailableError, ServiceDeniedError):
            pass  # the messenger meets the same trouble, and decides what it means
        return _LISTEN_AGAIN

    def _ask(self, request: Request) -> Reply:
        if self._before is not None:
            self._before(self._request_timeout)
            self._before = None
        return decode_reply(
            self.connection.send("coordinator", encode(request), timeout=self._request_timeout)
        )


class PermitLease:
    """Waits in the queue for a permit, renews it in a thread, and gives it back at the end.

    `acquire` blocks for it: first come, first served, for as long as others hold them all; `cancel`, from any
    thread, ends that wait. The service takes back the permit of a process that is silent for 30 s.
    `before(timeout)` is called until it succeeds, before the first message. `option` is the user's that asks for
    permits; None = no option does, and without an answer the work continues without one.
    """

    def __init__(
        self,
        address: ServiceAddress,
        permits: str,
        *,
        before: Callable[[float], None] | None = None,
        timeout: float = 10.0,
        option: str | None = "maxConnections",
    ) -> None:
        self._connection = Connection(address)
        self._permits = permits
        self._before = before
        self._timeout = timeout
        self._option = option
        self._holder = secrets.token_hex(16)
        self._goes_without = False
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def acquire(self) -> None:
        """Block until the service grants the permit.

        Raises:
            ServiceUnavailableError: the service did not answer for `timeout` seconds, and an option asks for permits.
            ServiceDeniedError: it refused.
            LimitError: `cancel` was called.
        """
        try:
            self._acquire()
        except BaseException:
            self._connection.close()
            raise

    def _acquire(self) -> None:
        heard = SYSTEM_CLOCK.now()
        while not self._ended.is_set():
            try:
                reply = self._send(PermitRequest(self._permits, self._holder))
            except ServiceUnavailableError as error:
                if SYSTEM_CLOCK.now() - heard >= self._timeout and self._option is None:
                    self._goes_without = True
                    note_unreached(self._connection.address)
                    _log.warning(
                        "connections are not counted, since the service is out of reach: %s. With option "
                        "'maxConnections' such a task fails instead",
                        error,
                    )
                    return
                if SYSTEM_CLOCK.now() - heard >= self._timeout:
                    raise ServiceUnavailableError(
                        f"option {self._option!r}: no answer from the service that counts connections "
                        f"for {self._timeout:g} s: {error}. The task stopped, since it could open one connection too "
                        f"many. Open the service's port from the executors to the driver; or omit {self._option!r}, "
                        "and limit the tasks with df.coalesce(n) or spark.cores.max"
                    ) from None
                self._ended.wait(_RETRY)
                continue
            heard = SYSTEM_CLOCK.now()
            match reply:
                case Permit():
                    self._thread = threading.Thread(
                        target=self._renew,
                        args=(reply.renew_in,),
                        name="spark-channel-permit",
                        daemon=True,
                    )
                    self._thread.start()
                    return
                case RetryLater():
                    self._ended.wait(max(0.01, reply.retry_in))
                case _:
                    raise ServiceDeniedError(
                        f"permits {self._permits!r}: {getattr(reply, 'message', reply)}"
                    )
        raise LimitError("the wait for a connection's permit was cancelled")

    def cancel(self) -> None:
        """End the wait in `acquire`; without one, this has no effect."""
        self._ended.set()

    def release(self) -> None:
        """Give back the permit, or the place in the queue, within 2 s. Calling it again has no effect."""
        self._ended.set()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join(_TIMEOUT + _RETRY)
        try:
            if not self._goes_without:
                self._send(PermitReturn(self._permits, self._holder))
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
                self._send(PermitRequest(self._permits, self._holder))
                pause = renew_in / 2
            except LimitError as error:
                _log.warning("a connection's permit could not be renewed: %s", error)
                pause = _RETRY

    def _send(self, request: Request) -> Reply:
        if self._before is not None:
            self._before(_TIMEOUT)
            self._before = None
        return decode_reply(self._connection.send("coordinator", encode(request), timeout=_TIMEOUT))
