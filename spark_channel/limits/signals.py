"""What a database says of its health: the names of the signals, their units, and what is too much. Pure."""

from dataclasses import dataclass

__all__ = ["SIGNALS", "WORK", "SignalKind", "most_of", "shown"]


@dataclass(frozen=True, slots=True)
class SignalKind:
    """`at_most` is the default bound; None = it is compared with what it usually is. `unit` is for people."""

    at_most: float | None
    unit: str = ""


WORK = "work"
"""The one that no system tells: a job knows what its own statements do."""

SIGNALS: dict[str, SignalKind] = {
    "replication_lag": SignalKind(1.0, "s"),
    "xmin_age": SignalKind(10_000_000, "transactions"),
    "slot_wal": SignalKind(float(1 << 30), "bytes"),
    "active_sessions": SignalKind(32),
    "waiting_sessions": SignalKind(8),
    "forced_checkpoints": SignalKind(2, "a minute"),
    "history_length": SignalKind(1_000_000),
    "threads_running": SignalKind(32),
    WORK: SignalKind(0.05, "of a core"),
    "wakeup": SignalKind(None, "s"),
    "latency": SignalKind(None, "s"),
}
"""Those of the connectors that are shipped. `work` is how much of a core the job's own statements use, `wakeup` how
long a session of the server waits for a core, `latency` how long a small statement takes from here and back."""


def most_of(name: str) -> float:
    """The default bound of a signal that has one."""
    found = SIGNALS[name].at_most
    assert found is not None
    return found


def shown(name: str, value: float) -> str:
    """A value of a signal, for people."""
    kind = SIGNALS.get(name)
    unit = "" if kind is None else kind.unit
    if unit == "bytes":
        return f"{value / (1 << 20):.0f} MiB"
    if unit == "s" and value < 1:
        return f"{value * 1000:.3g} ms"
    text = f"{value:.3g}" if value < 1000 else f"{value:.0f}"
    return f"{text} {unit}".rstrip()
