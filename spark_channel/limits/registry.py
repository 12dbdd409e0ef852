"""Keeps all limits and permits of a service by name. Takes a clock; does no I/O."""

import threading
from collections import OrderedDict
from collections.abc import Callable

from spark_channel.clock import SYSTEM_CLOCK, Clock
from spark_channel.errors import OptionError, RejoinError, ServiceDeniedError
from spark_channel.limits.coordinator import Coordinator
from spark_channel.limits.messages import (
    Acknowledged,
    Join,
    LimitStatus,
    Pause,
    Permit,
    PermitRequest,
    PermitReturn,
    Rejected,
    Reply,
    Request,
    Resume,
    RetryLater,
    SetRates,
    StatusRequest,
    decode_request,
    encode,
)

__all__ = [
    "LimitRegistry",
    "Semaphore",
    "marked",
]


RENEW_SECONDS = 10.0
KEEP_SECONDS = 30.0
FIRST_RETRY = 0.1
SLOWEST_RETRY = 2.0
MOST_WAITING = 100_000
MOST_MARKS = 1_000


class Semaphore:
    """At most `count` holders at the same time, first come, first served: `maxConnections`.

    A holder is any string that its process generated (random, so that no other process returns it). It asks
    until it is given a `Permit`, asks again every `renew_in` seconds while it needs it, and returns it.
    One that is silent for 30 s has lost its permit, or its place in line.

    ```python
    from spark_channel.limits import PermitRequest, PermitReturn, Semaphore

    permits = Semaphore("orders-db", count=2)
    answers = [permits.handle(PermitRequest("orders-db", f"attempt-{number}")) for number in range(3)]
    assert [type(answer).__name__ for answer in answers] == ["Permit", "Permit", "RetryLater"]
    permits.handle(PermitReturn("orders-db", "attempt-0"))
    assert permits.usage() == (1, 1)                       # one held, one in line
    ```
    """

    def __init__(self, name: str, count: int, *, clock: Clock | None = None) -> None:
        self.name = name
        self._clock: Clock = clock or SYSTEM_CLOCK
        self._lock = threading.Lock()
        self._held: OrderedDict[str, float] = OrderedDict()
        self._line: OrderedDict[str, float] = OrderedDict()
        self._count = _checked(count)

    @property
    def count(self) -> int:
        """The most holders at a time."""
        return self._count

    def usage(self) -> tuple[int, int]:
        """(held, waiting) now."""
        with self._lock:
            self._expire()
            return len(self._held), len(self._line)

    def handle(self, request: PermitRequest | PermitReturn) -> Permit | RetryLater | Acknowledged:
        """Carry out one request; `ServiceDeniedError` when it makes no sense."""
        with self._lock:
            self._expire()
            if not 8 <= len(request.holder) <= 256:
                raise ServiceDeniedError("a permit's holder is a text of 8 to 256 characters")
            if isinstance(request, PermitReturn):
                self._held.pop(request.holder, None)
                self._line.pop(request.holder, None)
                return Acknowledged(RENEW_SECONDS)
            return self._ask(request.holder)

    def _ask(self, holder: str) -> Permit | RetryLater:
        now = self._clock.now()
        if holder not in self._held:
            if holder not in self._line and len(self._line) >= MOST_WAITING:
                raise ServiceDeniedError(f"{MOST_WAITING} wait for {self.name!r} already")
            self._line[holder] = now
            ahead = self._ahead(holder)
            if ahead is None:
                pause = min(SLOWEST_RETRY, FIRST_RETRY * max(1, len(self._line) // 8))
                return RetryLater("connections", pause)
            del self._line[holder]
        self._held[holder] = now
        self._held.move_to_end(holder)
        return Permit(RENEW_SECONDS)

    def _ahead(self, holder: str) -> int | None:
        """Return the holder's place in the queue if there is a free permit for it, else None."""
        free = self._count - len(self._held)
        for position, other in enumerate(self._line):
            if position >= free:
                return None
            if other == holder:
                return position
        return None

    def _expire(self) -> None:
        """Remove expired holders, which are ordered by renewal, and expired clients at the queue's head."""
        gone = self._clock.now() - KEEP_SECONDS
        while self._held and next(iter(self._held.values())) <= gone:
            self._held.popitem(last=False)
        late = self._clock.now() - 2 * SLOWEST_RETRY
        while self._line and next(iter(self._line.values())) <= late:
            self._line.popitem(last=False)


def _checked(count: int) -> int:
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise OptionError(
            f"option 'maxConnections' got {count!r}; it takes a whole number, 1 or more",
            option="maxConnections",
            got=repr(count),
            takes="a whole number, 1 or more",
        )
    return count


def marked(limit: str, mark: str | None) -> str:
    """The name under which clients that load the resource `mark` join a limit that holds per mark."""
    return limit if mark is None else f"{limit}@{mark}"


class LimitRegistry:
    """Routes each request to the coordinator or the permits that it names.

    A limit that is `per_mark` holds for each resource by itself: clients join `marked(limit, "db1")`, and
    get a coordinator with these rates that is theirs. What is set, paused or resumed under the plain name
    goes to all of them, and to those that come. `on_call`: see `Coordinator`.

    ```python
    from spark_channel.limits import Join, LimitRegistry, SetRates, marked

    book = LimitRegistry()
    book.add_limit("orders", rows_per_second=20_000, per_mark=True)
    for host in ("db1", "db2"):
        joined = book.handle(Join(marked("orders", host), job="nightly"))
        assert joined.answer.rows_per_second == 20_000     # for each
    book.handle(SetRates("orders", rows_per_second=5_000)) # and for hosts that join later
    assert book.names() == ("orders", "orders@db1", "orders@db2")
    ```
    """

    def __init__(
        self, *, clock: Clock | None = None, on_call: Callable[[str, str], None] | None = None
    ) -> None:
        self._clock: Clock = clock or SYSTEM_CLOCK
        self._on_call = on_call
        self._lock = threading.Lock()
        self._limits: dict[str, Coordinator] = {}
        self._marks: dict[str, OrderedDict[str, Coordinator]] = {}
        self._permits: dict[str, Semaphore] = {}

    def add_limit(
        self,
        name: str,
        rows_per_second: float | None = None,
        bytes_per_second: float | None = None,
        *,
        per_mark: bool = False,
        predecessor_seconds: float = 0.0,
        max_jobs: int | None = None,
        static_tasks: int | None = None,
        at_once: bool = False,
        on_absent: Callable[[str], None] | None = None,
    ) -> Coordinator:
        """A new limit; `OptionError` when the name is taken or has an "@"."""
        coordinator = Coordinator(
            name,
            rows_per_second,
            bytes_per_second,
            clock=self._clock,
            predecessor_seconds=predecessor_seconds,
            max_jobs=max_jobs,
            static_tasks=static_tasks,
            at_once=at_once,
            on_absent=on_absent,
            on_call=self._on_call,
        )
        with self._lock:
            _free_name(name, self._limits)
            self._limits[name] = coordinator
            if per_mark:
                self._marks[name] = OrderedDict()
        return coordinator

    def add_permits(self, name: str, count: int) -> Semaphore:
        """New permits; `OptionError` when the name is taken or has an "@"."""
        permits = Semaphore(name, count, clock=self._clock)
        with self._lock:
            _free_name(name, self._permits)
            self._permits[name] = permits
        return permits

    def remove(self, name: str) -> None:
        """Forget the limit and the permits of that name; their clients are refused from now on."""
        with self._lock:
            self._limits.pop(name, None)
            self._marks.pop(name, None)
            self._permits.pop(name, None)

    def names(self) -> tuple[str, ...]:
        """Every limit, and every mark in use as "limit@mark"; sorted."""
        with self._lock:
            marks = [
                coordinator.limit
                for marks in self._marks.values()
                for coordinator in marks.values()
            ]
            return tuple(sorted([*self._limits, *marks]))

    def handle(self, request: Request) -> Reply:
        """Carry out one request; see `Coordinator.handle`."""
        if isinstance(request, (PermitRequest, PermitReturn)):
            with self._lock:
                permits = self._permits.get(request.limit)
            if permits is None:
                raise ServiceDeniedError(f"there are no permits called {request.limit!r}")
            return permits.handle(request)
        reply = self._coordinator(request).handle(request)
        if isinstance(request, (SetRates, Pause, Resume)):
            with self._lock:
                marks = list(self._marks.get(request.limit, {}).values())
            for coordinator in marks:
                coordinator.handle(request)
        return reply

    def answer(self, data: bytes) -> bytes:
        """`handle` for bytes from outside, `encode`d; a refusal is a `Rejected`. Never raises."""
        try:
            reply = self.handle(decode_request(data))
        except RejoinError as error:
            reply = Rejected(str(error), rejoin=True)
        except (ServiceDeniedError, OptionError) as error:
            reply = Rejected(str(error))
        return encode(reply)

    def press(self, name: str, factor: float, state: str) -> None:
        """`Coordinator.press` for the limit, and all of its marks."""
        with self._lock:
            coordinators = [self._limits[name], *self._marks.get(name, {}).values()]
        for coordinator in coordinators:
            coordinator.press(factor, state)

    def cap(self, name: str, rows_per_second: float, state: str) -> None:
        """`Coordinator.cap` for the limit, and all of its marks."""
        with self._lock:
            whole = self._limits.get(name)
            coordinators = [] if whole is None else [whole, *self._marks.get(name, {}).values()]
        for coordinator in coordinators:
            coordinator.cap(rows_per_second, state)

    def limits(self, name: str) -> tuple[float | None, float | None]:
        """Rows and bytes per second that a limit is set to; None = unlimited."""
        with self._lock:
            coordinator = self._limits.get(name)
        return (None, None) if coordinator is None else coordinator.limits

    def spent(self, name: str, *, nbytes: bool = False) -> float:
        """Rows, or bytes, that were spent of the limit so far, and of all of its marks."""
        with self._lock:
            coordinator = self._limits.get(name)
            coordinators = (
                [] if coordinator is None else [coordinator, *self._marks.get(name, {}).values()]
            )
        return float(sum(part.spent[nbytes] for part in coordinators))

    def _coordinator(self, request: Request) -> Coordinator:
        name, at, mark = request.limit.partition("@")
        with self._lock:
            parent = self._limits.get(name)
            marks = self._marks.get(name)
            if parent is None or (at and marks is None):
                raise ServiceDeniedError(f"no limit is called {request.limit!r}")
            if not at or marks is None:
                return parent
            coordinator = marks.get(mark)
            if coordinator is not None:
                return coordinator
            if not isinstance(request, Join):
                raise RejoinError(f"limit {request.limit!r} has no clients; join again")
            coordinator = self._new_mark(parent, marks, request.limit)
            marks[mark] = coordinator
            return coordinator

    def _new_mark(
        self, parent: Coordinator, marks: OrderedDict[str, Coordinator], name: str
    ) -> Coordinator:
        if len(marks) >= MOST_MARKS:
            idle = [
                mark
                for mark, coordinator in marks.items()
                if _status(coordinator).client_count == 0
            ]
            for mark in idle:
                del marks[mark]
            if not idle:
                raise ServiceDeniedError(
                    f"limit {parent.limit!r} is in use for {MOST_MARKS} marks already"
                )
        return parent.for_mark(name)


def _status(coordinator: Coordinator) -> LimitStatus:
    status = coordinator.handle(StatusRequest(coordinator.limit))
    assert isinstance(status, LimitStatus)
    return status


def _free_name(name: str, existing: dict[str, Coordinator] | dict[str, Semaphore]) -> None:
    if not name or "@" in name or name in existing:
        raise OptionError(
            f"a limit called {name!r} cannot be made, since a name is not empty, has no @, and is used once: "
            "give another name",
            option="sharedLimit",
            got=name,
            takes="a new name without @",
        )
