"""`LeaseMessenger`: a thread that carries a limiter's requests to the service, and the replies back."""

import logging
import threading
from collections.abc import Callable

from spark_channel.clock import SYSTEM_CLOCK
from spark_channel.errors import LimitError, ServiceDeniedError, ServiceUnavailableError
from spark_channel.limits import (
    Denied,
    LeaseLimiter,
    Leave,
    Listen,
    News,
    Reply,
    Request,
    StaticShare,
    decode_reply,
    encode,
)
from spark_channel.service.address import ServiceAddress
from spark_channel.service.connection import Connection
from spark_channel.service.subscriptions import LISTEN_SECONDS
from spark_channel.service.unreached import note_reached, note_unreached, was_unreached

__all__ = ["LeaseMessenger"]

_log = logging.getLogger(__name__)

_TIMEOUT = 2.0
_LISTEN_AGAIN = 2.0


class LeaseMessenger:
    """Keeps `limiter` in grants until `begin_close`, which gives back the rest of the last one.

    Where so many share the limit that asks are far apart, a second thread listens for changes; it ends when
    the service has heard of the end, or after a minute where that cannot be told.

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
    ) -> None:
        self.connection = Connection(address)
        self.limiter = LeaseLimiter(
            limit, job, name, timeout=timeout, static=static, begins_static=was_unreached(address)
        )
        self._static = static
        self._told = False
        self._before = self._introduce = before
        self._request_timeout = min(_TIMEOUT, timeout / 2)
        self._ended = threading.Event()
        self._listener: threading.Thread | None = None
        self._thread = threading.Thread(target=self._run, name="spark-channel-lease", daemon=True)
        self._thread.start()

    def begin_close(self, until: float) -> None:
        """Payments are over; the thread ends when it said so, or cannot."""
        del until  # one message, which has its own bound
        self._ended.set()
        self.limiter.close()

    def join(self, timeout: float) -> None:
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
        """False when the service wants nothing of this client, so that it needs no goodbye."""
        try:
            reply = self._ask(request)
        except ServiceUnavailableError as error:
            self._before = self._introduce  # the service may have forgotten the job meanwhile
            self.limiter.failed(request, error)
            self._tell(error)
        except ServiceDeniedError as error:
            self.limiter.fail(error)
            return False
        else:
            self.limiter.receive(request, reply)
            note_reached(self.connection.address)
            self._listen_if_seldom()
        return True

    def _tell(self, error: ServiceUnavailableError) -> None:
        if self._static is None or not self.limiter.is_static:
            return
        note_unreached(self.connection.address)
        if not self._told:
            self._told = True
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
            self._listener = threading.Thread(target=self._listen, name="spark-channel-listen", daemon=True)
            self._listener.start()

    def _listen(self) -> None:
        with Connection(self.connection.address) as connection:
            while not self._ended.is_set() and (request := self.limiter.listen()) is not None:
                if again_in := self._hear(connection, request):
                    self._ended.wait(again_in)

    def _hear(self, connection: Connection, request: Listen) -> float:
        """Seconds until it is worth listening again."""
        timeout = LISTEN_SECONDS + self._request_timeout
        try:
            for data in connection.stream("listen", encode(request), timeout=timeout):
                answer = decode_reply(data)
                if isinstance(answer, (News, Denied)):
                    self.limiter.hear(request, answer)
                if isinstance(answer, News) and answer.again_in is not None:
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
