"""What the part of a limit that no grant holds has saved up, for the next grant that is cut of it."""

from spark_channel.limits.issued_grants import DIMENSIONS, IssuedGrant
from spark_channel.limits.level import NANOS, SLICE_SECONDS, nanoseconds

__all__ = ["Savings"]

_MOST_NS = nanoseconds(SLICE_SECONDS)


class Savings:
    """The free part of a limit flows as a grant does: evenly, and 20 ms of it are kept.

    So a limit is one flow with 20 ms of surplus, whoever holds which part of it, and a part that goes from one client
    to the next takes its surplus along: what a task's end and the next one's start cost is not lost, as long as
    it is no more than that. Amounts are units times `NANOS` times `MICROS`, whole numbers.
    """

    def __init__(self, begins: int) -> None:
        """Nothing is saved before the instant `begins`: until then a predecessor's grants may be spent."""
        self._at = begins
        self._saved = [0, 0]

    def advance(self, free: tuple[int, int], now: int) -> None:
        """Let the parts that were `free` since the last time bring what they do until `now`."""
        passed = max(0, now - self._at)
        self._at = max(self._at, now)
        for each in DIMENSIONS:
            part = max(0, free[each])
            self._saved[each] = min(self._saved[each] + part * passed, part * _MOST_NS)

    def take(self, more: tuple[int, int]) -> tuple[int, int]:
        """What goes along with a grant of `more` of the free part, in millionths of a unit."""
        taken = [min(self._saved[each], max(0, more[each]) * _MOST_NS) // NANOS for each in DIMENSIONS]
        for each in DIMENSIONS:
            self._saved[each] -= taken[each] * NANOS
        return taken[0], taken[1]

    def give_back(self, issued: IssuedGrant, missed: tuple[int, int], now: int) -> None:
        """`issued` ends before its time: what it brought on the way to its client, and what was not spent, is saved.

        Not where a client had more than it could keep: what came on the way was lost then.
        """
        if issued.over or issued.pace != issued.cut or issued.after is not None:
            return
        for each in DIMENSIONS:
            brought = issued.pace[each] * max(0, now - issued.starts) + issued.saved[each] * NANOS
            rest = brought - issued.spent[each] * NANOS
            if not missed[each] and rest > 0:
                self._saved[each] += min(rest, issued.pace[each] * _MOST_NS)
