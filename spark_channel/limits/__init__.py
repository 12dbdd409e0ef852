"""Speed limits: buckets and meters for one process, a coordinator and its clients for many. Pure, no I/O.

    Level                     one rate: a token bucket with debt
    Level -> Meter            rows and bytes, a `channel.Limiter` for one process
    Coordinator               hands out the grants of one limit        (on the driver's host)
    LeaseLimiter              a `channel.Limiter` that lives on grants  (in every Spark task)
    CombinedLimiter                     several limiters as one
    Permits                   how many at once                          (`maxConnections`)
    Pressure                  AIMD: a probe's answers -> a factor for `Coordinator.press`
    Protection                a database's health -> a speed for `Coordinator.cap`
    LimitRegistry                 all limits and permits of a service by name, and limits per resource mark

The coordinator and its clients speak in plain dataclasses (`messages`), one request, one reply. A shell
that carries them, over whatever it likes, is this and no more::

    # the service                                   # the client, one thread
    book = LimitRegistry()                              limiter = LeaseLimiter("orders-db", job, "task 7")
    book.add_limit("orders-db", 50_000)             while (request := limiter.next_request()) is not None:
    def on_call(data: bytes) -> bytes:                  try:
        return book.answer(data)                            data = call(encode(request), timeout=2)
                                                        except ServiceUnavailableError as error:
                                                            limiter.failed(request, error)
                                                        else:
                                                            limiter.receive(request, decode_reply(data))

What a client says, in order: `Join` when its first payment comes; `GrantRequest` at half of each grant, and when
a `RetryLater` says so; `GrantReturn` when it has nothing to pay; `Heartbeat` when it was silent for long; `Leave`
after `close()`. A `Rejected(rejoin=True)` (restart, or silence) makes it `Join` again by itself.
People say `SetRates`, `Pause`, `Resume` and `StatusRequest`. Tokens and addresses are the shell's business.
"""

from typing import TYPE_CHECKING

from spark_channel import lazy

if TYPE_CHECKING:
    from spark_channel.limits.adaptive import AimdController, PressureState, UnreachablePolicy
    from spark_channel.limits.client import LeaseLimiter
    from spark_channel.limits.coordinator import Coordinator
    from spark_channel.limits.messages import (
        Acknowledged,
        ClientStatus,
        Grant,
        GrantRequest,
        GrantReturn,
        Heartbeat,
        Join,
        Joined,
        Leave,
        LimitChanged,
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
        Subscribe,
        decode_reply,
        decode_request,
        encode,
    )
    from spark_channel.limits.protection import AdaptiveLimit, HealthSample, ThrottleInterval
    from spark_channel.limits.registry import LimitRegistry, Semaphore, marked
    from spark_channel.limits.token_bucket import CombinedLimiter, RateLimiter, StaticShare
else:
    __getattr__, __dir__ = lazy.exports(
        __name__,
        {
            "adaptive": ["AimdController", "PressureState", "UnreachablePolicy"],
            "client": ["LeaseLimiter"],
            "coordinator": ["Coordinator"],
            "messages": [
                "Acknowledged",
                "ClientStatus",
                "Grant",
                "GrantRequest",
                "GrantReturn",
                "Heartbeat",
                "Join",
                "Joined",
                "Leave",
                "LimitChanged",
                "LimitStatus",
                "Pause",
                "Permit",
                "PermitRequest",
                "PermitReturn",
                "Rejected",
                "Reply",
                "Request",
                "Resume",
                "RetryLater",
                "SetRates",
                "StatusRequest",
                "Subscribe",
                "decode_reply",
                "decode_request",
                "encode",
            ],
            "protection": ["AdaptiveLimit", "HealthSample", "ThrottleInterval"],
            "registry": ["LimitRegistry", "Semaphore", "marked"],
            "token_bucket": ["CombinedLimiter", "RateLimiter", "StaticShare"],
        },
    )

__all__ = [
    "Acknowledged",
    "AdaptiveLimit",
    "AimdController",
    "ClientStatus",
    "CombinedLimiter",
    "Coordinator",
    "Grant",
    "GrantRequest",
    "GrantReturn",
    "HealthSample",
    "Heartbeat",
    "Join",
    "Joined",
    "LeaseLimiter",
    "Leave",
    "LimitChanged",
    "LimitRegistry",
    "LimitStatus",
    "Pause",
    "Permit",
    "PermitRequest",
    "PermitReturn",
    "PressureState",
    "RateLimiter",
    "Rejected",
    "Reply",
    "Request",
    "Resume",
    "RetryLater",
    "Semaphore",
    "SetRates",
    "StaticShare",
    "StatusRequest",
    "Subscribe",
    "ThrottleInterval",
    "UnreachablePolicy",
    "decode_reply",
    "decode_request",
    "encode",
    "marked",
]
