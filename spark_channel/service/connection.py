"""One connection to a service: calls with a bound on time, and errors in this project's words."""

import threading
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
import pyarrow.flight as fl

from spark_channel.errors import ServiceDeniedError, ServiceUnavailableError
from spark_channel.service import wire
from spark_channel.service.address import ServiceAddress

__all__ = ["Connection"]

_CHANNEL_OPTIONS = [
    # A proxy of the environment is for the outside world, not for the driver's host.
    ("grpc.enable_http_proxy", 0),
    # Messages are small: what the network could carry is not worth a ping after each of them.
    ("grpc.http2.bdp_probe", 0),
    # Else a new connection inherits the reconnect back-off of one that was closed.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_reconnect_backoff_ms", 1000),
]


class Connection:
    """Connects at the first call. Thread-safe. After a failed call the next one connects anew."""

    def __init__(self, address: ServiceAddress) -> None:
        self.address = address
        self._lock = threading.Lock()
        self._client: Any = None

    def call(self, action: str, body: Mapping[str, Any], *, timeout: float = 5.0) -> dict[str, Any]:
        """Send `body` to `action` and return the answer, within `timeout` seconds.

        Raises:
            ServiceUnavailableError: no answer in time, or none that can be read.
            ServiceDeniedError: the token or the request was refused.
        """
        answer = self.send(action, wire.encode(body), timeout=timeout)
        try:
            return wire.decode(answer)
        except wire.RequestError as error:
            raise ServiceUnavailableError(
                f"an answer of the service at {self.address} cannot be read: {error}"
            ) from None

    def send(self, action: str, body: bytes, *, timeout: float = 5.0) -> bytes:
        """`call` with bytes as they are."""
        return b"".join(self.stream(action, body, timeout=timeout))

    def stream(self, action: str, body: bytes, *, timeout: float) -> Iterator[bytes]:
        """The parts of an answer as they come, all within `timeout` seconds; the same errors as `call`."""
        if not (self.address.token.isascii() and self.address.token.isprintable()):
            raise ServiceDeniedError(
                f"the token for the service at {self.address} is wrong: it has characters that no token has"
            )
        options = fl.FlightCallOptions(
            timeout=timeout, headers=[(b"authorization", b"Bearer " + self.address.token.encode())]
        )
        client = self._connected()
        try:
            for each in client.do_action(fl.Action(action, body), options):
                yield each.body.to_pybytes()
        except (fl.FlightUnauthenticatedError, fl.FlightUnauthorizedError, pa.ArrowInvalid) as error:
            raise ServiceDeniedError(
                f"the service at {self.address} refused {action!r}: {_first_line(error)}"
            ) from None
        except (pa.ArrowException, OSError) as error:
            self._drop(client)
            raise ServiceUnavailableError(
                f"no answer from the service at {self.address} to {action!r} in {timeout:g} s: "
                f"{_first_line(error)}"
            ) from None

    def close(self) -> None:
        """Close; a later call connects again."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    def abandon(self) -> None:
        """Forget the connection without touching it: in a forked child it belongs to the parent."""
        self._client = None
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()

    def _connected(self) -> Any:
        with self._lock:
            if self._client is None:
                root = self.address.tls_root
                self._client = fl.FlightClient(
                    self.address.location,
                    tls_root_certs=root.encode() if root else None,
                    generic_options=_CHANNEL_OPTIONS,
                )
            return self._client

    def _drop(self, client: Any) -> None:
        with self._lock:
            if self._client is client:
                self._client = None
        client.close()


def _first_line(error: BaseException) -> str:
    text = str(error)
    return text.splitlines()[0].partition(". Detail:")[0][:300] if text else type(error).__name__
