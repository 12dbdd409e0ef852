"""`LimitControl`: looks at the limits of this user's processes, and changes them."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from spark_channel.errors import (
    ChannelError,
    OptionError,
    ServiceDeniedError,
    ServiceUnavailableError,
)
from spark_channel.limits import (
    LimitStatus,
    Pause,
    Rejected,
    Request,
    Resume,
    SetRates,
    StatusRequest,
    decode_reply,
    encode,
)
from spark_channel.service.connection import Connection
from spark_channel.service.discovery import ServiceDirectory, ServiceRecord
from spark_channel.service.launch import ServiceControl
from spark_channel.service.protocol import ServiceAddress

__all__ = ["LimitControl", "LimitEntry", "ask_limit"]


_TIMEOUT = 5.0


@dataclass(frozen=True, slots=True)
class LimitEntry:
    """A limit and the service that keeps it. `shared`: several jobs name it; else it is one job's own."""

    name: str
    service: ServiceAddress
    shared: bool
    status: LimitStatus


class LimitControl:
    """All limits of this user's processes on this host: shared ones, and those of running jobs."""

    def __init__(self, rendezvous: ServiceDirectory | None = None) -> None:
        self._rendezvous = rendezvous or ServiceDirectory()

    def shared_names(self) -> list[str]:
        """Names of the shared limits that are served, without asking them anything."""
        return [
            file.removeprefix("limit-").removesuffix(".json") for file, _ in self._adverts("limit-")
        ]

    def all(self) -> list[LimitEntry]:
        """Every limit that answers, by name."""
        entries = []
        for file, advert in self._adverts(""):
            with contextlib.suppress(ServiceUnavailableError, ServiceDeniedError):
                entries += self._of(advert.address, shared=file.startswith("limit-"))
        return sorted(entries, key=lambda entry: entry.name)

    def show(self, name: str) -> LimitStatus:
        """Return the state of a limit.

        Raises:
            OptionError: there is none of this name. LimitError: its service does not answer.
        """
        return self._named(name).status

    def set(
        self, name: str, rows_per_second: int | None, bytes_per_second: int | None
    ) -> LimitStatus:
        """New speeds; None = unlimited in that dimension. In force within a second."""
        entry = self._named(name)
        return ask_limit(entry.service, SetRates(entry.name, rows_per_second, bytes_per_second))

    def pause(self, name: str) -> LimitStatus:
        """Let nothing pass until `resume`."""
        entry = self._named(name)
        return ask_limit(entry.service, Pause(entry.name))

    def resume(self, name: str) -> LimitStatus:
        """End `pause`."""
        entry = self._named(name)
        return ask_limit(entry.service, Resume(entry.name))

    def find(self, start: str | None) -> LimitEntry:
        """The limit whose name or job id is `start`, or the only one that begins so; None: the only one that runs.

        Raises:
            OptionError: there is none, or several; names those that run. Or `start` is empty, as an unset variable is.
        """
        entries = self.all()
        if start == "":
            names = ", ".join(entry.name for entry in entries) or "none"
            raise OptionError(
                f"the name of the limit is empty: name one of those that run ({names}), or omit it where only one runs",
                option="name",
                got=start,
            )
        likely = _called(start, entries) or [
            entry
            for entry in entries
            if any(name.startswith(start or "") for name in _names(entry))
        ]
        if len(likely) == 1:
            return likely[0]
        names = ", ".join(entry.name for entry in likely)
        if start is None and not entries:
            refusal = "no limit runs on this host"
        elif start is None:
            refusal = f"{len(entries)} limits run on this host, so name one: {names}"
        elif likely:
            refusal = f"several limits begin with {start!r}: {names}"
        else:
            raise _no_limit(start, entries)
        raise OptionError(refusal, option="name", got=start)

    def _named(self, name: str) -> LimitEntry:
        entries = self.all()
        called = _called(name, entries)
        if not called:
            raise _no_limit(name, entries)
        return called[0]

    def _adverts(self, prefix: str) -> Iterator[tuple[str, ServiceRecord]]:
        for file in self._rendezvous.names():
            if file.startswith(prefix):
                advert = self._rendezvous.read(file)
                if advert is not None and advert.live:
                    yield file, advert

    def _of(self, service: ServiceAddress, *, shared: bool) -> list[LimitEntry]:

        with ServiceControl(service, timeout=_TIMEOUT) as control:
            names = [str(name) for name in control.call("limits", {})["limits"]]
        entries = []
        for name in names:
            with contextlib.suppress(ChannelError):  # a job that ended just now
                entries.append(
                    LimitEntry(name, service, shared, ask_limit(service, StatusRequest(name)))
                )
        return entries


def _names(entry: LimitEntry) -> tuple[str, str]:
    """Its name, and the id of its job where it has one."""
    return entry.name, entry.name.removeprefix("job:")


def _called(name: str | None, entries: Sequence[LimitEntry]) -> list[LimitEntry]:
    return [entry for entry in entries if name in _names(entry)][:1]


def _no_limit(name: str, entries: Sequence[LimitEntry]) -> OptionError:
    running = ", ".join(entry.name for entry in entries) or "none"
    return OptionError(
        f"no limit {name!r} runs on this host; running are: {running}", option="name", got=name
    )


def ask_limit(service: ServiceAddress, request: Request) -> LimitStatus:
    """Send `request` to a limit, and return its state.

    Raises:
        ServiceUnavailableError: no answer. ServiceDeniedError: refused.
    """
    connection = Connection(service)
    try:
        reply = decode_reply(connection.send("coordinator", encode(request), timeout=_TIMEOUT))
    finally:
        connection.close()
    if isinstance(reply, Rejected):
        raise ServiceDeniedError(reply.message)
    assert isinstance(reply, LimitStatus)
    return reply
