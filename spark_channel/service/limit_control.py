"""`LimitControl`: looks at and changes the limits that are kept on this host, for the command line."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from spark_channel.errors import ChannelError, OptionError, ServiceDeniedError, ServiceUnavailableError
from spark_channel.limits import (
    Denied,
    LimitStatus,
    Pause,
    Request,
    Resume,
    Set,
    Status,
    decode_reply,
    encode,
)
from spark_channel.service.address import ServiceAddress
from spark_channel.service.rendezvous import Advert, Rendezvous

__all__ = ["KeptLimit", "LimitControl", "ask_limit"]

_TIMEOUT = 5.0


@dataclass(frozen=True, slots=True)
class KeptLimit:
    """A limit and the service that keeps it. `shared`: several jobs name it; else it is one job's own."""

    name: str
    service: ServiceAddress
    shared: bool
    status: LimitStatus


class LimitControl:
    """All limits of this user's processes on this host: shared ones, and those of running jobs."""

    def __init__(self, rendezvous: Rendezvous | None = None) -> None:
        self._rendezvous = rendezvous or Rendezvous()

    def shared_names(self) -> list[str]:
        """Names of the shared limits that are served, without asking them anything."""
        return [file.removeprefix("limit-").removesuffix(".json") for file, _ in self._adverts("limit-")]

    def all(self) -> list[KeptLimit]:
        """Every limit that answers, by name."""
        found = []
        for file, advert in self._adverts(""):
            with contextlib.suppress(ServiceUnavailableError, ServiceDeniedError):
                found += self._of(advert.address, shared=file.startswith("limit-"))
        return sorted(found, key=lambda kept: kept.name)

    def show(self, name: str) -> LimitStatus:
        """How a limit is.

        Raises:
            OptionError: there is none of this name. LimitError: its service does not answer.
        """
        return self._find(name).status

    def set(self, name: str, rows_per_second: int | None, bytes_per_second: int | None) -> LimitStatus:
        """New speeds; None = unlimited in that dimension. In force within a second."""
        return self._change(Set(self._find(name).name, rows_per_second, bytes_per_second))

    def pause(self, name: str) -> LimitStatus:
        """Let nothing pass until `resume`."""
        return self._change(Pause(self._find(name).name))

    def resume(self, name: str) -> LimitStatus:
        """End `pause`."""
        return self._change(Resume(self._find(name).name))

    def _change(self, request: Request) -> LimitStatus:
        return ask_limit(self._find(request.limit).service, request)

    def _find(self, name: str) -> KeptLimit:
        kept = self.all()
        for limit in kept:
            if name in (limit.name, limit.name.removeprefix("job:")):
                return limit
        names = ", ".join(limit.name for limit in kept) or "none"
        raise OptionError(
            f"no limit {name!r} runs on this host; running are: {names}", option="name", got=name
        )

    def _adverts(self, prefix: str) -> Iterator[tuple[str, Advert]]:
        for file in self._rendezvous.names():
            if file.startswith(prefix):
                advert = self._rendezvous.read(file)
                if advert is not None and advert.live:
                    yield file, advert

    def _of(self, service: ServiceAddress, *, shared: bool) -> list[KeptLimit]:
        from spark_channel.service.control import ServiceControl

        with ServiceControl(service, timeout=_TIMEOUT) as control:
            names = [str(name) for name in control.call("limits", {})["limits"]]
        found = []
        for name in names:
            with contextlib.suppress(ChannelError):  # a job that ended just now
                found.append(KeptLimit(name, service, shared, ask_limit(service, Status(name))))
        return found


def ask_limit(service: ServiceAddress, request: Request) -> LimitStatus:
    """How a limit is, after `request`.

    Raises:
        ServiceUnavailableError: no answer. ServiceDeniedError: refused.
    """
    from spark_channel.service.connection import Connection

    connection = Connection(service)
    try:
        reply = decode_reply(connection.send("coordinator", encode(request), timeout=_TIMEOUT))
    finally:
        connection.close()
    if isinstance(reply, Denied):
        raise ServiceDeniedError(reply.message)
    assert isinstance(reply, LimitStatus)
    return reply
