"""Speed limits: buckets and meters for one process, a coordinator and its clients for many. Pure, no I/O.

    Level -> TokenBucket      one rate, for threads that block
    Level -> Meter            rows and bytes, a `channel.Limiter` for one process
    Coordinator               hands out the grants of one limit        (on the driver's host)
    LeaseLimiter              a `channel.Limiter` that lives on grants  (in every Spark task)

The coordinator and its clients speak in plain dataclasses (`messages`), one request, one reply. A shell
that carries them, over whatever it likes, is this and no more::

    # the service                                   # the client, one thread
    coordinator = Coordinator("orders-db", 50_000)  limiter = LeaseLimiter("orders-db", job, "task 7")
    def on_call(data: bytes) -> bytes:              while (request := limiter.next_request()) is not None:
        return coordinator.answer(data)                 try:
                                                            data = call(encode(request), timeout=2)
                                                        except ServiceUnavailableError as error:
                                                            limiter.failed(request, error)
                                                        else:
                                                            limiter.receive(request, decode_reply(data))

What a client says, in order: `Join` when its first payment comes; `Ask` at half of each grant, and when
a `Hold` says so; `Return` when it has nothing to pay; `Heartbeat` when it was silent for long; `Leave`
after `close()`. A `Denied(rejoin=True)` (restart, or silence) makes it `Join` again by itself.
People say `Set`, `Pause`, `Resume` and `Status`. Tokens and addresses are the shell's business.
"""

from spark_channel.limits.bucket import TokenBucket
from spark_channel.limits.client import LeaseLimiter
from spark_channel.limits.coordinator import Coordinator
from spark_channel.limits.messages import (
    Ask,
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
    Pause,
    Reply,
    Request,
    Resume,
    Return,
    Set,
    Status,
)
from spark_channel.limits.meter import Meter
from spark_channel.limits.wire import decode_reply, decode_request, encode

__all__ = [
    "Ask",
    "ClientStatus",
    "Coordinator",
    "Denied",
    "Done",
    "Grant",
    "Heartbeat",
    "Hold",
    "Join",
    "Joined",
    "LeaseLimiter",
    "Leave",
    "LimitStatus",
    "Meter",
    "Pause",
    "Reply",
    "Request",
    "Resume",
    "Return",
    "Set",
    "Status",
    "TokenBucket",
    "decode_reply",
    "decode_request",
    "encode",
]
