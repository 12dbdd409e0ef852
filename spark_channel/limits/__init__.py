"""Speed limits: token buckets for one process, a coordinator and its clients for many. Pure, no I/O.

    TokenBucket      one rate: a token bucket with debt
    RateLimiter      rows and bytes together: a `channel.Limiter` for one process
    Coordinator      issues the grants of one limit           (on the driver's host)
    LeaseLimiter     a `channel.Limiter` that spends grants     (in every Spark task)
    CombinedLimiter  several limiters as one
    Semaphore        the most holders at a time                 (`maxConnections`)
    AdaptiveLimit    a database's health, or a probe's answers -> a speed for `Coordinator.cap` or `press`
    LimitRegistry    all limits and permits of a service by name, and limits per resource mark

The coordinator and its clients exchange plain dataclasses (`messages`): one request, one reply. A program
that carries them over a network needs only this::

    # the service                                   # the client, one thread
    limits = LimitRegistry()                        limiter = LeaseLimiter("orders-db", job, "task 7")
    limits.add_limit("orders-db", 50_000)           while (request := limiter.next_request()) is not None:
    def on_call(data: bytes) -> bytes:                  try:
        return limits.answer(data)                          data = call(encode(request), timeout=2)
                                                        except ServiceUnavailableError as error:
                                                            limiter.failed(request, error)
                                                        else:
                                                            limiter.receive(request, decode_reply(data))

A client sends, in this order: `Join` with its first payment; `GrantRequest` at half of each grant, and when a
`RetryLater` asks for it; `GrantReturn` when it has nothing to pay; `Heartbeat` after a long silence; `Leave` after
`close()`. After a `Rejected(rejoin=True)` (a restart, or silence) it sends `Join` again by itself.
Operators send `SetRates`, `Pause`, `Resume` and `StatusRequest`. The program that carries the messages checks
tokens and addresses.
"""

from typing import TYPE_CHECKING

from spark_channel import lazy

if TYPE_CHECKING:
    from spark_channel.limits.client import LeaseLimiter
    from spark_channel.limits.coordinator import Coordinator
    from spark_channel.limits.health import HealthSample, UnreachablePolicy
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
    from spark_channel.limits.protection import AdaptiveLimit
    from spark_channel.limits.registry import LimitRegistry, Semaphore, marked
    from spark_channel.limits.token_bucket import (
        CombinedLimiter,
        RateLimiter,
        StaticShare,
        TokenBucket,
    )
else:
    __getattr__, __dir__ = lazy.exports(
        __name__,
        {
            "client": ["LeaseLimiter"],
            "coordinator": ["Coordinator"],
            "health": ["HealthSample", "UnreachablePolicy"],
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
            "protection": ["AdaptiveLimit"],
            "registry": ["LimitRegistry", "Semaphore", "marked"],
            "token_bucket": ["CombinedLimiter", "RateLimiter", "StaticShare", "TokenBucket"],
        },
    )

__all__ = [
    "Acknowledged",
    "AdaptiveLimit",
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
    "TokenBucket",
    "UnreachablePolicy",
    "decode_reply",
    "decode_request",
    "encode",
    "marked",
]
