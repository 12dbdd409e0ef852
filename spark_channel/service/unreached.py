"""Which services this process did not reach a moment ago: the next task in it need not find out again.

Spark runs one task after the other in a Python worker. Without this each of them would wait for the same timeout.
"""

import threading

from spark_channel.clock import SYSTEM_CLOCK
from spark_channel.service.address import ServiceAddress

__all__ = ["note_reached", "note_unreached", "was_unreached"]

_SECONDS = 60.0
_MOST = 100

_lock = threading.Lock()
_until: dict[tuple[str, int], float] = {}


def note_unreached(address: ServiceAddress) -> None:
    """It did not answer for as long as one waits."""
    with _lock:
        if len(_until) >= _MOST:
            _until.clear()
        _until[address.host, address.port] = SYSTEM_CLOCK.now() + _SECONDS


def note_reached(address: ServiceAddress) -> None:
    """It answered."""
    if _until:
        with _lock:
            _until.pop((address.host, address.port), None)


def was_unreached(address: ServiceAddress | None) -> bool:
    """Whether this process tried to reach it in the last minute, and did not."""
    if address is None or not _until:
        return False
    with _lock:
        return _until.get((address.host, address.port), 0.0) > SYSTEM_CLOCK.now()
