"""Finds stalled tasks by the last growth of their counters; waits for the limit do not count. Pure."""

from dataclasses import dataclass

from spark_channel.progress.counters import Snapshot

__all__ = ["Growth", "stalled_text"]

_NAMED = 3


@dataclass(slots=True)
class Growth:
    """Of one attempt: what it had when it last moved something, and when that was."""

    figures: tuple[int, ...] = ()
    since: float = 0.0
    limited: float = 0.0

    def see(self, snapshot: Snapshot, now: float) -> None:
        """Note what it has now."""
        figures = (
            snapshot.rows_read, snapshot.rows_pushed, snapshot.rows_written, snapshot.bytes_written,
            snapshot.dirty_rows, len(snapshot.phases),
        )  # fmt: skip
        if figures != self.figures:
            self.figures, self.since, self.limited = figures, now, _limited(snapshot)

    def idle(self, snapshot: Snapshot, now: float) -> float:
        """Seconds without progress that the limit does not explain; 0 when the attempt has ended."""
        if snapshot.phase.final:
            return 0.0
        return max(0.0, now - self.since - (_limited(snapshot) - self.limited))


def stalled_text(stalled: list[tuple[int, float]]) -> str:
    """For the progress line: `task 3 has stalled for 40 s`; empty when none has. (task, seconds) of each."""
    if not stalled:
        return ""
    worst = sorted(stalled, key=lambda each: -each[1])
    named = ", ".join(str(task) for task, _ in worst[:_NAMED])
    more = f" and {len(worst) - _NAMED} more" if len(worst) > _NAMED else ""
    which = f"task {named} has" if len(worst) == 1 else f"tasks {named}{more} have"
    return f"{which} stalled for {worst[0][1]:.0f} s"


def _limited(snapshot: Snapshot) -> float:
    return sum(spent for reason, spent in snapshot.waits.items() if reason.startswith("limit"))
