"""`LeaseMessenger`: a thread that carries a limiter's requests to the service, and the replies back."""

import logging
import threading
from collections.abc import Callable

from spark_channel.errors import LimitError, ServiceDeniedError, ServiceUnavailableError
from spark_channel.limits import LeaseLimiter, Leave, Reply, Request, decode_reply, encode
from spark_channel.service.address import ServiceAddress
from spark_channel.service.connection import Connection

__all__ = ["LeaseMessenger"]

_log = logging.getLogger(__name__)

_TIMEOUT = 2.0


class LeaseMessenger:
    """Keeps `limiter` in grants until `begin_close`, which gives back the rest of the last one.

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
        patience: float,
    ) -> None:
        self.connection = Connection(address)
        self.limiter = LeaseLimiter(limit, job, name, patience=patience)
        self._before = before
        self._timeout = min(_TIMEOUT, patience / 2)
        self._thread = threading.Thread(target=self._run, name="spark-channel-lease", daemon=True)
        self._thread.start()

    def begin_close(self, until: float) -> None:
        """Payments are over; the thread ends when it said so, or cannot."""
        del until  # one message, which has a bound of its own
        self.limiter.close()

    def join(self, timeout: float) -> None:
        self._thread.join(timeout)

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
        """False when the service wants nothing of this client, so that there is nobody to say goodbye to."""
        try:
            reply = self._ask(request)
        except ServiceUnavailableError as error:
            self.limiter.failed(request, error)
        except ServiceDeniedError as error:
            self.limiter.fail(error)
            return False
        else:
            self.limiter.receive(request, reply)
        return True

    def _ask(self, request: Request) -> Reply:
        if self._before is not None:
            self._before(self._timeout)
            self._before = None
        return decode_reply(self.connection.send("coordinator", encode(request), timeout=self._timeout))
