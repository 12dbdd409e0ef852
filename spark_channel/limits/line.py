"""Who is next: a line for each job, and the job that has least goes first."""

from itertools import islice

from spark_channel.limits.issued_grants import DIMENSIONS, Client, JobShare
from spark_channel.limits.level import nanoseconds
from spark_channel.limits.pool import HORIZON, Pool

__all__ = ["Line"]

LINE_COUNTED = 256
"""Places up to which a line is counted; further back the tickets are near enough."""


class Line:
    """The lines of a pool's jobs, seen as one."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def is_next(self, client: Client, least: tuple[int, int] | list[int], now: int) -> bool:
        """There is room for `least` for this client and all who are before it in line."""
        room = self._pool.max_clients
        for dimension in DIMENSIONS:
            if self._pool.limits[dimension] is not None:
                free = self._pool.free(dimension)
                room = min(room, free // max(1, least[dimension]))
        if room <= 0:
            return False
        self._drop_absent(now)
        lined = [job for job in self._pool.jobs.values() if job.line or job is client.job]
        picks = room if len(lined) == 1 else self._picks(client.job, lined, room, least)
        return self._is_among(client, picks)

    def _picks(
        self, mine: JobShare, lined: list[JobShare], room: int, least: tuple[int, int] | list[int]
    ) -> int:
        """How many of `mine` are among the next `room`, when the job with the least goes first."""
        picks = dict.fromkeys(lined, 0)
        step = 1 + room // 64
        for _ in range(0, room, step):
            job = min(picks, key=lambda each: self._weight(each, picks[each], least))
            picks[job] += step
            if job is not mine and picks[job] >= len(job.line):
                del picks[job]
        return picks[mine]

    def _is_among(self, client: Client, first: int) -> bool:
        """`client` is one of the `first` in the line of its job, or would be."""
        line = client.job.line
        if client in line and first < min(len(line), LINE_COUNTED):
            return client in islice(line, first)
        return self.ahead(client) < first

    def ahead(self, client: Client) -> int:
        """How many of its job are before `client` in line; at most, since some may have left it."""
        line = client.job.line
        if client not in line:
            return len(line)
        return line[client] - next(iter(line.values()))

    def _drop_absent(self, now: int) -> None:
        """Heads of lines that did not come when it was their turn lose their place."""
        late = now - nanoseconds(HORIZON)
        for job in list(self._pool.jobs.values()):
            while job.line and (head := next(iter(job.line))).due < late:
                self._pool.leave_line(head)
                self._pool.want(head, bool(head.issued_grants()))

    def _weight(self, job: JobShare, picks: int, least: tuple[int, int] | list[int]) -> float:
        """The part of the limit that `job` has, with `picks` more grants."""
        return max(
            (job.charge[dimension] + picks * least[dimension]) / self._pool.rates[dimension]
            if self._pool.rates[dimension]
            else 0.0
            for dimension in DIMENSIONS
        )

    def is_near(self, client: Client) -> bool:
        """The client's turn comes within half a turn."""
        lined = [job for job in self._pool.jobs.values() if job.line]
        if lined and client.job is not min(lined, key=lambda job: self._weight(job, 0, (0, 0))):
            return False
        return self._is_among(client, max(1, self._pool.slots() // 2))
