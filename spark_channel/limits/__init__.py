"""Speed limits: buckets and meters for one process, a coordinator and its clients for many. Pure, no I/O.

    Level                     one rate: a token bucket with debt
    Level -> Meter            rows and bytes, a `channel.Limiter` for one process
    Coordinator               hands out the grants of one limit        (on the driver's host)
    LeaseLimiter              a `channel.Limiter` that lives on grants  (in every Spark task)
    AllOf                     several limiters as one
    Permits                   how many at once                          (`maxConnections`)
    Pressure                  AIMD: a probe's answers -> a factor for `Coordinator.press`
    Protection                a database's health -> a speed for `Coordinator.cap`
    LimitBook                 all limits and permits of a service by name, and limits per resource mark

The coordinator and its clients speak in plain dataclasses (`messages`), one request, one reply. A shell
that carries them, over whatever it likes, is this and no more::

    # the service                                   # the client, one thread
    book = LimitBook()                              limiter = LeaseLimiter("orders-db", job, "task 7")
    book.add_limit("orders-db", 50_000)             while (request := limiter.next_request()) is not None:
    def on_call(data: bytes) -> bytes:                  try:
        return book.answer(data)                            data = call(encode(request), timeout=2)
                                                        except ServiceUnavailableError as error:
                                                            limiter.failed(request, error)
                                                        else:
                                                            limiter.receive(request, decode_reply(data))

What a client says, in order: `Join` when its first payment comes; `Ask` at half of each grant, and when
a `Hold` says so; `Return` when it has nothing to pay; `Heartbeat` when it was silent for long; `Leave`
after `close()`. A `Denied(rejoin=True)` (restart, or silence) makes it `Join` again by itself.
People say `Set`, `Pause`, `Resume` and `Status`. Tokens and addresses are the shell's business.
"""

from typing import TYPE_CHECKING

from spark_channel import lazy

if TYPE_CHECKING:
    from spark_channel.limits.book import LimitBook, marked
    from spark_channel.limits.client import LeaseLimiter
    from spark_channel.limits.combined import AllOf
    from spark_channel.limits.coordinator import Coordinator
    from spark_channel.limits.messages import (
        Ask,
        AskPermit,
        ClientStatus,
        Denied,
        Done,
        Grant,
        Heartbeat,
        Hold,
        Join,
        Joined,
        Leave,
        LimitStatus,
        Listen,
        News,
        Pause,
        Permit,
        Reply,
        Request,
        Resume,
        Return,
        ReturnPermit,
        Set,
        Status,
    )
    from spark_channel.limits.meter import Meter
    from spark_channel.limits.permits import Permits
    from spark_channel.limits.pressure import Pressure, PressureState, UnreachablePolicy
    from spark_channel.limits.protection import Held, Protection, Sample
    from spark_channel.limits.static import StaticShare
    from spark_channel.limits.wire import decode_reply, decode_request, encode
else:
    __getattr__, __dir__ = lazy.exports(__name__)

__all__ = [
    "AllOf",
    "Ask",
    "AskPermit",
    "ClientStatus",
    "Coordinator",
    "Denied",
    "Done",
    "Grant",
    "Heartbeat",
    "Held",
    "Hold",
    "Join",
    "Joined",
    "LeaseLimiter",
    "Leave",
    "LimitBook",
    "LimitStatus",
    "Listen",
    "Meter",
    "News",
    "Pause",
    "Permit",
    "Permits",
    "Pressure",
    "PressureState",
    "Protection",
    "Reply",
    "Request",
    "Resume",
    "Return",
    "ReturnPermit",
    "Sample",
    "Set",
    "StaticShare",
    "Status",
    "UnreachablePolicy",
    "decode_reply",
    "decode_request",
    "encode",
    "marked",
]
