"""Signals wake the main thread, which alone runs their handlers, and SIGTERM ends a command as Ctrl-C does."""

from spark_channel.signals.ending import (
    TERMINATED,
    SigtermHandler,
    ending_on_signals,
    ending_on_sigterm,
    raise_if_ended,
)
from spark_channel.signals.waking import (
    wake_on_signals,
    woken_by_signals,
)

__all__ = [
    "TERMINATED",
    "SigtermHandler",
    "ending_on_signals",
    "ending_on_sigterm",
    "raise_if_ended",
    "wake_on_signals",
    "woken_by_signals",
]
