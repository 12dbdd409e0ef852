"""The messages between clients and the coordinator: plain data, one request, one reply.

Amounts are rows and bytes, times are seconds. No message holds an instant of another host's clock that
the other has to read: a grant says how long it lasts, and the client counts from when it asked, so it
stops no later than the coordinator believes.
"""

from dataclasses import dataclass

__all__ = [
    "OLD_GRANT_SECONDS",
    "Ask",
    "AskPermit",
    "ClientStatus",
    "Denied",
    "Done",
    "Grant",
    "Heartbeat",
    "Hold",
    "Join",
    "Joined",
    "Leave",
    "LimitStatus",
    "Listen",
    "News",
    "Pause",
    "Permit",
    "Reply",
    "Request",
    "Resume",
    "Return",
    "ReturnPermit",
    "Set",
    "Status",
]

OLD_GRANT_SECONDS = 1.0
"""How long after it sent an `Ask` a client spends the grant that it named there, at most."""


@dataclass(frozen=True, slots=True)
class Join:
    """A new client of `limit`, working for `job`; `name` is what `show` calls it. Answer: `Joined`.

    `before`: what it was called here before it was cut off.
    """

    limit: str
    job: str
    name: str = ""
    before: str = ""


@dataclass(frozen=True, slots=True)
class Ask:
    """A client asks for a grant. Answer: `Grant` or `Hold`.

    `number` counts this client's asks and returns from 1 up: a repeated number gets the same answer
    again, a lower one is refused. `grant`: the grant that it spends (0 = none), until it has the answer,
    and for `OLD_GRANT_SECONDS` at most; of it `spent_*` were used, and `missed_*` fell due with nothing to
    spend them on. `waiting` says what the client waits for, for people to read.
    """

    limit: str
    client: str
    epoch: str
    number: int
    grant: int = 0
    spent_rows: float = 0.0
    spent_bytes: float = 0.0
    missed_rows: float = 0.0
    missed_bytes: float = 0.0
    waiting: str = ""


