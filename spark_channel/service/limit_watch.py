"""`LimitWatch`: what a shared limit is set to now, for the progress of a job that spends it."""

from typing import Any

from spark_channel.errors import ServiceDeniedError, ServiceUnavailableError
from spark_channel.limits import LimitStatus, Status, decode_reply, encode
from spark_channel.service.address import ServiceAddress
from spark_channel.service.connection import Connection

__all__ = ["LimitWatch"]


class LimitWatch:
    """Asks the service that keeps limit `name`; of one thread. Connects at the first `look`."""

    def __init__(self, service: ServiceAddress, name: str) -> None:
        self.connection = Connection(service)
        self._name = name

    def look(self, timeout: float) -> dict[str, Any] | None:
        """`rows_per_second`, `bytes_per_second` (None = unlimited) and `note`, why it holds; None: no answer.

        A limit that does not answer stops the tasks that pay it; a process that only shows it continues.
        """
        try:
            reply = decode_reply(
                self.connection.send("coordinator", encode(Status(self._name)), timeout=timeout)
            )
        except (ServiceUnavailableError, ServiceDeniedError):
            return None
        if not isinstance(reply, LimitStatus):
            return None
        rows, nbytes, note = reply.shown
        return {"rows_per_second": rows, "bytes_per_second": nbytes, "note": note}
