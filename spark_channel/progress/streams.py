"""Log lines of streams: one per interval instead of one per micro-batch. No I/O."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from spark_channel.progress.job import JobProgress
from spark_channel.progress.render import batch_line, before_lines
from spark_channel.progress.report import TransferReport
from spark_channel.progress.spec import JobSpec

__all__ = ["StreamBoard", "is_batch"]

_SILENT_SECONDS = 60.0
"""A stream whose last batch ended this long ago is not shown until its next one."""
_MOST_STREAMS = 1000

_Key = tuple[str, str, str, str]


def is_batch(progress: JobProgress) -> bool:
    """Whether the job is (a part of) a stream's micro-batch."""
    return progress.spec.batch is not None


@dataclass(slots=True)
class _Stream:
    spec: JobSpec
    seen: float
    reports: dict[str, TransferReport] = field(default_factory=dict)
    batches: int = 0
    rows: int = 0
    said_at: float | None = None
    unsaid: bool = False
    shown: bool = True

    def line(self) -> str:
        return batch_line(list(self.reports.values()), self.spec, self.batches, self.rows)


class StreamBoard:
    """Joins the jobs of a stream's batches by what they are of, and says what to print of them, and when.

    Times are seconds of one clock, the caller's. Used by one thread.
    """

    def __init__(self) -> None:
        self._streams: dict[_Key, _Stream] = {}

    def opened(self, progress: JobProgress, now: float) -> list[str]:
        """Open a batch. Returns the lines before its stream, if it is the first one."""
        known = self._streams.get(_key(progress.spec))
        if known is not None:
            known.seen = now
            return []
        while len(self._streams) >= _MOST_STREAMS:
            del self._streams[next(iter(self._streams))]
        self._streams[_key(progress.spec)] = _Stream(progress.spec, now)
        return before_lines(progress.job, progress.spec)

    def closed(self, progress: JobProgress, now: float) -> None:
        """Close a batch, or a part of one."""
        stream = self._streams.setdefault(_key(progress.spec), _Stream(progress.spec, now))
        report = progress.report()
        if not stream.reports or stream.spec.batch != progress.spec.batch:
            stream.reports = {}
            stream.batches += 1
        before = stream.reports.get(report.job)  # one that was closed too early comes again
        stream.rows += report.rows - (0 if before is None else before.rows)
        stream.reports[report.job] = report
        stream.spec = progress.status().spec
        stream.seen, stream.unsaid, stream.shown = now, True, True

    def has_ended_one(self, progress: JobProgress) -> bool:
        """Whether a batch of this job's stream has ended before."""
        stream = self._streams.get(_key(progress.spec))
        return stream is not None and bool(stream.reports)

    def last(self) -> list[str]:
        """The last batch of each stream that is shown."""
        return [stream.line() for stream in self._shown() if stream.reports]

    def due(self, now: float, every: float) -> list[str]:
        """The lines for a log: of the first batch of a stream, then of one per `every` seconds."""
        return [
            _said(stream, now) for stream in self._shown()
            if stream.unsaid and (stream.said_at is None or now - stream.said_at >= every)
        ]  # fmt: skip

    def silent(self, now: float, *, all_of_them: bool = False) -> list[str]:
        """Remove the streams without news. Returns the last lines that they had not shown."""
        lines = []
        for stream in self._shown():
            if all_of_them or now - stream.seen >= _SILENT_SECONDS:
                stream.shown = False
                if stream.unsaid:
                    lines.append(_said(stream, now))
        return lines

    def is_empty(self) -> bool:
        """Whether no stream is shown."""
        return not any(self._shown())

    def _shown(self) -> Iterator[_Stream]:
        return (stream for stream in self._streams.values() if stream.shown)


def _said(stream: _Stream, now: float) -> str:
    stream.said_at, stream.unsaid = now, False
    return stream.line()


def _key(spec: JobSpec) -> _Key:
    return spec.kind, spec.name, spec.source, spec.target