@dataclass(frozen=True, slots=True)
class Return:
    """A client has nothing to spend `grant` on, and gives the rest back at once. Answer: `Done`."""

    limit: str
    client: str
    epoch: str
    number: int
    grant: int
    spent_rows: float = 0.0
    spent_bytes: float = 0.0
    missed_rows: float = 0.0
    missed_bytes: float = 0.0
    waiting: str = ""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A client that needs no grant is alive. Answer: `Done`."""

    limit: str
    client: str
    epoch: str
    waiting: str = ""


@dataclass(frozen=True, slots=True)
class Listen:
    """A client subscribes to changes, to hear of them sooner than at its next ask. Answer: `News`.

    The shell answers as soon as `version`, which the client heard last (-1 = never), is out of date, and
    again at each change, until the client leaves or a minute has passed; and when `calls`, how often the client
    was called so far, is out of date. Clients listen that ask seldom, or could use more than they have.
    """

    limit: str
    client: str
    epoch: str
    version: int = -1
    calls: int = 0


@dataclass(frozen=True, slots=True)
class Leave:
    """The client is finished; what is left of `grant` (0 = none) comes back. Answer: `Done`."""

    limit: str
    client: str
    epoch: str
    grant: int = 0
    spent_rows: float = 0.0
    spent_bytes: float = 0.0
    missed_rows: float = 0.0
    missed_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class Set:
    """New rates, both of them (None = unlimited in that dimension). Answer: `LimitStatus`."""

    limit: str
    rows_per_second: float | None = None
    bytes_per_second: float | None = None


@dataclass(frozen=True, slots=True)
class Pause:
    """Nothing moves until `Resume`. Answer: `LimitStatus`."""

    limit: str


@dataclass(frozen=True, slots=True)
class Resume:
    """End of `Pause`. Answer: `LimitStatus`."""

    limit: str


@dataclass(frozen=True, slots=True)
class Status:
    """Asks for the state of the limit. Answer: `LimitStatus`."""

    limit: str


@dataclass(frozen=True, slots=True)
class AskPermit:
    """`holder` wants one of the permits called `limit`, or renews its own. Answer: `Permit` or `Hold`."""

    limit: str
    holder: str


@dataclass(frozen=True, slots=True)
class ReturnPermit:
    """`holder` is done, or gives up its place in line. Answer: `Done`."""

    limit: str
    holder: str


@dataclass(frozen=True, slots=True)
class Permit:
    """The permit is granted. Ask again, as the same holder, within `renew_in` seconds while it is needed."""

    renew_in: float


@dataclass(frozen=True, slots=True)
class Grant:
    """`rows` and `nbytes` (None = unlimited) to be spent evenly, at the pace given, and then void.

    It begins `starts_in` seconds after it arrived and lasts `lasts` seconds more; the client asks again
    `ask_in` seconds after it arrived. `use_by` is when it is void, on the coordinator's own clock. It
    replaces the grant named in the `Ask`, as soon as it begins.

    `saved_*`, of it, may be spent as soon as it begins.

    It is a part of the limit, which was `limit_*` at `version`: who hears of a later one (`News`) spends the
    same part of that.
    """

    grant: int
    rows: int | None
    nbytes: int | None
    rows_per_second: float | None
    bytes_per_second: float | None
    starts_in: float
    lasts: float
    ask_in: float
    use_by: float
    epoch: str
    version: int = -1
    limit_rows_per_second: float | None = None
    limit_bytes_per_second: float | None = None
    saved_rows: float = 0.0
    saved_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class Hold:
    """No grant yet: ask again in `retry_in` seconds. `drop`: stop spending the grant you hold, too.

    `reason`: "turn" (others have it), "paused", "pressure", "restart", or "connections" (permits).
    """

    reason: str
    retry_in: float
    drop: bool = False


@dataclass(frozen=True, slots=True)
class Joined:
    """The client's secret name, the coordinator's epoch, and the answer to a first `Ask`.

    `version` is that of the limit which the answer is made from; see `News`.
    """

    client: str
    epoch: str
    heartbeat_in: float
    answer: Grant | Hold
    version: int = -1


@dataclass(frozen=True, slots=True)
class Done:
    """The request was carried out. Send a message again within `heartbeat_in` seconds."""

    heartbeat_in: float


@dataclass(frozen=True, slots=True)
class News:
    """What the limit is now (None = unlimited, 0 = nothing moves, for the `reason` "paused" or "pressure").

    `version` counts how often it was set, paused, resumed or pressed. Who has to ask about it does so within
    `ask_within` seconds. `again_in`: this was the last word, listen again after so many seconds. `calls` counts how
    often this client was called to ask at once, since a part of the limit came free that it could use.
    """

    version: int
    rows_per_second: float | None = None
    bytes_per_second: float | None = None
    reason: str = ""
    ask_within: float = 0.0
    again_in: float | None = None
    calls: int = 0


@dataclass(frozen=True, slots=True)
class Denied:
    """The request was refused and changed nothing. `rejoin`: join again and all is well."""

    message: str
    rejoin: bool = False


@dataclass(frozen=True, slots=True)
class ClientStatus:
    """One client, as `show` lists it. Speeds are what it may spend now; `waiting` is in its own words."""

    name: str
    job: str
    rows_per_second: float
    bytes_per_second: float
    waiting: str
    silent_seconds: float


@dataclass(frozen=True, slots=True)
class LimitStatus:
    """A limit at one instant.

    `rows_per_second` and `bytes_per_second` are what was set; `effective_*` what is left of it under
    pressure or a pause; `granted_*` what the live grants may spend per second. `horizon`: seconds that a
    grant lasts. Amounts since the coordinator started: issued = spent + returned + void + outstanding.
    `clients` holds at most 200 of the `client_count`.
    """

    limit: str
    epoch: str
    rows_per_second: float | None
    bytes_per_second: float | None
    effective_rows_per_second: float | None
    effective_bytes_per_second: float | None
    granted_rows_per_second: float
    granted_bytes_per_second: float
    paused: bool
    pressure: str
    horizon: float
    jobs: int
    client_count: int
    waiting_count: int
    issued_rows: float
    spent_rows: float
    returned_rows: float
    void_rows: float
    outstanding_rows: float
    issued_bytes: float
    spent_bytes: float
    returned_bytes: float
    void_bytes: float
    outstanding_bytes: float
    clients: tuple[ClientStatus, ...]

    @property
    def shown(self) -> tuple[int | None, int | None, str]:
        """Rows and bytes per second for people, None = unlimited, and why they hold, such as "paused"."""
        rows, nbytes = (
            None if rate is None else max(1, round(rate))
            for rate in (self.rows_per_second, self.bytes_per_second)
        )
        return rows, nbytes, "paused" if self.paused else self.pressure


Request = (
    Join
    | Ask
    | Return
    | Heartbeat
    | Listen
    | Leave
    | Set
    | Pause
    | Resume
    | Status
    | AskPermit
    | ReturnPermit
)
Reply = Joined | Grant | Hold | Done | News | LimitStatus | Permit | Denied
